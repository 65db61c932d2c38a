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
"""A sampler of batches with captions of equal or similar length."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler


class LengthBatchSampler(Sampler[list[int]]):
    r"""
    Draws batches of rows with equal or similar length. It needs only the lengths and reads no row. Show, Attend and
    Tell (section 4.3) draws a random length and then a batch of that length: that is `max_difference=0`.

    The batches depend only on the lengths, the seed and the epoch, so an interrupted epoch resumes exactly. With
    several processes, each takes every `num_processes`-th batch, as accelerate distributes them. Together they form
    the batch that a single process with `num_processes` times the batch size would draw: in every step, all processes
    have the same length and the same number of rows. To make the numbers equal, up to `num_processes - 1` rows of a
    batch are drawn twice.

    The `train_sampling_strategy="group_by_length"` of transformers works differently: it sorts random chunks of the
    data, which mixes lengths, and uses the global random state, which resumed runs and other processes do not share.

    Args:
        lengths (`Sequence[int]`):
            The length of each row.
        batch_size (`int`):
            Number of rows per batch and process. The last batch of a length is smaller.
        max_difference (`int`, *optional*, defaults to 0):
            Largest difference of lengths within a batch. 0 puts only equal lengths in a batch.
        num_processes (`int`, *optional*, defaults to 1):
            Number of processes that share the batches.
        seed (`int`, *optional*, defaults to 0):
            Seed of the order, used together with the epoch.

    Example:

    ```python
    >>> from hf_vg.data import LengthBatchSampler

    >>> lengths = [5, 9, 5, 9, 5]
    >>> batches = LengthBatchSampler(lengths, batch_size=2)
    >>> sorted([lengths[row] for row in batch] for batch in batches)
    [[5], [5, 5], [9, 9]]
    ```
    """

    # accelerate takes `batch_size = None` to mean that the batches differ in size.
    batch_size = None
    drop_last = False

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        max_difference: int = 0,
        num_processes: int = 1,
        seed: int = 0,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if self.lengths.ndim != 1 or not len(self.lengths):
            raise ValueError(f"`lengths` must be one number per row, got an array of shape {self.lengths.shape}.")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("max_difference", max_difference, 0),
            ("num_processes", num_processes, 1),
        ):
            if value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}.")
        self.num_processes = num_processes
        self.seed = seed
        self.epoch = 0
        # The batch sizes do not depend on the order of rows with the same length, so they are computed once.
        self._bounds = [0]
        in_order = np.sort(self.lengths)
        while self._bounds[-1] < len(in_order):
            start = self._bounds[-1]
            end = np.searchsorted(in_order, in_order[start] + max_difference, side="right")
            self._bounds.append(min(int(end), start + batch_size * num_processes))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return (len(self._bounds) - 1) * self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        shuffled = generator.permutation(len(self.lengths))
        order = shuffled[np.argsort(self.lengths[shuffled], kind="stable")]
        for index in generator.permutation(len(self._bounds) - 1):
            batch = order[self._bounds[index] : self._bounds[index + 1]]
            batch = np.resize(batch, -(-len(batch) // self.num_processes) * self.num_processes)
            for process in range(self.num_processes):
                yield batch[process :: self.num_processes].tolist()

    def padding_waste(self) -> float:
        """Returns the share of padding if each batch is padded to its longest row."""
        return _padding_waste(self.lengths, self)

    def random_padding_waste(self) -> float:
        """Returns the share of padding if the rows were put into the same number of batches at random."""
        shuffled = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.lengths))
        return _padding_waste(self.lengths, np.array_split(shuffled, len(self)))


def _padding_waste(lengths: np.ndarray, batches: Iterable[Any]) -> float:
    used = padded = 0
    for batch in batches:
        used += lengths[batch].sum()
        padded += lengths[batch].max() * len(batch)
    return float(1 - used / padded) if padded else 0.0
