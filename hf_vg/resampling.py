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
"""Confidence intervals by resampling."""

from collections.abc import Callable, Sequence

import numpy as np


# Resampled sums that are in memory at a time.
_SAMPLES_AT_A_TIME = 100


def bootstrap(
    statistics: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    samples: int = 1000,
) -> np.ndarray:
    r"""
    Confidence intervals of scores of a set of images, by drawing sets as large from it with replacement.

    Args:
        statistics (`np.ndarray` of shape `(statistics, images)`):
            What, summed over images, scores are computed from. Nothing else is looked at again, so that a thousand
            sets take less than a second.
        score (`Callable`):
            Makes of sums of shape `(statistics, sets)` scores of shape `(scores, sets)`.
        samples (`int`, *optional*, defaults to 1000):
            Sets that are drawn.

    Returns:
        `np.ndarray` of shape `(scores, 2)`: Lower and upper ends, which hold the scores of 95% of the sets; of the
        others, equally many are below and above.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    images = statistics.shape[1]
    if not images:
        raise ValueError("There are no images to draw from.")
    rng = np.random.default_rng(0)
    scores = []
    for start in range(0, samples, _SAMPLES_AT_A_TIME):
        # How often each image is in each set.
        counts = rng.multinomial(images, np.full(images, 1 / images), size=min(_SAMPLES_AT_A_TIME, samples - start))
        scores.append(score(statistics @ counts.T.astype(np.float64)))
    tail = 2.5
    # A set without a single word to judge has no score, which is no number.
    return np.nanpercentile(np.concatenate(scores, axis=1), [tail, 100 - tail], axis=1).T


def mean_intervals(
    values: np.ndarray, images: Sequence[int] | np.ndarray, number: int | None = None, samples: int = 1000
) -> list[dict[str, float]]:
    r"""
    Means over words, with confidence intervals over the images that the words are of.

    Args:
        values (`np.ndarray` of shape `(words, scores)`):
            The scores of each word.
        images (`Sequence[int]`):
            The image of each word.
        number (`int`, *optional*):
            The number of images, which are then numbered from 0. By default those that have words; if that is only
            one, words are drawn instead of images.
        samples (`int`, *optional*, defaults to 1000):
            Sets that are drawn.

    Returns:
        `list[dict[str, float]]`: For each score its mean, `value`, and `low` and `high`.
    """
    values, images = np.asarray(values, dtype=np.float64), np.asarray(images)
    if number is None:
        names, images = np.unique(images, return_inverse=True)
        if len(names) == 1:
            names = images = np.arange(len(values))
        number = len(names)
    statistics = np.zeros((1 + values.shape[1], number))
    np.add.at(statistics.T, images, np.concatenate([np.ones((len(values), 1)), values], axis=1))
    ends = bootstrap(statistics, lambda sums: sums[1:] / np.where(sums[0] > 0, sums[0], np.nan), samples)
    return [
        {"value": float(value), "low": float(low), "high": float(high)}
        for value, (low, high) in zip(values.mean(axis=0), ends, strict=True)
    ]
