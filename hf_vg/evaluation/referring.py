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
"""Accuracy of referring expressions."""

from collections.abc import Sequence

import numpy as np

from ..data.referring import box_iou


def referring_accuracy(
    predicted: Sequence[Sequence[float]], boxes: Sequence[Sequence[float]], threshold: float = 0.5
) -> float:
    r"""
    Computes the share of predicted boxes whose intersection over union with the correct box is at least `threshold`.

    Args:
        predicted (`Sequence` of `(left, top, right, bottom)`):
            The predicted box of each expression.
        boxes (`Sequence` of `(left, top, right, bottom)`):
            The correct box of each expression, in the same unit.
        threshold (`float`, *optional*, defaults to 0.5):
            The smallest overlap that counts as correct.

    Returns:
        `float`: The accuracy, from 0 to 1.

    Example:

    ```python
    >>> from hf_vg.evaluation import referring_accuracy

    >>> referring_accuracy([[0, 0, 10, 10], [50, 50, 60, 60]], [[0, 0, 10, 9], [0, 0, 10, 10]])
    0.5
    ```
    """
    predicted, boxes = np.asarray(predicted, dtype=np.float64), np.asarray(boxes, dtype=np.float64)
    if predicted.shape != boxes.shape or predicted.ndim != 2 or not len(boxes):
        raise ValueError(f"There must be one box per expression, got shapes {predicted.shape} and {boxes.shape}.")
    return float((box_iou(predicted, boxes) >= threshold).mean())
