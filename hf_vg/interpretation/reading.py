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
"""Reading: a model gets an image and the words that it wrote, in one pass (teacher forcing)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import ModelOutput

from .families import Family, Tiles, family_of
from .word_maps import words_of


# Inputs with one entry per token of the prompt. A caption is appended to each of them.
_PER_TOKEN = (
    *("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "image_embeds_position_mask"),
    "cross_attention_mask",
)
SEVERAL_IMAGES = "Prompts with several images each are explained one at a time: give one row of inputs."


@dataclass(eq=False)
class Reading:
    r"""
    One sequence that a model reads beside its image.

    Attributes:
        model ([`PreTrainedModel`]), family ([`Family`]):
            The model, and how its words look at images.
        inputs (`dict[str, Any]`):
            The model's inputs of this row alone, without padding.
        ids (`torch.LongTensor` of shape `(1, length)`):
            The prompt with which `generate` begins, and the tokens of the words.
        prompt_length (`int`):
            The number of ids in the prompt.
        words (`list[tuple[str, list[int]]]`):
            Each word with the places of its pieces, counted from the end of the prompt.
        row (`int`):
            Which row of the inputs it was.
        tiles (`tuple[int, int]` or a sequence of them, *optional*):
            Rows and columns of the tiles that its images were cut into. See [`word_maps`].
    """

    model: PreTrainedModel
    family: Family
    inputs: dict[str, Any]
    ids: torch.Tensor
    prompt_length: int
    words: list[tuple[str, list[int]]]
    row: int
    tiles: Tiles | None = None

    def arguments(self, copies: int = 1, **changed: torch.Tensor) -> dict[str, Any]:
        """What the model is called with to read the sequence, `copies` times."""
        inputs = {
            name: torch.cat([value] * copies) if torch.is_tensor(value) else value
            for name, value in self.inputs.items()
        }
        inputs |= changed
        inputs.pop("labels", None)  # PaliGemma's processor adds labels of the prompt alone
        ids = self.ids.expand(copies, -1)
        if self.model.config.is_encoder_decoder:
            inputs.pop("decoder_attention_mask", None)
            return {**inputs, "decoder_input_ids": ids}
        is_paligemma = self.model.config.model_type == "paligemma"
        if is_paligemma:
            # Its prompt may look ahead, but its words may not. Without types the whole sequence would look ahead.
            inputs.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
        more = ids.shape[1] - inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        for name in _PER_TOKEN:
            if inputs.get(name) is not None:
                last = inputs[name][:, -1:]
                if name != "cross_attention_mask":
                    last = torch.full_like(last, int(is_paligemma and name == "token_type_ids"))
                inputs[name] = torch.cat([inputs[name], last.expand(-1, more, *last.shape[2:])], dim=1)
        return {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def log_probabilities(self, arguments: Mapping[str, Any]) -> torch.Tensor:
        """Returns the log probability of each token after the prompt, of shape `(copies, tokens)`."""
        length = self.ids.shape[1]
        logits = self.model(**arguments).logits[:, -length:]  # some models also have logits at image tokens
        logits = logits[:, self.prompt_length - 1 : -1].float()
        targets = self.ids[:, self.prompt_length :].expand(len(logits), -1)
        return logits.log_softmax(dim=-1).gather(-1, targets[..., None].to(logits.device))[..., 0]

    def of_words(self, tokens: torch.Tensor) -> torch.Tensor:
        """From log-probabilities of tokens, `(..., tokens)`, to those of words: the sums over their pieces."""
        return torch.stack([tokens[..., pieces].sum(dim=-1) for _, pieces in self.words], dim=-1)


def readings(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
    outputs: ModelOutput | torch.Tensor | Sequence[str],
    family: Family | None = None,
    tiles: Tiles | None = None,
) -> Iterator[Reading]:
    r"""
    Goes through the generated sequences, or texts of your own, one after another.

    Args:
        model ([`PreTrainedModel`]), processor ([`ProcessorMixin`] or [`PreTrainedTokenizerBase`]):
            The model, and its processor or tokenizer.
        inputs (`Mapping[str, Any]`):
            The inputs of `generate`.
        outputs ([`ModelOutput`], `torch.Tensor` or `Sequence[str]`):
            The output of `generate`. Or texts, with an equal number for each row of the inputs: the model reads them
            as if it had written them.
        family ([`Family`], *optional*):
            As for [`record_attention`].
        tiles (`tuple[int, int]` or a sequence of them, *optional*):
            As for [`word_maps`].
    """
    family = family_of(model) if family is None else family
    tokenizer = getattr(processor, "tokenizer", processor)
    rows = number_of_rows(inputs)
    sequences = outputs.sequences if isinstance(outputs, ModelOutput) else outputs
    if isinstance(sequences, str):
        sequences = [sequences]
    if len(sequences) % rows:
        raise ValueError(f"{len(sequences)} sequences cannot be shared out evenly among {rows} rows of inputs.")
    special = set(tokenizer.all_special_ids)
    for number, sequence in enumerate(sequences):
        row = number * rows // len(sequences)
        if number % (len(sequences) // rows) == 0:
            own, dropped = row_of_inputs(model, family, inputs, row)
            prompt = prompt_of(model, own)
        if isinstance(sequence, str):
            generated = tokenizer(sequence, add_special_tokens=False)["input_ids"]
        else:
            generated = sequence[prompt.shape[1] + dropped :].tolist()
        last = max((place for place, id in enumerate(generated) if id not in special), default=-1)
        generated = generated[: last + 1]
        words = words_of(tokenizer, generated)
        ids = torch.cat([prompt, prompt.new_tensor([generated]).reshape(1, -1)], dim=1)
        yield Reading(model, family, own, ids, prompt.shape[1], words, row, _tiles_of_row(tiles, rows, row))


def _tiles_of_row(tiles: Tiles | None, rows: int, row: int) -> Tiles | None:
    if tiles is None or isinstance(tiles[0], int) or rows == 1:
        return tiles
    if len(tiles) != rows:
        raise ValueError(SEVERAL_IMAGES)
    return [cast(tuple[int, int], tiles[row])]


def number_of_rows(inputs: Mapping[str, Any]) -> int:
    return next(len(inputs[name]) for name in ("input_ids", "pixel_values", "flattened_patches") if name in inputs)


@torch.no_grad()
def prompt_of(model: PreTrainedModel, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The ids with which `generate` begins: the prompt of a chat, a start token, or what the model makes of them."""
    single = {"max_new_tokens": 1, "num_beams": 1, "num_return_sequences": 1, "do_sample": False}
    return model.generate(**inputs, **single, return_dict_in_generate=False)[:, :-1]


def row_of_inputs(
    model: PreTrainedModel, family: Family, inputs: Mapping[str, Any], row: int
) -> tuple[dict[str, Any], int]:
    """One row of a batch without the padding of its prompt, and the number of padding tokens."""
    config, inputs, rows = model.config, dict(inputs), number_of_rows(inputs)
    places = {}
    if rows > 1 and family.columns is not None and "input_ids" in inputs:
        # The images of all rows may be in one list. A row takes as many images as it has tokens for.
        tokens = family.columns(config, inputs).sum(dim=1)
        ends = [int(tokens[:end].sum()) for end in (row, row + 1)]
        if "image_grid_thw" in inputs:
            patches = inputs["image_grid_thw"].prod(dim=1).cumsum(dim=0)
            per_token = len(inputs["pixel_values"]) // int(tokens.sum())
            first, last = (int((patches <= per_token * end).sum()) for end in ends)
            places = {"image_grid_thw": slice(first, last), "pixel_values": slice(*(per_token * end for end in ends))}
        elif "image_sizes" in inputs:
            if len(inputs["image_sizes"]) != rows:
                raise ValueError(SEVERAL_IMAGES)
        elif inputs["pixel_values"].dim() == 4:
            per_image = int(tokens.sum()) // len(inputs["pixel_values"])
            places = {"pixel_values": slice(*(end // per_image for end in ends))}
    own = {
        name: value[places.get(name, slice(row, row + 1))] if torch.is_tensor(value) and rows > 1 else value
        for name, value in inputs.items()
    }
    if config.is_encoder_decoder or "attention_mask" not in own or "input_ids" not in own:
        return own, 0
    is_token = own["attention_mask"][0].bool()
    for name in _PER_TOKEN:
        if own.get(name) is not None:
            own[name] = own[name][:, is_token]
    return own, int((~is_token).sum())
