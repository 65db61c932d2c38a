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
"""The layers of GroundedVisualBert: those of VisualBERT, with attention weights before dropout."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..attention import eager_attention_forward, needs_eager_attention
from .configuration_grounded_visual_bert import GroundedVisualBertConfig


class GroundedVisualBertEmbeddings(nn.Module):
    """Embeds words and regions as one sequence: words first, then regions."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.visual_token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.visual_position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.visual_projection = nn.Linear(config.visual_embedding_dim, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        shape, device = inputs_embeds.shape[:2], inputs_embeds.device
        if token_type_ids is None:
            token_type_ids = torch.zeros(shape, dtype=torch.long, device=device)
        if position_ids is None:
            position_ids = torch.arange(shape[1], device=device).unsqueeze(0)
        embeddings = inputs_embeds + self.token_type_embeddings(token_type_ids)
        embeddings = embeddings + self.position_embeddings(position_ids)
        if visual_embeds is not None:
            if visual_token_type_ids is None:
                visual_token_type_ids = torch.ones(visual_embeds.shape[:2], dtype=torch.long, device=device)
            regions = self.visual_projection(visual_embeds) + self.visual_token_type_embeddings(visual_token_type_ids)
            # Regions have no order, so all have position 0.
            regions = regions + self.visual_position_embeddings(torch.zeros_like(visual_token_type_ids))
            embeddings = torch.cat([embeddings, regions], dim=1)
        return self.dropout(self.LayerNorm(embeddings))


class GroundedVisualBertSelfAttention(nn.Module):
    """VisualBERT's self-attention, for any `attn_implementation`. It returns the weights before dropout."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = (
            layer(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if needs_eager_attention(query, kwargs.get("output_attentions")):
            attention_interface = eager_attention_forward
        context, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.head_dim**-0.5,
            dropout=self.dropout.p if self.training else 0.0,
            is_causal=False,
        )
        return context.flatten(2), weights


class GroundedVisualBertOutput(nn.Module):
    """The end of a block: a linear layer, dropout, the residual connection and LayerNorm."""

    def __init__(self, config: GroundedVisualBertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


class GroundedVisualBertAttention(nn.Module):
    """Self-attention, with the residual connection and LayerNorm."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.self = GroundedVisualBertSelfAttention(config)
        self.output = GroundedVisualBertOutput(config, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        context, weights = self.self(hidden_states, attention_mask, **kwargs)
        return self.output(context, hidden_states), weights


class GroundedVisualBertIntermediate(nn.Module):
    """The hidden layer of the feed-forward block."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class GroundedVisualBertLayer(GradientCheckpointingLayer):
    """A Transformer layer: self-attention and a feed-forward block."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.attention = GroundedVisualBertAttention(config)
        self.intermediate = GroundedVisualBertIntermediate(config)
        self.output = GroundedVisualBertOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attended, weights = self.attention(hidden_states, attention_mask, **kwargs)
        return self.output(self.intermediate(attended), attended), weights


class GroundedVisualBertEncoder(nn.Module):
    """The Transformer layers."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.layer = nn.ModuleList(GroundedVisualBertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        # Layers return their attention instead of recording it with a hook: with gradient checkpointing
        # (`use_reentrant=True`) a hook gets tensors without a graph, so supervision would have no gradient.
        attentions = ()
        for layer in self.layer:
            hidden_states, weights = layer(hidden_states, attention_mask, **kwargs)
            attentions += (weights,)
        return BaseModelOutput(
            last_hidden_state=hidden_states, attentions=attentions if kwargs.get("output_attentions") else None
        )


class GroundedVisualBertPooler(nn.Module):
    """The state of [CLS] after a linear layer and a tanh."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))


class GroundedVisualBertTransform(nn.Module):
    """Transforms states before masked words or answers are predicted from them."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class GroundedVisualBertLMHead(nn.Module):
    """Predicts masked words."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.transform = GroundedVisualBertTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # the decoder's bias, under the name that BERT uses

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.transform(hidden_states))
