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
"""Gathers rows from all processes, for losses that take their negatives from the global batch."""

from typing import Any

import torch


class GatherRows(torch.autograd.Function):
    """
    A differentiable all-gather. Each process computes the loss of the global batch. The backward pass sums the
    gradients over processes, and DDP then averages them: the result is the gradient of that loss.

    torch's own differentiable `all_gather` is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        torch.distributed.all_reduce(gradient)
        return gradient.chunk(torch.distributed.get_world_size())[torch.distributed.get_rank()]


def gather_rows(rows: torch.Tensor) -> torch.Tensor:
    r"""
    Concatenates the rows of all processes, in the order of their ranks. Gradients flow back to every process.

    Args:
        rows (`torch.Tensor` of shape `(rows, ...)`):
            The rows of this process. All processes must have the same number.

    Returns:
        `torch.Tensor` of shape `(processes * rows, ...)`: The rows of all processes, or `rows` itself if training is
        not distributed.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.models.distributed import gather_rows

    >>> gather_rows(torch.ones(4, 8)).shape  # one process
    torch.Size([4, 8])
    ```
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rows
    return GatherRows.apply(rows)


__all__ = ["gather_rows"]
