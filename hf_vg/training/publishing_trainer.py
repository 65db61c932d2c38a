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
"""A Trainer for the Hub: model cards from the run, uploads in one commit, and resuming from the Hub."""

import os
import shutil
import tempfile
from collections.abc import Sized
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import CommitInfo, run_as_future
from PIL import Image
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging

from ..hub.cards import Run, model_card
from ..hub.resuming import LAST_CHECKPOINT, checkpoint_folder
from ..models.publishing import CARD, upload_folder
from .checkpoints import SETTINGS_NAME


logger = logging.get_logger(__name__)
EXAMPLE = "example.png"
# Files of a checkpoint that only Trainer needs.
_TRAINING_STATE = ("optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "complete.json")


class PublishingTrainer(Trainer):
    r"""
    A [`Trainer`] that uploads from its main process, in one commit each time, writes a model card from the run, and
    resumes from a checkpoint on the Hub.

    Args:
        dataset_name (`str`, *optional*):
            The training data, for the model card.
    """

    push_in_progress: Any

    def __init__(self, *args: Any, dataset_name: str | None = None, **kwargs: Any):
        self.run = Run(dataset=dataset_name)
        super().__init__(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        r"""
        Trains like [`Trainer`]. `resume_from_checkpoint` can also be `user/name` or `user/name@revision` on the Hub:
        training resumes from its `last-checkpoint` or its newest `checkpoint-*`.
        """
        with self.args.main_process_first(desc="downloading the checkpoint"):
            resume_from_checkpoint = checkpoint_folder(resume_from_checkpoint, self.args.hub_token)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        if split == "test":
            self.run.metrics = dict(metrics)
        super().save_metrics(split, metrics, combined)

    def create_model_card(
        self,
        dataset: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        r"""
        Writes `README.md` in `output_dir`: what the model is, how to use it, how it was trained, and the results that
        are known so far.

        Args:
            dataset (`str`, *optional*):
                The training data, if the trainer was created without `dataset_name`.
            license (`str`, *optional*):
                The license of the weights, as the Hub names it.
            tags (`str` or `list[str]`, *optional*):
                More tags.
            kwargs:
                Other arguments of [`Trainer.create_model_card`], which are ignored.
        """
        if not self.is_world_process_zero():
            return
        self.run.dataset = dataset or self.run.dataset
        self.run.license = license or self.run.license
        self._write_card(Path(self.args.output_dir), tags)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> CommitInfo | Future | None:
        """Uploads the model in one commit. The upload succeeds completely or changes nothing."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token if token is not None else self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return self._upload(commit_message, blocking, token, revision)

    def publish(
        self,
        figure: str | Path | None = None,
        example: Image.Image | None = None,
        split: str = "test",
        num_images: int | None = None,
    ) -> None:
        r"""
        Writes the model card after the evaluation, and uploads it with the model if `push_to_hub` is set. This is the
        last step of a recipe.

        Args:
            figure (`str` or `Path`, *optional*):
                An image in `output_dir` that shows where the model looks.
            example (`PIL.Image.Image`, *optional*):
                An image to try the model on. It is published, so you need the right to publish it.
            split (`str`, *optional*, defaults to `"test"`):
                The split that was scored, as the dataset names it.
            num_images (`int`, *optional*):
                The number of images that were scored.
        """
        if not self.is_world_process_zero():
            return
        self.run.split, self.run.num_images = split, num_images
        self.run.figure = Path(figure).name if figure is not None else None
        if example is not None:
            self.run.example = EXAMPLE
            example.save(Path(self.args.output_dir, EXAMPLE))
        self.create_model_card()
        if self.args.push_to_hub:
            self._upload("Card with the evaluation", True, self.args.hub_token, None)

    def _write_card(self, folder: Path, tags: str | list[str] | None = None) -> None:
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        base_model = model.config.name_or_path
        # A local folder means nothing to other people.
        self.run.base_model = base_model if "/" in base_model and not os.path.exists(base_model) else None
        self.run.hyperparameters = hyperparameters(self)
        model_card(model, self.hub_model_id or str(folder), self.run, tags).save(folder / CARD)

    def _upload(self, commit_message: str | None, blocking: bool, token: str | None, revision: str | None) -> Any:
        self._finish_current_push()
        arguments: dict[str, Any] = {
            "commit_message": commit_message,
            "token": token,
            "revision": revision or self.args.hub_revision,
            "replace_card": True,
            "ignore_patterns": ["_*", "checkpoint-*"],
        }
        if blocking:
            return upload_folder(self.args.output_dir, self.hub_model_id, **arguments)
        return run_as_future(upload_folder, self.args.output_dir, self.hub_model_id, **arguments)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads the current model, and the checkpoint if `hub_strategy` asks for it, in one commit."""
        args = self.args
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.done():
            if not args.hub_always_push:
                return
            self._finish_current_push()
        self.callback_handler.on_push_begin(args, self.state, self.control)
        for left_by_a_kill in Path(args.output_dir).glob("_push-*"):
            shutil.rmtree(left_by_a_kill)
        # Hard links, since training may delete the checkpoint during the upload.
        staged = Path(tempfile.mkdtemp(dir=args.output_dir, prefix="_push-"))
        ignored = shutil.ignore_patterns(*_TRAINING_STATE, CARD)
        shutil.copytree(checkpoint_folder, staged, copy_function=os.link, ignore=ignored, dirs_exist_ok=True)
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            last = args.hub_strategy == HubStrategy.CHECKPOINT
            name = LAST_CHECKPOINT if last else Path(checkpoint_folder).name
            # Its card is left out: it names a local folder.
            ignored = shutil.ignore_patterns(CARD)
            shutil.copytree(checkpoint_folder, staged / name, copy_function=os.link, ignore=ignored)
        self._write_card(staged)
        self.push_in_progress = run_as_future(
            _upload_and_delete,
            staged,
            self.hub_model_id,
            commit_message=f"Training in progress, step {self.state.global_step}",
            token=args.hub_token,
            revision=args.hub_revision,
            replace_card=True,
        )

    def _finish_current_push(self) -> None:
        push, self.push_in_progress = getattr(self, "push_in_progress", None), None
        if push is None:
            return
        if not push.done():
            logger.info("Waiting for the upload of the last checkpoint.")
        if (error := push.exception()) is not None:
            notes = " ".join(getattr(error, "__notes__", []))
            logger.warning(f"A checkpoint could not be uploaded. Training continues. {error} {notes}")


def hyperparameters(trainer: Trainer) -> dict[str, Any]:
    """The settings of a run that decide the result, formatted for the model card."""
    args = trainer.args
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    parts = f"{args.train_batch_size} x {args.gradient_accumulation_steps} steps x {args.world_size} processes"
    warmup = f"{args.warmup_steps:.0%} of the steps" if 0 < args.warmup_steps < 1 else f"{args.warmup_steps:g} steps"
    rows = len(trainer.train_dataset) if isinstance(trainer.train_dataset, Sized) else None
    adam = f"betas {args.adam_beta1:g} and {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}"
    settings = {
        "rows to train on": f"{rows:,}" if rows else None,
        "learning rate": args.learning_rate,
        "learning rate of the backbone": getattr(args, "backbone_learning_rate", None),
        "schedule": f"{args.lr_scheduler_type.value}, warm-up of {warmup}",
        "optimizer": f"{args.optim.value}, {adam}",
        "weight decay": args.weight_decay or None,
        "gradient norm, at most": f"{args.max_grad_norm:g}" if args.max_grad_norm else None,
        "batch": f"{batch}" + (f" ({parts})" if batch != args.train_batch_size else ""),
        "epochs": None if args.max_steps > 0 else f"{args.num_train_epochs:g}",
        "optimizer steps": f"{trainer.state.global_step:,}" if trainer.state.global_step else None,
        "precision": "bfloat16, mixed" if args.bf16 else "float16, mixed" if args.fp16 else "float32",
        "seed": args.seed,
        "all settings": SETTINGS_NAME if getattr(args, "recipe_settings", None) else None,
        "made with": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
    return {name: value for name, value in settings.items() if value is not None}


def _upload_and_delete(folder: Path, repo_id: str, **arguments: Any) -> None:
    try:
        upload_folder(folder, repo_id, **arguments)
    finally:
        shutil.rmtree(folder)
