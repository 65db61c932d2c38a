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
"""Confidence intervals of scores, and nouns with boxes."""

import numpy as np
import pytest

from hf_vg.data.images import boxes_in_view
from hf_vg.evaluation import bootstrap, caption_intervals, caption_metrics, grounding_intervals, grounding_metrics
from hf_vg.evaluation.intervals import words_with_boxes


RNG = np.random.default_rng(0)
WORDS = "a red blue circle square above dog runs".split()


def random_captions(count: int) -> list[str]:
    return [" ".join(RNG.choice(WORDS, RNG.integers(3, 9))) for _ in range(count)]


def test_bootstrap_of_a_mean_is_its_standard_error():
    values = RNG.normal(3, 2, 400)
    ((low, high),) = bootstrap(values[None], lambda sums: sums / 400, samples=4000)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    again = bootstrap(values[None], lambda sums: sums / 400, samples=4000)
    assert (again == [[low, high]]).all()
    with pytest.raises(ValueError, match="no images"):
        bootstrap(np.zeros((1, 0)), lambda sums: sums)


def test_intervals_are_those_of_scoring_every_set_anew():
    predictions, references = random_captions(30), [random_captions(3) for _ in range(30)]
    names = ("bleu", "bleu_no_bp", "rouge")
    metrics, per_image = caption_intervals(predictions, references, names, samples=40)
    assert len(per_image["rouge_l"]) == 30
    rng = np.random.default_rng(0)
    scores = []
    for counts in rng.multinomial(30, np.full(30, 1 / 30), size=40):
        drawn = np.repeat(np.arange(30), counts)
        scores.append(caption_metrics([predictions[i] for i in drawn], [references[i] for i in drawn], names))
    whole = caption_metrics(predictions, references, names)
    assert metrics.keys() == whole.keys()
    for name, metric in metrics.items():
        assert metric["value"] == pytest.approx(whole[name], abs=1e-12)
        low, high = np.percentile([score[name] for score in scores], [2.5, 97.5])
        assert (metric["low"], metric["high"]) == pytest.approx((low, high), abs=1e-9)


def test_every_metric_has_its_value():
    predictions, references = random_captions(12), [random_captions(2) for _ in range(12)]
    names = ("bleu", "rouge", "cider", "meteor_python", "diversity")
    metrics, _ = caption_intervals(predictions, references, names, true=[True] * 9 + [False] * 3, samples=50)
    for name, value in caption_metrics(predictions, references, names).items():
        assert metrics[name]["value"] == pytest.approx(value, abs=1e-12), name
    assert metrics["true"]["value"] == 0.75 and metrics["true"]["low"] < 0.75 < metrics["true"]["high"]
    assert "low" not in metrics["distinct1"] and "low" not in metrics["meteor_python"]
    with pytest.raises(ValueError, match="unknown caption metric 'spice'"):
        caption_intervals(predictions, references, ("spice",))


def test_nouns_of_entities_and_of_scenes():
    row = {
        "boxes": [[0, 0, 10, 10], [20, 0, 30, 10], [0, 20, 10, 30]],
        "phrases": [
            {"text": "a brown dog", "boxes": [0]},
            {"text": "The dog", "boxes": [1]},
            {"text": "the grass", "boxes": []},
            {"text": "a red ball", "boxes": [2]},
        ],
    }
    caption = {"generated_text": "", "words": "the Dog and a dog on grass with a ball".split()}
    both = [[0, 0, 10, 10], [20, 0, 30, 10]]
    assert words_with_boxes(row, caption) == [(1, both), (4, both), (9, [[0, 20, 10, 30]])]
    objects = [{"shape": "circle", "color": "red", "size": "large", "box": [0.0, 0.0, 20.0, 20.0]}]
    found = words_with_boxes({"objects": objects}, {"generated_text": "a red circle", "words": ["a", "red", "circle"]})
    assert found == [(2, [[0.0, 0.0, 20.0, 20.0]])]


def test_pointing_in_the_part_that_is_seen():
    """The model sees the center 20 x 20 of a 40 x 20 image. The second box is outside of it."""
    assert boxes_in_view([[15, 0, 20, 5], [0, 0, 10, 20]], (40, 20), (0.25, 0, 0.75, 1)) == (
        [[5, 0, 10, 5]], (20, 20),
    )  # fmt: skip
    attention = np.zeros((3, 4, 4))
    attention[1, 0, 1] = 1.0  # pixels 15 to 20 from the left and 0 to 5 from the top
    attention[2, 3, 3] = 1.0
    row = {"boxes": [[15, 0, 20, 5], [0, 0, 10, 20]], "phrases": [
        {"text": "a dog", "boxes": [0]}, {"text": "a cat", "boxes": [1]}, {"text": "a ball", "boxes": [0]},
    ]}  # fmt: skip
    caption = {"generated_text": "", "words": ["cat", "dog", "ball"], "attention": attention}
    parts, sizes = [(0.25, 0, 0.75, 1)] * 2, [(40, 20)] * 2
    metrics = grounding_intervals([row, row], [caption, caption], parts, sizes, samples=20)
    expected = grounding_metrics([*attention[1:]] * 2, [[[5, 0, 10, 5]]] * 4, [(20, 20)] * 4)
    assert {name: metric["value"] for name, metric in metrics.items()} == pytest.approx(expected)
    assert metrics["pointing"]["value"] == 0.5 and metrics["words"]["value"] == 4
    assert list(metrics)[:3] == ["pointing", "pointing_center", "pointing_random"]
    assert grounding_intervals([row], [{**caption, "words": ["x", "y", "z"]}], parts[:1], sizes[:1]) == {}
