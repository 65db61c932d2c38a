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
The batched classifiers of `hf_vg.evaluation.sentences` against a plain loop that trains them one by one, as SentEval
does, side by side in one run. Both train the same classifiers on the same batches, and stop at the same epochs.

Vectors are drawn at random so that their classes overlap about as much as those of MR. The first outer fold of the
nested cross-validation is measured: 10 inner folds with 4 weight decays. The loop trains `--plain` of these 40.

```bash
python benchmarks/sentence_evaluation.py
python benchmarks/sentence_evaluation.py --rows 10662 --size 2432 --plain 8
```
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

from hf_vg.evaluation.linear_classifiers import Fold, Schedule, fit_linear_classifiers
from hf_vg.evaluation.sentences import WEIGHT_DECAYS, stratified_folds


def plain_classifier(
    features: torch.Tensor, labels: torch.Tensor, train: np.ndarray, dev: np.ndarray, weight_decay: float
) -> float:
    """SentEval's classifier on today's torch, on any device. Returns its best dev accuracy."""
    schedule = Schedule()
    torch.manual_seed(1111)
    layer = nn.Linear(features.shape[1], int(labels.max()) + 1).to(features.device)
    optimizer = torch.optim.Adam(layer.parameters(), weight_decay=weight_decay)
    loss_function = nn.CrossEntropyLoss()
    rng = np.random.RandomState(1111)
    is_train = np.zeros(len(features), dtype=bool)
    is_train[train] = True
    dev_features, dev_labels = features[dev], labels[dev]
    epoch, best, failures = 0, -1.0, 0
    while epoch <= schedule.max_epoch:
        for _ in range(schedule.epoch_size):
            order = rng.permutation(len(features))
            order = torch.from_numpy(order[is_train[order]]).to(features.device)
            for rows in order.split(schedule.batch_size):
                loss = loss_function(layer(features[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += schedule.epoch_size
        with torch.no_grad():
            accuracy = (layer(dev_features).argmax(dim=1) == dev_labels).double().mean().item()
        if accuracy > best:
            best = accuracy
        else:
            if failures >= schedule.tenacity:
                break
            failures += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Batched classifiers of the SentEval protocol against a plain loop.")
    parser.add_argument("--rows", type=int, default=10662, help="sentences; MR has 10,662")
    parser.add_argument("--size", type=int, default=2048, help="width of a sentence vector")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--plain", type=int, default=4, help="classifiers that the loop trains")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(arguments.rows) % 2
    direction = torch.randn(arguments.size, generator=generator)
    # Half the distance between the classes is 0.75 standard deviations: 77% can be told apart.
    shift = (2 * labels - 1).unsqueeze(1) * 0.75 * direction / direction.norm()
    features = torch.randn(arguments.rows, arguments.size, generator=generator) + shift
    features, labels = features.to(arguments.device), labels.to(arguments.device)

    host_labels = labels.cpu().numpy()
    outer_train, _ = stratified_folds(host_labels, arguments.folds)[0]
    folds = [
        Fold(outer_train[train], outer_train[dev], WEIGHT_DECAYS)
        for train, dev in stratified_folds(host_labels[outer_train], arguments.folds)
    ]
    start = time.perf_counter()
    _, scores = fit_linear_classifiers(features, nn.functional.one_hot(labels), folds)
    batched = (time.perf_counter() - start) / (len(folds) * len(WEIGHT_DECAYS))

    classifiers = [(slot, fold) for slot in range(len(WEIGHT_DECAYS)) for fold in range(len(folds))]
    chosen = classifiers[:: max(len(classifiers) // arguments.plain, 1)][: arguments.plain]  # of every weight decay
    differences = []
    start = time.perf_counter()
    for slot, fold in chosen:
        best = plain_classifier(features, labels, folds[fold].train, folds[fold].dev, WEIGHT_DECAYS[slot])
        differences.append(abs(best - scores[fold][slot].item()))
    plain = (time.perf_counter() - start) / len(chosen)

    threads = torch.get_num_threads()
    print(f"Classifiers on {arguments.rows:,} vectors of {arguments.size}, {arguments.device}, {threads} threads")
    print(f"  {'batched':<12} {batched:8.3f} s a classifier   ratio {1:5.1f}x")
    print(f"  {'plain loop':<12} {plain:8.3f} s a classifier   ratio {plain / batched:5.1f}x")
    print(f"  largest difference of dev accuracies: {100 * max(differences):.2f} points")
    total = arguments.folds * (arguments.folds * len(WEIGHT_DECAYS) + 1)
    print(f"  all {total} classifiers of the task: {total * batched:.0f} s batched, {total * plain:.0f} s by the loop")


if __name__ == "__main__":
    main()
