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
"""Collators of texts about image regions: caption pairs, questions and referring expressions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from torch.utils.data import Sampler
from transformers import ProcessorMixin

from .draws import batch_generator
from .images import open_or_report
from .referring import box_iou
from .vqa import answer_scores


MAX_BLANK = 4096  # maximum side in pixels of the image that replaces an unreadable one
MASKED_SHARE = 0.15  # share of words to mask for masked language modeling


class RegionCollator:
    r"""
    Base class of the collators of texts about image regions. Each row has a text, and the index of its image in
    `images` as `row`.

    Args:
        processor ([`ProcessorMixin`]):
            A [`GroundedVisualBertProcessor`].
        images ([`~datasets.Dataset`]):
            Rows with an `image` and `boxes` in pixels, or with cached `image_features` and relative `boxes`. See
            [`region_images`].
    """

    def __init__(self, processor: ProcessorMixin, images: Dataset):
        self.processor = processor
        self.images = images

    def process(self, rows: Sequence[Mapping[str, Any]], **texts: Any) -> dict[str, torch.Tensor]:
        """Calls the processor with the images and boxes of the rows, and with `texts`."""
        numbers = [row["row"] for row in rows]
        groups = [len(list(group)) for _, group in groupby(numbers)]
        if len(set(groups)) == 1:
            numbers = numbers[:: groups[0]]  # each image is encoded once if all images have the same number of texts
        images = [self.images[number] for number in numbers]
        boxes = [image["boxes"] for image in images]
        if "image_features" in images[0]:
            batch = self.processor(boxes=boxes, box_format="relative", return_tensors="pt", **texts)
            batch["image_features"] = torch.stack([torch.as_tensor(image["image_features"]) for image in images])
        else:
            pictures = [open_or_report(image["image"]) or _blank(image["boxes"]) for image in images]
            batch = self.processor(images=pictures, boxes=boxes, return_tensors="pt", **texts)
        return dict(batch)


def _blank(boxes: Sequence[Sequence[float]]) -> Image.Image:
    """Makes a gray image, large enough for the boxes, to replace an unreadable one. Its texts stay in the batch."""
    width, height = (max((math.ceil(box[side]) for box in boxes), default=64) for side in (2, 3))
    return Image.new("RGB", (min(width, MAX_BLANK), min(height, MAX_BLANK)), "grey")


class ImageGroupSampler(Sampler[int]):
    r"""
    Draws rows in random order, but keeps groups of rows of the same image together. In batches of whole groups, each
    image is encoded once per group.

    Args:
        images (`Sequence[int]`):
            The image of each row. Rows of the same image must be adjacent.
        group_size (`int`):
            Maximum number of rows in a group.
        seed (`int`, *optional*, defaults to 0):
            Seed of the order. The order differs between epochs and is the same in all processes.

    Example:

    ```python
    >>> from hf_vg.data.region_collators import ImageGroupSampler

    >>> images = [0, 0, 1, 1, 2, 2]
    >>> [images[row] for row in ImageGroupSampler(images, group_size=2)]
    [0, 0, 2, 2, 1, 1]
    ```
    """

    def __init__(self, images: Sequence[int], group_size: int, seed: int = 0):
        self.images = list(images)
        self.group_size = group_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        groups = []
        for _, members in groupby(range(len(self.images)), key=self.images.__getitem__):
            rows = list(members)
            rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
            groups += [rows[start : start + self.group_size] for start in range(0, len(rows), self.group_size)]
        # Incomplete groups come last, so that all batches before them have whole groups.
        order = torch.randperm(len(groups), generator=generator).tolist()
        order.sort(key=lambda index: len(groups[index]) < self.group_size)
        for index in order:
            yield from groups[index]


class CaptionPairCollatorForVGP(RegionCollator):
    r"""
    Batches pairs of captions with their phrases, for [`GroundedVisualBertForVGP`].

    Args:
        processor ([`ProcessorMixin`]):
            A [`GroundedVisualBertProcessor`].
        images ([`~datasets.Dataset`]):
            Rows of [`region_images`].
        mask_words (`bool`, *optional*, defaults to `False`):
            Whether to add `masked_input_ids` and `masked_labels`, for models with a `masked_lm_weight`.

    Example:

    ```python
    >>> import numpy as np
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertProcessor
    >>> from hf_vg.data import (
    ...     CaptionPairCollatorForVGP,
    ...     grounded_scenes,
    ...     load_scenes,
    ...     make_caption_pairs,
    ...     train_wordpiece_tokenizer,
    ... )

    >>> scenes = grounded_scenes(load_scenes(2, 1, 1)["train"])
    >>> pairs = make_caption_pairs(scenes, {}, nearest=np.array([[1], [0]]), pairs_per_image=2)
    >>> tokenizer = train_wordpiece_tokenizer(pairs["caption1"])
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> batch = CaptionPairCollatorForVGP(processor, scenes)([pairs[0], pairs[1]])
    >>> batch["labels"].shape
    torch.Size([2])
    ```
    """

    def __init__(self, processor: ProcessorMixin, images: Dataset, mask_words: bool = False):
        super().__init__(processor, images)
        self.mask_words = mask_words

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`Sequence[Mapping]`):
                Rows of [`make_caption_pairs`].

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, with `labels`.
        """
        batch = self.process(
            rows,
            text=[row["caption1"] for row in rows],
            text_pair=[row["caption2"] for row in rows],
            phrases=[row["phrases1"] for row in rows],
            phrases_pair=[row["phrases2"] for row in rows],
            phrase_pairs=[row["pairs"] for row in rows],
        )
        batch["labels"] = torch.tensor([row["label"] for row in rows])
        if self.mask_words:
            batch["masked_input_ids"], batch["masked_labels"] = self.masked(batch["input_ids"])
        return batch

    def masked(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Masks words as BERT does: 80% of the chosen words become the mask token, 10% a random word, and 10% stay.

        Args:
            input_ids (`torch.Tensor`):
                The tokens.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`: The masked tokens, and the labels, which are -100 for words that were
            not chosen.
        """
        tokenizer = self.processor.tokenizer
        special = torch.isin(input_ids, torch.tensor(tokenizer.all_special_ids))
        generator = batch_generator(input_ids.flatten().tolist())
        chosen = (torch.rand(input_ids.shape, generator=generator) < MASKED_SHARE) & ~special
        kind = torch.rand(input_ids.shape, generator=generator)
        words = torch.randint(len(tokenizer), input_ids.shape, generator=generator)
        masked = input_ids.masked_fill(chosen & (kind < 0.8), tokenizer.mask_token_id)
        masked = torch.where(chosen & (kind >= 0.9), words, masked)
        return masked, input_ids.masked_fill(~chosen, -100)


class QuestionCollator(RegionCollator):
    r"""
    Batches questions with the scores of their answers, for [`GroundedVisualBertForQuestionAnswering`].

    Args:
        processor ([`ProcessorMixin`]):
            A [`GroundedVisualBertProcessor`].
        images ([`~datasets.Dataset`]):
            Rows of [`region_images`].
        answers (`Sequence[str]`):
            The answers to choose from. See [`answer_vocabulary`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertProcessor
    >>> from hf_vg.data import QuestionCollator, RegionDataArguments, question_rows, train_wordpiece_tokenizer

    >>> images, questions = question_rows(RegionDataArguments(num_train_images=1, num_eval_images=1))
    >>> tokenizer = train_wordpiece_tokenizer(questions["train"]["question"])
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> collator = QuestionCollator(processor, images["train"], answers=["green", "yellow"])
    >>> collator([questions["train"][0]])["labels"]  # the answer is green
    tensor([[1., 0.]])
    ```
    """

    def __init__(self, processor: ProcessorMixin, images: Dataset, answers: Sequence[str]):
        super().__init__(processor, images)
        self.answer_ids = {answer: index for index, answer in enumerate(answers)}

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`Sequence[Mapping]`):
                Each row has the index of its image as `row`, a `question` and its `answers`.

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, with `labels`: one score per answer.
        """
        masks = [self.processor.tokenizer.mask_token] * len(rows)
        batch = self.process(rows, text=[row["question"] for row in rows], text_pair=masks)
        batch["labels"] = torch.zeros(len(rows), len(self.answer_ids))
        for labels, row in zip(batch["labels"], rows, strict=True):
            for answer, score in answer_scores(row["answers"]).items():
                if answer in self.answer_ids:
                    labels[self.answer_ids[answer]] = score
        return batch


class ReferringCollator(RegionCollator):
    r"""
    Batches referring expressions, for [`GroundedVisualBertForReferringExpression`].

    Args:
        processor ([`ProcessorMixin`]):
            A [`GroundedVisualBertProcessor`].
        images ([`~datasets.Dataset`]):
            Rows of [`region_images`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertProcessor
    >>> from hf_vg.data import ReferringCollator, RegionDataArguments, referring_rows, train_wordpiece_tokenizer

    >>> images, expressions = referring_rows(RegionDataArguments(num_train_images=1, num_eval_images=1))
    >>> tokenizer = train_wordpiece_tokenizer(expressions["train"]["expression"])
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> collator = ReferringCollator(processor, images["train"])
    >>> collator([expressions["train"][0]])["labels"]  # region 0 is the whole image, region 1 the first object
    tensor([[0., 1., 0., 0.]])
    ```
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`Sequence[Mapping]`):
                Each row has the index of its image as `row`, an `expression` and its `box`, relative to the image.

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, with `labels`: 1 for regions that overlap the box.
        """
        batch = self.process(rows, text=[row["expression"] for row in rows])
        boxes = batch["boxes"].repeat_interleave(len(rows) // len(batch["boxes"]), dim=0)
        overlap = box_iou(boxes.numpy(), np.array([[row["box"]] for row in rows]))
        batch["labels"] = torch.from_numpy(overlap > 0.5).float()
        batch["labels"][:, 0] = 0  # region 0 is the whole image, which is never the answer
        return batch
