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
"""What every training recipe begins with, and how it trains."""

import atexit
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import set_seed

from .arguments import parse_arguments
from .checkpoints import changed_settings, delete_checkpoint, last_complete_checkpoint, list_checkpoints
from .trainer import VgTrainer, use_all_cores


# The size of a dry run. What a recipe has no argument for is left out.
DRY_RUN = {
    "num_train_images": 32, "num_eval_images": 8, "num_figures": 1, "num_scored_images": 4, "vocabulary_rows": 32,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "max_steps": 1, "logging_steps": 1,
    "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "report_to": "none",
    "push_to_hub": "false",
}  # fmt: skip


def start_recipe(
    dataclass_types: Sequence[type], default_config: str | Path, args: Sequence[str] | None = None
) -> tuple[Any, ...]:
    r"""
    Parses the arguments of a recipe, see [`parse_arguments`], seeds everything and shares out the cores. With
    `--dry_run`, data are few and training is short, and `output_dir` is a temporary folder that is deleted at exit.

    Args:
        dataclass_types (`Sequence[type]`):
            The recipe's own dataclass, and [`VgTrainingArguments`].
        default_config (`str` or `Path`):
            The file that is read when there is no `--config`.
        args (`Sequence[str]`, *optional*, defaults to the command line):
            The arguments.

    Returns:
        `tuple`: An instance of each dataclass.
    """
    flags = list(sys.argv[1:] if args is None else args)
    recipe_args, training_args = parse_arguments(dataclass_types, default_config, flags)
    if training_args.dry_run:
        known = {field.name for cls in dataclass_types for field in fields(cls)}
        tiny = [text for name, value in DRY_RUN.items() if name in known for text in (f"--{name}", str(value))]
        output_dir = training_args.output_dir
        recipe_args, training_args = parse_arguments(dataclass_types, default_config, [*flags, *tiny])
        state = PartialState()
        folder = [tempfile.mkdtemp(prefix="hf_vg_dry_run_") if state.is_main_process else None]
        broadcast_object_list(folder)
        training_args.output_dir = folder[0]
        if state.is_main_process:
            atexit.register(_end_dry_run, folder[0])
        state.print(f"Dry run: everything once, at a tiny size, in a temporary folder. {output_dir} is left as it is.")
    set_seed(training_args.seed)
    use_all_cores()
    return recipe_args, training_args


def _end_dry_run(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    print(f"The dry run is over, and {folder} is deleted.")


def run_training(trainer: VgTrainer) -> None:
    r"""
    Trains, and saves the model into `output_dir`. A training that was interrupted goes on from its newest complete
    checkpoint, whatever killed it, and ends as if it had not been.

    Args:
        trainer ([`VgTrainer`]):
            Its arguments are those of [`start_recipe`].
    """
    args = trainer.args
    checkpoint = args.resume_from_checkpoint
    if checkpoint is None:
        checkpoint = _checkpoint_to_go_on_from(trainer)
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


def _checkpoint_to_go_on_from(trainer: VgTrainer) -> str | None:
    args, say = trainer.args, trainer.accelerator.print
    if args.restart and trainer.is_world_process_zero():
        for checkpoint in list_checkpoints(args.output_dir):
            delete_checkpoint(checkpoint)
    trainer.accelerator.wait_for_everyone()
    checkpoint = last_complete_checkpoint(args.output_dir)
    if checkpoint is None:
        return None
    changed = changed_settings(checkpoint, args.recipe_settings)
    if changed:
        differences = "".join(f"\n  {name}: {then} then, {now} now" for name, (then, now) in changed.items())
        raise SystemExit(
            f"error: {checkpoint} was trained with other settings:{differences}\nGive them again, to go on; or "
            "another --output_dir; or --restart, which deletes the checkpoints in this one; or name the checkpoint "
            "with --resume_from_checkpoint, to go on with what is set now."
        )
    say(f"Going on from {checkpoint}, the newest complete checkpoint. (--restart would begin anew.)")
    return str(checkpoint)
