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
"""What every recipe begins with, how it trains, and how it ends."""

import atexit
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from glob import glob
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments, set_seed
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..data.arguments import CaptionDataArguments
from ..errors import told_in_one_sentence
from ..loading import load_config
from .arguments import (
    DryRunArguments,
    GroundingReportArguments,
    ModelArguments,
    VgTrainingArguments,
    parse_arguments,
    read_config,
    without_debug,
)
from .checkpoints import (
    FolderLock,
    changed_settings,
    check_weight_names,
    delete_checkpoint,
    last_complete_checkpoint,
    list_checkpoints,
    why_not_to_resume,
)
from .trainer import VgTrainer, use_all_cores


PHOTO_BACKBONE = "microsoft/resnet-50"  # the default backbone for photos
# The size of a dry run. A recipe uses those that it has an argument for.
DRY_RUN = {
    "num_train_images": 32, "num_eval_images": 8, "num_figures": 1, "num_scored_images": 4, "vocabulary_rows": 32,
    "num_examples": 1, "num_samples": 10, "num_candidates": 5, "batch_size": 4, "num_folds": 2,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "max_steps": 1, "logging_steps": 1,
    "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "report_to": "none",
    "push_to_hub": "false",
}  # fmt: skip
# Arguments that name inputs, which must exist, and outputs.
INPUT_PATHS = ("data_dir", "eval_data_dir", "images_dir", "entities_dir", "paraphrases_dir", "glove", "detections")
CHECKPOINTS = ("checkpoint", "space", "model", "backbone", "text_model", "detector")
OUTPUT_FOLDERS = ("output_dir", "features")
OUTPUT_FILES = ("metrics_file", "output", "universal_cache")


def run_recipe(main: Callable[[], None]) -> None:
    r"""
    Runs a recipe. Errors that a user can cause are printed in one sentence, or as a traceback with `--debug`.

    Args:
        main (`Callable`):
            The recipe.

    Example:

    ```python
    >>> from hf_vg.training import run_recipe
    >>> run_recipe(lambda: print("training"))
    training
    ```
    """
    try:
        with told_in_one_sentence(debug=len(without_debug(sys.argv)) < len(sys.argv)):
            main()
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes a training from its last checkpoint.", file=sys.stderr)
        sys.exit(130)


def start_recipe(
    dataclass_types: Sequence[type],
    default_config: str | Path,
    needs: Mapping[str, tuple[str, Callable[[Path], str]]] | None = None,
    photo_config: str | Path | None = None,
    args: Sequence[str] | None = None,
    checkpoint_config: str | Path | None = None,
) -> tuple[Any, ...]:
    r"""
    Parses the arguments of a recipe with [`parse_arguments`], checks the paths and checkpoints that they name, locks
    `output_dir`, sets the seed and shares the cores among processes. With `--dry_run`, the data are few, the training
    is short, and all files are written to a temporary folder that is deleted at exit.

    Args:
        dataclass_types (`Sequence[type]`):
            The recipe's own dataclass, and [`VgTrainingArguments`] if it trains.
        default_config (`str` or `Path`):
            The config that is used without `--config` when the data are scenes.
        needs (`Mapping`, *optional*):
            For each argument that names a required checkpoint: how to get one, and a function that makes a tiny one
            for a dry run.
        photo_config (`str` or `Path`, *optional*):
            The config that is used without `--config` when flags name other data than scenes. By default the arguments
            keep their own defaults.
        args (`Sequence[str]`, *optional*, defaults to the command line):
            The arguments.
        checkpoint_config (`str` or `Path`, *optional*):
            The config that is used without `--config` when `--checkpoint` names a model to fine-tune.

    Returns:
        `tuple`: An instance of each dataclass.

    Example:

    ```python
    >>> from hf_vg.training import CaptionerArguments, VgTrainingArguments, start_recipe
    >>> args, training_args = start_recipe(  # doctest: +SKIP
    ...     (CaptionerArguments, VgTrainingArguments), "recipes/configs/show_attend_tell_scenes.yaml"
    ... )
    ```
    """
    flags = list(sys.argv[1:] if args is None else args)
    if checkpoint_config is not None and _value_of(flags, "checkpoint") not in (None, "null"):
        default_config = photo_config = checkpoint_config
    takes_photos = any(issubclass(cls, CaptionDataArguments) for cls in dataclass_types)
    if takes_photos and _value_of(flags, "config") is None and _value_of(flags, "dataset") != "scenes":
        data = _value_of(flags, "data_dir") or _value_of(flags, "dataset")
        if data is not None:
            default_config = photo_config
            flags = _photo_flags(flags, data, photo_config)
    instances = parse_arguments(dataclass_types, default_config, flags)
    known = {field.name for cls in dataclass_types for field in fields(cls)}
    dry_run = any(instance.dry_run for instance in instances if isinstance(instance, DryRunArguments))
    if dry_run:
        sizes = {name: value for name, value in DRY_RUN.items() if name in known and _value_of(flags, name) != "0"}
        tiny = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
        instances = parse_arguments(dataclass_types, default_config, [*flags, *tiny])
        folder = _write_elsewhere(instances)
    for name, (origin, make_tiny) in (needs or {}).items():
        value = getattr(instances[0], name)
        if _value_of(flags, name) is None and (value is None or not Path(value).exists()):
            if not dry_run:
                raise FileNotFoundError(
                    f"--{name} is needed: {origin}."
                    if value is None
                    else f"there is no checkpoint in {value}: {origin}."
                )
            setattr(instances[0], name, make_tiny(folder / name))
    for instance in instances:
        _choose_backbone(instance)
        check_paths(instance)
    training_args = next((instance for instance in instances if isinstance(instance, TrainingArguments)), None)
    if training_args is not None:
        if not dry_run and PartialState().is_main_process:
            lock = FolderLock(training_args.output_dir)
            lock.acquire()
            atexit.register(lock.release)
        set_seed(training_args.seed)
    use_all_cores()
    return instances


def _value_of(flags: Sequence[str], name: str) -> str | None:
    """The value of a flag on the command line, or `None`."""
    for flag, following in itertools.pairwise([*flags, ""]):
        if flag == f"--{name}":
            return following
        if flag.startswith(f"--{name}="):
            return flag.partition("=")[2]
    return None


def _photo_flags(flags: list[str], data: str, photo_config: str | Path | None) -> list[str]:
    """Removes settings from the photo config that belong to one dataset."""
    implied = {}
    if photo_config is not None:
        settings = read_config(photo_config)
        if "dataset" in settings:
            implied["dataset"] = "null"  # the format is detected in the folder
        if "output_dir" in settings:
            recipe = Path(sys.argv[0]).stem.removeprefix("train_")
            implied["output_dir"] = f"outputs/{recipe}_{Path(data).stem}"
    for name, value in implied.items():
        if _value_of(flags, name) is None:
            flags = [*flags, f"--{name}", value]
    return flags


def _choose_backbone(args: Any) -> None:
    """Chooses a pretrained backbone for a new model of photos, unless the arguments describe one."""
    if not (isinstance(args, ModelArguments) and isinstance(args, CaptionDataArguments)) or args.dataset == "scenes":
        return
    starts_anew = not any(getattr(args, field.name) for field in fields(args) if field.name in ("checkpoint", "space"))
    if not starts_anew or args.backbone is not None or "backbone_config" in args.model:
        return
    # Models of transformers, such as BLIP, have an image encoder of their own.
    if "backbone_config" in {field.name for field in fields(CONFIG_MAPPING[args.model_type])}:
        args.backbone = PHOTO_BACKBONE
        PartialState().print(
            f"The backbone is the pretrained {PHOTO_BACKBONE} of the Hub. To use another one: --backbone NAME or "
            "--backbone FOLDER."
        )


def check_paths(args: Any) -> None:
    r"""
    Checks, before anything is loaded, that files and folders exist, that checkpoints have the right type, and that
    outputs can be written.

    Args:
        args:
            A dataclass of arguments.
    """
    values = {field.name: getattr(args, field.name) for field in fields(args) if field.init}
    for name in INPUT_PATHS:
        path = values.get(name)
        if path is not None and not (Path(path).exists() or glob(str(path))):
            raise FileNotFoundError(f"--{name} {path}: there is no such file or folder.")
    writes_captions = isinstance(args, (CaptionDataArguments, GroundingReportArguments))
    tasks = {"checkpoint": "captions" if writes_captions else "regions", "space": "search", "model": "sentences"}
    for name in CHECKPOINTS:
        if isinstance(values.get(name), str):  # `model` may also be the fields of a config
            try:
                load_config(values[name], tasks.get(name), values["trust_remote_code"])
            except (OSError, ValueError) as error:
                raise type(error)(f"--{name}: {error}") from None
    for name in (*OUTPUT_FOLDERS, *OUTPUT_FILES):
        path = values.get(name)
        if path is None:
            continue
        folder = Path(path) if name in OUTPUT_FOLDERS else Path(path).absolute().parent
        if name in OUTPUT_FILES and Path(path).is_dir():
            raise IsADirectoryError(f"--{name} {path} is a folder. Give a file.")
        above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        if not above.is_dir():
            raise NotADirectoryError(f"--{name} {path}: {above} is not a folder.")
        if not os.access(above, os.W_OK):
            raise PermissionError(f"--{name} {path}: you have no permission to write to {above}.")


def _write_elsewhere(instances: Sequence[Any]) -> Path:
    """Makes a dry run write to a temporary folder that all processes share, and returns the folder."""
    state = PartialState()
    folder = [tempfile.mkdtemp(prefix="hf_vg_dry_run_") if state.is_main_process else ""]
    broadcast_object_list(folder)
    spared = []
    for instance in instances:
        outputs = {field.name for field in fields(instance)} & {*OUTPUT_FOLDERS, *OUTPUT_FILES}
        for name in outputs:
            value = getattr(instance, name)
            spared += [value] if value is not None else []
            if value is not None or name == "output_dir":
                setattr(instance, name, str(Path(folder[0], name)))
    if state.is_main_process:
        atexit.register(_end_dry_run, folder[0])
    state.print(
        "Dry run: everything once, at a tiny size, in a temporary folder."
        + (f" Nothing is written to {' or '.join(spared)}." if spared else "")
    )
    return Path(folder[0])


def _end_dry_run(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    print("The dry run is over, and its temporary folder is deleted.")


def run_training(trainer: VgTrainer) -> None:
    r"""
    Trains a model and saves it to `output_dir`. If the training was interrupted, it resumes from its newest complete
    checkpoint. The result is bit-identical to that of an uninterrupted training.

    Args:
        trainer ([`VgTrainer`]):
            The trainer, with arguments from [`start_recipe`].

    Example:

    ```python
    >>> from hf_vg.training import run_training
    >>> run_training(trainer)  # doctest: +SKIP
    ```
    """
    args = trainer.args
    checkpoint = args.resume_from_checkpoint
    if checkpoint is None:
        checkpoint = _checkpoint_to_resume(trainer)
    if checkpoint is not None:
        check_weight_names(checkpoint, trainer.model)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    if args.dry_run and trainer.is_world_process_zero():
        logged = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
        evaluation = ", ".join(f"{k} {v:.3g}" for k, v in logged.items() if k.startswith("eval_") and "_per_" not in k)
        files = ", ".join(sorted(path.name for path in Path(args.output_dir).iterdir() if path.is_file()))
        print(
            f"Dry run: one step of {args.train_batch_size * args.gradient_accumulation_steps * args.world_size} rows "
            f"(loss {logged['loss']:.3g}), an evaluation ({evaluation}), a checkpoint and a model saved ({files})."
        )


def _checkpoint_to_resume(trainer: VgTrainer) -> str | None:
    args, say = trainer.args, trainer.accelerator.print
    if args.restart and trainer.is_world_process_zero():
        for checkpoint in list_checkpoints(args.output_dir):
            delete_checkpoint(checkpoint)
    trainer.accelerator.wait_for_everyone()
    checkpoint = last_complete_checkpoint(args.output_dir)
    if checkpoint is None:
        return None
    reason = why_not_to_resume(checkpoint)
    if reason is not None:
        raise ValueError(
            f"{checkpoint} {reason} Give another --output_dir; or --restart, which deletes the checkpoints in this "
            "one; or --resume_from_checkpoint with its name, to resume from it all the same."
        )
    changed = changed_settings(checkpoint, args.recipe_settings)
    if changed:
        differences = "".join(f"\n  {name}: {then} then, {now} now" for name, (then, now) in changed.items())
        raise ValueError(
            f"{checkpoint} was trained with other settings:{differences}\nTo resume, give the same settings again. "
            "Or give another --output_dir; or --restart, which deletes the checkpoints in this one; or "
            "--resume_from_checkpoint with its name, to resume from it with the new settings."
        )
    say(f"Resuming from {checkpoint}, the newest complete checkpoint. (--restart trains from the beginning.)")
    return str(checkpoint)


def print_next_steps(training_args: VgTrainingArguments, text: str = "") -> None:
    r"""
    Prints where the checkpoint is and what to do with it. After a dry run, which keeps no checkpoint, it prints
    nothing.

    Args:
        training_args ([`VgTrainingArguments`]):
            The arguments of the training.
        text (`str`, *optional*, defaults to `""`):
            What to do with the checkpoint.

    Example:

    ```python
    >>> from hf_vg.training import VgTrainingArguments, print_next_steps
    >>> print_next_steps(VgTrainingArguments("outputs"), "Caption an image: hf-vg caption image.png --model outputs")
    <BLANKLINE>
    The checkpoint is in outputs. Caption an image: hf-vg caption image.png --model outputs
    ```
    """
    if not training_args.dry_run:
        PartialState().print(f"\nThe checkpoint is in {training_args.output_dir}. {text}".rstrip())
