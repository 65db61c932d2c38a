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
"""Streams images with captions, for data larger than memory or disk."""

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
    An endless stream of rows with an `image` and its `captions`. Each pass over the data has another order. Images are
    the bytes of the files, which [`CaptionCollator`] decodes. Rows without captions, and rows with a broken or missing
    image, are skipped and reported.

    A stream has no length, so training needs `max_steps`. Every start gives the same rows in the same order, so
    [`Trainer`] can resume an interrupted run by skipping the rows that it has seen.

    Args:
        dataset ([`~datasets.IterableDataset`]):
            Shuffled rows. Their order depends on the epoch.
        image_column (`str`):
            The name of the image column.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error if a row must be skipped.
        report ([`LoadingReport`], *optional*):
            Collects the skipped rows.
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
        """
        Iterates over the data once.

        Args:
            epoch (`int`, *optional*, defaults to 0):
                The pass whose order to use.

        Yields:
            `dict`: Rows with an `image` and its `captions`.
        """
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
        # A DataLoader worker may legitimately get no rows, if there are more workers than files.
        if not rows and (skipped or torch.utils.data.get_worker_info() is None):
            raise ValueError(
                f"{self.report.name}: there is no row with an image and a caption ({skipped:,} rows skipped)"
            )

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
        # A stream never ends, so problems are logged as they come.
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
            A dataset on the Hub, or the format `"parquet"` or `"webdataset"`. The latter is `.tar` files: each image
            shares its name with a `.txt` file (one caption per line) or a `.json` file (with `caption` or `captions`).
            The images must be inside the files.
        data_files (`str` or `Sequence[str]`, *optional*):
            Files, URLs or patterns. Needed if `source` is a format.
        split (`str`, *optional*, defaults to `"train"`):
            The split of a dataset on the Hub.
        shuffle_buffer (`int`, *optional*, defaults to 1000):
            Number of rows in the shuffle buffer. The order of the files is shuffled as well.
        seed (`int`, *optional*, defaults to 0):
            Seed of the order.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for a row without an image or captions.
        report ([`LoadingReport`], *optional*):
            Collects the skipped rows.

    Returns:
        [`CaptionStream`]: The rows.

    Example:

    ```python
    >>> import tarfile, tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import stream_captions

    >>> tmp = tempfile.TemporaryDirectory()
    >>> folder = Path(tmp.name)
    >>> Image.new("RGB", (64, 64)).save(folder / "dog.jpg")
    >>> _ = (folder / "dog.txt").write_text("a dog runs")
    >>> with tarfile.open(folder / "train-000.tar", "w") as tar:
    ...     for name in ("dog.jpg", "dog.txt"):
    ...         tar.add(folder / name, arcname=name)
    >>> stream = stream_captions("webdataset", folder / "train-*.tar")
    >>> [row["captions"] for row in stream.one_pass()]
    [['a dog runs']]
    ```
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
        except Exception as error:  # bad files raise errors of many types
            raise ValueError(f"{named}: {str(error.__cause__ or error).strip().partition(chr(10))[0]:.300}") from error
    image = _image_column(dataset.features, source)
    # The shuffle buffer, and the rows that a resumed run skips, need no decoded images.
    dataset = dataset.cast_column(image, Image(decode=False))
    dataset = dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
    return CaptionStream(dataset, image, strict, report or LoadingReport(named))


def load_webdataset(data_dir: Path, check_images: bool, report: LoadingReport) -> DatasetDict:
    r"""
    Reads `.tar` files into the cache of `datasets`. Each image shares its name with a `.txt` file (one caption per
    line) or a `.json` file (with `caption` or `captions`). Tar files whose name starts with `train`, `val` or `test`
    belong to that split; others are training data.

    Args:
        data_dir (`Path`):
            The folder with the files, or a file pattern.
        check_images (`bool`):
            Whether to decode every image now and skip the ones that cannot be decoded.
        report ([`LoadingReport`]):
            Collects the skipped rows.

    Returns:
        [`~datasets.DatasetDict`]: Splits with the columns `image_id`, `image` and `captions`.
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
        except ValueError as error:  # a split without rows
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
        return f"the image {image['path']!r:.200} is not inside the file"
    problem = image_problem(image["bytes"], decode)
    return None if problem is None else problem[0].lower() + problem[1:]


def _place(row: Mapping[str, Any]) -> str | None:
    """Returns the tar file and the key of a row, or another place that identifies it."""
    return f"{row['__url__']}: {row['__key__']}" if "__key__" in row else row.get("__url__")


def _image_column(columns: Mapping[str, Any], source: str) -> str:
    images = [name for name, feature in columns.items() if isinstance(feature, Image)]
    images = images or [name for name in IMAGE_COLUMNS if name in columns]
    if len(images) != 1:
        raise ValueError(f"{source}: expected one image column, found {images} among {list(columns)}")
    return images[0]


def _captions(row: Mapping[str, Any]) -> list[str]:
    if isinstance(row.get("txt"), str):  # tar files on the Hub
        captions = row["txt"].splitlines()
    else:
        fields = row["json"] if isinstance(row.get("json"), Mapping) else row
        captions = as_list(next((fields[name] for name in CAPTION_COLUMNS if fields.get(name)), None))
    return [" ".join(caption.split()) for caption in captions if isinstance(caption, str) and caption.strip()]
