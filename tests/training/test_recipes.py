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
"""Recipes as they are run: each run is a process of its own, forked from one that has imported everything."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest
from transformers import TrainerCallback

from hf_vg.data import load_scenes
from hf_vg.training import VgTrainer, is_complete, last_complete_checkpoint
from tests.common import ROOT


RECIPES = ROOT / "recipes"
BACKBONE = "{model_type: vgg, depths: [1, 1], hidden_sizes: [4, 6], use_batch_norm: true}"
CAPTIONER = [
    *("--model.backbone_config", BACKBONE, "--model.feature_size", "6", "--model.embedding_size", "6"),
    *("--model.hidden_size", "8", "--model.attention_size", "5", "--num_train_images", "24", "--image_size", "32"),
    *("--num_eval_images", "4", "--num_scored_images", "4", "--num_figures", "0", "--max_new_tokens", "8"),
    *("--per_device_train_batch_size", "8", "--dataloader_num_workers", "0", "--disable_tqdm", "true"),
]  # fmt: skip


def run_recipe(name: str, flags: list[str], log: str, patch: str | None = None) -> None:
    """What a child process does: `python recipes/NAME.py FLAGS`."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if patch is not None:
        globals()[patch]()
    sys.argv = [str(RECIPES / f"{name}.py"), *flags]
    runpy.run_path(sys.argv[0], run_name="__main__")


class Recipes:
    def __init__(self, folder: Path):
        self.folder = folder
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.training.test_recipes", "hf_vg.interpretation.figures"])

    def start(self, name: str, flags: list[str], patch: str | None = None):
        log = str(self.folder / f"{name}.log")
        process = self.context.Process(target=run_recipe, args=(name, [str(flag) for flag in flags], log, patch))
        process.start()
        return process

    def run(self, name: str, flags: list[str], patch: str | None = None, exitcode: int = 0) -> str:
        process = self.start(name, flags, patch)
        process.join()
        printed = (self.folder / f"{name}.log").read_text()
        assert process.exitcode == exitcode, printed
        return printed

    def kill(self, name: str, flags: list[str], patch: str) -> None:
        """Kills a run where `patch` makes it wait, which it says by a file."""
        waits = self.folder / "waits"
        waits.unlink(missing_ok=True)
        process = self.start(name, [*flags, "--run_name", str(waits)], patch)
        while process.is_alive() and not waits.exists():
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, (self.folder / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    load_scenes(24, 4, 4, 32)  # the cache that all runs read
    return Recipes(tmp_path_factory.mktemp("recipes"))


def wait_for_the_kill(trainer_args):
    Path(trainer_args.run_name).touch()
    time.sleep(600)


def wait_within_the_second_checkpoint():
    save = VgTrainer._save_rng_state

    def save_rng_state(self, output_dir):
        if self.state.global_step == 4:
            assert Path(output_dir, "optimizer.pt").exists()
            wait_for_the_kill(self.args)
        save(self, output_dir)

    VgTrainer._save_rng_state = save_rng_state


def wait_after_step_5():
    class Wait(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                wait_for_the_kill(args)

    plain = VgTrainer.__init__

    def with_wait(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.add_callback(Wait())

    VgTrainer.__init__ = with_wait


RESUMED = {
    # One length a batch, dropout, batch norm's statistics, and the moving baseline of hard attention.
    "train_captioner": [
        *CAPTIONER, "--model.attention_type", "hard", "--model.dropout", "0.5", "--max_length_difference", "3",
    ],
    # Captions that are drawn, and a recurrent encoder.
    "train_vse": [
        *("--model.backbone_config", BACKBONE, "--model.feature_size", "6", "--model.hidden_size", "8"),
        *("--model.embedding_size", "8", "--model.sentence_encoder", "gru", "--captions_per_image", "2"),
        *("--num_train_images", "24", "--num_eval_images", "4", "--image_size", "32"),
        *("--per_device_train_batch_size", "8", "--dataloader_num_workers", "1", "--disable_tqdm", "true"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_training_ends_as_if_it_had_not_been(recipes, tmp_path, name):
    flags = [*RESUMED[name], "--max_steps", "8", "--save_strategy", "steps", "--save_steps", "2"]
    flags += ["--eval_strategy", "steps", "--eval_steps", "4", "--save_total_limit", "2", "--logging_steps", "1"]
    flags += ["--load_best_model_at_end", "false"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    recipes.run(name, [*flags, "--output_dir", whole])
    flags += ["--output_dir", killed]

    recipes.kill(name, flags, "wait_within_the_second_checkpoint")
    assert (killed / "checkpoint-4" / "model.safetensors").exists() and not is_complete(killed / "checkpoint-4")
    assert last_complete_checkpoint(killed) == killed / "checkpoint-2"
    recipes.kill(name, flags, "wait_after_step_5")
    assert last_complete_checkpoint(killed) == killed / "checkpoint-4"
    printed = recipes.run(name, flags)
    assert f"Going on from {killed / 'checkpoint-4'}" in printed

    for file in ("model.safetensors", "checkpoint-8/model.safetensors", "checkpoint-8/optimizer.pt"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes(), file
    losses = []
    for folder in (whole, killed):
        history = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
        losses.append([(entry["step"], entry["loss"]) for entry in history if "loss" in entry])
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert sorted(path.name for path in killed.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]

    # Other settings are not mixed in by mistake.
    printed = recipes.run(name, [*flags, "--learning_rate", "0.1"], exitcode=1)
    assert "learning_rate: 0.003 then, 0.1 now" in printed and "--restart" in printed
