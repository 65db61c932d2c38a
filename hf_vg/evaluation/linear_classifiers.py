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
"""Trains many linear classifiers on the same features at once."""

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
    The training and validation rows of some classifiers.

    Args:
        train (`np.ndarray`):
            The rows to train on.
        dev (`np.ndarray`):
            The rows that decide which epoch is kept and when training stops.
        weight_decays (`Sequence[float]`):
            The strengths of L2 regularization. One classifier is trained for each.
    """

    train: np.ndarray
    dev: np.ndarray
    weight_decays: Sequence[float]


@dataclass
class Schedule:
    """
    The training schedule of SentEval. It uses Adam and computes the dev score every `epoch_size` epochs. Training
    stops when more than `tenacity` scores were not better than the best score before them. A better score does not
    reset this count.

    Args:
        batch_size (`int`, *optional*, defaults to 64):
            Number of rows per batch.
        epoch_size (`int`, *optional*, defaults to 4):
            Number of epochs between two scores.
        tenacity (`int`, *optional*, defaults to 5):
            Number of scores without improvement that are tolerated.
        max_epoch (`int`, *optional*, defaults to 200):
            Maximum number of epochs.
        learning_rate (`float`, *optional*, defaults to 0.001):
            Learning rate of Adam.
    """

    batch_size: int = 64
    epoch_size: int = 4
    tenacity: int = 5
    max_epoch: int = 200
    learning_rate: float = 1e-3


def cross_entropy_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the gradient of the cross entropy for logits of shape `(rows, classifiers, classes)`."""
    return logits.softmax(dim=-1) - targets.unsqueeze(1)


def squared_error_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the gradient of the squared error of the probabilities, averaged over classes."""
    probabilities = logits.softmax(dim=-1)
    slope = (2 / targets.shape[-1]) * (probabilities - targets.unsqueeze(1))
    return probabilities * (slope - (probabilities * slope).sum(dim=-1, keepdim=True))


def accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the accuracy of each classifier for logits of shape `(rows, classifiers, classes)`."""
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

    All folds share one random order of the rows per epoch. A fold drops the rows that it does not train on and cuts
    the rest into batches. Each classifier sees what it would see alone: every row once, in random order, in batches of
    `batch_size`. The batches of the folds are close to each other in this order, so one step multiplies a single block
    of rows with the weights of all classifiers.

    Args:
        features (`torch.Tensor` of shape `(rows, feature_size)`):
            The features, on the device to train on.
        targets (`torch.Tensor` of shape `(rows, classes)`):
            Probabilities of the classes, one-hot for hard labels.
        folds (`Sequence[Fold]`):
            The folds. Training is faster if they share many rows.
        gradient (`Callable`, *optional*, defaults to [`cross_entropy_gradient`]):
            Gradient of the loss with respect to the logits.
        score (`Callable`, *optional*, defaults to [`accuracy`]):
            The dev score. Higher is better.
        schedule ([`Schedule`], *optional*):
            Batch size, early stopping and learning rate.
        seed (`int`, *optional*, defaults to 1111):
            Seed of the initial weights, which all classifiers share, and of the order of the rows.
        progress (`tqdm`, *optional*):
            A progress bar that advances by one for each finished classifier.

    Returns:
        `tuple[list[torch.Tensor], list[torch.Tensor]]`: For each fold, the weights of shape
        `(weight decays, classes, feature_size + 1)`, with the biases in the last column, and the best dev scores of
        shape `(weight decays,)`.
    """
    schedule = schedule or Schedule()
    device, num_classes = features.device, targets.shape[1]
    features, targets = with_ones(features.float()), targets.float()
    num_rows, width = features.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(width - 1, num_classes)
    initial = torch.cat([layer.weight.detach(), layer.bias.detach().unsqueeze(1)], dim=1).to(device)  # (C, width)

    # One row per classifier. Finished classifiers are removed.
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
    """Computes the logits `(rows, classes)` of a classifier with weights `(classes, feature_size + 1)`."""
    return with_ones(features.float()) @ weights.T


def with_ones(features: torch.Tensor) -> torch.Tensor:
    """Adds a feature that is always one: its weight is the bias. Adam and weight decay treat it like the others."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def batches(order: torch.Tensor, is_train: torch.Tensor, folds: torch.Tensor, batch_size: int) -> Any:
    """
    Yields the steps of an epoch: a slice of `order` that contains the batches of all `folds`, and a mask of shape
    `(len(is_train), rows)` with the rows of each fold's batch.
    """
    trained = is_train[:, order]  # (F, rows)
    # The batch of each row, for each fold. Rows outside of the fold get the batch before them.
    batch = (trained.cumsum(dim=1) - 1).clamp(min=0) // batch_size
    places = [trained[fold].nonzero().squeeze(1).tolist() for fold in folds.tolist()]
    for step in range(int(batch[folds].max()) + 1):
        of_step = [rows[step * batch_size : (step + 1) * batch_size] for rows in places]
        window = slice(min(rows[0] for rows in of_step if rows), max(rows[-1] for rows in of_step if rows) + 1)
        yield window, trained[:, window] & (batch[:, window] == step)


class Adam:
    """A version of `torch.optim.Adam` in which classifiers may take different numbers of steps."""

    def __init__(self, weights: torch.Tensor, learning_rate: float):
        self.learning_rate = learning_rate
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = torch.zeros(len(weights), 1, 1, dtype=torch.double, device=weights.device)

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, idle: torch.Tensor) -> Any:
        """Updates `weights` in place, except for `idle` classifiers. `gradient` is overwritten."""
        any_idle = bool(idle.any())  # only possible in the last step of an epoch
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
        """Drops the state of finished classifiers."""
        self.mean, self.square, self.steps = self.mean[which], self.square[which], self.steps[which]
