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
"""What the parts of ShowAttendTell return, and the recurrent state between two words."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput


@dataclass
class ShowAttendTellState:
    """The recurrent state, standing where `generate` keeps its key-value cache. A forward pass makes a new one."""

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
    """Whether `output_attentions` or `output_hidden_states` is wanted, by argument or else by config."""
    value = kwargs.get(name)
    return getattr(config, name) if value is None else value


@dataclass
class ShowAttendTellEncoderOutput(BaseModelOutput):
    r"""
    attention_keys (`torch.FloatTensor` of shape `(batch_size, locations, attention_size)`):
        The features as the attention network sees them.
    key_factors (`torch.FloatTensor` of the same shape, *optional*):
        Made of the keys once per image where this makes decoding faster.
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
        E y_{t-1} of each step; zeros at the first.
    past_key_values (`ShowAttendTellState`):
        The LSTM's state after the last step.
    cross_attentions (`tuple(torch.FloatTensor)` of one tensor of shape `(captions, 1, length, locations)`):
        alpha_t of each step.
    locations (`torch.LongTensor` of shape `(captions, length)`, *optional*):
        The one location looked at in each step, where hard attention chose one.
    encoder_last_hidden_state (`torch.FloatTensor` of shape `(images, locations, feature_size)`):
        The features attended to.
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
        With soft attention `loss_caption + attention_penalty * loss_attention`, with hard attention
        `loss_caption + loss_reinforce + loss_entropy`.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` if the model is in training mode, is given `labels` and is not asked for
        attentions: then only the loss is computed, without the padding.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of a caption: summed over its words, averaged over captions.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The doubly stochastic term of equation 14 for a caption: sum over locations of (1 - sum over time)^2.
    loss_reinforce (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The term whose gradient is the REINFORCE estimate of hard attention; its value means nothing by itself.
    loss_entropy (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Minus the weighted entropy of the locations of hard attention.
    """

    loss_caption: torch.Tensor | None = None
    loss_attention: torch.Tensor | None = None
    loss_reinforce: torch.Tensor | None = None
    loss_entropy: torch.Tensor | None = None
