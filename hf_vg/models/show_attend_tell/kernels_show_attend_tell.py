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
"""
Code of ShowAttendTell that exists only for speed. Each kernel is next to the plain version that it replaces, with its
speed-up (`benchmarks/show_attend_tell.py --kernels`).
"""

from collections.abc import Callable
from functools import partial

import torch


def energy_of_steps(keys: torch.Tensor, score: torch.Tensor, key_factors: torch.Tensor | None = None) -> Callable:
    """
    Chooses how the loop computes equation 4: by `factored_energy` if `key_factors` are given, else by `plain_energy`.

    Args:
        keys (`torch.Tensor` of shape `(images, locations, attention_size)`):
            The part of the attention network that depends only on the image.
        score (`torch.Tensor` of shape `(attention_size,)`):
            The vector u.
        key_factors (`torch.Tensor` of the shape of `keys`, *optional*):
            Computed by `tanh_factors`. Ignored if gradients are enabled.

    Returns:
        `Callable`: Maps queries of shape `(images, captions, attention_size)` to energies of shape
        `(images, captions, locations)`.
    """
    if key_factors is None or torch.is_grad_enabled():
        return partial(plain_energy, keys=keys, score=score)
    return partial(factored_energy, keys=keys, score=score, key_factors=key_factors)


def plain_energy(query: torch.Tensor, keys: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Equation 4: u . tanh(key + query) for every location."""
    return torch.add(keys.unsqueeze(1), query.unsqueeze(2)).tanh_() @ score


EXPONENT_LIMIT = 40.0  # e^(2 * 40) is neither zero nor infinite in single precision


def tanh_factors(values: torch.Tensor) -> torch.Tensor | None:
    """Computes e^(2 x) for `factored_energy`, or returns `None` if it would overflow or would not be faster."""
    # GPUs compute a tanh as fast as they read its argument, and this form is not differentiated.
    if values.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    in_range = values.dtype in (torch.float32, torch.float64) and values.abs().max() < EXPONENT_LIMIT
    return torch.exp(2 * values) if in_range else None


def cache_sized(tensor: torch.Tensor, elements: int) -> list[slice]:
    """Splits a batch of `elements` per image into chunks small enough to stay in the CPU cache."""
    images = tensor.shape[0]
    step = max(1, 2**19 // elements) if tensor.device.type == "cpu" else images
    return [slice(start, start + step) for start in range(0, images, step)]


def factored_energy(
    query: torch.Tensor, keys: torch.Tensor, score: torch.Tensor, key_factors: torch.Tensor
) -> torch.Tensor:
    """
    `plain_energy` without a tanh for every location and word: tanh(k + q) = 1 - 2 / (1 + e^2k e^2q), and e^2k is the
    same for all words of a caption. Speed-up of a beam search: 1.3x.
    """
    query_factors = tanh_factors(query)
    if query_factors is None:
        return plain_energy(query, keys, score)
    parts = [
        (key_factors[part].unsqueeze(1) * query_factors[part].unsqueeze(2)).add_(1).reciprocal_() @ score
        for part in cache_sized(key_factors, query_factors.shape[1] * key_factors[0].numel())
    ]
    return score.sum() - 2 * torch.cat(parts)
