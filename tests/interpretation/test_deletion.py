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
"""The deletion test is restated by loops, and tells a map that is right from one that is not."""

import pytest
import torch
from transformers import set_seed

from hf_vg.interpretation import deletion_summary, deletion_test, explain_words
from hf_vg.interpretation.reading import readings

from .any_models import tiny
from .test_explainers import painted, sharp
from .test_recording import Words, generate


@pytest.mark.parametrize("name", ["llava", "vit_gpt2", "qwen2_5_vl", "pix2struct", "mllama"])
@torch.no_grad()
def test_deletion_restated(name):
    """Cells are hidden one after another in the order of the map, and the probability of the word is measured anew."""
    model, inputs = sharp(name)
    outputs = generate(model, inputs)
    maps = explain_words(model, Words(), inputs, outputs)
    shares = (0.1, 0.5)
    result = deletion_test(model, Words(), inputs, outputs, maps, shares, seeds=2, batch_size=3, samples=50)
    assert result["shares"] == [0.0, *shares]
    last = [word for word in result["words"] if word["sequence"] == len(maps) - 1]
    *_, reading = readings(model, Words(), inputs, outputs)
    for number, (word, word_map) in enumerate(maps[-1]):
        height, width = word_map.shape
        order = sorted(range(height * width), key=lambda cell: -word_map.flatten()[cell].item())
        place = reading.words[number][1][0]
        curve = [reading.log_probabilities(reading.arguments())[0, place].exp().item()]
        for share in shares:
            count = max(1, round(share * height * width))
            hidden = inputs
            for cell in order[:count]:
                one = painted(name, inputs, *divmod(cell, width), height, width)
                hidden = {
                    key: torch.where(one[key] != inputs[key], one[key], value) if torch.is_tensor(value) else value
                    for key, value in hidden.items()
                }
            *_, without = readings(model, Words(), hidden, outputs)
            curve.append(without.log_probabilities(without.arguments())[0, place].exp().item())
        assert last[number]["word"] == word and last[number]["image"] == 1
        assert last[number]["map"] == pytest.approx(curve, rel=1e-3, abs=1e-6)
        falls = [r - m for r, m in zip(last[number]["random"][1:], last[number]["map"][1:], strict=True)]
        assert last[number]["score"] == pytest.approx(sum(falls) / len(falls))
    scores = [word["score"] for word in result["words"]]
    assert result["score"]["value"] == pytest.approx(sum(scores) / len(scores))
    assert result["score"]["low"] <= result["score"]["value"] <= result["score"]["high"]
    assert result["probability"]["map"][0] == result["probability"]["random"][0] == result["probability"]["center"][0]


def quadrants(number: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images with a chequered quadrant, and its number. Its mean is grey too, so that nothing of it is left."""
    which = torch.randint(0, 4, (number,), generator=generator)
    pixels = 0.2 * torch.randn(number, 3, 16, 16, generator=generator)
    chequers = 2 * (torch.arange(8)[:, None] // 2 + torch.arange(8) // 2) % 4 - 1.0
    for image, quadrant in zip(pixels, which.tolist(), strict=True):
        top, left = 8 * (quadrant // 2), 8 * (quadrant % 2)
        image[:, top : top + 8, left : left + 8] += 2 * chequers
    return pixels, which


@pytest.fixture(scope="module")
def pointer():
    """A tiny ViT-GPT2 that was taught to name the chequered quadrant: word 10, 11, 12 or 13."""
    set_seed(0)
    model, _ = tiny("vit_gpt2")
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        pixels, which = quadrants(32, generator)
        ids = torch.stack([torch.ones_like(which), 10 + which], dim=1)
        logits = model(pixel_values=pixels, decoder_input_ids=ids).logits[:, 0]
        loss = torch.nn.functional.cross_entropy(logits, 10 + which)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    return model.eval()


def test_what_matters_is_found_and_hiding_it_counts(pointer):
    pixels, which = quadrants(8, torch.Generator().manual_seed(1))
    inputs = {"pixel_values": pixels}
    outputs = pointer.generate(**inputs, max_new_tokens=1, return_dict_in_generate=True)
    assert outputs.sequences[:, 1].tolist() == (10 + which).tolist()
    maps = explain_words(pointer, Words(), inputs, outputs, "occlusion", grid=(2, 2))
    assert [word_map.argmax().item() for ((_, word_map),) in maps] == which.tolist()
    right = [[("w", _quadrant_map(quadrant))] for quadrant in which.tolist()]
    wrong = [[("w", _quadrant_map(3 - quadrant))] for quadrant in which.tolist()]
    settings = {"shares": (0.25,), "samples": 200}
    good = deletion_test(pointer, Words(), inputs, outputs, right, **settings)
    bad = deletion_test(pointer, Words(), inputs, outputs, wrong, **settings)
    assert good["score"]["low"] > 0.2  # hiding the right quadrant takes the word away
    assert bad["score"]["value"] < 0.05  # hiding the opposite one does not
    assert good["score_center"]["value"] > bad["score_center"]["value"]


def _quadrant_map(quadrant: int) -> torch.Tensor:
    word_map = torch.zeros(4, 4)
    top, left = 2 * (quadrant // 2), 2 * (quadrant % 2)
    word_map[top : top + 2, left : left + 2] = 0.25
    return word_map


def test_words_of_several_calls_are_put_together():
    def word(image: int, by_map: float) -> dict:
        return {
            **{"word": "w", "image": image, "score": 0.5 - by_map, "score_center": 0.4 - by_map},
            **{"map": [1.0, by_map], "random": [1.0, 0.5], "center": [1.0, 0.4]},
        }

    result = deletion_summary([word(0, 0.1), word(0, 0.3), word(7, 0.2)], (0.5,), samples=100)
    assert result["score"]["value"] == pytest.approx(0.3) and result["score_center"]["value"] == pytest.approx(0.2)
    for name, curve in {"map": [1.0, 0.2], "random": [1.0, 0.5], "center": [1.0, 0.4]}.items():
        assert result["probability"][name] == pytest.approx(curve)
    assert result["score"]["low"] == pytest.approx(0.3) == result["score"]["high"]  # both images have this mean
    # The words of a single image are drawn themselves.
    alone = deletion_summary([word(0, 0.1), word(0, 0.3)], (0.5,), samples=100)
    assert alone["score"]["low"] == pytest.approx(0.2) and alone["score"]["high"] == pytest.approx(0.4)
    with pytest.raises(ValueError, match="no words"):
        deletion_summary([])


def test_wrong_arguments_are_told():
    model, inputs = tiny("vit_gpt2")
    outputs = generate(model, inputs)
    maps = explain_words(model, Words(), inputs, outputs)
    with pytest.raises(ValueError, match="Sequence 0 must have one map per word, got 0 maps and"):
        deletion_test(model, Words(), inputs, outputs, [[], maps[1]])
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        deletion_test(model, Words(), inputs, outputs, maps, shares=(0.0,))
