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
"""Many linear classifiers on one set of features, trained together as fast as their shared rows allow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm


@dataclass
class Fold:
    r"""
    What some classifiers are trained on and stopped by.

    Args:
        train (`np.ndarray`):
            The rows to train on.
        dev (`np.ndarray`):
            The rows whose score decides which epoch is kept, and when to stop.
        weight_decays (`Sequence[float]`):
            L2 regularisation, with a classifier for each.
    """

    train: np.ndarray
    dev: np.ndarray
    weight_decays: Sequence[float]


@dataclass
class Schedule:
    """How SentEval trains: Adam, a score every `epoch_size` epochs, and an end once more than `tenacity` were no
    better than the best before. Scores that are better do not set that count back to zero."""

    batch_size: int = 64
    epoch_size: int = 4
    tenacity: int = 5
    max_epoch: int = 200
    learning_rate: float = 1e-3


def cross_entropy_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of a row's loss, for logits of shape `(rows, classifiers, classes)`."""
    return logits.softmax(dim=-1) - targets.unsqueeze(1)


def squared_error_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same for the squared error of probabilities, averaged over classes."""
    probabilities = logits.softmax(dim=-1)
    slope = (2 / targets.shape[-1]) * (probabilities - targets.unsqueeze(1))
    return probabilities * (slope - (probabilities * slope).sum(dim=-1, keepdim=True))


def accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of each classifier, for logits of shape `(rows, classifiers, classes)`."""
    return (logits.argmax(dim=-1) == targets.argmax(dim=-1).unsqueeze(1)).double().mean(dim=0)


def fit_linear_classifiers(
    features: torch.Tensor,
    targets: torch.Tensor,
    folds: Sequence[Fold],
    gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy_gradient,
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = accuracy,
    schedule: Schedule | None = None,
    seed: int = 1111,
    progress: tqdm | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    r"""
    Trains a linear layer for each fold and weight decay, all at once.

    An epoch has one random order of all rows. A fold leaves out of it what it does not train on and cuts the rest into
    batches, so each classifier sees what it would see alone: every row once, in random order, in batches of
    `batch_size`. As the folds' batches lie near each other in that order, a step multiplies one block of rows with the
    weights of all classifiers.

    Args:
        features (`torch.Tensor` of shape `(rows, feature_size)`):
            On the device to train on.
        targets (`torch.Tensor` of shape `(rows, classes)`):
            Probabilities of the classes, one-hot for hard labels.
        folds (`Sequence[Fold]`):
            The more rows they share the better.
        gradient (`Callable`, *optional*, defaults to [`cross_entropy_gradient`]):
            Gradient of the loss by the logits.
        score (`Callable`, *optional*, defaults to [`accuracy`]):
            What is wanted high.
        schedule ([`Schedule`], *optional*):
            Batch size, early stopping and learning rate.
        seed (`int`, *optional*, defaults to 1111):
            Of the initial weights, which are the same for all, and of the orders.
        progress (`tqdm`, *optional*):
            A bar that advances by one for each classifier that is done.

    Returns:
        `tuple` of two lists with an entry a fold: weights of shape `(weight decays, classes, feature_size + 1)`, the
        last column being the biases, and the best dev scores of shape `(weight decays,)`.
    """
    schedule = schedule or Schedule()
    device, num_classes = features.device, targets.shape[1]
    features, targets = with_ones(features.float()), targets.float()
    num_rows, width = features.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(width - 1, num_classes)
    initial = torch.cat([layer.weight.detach(), layer.bias.detach().unsqueeze(1)], dim=1).to(device)  # (C, width)

    # The classifiers, one after the other: those that are done are taken out.
    fold_of = torch.tensor([f for f, fold in enumerate(folds) for _ in fold.weight_decays], device=device)
    slot_of = torch.tensor([s for fold in folds for s in range(len(fold.weight_decays))])
    decay = torch.tensor([d for fold in folds for d in fold.weight_decays], device=device)
    weights = initial.repeat(len(fold_of), 1, 1)  # (classifiers, C, width)
    adam = Adam(weights, schedule.learning_rate)
    failures = torch.zeros(len(fold_of), dtype=torch.long)
    best_scores = [torch.full((len(fold.weight_decays),), -1.0, dtype=torch.double) for fold in folds]
    best_weights = [initial.repeat(len(fold.weight_decays), 1, 1) for fold in folds]

    is_train = torch.zeros(len(folds), num_rows, dtype=torch.bool)
    for row, fold in zip(is_train, folds, strict=True):
        row[torch.as_tensor(fold.train)] = True
    dev_rows = [torch.as_tensor(fold.dev, device=device) for fold in folds]

    rng = np.random.RandomState(seed)
    epoch = 0
    while len(weights) and epoch <= schedule.max_epoch:
        for _ in range(schedule.epoch_size):
            order = torch.from_numpy(rng.permutation(num_rows))
            for window, members in batches(order, is_train, fold_of.unique().cpu(), schedule.batch_size):
                rows = order[window].to(device)
                in_batch = members.to(device)[fold_of]  # (classifiers, rows)
                counts = in_batch.sum(dim=1)
                block = features.index_select(0, rows)
                logits = (block @ weights.flatten(0, 1).T).unflatten(1, (-1, num_classes))
                slopes = gradient(logits, targets.index_select(0, rows))  # (rows, classifiers, C)
                slopes *= (in_batch / counts.clamp(min=1).unsqueeze(1)).T.unsqueeze(-1)
                slope = (slopes.flatten(1).T @ block).view_as(weights)
                slope.addcmul_(weights, decay.view(-1, 1, 1))
                adam.step(weights, slope, idle=counts == 0)
        epoch += schedule.epoch_size

        keep = torch.ones(len(weights), dtype=torch.bool)
        for fold in fold_of.unique().tolist():
            of_fold = (fold_of == fold).nonzero().squeeze(1)
            rows = dev_rows[fold]
            logits = features.index_select(0, rows) @ weights[of_fold].flatten(0, 1).T
            scores = score(logits.unflatten(1, (-1, num_classes)), targets.index_select(0, rows)).nan_to_num().cpu()
            for classifier, value in zip(of_fold.tolist(), scores, strict=True):
                slot = slot_of[classifier]
                if value > best_scores[fold][slot]:
                    best_scores[fold][slot] = value
                    best_weights[fold][slot] = weights[classifier]
                else:
                    keep[classifier] = failures[classifier] < schedule.tenacity
                    failures[classifier] += 1
        if not keep.all():
            if progress is not None:
                progress.update(int((~keep).sum()))
            on_device = keep.to(device)
            fold_of, decay, weights = fold_of[on_device], decay[on_device], weights[on_device]
            slot_of, failures = slot_of[keep], failures[keep]
            adam.keep(on_device)
    if progress is not None:
        progress.update(len(weights))
    return best_weights, best_scores


def predict(weights: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Logits of shape `(rows, classes)` of one classifier, its weights of shape `(classes, feature_size + 1)`."""
    return with_ones(features.float()) @ weights.T


def with_ones(features: torch.Tensor) -> torch.Tensor:
    """A bias is the weight of a feature that is always one; Adam and weight decay treat both alike."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def batches(order: torch.Tensor, is_train: torch.Tensor, folds: torch.Tensor, batch_size: int) -> Any:
    """
    The steps of an epoch: for each a slice of `order` that holds the batches of all `folds`, and which of its rows
    belong to the batch of each fold, of shape `(len(is_train), rows)`.
    """
    trained = is_train[:, order]  # (F, rows)
    # Which of its fold's batches a row belongs to. Rows that are not trained on count to the batch before them.
    batch = (trained.cumsum(dim=1) - 1).clamp(min=0) // batch_size
    places = [trained[fold].nonzero().squeeze(1).tolist() for fold in folds.tolist()]
    for step in range(int(batch[folds].max()) + 1):
        of_step = [rows[step * batch_size : (step + 1) * batch_size] for rows in places]
        window = slice(min(rows[0] for rows in of_step if rows), max(rows[-1] for rows in of_step if rows) + 1)
        yield window, trained[:, window] & (batch[:, window] == step)


class Adam:
    """`torch.optim.Adam` for classifiers that need not take equally many steps."""

    def __init__(self, weights: torch.Tensor, learning_rate: float):
        self.learning_rate = learning_rate
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = torch.zeros(len(weights), 1, 1, dtype=torch.double, device=weights.device)

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, idle: torch.Tensor) -> Any:
        """Changes `weights` in place, except those of `idle` classifiers; `gradient` serves as scratch memory."""
        any_idle = bool(idle.any())  # at most at the last step of an epoch
        if any_idle:
            before = [tensor[idle] for tensor in (weights, self.mean, self.square)]
        self.steps += (~idle).view(-1, 1, 1)
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        correction1, correction2 = 1 - 0.9**self.steps, (1 - 0.999**self.steps).sqrt()
        scale = torch.sqrt(self.square, out=gradient).div_(correction2.to(gradient)).add_(1e-8)
        weights.sub_(torch.div(self.mean, scale, out=scale).mul_((self.learning_rate / correction1).to(scale)))
        if any_idle:
            for tensor, values in zip((weights, self.mean, self.square), before, strict=True):
                tensor[idle] = values

    def keep(self, which: torch.Tensor) -> None:
        self.mean, self.square, self.steps = self.mean[which], self.square[which], self.steps[which]
