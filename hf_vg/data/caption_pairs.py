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
"""Pairs of captions of one image, to predict one from the other."""

from typing import Any

import torch
from datasets import Dataset
from transformers import ProcessorMixin

from .collators import has_images, images_of, stack_features
from .draws import batch_generator, image_number
from .images import readable_rows


class CaptionPairCollator:
    r"""
    Batches a caption, another caption of the same image and the image. Rows that hold all `captions` give two of them,
    drawn by what else is in the batch; see [`fixed_caption_pairs`] for rows that always give the same.

    Args:
        processor ([`ProcessorMixin`]):
            Makes `input_ids` and `labels` from captions and `pixel_values` from images.
        strict (`bool`, *optional*, defaults to `False`):
            Whether an image that cannot be opened is an error. Else it is replaced, see [`readable_rows`].
    """

    def __init__(self, processor: ProcessorMixin, strict: bool = False):
        self.processor = processor
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each with an `image_id`; with `captions`, or a `caption` and a `target_caption`; and with an `image`,
                or the `image_features` that stand for it, or neither.

        Returns:
            `input_ids`, `attention_mask`, `labels`, `image_ids` and `pixel_values` or `image_features`, if any.
        """
        rows = readable_rows(rows, self.strict) if has_images(rows) else rows
        generator = batch_generator(row["image_id"] for row in rows)
        pairs = [_pair(row, generator) for row in rows]
        batch = self.processor(
            images=images_of(rows),
            text=[caption for caption, _ in pairs],
            text_target=[target for _, target in pairs],
            return_tensors="pt",
        )
        if "image_features" in rows[0]:
            batch["image_features"] = stack_features(rows).float()  # caches hold half precision
        batch["image_ids"] = torch.tensor([image_number(row["image_id"]) for row in rows])
        return dict(batch)


def fixed_caption_pairs(dataset: Dataset) -> Dataset:
    """Rows whose `captions` have become a `caption` and a `target_caption`, their first two: what a model is evaluated
    on should not change from one time to the next."""
    rows = zip(dataset["image_id"], dataset["captions"], strict=True)
    captions = [_check({"image_id": image_id, "captions": captions}) for image_id, captions in rows]
    dataset = dataset.remove_columns("captions").add_column("caption", [first for first, *_ in captions])
    return dataset.add_column("target_caption", [second for _, second, *_ in captions])


def _pair(row: dict[str, Any], generator: torch.Generator) -> tuple[str, str]:
    if "target_caption" in row:
        return row["caption"], row["target_caption"]
    captions = _check(row)
    first, second = torch.randperm(len(captions), generator=generator)[:2].tolist()
    return captions[first], captions[second]


def _check(row: dict[str, Any]) -> list[str]:
    if len(row["captions"]) < 2:
        raise ValueError(
            f"Image {row['image_id']!r} must have two captions or more, to predict one from another, and has "
            f"{len(row['captions'])}."
        )
    return row["captions"]
