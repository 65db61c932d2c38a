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
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset, Features, Image, Value
from torch import nn
from transformers.modeling_outputs import ModelOutput

from hf_vg.data import LengthBatchSampler, load_captions
from hf_vg.training import VgTrainer, VgTrainingArguments


REAL_DATA = Path(__file__).resolve().parents[2] / "../shared/data/flickr8k"


@pytest.fixture
def lengths():
    return np.random.default_rng(0).integers(3, 12, size=203).tolist()


@pytest.mark.parametrize("max_difference", [0, 1])
def test_every_row_is_drawn_once_with_rows_of_its_length(lengths, max_difference):
    sampler = LengthBatchSampler(lengths, 8, max_difference)
    batches = list(sampler)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler) and max(map(len, batches)) == 8
    differences = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches]
    assert max(differences) == max_difference
    # The order of the lengths is random too.
    first = [lengths[batch[0]] for batch in batches]
    assert first != sorted(first) and first != sorted(first, reverse=True)


def test_larger_differences_make_fewer_batches(lengths):
    sizes = [len(LengthBatchSampler(lengths, 8, difference)) for difference in (0, 1, 100)]
    assert sizes[0] > sizes[1] >= sizes[2] == -(-len(lengths) // 8)


def test_order_depends_on_seed_and_epoch_alone(lengths):
    sampler = LengthBatchSampler(lengths, 8, seed=1)
    first = list(sampler)
    torch.manual_seed(7)
    np.random.seed(7)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first and len(second) == len(first)
    again = LengthBatchSampler(lengths, 8, seed=1)
    again.set_epoch(1)
    assert list(again) == second
    # Runs with neighboring seeds share no epoch: the order depends on more than the sum of seed and epoch.
    assert list(LengthBatchSampler(lengths, 8, seed=2)) != second


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_batches_of_one(lengths, processes):
    whole = list(LengthBatchSampler(lengths, 12, seed=3))
    sampler = LengthBatchSampler(lengths, 12 // processes, num_processes=processes, seed=3)
    shards = [list(BatchSamplerShard(sampler, processes, rank)) for rank in range(processes)]
    assert [len(shard) for shard in shards] == [len(whole)] * processes == [len(sampler) // processes] * processes
    drawn_twice = 0
    for step, together in zip(zip(*shards, strict=True), whole, strict=True):
        assert len({len(batch) for batch in step}) == 1
        rows = [row for batch in step for row in batch]
        assert set(rows) == set(together)
        drawn_twice += len(rows) - len(together)
    assert drawn_twice < processes * len(whole)


def test_padding_waste(lengths):
    assert LengthBatchSampler(lengths, 8).padding_waste() == 0
    sampler = LengthBatchSampler([1, 2, 4], 3, max_difference=3)
    assert sampler.padding_waste() == pytest.approx(1 - 7 / 12)
    assert sampler.random_padding_waste() == pytest.approx(1 - 7 / 12)
    near = LengthBatchSampler(lengths, 8, max_difference=3)
    assert 0 < near.padding_waste() < 0.1 < near.random_padding_waste()


def test_wrong_arguments_are_named():
    for arguments, message in (
        (([],), "`lengths`"),
        (([1], 0), "`batch_size` .*1.* 0"),
        (([1], 1, -1), "`max_difference` .*0.* -1"),
    ):
        with pytest.raises(ValueError, match=message):
            LengthBatchSampler(*(*arguments, 1)[:3])


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))
        self.dropout = nn.Dropout()

    def forward(self, rows, labels=None):
        distance = self.dropout(self.weight)[rows % 5] - rows.sqrt()
        return ModelOutput(loss=distance.square().mean())


class Run:
    """Trains three epochs and returns the rows of each batch."""

    def __init__(self, output_dir, lengths, **arguments):
        self.batches = []
        self.model = Tiny()
        images = Features(row=Value("int64"), length=Value("int64"), image=Image())
        # The file does not exist: decoding an image would fail.
        rows = {"row": range(len(lengths)), "length": lengths, "image": ["nowhere.png"] * len(lengths)}
        dataset = Dataset.from_dict(rows, features=images)
        self.trainer = VgTrainer(
            model=self.model,
            args=VgTrainingArguments(
                str(output_dir),
                num_train_epochs=3,
                per_device_train_batch_size=8,
                remove_unused_columns=False,
                save_strategy="steps",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                seed=5,
                **arguments,
            ),
            train_dataset=dataset.with_transform(lambda batch: {"row": batch["row"]}, columns=["row"]),
            data_collator=self.collate,
        )

    def collate(self, rows):
        self.batches.append([row["row"] for row in rows])
        return {"rows": torch.tensor(self.batches[-1])}


def test_training_continues_an_interrupted_epoch(tmp_path, lengths, capsys):
    steps = len(LengthBatchSampler(lengths, 8))
    whole = Run(tmp_path, lengths, max_length_difference=0, save_steps=steps + 4)
    whole.trainer.train()
    assert "0.0% of their positions are padding" in capsys.readouterr().out
    assert len(whole.batches) == 3 * steps
    assert all(len({lengths[row] for row in batch}) == 1 for batch in whole.batches)
    epochs = [whole.batches[steps * epoch : steps * (epoch + 1)] for epoch in range(3)]
    assert all(sorted(row for batch in epoch for row in batch) == list(range(len(lengths))) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]

    resumed = Run(tmp_path, lengths, max_length_difference=0, save_steps=steps + 4)
    resumed.trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{steps + 4}"))
    assert resumed.batches == whole.batches[steps + 4 :]
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_without_the_argument_rows_are_drawn_at_random(tmp_path, lengths):
    run = Run(tmp_path, lengths, max_steps=3, save_steps=100)
    run.trainer.train()
    assert all(len({lengths[row] for row in batch}) > 1 for batch in run.batches)


def test_the_length_column_is_asked_for(tmp_path, lengths):
    run = Run(tmp_path, lengths, max_length_difference=0, length_column_name="words")
    with pytest.raises(ValueError, match=r"'words'.*\['row', 'length', 'image'\]"):
        run.trainer.train()


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs Flickr8k in ../shared/data, beside the repository")
def test_padding_of_real_captions(capsys):
    captions = load_captions("flickr8k", REAL_DATA)["train"]["captions"]
    lengths = [len(caption.split()) + 1 for row in captions for caption in row]
    one_length, near = LengthBatchSampler(lengths, 64), LengthBatchSampler(lengths, 64, max_difference=2)
    assert one_length.padding_waste() == 0
    assert near.padding_waste() < 0.01 and one_length.random_padding_waste() > 0.4
    assert len(near) < len(one_length)
