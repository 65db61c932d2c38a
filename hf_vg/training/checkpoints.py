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
"""Checkpoints that a killed training can go on from, and the settings that they were trained with."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..data.files import atomic_write


COMPLETE_NAME = "complete.json"
SETTINGS_NAME = "training_config.yaml"
# What may differ between the run that made a checkpoint and the one that goes on from it: none of it is learnt from.
FREE_SETTINGS = (
    "output_dir", "logging_", "report_to", "run_name", "project", "trackio_", "hub_", "push_to_hub", "disable_tqdm",
    "save_", "dataloader_", "resume_from_checkpoint", "restart", "dry_run", "num_figures",
)  # fmt: skip


def mark_complete(checkpoint: str | Path) -> None:
    """Says of a checkpoint that all its files are written, and how long each is."""
    checkpoint = Path(checkpoint)
    files = {
        str(file.relative_to(checkpoint)): file.stat().st_size
        for file in checkpoint.rglob("*")
        if file.is_file() and file.suffix != ".md"  # a card may be written anew
    }
    files.pop(COMPLETE_NAME, None)
    with atomic_write(checkpoint / COMPLETE_NAME) as file:
        file.write_text(json.dumps(files, indent=2, sort_keys=True), encoding="utf-8")


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written to its end, and none of it was deleted since."""
    try:
        files = json.loads((Path(checkpoint) / COMPLETE_NAME).read_text(encoding="utf-8"))
        return all((Path(checkpoint) / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError):
        return False


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders of checkpoints, complete or not, in the order of their steps."""
    folders = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    steps = {folder: folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for folder in folders}
    return sorted((folder for folder in folders if steps[folder].isdigit()), key=lambda folder: int(steps[folder]))


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint that is complete: one that a kill left half-written, or half-deleted, is none."""
    return next((folder for folder in reversed(list_checkpoints(output_dir)) if is_complete(folder)), None)


def delete_checkpoint(checkpoint: str | Path) -> None:
    """Deletes a checkpoint. If a kill comes in between, what is left of it is not complete."""
    (Path(checkpoint) / COMPLETE_NAME).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def changed_settings(checkpoint: str | Path, settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The settings of a checkpoint that are others now, so that its training can not go on: what they were and are."""
    file = Path(checkpoint) / SETTINGS_NAME
    if not file.exists():  # of a training without a recipe
        return {}
    then = yaml.safe_load(file.read_text(encoding="utf-8"))
    now = yaml.safe_load(yaml.safe_dump(dict(settings)))
    return {
        name: tuple(repr(values[name]) if name in values else "the default" for values in (then, now))
        for name in sorted({*then, *now})
        if not name.startswith(FREE_SETTINGS) and then.get(name) != now.get(name)
    }


def save_settings(folder: str | Path, settings: Mapping[str, Any], recipe: str, num_processes: int) -> None:
    r"""
    Writes a YAML file that the recipe takes as its `--config`. Comments say by what code it was used.

    Args:
        folder (`str` or `Path`):
            Where `training_config.yaml` is written.
        settings (`Mapping`):
            The values of all arguments that are not transformers' defaults.
        recipe (`str`):
            The script's name.
        num_processes (`int`):
            Processes that train together.
    """
    packages = ("torch", "transformers", "datasets", "accelerate")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    comments = (
        f"Train the same again: accelerate launch recipes/{recipe} --config {Path(folder) / SETTINGS_NAME}",
        f"git revision: {git_revision()}",
        f"versions: python {platform.python_version()}, {versions}",
        f"processes: {num_processes}",
    )
    text = "".join(f"# {comment}\n" for comment in comments)
    text += yaml.safe_dump(dict(settings), sort_keys=False, width=119)
    with atomic_write(Path(folder) / SETTINGS_NAME) as file:
        file.write_text(text, encoding="utf-8")


def git_revision() -> str:
    """The commit of this package's code, with `-dirty` if it was changed since, where it is a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown, for the code is not in a git checkout"
