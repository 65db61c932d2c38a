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
Kills a training and a feature extraction 20 times each, at random moments, and compares the results bit by bit with
those of runs without a kill. Run it with `make soak`. It takes some minutes on two cores.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from hf_vg.data import FeatureCache, feature_extraction
from hf_vg.training import tiny_backbone
from tests.common import start_process
from tests.training.test_recipes import CAPTIONER, run_recipe


TRAINING = [
    *CAPTIONER, "--model.dropout", "0.5", "--max_steps", "30", "--save_strategy", "steps", "--save_steps", "3",
    *("--save_total_limit", "2", "--eval_strategy", "no", "--load_best_model_at_end", "false", "--logging_steps", "1"),
]  # fmt: skip
EXTRACTION = [
    *("--dataset", "scenes", "--num_train_images", "400", "--num_eval_images", "4", "--image_size", "32"),
    *("--batch_size", "4", "--num_workers", "1"),
]


def run_with_small_shards(*args) -> None:
    """A recipe that writes features in shards of eight images, so there are many moments to kill it."""
    feature_extraction.extract_features = partial(feature_extraction.extract_features, shard_size=8)
    run_recipe(*args)


class Run:
    """A run of a recipe that writes checkpoints or shards. It detects when a new one appears."""

    def __init__(self, recipe: str, flags: list[str], output: Path, log: Path):
        self.recipe, self.output, self.log = recipe, output, log
        self.seen, self.moments = self.written(), []
        self.start = time.monotonic()
        self.process = start_process(run_with_small_shards, recipe, [str(flag) for flag in flags], str(log))

    def written(self) -> set[str]:
        with suppress(FileNotFoundError):  # old checkpoints may be deleted at the same time
            return {path.name for pattern in ("checkpoint-*", "*/*.safetensors") for path in self.output.glob(pattern)}
        return set()

    def is_over(self) -> bool:
        """Looks for new files, and returns whether the run has finished."""
        new = self.written() - self.seen
        self.seen |= new
        self.moments += [time.monotonic() - self.start] * len(new)
        self.process.join(0.02)
        if self.process.is_alive():
            return False
        if self.process.exitcode != 0:
            raise SystemExit(f"{self.recipe} ended with {self.process.exitcode}:\n{self.log.read_text()[-3000:]}")
        return True

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def soak(recipe: str, flags: list[str], folder: Path, output: str, kills: int, generator: random.Random) -> None:
    """Runs a recipe once without kills, and once with kills."""

    def start(name: str) -> Run:
        return Run(recipe, [*flags, output, str(folder / name)], folder / name, folder / "log")

    whole = start("whole")
    while not whole.is_over():
        pass
    first, last, number = whole.moments[0], whole.moments[-1], len(whole.moments)
    killed = ended = 0
    while killed < kills:
        # Kill at a random moment between the start and the first file, or between two files. Files are counted
        # because their speed depends on the load of the machine.
        run, files = start("killed"), generator.randint(0, number // 4)
        delay = generator.random() * (first if files == 0 else (last - first) / number)
        over = False
        while not over and len(run.moments) < files:
            over = run.is_over()
        end = time.monotonic() + delay
        while not over and time.monotonic() < end:
            over = run.is_over()
        if over:  # it finished before all kills: start again, and keep counting
            shutil.rmtree(folder / "killed")
            ended += 1
        else:
            run.kill()
            killed += 1
        print(f"{recipe}: killed {killed} times, {ended} runs came to their end", flush=True)
    run = start("killed")
    while not run.is_over():
        pass


def weights_of(folder: Path) -> dict:
    """Returns all weights and optimizer states of a training, by file."""
    weights = {str(file.relative_to(folder)): load_file(file) for file in folder.rglob("*.safetensors")}
    for file in folder.rglob("optimizer.pt"):
        weights[str(file.relative_to(folder))] = torch.load(file, weights_only=True)
    return weights


def features_of(folder: Path) -> dict:
    """Returns the features of each image. Their distribution over files depends on when an extraction was killed."""
    (cache,) = (file.parent for file in folder.glob("*/about.json"))
    return {digest.hex(): features for digest, features in FeatureCache(cache).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of the training, and of the extraction (%(default)s)")
    parser.add_argument("--part", choices=["training", "extraction"], help="of the two; both by default")
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
            if args.part not in (None, part):
                continue
            soak(recipe, flags, folder / part, output, args.kills, generator)
            whole, killed = (contents_of(folder / part / name) for name in ("whole", "killed"))
            assert whole, "there is nothing to compare"
            torch.testing.assert_close(whole, killed, rtol=0, atol=0)
            print(
                f"{recipe}: killed {args.kills} times, and run to its end. {len(whole)} "
                f"{'files' if part == 'training' else 'feature maps'} are the same, bit by bit, as without a kill.",
                flush=True,
            )


if __name__ == "__main__":
    main()
