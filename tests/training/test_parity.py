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
"""
The same global batch gives the same loss and the same gradient on one process and on two: for every model, as
[`VgTrainer`] trains it, with accumulated batches, negatives of all processes and the baseline of hard attention. Equal
means within 1e-4 of the number and 1e-5: sums are taken in another order.
"""

import json
import os
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from unittest import mock

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from hf_vg.data import stream_captions
from hf_vg.training import SupervisedCaptionerTrainer, VgTrainer, VgTrainingArguments
from tests.common import ROOT
from tests.data.test_streaming import write_shards
from tests.models import test_modeling_grounded_visual_bert as grounded
from tests.models import test_modeling_self_attn_grounded_encoder as encoder
from tests.models import test_modeling_show_attend_tell as show
from tests.models import test_modeling_spatial_transformer as spatial
from tests.models import test_modeling_vse_scnlm as vse
from tests.training import test_attention_supervision as attention


ROWS = 8
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def repeated(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Eight rows of a few, with other pixels or features in each."""
    indices = torch.arange(ROWS) % len(next(iter(inputs.values())))
    rows = {name: value[indices].clone() for name, value in inputs.items()}
    for name in ("pixel_values", "image_features"):
        if name in rows:
            rows[name] = torch.randn(rows[name].shape, generator=torch.Generator().manual_seed(3))
    return rows


def captions():
    """Images have two captions or one, so that processes have unequally many, of unequal length."""
    inputs = repeated(show.tiny_inputs(4))
    labels = torch.stack([inputs["labels"], inputs["labels"].roll(1, dims=0)], dim=1)
    labels[[0, 3, 4, 5, 6], 1] = -100
    return {**inputs, "labels": labels}


def tagged():
    ids, tags = vse.tiny_captions(ROWS)
    return {"labels": ids.masked_fill(ids == 2, -100), "tag_ids": tags}


def show_model(**kwargs):
    return show.ShowAttendTellForConditionalGeneration(show.tiny_config(dropout=0.0, **kwargs))


# A model, its rows, and in how many parts the gradient of a batch is accumulated.
CASES = {
    "show_attend_tell": (show_model, captions, 2),
    "show_attend_tell_hard": (
        partial(show_model, attention_type="hard", semi_sampling_probability=1.0, baseline_decay=0.5),
        captions,
        1,
    ),
    "spatial_transformer": (
        lambda: spatial.SpatialTransformerCaptionerForConditionalGeneration(
            spatial.tiny_config(**{name: 0.0 for name in vars(spatial.tiny_config()) if "dropout" in name})
        ),
        captions,
        2,
    ),
    "scnlm": (partial(vse.tiny_captioner, remembers=False, decoder_dropout=0.0), tagged, 2),
    "grounded_visual_bert_questions": (
        partial(grounded.tiny_model, grounded.GroundedVisualBertForQuestionAnswering, num_labels=5, **NO_DROPOUT),
        lambda: repeated(grounded.TestGroundedVisualBertForQuestionAnsweringCommon.inputs()),
        2,
    ),
    "grounded_visual_bert_referring": (
        partial(grounded.tiny_model, grounded.GroundedVisualBertForReferringExpression, **NO_DROPOUT),
        lambda: repeated(grounded.TestGroundedVisualBertForReferringExpressionCommon.inputs()),
        1,
    ),
}
for kind in ("none", "indirect", "direct", "rollout"):
    # Some rows have nothing to supervise.
    build = partial(grounded.tiny_model, attention_supervision=kind, **NO_DROPOUT)
    CASES[f"grounded_visual_bert_{kind}"] = (build, lambda: repeated(grounded.tiny_inputs()), 1)
# Negatives come from all processes, and captions of one image, which are none of each other's, lie in both.
IMAGE_IDS = torch.tensor([3, 8, 8, 5, 1, 2, 8, 9])
for number, options in enumerate([*encoder.LOSSES[:3], *encoder.LOSSES[6:]]):
    build = partial(encoder.tiny_model, image_head_dropout=0.0, **options)
    rows_of = lambda: {**repeated(encoder.tiny_inputs(4)), "image_ids": IMAGE_IDS}  # noqa: E731
    CASES[f"self_attn_grounded_encoder_{number}"] = (build, rows_of, 1)
for number, options in enumerate(({}, {"max_violation": True, "normalize_image": False})):
    build = partial(lambda options: vse.VseScnlmModel(vse.tiny_config(**options)), options)
    CASES[f"vse_{number}"] = (build, lambda: {**repeated(vse.tiny_inputs(4)), "image_ids": IMAGE_IDS}, 1)


def supervised(name: str):
    """A model of transformers whose attention is supervised. What has no gradient would be an error of DDP's."""
    model, inputs = attention.inputs_of(name)
    model(**attention.own(inputs)).loss.backward()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.grad is not None)
    model.zero_grad()
    return model


def rows_with_phrases(name: str):
    """The second process has fewer phrases than the first."""
    rows = repeated(attention.inputs_of(name)[1])
    rows["phrase_boxes"][[2, 5, 6, 7]] = 0
    return rows


# What the attention of any model learns, beside what its words say and what it said before.
TRAINERS = {}
for name, kind, parts in (("llava", "direct", 2), ("llava", "rollout", 1), ("vit_gpt2", "direct", 1)):
    CASES[f"{name}_{kind}"] = (partial(supervised, name), partial(rows_with_phrases, name), parts)
    TRAINERS[f"{name}_{kind}"] = partial(
        SupervisedCaptionerTrainer, attention_supervision=kind, attention_weight=2.0, distillation_weight=0.5
    )


def encoder_rows():
    inputs = encoder.tiny_inputs(4)
    del inputs["image_features"]
    return {**repeated({**inputs, "pixel_values": torch.randn(4, 3, 8, 8)}), "image_ids": IMAGE_IDS}


# Models with a frozen backbone that sees pixels.
FROZEN = {
    "show_attend_tell": (show_model, captions),
    "spatial_transformer": (spatial.tiny_model, captions),
    "self_attn_grounded_encoder": (
        partial(encoder.tiny_model, backbone_config=encoder.VggConfig(depths=[1, 1], hidden_sizes=[4, 7])),
        encoder_rows,
    ),
    "vse": (lambda **kwargs: vse.VseScnlmModel(vse.tiny_config(**kwargs)), lambda: repeated(vse.tiny_inputs(4))),
    "grounded_visual_bert": (grounded.tiny_model, lambda: repeated(grounded.tiny_inputs())),
}


def train_frozen(name: str, folder: str) -> list[str]:
    """
    Loads a checkpoint, takes two steps with plain DDP, and returns the names of the parameters that changed. The
    second step is the one that fails if a parameter that requires a gradient got none.
    """
    build, make_rows = FROZEN[name]
    model, rows = type(build()).from_pretrained(folder), make_rows()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            max_steps=2,
            learning_rate=0.1,
            ddp_find_unused_parameters=False,
            save_strategy="no",
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{key: value[row] for key, value in rows.items()} for row in range(ROWS)],
        data_collator=lambda batch: {key: torch.stack([row[key] for row in batch]) for key in batch[0]},
    )
    assert trainer.args.world_size == 2
    trainer.train()
    return [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]


@pytest.mark.parametrize("name", FROZEN)
def test_two_processes_train_from_a_checkpoint_with_a_frozen_backbone(name, on_two_processes):
    for rank in range(2):
        changed = json.loads((on_two_processes / f"frozen_{name}_{rank}.json").read_text())
        assert changed and not any("backbone" in key.split(".") for key in changed)


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def train_a_step(name: str, output_dir: str) -> dict[str, torch.Tensor]:
    build, make_rows, parts = CASES[name]
    set_seed(0)
    model, rows = build(), make_rows()
    keep = KeepGradients()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = TRAINERS.get(name, VgTrainer)(
        model=model,
        args=VgTrainingArguments(
            output_dir,
            per_device_train_batch_size=ROWS // parts // processes,
            gradient_accumulation_steps=parts,
            max_steps=1,
            optim="sgd",
            max_grad_norm=0,
            logging_steps=1,
            save_strategy="no",
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{key: value[row] for key, value in rows.items()} for row in range(ROWS)],
        data_collator=lambda batch: {key: torch.stack([row[key] for row in batch]) for key in batch[0]},
        callbacks=[keep],
    )
    assert trainer.args.world_size == processes
    # Hard attention draws a location, and each process would draw others.
    with mock.patch("torch.multinomial", lambda weights, count: weights.argmax(dim=-1, keepdim=True)):
        trainer.train()
    if processes > 1:
        assert trainer.model_wrapped.find_unused_parameters is False
    logs = next(entry for entry in trainer.state.log_history if "loss" in entry)
    loss = [logs["loss"], logs["loss_grounding"] if name in TRAINERS else 0.0]
    baseline = {"baseline": model.baseline} if getattr(model, "baseline", None) is not None else {}
    return {"loss": torch.tensor(loss), **baseline, **keep.gradients}


@pytest.fixture(scope="module")
def on_two_processes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    (folder / "shards").mkdir()
    write_shards(folder / "shards", shards=2, rows=5)
    for name, (build, _) in FROZEN.items():
        build(freeze_backbone=True).save_pretrained(folder / f"frozen_{name}")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", str(ROOT / "recipes" / "accelerate" / "cpu.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [*command, "-m", "tests.training.test_parity", str(folder)], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-5000:]
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(name, on_two_processes, tmp_path):
    one = train_a_step(name, str(tmp_path))
    for rank in range(2):
        two = torch.load(on_two_processes / f"{name}_{rank}.pt")
        assert set(one) == set(two)
        for part, expected in one.items():
            torch.testing.assert_close(two[part], expected, rtol=1e-4, atol=1e-5, msg=lambda m, p=part: f"{p}: {m}")
    nothing = [part for part, value in one.items() if not value.any()]
    assert len(nothing) < 0.2 * len(one), f"there is no gradient to compare in {nothing}"


def train_from(checkpoint: str | None, output_dir: str) -> dict[str, torch.Tensor]:
    """Ten steps, six of which are an epoch, in batches of one length, with dropout and locations that are drawn."""
    set_seed(0)
    inputs = show.tiny_inputs(4)
    config = show.tiny_config(attention_type="hard", dropout=0.5)
    rows = Dataset.from_dict({"row": range(24), "length": [3 + row % 3 for row in range(24)]})
    trainer = VgTrainer(
        model=show.ShowAttendTellForConditionalGeneration(config),
        args=VgTrainingArguments(
            output_dir,
            per_device_train_batch_size=2,
            max_steps=10,
            max_length_difference=0,
            save_steps=7,
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=lambda batch: {key: value[[row["row"] % 4 for row in batch]] for key, value in inputs.items()},
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def test_two_processes_go_on_to_the_same_bits(on_two_processes):
    for rank in range(2):
        whole, resumed = torch.load(on_two_processes / f"resumed_{rank}.pt")
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
        assert whole["baseline"] > 0


def read_stream(shards: str) -> list[list[int]]:
    """The rows of six batches of a stream, as this process is given them."""
    trainer = VgTrainer(
        model=show_model(),
        args=VgTrainingArguments(shards, per_device_train_batch_size=2, max_steps=6, remove_unused_columns=False),
        train_dataset=stream_captions("webdataset", f"{shards}/*.tar", shuffle_buffer=4),
        data_collator=lambda rows: {"rows": torch.tensor([int(row["captions"][0].split()[1]) for row in rows])},
    )
    return [batch["rows"].tolist() for batch in islice(trainer.get_train_dataloader(), 6)]


def test_two_processes_share_a_stream(on_two_processes):
    stream = stream_captions("webdataset", str(on_two_processes / "shards" / "*.tar"), shuffle_buffer=4)
    rows = [int(row["captions"][0].split()[1]) for row in islice(stream, 24)]  # of 10 a pass
    first, second = (json.loads((on_two_processes / f"stream_{rank}.json").read_text()) for rank in range(2))
    assert [[*a, *b] for a, b in zip(first, second, strict=True)] == [rows[i : i + 4] for i in range(0, 24, 4)]


if __name__ == "__main__":
    rank, folder = int(os.environ["RANK"]), f"{sys.argv[1]}/output"
    runs = [train_from(None, folder), train_from(f"{folder}/checkpoint-7", folder)]
    torch.save(runs, f"{sys.argv[1]}/resumed_{rank}.pt")
    Path(sys.argv[1], f"stream_{rank}.json").write_text(json.dumps(read_stream(f"{sys.argv[1]}/shards")))
    for case in FROZEN:
        changed = train_frozen(case, f"{sys.argv[1]}/frozen_{case}")
        Path(sys.argv[1], f"frozen_{case}_{rank}.json").write_text(json.dumps(changed))
    for case in CASES:
        torch.save(train_a_step(case, sys.argv[1]), f"{sys.argv[1]}/{case}_{rank}.pt")
