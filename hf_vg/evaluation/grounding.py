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
"""Grounding metrics: do attention maps agree with the boxes of the objects that words name?"""

from collections.abc import Sequence

import numpy as np


GROUNDING_METRICS = ("pointing", "mass", "average_precision", "pointing_center", "pointing_random")


def box_mask(
    boxes: Sequence[Sequence[float]] | np.ndarray, image_size: tuple[float, float], grid: tuple[int, int]
) -> np.ndarray:
    r"""
    Finds the cells of a grid over the image whose center is in a box.

    Args:
        boxes (`Sequence` of `(left, top, right, bottom)`):
            Boxes in pixels.
        image_size (`tuple[float, float]`):
            Width and height of the image, as in `PIL.Image.size`.
        grid (`tuple[int, int]`):
            Rows and columns of the grid.

    Returns:
        `np.ndarray` of shape `grid`: `True` in the union of the boxes.

    Example:

    ```python
    >>> from hf_vg.evaluation.grounding import box_mask

    >>> box_mask([[0, 0, 32, 32]], image_size=(64, 64), grid=(2, 2)).tolist()
    [[True, False], [False, False]]
    ```
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
        raise ValueError(f"`boxes` must be a list of (left, top, right, bottom), got shape {boxes.shape}.")
    ys, xs = ((np.arange(cells) + 0.5) * side / cells for cells, side in zip(grid, reversed(image_size), strict=True))
    left, top, right, bottom = boxes.T[:, :, None]
    rows = (top <= ys) & (ys <= bottom)  # (boxes, rows)
    columns = (left <= xs) & (xs <= right)
    return (rows[:, :, None] & columns[:, None, :]).any(axis=0)


def attention_mass(
    attention: np.ndarray, boxes: Sequence[Sequence[float]] | np.ndarray, image_size: tuple[float, float]
) -> np.ndarray:
    r"""
    Computes the share of attention in each box. The weight of a cell is spread evenly over its area.

    Args:
        attention (`np.ndarray` of shape `(height, width)`):
            Weights of the cells. They need not sum to 1.
        boxes (`Sequence` of `(left, top, right, bottom)`):
            Boxes in pixels.
        image_size (`tuple[float, float]`):
            Width and height of the image.

    Returns:
        `np.ndarray` of shape `(boxes,)`: Shares from 0 to 1.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation.grounding import attention_mass

    >>> attention_mass(np.array([[0.7, 0.1], [0.1, 0.1]]), [[0, 0, 32, 32]], image_size=(64, 64)).round(3).tolist()
    [0.7]
    ```
    """
    attention = np.asarray(attention, dtype=np.float64)
    boxes = np.asarray(boxes, dtype=np.float64)
    # The attention above and to the left of a corner is linear within a cell, so four corners give the share of a box.
    cumulative = np.pad(attention.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    height, width = attention.shape

    def above_left(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.clip(x / image_size[0], 0, 1) * width, np.clip(y / image_size[1], 0, 1) * height
        column, row = np.minimum(x.astype(int), width - 1), np.minimum(y.astype(int), height - 1)
        dx, dy = x - column, y - row
        return (
            (1 - dx) * (1 - dy) * cumulative[row, column]
            + dx * (1 - dy) * cumulative[row, column + 1]
            + (1 - dx) * dy * cumulative[row + 1, column]
            + dx * dy * cumulative[row + 1, column + 1]
        )

    left, top, right, bottom = boxes.T
    inside = above_left(right, bottom) - above_left(left, bottom) - above_left(right, top) + above_left(left, top)
    return inside / max(attention.sum(), 1e-12)


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """
    Computes the average precision of a ranking by scores. Tied items share the precision of the whole tie.

    Args:
        scores (`np.ndarray`):
            One score per item.
        relevant (`np.ndarray` of the same shape):
            Whether each item is relevant.

    Returns:
        `float`: The average precision, from 0 to 1.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation.grounding import average_precision

    >>> average_precision(np.array([0.9, 0.5, 0.1]), np.array([False, True, False]))
    0.5
    ```
    """
    scores, relevant = np.ravel(scores), np.ravel(relevant)
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], relevant[order].cumsum()
    last_of_ties = np.append(scores[1:] != scores[:-1], True)
    hits, ranks = hits[last_of_ties], np.flatnonzero(last_of_ties) + 1
    return float((np.diff(hits, prepend=0) * hits / ranks).sum() / max(hits[-1], 1))


def grounding_metrics(
    maps: Sequence[np.ndarray],
    boxes: Sequence[Sequence[Sequence[float]]],
    image_sizes: Sequence[tuple[float, float]],
) -> dict[str, float]:
    r"""
    Scores the maps of words or phrases against the boxes of the objects that they name.

    Args:
        maps (`Sequence[np.ndarray]` of shape `(height, width)`):
            One map per word.
        boxes (`Sequence` of lists of `(left, top, right, bottom)`):
            The boxes of each word's objects, in pixels. Any of them is correct.
        image_sizes (`Sequence[tuple[float, float]]`):
            Width and height of the image of each word.

    Returns:
        `dict[str, float]`: Means over words.

        - **pointing** -- the pointing game: is the peak of the map, the center of its largest cell, in a box? If
          several cells are the largest, the share of them in a box counts.
        - **mass** -- the share of attention in the boxes. If boxes overlap, the box with the most attention counts.
        - **average_precision** -- the average precision of the attention in finding the cells in a box.
        - **pointing_center**, **pointing_random** -- baselines of the pointing game: always the center of the image,
          and a random cell.
        - **words** -- the number of words.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation import grounding_metrics

    >>> attention = np.array([[0.7, 0.1], [0.1, 0.1]])
    >>> metrics = grounding_metrics([attention], [[[0, 0, 32, 32]]], [(64, 64)])
    >>> metrics["pointing"], round(metrics["mass"], 3), metrics["pointing_random"]
    (1.0, 0.7, 0.25)
    ```
    """
    rows = grounding_rows(maps, boxes, image_sizes)
    means = rows.mean(axis=0).tolist() if len(rows) else [float("nan")] * len(GROUNDING_METRICS)
    return {**dict(zip(GROUNDING_METRICS, means, strict=True)), "words": len(rows)}


def grounding_rows(
    maps: Sequence[np.ndarray],
    boxes: Sequence[Sequence[Sequence[float]]],
    image_sizes: Sequence[tuple[float, float]],
) -> np.ndarray:
    """
    Computes the metrics of [`grounding_metrics`] for each word.

    Args:
        maps (`Sequence[np.ndarray]` of shape `(height, width)`):
            One map per word.
        boxes (`Sequence` of lists of `(left, top, right, bottom)`):
            The boxes of each word's objects, in pixels.
        image_sizes (`Sequence[tuple[float, float]]`):
            Width and height of the image of each word.

    Returns:
        `np.ndarray` of shape `(words, 5)`: The metrics in the order of `GROUNDING_METRICS`.
    """
    rows = []
    for attention, truth, image_size in zip(maps, boxes, image_sizes, strict=True):
        attention = np.asarray(attention, dtype=np.float64)
        mask = box_mask(truth, image_size, attention.shape)
        peak = attention == attention.max()
        shares = attention_mass(attention, truth, image_size)
        rows.append(
            (
                mask[peak].mean(),
                shares.max() if _overlap(truth) else shares.sum(),
                average_precision(attention, mask),
                box_mask(truth, image_size, (1, 1)).item(),
                mask.mean(),
            )
        )
    return np.array(rows, dtype=np.float64).reshape(-1, len(GROUNDING_METRICS))


def _overlap(boxes: Sequence[Sequence[float]]) -> bool:
    return any(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for i, a in enumerate(boxes) for b in boxes[:i]
    )


def phrase_box_accuracy(
    maps: Sequence[np.ndarray],
    candidates: Sequence[Sequence[Sequence[float]]],
    correct: Sequence[Sequence[int]],
    image_sizes: Sequence[tuple[float, float]],
) -> float:
    r"""
    Computes how often the box with the densest attention, among all boxes of the image, is a box of the phrase.

    Args:
        maps (`Sequence[np.ndarray]` of shape `(height, width)`):
            One map per phrase.
        candidates (`Sequence` of lists of `(left, top, right, bottom)`):
            The boxes to choose from, for each phrase.
        correct (`Sequence[Sequence[int]]`):
            The indices of the correct boxes among the candidates, for each phrase.
        image_sizes (`Sequence[tuple[float, float]]`):
            Width and height of the image of each phrase.

    Returns:
        `float`: The accuracy, from 0 to 1.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation import phrase_box_accuracy

    >>> attention, boxes = np.array([[0.7, 0.1], [0.1, 0.1]]), [[0, 0, 32, 32], [32, 32, 64, 64]]
    >>> phrase_box_accuracy([attention], [boxes], correct=[[0]], image_sizes=[(64, 64)])
    1.0
    ```
    """
    right = []
    for attention, boxes, truth, image_size in zip(maps, candidates, correct, image_sizes, strict=True):
        boxes = np.asarray(boxes, dtype=np.float64)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        density = attention_mass(attention, boxes, image_size) / np.maximum(areas, 1e-12)
        right.append(int(density.argmax()) in truth)
    return float(np.mean(right)) if right else float("nan")
