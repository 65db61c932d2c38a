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
"""Self-critical training (Rennie et al., 2017): captioners learn to write captions with a higher score."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase

from ..data.collators import CaptionCollator, has_images
from ..data.images import readable_rows
from ..data.prompted_captions import PromptedCaptionCollator
from ..evaluation.captions import document_frequencies
from ..evaluation.rewards import cider_reward
from ..evaluation.tokenization import ptb_tokenize
from .trainer import VgTrainer


NO_WORD = "<none>"  # a word that no reference has
END = "<eos>"
Reward = Callable[..., Sequence[float]]


def self_critical_reward(tokenizer: PreTrainedTokenizerBase, captions: Sequence[Sequence[str]]) -> Reward:
    r"""
    Makes the reward of [`SelfCriticalTrainer`]: [`cider_reward`] with the statistics of the training captions.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]):
            The captioner's tokenizer.
        captions (`Sequence[Sequence[str]]`):
            The training captions of each image.

    Returns:
        `Callable`: Takes `completions` and `references`, as words with spaces between them, and returns scores.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer
    >>> from hf_vg.training import self_critical_reward
    >>> captions = [["a dog runs", "a brown dog"], ["a cat sleeps"]]
    >>> reward = self_critical_reward(train_word_tokenizer(sum(captions, [])), captions)
    >>> whole, broken_off = reward(["a dog runs <eos>", "a dog runs"], references=[["a dog runs <eos>"]] * 2)
    >>> whole > broken_off
    True

    ```
    """
    words = [caption_words(tokenizer, group) for group in captions]
    return partial(cider_reward, df=document_frequencies(words, tokenize=str.split), tokenize=str.split)


def caption_words(tokenizer: PreTrainedTokenizerBase, captions: Sequence[str]) -> list[str]:
    """
    Captions as words with spaces between them, followed by an end token, so that captions without an end score less.
    Words that a word tokenizer does not know become its unknown token.
    """
    if _has_words(tokenizer):
        return [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in tokenizer(list(captions))["input_ids"]]
    return [" ".join([*ptb_tokenize(caption), END]) for caption in captions]


def _has_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.model, WordLevel)


class SelfCriticalTrainer(VgTrainer):
    r"""
    A [`VgTrainer`] for captioners that already write good captions. For each image, a beam search finds candidates,
    and the reward scores them. Candidates above the mean of their image become likelier, the others less likely. The
    trainer weighs the log likelihoods of captions, so that any captioner of [`load_captioner`] can be trained.
    Evaluations are those of [`VgTrainer`]. The mean `reward` is logged.

    Candidates come from a beam search, as in Cornia et al. (2020), and not from random samples as in the paper: random
    samples score less than half as much, and improve for a long time by saying the same about every image. The search
    runs with dropout, so that training images are as hard to describe as others.

    Args:
        data_collator ([`CaptionCollator`] or [`PromptedCaptionCollator`]):
            The captioner's, from [`caption_collator`].
        reward (`Callable`):
            Takes `completions` and the `references` of each, and returns a score for each completion. All are words
            with spaces between them, see [`self_critical_reward`].
        num_candidates (`int`, *optional*, defaults to 5):
            Number of candidates per image, at least 2.

    Example:

    ```python
    >>> reward = self_critical_reward(processor.tokenizer, captions)  # doctest: +SKIP
    >>> trainer = SelfCriticalTrainer(  # doctest: +SKIP
    ...     model=model,
    ...     args=VgTrainingArguments("outputs"),
    ...     train_dataset=rows,
    ...     data_collator=caption_collator(args, model, processor),
    ...     processing_class=processor,
    ...     reward=reward,
    ... )
    ```
    """

    def __init__(
        self,
        *args: Any,
        data_collator: CaptionCollator | PromptedCaptionCollator,
        reward: Reward,
        num_candidates: int = 5,
        **kwargs: Any,
    ):
        super().__init__(*args, data_collator=data_collator, **kwargs)
        if num_candidates < 2:
            raise ValueError(
                f"captions are compared with others of their image: `num_candidates` is {num_candidates}."
            )
        if self.args.max_length_difference is not None:
            raise ValueError(
                "a caption is compared with all references of its image: leave out `max_length_difference`."
            )
        self.reward, self.num_candidates = reward, num_candidates
        self.captions: Any = data_collator  # makes the batches that captions are learned from
        self.data_collator = self._prompts

    def _prompts(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """What `generate` is given, and the captions that people wrote."""
        if has_images(rows):
            rows = readable_rows(rows, self.captions.strict)
        return {**self.captions.prompts(rows), "references": [row["captions"] for row in rows]}

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        if "references" not in inputs:  # an evaluation
            return super().compute_loss(model, inputs, return_outputs, **kwargs)
        inputs = dict(inputs)
        references = inputs.pop("references")
        candidates = self.find_candidates(model, inputs)
        weights = self.weigh(candidates, references)
        if isinstance(self.captions, PromptedCaptionCollator):
            loss, outputs = self._weighted_loss(model, inputs, candidates, weights)
        else:
            captions = [torch.tensor(ids, device=weights.device) for group in candidates for ids in group]
            labels = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=-100)
            labels = labels.unflatten(0, (-1, self.num_candidates))  # (images, candidates, length)
            loss, outputs = super().compute_loss(model, {**inputs, "labels": labels}, True, **kwargs)
            # `loss` counts the loss of each caption once. This makes it count `weight` times.
            loss = loss + ((weights.flatten() - 1) * outputs["caption_losses"]).sum()
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> None:
        return None  # the loss is a mean over candidates, which are not known yet

    @torch.no_grad()
    def find_candidates(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[list[list[int]]]:
        """For each image the tokens of the captions that a beam search finds, each up to its end token."""
        captioner = self.accelerator.unwrap_model(model)
        # Only placeholders of images are suppressed. A word that is never found cannot be unlearned, and gains the
        # probability that other words lose.
        placeholders = (getattr(captioner.config, f"{name}_token_id", None) for name in ("image", "video"))
        # With dropout: without it, captions of training photos are too good to learn much from.
        settings = copy.deepcopy(captioner.generation_config)
        settings.update(
            do_sample=False,
            num_beams=self.num_candidates,
            num_return_sequences=self.num_candidates,
            suppress_tokens=[token for token in placeholders if token is not None],
        )
        sequences = captioner.generate(**inputs, generation_config=settings)
        is_prompt = "input_ids" in inputs and not captioner.config.is_encoder_decoder
        start = inputs["input_ids"].shape[1] if is_prompt else 1  # the start token
        ends = captioner.generation_config.eos_token_id
        ends = {*(ends if isinstance(ends, list) else [ends]), getattr(self.captions, "end", None)}
        candidates = []
        for ids in sequences[:, start:].tolist():
            length = next((place + 1 for place, id in enumerate(ids) if id in ends), len(ids))
            candidates.append(ids[:length])
        return [
            candidates[first : first + self.num_candidates] for first in range(0, len(candidates), self.num_candidates)
        ]

    @torch.no_grad()
    def weigh(self, candidates: list[list[list[int]]], references: Sequence[Sequence[str]]) -> torch.Tensor:
        """Scores captions, each against the mean of the others of its image. The shape is `(images, candidates)`."""
        tokenizer = self.processing_class.tokenizer
        known = [caption_words(tokenizer, captions) for captions in references]
        scores = self.reward(
            completions=[self._words(ids) for group in candidates for ids in group],
            references=[captions for captions in known for _ in range(self.num_candidates)],
        )
        scores = torch.as_tensor(scores, dtype=torch.float32, device=self.args.device).view(-1, self.num_candidates)
        self.log_part("reward", scores.mean())
        return (scores - scores.mean(dim=1, keepdim=True)) * self.num_candidates / (self.num_candidates - 1)

    def _words(self, ids: list[int]) -> str:
        tokenizer = self.processing_class.tokenizer
        if _has_words(tokenizer):
            # An unknown token is never right.
            return " ".join(tokenizer.convert_ids_to_tokens(ids)).replace(tokenizer.unk_token, NO_WORD)
        is_whole = ids[-1:] == [self.captions.end]
        words = ptb_tokenize(tokenizer.decode(ids, skip_special_tokens=True))
        return " ".join([*words, END] if is_whole else words)

    def _weighted_loss(
        self,
        model: torch.nn.Module,
        prompts: dict[str, torch.Tensor],
        candidates: list[list[list[int]]],
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, Any]:
        """The weighted negative log likelihood of a word, with any model that returns logits."""
        # All captions of an image in one row, or one of each image at a time.
        ranks = (
            [slice(None)] if self.captions.packs else [slice(rank, rank + 1) for rank in range(self.num_candidates)]
        )
        total, count, outputs = weights.new_zeros(()), 0, None
        for rank in ranks:
            some = [group[rank] for group in candidates]
            batch = self.captions.batch(prompts, some)
            labels = batch.pop("labels")
            outputs = model(**batch)
            logits = outputs.logits[:, -labels.shape[1] :]  # GIT has logits for its image too
            if not self.captions.is_encoder_decoder:
                logits, labels = logits[:, :-1], labels[:, 1:]
            is_word = labels != -100
            losses = torch.nn.functional.cross_entropy(logits[is_word].float(), labels[is_word], reduction="none")
            lengths = torch.tensor([len(ids) for group in some for ids in group], device=weights.device)
            total = total + (losses * weights[:, rank].flatten().repeat_interleave(lengths)).sum()
            count += len(losses)
        return total / max(count, 1), outputs


__all__ = ["SelfCriticalTrainer", "self_critical_reward"]
