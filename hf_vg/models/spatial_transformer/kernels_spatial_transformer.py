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
"""What exists only for speed in SpatialTransformerCaptioner. Each kernel names the plain version it replaces."""

# `python benchmarks/spatial_transformer.py --kernels` times a training step with and without each of them.

from collections.abc import Callable

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def dropout_of_weights(weights: torch.Tensor, probability: float) -> torch.Tensor:
    r"""
    Dropout of attention weights, which are many. The plain version is `nn.functional.dropout`. On a CPU, drawing the
    random numbers takes most of its time: here 64 bits are drawn at once, and 16 of them decide about a weight.

    Args:
        weights (`torch.Tensor`):
            The weights, of any shape.
        probability (`float`):
            The share of weights that become 0, in steps of 2^-16.
    """
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(weights, p=probability)
    count = weights.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = bits.view(weights.shape) >= round(probability * 2**16) - 2**15
    return weights * kept.to(weights.dtype).mul_(1 / (1 - probability))


def choose_attention(
    attention_interface: Callable, plain: Callable, query: torch.Tensor, dropout: float, is_causal: bool
) -> Callable:
    """
    The plain attention instead of torch's own where that is slow: on a CPU, with dropout. Attention among words is
    small, and needs its causal mask, so it stays as it is.
    """
    slow = dropout > 0.0 and query.device.type == "cpu" and not is_causal and not torch.compiler.is_compiling()
    return plain if slow and attention_interface is sdpa_attention_forward else attention_interface
