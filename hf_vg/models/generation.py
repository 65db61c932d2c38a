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
"""`generate` for captioners: the image is encoded once, and the caption is written word by word."""

from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin
from transformers.generation.utils import GenerateOutput


class CaptionGenerationMixin(GenerationMixin):
    r"""
    Adds `generate` to a captioner. All beams of an image share its encoding, and `image_features` can replace
    `pixel_values`.

    `decoder_input_ids` (or `input_ids`) are prompts: the first words of each caption. Prompts may differ in length,
    and the start token is optional. Padding and end tokens are removed, so the caption continues after the last word.
    """

    def suppress_special_tokens(self) -> None:
        """Makes `generate` never write the <unk> and <pad> tokens."""
        tokens = (self.config.unk_token_id, self.config.pad_token_id)
        self.generation_config.suppress_tokens = [token for token in tokens if token is not None] or None

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        r"""
        Shifts labels to the right, so that the decoder predicts each word from the words before it.

        Args:
            labels (`torch.LongTensor` of shape `(captions, length)`):
                Captions, padded with -100.

        Returns:
            `torch.LongTensor` of shape `(captions, length)`: The start token, and all labels but the last.
        """
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].clamp(min=0)], dim=1)

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> GenerateOutput | torch.Tensor:
        r"""
        Writes captions. Works like [`~transformers.GenerationMixin.generate`]: greedy, beam search or sampling.

        Args:
            inputs (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images. The same as `pixel_values`.
            args (*optional*):
                The other positional arguments of [`~transformers.GenerationMixin.generate`].
            kwargs (*optional*):
                `pixel_values` or `image_features`, as in `forward`; `decoder_input_ids` or `input_ids`, the first
                words of each caption; and anything else that [`~transformers.GenerationMixin.generate`] takes, such
                as `max_new_tokens` and `num_beams`.

        Returns:
            `torch.LongTensor` of shape `(images * num_return_sequences, length)`: The captions, padded after the end
            token. With `return_dict_in_generate=True`, an output with scores and attention maps.
        """
        prompts = kwargs.pop("input_ids", None)
        prompts = kwargs.pop("decoder_input_ids", prompts)
        if prompts is None:
            return super().generate(inputs, *args, **kwargs)
        if kwargs.get("past_key_values") is not None:  # the cache has read these prompts: leave them unchanged
            return super().generate(inputs, *args, decoder_input_ids=prompts, **kwargs)
        mask = kwargs.pop("decoder_attention_mask", prompts != self.config.pad_token_id).bool()
        rows = [self._beginning(ids[real]) for ids, real in zip(prompts, mask, strict=True)]
        if len({len(row) for row in rows}) <= 1:
            return super().generate(inputs, *args, decoder_input_ids=torch.stack(rows), **kwargs)

        # One call per prompt length.
        name = next((name for name in ("pixel_values", "image_features") if name in kwargs), None)
        images = inputs if name is None else kwargs.pop(name)
        kwargs.pop("labels", None)
        captions: list[torch.Tensor] = [None] * len(rows)
        for length in sorted({len(row) for row in rows}):
            chosen = [index for index, row in enumerate(rows) if len(row) == length]
            part = images[[index * len(images) // len(rows) for index in chosen]]
            arguments = {name or "inputs": part}
            prompt = torch.stack([rows[index] for index in chosen])
            generated = super().generate(*args, **arguments, decoder_input_ids=prompt, **kwargs)
            if not isinstance(generated, torch.Tensor):
                raise ValueError("`return_dict_in_generate=True` needs prompts that all have the same length.")
            for index, sequences in zip(chosen, generated.chunk(len(chosen)), strict=True):
                captions[index] = sequences
        longest = max(sequences.shape[1] for sequences in captions)
        pad = self.config.pad_token_id
        return torch.cat([nn.functional.pad(rows, (0, longest - rows.shape[1]), value=pad) for rows in captions])

    def _beginning(self, words: torch.Tensor) -> torch.Tensor:
        """Returns a prompt with the start token and without end tokens."""
        start, eos = self.config.decoder_start_token_id, self.config.eos_token_id
        if len(words) and words[0] == start:
            words = words[1:]
        while len(words) and words[-1] == eos:
            words = words[:-1]
        return nn.functional.pad(words, (1, 0), value=start)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        seen_tokens = int(past_key_values.get_seq_length()) if past_key_values is not None else 0
        if next_sequence_length is None and seen_tokens < input_ids.shape[1]:
            # The caller passed a cache that has already read the first tokens.
            next_sequence_length = input_ids.shape[1] - seen_tokens
        return super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, past_key_values=past_key_values, **kwargs
        )

    def _prepare_model_inputs(
        self, inputs: torch.Tensor | None, bos_token_id: torch.Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, str | None, dict[str, Any]]:
        if inputs is None and model_kwargs.get("image_features") is not None:
            return model_kwargs.pop("image_features"), "image_features", model_kwargs
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)

    def _expand_inputs_for_generation(
        self, is_encoder_decoder: bool = True, encoder_outputs: Any | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        input_ids, model_kwargs = super()._expand_inputs_for_generation(is_encoder_decoder=False, **kwargs)
        return input_ids, {**model_kwargs, "encoder_outputs": encoder_outputs}


__all__ = ["CaptionGenerationMixin"]
