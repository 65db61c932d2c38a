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
import os
import runpy
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from transformers import TrainerCallback

from hf_vg.data import load_scenes
from hf_vg.pipelines import load_captioner
from hf_vg.training import (
    CaptionerArguments,
    VgTrainer,
    VgTrainingArguments,
    parse_arguments,
    tiny_captioner,
    tiny_space,
)
from hf_vg.training.checkpoints import is_complete, last_complete_checkpoint
from tests.common import ROOT, random_images, start_process
from tests.data.test_streaming import write_shards
from tests.interpretation.any_processors import save


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
    tempfile.tempdir = str(Path(log).parent / "temporary")
    sys.argv = [str(RECIPES / f"{name}.py"), *flags]
    if patch is not None:
        globals()[patch]()
    runpy.run_path(sys.argv[0], run_name="__main__")


class Recipes:
    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, name: str, flags: list[str], patch: str | None = None):
        log = str(self.folder / f"{name}.log")
        return start_process(run_recipe, name, [str(flag) for flag in flags], log, patch)

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
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "temporary").mkdir()
    return Recipes(folder)


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


# What each case adds to the others.
RESUMED = {
    # One length a batch, mirror images, dropout, batch norm's statistics, and the moving baseline of hard attention.
    "train_captioner": [
        *CAPTIONER, "--model.attention_type", "hard", "--model.dropout", "0.5", "--max_length_difference", "3",
        *("--mirror_images", "true"),
    ],
    # Captions that are drawn, and a recurrent encoder.
    "train_vse": [
        *("--model.backbone_config", BACKBONE, "--model.feature_size", "6", "--model.hidden_size", "8"),
        *("--model.embedding_size", "8", "--model.sentence_encoder", "gru", "--captions_per_image", "2"),
        *("--num_train_images", "24", "--num_eval_images", "4", "--image_size", "32"),
        *("--per_device_train_batch_size", "8", "--dataloader_num_workers", "1", "--disable_tqdm", "true"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vit_gpt2", []),
        ("qwen2_5_vl", ["--reward", "cider", "--num_candidates", "2"]),
    ],
)
def test_any_captioner_is_fine_tuned(recipes, tmp_path, name, flags):
    flags = [*flags, "--checkpoint", save(name, tmp_path / name), "--output_dir", tmp_path / "trained"]
    flags += ["--num_train_images", "4", "--num_eval_images", "2", "--image_size", "32", "--max_new_tokens", "3"]
    flags += ["--max_steps", "2", "--per_device_train_batch_size", "2", "--logging_steps", "1", "--num_figures", "1"]
    printed = recipes.run("train_captioner", [*flags, "--disable_tqdm", "true"])
    assert "2/4] Training" in printed and (tmp_path / "trained" / "attention.png").exists()
    history = json.loads((tmp_path / "trained" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    rewards = [entry["reward"] for entry in history if "reward" in entry]
    assert len(rewards) == (2 if "--reward" in flags else 0)
    (caption,) = load_captioner(str(tmp_path / "trained"))(random_images(1)[0])
    assert caption.keys() == {"generated_text"}


@pytest.mark.parametrize("name", [*RESUMED, "streaming"])
def test_a_killed_training_ends_as_if_it_had_not_been(recipes, tmp_path, name):
    # The config of scenes is the default of the first case alone, and it sets a weight decay.
    weight_decay = "0.1" if name == "train_captioner" else "the default"
    if name == "streaming":  # tar files, which are read for the third time when training ends
        for split, shards in (("train", 3), ("val", 1)):
            (tmp_path / split).mkdir()
            write_shards(tmp_path / split, shards, rows=6)
        flags = [*CAPTIONER, "--dataset", "webdataset", "--streaming", "--data_dir", tmp_path / "train" / "*.tar"]
        flags += ["--eval_data_dir", tmp_path / "val" / "*.tar", "--shuffle_buffer", "4", "--model.dropout", "0.5"]
        flags += ["--model.freeze_backbone", "false"]
        name = "train_captioner"
    else:
        flags = RESUMED[name]
    flags = [*flags, "--max_steps", "8", "--save_strategy", "steps", "--save_steps", "2"]
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
    assert f"Resuming from {killed / 'checkpoint-4'}" in printed

    for file in ("model.safetensors", "checkpoint-8/model.safetensors"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes(), file
    states = [torch.load(folder / "checkpoint-8" / "optimizer.pt", weights_only=True) for folder in (whole, killed)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    losses = []
    for folder in (whole, killed):
        history = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
        losses.append([(entry["step"], entry["loss"]) for entry in history if "loss" in entry])
    assert losses[0] == losses[1] and len(losses[0]) == 8
    kept = [sorted(path.name for path in folder.glob("checkpoint-*")) for folder in (whole, killed)]
    assert kept[0] == kept[1] and len(kept[0]) == 2 and "checkpoint-8" in kept[0]

    # Once more, there is nothing left to learn. Other settings are not mixed in by mistake.
    if name == "train_vse":
        assert f"Resuming from {killed / 'checkpoint-8'}" in recipes.run(name, flags)
        assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    printed = recipes.run(name, [*flags, "--learning_rate", "0.1", "--weight_decay", "0.2"], exitcode=1)
    assert "learning_rate: " in printed and "--restart" in printed
    assert f"weight_decay: {weight_decay} then, 0.2 now" in printed


def log_into_output_dir():
    output_dir = sys.argv[sys.argv.index("--output_dir") + 1]
    os.environ |= {"TENSORBOARD_LOGGING_DIR": f"{output_dir}/runs", "TRACKIO_DIR": f"{output_dir}/trackio"}


SPACE = [
    *("--model.backbone_config", BACKBONE, "--model.feature_size", "6", "--model.hidden_size", "8"),
    *("--model.embedding_size", "8", "--num_train_images", "24", "--num_eval_images", "4", "--image_size", "32"),
    *("--max_steps", "2", "--save_strategy", "no", "--load_best_model_at_end", "false", "--eval_strategy", "no"),
]  # fmt: skip
REGIONS = ["--model.backbone_config", "{model_type: vgg, depths: [1], hidden_sizes: [4]}"]
REGIONS += ["--model.region_feature_size", "4", "--model.hidden_size", "8", "--model.num_hidden_layers", "1"]
DRY = {
    "train_captioner": CAPTIONER,
    "train_grounded_encoder": ["--model.hidden_size", "8", "--model.embedding_size", "8"],
    "train_scnlm": ["--model.hidden_size", "8"],
    "train_vgp": [*REGIONS, "--num_figures", "0"],
    "finetune_vqa": REGIONS,
    "finetune_referring": REGIONS,
}


def test_sums_of_images_and_words_are_scored_and_drawn(recipes):
    space, figure, metrics = recipes.folder / "tiny_space", recipes.folder / "sums.png", recipes.folder / "sums.json"
    flags = ["--space", tiny_space(space), "--num_eval_images", 80, "--metrics_file", metrics]
    sums = ["--arithmetic", "square - red + blue", "circle - blue + yellow", "--arithmetic_figure", figure]
    printed = recipes.run("evaluate_retrieval", [*flags, *sums])
    scores = json.loads(metrics.read_text())
    assert "square - red + blue" in printed and f"{scores['arithmetic_fit']:.1f}" in printed
    assert 0 < scores["arithmetic_fit_chance"] < 100
    assert Image.open(figure).height > 200
    printed = recipes.run("evaluate_retrieval", [*flags, "--arithmetic", "square - red + magenta"], exitcode=1)
    assert "'square - red + magenta' cannot be scored on these 80 photos" in printed and "Traceback" not in printed
    printed = recipes.run("evaluate_retrieval", [*flags, "--arithmetic_figure", figure], exitcode=2)
    assert "`arithmetic_figure` draws the sums of `arithmetic`" in printed


def test_a_captioner_is_evaluated_with_other_fields_of_its_config(recipes):
    folder = tiny_captioner(recipes.folder / "tiny_captioner")
    report = recipes.folder / "argmax"
    flags = ["--checkpoint", folder, "--num_eval_images", 4, "--num_examples", 0, "--output_dir", report]
    recipes.run("evaluate_captioner", [*flags, "--model.hard_decoding", "argmax"])
    assert json.loads((report / "report.json").read_text())["hard_decoding"] == "argmax"
    printed = recipes.run("evaluate_captioner", [*flags, "--model.hard_decodin", "argmax"], exitcode=1)
    assert "unknown field hard_decodin of ShowAttendTellConfig, did you mean hard_decoding?" in printed
    assert "Traceback" not in printed


# Recipes that train nothing, and what each says at the end.
DRY_EVALUATIONS = {
    "evaluate_captioner": "BLEU-4",
    "evaluate_retrieval": "R@1/5/10",
    "evaluate_sentences": "accuracy",
    "extract_features": "images have features of shape",
}


def test_a_dry_run_does_everything_and_writes_nothing(recipes, tmp_path):
    """Also where nothing was trained before: a recipe that needs a checkpoint makes a tiny one."""
    nothing = tmp_path / "nothing"
    flags = {name: [*flags, "--output_dir", nothing] for name, flags in {**DRY, "train_vse": SPACE}.items()}
    flags |= {name: [] for name in DRY_EVALUATIONS}
    flags["evaluate_captioner"] += ["--num_examples", "0"]
    processes = {name: recipes.start(name, ["--dry_run", *given]) for name, given in flags.items()}
    for name, process in processes.items():
        process.join()
        printed = (recipes.folder / f"{name}.log").read_text()
        assert process.exitcode == 0, printed
        if name in DRY_EVALUATIONS:
            assert DRY_EVALUATIONS[name] in printed, name
        else:
            assert "Dry run: one step of 4 rows (loss " in printed, name
            assert "an evaluation (eval_loss " in printed and "model.safetensors" in printed, name
        # Nothing is recommended that is deleted at the end, and nothing is printed that was not measured.
        assert "The checkpoint is in" not in printed and "nan%" not in printed, name
    assert not nothing.exists() and not [*recipes.folder.glob("temporary/hf_vg_dry_run_*")]


@pytest.fixture(scope="module")
def stopped(recipes, tmp_path_factory):
    """A captioner whose training stopped early, watched by tensorboard and trackio."""
    for name in ("tensorboard", "trackio"):
        pytest.importorskip(name, reason=f"needs {name}, of hf-vg[tracking]")
    output_dir = tmp_path_factory.mktemp("stopped")
    settings = yaml.safe_load((RECIPES / "configs" / "show_attend_tell_scenes.yaml").read_text())
    config = output_dir / "watched.yaml"
    config.write_text(yaml.safe_dump({**settings, "report_to": ["tensorboard", "trackio"], "project": "tests"}))
    flags = ["--config", config, *CAPTIONER, "--output_dir", output_dir, "--num_train_epochs", "9"]
    flags += ["--learning_rate", "0", "--early_stopping_patience", "2", "--load_best_model_at_end"]
    flags += ["--metric_for_best_model", "cider", "--save_total_limit", "1", "--logging_steps", "1"]
    printed = recipes.run("train_captioner", flags, "log_into_output_dir")
    return output_dir, printed


def test_training_stops_early_and_keeps_the_best(stopped):
    """At a learning rate of 0 no evaluation is better than the first."""
    output_dir, _ = stopped
    (checkpoint,) = output_dir.glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-3" and is_complete(checkpoint)  # the first epoch's
    assert (checkpoint / "model.safetensors").read_bytes() == (output_dir / "model.safetensors").read_bytes()
    assert not list(output_dir.rglob("training_args.bin"))


def test_a_captioner_goes_on_for_the_score_of_what_it_says(recipes, stopped, tmp_path):
    output_dir, _ = stopped
    flags = [*CAPTIONER, "--checkpoint", output_dir, "--reward", "cider", "--num_candidates", "3", "--bf16", "true"]
    flags += ["--output_dir", tmp_path, "--max_steps", "2", "--logging_steps", "1", "--save_strategy", "steps"]
    recipes.run(
        "train_captioner", [*flags, "--save_steps", "2", "--num_beams", "2", "--load_best_model_at_end", "false"]
    )
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert [entry["reward"] >= 0 for entry in state["log_history"] if "reward" in entry] == [True, True]
    assert (tmp_path / "model.safetensors").read_bytes() != (output_dir / "model.safetensors").read_bytes()


def test_tensorboard_is_told_of_losses_and_scores(stopped):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output_dir, _ = stopped
    (events,) = output_dir.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    assert {"train/loss_caption", "train/loss_attention", "eval/loss", "eval/bleu4", "eval/cider"} <= {
        *accumulator.Tags()["scalars"]
    }
    # Three epochs: the best, and two that were not better.
    assert [event.step for event in accumulator.Scalars("eval/cider")] == [3, 6, 9]
    assert [event.step for event in accumulator.Scalars("train/loss")] == list(range(1, 10))


def test_trackio_is_told_as_well(stopped):
    output_dir, _ = stopped
    (database,) = (output_dir / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        logged = [json.loads(row) for (row,) in connection.execute("SELECT metrics FROM metrics")]
    assert len([entry for entry in logged if "train/loss_caption" in entry]) == 9
    assert len([entry for entry in logged if "eval/cider" in entry]) == 3


def test_settings_are_saved_and_taken_back(stopped):
    output_dir, _ = stopped
    (checkpoint,) = output_dir.glob("checkpoint-*")
    file = output_dir / "training_config.yaml"
    settings = yaml.safe_load(file.read_text())
    assert settings == yaml.safe_load((checkpoint / file.name).read_text())
    assert settings["seed"] == 0 and settings["early_stopping_patience"] == 2
    assert settings["model"]["hidden_size"] == 8 and settings["dataset"] == "scenes"
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert f"recipes/train_captioner.py --config {file}" in comments[0]
    revision = comments[1].removeprefix("# git revision: ").removesuffix("-dirty")
    assert len(revision) == 40 or "not in a git checkout" in revision
    assert "torch 2" in comments[2] and "transformers 5" in comments[2] and comments[3] == "# processes: 1"
    args, training_args = parse_arguments((CaptionerArguments, VgTrainingArguments), file, [])
    assert args.model == settings["model"] and args.num_scored_images == 4
    assert training_args.recipe_settings == settings


def test_early_stopping_needs_a_best_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="set `load_best_model_at_end: true` too"):
        VgTrainingArguments(str(tmp_path), early_stopping_patience=2)
    assert VgTrainingArguments(str(tmp_path)).ddp_find_unused_parameters is False
