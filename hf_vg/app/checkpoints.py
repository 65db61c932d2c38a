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
"""The checkpoints of the web app, and the rules for loading others."""

import ipaddress
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr

from ..loading import load_config


MODELS_AT_A_TIME = 4  # maximum number of models in memory
NO_MODEL = "Choose a checkpoint first."
NOT_OFFERED = "Choose one of the checkpoints in the list."


def toast(message: str) -> gr.Error:
    """Makes an error message for the visitor. It prints no traceback in the terminal."""
    return gr.Error(message, print_exception=False)


def find_checkpoints(folders: Sequence[str] = ("outputs", "checkpoints")) -> list[str]:
    """
    Finds checkpoints: subfolders with a `config.json`.

    Args:
        folders (`Sequence[str]`, *optional*, defaults to `("outputs", "checkpoints")`):
            The folders to search.

    Returns:
        `list[str]`: The folders of the checkpoints, newest first.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.app import find_checkpoints

    >>> folder = tempfile.TemporaryDirectory()
    >>> Path(folder.name, "my_model").mkdir()
    >>> _ = Path(folder.name, "my_model", "config.json").write_text("{}")
    >>> [Path(name).name for name in find_checkpoints([folder.name])]
    ['my_model']
    ```
    """
    configs = [config for folder in folders for config in Path(folder).glob("*/config.json")]
    return [str(config.parent) for config in sorted(configs, key=lambda config: -config.stat().st_mtime)]


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Checkpoints:
    r"""
    The checkpoints that visitors can choose.

    Args:
        names (`Sequence[str]`):
            The checkpoints, in order. Checkpoints that cannot be read are left out, with a message in the terminal.
        any_model (`bool`, *optional*, defaults to `False`):
            Whether visitors may enter other checkpoints: any folder of this machine and any model on the Hub. Allow
            this only on your own machine, because error messages reveal which files exist.
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
                print(f"{name} is left out: {_first_line(error)}", file=sys.stderr)
            else:
                self.names.append(name)
        # Loads are sequential, so that two visitors do not load the same checkpoint twice.
        self._lock = Lock()
        self._load = lru_cache(maxsize=MODELS_AT_A_TIME)(lambda load, name: load(name, self.trust_remote_code))

    def of(self, task: str) -> list[str]:
        """Returns the checkpoints for a task of [`load_config`]."""
        return [name for name in self.names if self._serves(name, task)]

    def _serves(self, name: str, task: str) -> bool:
        try:
            config = load_config(name, task, self.trust_remote_code)
        except (OSError, ValueError):
            return False
        # `load_config` checks only captions and search for models of transformers.
        return task in ("captions", "search") or config.model_type in _MODEL_TYPES[task]

    def load(self, load: Callable[[str, bool], Any], name: str | None) -> Any:
        """
        Loads a checkpoint and keeps it in memory. If it cannot be loaded, the visitor sees an error message.

        Args:
            load (`Callable[[str, bool], Any]`):
                Loads a checkpoint, given its name and `trust_remote_code`.
            name (`str`, *optional*):
                The checkpoint that the visitor chose.

        Returns:
            `Any`: The result of `load`.
        """
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise toast(NO_MODEL)
        if not self.any_model and name not in self.names:
            raise toast(NOT_OFFERED)
        try:
            with self._lock:
                return self._load(load, name)
        except Exception as error:  # broken checkpoints raise errors of many types
            print(f"{name} cannot be loaded: {_first_line(error)}", file=sys.stderr)
            raise toast(_first_line(error) if self.any_model else "This checkpoint cannot be loaded.") from error


_MODEL_TYPES = {
    "sentences": ("self_attn_grounded_encoder",),
    "regions": ("grounded_visual_bert",),
}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
