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
"""Captioners that are trained for the score of what they say (Rennie et al., 2017)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..evaluation.captions import caption_scores, document_frequencies
from .trainer import VgTrainer


NO_WORD = "<none>"  # which no caption has
Reward = Callable[[Sequence[str], Sequence[Sequence[str]]], np.ndarray]


def cider_reward(tokenizer: PreTrainedTokenizerBase, captions: Sequence[Sequence[str]]) -> Reward:
    r"""
    Makes the function that scores captions by CIDEr-D, with n-grams weighted by how rare they are in training.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]):
            The captioner's. Words it does not know are one word, and its end token is a word too: else nothing would
            be lost by captions that break off.
        captions (`Sequence[Sequence[str]]`):
            The training captions of each image.
    """
    counts = [len(group) for group in captions]
    words = iter(tokenizer([caption for group in captions for caption in group])["input_ids"])
    known = [[" ".join(tokenizer.convert_ids_to_tokens(next(words))) for _ in range(count)] for count in counts]
    frequencies = document_frequencies(known, tokenize=str.split)

    def reward(captions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        return caption_scores(captions, references, ("cider",), frequencies, tokenize=str.split)["cider_d"]

    return reward


class SelfCriticalTrainer(VgTrainer):
    r"""
    A [`VgTrainer`] for captioners that can already speak: it scores the captions that a beam search finds for each
    image, and makes those likelier that score more than the others of their image, and the others less likely.
    Evaluations are those of [`VgTrainer`]. It logs the mean `reward`.

    Beams take the place of the paper's random samples, as in Cornia et al. (2020). They begin where decoding is:
    samples score less than half of what it does, and for long are improved by saying the same of every image. They are
    found with dropout, by which training images are as hard to describe as others.

    Args:
        reward (`Callable`):
            Takes captions and the references of each, all as tokens with spaces between, and returns a score for each
            caption. See [`cider_reward`].
        num_candidates (`int`, *optional*, defaults to 5):
            Captions to compare of each image, at least 2.
    """

    def __init__(self, *args: Any, reward: Reward, num_candidates: int = 5, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if num_candidates < 2:
            raise ValueError(
                f"captions are compared with others of their image: `num_candidates` is {num_candidates}."
            )
        if self.args.max_length_difference is not None:
            raise ValueError(
                "a caption is scored by all that people wrote of its image: leave out `max_length_difference`."
            )
        self.reward, self.num_candidates = reward, num_candidates

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        if model.training:
            inputs = self.with_candidates(model, inputs)
        return super().compute_loss(model, inputs, return_outputs, **kwargs)

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> None:
        return None  # captions are found later, as many of every image

    @torch.no_grad()
    def with_candidates(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The images of a batch, with found captions and their weights in place of the captions they have."""
        images = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        captioner = self.accelerator.unwrap_model(model)
        # With dropout, as in training: without it, captions of training photos are too good to learn much from.
        sequences = captioner.generate(
            **images,
            do_sample=False,
            num_beams=self.num_candidates,
            num_return_sequences=self.num_candidates,
            # What is never found cannot be unlearnt: it would gather what other words lose.
            suppress_tokens=[],
        )
        labels = sequences[:, 1:]  # without the start token
        is_end = labels == captioner.config.eos_token_id
        labels = labels.masked_fill(is_end.cumsum(dim=1) - is_end.long() > 0, -100)
        labels = labels.unflatten(0, (-1, self.num_candidates))  # (images, candidates, length)

        references = [self._tokens(group) for group in inputs["labels"]]
        unknown = self.processing_class.tokenizer.unk_token
        scores = self.reward(
            # To say that a word is unknown is never right.
            [caption.replace(unknown, NO_WORD) for group in labels for caption in self._tokens(group)],
            [captions for captions in references for _ in range(self.num_candidates)],
        )
        scores = torch.as_tensor(scores, dtype=torch.float32, device=labels.device).view(labels.shape[:2])
        self._parts["reward"].append(scores.mean())
        # Each caption against the mean of the others of its image.
        weights = (scores - scores.mean(dim=1, keepdim=True)) * self.num_candidates / (self.num_candidates - 1)
        return {**images, "labels": labels, "caption_weights": weights}

    def _tokens(self, captions: torch.Tensor) -> list[str]:
        tokenizer = self.processing_class.tokenizer
        texts = [" ".join(tokenizer.convert_ids_to_tokens(ids[ids >= 0].tolist())) for ids in captions]
        return [text for text in texts if text]  # images of a batch need not have equally many references


__all__ = ["SelfCriticalTrainer", "cider_reward"]
