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
"""The outputs of ShowAttendTell, and its recurrent state."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput


@dataclass
class ShowAttendTellState:
    """The recurrent state. `generate` uses it in place of a key-value cache. Each forward pass returns a new one."""

    hidden: torch.Tensor  # h_t, (N, n)
    memory: torch.Tensor  # c_t, (N, n)
    seen_tokens: int = 0

    is_compileable: ClassVar[bool] = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.hidden, self.memory = self.hidden[indices], self.memory[indices]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.hidden, self.memory = (state.repeat_interleave(repeats, dim=0) for state in (self.hidden, self.memory))


torch.export.register_dataclass(ShowAttendTellState)


def is_asked_for(name: str, kwargs: dict[str, Any], config: PreTrainedConfig) -> bool:
    """Returns whether the caller (or by default the config) asks for an output, such as `output_attentions`."""
    value = kwargs.get(name)
    return getattr(config, name) if value is None else value


@dataclass
class ShowAttendTellEncoderOutput(BaseModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(images, locations, feature_size)`):
        The features.
    attention_keys (`torch.FloatTensor` of shape `(images, locations, attention_size)`):
        The features after the layers of the attention network that do not depend on the decoder.
    key_factors (`torch.FloatTensor` of the same shape, *optional*):
        Computed from the keys once per image, if this makes decoding faster.
    """

    attention_keys: torch.Tensor | None = None
    key_factors: torch.Tensor | None = None


@dataclass
class ShowAttendTellModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(captions, length, hidden_size)`):
        h_t of each step.
    contexts (`torch.FloatTensor` of shape `(captions, length, feature_size)`):
        The gated context z_t of each step.
    embeddings (`torch.FloatTensor` of shape `(captions, length, embedding_size)`):
        E y_{t-1} of each step, with zeros for the first step.
    past_key_values (`ShowAttendTellState`):
        The state of the LSTM after the last step.
    cross_attentions (`tuple(torch.FloatTensor)` of one tensor of shape `(captions, 1, length, locations)`):
        alpha_t of each step.
    locations (`torch.LongTensor` of shape `(captions, length)`, *optional*):
        The location of each step, if hard attention chose one.
    encoder_last_hidden_state (`torch.FloatTensor` of shape `(images, locations, feature_size)`):
        The features.
    decoder_hidden_states, encoder_hidden_states (`tuple(torch.FloatTensor)` of one tensor, *optional*):
        With `output_hidden_states=True`: `last_hidden_state` and `encoder_last_hidden_state`.
    """

    last_hidden_state: torch.Tensor | None = None
    contexts: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None
    past_key_values: ShowAttendTellState | None = None
    cross_attentions: tuple[torch.Tensor] | None = None
    locations: torch.Tensor | None = None
    encoder_last_hidden_state: torch.Tensor | None = None
    decoder_hidden_states: tuple[torch.Tensor] | None = None
    encoder_hidden_states: tuple[torch.Tensor] | None = None


@dataclass
class ShowAttendTellCaptionerOutput(Seq2SeqLMOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption + attention_penalty * loss_attention` for soft attention, and
        `loss_caption + loss_reinforce + loss_entropy` for hard attention.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` if the model is in training mode, gets `labels` and is not asked for
        attentions: then it only computes the loss, without padding.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of captions: summed over words, averaged over captions.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The doubly stochastic term of equation 14: the sum over locations of (1 - sum over time)^2, averaged over
        captions.
    loss_reinforce (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The term whose gradient is the REINFORCE estimate of hard attention. Its value has no meaning by itself.
    loss_entropy (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The negative weighted entropy of the attention of a hard model.
    caption_losses (`torch.FloatTensor` of shape `(captions,)`, *optional*):
        The share of each caption in `loss`. They sum to `loss_caption`, and for hard attention to
        `loss_caption + loss_reinforce`.
    """

    loss_caption: torch.Tensor | None = None
    loss_attention: torch.Tensor | None = None
    loss_reinforce: torch.Tensor | None = None
    loss_entropy: torch.Tensor | None = None
    caption_losses: torch.Tensor | None = None
