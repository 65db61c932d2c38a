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
What ShowAttendTell has for speed alone. Each kernel stands beside the plain code that it replaces, with the time that
a training step or a beam search takes without it over the time with it (`benchmarks/show_attend_tell.py --kernels`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable


def gates_of_steps(
    word_gates: torch.Tensor, from_hidden: nn.Linear, from_context: nn.Linear
) -> tuple[torch.Tensor, Callable]:
    """
    Chooses how a loop computes the gates of a step: `plain_gates`, or `HoistedGates` where gradients are wanted.

    Args:
        word_gates (`torch.Tensor` of shape `(words, 4 * hidden_size)`):
            What the words of all steps add to the gates.
        from_hidden (`nn.Linear`), from_context (`nn.Linear`):
            The layers, without bias, that map h and z to the gates.

    Returns:
        `tuple`: The word gates to split into steps, and a function of one step's word gates, h and z.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        gates = HoistedGates(from_hidden, from_context)
        return gates.enter(word_gates), gates
    return word_gates, partial(plain_gates, from_hidden=from_hidden, from_context=from_context)


def plain_gates(
    word_gates: torch.Tensor,
    hidden: torch.Tensor,
    context: torch.Tensor,
    from_hidden: nn.Linear,
    from_context: nn.Linear,
) -> torch.Tensor:
    """Equation 1 before its nonlinearities."""
    return word_gates + from_hidden(hidden) + from_context(context)


class HoistedGates:
    """
    `plain_gates` with the weights' gradients of all steps in one product each, instead of one product and one sum over
    a large matrix per step. Training step: 1.2x, and 1.0x where freed memory is kept, as the recipes do.
    """

    def __init__(self, from_hidden: nn.Linear, from_context: nn.Linear):
        self.weights = from_hidden.weight, from_context.weight
        self.inputs = [], []  # what each step multiplied by each weight

    def enter(self, word_gates: torch.Tensor) -> torch.Tensor:
        self.detached = [weight.detach().to(word_gates.dtype).T for weight in self.weights]
        return _HoistedWeights.apply(word_gates, self.inputs, *self.weights)

    def __call__(self, word_gates: torch.Tensor, hidden: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        gates = word_gates
        for step_input, inputs, weight in zip((hidden, context), self.inputs, self.detached, strict=True):
            step_input = step_input.to(gates.dtype)  # under autocast, that of its products
            inputs.append(step_input.detach())
            gates = torch.addmm(gates, step_input, weight)
        return gates


class _HoistedWeights(torch.autograd.Function):
    """Identity. In the backward pass the gradient of all steps arrives here at once, and gives that of the weights."""

    @staticmethod
    def forward(ctx: Any, word_gates: Any, inputs: Any, *weights: Any) -> Any:
        ctx.inputs = inputs
        return word_gates.view_as(word_gates)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None, *(gradient.T @ torch.cat(steps) for steps in ctx.inputs)


def energy_of_steps(keys: torch.Tensor, score: torch.Tensor, key_factors: torch.Tensor | None = None) -> Callable:
    """
    Chooses how a loop computes equation 4: `plain_energy`, or `factored_energy` where there are `key_factors`.

    Args:
        keys (`torch.Tensor` of shape `(images, locations, attention_size)`):
            The features as the attention network sees them.
        score (`torch.Tensor` of shape `(attention_size,)`):
            The vector u.
        key_factors (`torch.Tensor` of the shape of `keys`, *optional*):
            Made by `tanh_factors`. Not used where gradients are wanted.

    Returns:
        `Callable`: From queries `(images, captions, attention_size)` of the first images to energies
        `(images, captions, locations)`.
    """
    if key_factors is None or torch.is_grad_enabled():
        return partial(plain_energy, keys=keys, score=score)
    return partial(factored_energy, keys=keys, score=score, key_factors=key_factors)


def plain_energy(query: torch.Tensor, keys: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Equation 4: u . tanh(key + query) of every location."""
    keys = keys if len(keys) == len(query) else keys[: len(query)]  # the gradient of a slice is a copy
    return torch.add(keys.unsqueeze(1), query.unsqueeze(2)).tanh_() @ score


EXPONENT_LIMIT = 40.0  # e^(2 * 40) is neither zero nor infinite in single precision


def tanh_factors(values: torch.Tensor) -> torch.Tensor | None:
    """e^(2 x) for `factored_energy`, or `None` where its range does not suffice or it would not be faster."""
    # Other processors compute a tanh as fast as they read its argument, and gradients need another way.
    if values.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    in_range = values.dtype in (torch.float32, torch.float64) and values.abs().max() < EXPONENT_LIMIT
    return torch.exp(2 * values) if in_range else None


def cache_sized(tensor: torch.Tensor, elements: int) -> list[slice]:
    """Chunks of the batch, of `elements` per image, small enough to stay in the CPU cache."""
    images = tensor.shape[0]
    step = max(1, 2**19 // elements) if tensor.device.type == "cpu" else images
    return [slice(start, start + step) for start in range(0, images, step)]


def factored_energy(
    query: torch.Tensor, keys: torch.Tensor, score: torch.Tensor, key_factors: torch.Tensor
) -> torch.Tensor:
    """
    `plain_energy` without a tanh of every location: tanh(k + q) = 1 - 2 / (1 + e^2k e^2q), of which the first factor
    is the same for all words of a caption. Beam search: 1.35x.
    """
    query_factors, key_factors = tanh_factors(query), key_factors[: len(query)]
    if query_factors is None:
        return plain_energy(query, keys, score)
    parts = [
        (key_factors[part].unsqueeze(1) * query_factors[part].unsqueeze(2)).add_(1).reciprocal_() @ score
        for part in cache_sized(key_factors, query_factors.shape[1] * key_factors[0].numel())
    ]
    return score.sum() - 2 * torch.cat(parts)


class WordsByStep:
    r"""
    The words of a batch step by step. With `lengths`, steps leave out the captions that have ended: captions are put
    in an order in which those that continue are the first captions of the first images, or nearly so. Training step,
    with captions as long as those of Flickr8k: 1.2x.

    Args:
        images (`int`), captions (`int`), length (`int`):
            The number of images, of captions per image and of steps.
        lengths (`torch.LongTensor` of shape `(images * captions,)`, *optional*):
            The number of steps of each caption.
    """

    def __init__(self, images: int, captions: int, length: int, lengths: torch.Tensor | None = None):
        self.images, self.captions, self.length = images, captions, length
        self.positions = None
        self.shapes = [(images, captions)] * length
        if lengths is None:
            return
        lengths = lengths.view(images, captions)
        self.image_order = lengths.amax(dim=1).argsort(descending=True, stable=True)
        lengths, caption_order = lengths[self.image_order].sort(dim=1, descending=True, stable=True)
        rows = self.image_order.unsqueeze(1) * captions + caption_order
        steps = torch.arange(int(lengths.max().clamp(min=1)), device=lengths.device)
        continues = lengths.unsqueeze(-1) > steps  # (B, K, T)
        counts = (continues.any(dim=dim).sum(dim=0).clamp(min=1).tolist() for dim in (1, 0))
        self.rows, self.shapes = rows.flatten(), list(zip(*counts, strict=True))
        self.positions = torch.cat(
            [(rows[:b, :k] * length + step).flatten() for step, (b, k) in enumerate(self.shapes)]
        )

    def order_images(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor if self.positions is None or tensor is None else tensor.index_select(0, self.image_order)

    def order_captions(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.positions is None else tensor.index_select(0, self.rows)

    def by_step(self, tensor: torch.Tensor) -> torch.Tensor:
        """From `(captions, steps, ...)` to `(words, ...)`, one step after the other."""
        if self.positions is None:
            return tensor.transpose(0, 1).flatten(0, 1)
        return tensor.flatten(0, 1).index_select(0, self.positions)

    def split(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """From `(words, ...)` to one tensor per step."""
        return tensor.split([images * captions for images, captions in self.shapes])

    def continuing(self, step: int, *states: torch.Tensor) -> list[torch.Tensor]:
        """Of the states of the step before, those whose captions have not ended."""
        before = self.shapes[step - 1] if step > 0 else (self.images, self.captions)
        images, captions = self.shapes[step]
        if before == (images, captions):
            return list(states)
        return [state.unflatten(0, before)[:images, :captions].flatten(0, 1) for state in states]

    def by_caption(self, steps: list[torch.Tensor]) -> torch.Tensor:
        """From one tensor per step to `(captions, steps, ...)`, with zeros where a caption has ended."""
        if self.positions is None:
            return torch.stack(steps, dim=1)
        words = torch.cat(steps)
        shape = (self.images * self.captions, self.length)
        padded = words.new_zeros(shape[0] * shape[1], *words.shape[1:])
        return padded.index_copy(0, self.positions, words).view(*shape, *words.shape[1:])
