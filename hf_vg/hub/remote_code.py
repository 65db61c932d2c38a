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

import os
import re
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from ..data.files import atomic_write


PACKAGE = __name__.partition(".")[0]
ROOT = Path(__file__).resolve().parents[1]
# What `trust_remote_code=True` may load from a checkpoint, by config class: `{"AutoModel": class, ...}`.
_AUTO_CLASSES: dict[type, dict[str, type]] = {}
_PIPELINES = {
    "image-to-text": {
        "impl": "image_to_text.ImageToTextPipeline",
        "pt": ["AutoModelForImageTextToText"],
        "type": "multimodal",
    }
}
_PIPELINE_MODULE = f"{PACKAGE}.pipelines.image_to_text"
_RELATIVE_IMPORT = re.compile(r"^from (\.+[\w.]+) import ", flags=re.MULTILINE)


def register_code(model_class: type, auto_class: str):
    """Notes that `auto_class` loads `model_class`, so that checkpoints of its family say so and bring its code."""
    config_class = model_class.config_class
    _AUTO_CLASSES.setdefault(config_class, {"AutoConfig": config_class})[auto_class] = model_class
    config_class.custom_pipelines = _OnlyWithoutThisPackage()


def write_code(model: Any, folder: str | os.PathLike):
    r"""
    Writes the code of a model's family into a folder, and into the model's config where transformers finds it:
    `auto_map` for the Auto classes, `custom_pipelines` for `pipeline`.

    `register_for_auto_class`, which does this in transformers, copies files of one folder only. Here a model may
    import from another model's folder (a backbone), and the copies are rewritten to lie side by side.

    Args:
        model ([`PreTrainedModel`]):
            A model whose class was given to [`register_code`].
        folder (`str` or `os.PathLike`):
            Where to write.
    """
    auto_classes, config = _AUTO_CLASSES[type(model.config)], model.config
    config.auto_map = {name: _reference(cls) for name, cls in auto_classes.items()}
    modules = {cls.__module__ for cls in auto_classes.values()}
    vars(config).pop("custom_pipelines", None)
    if auto_classes.get("AutoModelForImageTextToText") is type(model):
        config.custom_pipelines = {task: dict(info) for task, info in _PIPELINES.items()}
        modules.add(_PIPELINE_MODULE)

    _write_files(modules, folder)


def write_processor_code(processor: Any, folder: str | os.PathLike):
    """Writes the code of a processor into a folder, and says in the processor's config where it is."""
    processor.auto_map = {"AutoProcessor": _reference(type(processor))}
    _write_files({type(processor).__module__}, folder)


def _write_files(modules: set[str], folder: str | os.PathLike):
    for name, code in _flat_code(modules).items():
        with atomic_write(Path(folder, name)) as file:
            file.write_text(code, encoding="utf-8")


def _flat_code(modules: set[str]) -> dict[str, str]:
    """The modules, and what they import from this package, as files of one folder."""
    files, pending, done = {}, sorted(modules), set()
    while pending:
        name = pending.pop()
        if name in done:
            continue
        done.add(name)
        package, _, stem = name.rpartition(".")

        def flatten(match: re.Match, package: str = package) -> str:
            imported = resolve_name(match[1], package)
            pending.append(imported)
            return f"from .{imported.rpartition('.')[2]} import "

        source = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
        files[f"{stem}.py"] = _RELATIVE_IMPORT.sub(flatten, source.read_text(encoding="utf-8"))
    # When a copy saves itself, transformers copies the files that it names. A model names the rest of its family.
    stems = sorted(name.rpartition(".")[2] for name in modules)
    for stem in stems:
        if stem.startswith("modeling_") and len(stems) > 1:
            named = "".join(f"    from .{other} import *  # noqa\n" for other in stems if other != stem)
            files[f"{stem}.py"] += (
                f"\n\nif False:  # never run: names the files to be saved along with this one\n{named}"
            )
    return files


class _OnlyWithoutThisPackage:
    """
    `config.custom_pipelines`, which is saved and loaded as ever, and read as empty: transformers would else ask for
    trust in a checkpoint's pipeline even though this package has registered its own.
    """

    def __get__(self, config, config_class=None) -> dict:
        return {}

    def __set__(self, config, value: dict):
        vars(config)["custom_pipelines"] = value


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
