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
"""Pairs of captions of the same image, for models that predict one caption from another."""

from typing import Any

import torch
from datasets import Dataset
from transformers import ProcessorMixin

from .collators import has_images, images_of, stack_features
from .draws import batch_generator, image_number
from .images import readable_rows


class CaptionPairCollator:
    r"""
    Batches pairs of captions of the same image, with the image. From rows that have all `captions`, two are drawn at
    random in every batch. Rows made by [`fixed_caption_pairs`] always give the same two.

    Args:
        processor ([`ProcessorMixin`]):
            Makes `input_ids` and `labels` from captions and `pixel_values` from images.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened. By default another row of the batch takes its
            place, see [`readable_rows`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import SelfAttnGroundedEncoderProcessor
    >>> from hf_vg.data import CaptionPairCollator, train_word_tokenizer

    >>> rows = [{"image_id": "1.jpg", "captions": ["a brown dog runs", "a dog on the grass"]}]
    >>> tokenizer = train_word_tokenizer(rows[0]["captions"])
    >>> processor = SelfAttnGroundedEncoderProcessor(ViTImageProcessorPil(), tokenizer)
    >>> sorted(CaptionPairCollator(processor)(rows))
    ['attention_mask', 'image_ids', 'input_ids', 'labels']
    ```
    """

    def __init__(self, processor: ProcessorMixin, strict: bool = False):
        self.processor = processor
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each row has an `image_id`, and either `captions` or a `caption` and a `target_caption`. It may have an
                `image` or its cached `image_features`.

        Returns:
            `dict[str, torch.Tensor]`: `input_ids`, `attention_mask`, `labels`, `image_ids`, and `pixel_values` or
            `image_features` if the rows have images or features.
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
            batch["image_features"] = stack_features(rows).float()  # caches use half precision
        batch["image_ids"] = torch.tensor([image_number(row["image_id"]) for row in rows])
        return dict(batch)


def fixed_caption_pairs(dataset: Dataset) -> Dataset:
    """
    Replaces the column `captions` by `caption` and `target_caption`, the first two captions of each row. Use it for
    evaluation, where the pairs must not change between runs.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with an `image_id` and at least two `captions`.

    Returns:
        [`~datasets.Dataset`]: The same rows with the columns `caption` and `target_caption`.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> from hf_vg.data.caption_pairs import fixed_caption_pairs

    >>> rows = Dataset.from_dict({"image_id": ["1.jpg"], "captions": [["a dog", "a brown dog", "an animal"]]})
    >>> fixed_caption_pairs(rows)[0]
    {'image_id': '1.jpg', 'caption': 'a dog', 'target_caption': 'a brown dog'}
    ```
    """
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
            f"Image {row['image_id']!r} must have at least two captions, to predict one from another, but it has "
            f"{len(row['captions'])}."
        )
    return row["captions"]
