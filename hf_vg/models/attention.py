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
"""Attention that returns its weights, for the models built of Transformer layers."""

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
    """softmax(Q K^T * scaling) V, of shape `(batch, length, heads, head_dim)`, and the softmax."""
    scores = torch.matmul(query * scaling, key.transpose(2, 3))  # (B, heads, T, L)
    if attention_mask is not None:
        # Boolean where the model runs with SDPA and is asked for its attentions, to be added where it runs eagerly.
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    context = torch.matmul(nn.functional.dropout(weights, p=dropout, training=module.training), value)
    # The weights before dropout: what is looked at, supervised or drawn sums to one.
    return context.transpose(1, 2).contiguous(), weights


def needs_eager_attention(query: torch.Tensor, output_attentions: bool | None) -> bool:
    """Whether attention runs eagerly whatever implementation is set: the others return no weights, or are slow."""
    # On a CPU, torch's own attention takes six times as long to train in bfloat16.
    slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and torch.is_grad_enabled()
    return slow or bool(output_attentions)


__all__ = ["eager_attention_forward", "needs_eager_attention"]
