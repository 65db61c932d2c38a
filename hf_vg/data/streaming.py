# Copyright 2026 The hf_vg maintainers. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Images with captions that are read as they are trained on, from more data than memory or disk hold."""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict, Image, IterableDataset, load_dataset
from datasets.exceptions import DatasetGenerationError
from tqdm.auto import tqdm

from .._compat import resolve_features
from .formats import check_card
from .images import image_problem
from .loading_report import MAX_SHOWN, LoadingReport
from .tables import CAPTION_COLUMNS, IMAGE_COLUMNS, as_list, split_name
from .tars import TAR_FEATURES, find_tars, tar_rows


logger = logging.getLogger(__name__)


class CaptionStream(torch.utils.data.IterableDataset):
    r"""
    Rows with an `image` and its `captions`, without end: pass follows pass, each in another order. A row's image is
    the file's bytes, which [`CaptionCollator`] decodes. Rows that have no captions, or an image that is broken or not
    within the file, are skipped, counted and named.

    It has no length, so training needs `max_steps`. Each start gives the same rows in the same order, so a training
    that was interrupted is resumed by reading up to where it was, which [`Trainer`] does.

    Args:
        dataset ([`~datasets.IterableDataset`]):
            Shuffled rows, whose order depends on its epoch.
        image_column (`str`):
            The column of images.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped is an error.
        report ([`LoadingReport`], *optional*):
            Is told of every row that is skipped.
    """

    def __init__(
        self,
        dataset: IterableDataset,
        image_column: str,
        strict: bool = False,
        report: LoadingReport | None = None,
    ):
        self.dataset = dataset
        self.image_column = image_column
        self.strict = strict
        self.report = report or LoadingReport("stream")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            any_row = False
            for row in self.one_pass(epoch):
                any_row = True
                yield row
            if not any_row:
                return

    def one_pass(self, epoch: int = 0) -> Iterator[dict[str, Any]]:
        """All rows once, in the order of a pass."""
        self.dataset.set_epoch(epoch)
        rows = skipped = 0
        for row in self._rows():
            image, captions = row[self.image_column], _captions(row)
            reason = row.get("problem") or _problem(image, captions)
            if reason is None:
                rows += 1
                yield {"image": {"bytes": image["bytes"], "path": _place(row)}, "captions": captions}
            else:
                skipped += 1
                if epoch == 0:
                    self._skip(row, reason)
        # datasets gives nothing to a worker of a loader if there are fewer files than workers.
        if not rows and (skipped or torch.utils.data.get_worker_info() is None):
            raise ValueError(f"{self.report.name}: there is no row with an image and a caption, of {skipped:,}")

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self.dataset
        except Exception as error:
            raise ValueError(f"{self.report.name}: {str(error).strip().partition(chr(10))[0]:.300}") from error

    def _skip(self, row: Mapping[str, Any], reason: str) -> None:
        self.report.skip(_place(row) or self.report.name, None, reason)
        problem = self.report.problems[-1]
        if self.strict:
            raise ValueError(str(problem))
        # A stream has no end at which to sum up, and its rows may be read in another process.
        number = self.report.kinds["skipped"]
        if number <= MAX_SHOWN:
            logger.warning(str(problem))
        elif number % 1000 == 0:
            logger.warning(f"{self.report.name}: {number:,} rows skipped so far")


def stream_captions(
    source: str,
    data_files: str | PathLike | Sequence[str] | None = None,
    split: str = "train",
    shuffle_buffer: int = 1000,
    seed: int = 0,
    strict: bool = False,
    report: LoadingReport | None = None,
) -> CaptionStream:
    r"""
    Streams images with captions from the Hub or from files.

    Args:
        source (`str`):
            A dataset of the Hub, or a format: `"parquet"`, or `"webdataset"`, `.tar` files in which an image shares
            its name with a `.txt` that has one caption per line, or with a `.json` that has `caption` or `captions`.
            Images must be within the files.
        data_files (`str` or `Sequence[str]`, *optional*):
            Files, addresses or patterns, for a format.
        split (`str`, *optional*, defaults to `"train"`):
            The split of a dataset of the Hub.
        shuffle_buffer (`int`, *optional*, defaults to 1000):
            Rows in memory, out of which one is drawn at a time. The order of files is drawn as well.
        seed (`int`, *optional*, defaults to 0):
            The seed of the order.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row without image or captions is an error.
        report ([`LoadingReport`], *optional*):
            Is told of every row that is skipped.
    """
    files = [data_files] if isinstance(data_files, (str, PathLike)) else list(data_files or ())
    files = [str(file) for file in files]
    named = ", ".join(files[:3]) or source
    if source == "webdataset":
        tars = find_tars(files)
        if not tars:
            raise FileNotFoundError(f"{named}: there is no such .tar file")
        dataset = IterableDataset.from_generator(tar_rows, features=TAR_FEATURES, gen_kwargs={"files": tars})
    else:
        check_card(source)
        try:
            dataset = resolve_features(load_dataset(source, data_files=files or None, split=split, streaming=True))
        except Exception as error:  # what is wrong with files of others is reported in many ways
            raise ValueError(f"{named}: {str(error.__cause__ or error).strip().partition(chr(10))[0]:.300}") from error
    image = _image_column(dataset.features, source)
    # Neither the buffer nor the rows that a resumed training passes over need pixels.
    dataset = dataset.cast_column(image, Image(decode=False))
    dataset = dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
    return CaptionStream(dataset, image, strict, report or LoadingReport(named))


def load_webdataset(data_dir: Path, check_images: bool, report: LoadingReport) -> DatasetDict:
    r"""
    Reads `.tar` files into the cache of `datasets`. In them, an image shares its name with a `.txt`, which has one
    caption per line, or with a `.json` that has `caption` or `captions`. Files whose names begin with `train`, `val`
    or `test` are that split, and others are training data.

    Args:
        data_dir (`Path`):
            The folder with the files, or a pattern of them.
        check_images (`bool`):
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`]):
            Is told of every row that is skipped.
    """
    files: dict[str, list[str]] = {}
    for path in find_tars([str(data_dir)]):
        matched = re.match(r"(train|val|valid|validation|dev|test)(?![a-z])", Path(path).name.lower())
        files.setdefault(split_name(matched[1]) if matched else "train", []).append(path)
    if not files:
        raise FileNotFoundError(f"there is no .tar file in {data_dir}")
    data = DatasetDict()
    for split, paths in files.items():
        states = [(state.st_size, state.st_mtime_ns) for state in map(os.stat, paths)]
        try:
            rows = Dataset.from_generator(
                tar_rows, features=TAR_FEATURES, gen_kwargs={"files": paths, "versions": states}
            )
        except DatasetGenerationError as error:
            raise ValueError(str(error.__cause__ or error)) from error
        except ValueError as error:  # of a split without a row
            raise ValueError(f"{', '.join(paths[:3])}: there is no row with an image and a caption") from error
        data[split] = _readable(rows, check_images, report)
    return data


def _readable(rows: Dataset, decode: bool, report: LoadingReport) -> Dataset:
    kept = []
    undecoded = rows.cast_column("image", Image(decode=False))
    for index, row in enumerate(tqdm(undecoded, desc="Checking images", unit="image", delay=2)):
        reason = row["problem"] or _problem(row["image"], row["captions"], decode)
        if reason is None:
            kept.append(index)
        else:
            report.skip(_place(row) or report.name, None, reason)
    rows = rows.select(kept).rename_column("__key__", "image_id")
    return rows.select_columns(["image", "image_id", "captions"])


def _problem(image: Any, captions: list[str], decode: bool = False) -> str | None:
    if image is None:
        return "the row has no image"
    if not captions:
        return "the row has no captions"
    if not image["bytes"]:
        return f"the image {image['path']!r:.200} is not within the file"
    problem = image_problem(image["bytes"], decode)
    return None if problem is None else problem[0].lower() + problem[1:]


def _place(row: Mapping[str, Any]) -> str | None:
    """The tar and the key of a row, or where else it is."""
    return f"{row['__url__']}: {row['__key__']}" if "__key__" in row else row.get("__url__")


def _image_column(columns: Mapping[str, Any], source: str) -> str:
    images = [name for name, feature in columns.items() if isinstance(feature, Image)]
    images = images or [name for name in IMAGE_COLUMNS if name in columns]
    if len(images) != 1:
        raise ValueError(f"{source}: expected one column of images, found {images} among {list(columns)}")
    return images[0]


def _captions(row: Mapping[str, Any]) -> list[str]:
    if isinstance(row.get("txt"), str):  # of tar files on the Hub
        captions = row["txt"].splitlines()
    else:
        fields = row["json"] if isinstance(row.get("json"), Mapping) else row
        captions = as_list(next((fields[name] for name in CAPTION_COLUMNS if fields.get(name)), None))
    return [" ".join(caption.split()) for caption in captions if isinstance(caption, str) and caption.strip()]
