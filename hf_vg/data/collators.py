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
"""From rows of a dataset to what a model is called with."""

from typing import Any

import torch
from transformers import ProcessorMixin

from .draws import batch_generator, image_number
from .images import readable_rows


class CaptionCollator:
    r"""
    Batches images with all of their captions, so that an image is encoded once however many captions it has.

    Args:
        processor ([`ProcessorMixin`]):
            The captioner's processor, which makes `pixel_values` from images and `labels` from captions.
        max_caption_words (`int`, *optional*):
            Captions of more words are left out.
        strict (`bool`, *optional*, defaults to `False`):
            Whether an image that cannot be opened is an error. Else it is replaced, see [`readable_rows`].
    """

    def __init__(self, processor: ProcessorMixin, max_caption_words: int | None = None, strict: bool = False):
        self.processor = processor
        self.max_caption_words = max_caption_words
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each with an `image`, or the `image_features` that stand for it, and its `captions`.

        Returns:
            `pixel_values` or `image_features`, and `labels` of shape `(images, captions, length)`, where missing
            captions and positions after a caption's end are -100.
        """
        rows = readable_rows(rows, self.strict) if has_images(rows) else rows
        counts = [len(row["captions"]) for row in rows]
        batch = self.processor(
            images=images_of(rows),
            text=[caption for row in rows for caption in row["captions"]],
            return_tensors="pt",
        )
        if "image_features" in rows[0]:
            batch["image_features"] = stack_features(rows)
        labels = batch["labels"]  # the model makes the decoder's inputs from them
        if self.max_caption_words is not None:
            max_length = self.max_caption_words + 1  # the end token is no word
            too_long = (labels != -100).sum(dim=-1, keepdim=True) > max_length
            labels = labels.masked_fill(too_long, -100)[:, :max_length]
        captions = labels.split(counts)
        batch["labels"] = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=-100)
        return {name: value for name, value in batch.items() if not name.startswith("decoder_")}

    def prompts(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """What `generate` is given to write captions for these rows."""
        return {name: value for name, value in self(rows).items() if name != "labels"}


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
            `pixel_values` or `image_features`, `input_ids` and `attention_mask` of equally many captions per image, in
            the order of the images, and `image_ids`, numbers that are equal for equal `image_id`s.
        """
        rows = readable_rows(rows, self.strict) if has_images(rows) else rows
        generator = batch_generator(row["image_id"] for row in rows)
        count = min(self.captions_per_image, *(len(row["captions"]) for row in rows))
        batch = self.processor(
            images=images_of(rows),
            text=[caption for row in rows for caption in _draw(row["captions"], count, generator)],
            return_tensors="pt",
        )
        if "image_features" in rows[0]:
            batch["image_features"] = stack_features(rows)
        batch["image_ids"] = torch.tensor([image_number(row["image_id"]) for row in rows])
        return dict(batch)


def _draw(captions: list[str], count: int, generator: torch.Generator) -> list[str]:
    return [captions[index] for index in torch.randperm(len(captions), generator=generator)[:count].tolist()]


def has_images(rows: list[dict[str, Any]]) -> bool:
    """Whether a batch is made of images. Features that stand for them come first."""
    return "image" in rows[0] and "image_features" not in rows[0]


def images_of(rows: list[dict[str, Any]]) -> list[Any] | None:
    return [row["image"] for row in rows] if has_images(rows) else None


def stack_features(rows: list[dict[str, Any]]) -> torch.Tensor:
    """The cached features of a batch."""
    return torch.stack([torch.as_tensor(row["image_features"]) for row in rows])
