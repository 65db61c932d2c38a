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
"""Confidence intervals with the bootstrap."""

from collections.abc import Callable, Sequence

import numpy as np


# Maximum number of resampled sums in memory.
_SAMPLES_AT_A_TIME = 100


def bootstrap(
    statistics: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    samples: int = 1000,
) -> np.ndarray:
    r"""
    Computes 95% confidence intervals of scores by resampling images with replacement.

    Args:
        statistics (`np.ndarray` of shape `(statistics, images)`):
            The statistics of each image. Their sums over images determine the scores, so a thousand samples take less
            than a second.
        score (`Callable`):
            A function from sums of shape `(statistics, sets)` to scores of shape `(scores, sets)`.
        samples (`int`, *optional*, defaults to 1000):
            Number of samples.

    Returns:
        `np.ndarray` of shape `(scores, 2)`: The 2.5% and 97.5% percentiles of each score.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation import bootstrap

    >>> is_right = np.array([1.0, 0.0, 0.0, 0.0] * 25)  # an accuracy of 25% on 100 images
    >>> statistics = np.stack([np.ones(100), is_right])
    >>> bootstrap(statistics, lambda sums: sums[1:] / sums[:1]).round(2).tolist()
    [[0.17, 0.34]]
    ```
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    images = statistics.shape[1]
    if not images:
        raise ValueError("There are no images to sample from.")
    rng = np.random.default_rng(0)
    scores = []
    for start in range(0, samples, _SAMPLES_AT_A_TIME):
        # How often each sample contains each image.
        counts = rng.multinomial(images, np.full(images, 1 / images), size=min(_SAMPLES_AT_A_TIME, samples - start))
        scores.append(score(statistics @ counts.T.astype(np.float64)))
    tail = 2.5
    # The score of a sample without any words is NaN.
    return np.nanpercentile(np.concatenate(scores, axis=1), [tail, 100 - tail], axis=1).T


def mean_intervals(
    values: np.ndarray, images: Sequence[int] | np.ndarray, number: int | None = None, samples: int = 1000
) -> list[dict[str, float]]:
    r"""
    Computes means over words, with confidence intervals over images.

    Args:
        values (`np.ndarray` of shape `(words, scores)`):
            The scores of each word.
        images (`Sequence[int]`):
            The image of each word.
        number (`int`, *optional*):
            The number of images, which are then numbered from 0. By default only images with words are counted. If
            there is only one such image, words are resampled instead of images.
        samples (`int`, *optional*, defaults to 1000):
            Number of samples.

    Returns:
        `list[dict[str, float]]`: For each score its mean as `value`, and the interval as `low` and `high`.
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
