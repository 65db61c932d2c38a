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
"""The collator for training transformers' own captioners, such as LLaVA or BLIP."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

from .draws import batch_generator
from .images import readable_rows
from .phrases import phrase_inputs, phrases_of, token_offsets, token_span
from .prompts import caption_inputs


# Models that take a mask of `(rows, 1, queries, keys)` and the position of each token, by the type of their decoder.
PACKING = {"llava": ("llama", "mistral", "qwen2"), "vision-encoder-decoder": ("gpt2",)}
# Inputs with a value for each token of the prompt, and the value for the tokens of a caption. None repeats the last.
PER_TOKEN = {
    "token_type_ids": 0,
    "mm_token_type_ids": 0,
    "image_embeds_position_mask": 0,
    "cross_attention_mask": None,
}


def end_token(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a caption."""
    if config.model_type == "blip":
        return config.text_config.sep_token_id
    end = tokenizer.eos_token_id
    end = tokenizer.sep_token_id if end is None else end  # BERT's tokenizer has no other
    if end is None:
        raise ValueError("the tokenizer has no token that ends a caption: set its `eos_token`.")
    return end


class PromptedCaptionCollator:
    r"""
    Batches images with captions for transformers' own captioners. The decoder reads the prompt that `generate` would
    get, followed by a caption. Only the caption has labels.

    Some models can train on all captions of an image in one forward pass: the captions are concatenated, and each one
    attends to the image and itself only. For other models, one caption per image is drawn at random in each batch.

    Args:
        processor ([`ProcessorMixin`]):
            The captioner's processor. If it has a chat template, the template makes the prompt. The prompt
            is that of [`ImageToTextPipeline`].
        config ([`PreTrainedConfig`]):
            The captioner's config.
        max_caption_words (`int`, *optional*):
            Captions with more words are left out, unless an image has no shorter one.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened. By default another row of the batch takes its
            place, see [`readable_rows`].
        generation_config ([`GenerationConfig`], *optional*):
            The captioner's generation config, which says what captions begin with if `config` does not.

    Example:

    ```python
    >>> from transformers import AutoConfig, AutoProcessor
    >>> from hf_vg.data import PromptedCaptionCollator, load_scenes

    >>> name = "llava-hf/llava-interleave-qwen-0.5b-hf"
    >>> collator = PromptedCaptionCollator(
    ...     AutoProcessor.from_pretrained(name), AutoConfig.from_pretrained(name)
    ... )  # doctest: +SKIP
    >>> batch = collator(list(load_scenes(2, 1, 1)["train"]))  # doctest: +SKIP
    ```
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        config: PreTrainedConfig,
        max_caption_words: int | None = None,
        strict: bool = False,
        generation_config: GenerationConfig | None = None,
    ):
        self.processor = processor
        self.config = config
        self.is_encoder_decoder = config.is_encoder_decoder
        text_config = config.get_text_config(decoder=True)
        self.packs = text_config.model_type in PACKING.get(config.model_type, ())
        configs = [part for part in (generation_config, config, text_config) if part is not None]
        names = ("decoder_start_token_id", "bos_token_id") if self.is_encoder_decoder else ("bos_token_id",)
        if config.model_type == "blip":
            configs = [text_config]
        starts = (getattr(part, name, None) for name in names for part in configs)
        self.start: Any = next((start for start in starts if start is not None), None)
        self.end = end_token(config, processor.tokenizer)
        self.max_caption_words = max_caption_words
        self.strict = strict

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each row has an `image` and its `captions`, and optionally `phrases` and `boxes`, as
                [`load_flickr30k_entities`], [`grounded_scenes`] and [`grounded_captions`] return them.

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, and `labels`, which are -100 outside of captions.
            If the rows have phrases, also the inputs of [`AttentionSupervisionMixin`].
        """
        rows = readable_rows(rows, self.strict)
        generator = batch_generator(caption for row in rows for caption in row["captions"])
        drawn = [self._drawn(row["captions"], generator) for row in rows]
        captions = [
            self._tokens([row["captions"][number] for number in numbers])
            for row, numbers in zip(rows, drawn, strict=True)
        ]
        batch = self.batch(self._inputs(rows), captions)
        return self._with_phrases(batch, rows, drawn, captions) if "boxes" in rows[0] else batch

    def prompts(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Batches the inputs of `generate`, without the captions.

        Args:
            rows (`list[dict]`):
                The rows to caption.

        Returns:
            `dict[str, torch.Tensor]`: The pixel values, and the prompt if the model is asked for a caption.
        """
        return self._inputs(readable_rows(rows, self.strict))

    def batch(self, prompts: dict[str, torch.Tensor], captions: list[list[list[int]]]) -> dict[str, torch.Tensor]:
        r"""
        Makes the inputs and `labels` of a training step from prompts and tokens.

        Args:
            prompts (`dict[str, torch.Tensor]`):
                The inputs of `generate`, from [`~PromptedCaptionCollator.prompts`].
            captions (`list[list[list[int]]]`):
                The tokens of the captions of each image, with their end tokens. If `packs` is false, each image has
                one caption.

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, and `labels`, which are -100 outside of captions.
        """
        with next(iter(prompts.values())).device:
            return self._packed(prompts, captions) if self.packs else self._unpacked(prompts, captions)

    def _unpacked(self, prompts: dict[str, torch.Tensor], captions: list[list[list[int]]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(tokens) for (tokens,) in captions]
        if self.is_encoder_decoder:
            read = [torch.tensor([self.start, *tokens[:-1]]) for (tokens,) in captions]
            mask = _joined(None, [torch.ones_like(tokens) for tokens in read], 0)
            inputs = {"decoder_input_ids": _joined(None, read, self._padding), "decoder_attention_mask": mask}
            return {**prompts, **inputs, "labels": _joined(None, ids, -100)}
        tokens, is_prompt = self._prompt_tokens(prompts)
        rows = [tokens[row][is_prompt[row]] for row in range(len(ids))]
        nothing = [torch.full_like(row, -100) for row in rows]
        batch = {
            **prompts,
            "input_ids": _behind(rows, ids, self._padding),
            "attention_mask": _behind(
                [torch.ones_like(row) for row in rows], [torch.ones_like(row) for row in ids], 0
            ),
            "labels": _behind(nothing, ids, -100),
        }
        for name, value in PER_TOKEN.items():
            if name not in prompts:
                continue
            if name == "token_type_ids" and self.config.model_type == "paligemma":
                value = 1  # the prompt, which sees all of itself, ends here
            known = [prompts[name][row][is_prompt[row]] for row in range(len(ids))]
            new = [
                row[-1:].expand(len(tokens), *row.shape[1:]) if value is None else row.new_full((len(tokens),), value)
                for row, tokens in zip(known, ids, strict=True)
            ]
            batch[name] = _behind(known, new, value or 0)
        return batch

    def _packed(self, prompts: dict[str, torch.Tensor], captions: list[list[list[int]]]) -> dict[str, torch.Tensor]:
        tokens, is_prompt = self._prompt_tokens(prompts)
        # Each caption begins with a copy of the prompt's last token, and the labels of models are one token ahead.
        context, starts = tokens[:, :-1], tokens[:, -1].tolist()
        texts, labels, parts, positions = [], [], [], []
        for some, start, length in zip(captions, starts, is_prompt[:, :-1].sum(dim=1).tolist(), strict=True):
            texts.append(torch.tensor([id for ids in some for id in (start, *ids)]))
            labels.append(torch.tensor([id for ids in some for id in (-100, *ids)]))
            parts.append(torch.tensor([part for part, ids in enumerate(some) for _ in range(len(ids) + 1)]))
            positions.append(torch.tensor([length + place for ids in some for place in range(len(ids) + 1)]))
        ids, of_caption = _joined(context, texts, self._padding), _joined(None, parts, PADDING)
        labels = _joined(torch.full_like(context, -100), labels, -100)
        parts = torch.cat([torch.where(is_prompt[:, :-1], PROMPT, PADDING), of_caption], dim=1)
        before = torch.where(is_prompt, is_prompt.cumsum(dim=1) - 1, 0)[:, :-1]
        packed = {
            "attention_mask": _sees(parts),
            "position_ids": _joined(before, positions, 0),
        }
        if not self.is_encoder_decoder:
            return {**prompts, "input_ids": ids, "labels": labels, **packed}
        ahead = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)  # this model does not shift labels
        packed = {f"decoder_{name}": value for name, value in packed.items()}
        return {**prompts, "decoder_input_ids": ids, "labels": ahead, **packed}

    def _prompt_tokens(self, prompts: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens that a decoder reads before a caption, and which of them are not padding."""
        if self.is_encoder_decoder or "input_ids" not in prompts:
            tokens = torch.full((len(prompts["pixel_values"]), 1), self.start)
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        return prompts["input_ids"], prompts["attention_mask"].bool()

    @property
    def _padding(self) -> int:
        padding = self.processor.tokenizer.pad_token_id
        return self.end if padding is None else padding  # it is masked, so any token will do

    def _inputs(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return dict(caption_inputs(self.config, self.processor, [row["image"] for row in rows]))

    def _drawn(self, captions: list[str], generator: torch.Generator) -> list[int]:
        """Returns the indices of the captions to train on in this batch."""
        longest = self.max_caption_words
        short = [number for number, text in enumerate(captions) if longest is None or len(text.split()) <= longest]
        short = short or [0]
        return short if self.packs else [short[int(torch.randint(len(short), (), generator=generator))]]

    def _tokens(self, captions: list[str]) -> list[list[int]]:
        """The tokens of captions, each with its end token."""
        tokenizer = self.processor.tokenizer
        # An encoder-decoder writes the special tokens that its tokenizer puts in front.
        texts = tokenizer(captions, add_special_tokens=self.is_encoder_decoder)["input_ids"]
        longest = tokenizer.model_max_length - 1
        tokens = []
        for ids in texts:
            ids = ids[1:] if self.is_encoder_decoder and ids[:1] == [self.start] else ids
            ids = ids[:-1] if ids[-1:] == [self.end] else ids
            tokens.append([*ids[:longest], self.end])
        return tokens

    def _with_phrases(
        self,
        batch: dict[str, torch.Tensor],
        rows: list[dict[str, Any]],
        drawn: list[list[int]],
        captions: list[list[list[int]]],
    ) -> dict[str, torch.Tensor]:
        """Adds the inputs of attention supervision to the batch."""
        spans: list[list] = []
        for row, numbers, tokens, labels in zip(rows, drawn, captions, batch["labels"], strict=True):
            # The labels contain the captions one after the other, each followed by its end token.
            places = (labels != -100).nonzero().flatten().tolist()
            spans.append([])
            all_offsets = token_offsets(self.processor.tokenizer, [row["captions"][number] for number in numbers])
            for number, ids, offsets in zip(numbers, tokens, all_offsets, strict=True):
                leading = max(len(ids) - 1 - len(offsets), 0)  # special tokens in front
                of_caption, places = places[leading : len(ids) - 1], places[len(ids) :]
                for start, end, boxes in phrases_of(row, number):
                    if span := token_span(offsets[: len(of_caption)], start, end):
                        spans[-1].append((of_caption[span[0]], of_caption[span[1] - 1] + 1, boxes))
        inputs = phrase_inputs(
            [[phrases] for phrases in spans], [row["image"].size for row in rows], self.processor.image_processor
        )
        return batch | inputs | {name: inputs[name].squeeze(1) for name in ("phrase_spans", "phrase_boxes")}


PADDING, PROMPT = -1, -2  # part numbers of tokens outside of captions


def _behind(first: list[torch.Tensor], then: list[torch.Tensor], padding: int) -> torch.Tensor:
    return _joined(None, [torch.cat(row) for row in zip(first, then, strict=True)], padding)


def _joined(first: torch.Tensor | None, rows: list[torch.Tensor], padding: int) -> torch.Tensor:
    padded = pad_sequence(rows, batch_first=True, padding_value=padding)
    return padded if first is None else torch.cat([first, padded], dim=1)


def _sees(parts: torch.Tensor) -> torch.Tensor:
    """
    Makes the attention mask `(rows, 1, queries, keys)`. Every token sees the prompt before it, and the tokens before
    it in its own caption or padding.
    """
    query, key = parts[:, :, None], parts[:, None, :]
    length = parts.shape[1]
    return (((key == PROMPT) | (key == query)) & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
