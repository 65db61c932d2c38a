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
"""Processes and CPU cores that share the work on data."""

import os
import sys

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


def process_state() -> PartialState:
    """
    Returns accelerate's state of this process. Without a GPU, accelerate must be told that it runs on the CPU:
    otherwise it does not see the other processes.
    """
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())


def available_cores() -> int:
    """Returns the number of CPU cores for this process. Processes of the same launch share the cores evenly."""
    # Only Linux reports how many of the cores a process may use.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def emulates_bfloat16(device: torch.device) -> bool:
    """Returns whether `device` is a CPU without bfloat16 instructions, on which bfloat16 is several times slower."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)  # only in newer versions of torch
    if device.type != "cpu" or get_capabilities is None:
        return False
    capabilities = get_capabilities()
    return not any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
