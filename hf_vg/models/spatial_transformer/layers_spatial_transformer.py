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
"""Equations 1 to 4 of SpatialTransformerCaptioner: attention, feed-forward blocks, and the layers made of them."""

import torch
from torch import nn
from transformers import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..attention import eager_attention_forward, needs_eager_attention
from .configuration_spatial_transformer import SpatialTransformerCaptionerConfig


class SpatialTransformerCaptionerAttention(nn.Module):
    """Equations 1-3, without the projections of queries, keys and values."""

    def __init__(self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = nn.Dropout(config.dropout)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def split_heads(self, projected: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        """`(batch, length, count * hidden_size)` to `count` tensors of shape `(batch, heads, length, head_dim)`."""
        return projected.unflatten(-1, (count, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # d_len is one number for each attention of the model. Words have a constant of the config, so that it depends
        # neither on the padding of a batch nor on how far decoding has come.
        length = self.config.max_target_length if self.is_causal else key.shape[2]
        squared_tau = self.head_dim + (length if self.config.scaling == "length" else 0)
        dropout = self.dropout.p if self.training else 0.0
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if needs_eager_attention(query, output_attentions):
            attention_interface = eager_attention_forward
        return attention_interface(self, query, key, value, attention_mask, scaling=squared_tau**-0.5, dropout=dropout)


class SpatialTransformerCaptionerSelfAttention(SpatialTransformerCaptionerAttention):
    def __init__(
        self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False, layer_idx: int | None = None
    ):
        super().__init__(config, is_causal)
        self.layer_idx = layer_idx
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.qkv_proj.num_matrices = 3  # type: ignore[assignment]  # torch types all attributes as modules

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.split_heads(self.qkv_proj(hidden_states), 3)
        if past_key_values is not None:
            key, value = past_key_values.self_attention_cache.update(key, value, self.layer_idx)
        context, weights = self.attend(query, key, value, attention_mask, output_attentions)
        return self.o_proj(context.flatten(2)), weights


class SpatialTransformerCaptionerCrossAttention(SpatialTransformerCaptionerAttention):
    """Attention of words to locations. Captions, or beams, of one image share its keys and values."""

    def __init__(self, config: SpatialTransformerCaptionerConfig, layer_idx: int):
        super().__init__(config)
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.kv_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.kv_proj.num_matrices = 2  # type: ignore[assignment]  # as above

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            cached = past_key_values.cross_attention_cache.layers[self.layer_idx]
            key, value = cached.keys, cached.values
        else:
            key, value = self.split_heads(self.kv_proj(encoder_hidden_states), 2)
            if past_key_values is not None:
                key, value = past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
                past_key_values.is_updated[self.layer_idx] = True
        words, captions = hidden_states, hidden_states.shape[0] // key.shape[0]
        if not output_attentions:
            # Nothing here depends on a word's place, so all words of an image's captions are one row of queries.
            words = hidden_states.reshape(key.shape[0], -1, hidden_states.shape[-1])  # (B, K * T, D)
        elif captions > 1:  # the weights that are returned are the ones that are used, one row for each caption
            key, value = (tensor.repeat_interleave(captions, dim=0) for tensor in (key, value))
        (query,) = self.split_heads(self.q_proj(words), 1)
        context, weights = self.attend(query, key, value, output_attentions=output_attentions)
        return self.o_proj(context.reshape(hidden_states.shape)), weights


class SpatialTransformerCaptionerFeedForward(nn.Module):
    """Equation 4."""

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.up_proj(hidden_states)))


class SpatialTransformerCaptionerEncoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__()
        self.self_attention = SpatialTransformerCaptionerSelfAttention(config)
        self.self_attention_norm = nn.LayerNorm(config.hidden_size)
        self.feed_forward = SpatialTransformerCaptionerFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, output_attentions: bool | None = False) -> torch.Tensor:
        attended, _ = self.self_attention(hidden_states, output_attentions=output_attentions)
        hidden_states = self.self_attention_norm(hidden_states + attended)
        return self.feed_forward_norm(hidden_states + self.feed_forward(hidden_states))


class SpatialTransformerCaptionerDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: SpatialTransformerCaptionerConfig, layer_idx: int):
        super().__init__()
        self.self_attention = SpatialTransformerCaptionerSelfAttention(config, is_causal=True, layer_idx=layer_idx)
        self.self_attention_norm = nn.LayerNorm(config.hidden_size)
        self.cross_attention = SpatialTransformerCaptionerCrossAttention(config, layer_idx)
        self.cross_attention_norm = nn.LayerNorm(config.hidden_size)
        self.feed_forward = SpatialTransformerCaptionerFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool | None = False,
    ) -> torch.Tensor:
        attended, _ = self.self_attention(hidden_states, attention_mask, past_key_values, output_attentions)
        hidden_states = self.self_attention_norm(hidden_states + attended)
        # The paper's residual is the values' input, which has a row for each location; words have the queries'.
        attended, _ = self.cross_attention(hidden_states, encoder_hidden_states, past_key_values, output_attentions)
        hidden_states = self.cross_attention_norm(hidden_states + attended)
        return self.feed_forward_norm(hidden_states + self.feed_forward(hidden_states))
