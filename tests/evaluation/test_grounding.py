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
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from hf_vg.data import grounded_scenes, load_scenes, train_word_tokenizer
from hf_vg.evaluation import (
    grounding_metrics,
    phrase_box_accuracy,
    scene_grounding_metrics,
    sentence_grounding_metrics,
)
from hf_vg.evaluation.grounding import attention_mass, average_precision, box_mask


RNG = np.random.default_rng(0)


def random_boxes(number: int, width: int, height: int) -> list[list[float]]:
    xs, ys = (np.sort(RNG.uniform(0, side, (number, 2))) for side in (width, height))
    return np.stack([xs[:, 0], ys[:, 0], xs[:, 1], ys[:, 1]], axis=1).tolist()


def test_mask_restated():
    boxes = random_boxes(3, 100, 50)
    mask = box_mask(boxes, (100, 50), (5, 8))
    assert mask.any() and not mask.all()
    for row, column in np.ndindex(5, 8):
        x, y = (column + 0.5) * 100 / 8, (row + 0.5) * 50 / 5
        assert mask[row, column] == any(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes)


def test_mass_restated():
    """Compares with a loop over cells and the area that a box covers. Boxes may extend beyond the image."""
    attention = RNG.random((4, 7))
    boxes = [*random_boxes(4, 70, 80), [-10, -20, 35, 500], [0, 0, 70, 80]]
    for box, mass in zip(boxes, attention_mass(attention, boxes, (70, 80)), strict=True):
        covered = 0.0
        for row, column in np.ndindex(4, 7):
            width = max(0, min(box[2], 10 * column + 10) - max(box[0], 10 * column))
            height = max(0, min(box[3], 20 * row + 20) - max(box[1], 20 * row))
            covered += attention[row, column] * width * height / 200
        assert mass == pytest.approx(covered / attention.sum(), abs=1e-12)


def test_average_precision_restated():
    for _ in range(20):
        scores, relevant = RNG.permutation(12).astype(float), RNG.random(12) < 0.4
        relevant[0] = True
        order = sorted(range(12), key=lambda i: -scores[i])
        precisions = [
            sum(relevant[j] for j in order[: rank + 1]) / (rank + 1) for rank, i in enumerate(order) if relevant[i]
        ]
        assert average_precision(scores, relevant) == pytest.approx(np.mean(precisions))
    # Constant scores give the score of chance, in any order.
    assert average_precision(np.zeros(8), np.arange(8) < 2) == pytest.approx(0.25)
    assert average_precision(np.zeros(8), np.arange(8) > 5) == pytest.approx(0.25)


def test_grounding_metrics():
    sharp = np.zeros((4, 4))
    sharp[1, 2] = 1.0  # center at (25, 15) in 40 x 40 pixels
    even = np.ones((4, 4))
    inside, outside = [[20, 10, 30, 20]], [[0, 30, 10, 40]]
    metrics = grounding_metrics([sharp, sharp, even], [inside, outside, inside], [(40, 40)] * 3)
    assert metrics["pointing"] == pytest.approx((1 + 0 + 1 / 16) / 3)
    assert metrics["mass"] == pytest.approx((1 + 0 + 1 / 16) / 3)
    assert metrics["average_precision"] == pytest.approx((1 + 1 / 16 + 1 / 16) / 3)
    assert metrics["pointing_random"] == pytest.approx(1 / 16)
    assert metrics["pointing_center"] == pytest.approx(2 / 3)
    assert metrics["words"] == 3
    # Any of several boxes is correct, and nested boxes do not count twice.
    assert grounding_metrics([sharp], [outside + inside], [(40, 40)])["pointing"] == 1
    assert grounding_metrics([even], [[[0, 0, 40, 20], [0, 0, 20, 20]]], [(40, 40)])["mass"] == pytest.approx(0.5)
    assert grounding_metrics([even], [outside + inside], [(40, 40)])["mass"] == pytest.approx(1 / 8)
    assert np.isnan(grounding_metrics([], [], [])["pointing"])
    with pytest.raises(ValueError, match=r"`boxes` .*\(left, top, right, bottom\)"):
        grounding_metrics([even], [[]], [(40, 40)])


def test_phrase_box_accuracy_compares_density():
    attention = np.ones((4, 4))
    attention[0, 0] = 3.0
    boxes = [[0, 0, 10, 10], [0, 0, 40, 40], [30, 30, 40, 40]]  # the second box has more attention but lower density
    assert phrase_box_accuracy([attention] * 2, [boxes] * 2, [[0], [1, 2]], [(40, 40)] * 2) == 0.5


def test_scene_grounding_metrics():
    objects = [
        {"shape": "circle", "color": "red", "size": "large", "box": [0.0, 0.0, 20.0, 20.0]},
        {"shape": "square", "color": "blue", "size": "small", "box": [5.0, 50.0, 15.0, 60.0]},
    ]
    scene = {"image": Image.new("RGB", (64, 64)), "objects": objects}
    words = "a red circle is above a blue square".split()
    attention = np.zeros((len(words), 8, 8))
    attention[2, 1, 1] = 1.0  # "circle": correct
    attention[7, 1, 1] = 1.0  # "square": wrong
    caption = {"generated_text": " ".join(words), "attention": attention}
    metrics = scene_grounding_metrics([scene], [caption])
    assert metrics["words"] == 2 and metrics["pointing"] == 0.5
    # A phrase that fits no object has no box. A sentence outside of the grammar has no phrases.
    wrong = {"generated_text": "a green circle and a blue square", "attention": attention}
    nonsense = {"generated_text": "circle circle", "attention": attention}
    assert scene_grounding_metrics([scene, scene], [wrong, nonsense])["words"] == 1


class LooksAt(torch.nn.Module):
    """A model with two attention rows: the first attends to given words, the second is uniform."""

    device = torch.device("cpu")

    def __init__(self, ids: list[int]):
        super().__init__()
        self.ids = torch.tensor(ids)

    def forward(self, input_ids, attention_mask, output_attentions=False):
        chosen = torch.isin(input_ids, self.ids) * attention_mask + 1e-6 * attention_mask
        rows = torch.stack([chosen, attention_mask.float()], dim=1)
        return SimpleNamespace(attentions=(rows / rows.sum(dim=-1, keepdim=True),))


def test_words_of_sentences():
    """Two captions by hand. In "a red dog runs past a cat" the dog has a box; the other caption has no box."""
    captions = ["A red dog runs past a cat", "nothing here"]
    phrases = [
        {"caption": 0, "start": 0, "end": 9, "text": "A red dog", "boxes": [0]},
        {"caption": 0, "start": 20, "end": 25, "text": "a cat", "boxes": []},
    ]
    tokenizer = train_word_tokenizer(captions)
    rows = [{"captions": captions, "phrases": phrases}]
    words = tokenizer.convert_ids_to_tokens(tokenizer(captions[0])["input_ids"])  # with the end token
    for word, pointing, precision in (("dog", 1, None), ("runs", 0, None), ("zebra", 3 / len(words), 3 / len(words))):
        model = LooksAt([tokenizer.convert_tokens_to_ids(word)] if word in words else [])
        metrics = sentence_grounding_metrics(model, tokenizer, rows)
        assert metrics["sentences"] == 1
        assert metrics["random"] == pytest.approx(3 / len(words))
        assert metrics["pointing"] == pytest.approx(pointing)
        if precision is not None:
            assert metrics["average_precision"] == pytest.approx(precision)
            assert metrics["mass"] == pytest.approx(precision, abs=1e-4)
    looks_at_dog = sentence_grounding_metrics(LooksAt(tokenizer.convert_tokens_to_ids(["dog"])), tokenizer, rows)
    assert looks_at_dog["mass"] == pytest.approx((1 + 3 / len(words)) / 2, abs=1e-4)


def test_words_of_scenes():
    scenes = load_scenes(1, 1, 20)["test"]
    captions = [caption for row in scenes["captions"] for caption in row]
    tokenizer = train_word_tokenizer(captions)
    nouns = tokenizer.convert_tokens_to_ids(["circle", "circles", "square", "squares", "triangle", "triangles"])
    metrics = sentence_grounding_metrics(LooksAt(nouns), tokenizer, grounded_scenes(scenes).remove_columns("image"))
    assert metrics["sentences"] > 20 and metrics["pointing"] > 0.8 > metrics["random"]
