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
from types import SimpleNamespace

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_vg import VseScnlmConfig, VseScnlmModel
from hf_vg.data import LengthBatchSampler
from hf_vg.training import HardestNegatives, VgTrainer
from hf_vg.training.callbacks import ResumeExactly


class RecordingModel(VseScnlmModel):
    def forward(self, **kwargs):
        self.seen.append(self.config.max_violation)
        return super().forward(**kwargs)


def test_hardest_negatives_count_after_their_share_of_the_training(tmp_path):
    model = RecordingModel(VseScnlmConfig(feature_size=4, vocab_size=9, embedding_size=4, hidden_size=4))
    model.seen = []
    rows = [
        {"image_features": torch.randn(4), "input_ids": [3, 0], "attention_mask": [1, 1], "image_ids": index}
        for index in range(10)
    ]
    args = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    args.label_names = ["image_ids"]
    Trainer(model, args, train_dataset=rows, callbacks=[HardestNegatives(0.4)]).train()
    assert model.seen == [False, False, True, True, True]
    assert model.config.max_violation


def test_a_share_is_from_0_to_1():
    with pytest.raises(ValueError, match="from 0 to 1, got 3"):
        HardestNegatives(3)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x, labels=None):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


@pytest.mark.parametrize(("trainer_class", "steps"), [(Trainer, 3), (VgTrainer, 2)])
def test_a_finished_training_takes_no_step_more(trainer_class, steps, tmp_path):
    """Of eight batches two were seen. Where the plain Trainer stops at 2 as well, nothing need be done about it."""
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
    evaluations, states = [], []
    for resume in (None, True):
        args = TrainingArguments(
            tmp_path,
            max_steps=2,
            save_strategy="epoch",
            eval_strategy="epoch",
            per_device_train_batch_size=1,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = trainer_class(Regression(), args, train_dataset=rows, eval_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        evaluations.append(sum("eval_loss" in entry for entry in trainer.state.log_history))
        states.append((tmp_path / "checkpoint-2" / "trainer_state.json").stat().st_mtime_ns)
    assert trainer.state.global_step == steps
    assert evaluations == [1, steps - 1], "it was evaluated once more"
    assert states[0] == states[1], "it was saved once more"


@pytest.mark.parametrize("by_length", [True, False])
def test_the_epoch_reaches_a_sampler_that_is_sharded_and_skips(by_length):
    def batches(epoch, skipped=0, callback=None):
        if by_length:
            arguments = {"batch_sampler": LengthBatchSampler([3 + row % 5 for row in range(80)], 4, num_processes=2)}
        else:
            arguments = {"batch_size": 4, "shuffle": True}
        loader = DataLoader(range(80), **arguments)
        loader = prepare_data_loader(loader, num_processes=2, process_index=1, use_seedable_sampler=True, data_seed=3)
        if callback is not None:
            state = SimpleNamespace(epoch=epoch + skipped / len(loader))
            callback.on_epoch_begin(None, state, None, train_dataloader=loader)
        if skipped:
            loader = skip_first_batches(loader, skipped)
        loader.set_epoch(epoch)
        return [batch.tolist() for batch in loader]

    first, second = (batches(epoch, callback=ResumeExactly()) for epoch in (0, 1))
    assert first != second
    assert batches(1, 4, ResumeExactly()) == second[4:]
    if by_length:
        assert batches(1, 4) != second[4:], "no longer needed"
