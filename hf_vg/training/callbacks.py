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
"""What recipes have a [`Trainer`] do besides."""

from typing import Any

import torch
from transformers import TrainerCallback


class ClipGradientValues(TrainerCallback):
    r"""
    Limits each number of the gradient to [-max_value, max_value] before the optimizer's step. `max_grad_norm` of
    `TrainingArguments` limits the length of the whole gradient instead, and is applied before.

    Args:
        max_value (`float`):
            The limit.
    """

    def __init__(self, max_value: float):
        if max_value <= 0:
            raise ValueError(f"`max_value` must be greater than 0, got {max_value}.")
        self.max_value = max_value

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), self.max_value)


class HardestNegatives(TrainerCallback):
    r"""
    Trains a [`VseScnlmModel`] on all negatives of a batch first, and on the hardest ones (`max_violation`) after. From
    the start the hardest ones teach little: of vectors that are still random they are random too.

    Args:
        start (`float`):
            The share of the training that comes before.
    """

    def __init__(self, start: float):
        if not 0 <= start <= 1:
            raise ValueError(f"`start` must be a share, from 0 to 1, got {start}.")
        self.start = start

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.config.max_violation = state.global_step >= self.start * state.max_steps
