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
"""Named parts of a loss in the logs of any Trainer."""

from collections import defaultdict
from typing import Any

import torch


class LossPartsMixin:
    r"""
    For a [`Trainer`]: logs the parts of a loss under their names, beside the loss itself. Each is the mean over the
    batches and processes since the last log.

    ```python
    class MyTrainer(LossPartsMixin, Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            self.log_part("loss_caption", outputs.loss_caption)
            return loss
    ```
    """

    accelerator: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)

    def log_part(self, name: str, value: torch.Tensor) -> None:
        """Remembers a part of the loss of one batch. All processes must log the same names."""
        self._parts[name].append(value.detach())

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._parts:
            for name, parts in self._parts.items():
                logs[name] = round(self.accelerator.gather(torch.stack(parts).mean()).mean().item(), 4)
            self._parts.clear()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


__all__ = ["LossPartsMixin"]
