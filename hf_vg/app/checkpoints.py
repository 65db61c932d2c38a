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
"""The checkpoints that the web demo offers, and who may name others."""

import ipaddress
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr

from ..loading import load_config


MODELS_AT_A_TIME = 4  # in memory; whoever chooses another waits for it to load
NO_MODEL = "Choose a checkpoint first."
NOT_OFFERED = "Choose one of the checkpoints that are offered here."


def toast(message: str) -> gr.Error:
    """What a visitor is told. It is no error of ours, and the terminal needs no traceback."""
    return gr.Error(message, print_exception=False)


def find_checkpoints(folders: Sequence[str] = ("outputs", "checkpoints")) -> list[str]:
    """The folders of checkpoints within `folders`, newest first."""
    configs = [config for folder in folders for config in Path(folder).glob("*/config.json")]
    return [str(config.parent) for config in sorted(configs, key=lambda config: -config.stat().st_mtime)]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Checkpoints:
    r"""
    What visitors may choose from.

    Args:
        names (`Sequence[str]`):
            Checkpoints to offer, in order. Those that cannot be read are left out, which the terminal is told.
        any_model (`bool`, *optional*, defaults to `False`):
            Whether visitors may name others: any folder of this machine, and any model of the Hub. For others than the
            owner of the machine that is too much: what is loaded, and what errors say, tells which files exist.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with a checkpoint.
    """

    def __init__(self, names: Sequence[str], any_model: bool = False, trust_remote_code: bool = False):
        self.any_model = any_model
        self.trust_remote_code = trust_remote_code
        self.names = []
        for name in dict.fromkeys(names):
            try:
                load_config(name, trust_remote_code=trust_remote_code)
            except (OSError, ValueError) as error:
                print(f"{name} is not offered: {_first_line(error)}", file=sys.stderr)
            else:
                self.names.append(name)
        # One at a time, so that two visitors do not load the same checkpoint twice.
        self._lock = Lock()
        self._load = lru_cache(maxsize=MODELS_AT_A_TIME)(lambda load, name: load(name, self.trust_remote_code))

    def of(self, task: str) -> list[str]:
        """Those that serve a task of [`load_config`]."""
        return [name for name in self.names if self._serves(name, task)]

    def _serves(self, name: str, task: str) -> bool:
        try:
            config = load_config(name, task, self.trust_remote_code)
        except (OSError, ValueError):
            return False
        # Of the models of transformers, only these tasks can be told by the config.
        return task in ("captions", "search") or config.model_type in _MODEL_TYPES[task]

    def load(self, load: Callable[[str, bool], Any], name: str | None) -> Any:
        """Loads a checkpoint that may be chosen, and keeps it; or tells the visitor what is wrong."""
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise toast(NO_MODEL)
        if not self.any_model and name not in self.names:
            raise toast(NOT_OFFERED)
        try:
            with self._lock:
                return self._load(load, name)
        except Exception as error:  # broken checkpoints are reported in many ways
            print(f"{name} cannot be loaded: {_first_line(error)}", file=sys.stderr)
            raise toast(_first_line(error) if self.any_model else "This checkpoint cannot be loaded.") from error


_MODEL_TYPES = {
    "sentences": ("self_attn_grounded_encoder",),
    "regions": ("grounded_visual_bert",),
}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
