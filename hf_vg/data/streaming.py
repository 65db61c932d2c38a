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

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from os import PathLike
from typing import Any

import torch
from datasets import Image, IterableDataset, load_dataset

from .captions import CAPTION_COLUMNS, IMAGE_COLUMNS, as_list
from .loading_report import LoadingReport


class CaptionStream(torch.utils.data.IterableDataset):
    r"""
    Rows with an `image` and its `captions`, without end: pass follows pass, each in another order. A row's image is
    the file's bytes, which [`CaptionCollator`] decodes.

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
        self, dataset: IterableDataset, image_column: str, strict: bool = False, report: LoadingReport | None = None
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
        for row in self.dataset:
            image, captions = row[self.image_column], _captions(row)
            if image is not None and captions:
                rows += 1
                yield {"image": image, "captions": captions}
            else:
                skipped += 1
                if epoch == 0:
                    self._skip(row, "no image" if image is None else "no captions")
        # datasets gives nothing to a worker of a loader if there are fewer files than workers.
        if not rows and (skipped or torch.utils.data.get_worker_info() is None):
            raise ValueError(f"{self.report.name}: there is no row with an image and a caption, of {skipped:,}")

    def _skip(self, row: Mapping[str, Any], reason: str) -> None:
        key = f"{row['__key__']}: " if "__key__" in row else ""
        self.report.skip(row.get("__url__", self.report.name), None, f"{key}the row has {reason}")
        if self.strict:
            raise ValueError(str(self.report.problems[-1]))


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
            its name with a `.txt` that has a caption a line, or with a `.json` that has `caption` or `captions`.
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
    dataset = load_dataset(source, data_files=data_files, split=split, streaming=True)
    if dataset.features is None:
        dataset = dataset._resolve_features()
    columns = list(dataset.features)
    images = [name for name in columns if isinstance(dataset.features[name], Image)]
    images = images or [name for name in IMAGE_COLUMNS if name in columns]
    if len(images) != 1:
        raise ValueError(f"{source}: expected one column of images, found {images} among {columns}")
    # Neither the buffer nor the rows that a resumed training passes over need pixels.
    dataset = dataset.cast_column(images[0], Image(decode=False))
    dataset = dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
    return CaptionStream(dataset, images[0], strict, report or LoadingReport(source))


def _captions(row: Mapping[str, Any]) -> list[str]:
    if isinstance(row.get("txt"), str):
        captions = row["txt"].splitlines()
    else:
        fields = row["json"] if isinstance(row.get("json"), Mapping) else row
        captions = as_list(next((fields[name] for name in CAPTION_COLUMNS if fields.get(name)), None))
    return [" ".join(caption.split()) for caption in captions if caption and caption.strip()]
