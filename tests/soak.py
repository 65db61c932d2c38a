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
Kills a training 20 times and a feature extraction 20 times, at random moments, and compares what comes out bit by bit
with what comes out without a kill. Run it with `make soak`; it takes about ten minutes on two cores.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from hf_vg.data import FeatureCache
from hf_vg.training import tiny_backbone
from tests.common import start_process
from tests.training.test_recipes import CAPTIONER, run_recipe


TRAINING = [
    *CAPTIONER, "--model.dropout", "0.5", "--max_steps", "60", "--save_strategy", "steps", "--save_steps", "3",
    *("--save_total_limit", "2", "--eval_strategy", "no", "--load_best_model_at_end", "false", "--logging_steps", "1"),
]  # fmt: skip
EXTRACTION = [
    *("--dataset", "scenes", "--num_train_images", "600", "--num_eval_images", "4", "--image_size", "32"),
    *("--batch_size", "4", "--shard_size", "8", "--num_workers", "1"),
]


def run(recipe: str, flags: list[str], log: Path, kill_after: float | None = None) -> bool:
    """Runs a recipe, and kills it after so many seconds. Returns whether it came to its end."""
    process = start_process(run_recipe, recipe, [str(flag) for flag in flags], str(log), None)
    process.join(kill_after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        return False
    if process.exitcode != 0:
        raise SystemExit(f"{recipe} ended with {process.exitcode}:\n{log.read_text()[-3000:]}")
    return True


def soak(recipe: str, flags: list[str], folder: Path, output: str, kills: int, generator: random.Random) -> float:
    """Runs a recipe once as a whole and once with kills, and returns the seconds that it takes as a whole."""
    log = folder / "log"
    start = time.monotonic()
    run(recipe, [*flags, output, folder / "whole"], log)
    seconds = time.monotonic() - start
    killed = 0
    while killed < kills:
        if run(recipe, [*flags, output, folder / "killed"], log, generator.uniform(0.2, 1.0) * seconds):
            # It came to its end before all kills: begin anew, and keep counting.
            shutil.rmtree(folder / "killed")
        else:
            killed += 1
    while not run(recipe, [*flags, output, folder / "killed"], log):
        pass
    return seconds


def weights_of(folder: Path) -> dict:
    """All weights and optimizer states of a training, by file."""
    weights = {str(file.relative_to(folder)): load_file(file) for file in folder.rglob("*.safetensors")}
    for file in folder.rglob("optimizer.pt"):
        weights[str(file.relative_to(folder))] = torch.load(file, weights_only=True)
    return weights


def features_of(folder: Path) -> dict:
    """The features of each image. How they are divided into files depends on when an extraction was killed."""
    (cache,) = (file.parent for file in folder.glob("*/about.json"))
    return {digest.hex(): features for digest, features in FeatureCache(cache).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of the training, and of the extraction (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HF_HOME"] = str(folder / "home")
        for part in ("training", "extraction"):
            (folder / part / "temporary").mkdir(parents=True)
        extraction = [*EXTRACTION, "--backbone", tiny_backbone(folder / "backbone")]
        for recipe, flags, part, output, contents_of in (
            ("train_captioner", TRAINING, "training", "--output_dir", weights_of),
            ("extract_features", extraction, "extraction", "--features", features_of),
        ):
            seconds = soak(recipe, flags, folder / part, output, args.kills, generator)
            whole, killed = (contents_of(folder / part / name) for name in ("whole", "killed"))
            assert whole, "there is nothing to compare"
            torch.testing.assert_close(whole, killed, rtol=0, atol=0)
            print(
                f"{recipe}: killed {args.kills} times, and run to its end. {len(whole)} "
                f"{'files' if part == 'training' else 'feature maps'} are the same, bit by bit, as without a kill. "
                f"(A run that is not killed takes {seconds:.0f} s.)",
                flush=True,
            )


if __name__ == "__main__":
    main()
