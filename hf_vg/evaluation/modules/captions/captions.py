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

"""Caption metrics for the `evaluate` library, loaded from this folder."""

from typing import Any

import datasets
import evaluate

from hf_vg.evaluation.captions import METRICS, caption_metrics


_DESCRIPTION = """
BLEU, ROUGE-L, CIDEr-D, CIDEr, METEOR and diversity of image captions, with the tokenization and the scores of the COCO
caption evaluation. The configuration selects one metric; the default computes BLEU, ROUGE-L and CIDEr.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[str]`): One caption per image.
    references (`list[list[str]]`): The human captions, at least one per image.
    df (`hf_vg.evaluation.DocumentFrequencies`, *optional*): Corpus statistics for CIDEr. By default they are counted
        on `references`.
Returns:
    A dictionary of scores, such as `bleu4`, `rouge_l` and `cider_d`.
Examples:
    cider = evaluate.load("hf_vg/evaluation/modules/captions", "cider")
    cider.compute(predictions=["a dog", "a cat"], references=[["a dog"], ["the cat", "a cat"]])
"""


class Captions(evaluate.Metric):
    """The metric that `evaluate.load` makes from this folder."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", *METRICS):
            raise ValueError(f"unknown configuration {self.config_name!r}: choose from default, {', '.join(METRICS)}.")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                predictions=datasets.Value("string"), references=datasets.List(datasets.Value("string"))
            ),
        )

    def _compute(self, predictions: Any, references: Any, df: Any = None) -> dict[str, float]:
        metrics = ("bleu", "rouge", "cider") if self.config_name == "default" else (self.config_name,)
        return caption_metrics(predictions, references, metrics, df)
