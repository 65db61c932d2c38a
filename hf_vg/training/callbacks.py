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
"""Trainer callbacks used by the recipes."""

from typing import Any

import torch
from transformers import TrainerCallback


class ClipGradientValues(TrainerCallback):
    r"""
    Clips each number of the gradient to [-max_value, max_value] before the optimizer step. `max_grad_norm` of
    `TrainingArguments` limits the norm of the whole gradient instead, and is applied first.

    Args:
        max_value (`float`):
            The limit.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.training import ClipGradientValues
    >>> layer = torch.nn.Linear(1, 1)
    >>> layer.weight.grad = torch.tensor([[9.0]])
    >>> ClipGradientValues(5.0).on_pre_optimizer_step(None, None, None, model=layer)
    >>> layer.weight.grad.item()
    5.0
    ```
    """

    def __init__(self, max_value: float):
        if max_value <= 0:
            raise ValueError(f"`max_value` must be greater than 0, got {max_value}.")
        self.max_value = max_value

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), self.max_value)


class HardestNegatives(TrainerCallback):
    r"""
    Trains a [`VseScnlmModel`] on all negatives of a batch first, and only on the hardest ones (`max_violation`)
    afterwards. At the start of training vectors are random, so the hardest negatives teach little.

    Args:
        start (`float`):
            The share of the training steps after which only the hardest negatives count.

    Example:

    ```python
    >>> from hf_vg.training import HardestNegatives
    >>> callback = HardestNegatives(0.3)  # VgTrainer(..., callbacks=[callback])
    >>> callback.start
    0.3
    ```
    """

    def __init__(self, start: float):
        if not 0 <= start <= 1:
            raise ValueError(f"`start` must be a share, from 0 to 1, got {start}.")
        self.start = start

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.config.max_violation = state.global_step >= self.start * state.max_steps


class ResumeExactly(TrainerCallback):
    """
    Makes a resumed run see the same batches as an uninterrupted run. transformers 5.20 to 5.22 with accelerate 1.14
    to 1.15 have two gaps. Tests in `tests/training/test_callbacks.py` fail when a gap is closed.

    - `set_epoch` does not reach a batch sampler that is sharded among processes and skips batches. The resumed run
      would repeat the order of the first epoch.
    - A run that ended in the middle of an epoch takes one extra step when it is resumed. This callback stops it before
      it evaluates and saves again, and [`VgTrainer.get_batch_samples`] gives it no batch.
    """

    was_finished = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.was_finished = state.global_step >= state.max_steps

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        if self.was_finished:
            control.should_training_stop = True
        sampler = train_dataloader.batch_sampler
        while sampler is not None:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(int(state.epoch or 0))
            sampler = getattr(sampler, "batch_sampler", getattr(sampler, "sampler", None))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.was_finished:
            control.should_log = control.should_evaluate = control.should_save = False
