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
"""The Trainer of the recipes."""

import os
from collections import defaultdict

import torch
from transformers import Trainer


def use_all_cores():
    """
    Shares the cores of a machine without an accelerator out among its processes. `accelerate launch` gives each
    process one thread unless it is told otherwise, which leaves the other cores idle.
    """
    if os.environ.get("OMP_NUM_THREADS") == "1" and not torch.accelerator.is_available():
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))


class VgTrainer(Trainer):
    """A [`Trainer`] that also logs the named parts of a loss (`loss_caption`, `loss_attention`, ...)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            for name, part in outputs.items():
                if name.startswith("loss_") and part is not None:
                    self._parts[name].append(part.detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args, **kwargs):
        if "loss" in logs and self._parts:
            for name, parts in self._parts.items():
                logs[name] = round(self.accelerator.gather(torch.stack(parts).mean()).mean().item(), 4)
            self._parts.clear()
        super().log(logs, *args, **kwargs)
