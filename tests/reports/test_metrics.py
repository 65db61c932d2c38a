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
"""One table of metric names, scales and formats."""

import pytest

from hf_vg.evaluation import caption_metrics
from hf_vg.evaluation.captions import METRICS as CAPTION_METRICS
from hf_vg.reports import METRICS, metric_name, metric_text


@pytest.mark.parametrize(
    "key, value, name, text",
    [
        ("bleu4", 0.2512, "BLEU-4", "25.1"),
        ("test_bleu4", 0.2512, "BLEU-4", "25.1"),
        ("rouge_l", 0.5, "ROUGE-L", "50.0"),
        ("cider_d", 0.48312, "CIDEr-D", "0.483"),
        ("eval_true_seen", 0.91, "true captions, combinations seen in training", "91.0%"),
        ("pointing", float("nan"), "peak of a noun's map in the box of its object", "not measured"),
        ("vocabulary", 1234.0, "different words used", "1,234"),
        ("image_to_text_r1", 26.5, "caption of an image, recall at 1", "26.5%"),
        ("caption_bleu1", 0.5, "from the vector of the caption: BLEU-1", "50.0"),
        ("some_new_score", 0.25, "some new score", "0.25"),
    ],
)
def test_names_and_scales(key, value, name, text):
    assert metric_name(key) == name and metric_text(key, value) == text


def test_every_caption_metric_is_in_the_table():
    metrics = [name for name in CAPTION_METRICS if name != "meteor"]  # needs Java
    assert caption_metrics(["a dog runs ."], [["a dog runs", "the dog"]], metrics).keys() <= METRICS.keys()
