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
"""LSTMs over sentences of different lengths: a plain one, and one that trains faster on a CPU."""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class SelfAttnGroundedEncoderRecurrence(torch.autograd.Function):
    """
    The recurrent part of an LSTM over packed sequences. Its input is the part of the gates that comes from the words.

    On a CPU, `nn.LSTM` updates the weight gradients after every step, which is bound by memory. This function keeps
    the gate gradients of all steps and computes the weight gradients in one matmul at the end.
    """

    @staticmethod
    def forward(ctx: Any, projected: Any, weight: Any, hidden: Any, cell: Any, batch_sizes: Any) -> Any:
        gates = torch.empty_like(projected)  # (steps, 4 H), after the nonlinearities
        hiddens, cells = (projected.new_empty(len(projected), weight.shape[1]) for _ in range(2))
        first_hidden, first_cell = hidden, cell
        start = 0
        for size in batch_sizes:
            rows = slice(start, start + size)
            step = torch.addmm(projected[rows], hidden[:size], weight.T, out=gates[rows])
            enter, forget, candidate, leave = step.chunk(4, dim=1)
            step[:, : 2 * weight.shape[1]].sigmoid_()
            candidate.tanh_()
            leave.sigmoid_()
            cell = torch.mul(forget, cell[:size], out=cells[rows]).addcmul_(enter, candidate)
            hidden = torch.tanh(cell, out=hiddens[rows]).mul_(leave)
            start += size
        ctx.save_for_backward(weight, first_hidden, first_cell, gates, hiddens, cells)
        ctx.batch_sizes = batch_sizes
        return hiddens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hiddens: Any) -> Any:
        weight, first_hidden, first_cell, gates, hiddens, cells = ctx.saved_tensors
        d_gates = torch.empty_like(gates)
        d_hidden, d_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        before = torch.empty_like(hiddens)  # the state before each step
        end = len(gates)
        for index in reversed(range(len(ctx.batch_sizes))):
            size = ctx.batch_sizes[index]
            start = end - size
            rows = slice(start, end)
            if index:
                last = slice(start - ctx.batch_sizes[index - 1], start - ctx.batch_sizes[index - 1] + size)
                before[rows], cell_before = hiddens[last], cells[last]
            else:
                before[rows], cell_before = first_hidden[:size], first_cell[:size]
            enter, forget, candidate, leave = gates[rows].chunk(4, dim=1)
            d_enter, d_forget, d_candidate, d_leave = d_gates[rows].chunk(4, dim=1)
            squashed = cells[rows].tanh()
            # Sequences that end before this step contribute no gradients yet.
            dh, dc = d_hidden[:size].add_(d_hiddens[rows]), d_cell[:size]
            torch.mul(dh, squashed, out=d_leave).mul_(leave).mul_(1 - leave)
            dc.addcmul_(dh.mul_(leave), 1 - squashed.square_())
            torch.mul(dc, candidate, out=d_enter).mul_(enter).mul_(1 - enter)
            torch.mul(dc, enter, out=d_candidate).mul_(1 - candidate.square())
            torch.mul(dc, cell_before, out=d_forget).mul_(forget).mul_(1 - forget)
            dc.mul_(forget)
            torch.mm(d_gates[rows], weight, out=dh)
            end = start
        return d_gates, d_gates.T @ before, d_hidden, d_cell, None


def run_lstm(
    lstm: nn.LSTM,
    inputs: torch.Tensor,
    lengths: torch.Tensor,
    constant: torch.Tensor | None = None,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Runs a one-layer LSTM on sequences that are padded on the right.

    Args:
        lstm (`nn.LSTM`):
            An LSTM with `batch_first=True`, of one direction or two.
        inputs (`torch.Tensor` of shape `(batch_size, length, input_size)`):
            The input of each step.
        lengths (`torch.Tensor` of shape `(batch_size,)`):
            The length of each sequence. An empty sequence is run for one step, and the caller must mask its states.
        constant (`torch.Tensor` of shape `(batch_size, constant_size)`, *optional*):
            A vector that is appended to the input of every step.
        state (`tuple` of two `torch.Tensor` of shape `(batch_size, hidden_size)`, *optional*):
            The initial state of an LSTM of one direction. Defaults to zeros.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: All states of shape `(batch_size, length, directions * hidden_size)`, with
        zeros after the end of a sequence, and the last state of each sequence, of shape
        `(directions, batch_size, hidden_size)`.
    """
    dtype = lstm.get_parameter("weight_ih_l0").dtype  # under autocast, the inputs may have another dtype
    lengths = lengths.clamp(min=1)
    inputs, constant = inputs.to(dtype), None if constant is None else constant.to(dtype)
    if state is None:
        state = (inputs.new_zeros(len(inputs), lstm.hidden_size),) * 2
    state = [part.to(dtype) for part in state]
    trains = inputs.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    run = train_lstm if trains else plain_lstm
    # Not every CPU has an LSTM kernel for the half precision of autocast.
    device = inputs.device.type
    with torch.autocast(device, enabled=torch.is_autocast_enabled(device) and device != "cpu"):
        return run(lstm, inputs, lengths, constant, state)


def directions(lstm: nn.LSTM) -> list[list[torch.Tensor]]:
    """Returns the weights of each direction, in the order of `torch.lstm`."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    suffixes = ("", "_reverse")[: 1 + lstm.bidirectional]
    return [[getattr(lstm, f"{name}_l0{suffix}") for name in names] for suffix in suffixes]


def plain_lstm(
    lstm: nn.LSTM, inputs: torch.Tensor, lengths: torch.Tensor, constant: Any, state: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs one direction after the other. The backward direction starts at the end of each sequence."""
    if constant is not None:
        inputs = torch.cat([inputs, constant.unsqueeze(1).expand(-1, inputs.shape[1], -1)], dim=-1)
    lengths = lengths.to(inputs.device).unsqueeze(1)
    rows, places = torch.arange(len(inputs), device=inputs.device), torch.arange(inputs.shape[1], device=inputs.device)
    mirrored = torch.where(places < lengths, lengths - 1 - places, places)  # (B, T); padding stays where it is
    states, finals = [], []
    for reverse, weights in enumerate(directions(lstm)):
        steps = inputs[rows.unsqueeze(1), mirrored] if reverse else inputs
        first = [part.unsqueeze(0) for part in state]
        hidden, _, _ = torch.lstm(steps, first, weights, True, 1, 0.0, False, False, True)
        finals.append(hidden[rows, lengths.squeeze(1) - 1])
        states.append(hidden[rows.unsqueeze(1), mirrored] if reverse else hidden)
    return torch.cat(states, dim=-1) * (places < lengths).unsqueeze(-1), torch.stack(finals)


# A training step of Att. CAP2ALL is 1.4x faster than with `plain_lstm`
# (benchmarks/grounded_encoder.py --batch_size 32, one thread).
def train_lstm(
    lstm: nn.LSTM, inputs: torch.Tensor, lengths: torch.Tensor, constant: Any, state: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`plain_lstm` with the faster gradients of [`SelfAttnGroundedEncoderRecurrence`], and no steps on padding."""
    lengths = lengths.cpu()
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    batch_sizes = packed.batch_sizes.tolist()
    by_length = packed.sorted_indices  # the sequences, longest first
    first = [part.index_select(0, by_length) for part in state]

    # The position of each row in its sequence, and the row at the mirrored position.
    steps = torch.arange(len(batch_sizes)).repeat_interleave(packed.batch_sizes)
    sequences = torch.cat([torch.arange(size) for size in batch_sizes])
    starts = packed.batch_sizes.cumsum(0) - packed.batch_sizes
    sorted_lengths = lengths.index_select(0, by_length)
    last_rows = starts[sorted_lengths - 1] + torch.arange(len(lengths))
    mirrored = starts[sorted_lengths[sequences] - 1 - steps] + sequences

    states, finals = [], []
    for reverse, (weight_ih, weight_hh, bias_ih, bias_hh) in enumerate(directions(lstm)):
        projected = nn.functional.linear(packed.data, weight_ih[:, : packed.data.shape[1]], bias_ih + bias_hh)
        if constant is not None:  # computed once per sequence, not at every step
            shared = nn.functional.linear(constant.index_select(0, by_length), weight_ih[:, packed.data.shape[1] :])
            projected = projected + shared.index_select(0, sequences)
        if reverse:
            projected = projected.index_select(0, mirrored)
        hidden = SelfAttnGroundedEncoderRecurrence.apply(projected, weight_hh, *first, batch_sizes)
        finals.append(hidden.index_select(0, last_rows).index_select(0, packed.unsorted_indices))
        states.append(hidden.index_select(0, mirrored) if reverse else hidden)
    outputs = packed._replace(data=torch.cat(states, dim=1))
    return pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0], torch.stack(finals)
