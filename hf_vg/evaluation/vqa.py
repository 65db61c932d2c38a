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
"""The accuracy of answers to questions about images."""

from collections.abc import Sequence

import numpy as np

from ..data.vqa import answer_scores, normalize_answer


def vqa_accuracy(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    r"""
    Computes the VQA accuracy: an answer scores min(1, n / 3), where n is the number of people who gave it, averaged
    over all subsets that leave one person out.

    Args:
        predictions (`Sequence[str]`):
            One answer per question.
        answers (`Sequence[Sequence[str]]`):
            The human answers to each question.

    Returns:
        `float`: The accuracy, from 0 to 1.

    Example:

    ```python
    >>> from hf_vg.evaluation import vqa_accuracy

    >>> vqa_accuracy(["red", "2"], [["red"] * 10, ["three"] * 10])
    0.5
    ```
    """
    if len(predictions) != len(answers) or not len(answers):
        raise ValueError(f"There must be one prediction per question, got {len(predictions)} for {len(answers)}.")
    scores = [
        answer_scores(given).get(normalize_answer(predicted), 0.0)
        for predicted, given in zip(predictions, answers, strict=True)
    ]
    return float(np.mean(scores))
