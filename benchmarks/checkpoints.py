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
Measures what it costs to mark a checkpoint as complete, with digests of its files: the mark's share of the time that
[`VgTrainer`] takes to save a ShowAttendTell of the paper's size with its optimizer.

    python benchmarks/checkpoints.py
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from hf_vg import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration
from hf_vg.training import VgTrainer, VgTrainingArguments, trainer


LIMIT = 0.01


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=7)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"save": [], "mark": []}

    def timed(name, function):
        def run(*arguments):
            start = time.perf_counter()
            function(*arguments)
            seconds[name].append(time.perf_counter() - start)

        return run

    model = ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(backbone_config=None))
    with tempfile.TemporaryDirectory() as folder:
        training_args = VgTrainingArguments(folder, use_cpu=True, report_to="none", save_total_limit=1)
        saved = VgTrainer(model=model, args=training_args, train_dataset=[{}])
        saved.create_optimizer_and_scheduler(num_training_steps=args.saves)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        saved.optimizer.step()  # without a step there is no state
        trainer.mark_complete = timed("mark", trainer.mark_complete)
        save = timed("save", saved._save_checkpoint)
        for step in range(1, args.saves + 1):
            saved.state.global_step = step
            os.sync()  # what the save before has left to write is not of this one
            save(model, None)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    save_time, mark_time = (statistics.median(seconds[name]) for name in ("save", "mark"))
    share = mark_time / save_time
    print(
        f"checkpoint of {size / 1e6:.0f} MB: saved in {save_time * 1e3:.0f} ms. The mark takes "
        f"{mark_time * 1e3:.1f} ms of it: {share:.2%} (limit {LIMIT:.0%}{'' if share < LIMIT else ', EXCEEDED'})"
    )


if __name__ == "__main__":
    main()
