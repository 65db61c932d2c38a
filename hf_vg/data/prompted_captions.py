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
from transformers import PreTrainedConfig, ProcessorMixin

from .draws import batch_generator
from .images import readable_rows
from .phrases import phrase_inputs, phrases_of, token_offsets, token_span


# Models that accept an attention mask of shape `(rows, 1, queries, keys)` and position ids.
PACKING = ("llava", "vision-encoder-decoder")


class PromptedCaptionCollator:
    r"""
    Batches images with captions for transformers' own captioners. The decoder reads the prompt that `generate` would
    get, followed by a caption. Only the caption has labels.

    Some models can train on all captions of an image in one forward pass: the captions are concatenated, and each one
    attends to the image and itself only. For other models, one caption per image is drawn at random in each batch.

    Args:
        processor ([`ProcessorMixin`]):
            The captioner's processor. If it has a chat template, the template makes the prompt.
        config ([`PreTrainedConfig`]):
            The captioner's config.
        max_caption_words (`int`, *optional*):
            Captions with more words are left out, unless an image has no shorter one.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened. By default another row of the batch takes its
            place, see [`readable_rows`].

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
    ):
        self.processor = processor
        self.is_encoder_decoder = config.is_encoder_decoder
        self.packs = config.model_type in PACKING
        self.start = config.get_text_config(decoder=True).bos_token_id
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
        batch = self._inputs([row["image"] for row in rows])
        prompts = batch.get("input_ids", torch.full((len(rows), 1), self.start))
        is_prompt = batch.get("attention_mask", torch.ones_like(prompts)).bool()
        # Each caption starts with a copy of the prompt's last token. Models shift labels by one token.
        context, starts = prompts[:, :-1], prompts[:, -1].tolist()
        texts, labels, parts, positions, drawn = [], [], [], [], []
        for row, start, length in zip(rows, starts, is_prompt[:, :-1].sum(dim=1).tolist(), strict=True):
            drawn.append(self._drawn(row["captions"], generator))
            tokens = self._tokens([row["captions"][number] for number in drawn[-1]])
            captions = [[start, *ids, self.processor.tokenizer.eos_token_id] for ids in tokens]
            texts.append(torch.tensor([id for ids in captions for id in ids]))
            labels.append(torch.tensor([id for ids in captions for id in (-100, *ids[1:])]))
            parts.append(torch.tensor([part for part, ids in enumerate(captions) for _ in ids]))
            positions.append(torch.tensor([length + place for ids in captions for place in range(len(ids))]))
        ids, parts = _joined(context, texts, self.processor.tokenizer.pad_token_id), _joined(None, parts, PADDING)
        labels = _joined(torch.full_like(context, -100), labels, -100)
        if not self.packs:
            mask = torch.cat([is_prompt[:, :-1], parts != PADDING], dim=1).long()
            return self._with_phrases(
                {**batch, "input_ids": ids, "attention_mask": mask, "labels": labels}, rows, drawn
            )
        parts = torch.cat([torch.where(is_prompt[:, :-1], PROMPT, PADDING), parts], dim=1)
        before = torch.where(is_prompt, is_prompt.cumsum(dim=1) - 1, 0)[:, :-1]
        packed = {
            "attention_mask": _sees(parts),
            "position_ids": _joined(before, positions, 0),
        }
        if not self.is_encoder_decoder:
            return self._with_phrases({**batch, "input_ids": ids, "labels": labels, **packed}, rows, drawn)
        ahead = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)  # encoder-decoders do not shift labels
        packed = {f"decoder_{name}": value for name, value in packed.items()}
        return self._with_phrases({**batch, "decoder_input_ids": ids, "labels": ahead, **packed}, rows, drawn)

    def prompts(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Batches the inputs of `generate`, without the captions.

        Args:
            rows (`list[dict]`):
                The rows to caption.

        Returns:
            `dict[str, torch.Tensor]`: The pixel values, and the prompt if the processor has a chat template.
        """
        return self._inputs([row["image"] for row in readable_rows(rows, self.strict)])

    def _inputs(self, images: list[Any]) -> dict[str, torch.Tensor]:
        if self.processor.chat_template is None:
            return dict(self.processor.image_processor(images=images, return_tensors="pt"))
        chats = [[{"role": "user", "content": [{"type": "image", "image": image}]}] for image in images]
        padded = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        return dict(
            self.processor.apply_chat_template(
                chats, add_generation_prompt=True, tokenize=True, return_dict=True, processor_kwargs=padded
            )
        )

    def _drawn(self, captions: list[str], generator: torch.Generator) -> list[int]:
        """Returns the indices of the captions to train on in this batch."""
        longest = self.max_caption_words
        short = [number for number, text in enumerate(captions) if longest is None or len(text.split()) <= longest]
        short = short or [0]
        return short if self.packs else [short[int(torch.randint(len(short), (), generator=generator))]]

    def _tokens(self, captions: list[str]) -> list[list[int]]:
        return self.processor.tokenizer(captions, add_special_tokens=False)["input_ids"]

    def _with_phrases(
        self, batch: dict[str, torch.Tensor], rows: list[dict[str, Any]], drawn: list[list[int]]
    ) -> dict[str, torch.Tensor]:
        """Adds the inputs of attention supervision to the batch if the rows have phrases."""
        if "phrases" not in rows[0]:
            return batch
        spans: list[list] = []
        for row, numbers, labels in zip(rows, drawn, batch["labels"], strict=True):
            # The labels contain the captions one after the other, each followed by its end token.
            places = (labels != -100).nonzero().flatten().tolist()
            spans.append([])
            for number, offsets in zip(
                numbers,
                token_offsets(self.processor.tokenizer, [row["captions"][number] for number in numbers]),
                strict=True,
            ):
                of_caption, places = places[: len(offsets)], places[len(offsets) + 1 :]
                for start, end, boxes in phrases_of(row, number):
                    if span := token_span(offsets[: len(of_caption)], start, end):
                        spans[-1].append((of_caption[span[0]], of_caption[span[1] - 1] + 1, boxes))
        inputs = phrase_inputs(
            [[phrases] for phrases in spans], [row["image"].size for row in rows], self.processor.image_processor
        )
        return batch | inputs | {name: inputs[name].squeeze(1) for name in ("phrase_spans", "phrase_boxes")}


PADDING, PROMPT = -1, -2  # part numbers of tokens outside of captions


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
