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
"""Batches of images and sentences that belong together."""

from typing import Any

import torch
from transformers import ProcessorMixin

from .caption_pairs import batch_generator, image_number
from .images import readable_rows


class PairCollator:
    r"""
    Batches images with some of their captions, for models that tell the right pairs from the wrong ones.

    Args:
        processor ([`ProcessorMixin`]):
            Makes `pixel_values` from images, and `input_ids` and `attention_mask` from captions.
        captions_per_image (`int`, *optional*, defaults to 1):
            So many of an image's captions are drawn, by what else is in the batch; fewer, for all images of a batch,
            where one of them has fewer.
        strict (`bool`, *optional*, defaults to `False`):
            Whether an image that cannot be opened is an error. Else it is replaced, see [`readable_rows`].
    """

    def __init__(self, processor: ProcessorMixin, captions_per_image: int = 1, strict: bool = False):
        self.processor = processor
        self.captions_per_image = captions_per_image
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each with an `image`, or the `image_features` that stand for it, its `captions` and its `image_id`.

        Returns:
            `pixel_values` or `image_features`, `input_ids` and `attention_mask` of equally many captions an image, in
            the order of the images, and `image_ids`, numbers that are equal for equal `image_id`s.
        """
        cached = "image_features" in rows[0]
        rows = rows if cached else readable_rows(rows, self.strict)
        generator = batch_generator(row["image_id"] for row in rows)
        count = min(self.captions_per_image, *(len(row["captions"]) for row in rows))
        batch = self.processor(
            images=None if cached else [row["image"] for row in rows],
            text=[caption for row in rows for caption in _draw(row["captions"], count, generator)],
            return_tensors="pt",
        )
        if cached:
            batch["image_features"] = torch.stack([row["image_features"] for row in rows])
        batch["image_ids"] = torch.tensor([image_number(row["image_id"]) for row in rows])
        return dict(batch)


def _draw(captions: list[str], count: int, generator: torch.Generator) -> list[str]:
    return [captions[index] for index in torch.randperm(len(captions), generator=generator)[:count].tolist()]
