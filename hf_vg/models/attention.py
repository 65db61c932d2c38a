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
"""Attention that returns its weights, for the models with Transformer layers."""

from typing import Any

import torch
from torch import nn


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Scaled dot-product attention that returns its weights: `softmax(Q K^T * scaling) V`.

    Args:
        module (`nn.Module`):
            The attention layer. Dropout is applied only if it is in training mode. Without a mask, a layer with
            `is_causal` hides later words.
        query (`torch.Tensor` of shape `(batch, heads, length, head_dim)`):
            The queries.
        key (`torch.Tensor` of shape `(batch, heads, locations, head_dim)`):
            The keys.
        value (`torch.Tensor` of shape `(batch, heads, locations, head_dim)`):
            The values.
        attention_mask (`torch.Tensor`, *optional*):
            A boolean mask (`True` where attention is allowed), or a float mask that is added to the scores.
        scaling (`float`):
            The factor on the scores.
        dropout (`float`, *optional*, defaults to 0.0):
            The dropout probability of the weights.
        kwargs (*optional*):
            Ignored. Other attention functions of transformers take more arguments.

    Returns:
        `tuple`: The context of shape `(batch, length, heads, head_dim)`, and the weights before dropout of shape
        `(batch, heads, length, locations)`.
    """
    scores = torch.matmul(query * scaling, key.transpose(2, 3))  # (B, heads, T, L)
    length = query.shape[2]
    if attention_mask is None and length > 1 and getattr(module, "is_causal", False):
        # For SDPA, transformers leaves out the mask of causal layers. SDPA then makes it from `is_causal`.
        attention_mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None:
        # The mask is boolean if the model runs with SDPA and returns attentions, and additive if it runs eagerly.
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    context = torch.matmul(nn.functional.dropout(weights, p=dropout, training=module.training), value)
    # Return the weights before dropout: only these sum to 1.
    return context.transpose(1, 2).contiguous(), weights


def needs_eager_attention(query: torch.Tensor, output_attentions: bool | None) -> bool:
    r"""
    Returns whether to compute attention with [`eager_attention_forward`], whatever `attn_implementation` is set.

    This is the case if the weights are asked for, and for bfloat16 training on a CPU.

    Args:
        query (`torch.Tensor`):
            The queries.
        output_attentions (`bool`, *optional*):
            Whether the caller asked for the weights. Other implementations do not return them.

    Returns:
        `bool`: Whether attention must run eagerly.
    """
    # Training in bfloat16 on a CPU, torch's own attention is six times slower.
    slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and torch.is_grad_enabled()
    return slow or bool(output_attentions)


__all__ = ["eager_attention_forward", "needs_eager_attention"]
