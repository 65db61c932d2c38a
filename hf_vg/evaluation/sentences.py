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
"""Evaluates sentence vectors with the SentEval protocol (Conneau and Kiela, 2018) on eight tasks.

The protocol uses SentEval's "literature" settings. The vectors are fixed. A linear classifier is trained on them, or
on [|u - v| ; u * v] for pairs, with Adam in batches of 64. It is scored on held-out rows every 4 epochs. The best
classifier is kept, and training stops at the 6th score that is not better than the best before it. The L2
regularization is chosen from 1e-5 to 1e-2 by 10-fold cross-validation or on the dev split. The accuracy is that of a
classifier trained again with the chosen value. MR, CR, SUBJ and MPQA have no test split: they use nested
cross-validation. SICK-R predicts a distribution over the five scores, with the squared error as loss.

Differences from SentEval:

- The random order of an epoch is drawn once for all folds, see [`fit_linear_classifiers`].
- The folds are those of current scikit-learn. Before version 0.22, the same seed gave other folds.
- The cross entropy is a mean over the batch, as in SentEval with PyTorch 0.4.1 or later, not a sum.
- If an official test split is missing, the dev split replaces it (MRPC, whose classifier never sees it), or only the
  dev score is reported (SST2, SICK-E, SICK-R). SST2 is trained on the lines of `stsa.binary.train`, which may or may
  not include phrases.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ..data.sentence_tasks import SENTENCE_TASKS, SentenceTask, load_sentence_task
from .linear_classifiers import Fold, Schedule, fit_linear_classifiers, predict, squared_error_gradient
from .sentence_encoders import Encode


WEIGHT_DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
SEED = 1111

_RELATEDNESS_SCHEDULE = Schedule(epoch_size=50, tenacity=3, max_epoch=1000)


def evaluate_sentences(
    encode: Encode | Mapping[str, np.ndarray],
    folder: str | os.PathLike,
    tasks: Sequence[str] = SENTENCE_TASKS,
    num_folds: int = 10,
    device: str | torch.device = "cpu",
) -> dict[str, dict[str, float]]:
    r"""
    Evaluates sentence vectors on SentEval tasks.

    Args:
        encode (`Callable` or `Mapping[str, np.ndarray]`):
            A function from a list of sentences to an array with one row per sentence, such as the method `encode` of
            [`SelfAttnGroundedEncoderModel`]. Or a mapping from sentences to vectors. Each sentence is encoded once.
        folder (`str` or `os.PathLike`):
            The folder with the files of the tasks, see [`load_sentence_task`].
        tasks (`Sequence[str]`, *optional*, defaults to all eight):
            The tasks to evaluate.
        num_folds (`int`, *optional*, defaults to 10):
            Number of folds of the inner and outer cross-validation.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`):
            The device for training the classifiers.

    Returns:
        `dict[str, dict[str, float]]`: For each task, in percent: `dev_accuracy`, and `accuracy` on test rows. MRPC
        also has `f1`. SICK-R has `dev_pearson`, `pearson`, `spearman`, and `mse`, which is not a percentage. Without a
        test split, the test scores are missing.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from hf_vg.evaluation import evaluate_sentences

    >>> folder = tempfile.TemporaryDirectory()
    >>> lines = [f"{number % 2} {('dull', 'lovely')[number % 2]} film {number}" for number in range(40)]
    >>> _ = Path(folder.name, "rt-polarity.all").write_text("\n".join(lines))
    >>> encode = lambda texts: np.array([["lovely" in text, "dull" in text] for text in texts], dtype=float)
    >>> evaluate_sentences(encode, folder.name, tasks=["MR"], num_folds=2)["MR"]["dev_accuracy"]
    100.0
    ```
    """
    loaded = [load_sentence_task(task, folder) for task in tasks]
    if not isinstance(encode, Mapping):
        encode = _encode_once(encode, sorted({sentence for task in loaded for sentence in _sentences(task)}))
    return {task.name: evaluate_sentence_task(task, encode, num_folds, device) for task in loaded}


def evaluate_sentence_task(
    task: SentenceTask,
    encode: Encode | Mapping[str, np.ndarray],
    num_folds: int = 10,
    device: str | torch.device = "cpu",
    schedule: Schedule | None = None,
) -> dict[str, float]:
    """
    Evaluates sentence vectors on one task, see [`evaluate_sentences`].

    Args:
        task ([`SentenceTask`]):
            The task.
        encode (`Callable` or `Mapping[str, np.ndarray]`):
            A function from a list of sentences to vectors, or a mapping from sentences to vectors.
        num_folds (`int`, *optional*, defaults to 10):
            Number of folds of the cross-validation.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`):
            The device for training the classifiers.
        schedule ([`Schedule`], *optional*):
            The training schedule of the classifiers. Defaults to SentEval's.

    Returns:
        `dict[str, float]`: The scores of the task.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import scene_phrase_task
    >>> from hf_vg.evaluation import evaluate_sentence_task

    >>> words = ("red", "green", "blue", "small", "large", "circle", "square")
    >>> encode = lambda texts: np.array([[text.count(word) for word in words] for text in texts], dtype=float)
    >>> sorted(evaluate_sentence_task(scene_phrase_task(20, 5), encode))
    ['accuracy', 'dev_accuracy']
    ```
    """
    features = _features(task, encode)
    features = {name: torch.as_tensor(array, device=device) for name, array in features.items()}
    labels = {name: split.labels for name, split in task.splits.items()}
    settings: dict[str, Any] = {"num_folds": num_folds, "schedule": schedule}
    if task.name == "SICK-R":
        return _relatedness(features, labels, schedule or _RELATEDNESS_SCHEDULE)
    if "dev" in features:
        return _with_splits(task.name, features, labels, schedule)
    if "test" in features:
        return _cross_validated(task.name, features, labels, **settings)
    return _nested_cross_validated(task.name, features["train"], labels["train"], **settings)


def stratified_folds(labels: np.ndarray, num_folds: int, seed: int = SEED) -> list[tuple[np.ndarray, np.ndarray]]:
    r"""
    Splits rows into folds with nearly the same share of each class. The folds equal those of scikit-learn's
    `StratifiedKFold(num_folds, shuffle=True, random_state=seed)`.

    Args:
        labels (`np.ndarray`):
            The class of each row.
        num_folds (`int`):
            Number of folds.
        seed (`int`, *optional*, defaults to 1111):
            Seed of the shuffle.

    Returns:
        `list[tuple[np.ndarray, np.ndarray]]`: The training rows and the held-out rows of each fold.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation.sentences import stratified_folds

    >>> [len(held_out) for _, held_out in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), num_folds=3)]
    [2, 2, 2]
    ```
    """
    classes, first_rows, codes, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    if counts.min() < num_folds:
        raise ValueError(
            f"{num_folds} folds need at least {num_folds} rows of each class, but class {classes[counts.argmin()]} "
            f"has {counts.min()}."
        )
    rng = np.random.RandomState(seed)
    fold_of_row = np.empty(len(labels), dtype=np.int64)
    position = 0
    for code in np.argsort(first_rows):  # classes in order of first appearance
        # Rows are dealt to the folds in turn, starting after the last fold of the previous class, then shuffled.
        dealt = np.sort((position + np.arange(counts[code])) % num_folds)
        rng.shuffle(dealt)
        fold_of_row[codes == code] = dealt
        position += counts[code]
    return [(np.flatnonzero(fold_of_row != fold), np.flatnonzero(fold_of_row == fold)) for fold in range(num_folds)]


def _nested_cross_validated(name: str, features: Any, labels: Any, num_folds: int, schedule: Any) -> dict[str, float]:
    targets = _one_hot(labels, features.device)
    outer_folds = stratified_folds(labels, num_folds)
    dev_accuracies, refits = [], []
    with tqdm(
        total=num_folds * (num_folds * len(WEIGHT_DECAYS) + 1),
        desc=name,
        unit="classifier",
    ) as progress:
        for outer_train, _ in outer_folds:
            inner_folds = [
                Fold(outer_train[train], outer_train[dev], WEIGHT_DECAYS)
                for train, dev in stratified_folds(labels[outer_train], num_folds)
            ]
            _, scores = fit_linear_classifiers(features, targets, inner_folds, schedule=schedule, progress=progress)
            weight_decay, dev_accuracy = _best_weight_decay(scores)
            dev_accuracies.append(dev_accuracy)
            refits.append(_refit_fold(outer_train, weight_decay))
        weights, _ = fit_linear_classifiers(features, targets, refits, schedule=schedule, progress=progress)
    accuracies = []
    for (_, held_out), weight in zip(outer_folds, weights, strict=True):
        predicted = predict(weight[0], features[torch.as_tensor(held_out)]).argmax(dim=1).cpu().numpy()
        accuracies.append(round(100 * float(np.mean(predicted == labels[held_out])), 2))
    return {"dev_accuracy": round(float(np.mean(dev_accuracies)), 2), "accuracy": round(float(np.mean(accuracies)), 2)}


def _cross_validated(name: str, features: Any, labels: Any, num_folds: int, schedule: Any) -> dict[str, float]:
    targets = _one_hot(labels["train"], features["train"].device)
    folds = [Fold(train, dev, WEIGHT_DECAYS) for train, dev in stratified_folds(labels["train"], num_folds)]
    with tqdm(total=num_folds * len(WEIGHT_DECAYS) + 1, desc=name, unit="classifier") as progress:
        _, scores = fit_linear_classifiers(features["train"], targets, folds, schedule=schedule, progress=progress)
        weight_decay, dev_accuracy = _best_weight_decay(scores)
        refit = _refit_fold(np.arange(len(labels["train"])), weight_decay)
        ((weight,), _) = fit_linear_classifiers(
            features["train"], targets, [refit], schedule=schedule, progress=progress
        )
    predicted = predict(weight[0], features["test"]).argmax(dim=1).cpu().numpy()
    hits = int(np.sum((predicted == 1) & (labels["test"] == 1)))
    mentions = int(np.sum(predicted == 1) + np.sum(labels["test"] == 1))
    return {
        "dev_accuracy": dev_accuracy,
        "accuracy": round(100 * float(np.mean(predicted == labels["test"])), 2),
        "f1": round(100 * 2 * hits / mentions, 2) if mentions else 0.0,
    }


def _with_splits(name: str, features: Any, labels: Any, schedule: Any) -> dict[str, float]:
    rows, targets, fold = _one_fold(features, labels, WEIGHT_DECAYS)
    with tqdm(total=len(WEIGHT_DECAYS), desc=name, unit="classifier") as progress:
        # SentEval trains a classifier again with the chosen weight decay. The seed and the data are the same, so it
        # equals the classifier that was chosen.
        ((weights,), scores) = fit_linear_classifiers(
            rows, _one_hot(targets, rows.device), [fold], schedule=schedule, progress=progress
        )
    weight_decay, dev_accuracy = _best_weight_decay(scores)
    results = {"dev_accuracy": dev_accuracy}
    if "test" in features:
        weight = weights[WEIGHT_DECAYS.index(weight_decay)]
        predicted = predict(weight, features["test"]).argmax(dim=1).cpu().numpy()
        results["accuracy"] = round(100 * float(np.mean(predicted == labels["test"])), 2)
    return results


def _relatedness(features: Any, labels: Any, schedule: Any) -> dict[str, float]:
    rows, scores, fold = _one_fold(features, labels, (0.0,))
    targets = torch.tensor(score_distribution(scores), device=rows.device)
    values = torch.arange(1, targets.shape[1] + 1, dtype=torch.double, device=rows.device)
    dev_scores = torch.tensor(labels["dev"], dtype=torch.double, device=rows.device)

    def dev_pearson(logits: torch.Tensor, _: Any) -> torch.Tensor:
        predicted = logits.softmax(dim=-1).double() @ values  # (rows, classifiers)
        return torch.stack([_pearson(column, dev_scores) for column in predicted.unbind(1)])

    with tqdm(total=1, desc="SICK-R", unit="classifier") as progress:
        ((weight,), (best,)) = fit_linear_classifiers(
            rows, targets, [fold], squared_error_gradient, dev_pearson, schedule, progress=progress
        )
    results = {"dev_pearson": 100 * best.item()}
    if "test" in features:
        predicted = (predict(weight[0], features["test"]).softmax(dim=-1).double() @ values).cpu()
        actual = torch.tensor(labels["test"], dtype=torch.double)
        results["pearson"] = 100 * _pearson(predicted, actual).item()
        results["spearman"] = 100 * _pearson(_ranks(predicted), _ranks(actual)).item()
        results["mse"] = (predicted - actual).square().mean().item()
    return results


def score_distribution(scores: np.ndarray) -> np.ndarray:
    """
    Converts scores from 1 to 5 to the target distributions of Tai et al. (2015): a score is split between the integers
    below and above it.

    Args:
        scores (`np.ndarray`):
            The scores.

    Returns:
        `np.ndarray` of shape `(scores, 5)`: The distributions.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation.sentences import score_distribution

    >>> score_distribution(np.array([3.25])).tolist()
    [[0.0, 0.0, 0.75, 0.25, 0.0]]
    ```
    """
    targets = np.zeros((len(scores), 5), dtype=np.float32)
    floors = np.floor(scores).astype(np.int64)
    rows = np.arange(len(scores))
    targets[rows, floors - 1] = floors + 1 - scores
    between = floors < 5
    targets[rows[between], floors[between]] = (scores - floors)[between]
    return targets


def _best_weight_decay(scores: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Chooses by mean accuracy over folds, rounded as in SentEval. The smallest of equally good values is chosen."""
    means = [round(100 * value, 2) for value in torch.stack(list(scores)).mean(dim=0).tolist()]
    best = int(np.argmax(means))
    return WEIGHT_DECAYS[best], means[best]


def _refit_fold(train: np.ndarray, weight_decay: float) -> Fold:
    """Holds out 5% of the rows for early stopping."""
    order = np.random.RandomState(SEED).permutation(len(train))
    held_out = int(0.05 * len(train))
    return Fold(train[order[held_out:]], train[order[:held_out]], (weight_decay,))


def _one_fold(features: Any, labels: Any, weight_decays: Any) -> tuple[torch.Tensor, np.ndarray, Fold]:
    num_train, num_dev = len(labels["train"]), len(labels["dev"])
    fold = Fold(np.arange(num_train), num_train + np.arange(num_dev), weight_decays)
    rows = torch.cat([features["train"], features["dev"]])
    return rows, np.concatenate([labels["train"], labels["dev"]]), fold


def _one_hot(labels: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.as_tensor(labels, device=device)).float()


def _pearson(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x - x.mean(), y - y.mean()
    return ((x @ y) / (x.norm() * y.norm())).nan_to_num()  # 0 for a constant


def _ranks(values: torch.Tensor) -> torch.Tensor:
    """Computes ranks. Equal values get the mean of their ranks."""
    _, codes, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[codes]


def _sentences(task: SentenceTask) -> set[str]:
    return {sentence for split in task.splits.values() for row in split.sentences for sentence in row}


def _encode_once(encode: Encode, sentences: list[str]) -> dict[str, np.ndarray]:
    vectors = encode(sentences)
    vectors = vectors.cpu().numpy() if isinstance(vectors, torch.Tensor) else np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise ValueError(
            f"`encode` must return one vector per sentence: for {len(sentences)} sentences it returned an array of "
            f"shape {vectors.shape}."
        )
    return dict(zip(sentences, vectors, strict=True))


def _features(task: SentenceTask, encode: Encode | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    sentences = sorted(_sentences(task))
    found = encode if isinstance(encode, Mapping) else _encode_once(encode, sentences)
    missing = next((sentence for sentence in sentences if sentence not in found), None)
    if missing is not None:
        raise KeyError(f"There is no vector for a sentence of {task.name}: {missing!r}.")
    vectors = np.stack([np.asarray(found[sentence]) for sentence in sentences])
    if not np.isfinite(vectors).all():
        bad = sentences[int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])]
        raise ValueError(f"The vector of a sentence of {task.name} is not finite: {bad!r}.")
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    features = {}
    for name, split in task.splits.items():
        parts = [vectors[[row_of[sentence] for sentence in column]] for column in zip(*split.sentences, strict=True)]
        if len(parts) == 1:
            features[name] = parts[0].astype(np.float32)
        else:
            u, v = parts
            features[name] = np.concatenate([np.abs(u - v), u * v], axis=1).astype(np.float32)
    return features
