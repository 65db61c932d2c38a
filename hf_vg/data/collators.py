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
"""Collators of captions and images: rows of a dataset in, a batch of tensors out."""

from typing import Any

import torch
from transformers import ProcessorMixin

from .draws import batch_generator, image_number
from .images import readable_rows
from .phrases import phrase_inputs, phrases_of, token_offsets, token_span


class CaptionCollator:
    r"""
    Batches images with all their captions. Each image is encoded once, however many captions it has.

    Args:
        processor ([`ProcessorMixin`]):
            The captioner's processor. It makes `pixel_values` from images and `labels` from captions.
        max_caption_words (`int`, *optional*):
            Captions with more words are left out.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened. By default another row of the batch takes its
            place, see [`readable_rows`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import ShowAttendTellProcessor
    >>> from hf_vg.data import CaptionCollator, load_scenes, train_word_tokenizer

    >>> scenes = load_scenes(2, 1, 1)["train"]
    >>> tokenizer = train_word_tokenizer(caption for captions in scenes["captions"] for caption in captions)
    >>> processor = ShowAttendTellProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> batch = CaptionCollator(processor)(list(scenes))
    >>> batch["pixel_values"].shape, batch["labels"].shape[:2]  # 2 images with 5 captions each
    (torch.Size([2, 3, 64, 64]), torch.Size([2, 5]))
    ```
    """

    def __init__(self, processor: ProcessorMixin, max_caption_words: int | None = None, strict: bool = False):
        self.processor = processor
        self.max_caption_words = max_caption_words
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each row has its `captions` and an `image` or its cached `image_features`. Rows may also have `phrases`
                and `boxes`, see [`grounded_captions`]. Rows with cached features then have the `image_size`, too.

        Returns:
            `dict[str, torch.Tensor]`: `pixel_values` or `image_features`, and `labels` of shape
            `(images, captions, length)`. Missing captions and positions after the end of a caption are -100. If the
            rows have phrases, also the inputs of [`AttentionSupervisionMixin`].
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
        labels = batch["labels"]  # the model shifts them to get the decoder's inputs
        if self.max_caption_words is not None:
            max_length = self.max_caption_words + 1  # + 1: end token
            too_long = (labels != -100).sum(dim=-1, keepdim=True) > max_length
            labels = labels.masked_fill(too_long, -100)[:, :max_length]
        captions = labels.split(counts)
        batch["labels"] = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=-100)
        if "boxes" in rows[0]:
            batch |= self._phrases(rows, batch["labels"])
        return {name: value for name, value in batch.items() if not name.startswith("decoder_")}

    def _phrases(self, rows: list[dict[str, Any]], labels: torch.Tensor) -> dict[str, torch.Tensor]:
        spans: list[list] = []
        for row, of_row in zip(rows, labels, strict=True):
            offsets = token_offsets(self.processor.tokenizer, row["captions"])
            lengths = (of_row != -100).sum(dim=1).tolist()  # 0 for captions that are left out
            spans.append(
                [
                    [
                        (*span, boxes)
                        for start, end, boxes in phrases_of(row, number)
                        if (span := token_span(of_caption, start, end)) is not None and span[1] < length
                    ]
                    for number, (of_caption, length) in enumerate(zip(offsets, lengths, strict=False))
                ]
            )
            spans[-1] += [[] for _ in range(labels.shape[1] - len(offsets))]
        sizes = [row["image_size"] if "image_size" in row else row["image"].size for row in rows]
        return phrase_inputs(spans, sizes, self.processor.image_processor)

    def prompts(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Batches the inputs of `generate`, without the captions.

        Args:
            rows (`list[dict]`):
                The rows to caption.

        Returns:
            `dict[str, torch.Tensor]`: `pixel_values` or `image_features`.
        """
        rows = [{name: value for name, value in row.items() if name != "boxes"} for row in rows]
        return {name: value for name, value in self(rows).items() if name != "labels"}


class PairCollator:
    r"""
    Batches images with some of their captions, for models trained to match images and captions.

    Args:
        processor ([`ProcessorMixin`]):
            Makes `pixel_values` from images, and `input_ids` and `attention_mask` from captions.
        captions_per_image (`int`, *optional*, defaults to 1):
            Number of captions to draw at random for each image. If an image of the batch has fewer captions, that
            number is used for the whole batch.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened. By default another row of the batch takes its
            place, see [`readable_rows`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import VseScnlmProcessor
    >>> from hf_vg.data import PairCollator, load_scenes, train_word_tokenizer

    >>> scenes = load_scenes(2, 1, 1)["train"]
    >>> tokenizer = train_word_tokenizer(caption for captions in scenes["captions"] for caption in captions)
    >>> processor = VseScnlmProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> batch = PairCollator(processor, captions_per_image=3)(list(scenes))
    >>> len(batch["pixel_values"]), len(batch["input_ids"])
    (2, 6)
    ```
    """

    def __init__(self, processor: ProcessorMixin, captions_per_image: int = 1, strict: bool = False):
        self.processor = processor
        self.captions_per_image = captions_per_image
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each row has an `image_id`, its `captions`, and an `image` or its cached `image_features`.

        Returns:
            `dict[str, torch.Tensor]`: `pixel_values` or `image_features`; `input_ids` and `attention_mask` of the same
            number of captions per image, in the order of the images; and `image_ids`, one number per `image_id`.
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
    """Returns whether the rows have images to process. Rows with cached features do not need their images."""
    return "image" in rows[0] and "image_features" not in rows[0]


def images_of(rows: list[dict[str, Any]]) -> list[Any] | None:
    """Returns the images of the rows, or `None` if the rows have cached features or no images."""
    return [row["image"] for row in rows] if has_images(rows) else None


def stack_features(rows: list[dict[str, Any]]) -> torch.Tensor:
    """Stacks the cached features of the rows into one tensor."""
    return torch.stack([torch.as_tensor(row["image_features"]) for row in rows])
