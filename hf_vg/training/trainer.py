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

import os
from collections import defaultdict
from functools import partial

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import seed_worker

from ..data.samplers import LengthBatchSampler
from .arguments import VgTrainingArguments


def use_all_cores():
    """
    Shares the cores of a machine without an accelerator out among its processes. `accelerate launch` gives each
    process one thread unless it is told otherwise, which leaves the other cores idle.
    """
    if os.environ.get("OMP_NUM_THREADS") == "1" and not torch.accelerator.is_available():
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))


class VgTrainer(Trainer):
    """
    A [`Trainer`] that logs the named parts of a loss (`loss_caption`, `loss_attention`, ...), and does what
    [`VgTrainingArguments`] ask for: batches of one length or of near lengths, another learning rate for the backbone.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            for name, part in outputs.items():
                if name.startswith("loss_") and part is not None:
                    self._parts[name].append(part.detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args, **kwargs):
        if "loss" in logs and self._parts:
            for name, parts in self._parts.items():
                logs[name] = round(self.accelerator.gather(torch.stack(parts).mean()).mean().item(), 4)
            self._parts.clear()
        super().log(logs, *args, **kwargs)

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
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

    def _run_epoch(self, *args, **kwargs):
        # accelerate's `set_epoch` does not reach a sampler that is both sharded among processes and skips the batches
        # that a resumed run has seen: such a run would repeat the order of its first epoch.
        sampler = kwargs["train_dataloader"].batch_sampler
        while sampler is not None:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(kwargs["epoch"])
            sampler = getattr(sampler, "batch_sampler", getattr(sampler, "sampler", None))
        return super()._run_epoch(*args, **kwargs)
