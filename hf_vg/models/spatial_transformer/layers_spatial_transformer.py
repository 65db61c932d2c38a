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
"""The layers of SpatialTransformerCaptioner: positions, attention, feed-forward blocks (equations 1 to 4)."""

import math

import torch
from torch import nn
from transformers import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..attention import eager_attention_forward, needs_eager_attention
from .configuration_spatial_transformer import SpatialTransformerCaptionerConfig


def sinusoids(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Positional encodings of Vaswani et al. (2017). Positions of any shape `(...)` give encodings `(..., size)`."""
    frequencies = torch.exp(torch.arange(0, size, 2, device=positions.device) * (-math.log(10000.0) / size))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def location_encodings(image_features: torch.Tensor, config: SpatialTransformerCaptionerConfig) -> torch.Tensor:
    """Returns positional encodings of the locations, of shape `(locations, hidden_size)`."""
    grid, device, size = image_features.shape[1:-1], image_features.device, config.hidden_size
    if config.positional_encoding == "1d":
        return sinusoids(torch.arange(math.prod(grid), device=device), size)
    if len(grid) == 1:
        side = math.isqrt(grid[0])
        if side**2 != grid[0]:
            raise ValueError(
                f'`positional_encoding="2d"` needs a map, but `image_features` have {grid[0]} locations, which is '
                f"not a square. Pass them as (batch, height, width, {config.feature_size})."
            )
        grid = (side, side)
    rows, columns = (sinusoids(torch.arange(length, device=device), size // 2) for length in grid)
    return torch.cat([rows.repeat_interleave(grid[1], dim=0), columns.repeat(grid[0], 1)], dim=-1)


class SpatialTransformerCaptionerAttention(nn.Module):
    """Equations 1 to 3, without the projections to queries, keys and values."""

    def __init__(self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = nn.Dropout(config.dropout)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def split_heads(self, projected: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        """Splits `(batch, length, count * hidden_size)` into `count` tensors `(batch, heads, length, head_dim)`."""
        return projected.unflatten(-1, (count, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # d_len of the decoder's self-attention is a constant of the config. So it does not depend on the padding of a
        # batch or on the number of words generated so far.
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
    """Self-attention among the locations of the image (encoder), or among the words of a caption (decoder)."""

    def __init__(
        self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False, layer_idx: int | None = None
    ):
        super().__init__(config, is_causal)
        self.layer_idx = layer_idx
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.qkv_proj.num_matrices = 3  # type: ignore[assignment]  # torch types module attributes as modules

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
    """Attention of words to locations. All captions (or beams) of an image share its keys and values."""

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
            # The order of words does not matter here, so all captions of an image form one sequence of queries.
            words = hidden_states.reshape(key.shape[0], -1, hidden_states.shape[-1])  # (B, K * T, D)
        elif captions > 1:  # return the weights that were used, with one row per caption
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
    """Self-attention among locations and a feed-forward block, each with a residual connection and LayerNorm."""

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
    """Self-attention, attention to the image and a feed-forward block, with residual connections and LayerNorm."""

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
        # The paper adds the input of the values, which has one row per location. Words need the input of the queries.
        attended, _ = self.cross_attention(hidden_states, encoder_hidden_states, past_key_values, output_attentions)
        hidden_states = self.cross_attention_norm(hidden_states + attended)
        return self.feed_forward_norm(hidden_states + self.feed_forward(hidden_states))
