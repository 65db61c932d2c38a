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
"""Bootstrap confidence intervals."""

from collections.abc import Callable, Sequence

import numpy as np


# Number of samples that are in memory at the same time.
_SAMPLES_AT_A_TIME = 100


def bootstrap(
    statistics: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    samples: int = 1000,
) -> np.ndarray:
    r"""
    Computes 95% confidence intervals of scores with the bootstrap: it draws sets of images of the same size with
    replacement, and computes the scores of each set.

    Args:
        statistics (`np.ndarray` of shape `(statistics, images)`):
            Statistics of each image. The scores of a set are computed from their sums alone, so a thousand sets take
            less than a second.
        score (`Callable`):
            A function that turns sums of shape `(statistics, sets)` into scores of shape `(scores, sets)`.
        samples (`int`, *optional*, defaults to 1000):
            The number of sets to draw.

    Returns:
        `np.ndarray` of shape `(scores, 2)`: The lower and upper end of each interval.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.resampling import bootstrap

    >>> statistics = np.array([[1, 0, 1, 1], [1, 1, 1, 1]])  # right answers and questions of 4 images
    >>> bootstrap(statistics, lambda sums: sums[:1] / sums[1:]).tolist()
    [[0.25, 1.0]]
    ```
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    images = statistics.shape[1]
    if not images:
        raise ValueError("The bootstrap needs at least one image.")
    rng = np.random.default_rng(0)
    scores = []
    for start in range(0, samples, _SAMPLES_AT_A_TIME):
        # How often each image is in each set.
        counts = rng.multinomial(images, np.full(images, 1 / images), size=min(_SAMPLES_AT_A_TIME, samples - start))
        scores.append(score(statistics @ counts.T.astype(np.float64)))
    tail = 2.5
    # The score of a set without any word is NaN, and is ignored.
    return np.nanpercentile(np.concatenate(scores, axis=1), [tail, 100 - tail], axis=1).T


def mean_intervals(
    values: np.ndarray, images: Sequence[int] | np.ndarray, number: int | None = None, samples: int = 1000
) -> list[dict[str, float]]:
    r"""
    Computes means over words, with confidence intervals over the images of these words.

    Args:
        values (`np.ndarray` of shape `(words, scores)`):
            The scores of each word.
        images (`Sequence[int]`):
            The image of each word.
        number (`int`, *optional*):
            The number of images. Images must then be numbered from 0. By default, only images with words count. If
            there is only one such image, words are drawn instead of images.
        samples (`int`, *optional*, defaults to 1000):
            The number of sets to draw.

    Returns:
        `list[dict[str, float]]`: For each score, its mean `value` and the ends `low` and `high` of its interval.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.resampling import mean_intervals

    >>> mean_intervals(np.array([[1.0], [0.0], [1.0], [1.0]]), images=[0, 0, 1, 2])[0]["value"]
    0.75
    ```
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
