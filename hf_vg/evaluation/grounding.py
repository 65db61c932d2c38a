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
"""How well attention over an image agrees with the boxes of what is named."""

from collections.abc import Sequence

import numpy as np


GROUNDING_METRICS = ("pointing", "mass", "average_precision", "pointing_center", "pointing_random")


def box_mask(
    boxes: Sequence[Sequence[float]] | np.ndarray, image_size: tuple[float, float], grid: tuple[int, int]
) -> np.ndarray:
    r"""
    Which cells of a grid over the image have their centre in a box.

    Args:
        boxes (`Sequence` of `(left, top, right, bottom)`):
            Boxes in pixels.
        image_size (`tuple[float, float]`):
            Width and height of the image the boxes belong to, as `PIL.Image.size` gives them.
        grid (`tuple[int, int]`):
            Rows and columns of the grid.

    Returns:
        `np.ndarray` of shape `grid`: `True` in the union of the boxes.
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
        raise ValueError(f"`boxes` must be one or more of (left, top, right, bottom), got shape {boxes.shape}.")
    ys, xs = ((np.arange(cells) + 0.5) * side / cells for cells, side in zip(grid, reversed(image_size), strict=True))
    left, top, right, bottom = boxes.T[:, :, None]
    rows = (top <= ys) & (ys <= bottom)  # (boxes, rows)
    columns = (left <= xs) & (xs <= right)
    return (rows[:, :, None] & columns[:, None, :]).any(axis=0)


def attention_mass(
    attention: np.ndarray, boxes: Sequence[Sequence[float]] | np.ndarray, image_size: tuple[float, float]
) -> np.ndarray:
    r"""
    The share of attention that lies in each box, every cell of the map being spread evenly over its area.

    Args:
        attention (`np.ndarray` of shape `(height, width)`):
            Weights of the cells, of any sum.
        boxes (`Sequence` of `(left, top, right, bottom)`), image_size (`tuple[float, float]`):
            As for [`box_mask`].

    Returns:
        `np.ndarray` of shape `(boxes,)`.
    """
    attention = np.asarray(attention, dtype=np.float64)
    boxes = np.asarray(boxes, dtype=np.float64)
    # The attention above and to the left of a corner is linear within a cell, so four corners give a box's share.
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
    """Average precision of ranking by `scores`; ties share the precision of all that are tied."""
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
    Judges maps of words, or of phrases, by the boxes of what these name.

    Args:
        maps (`Sequence[np.ndarray]` of shape `(height, width)`):
            One map per word.
        boxes (`Sequence` of lists of `(left, top, right, bottom)`):
            For each word the boxes of what it names, in pixels. Any of them is right.
        image_sizes (`Sequence[tuple[float, float]]`):
            For each word, width and height of its image.

    Returns:
        `dict[str, float]`: means over words.

        - **pointing** -- the pointing game: whether the peak of the map, the centre of its largest cell, is in a box.
          Equal largest cells count by the share of them that is in a box.
        - **mass** -- the share of attention in the boxes; where these overlap the largest box counts.
        - **average_precision** -- of the attention as a score of the cells whose centre is in a box.
        - **pointing_center**, **pointing_random** -- the pointing game of always pointing at the centre of the image,
          and of pointing at any cell by chance.
        - **words** -- how many there were.
    """
    rows = grounding_rows(maps, boxes, image_sizes)
    means = rows.mean(axis=0).tolist() if len(rows) else [float("nan")] * len(GROUNDING_METRICS)
    return {**dict(zip(GROUNDING_METRICS, means, strict=True)), "words": len(rows)}


def grounding_rows(
    maps: Sequence[np.ndarray],
    boxes: Sequence[Sequence[Sequence[float]]],
    image_sizes: Sequence[tuple[float, float]],
) -> np.ndarray:
    """The numbers whose means are [`grounding_metrics`], of shape `(words, 5)`, for each word."""
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
    How often the box with the densest attention, of all boxes of the image, is one of those that a phrase names.

    Args:
        maps (`Sequence[np.ndarray]`), image_sizes (`Sequence[tuple[float, float]]`):
            As for [`grounding_metrics`], one per phrase.
        candidates (`Sequence` of lists of `(left, top, right, bottom)`):
            For each phrase the boxes to choose from.
        correct (`Sequence[Sequence[int]]`):
            For each phrase the indices of its boxes among the candidates.
    """
    right = []
    for attention, boxes, truth, image_size in zip(maps, candidates, correct, image_sizes, strict=True):
        boxes = np.asarray(boxes, dtype=np.float64)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        density = attention_mass(attention, boxes, image_size) / np.maximum(areas, 1e-12)
        right.append(int(density.argmax()) in truth)
    return float(np.mean(right)) if right else float("nan")
