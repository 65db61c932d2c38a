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
"""Checkpoints that a killed training resumes from, and the settings they were trained with."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import yaml
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_NAME

import hf_vg

from ..data.files import atomic_write


COMPLETE_NAME = "complete.json"
LOCK_NAME = "_training.lock"  # an upload leaves out what begins with an underscore
SAMPLE_SIZE, NUM_SAMPLES = 4096, 64  # bytes, and places in a file
SETTINGS_NAME = "training_config.yaml"
# Settings that may change when a run is resumed: they do not affect what is learned.
FREE_SETTINGS = (
    "output_dir", "logging_", "report_to", "run_name", "project", "trackio_", "hub_", "push_to_hub", "disable_tqdm",
    "save_", "dataloader_", "resume_from_checkpoint", "restart", "dry_run", "num_figures", "trust_remote_code",
)  # fmt: skip


def mark_complete(checkpoint: str | Path) -> None:
    """Marks a checkpoint as complete, with its files and the version that wrote them."""
    checkpoint = Path(checkpoint)
    names = sorted(
        file.relative_to(checkpoint).as_posix()
        for file in checkpoint.rglob("*")
        if file.is_file() and file.suffix != ".md"  # a card may be written anew
    )
    files = {name: file_digest(checkpoint / name) for name in names if name != COMPLETE_NAME}
    mark = {"hf_vg": hf_vg.__version__, "files": files}
    # It is not flushed to the disk, which would take longer than the rest: without its mark, after a power cut, a
    # checkpoint is one that is not complete.
    with atomic_write(checkpoint / COMPLETE_NAME, flush=False) as file:
        file.write_text(json.dumps(mark, indent=2), encoding="utf-8")


def file_digest(file: Path) -> str:
    """The size of a file, and a digest of its bytes. Large files are sampled."""
    size = file.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    with open(file, "rb") as content:
        if size <= 2 * NUM_SAMPLES * SAMPLE_SIZE:
            digest.update(content.read())
        else:
            for number in range(NUM_SAMPLES):  # the first bytes, the last, and some at equal distances in between
                content.seek(number * (size - SAMPLE_SIZE) // (NUM_SAMPLES - 1))
                digest.update(content.read(SAMPLE_SIZE))
    return f"{size} {digest.hexdigest()}"


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint was written completely, and all of its files still exist."""
    mark = _read_mark(checkpoint)
    return mark is not None and all((Path(checkpoint) / name).is_file() for name in mark["files"])


def why_not_to_resume(checkpoint: str | Path) -> str | None:
    """Why a checkpoint should not be resumed without asking, or `None`."""
    mark = _read_mark(checkpoint)
    if mark is None:
        return "was not written to its end."
    if mark["hf_vg"] != hf_vg.__version__:
        return (
            f"was written by hf_vg {mark['hf_vg']}, and this is {hf_vg.__version__}. Its weights may have other names "
            "by now."
        )
    changed = [name for name, digest in mark["files"].items() if file_digest(Path(checkpoint) / name) != digest]
    if changed:
        return f"was changed after it was written: {', '.join(changed)}."
    return None


def check_weight_names(checkpoint: str | Path, model: PreTrainedModel) -> None:
    """Raises an error if a checkpoint has other weights than the model. [`Trainer`] would skip unknown ones."""
    file = Path(checkpoint) / SAFE_WEIGHTS_NAME
    if not file.is_file():
        return
    with safe_open(file, framework="pt") as weights:
        saved = {*weights.keys()}
    names = {*model.state_dict()}
    missing = sorted(names - saved - {*model.all_tied_weights_keys})
    unknown = sorted(saved - names)
    if missing or unknown:
        parts = [f"{what}: {', '.join(which[:3])}" for what, which in (("lacks", missing), ("has", unknown)) if which]
        raise ValueError(
            f"{checkpoint} cannot be resumed: its weights are not those of {type(model).__name__}. It "
            f"{'; it '.join(parts)}. As a finished model it can still be loaded with --checkpoint, where the recipe "
            "has that argument."
        )


def _read_mark(checkpoint: str | Path) -> dict[str, Any] | None:
    try:
        mark = json.loads((Path(checkpoint) / COMPLETE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(mark, dict):
        return None
    if not isinstance(mark.get("files"), dict):  # version 0.1 wrote names and sizes alone
        return {"hf_vg": "0.1", "files": mark}
    return mark


class FolderLock:
    r"""
    Keeps two runs from writing into one folder. The system holds the lock for the process that took it and not for
    its children, and drops it when the process ends, however it ends.

    Args:
        folder (`str` or `Path`):
            The folder, which is made if it is not there.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / LOCK_NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock, or raises a `BlockingIOError` that names its owner."""
        while True:
            file = open(self.path, "a+", encoding="utf-8")
            try:
                _lock(file)
            except OSError as error:
                file.seek(0)
                owner = file.read().strip() or "another process"
                file.close()
                raise BlockingIOError(
                    f"{self.path.parent} is in use: {owner} is training there. Wait until it ends, or give another "
                    "--output_dir."
                ) from error
            # The run before may have deleted the file between `open` and `_lock`.
            if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                break
            file.close()
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        self._file, self._owner = file, os.getpid()

    def release(self) -> None:
        """Releases the lock. Does nothing in a fork of the process that took it."""
        if self._file is None or self._owner != os.getpid():
            return
        with suppress(OSError):  # Windows deletes no open file; the next run takes it as it is
            self.path.unlink()
        self._file.close()
        self._file = None


def _lock(file: Any) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(2**20)  # beyond the text, which others may read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        file.seek(0)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not `flock`, which workers of a killed run would keep


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders of checkpoints, complete or not, in the order of their steps."""
    folders = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    steps = {folder: folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for folder in folders}
    return sorted((folder for folder in folders if steps[folder].isdigit()), key=lambda folder: int(steps[folder]))


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest complete checkpoint. Checkpoints that were partly written or deleted are skipped."""
    return next((folder for folder in reversed(list_checkpoints(output_dir)) if is_complete(folder)), None)


def delete_checkpoint(checkpoint: str | Path) -> None:
    """Deletes a checkpoint. If it is interrupted, the rest does not count as complete."""
    (Path(checkpoint) / COMPLETE_NAME).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def changed_settings(checkpoint: str | Path, settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The settings that differ from those of a checkpoint, with old and new values."""
    file = Path(checkpoint) / SETTINGS_NAME
    if not file.exists():  # of a training without a recipe
        return {}
    try:
        then = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {str(error).partition(chr(10))[0]:.200}") from error
    if not isinstance(then, dict):
        raise ValueError(f"{file} is damaged: it must be a mapping of names to values.")
    now = yaml.safe_load(yaml.safe_dump(dict(settings)))

    def shown(values: Mapping[str, Any], name: str) -> str:
        return repr(values[name]) if name in values else "the default"

    return {
        name: (shown(then, name), shown(now, name))
        for name in sorted({*then, *now})
        if not name.startswith(FREE_SETTINGS) and then.get(name) != now.get(name)
    }


def save_settings(
    folder: str | Path,
    settings: Mapping[str, Any],
    recipe: str,
    num_processes: int,
    final_folder: str | Path | None = None,
) -> None:
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
        final_folder (`str` or `Path`, *optional*):
            Where the file will be moved, which its first comment names. Defaults to `folder`.
    """
    packages = ("torch", "transformers", "datasets", "accelerate")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    file = Path(final_folder or folder) / SETTINGS_NAME
    comments = (
        f"Train the same again: accelerate launch --quiet recipes/{recipe} --config {file}",
        f"git revision: {git_revision()}",
        f"versions: python {platform.python_version()}, {versions}",
        f"processes: {num_processes}",
    )
    text = "".join(f"# {comment}\n" for comment in comments)
    text += yaml.safe_dump(dict(settings), sort_keys=False, width=119)
    with atomic_write(Path(folder) / SETTINGS_NAME) as file:
        file.write_text(text, encoding="utf-8")


def git_revision() -> str:
    """The git commit of this package, with `-dirty` if files changed, if it is a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown, for the code is not in a git checkout"
