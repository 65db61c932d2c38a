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
"""How good answers to questions about images are."""

from collections.abc import Sequence

import numpy as np

from ..data.vqa import answer_scores, normalize_answer


def vqa_accuracy(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    r"""
    The accuracy of VQA: an answer that at least three people gave counts as 1, one that n < 3 gave as n / 3, averaged
    over the ways to leave one person out.

    Args:
        predictions (`Sequence[str]`):
            One answer a question.
        answers (`Sequence[Sequence[str]]`):
            What people answered to each.
    """
    if len(predictions) != len(answers) or not len(answers):
        raise ValueError(f"There must be one prediction a question, got {len(predictions)} for {len(answers)}.")
    scores = [
        answer_scores(given).get(normalize_answer(predicted), 0.0)
        for predicted, given in zip(predictions, answers, strict=True)
    ]
    return float(np.mean(scores))
