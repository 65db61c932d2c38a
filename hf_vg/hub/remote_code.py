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
"""A model's own code beside its weights, so that a checkpoint also loads where this package is not installed."""

import functools
import importlib
import importlib.util
import os
import re
from pathlib import Path


# What `trust_remote_code=True` may load from a checkpoint, by config class: `{"AutoModel": "file.Class", ...}`.
_AUTO_MAPS: dict[type, dict[str, str]] = {}
_RELATIVE_IMPORT = re.compile(r"^from (\.+[\w.]+) import ", flags=re.MULTILINE)


def publish_with_code(model_class: type, auto_class: str):
    r"""
    Makes `model_class.save_pretrained` write the model's code too, and an `auto_map` that points to it.

    `register_for_auto_class`, which does this in transformers, copies files of one folder only. Here a model may
    import from another model's folder (a backbone), and the copies are rewritten to lie side by side.

    Args:
        model_class (`type`):
            A [`PreTrainedModel`] of this package.
        auto_class (`str`):
            The Auto class that is to load it.
    """
    config_class = model_class.config_class
    auto_map = _AUTO_MAPS.setdefault(config_class, {"AutoConfig": _reference(config_class)})
    auto_map[auto_class] = _reference(model_class)
    save_pretrained = model_class.save_pretrained

    @functools.wraps(save_pretrained)
    def save_pretrained_with_code(self, save_directory, *args, **kwargs):
        # A subclass lives in a file of its user's, about which nothing is known here.
        if type(self) is model_class and not os.path.isfile(save_directory):
            self.config.auto_map = dict(auto_map)
            if kwargs.get("is_main_process", True):
                write_code(model_class.__module__, save_directory)
        return save_pretrained(self, save_directory, *args, **kwargs)

    model_class.save_pretrained = save_pretrained_with_code


def write_code(module_name: str, folder: str | os.PathLike):
    """Copies a module, and the modules it imports from this package, into one flat folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    pending, done = [module_name], set()
    while pending:
        name = pending.pop()
        if name in done:
            continue
        done.add(name)
        package = name.rpartition(".")[0]
        source = Path(importlib.import_module(name).__file__)

        def flatten(match: re.Match, package: str = package) -> str:
            imported = importlib.util.resolve_name(match[1], package)
            pending.append(imported)
            return f"from .{imported.rpartition('.')[2]} import "

        code = _RELATIVE_IMPORT.sub(flatten, source.read_text(encoding="utf-8"))
        (Path(folder) / source.name).write_text(code, encoding="utf-8")


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
