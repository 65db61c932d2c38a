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
"""The Trainer of the recipes."""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, PreTrainedModel, VisionEncoderDecoderModel
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, rotate_checkpoints, seed_worker
from transformers.utils import CONFIG_NAME

from ..data.processes import available_cores
from ..data.samplers import LengthBatchSampler
from ..models.publishing import CARD
from .arguments import VgTrainingArguments
from .callbacks import ResumeExactly
from .checkpoints import delete_checkpoint, mark_complete, save_settings
from .loss_parts import LossPartsMixin
from .publishing_trainer import PublishingTrainer


STAGED = "_saving"  # the folder that a model is written to before it is moved to its place
# Of glibc's malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def use_all_cores() -> None:
    """
    Speeds up training on a machine without an accelerator. By default `accelerate launch` gives each process one
    thread; this shares all cores among the processes. Without a launcher, `OMP_NUM_THREADS=1` stands as you set it.

    It also keeps freed memory: glibc returns large blocks to the system, and filling the next block with zeros takes a
    third of the forward pass of a convolutional network.

    Example:

    ```python
    >>> from hf_vg.training import use_all_cores
    >>> use_all_cores()
    ```
    """
    if torch.accelerator.is_available():
        return
    is_launched = "ACCELERATE_DYNAMO_MODE" in os.environ or "LOCAL_RANK" in os.environ  # by accelerate, or by torchrun
    if is_launched and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(available_cores())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # C libraries other than glibc have none
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            mallopt(option, value)


class VgTrainer(LossPartsMixin, PublishingTrainer):
    """
    A [`Trainer`] that logs the named parts of a loss (`loss_caption`, `loss_attention`, ...). [`VgTrainingArguments`]
    add batches of similar lengths, a learning rate for the backbone, and early stopping. Checkpoints contain the
    settings of the recipe, and are marked when they are complete. Like [`PublishingTrainer`], it takes a
    `dataset_name`.

    Args:
        score (`Callable`, *optional*):
            Takes the model in evaluation mode and returns metrics. Every evaluation logs them, and
            `metric_for_best_model` can name one. Only the main process calls it.
        eval_data_collator (`Callable`, *optional*):
            Makes the batches of evaluations, if that is not `data_collator`.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.data import CaptionCollator, train_word_tokenizer
    >>> from hf_vg.training import CaptionerArguments, VgTrainer, VgTrainingArguments, build_captioner
    >>> fields = {"backbone_config": None, "feature_size": 4, "embedding_size": 8, "hidden_size": 8}
    >>> model, processor = build_captioner(CaptionerArguments(model=fields), train_word_tokenizer(["a dog"]))
    >>> rows = [{"image_features": torch.randn(9, 4), "captions": ["a dog"]}] * 2
    >>> args = VgTrainingArguments(
    ...     "outputs", max_steps=1, save_strategy="no", remove_unused_columns=False, disable_tqdm=True
    ... )
    >>> collator = CaptionCollator(processor)
    >>> trainer = VgTrainer(
    ...     model=model, args=args, train_dataset=rows, data_collator=collator, processing_class=processor
    ... )
    >>> result = trainer.train()
    {'train_runtime': ...}
    >>> result.global_step
    1
    ```
    """

    data_collator: Any

    def __init__(
        self,
        *args: Any,
        score: Callable[[PreTrainedModel], dict[str, float]] | None = None,
        eval_data_collator: Callable | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.score = score
        self.eval_data_collator = eval_data_collator or self.data_collator
        # Of a loss that is a mean over other things than words, e.g. over captions.
        self._count_loss_items = getattr(self.model, "count_loss_items", None)
        if self._count_loss_items is not None:
            self.model_accepts_loss_kwargs = True
        if isinstance(self.model, VisionEncoderDecoderModel):
            # It takes the number of words of a step, and does not divide its loss by it.
            self.model_accepts_loss_kwargs = False
        self.add_callback(ResumeExactly)
        patience = getattr(self.args, "early_stopping_patience", 0)
        if patience:
            self.add_callback(EarlyStoppingCallback(patience))

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            for name, part in outputs.items():
                if name.startswith("loss_") and part is not None:
                    self.log_part(name, part)
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        if self.state.global_step >= self.state.max_steps:  # resumed at its end, see `ResumeExactly`
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device
    ) -> torch.Tensor | None:
        if self._count_loss_items is None:
            return super()._get_num_items_in_batch(batch_samples, device)
        if not batch_samples or "labels" not in batch_samples[0]:
            return None
        number = sum(self._count_loss_items(batch["labels"]) for batch in batch_samples).to(device)
        return self.accelerator.gather(number).sum().clamp(min=1)

    def create_optimizer(self, model: Any | None = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        learning_rate = getattr(self.args, "backbone_learning_rate", None)
        if learning_rate is None:
            return optimizer
        named = (self.model if model is None else model).named_parameters()
        backbone = {id(parameter) for name, parameter in named if "backbone" in name.split(".")}
        for group in list(optimizer.param_groups):
            parameters = group["params"]
            group["params"] = [parameter for parameter in parameters if id(parameter) not in backbone]
            if len(group["params"]) < len(parameters):
                theirs = [parameter for parameter in parameters if id(parameter) in backbone]
                optimizer.add_param_group({**group, "params": theirs, "lr": learning_rate})
        if not any(id(parameter) in backbone for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                "`backbone_learning_rate` is set, but this model has no backbone to train: it takes features only, or "
                "its `freeze_backbone` is true."
            )
        return optimizer

    def get_train_dataloader(self) -> DataLoader:
        args, dataset = self.args, self.train_dataset
        if not isinstance(args, VgTrainingArguments) or args.max_length_difference is None:
            return super().get_train_dataloader()
        columns = getattr(dataset, "column_names", None) or []
        if args.length_column_name not in columns:
            raise ValueError(
                f"`max_length_difference` needs a column {args.length_column_name!r} with the length of each row, and "
                f"the training data has the columns {columns}. `hf_vg.data.one_caption_a_row` makes it; "
                "`length_column_name` names another."
            )
        batch_sampler = LengthBatchSampler(
            dataset.select_columns(args.length_column_name).with_format("numpy")[:][args.length_column_name],
            args.train_batch_size,
            args.max_length_difference,
            num_processes=args.world_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        self.accelerator.print(
            f"Batches by length: {batch_sampler.padding_waste():.1%} of their positions are padding, against "
            f"{batch_sampler.random_padding_waste():.1%} if rows were drawn at random."
        )
        dataloader = DataLoader(
            self._remove_unused_columns(dataset, description="Training"),
            batch_sampler=batch_sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        return self.accelerator.prepare(dataloader)

    def get_eval_dataloader(self, eval_dataset: Any | None = None) -> DataLoader:
        data_collator, self.data_collator = self.data_collator, self.eval_data_collator
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = data_collator

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.score is not None and metric_key_prefix == "eval":
            with torch.no_grad():
                scores = [self.score(self.model) if self.is_world_process_zero() else {}]
            broadcast_object_list(scores)  # all processes must agree on which checkpoint is the best
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in scores[0].items()})
        return output

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # A model is written beside its place and then moved there file by file, config.json last: a kill leaves no
        # half of a file, and no model that looks complete and is not.
        output_dir = Path(output_dir or self.args.output_dir)
        staged = output_dir / STAGED
        if not self.args.should_save:  # this process only takes part in gathering the weights
            super()._save(str(staged), state_dict)
            return
        if staged.exists():
            shutil.rmtree(staged)  # of a run that was killed
        super()._save(str(staged), state_dict)
        (staged / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle; the settings below say the same
        settings = getattr(self.args, "recipe_settings", None)
        if settings:
            save_settings(staged, settings, Path(sys.argv[0]).name, self.args.world_size, output_dir)
        card = staged / CARD
        if card.exists():  # it names the folder it was written in
            card.unlink()
            if not (output_dir / CARD).exists():
                self._write_card(output_dir)
        files = [path.relative_to(staged) for path in staged.rglob("*") if path.is_file()]
        for name in sorted(files, key=lambda name: name.name == CONFIG_NAME):
            with open(staged / name, "rb+") as written:
                os.fsync(written.fileno())
            (output_dir / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / name, output_dir / name)
        shutil.rmtree(staged)
        for weights in output_dir.glob("model*.safetensors*"):  # of a model that was here before, in other shards
            if weights.relative_to(output_dir) not in files:
                weights.unlink()

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        args = self.args
        run_dir = self._get_output_dir(trial)
        checkpoint = Path(run_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if args.should_save and checkpoint.exists():
            delete_checkpoint(checkpoint)  # what a killed run had written of it
        self.accelerator.wait_for_everyone()
        # Older checkpoints are deleted after this one is complete, so that there is one at any moment.
        limit, args.save_total_limit = args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if args.should_save:
            mark_complete(checkpoint)
            rotate_checkpoints(run_dir, limit, self.state.best_model_checkpoint, use_mtime=True)
