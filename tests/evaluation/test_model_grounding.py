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
"""Grounding of any model: a planted head is found, and the metrics equal those of plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from hf_vg.data import train_word_tokenizer
from hf_vg.evaluation import evaluate_grounding
from hf_vg.evaluation.model_grounding import texts_with_boxes, words_of_span
from hf_vg.interpretation import explain_words, recording
from hf_vg.interpretation.reading import readings
from hf_vg.reports import grounding_table
from tests.interpretation.any_models import tiny
from tests.interpretation.any_processors import PROCESSORS


CAPTION = "here is a bright square"


@pytest.fixture(scope="module")
def processor():
    tokenizer = train_word_tokenizer([CAPTION, "nothing else"])
    image_processor = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor)


def rows(number: int = 8) -> list[dict]:
    """Images of 32 x 32 pixels with a 4 x 4 grid of gray cells. One cell is red, and the caption names it."""
    found, rng = [], np.random.default_rng(0)
    for index in range(number):
        cell = (5 * index + 1) % 16
        top, left = 8 * (cell // 4), 8 * (cell % 4)
        grey = rng.integers(0, 255, (4, 4, 1), dtype=np.uint8)
        pixels = grey.repeat(8, axis=0).repeat(8, axis=1).repeat(3, axis=2)
        pixels[top : top + 8, left : left + 8] = (200, 60, 60)
        phrases = [
            {"caption": 1, "start": 8, "end": 23, "text": "a bright square", "boxes": [0]},
            {"caption": 0, "start": 0, "end": 7, "text": "nothing", "boxes": []},
        ]
        found.append(
            {
                "image": Image.fromarray(pixels),
                "captions": ["nothing else", CAPTION],
                "boxes": [[left, top, left + 8, top + 8]],
                "phrases": phrases,
            }
        )
    return found


@pytest.fixture
def planted(monkeypatch):
    """A tiny ViT-GPT2 in which head 2 of layer 1 attends to the red cell."""
    model, _ = tiny("vit_gpt2")
    seen, attention_of = {}, recording.attention_of
    target = model.decoder.transformer.h[1].crossattention

    def look(module, args, kwargs):
        seen["pixels"] = args[0] if args else kwargs["pixel_values"]

    def plant(module, *args, **kwargs):
        attention = attention_of(module, *args, **kwargs)
        if module is target:
            red = seen["pixels"][:, 0] - seen["pixels"][:, 2]  # (rows, 16, 16)
            reddest = red.view(-1, 4, 4, 4, 4).mean(dim=(2, 4)).flatten(1).argmax(dim=1)  # (rows,)
            attention = attention.clone()
            attention[:, 2] = torch.nn.functional.one_hot(1 + reddest, 17)[:, None].float()
        return attention

    handle = model.encoder.register_forward_pre_hook(look, with_kwargs=True)
    monkeypatch.setattr(recording, "attention_of", plant)
    yield model
    handle.remove()


def test_the_planted_head_is_found(planted, processor):
    found = evaluate_grounding(planted, processor, rows(), samples=50)
    assert found["words"] == found["images"] == 8
    assert found["heads"][1][2] == {"pointing": 1.0, "mass": pytest.approx(1.0), "average_precision": 1.0}
    best = found["best_head"]
    assert (best["layer"], best["head"]) == (1, 2)
    assert best["pointing"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    others = [h["pointing"] for layer in found["heads"] for h in layer if h is not found["heads"][1][2]]
    assert len(others) == 7 and max(others) < 1
    # The other heads are uniform, so the mean of all heads points there too.
    assert found["methods"]["attention"]["pointing"]["value"] == 1.0 and found["layers"][1]["pointing"] == 1.0
    assert found["layers"][0]["pointing"] < 1
    assert found["methods"]["attention"]["pointing_random"]["value"] == pytest.approx(1 / 16)
    assert found["methods"]["attention"]["pointing_center"]["value"] == pytest.approx(
        np.mean(
            [
                row["boxes"][0][0] <= 16 <= row["boxes"][0][2] and row["boxes"][0][1] <= 16 <= row["boxes"][0][3]
                for row in rows()
            ]
        )
    )
    table = grounding_table(found)
    assert "best head: 1.2" in table and "100.0% (100.0% to 100.0%)" in table and "layer 1" in table


@pytest.mark.parametrize("words", ["last", "all"])
def test_numbers_are_those_of_loops(processor, words):
    model, _ = tiny("vit_gpt2")
    methods = ("attention", "gradient", "rollout", "occlusion")
    found = evaluate_grounding(model, processor, rows(), methods, words=words, samples=20)
    for method in methods:
        hits, masses = [], []
        for row in rows():
            inputs = processor.image_processor(images=row["image"], return_tensors="pt")
            (maps,) = explain_words(model, processor, inputs, [CAPTION], method)
            assert [word for word, _ in maps] == CAPTION.split()
            chosen = maps[4:] if words == "last" else maps[2:]
            total = sum(word_map for _, word_map in chosen) / len(chosen)
            left, top, _, _ = row["boxes"][0]
            y, x = divmod(int(total.argmax()), 4)
            hits.append((8 * y, 8 * x) == (top, left))
            masses.append((total[top // 8, left // 8] / total.sum()).item())
        metrics = found["methods"][method]
        assert metrics["pointing"]["value"] == pytest.approx(np.mean(hits))
        assert metrics["mass"]["value"] == pytest.approx(np.mean(masses), rel=1e-3)


def test_deletion_is_measured_for_each_method(processor):
    model, _ = tiny("vit_gpt2")
    found = evaluate_grounding(model, processor, rows(2), ("attention", "occlusion"), deletion=True, samples=20)
    for metrics in found["methods"].values():
        assert {"value", "low", "high"} == set(metrics["deletion"]) == set(metrics["deletion_center"])
        assert len(metrics["curve"]["map"]) == len(metrics["curve"]["shares"]) == 6
    assert "deletion" in grounding_table(found)


def test_phrases_are_found_among_pieces_of_words(processor):
    model, _ = tiny("vit_gpt2")
    (row,) = rows(1)
    ((text, phrases),) = texts_with_boxes(row)
    assert text == CAPTION and phrases == [(8, 23, [row["boxes"][0]])]
    assert texts_with_boxes({"expression": "the left one", "box": [1, 2, 3, 4]}) == [
        ("the left one", [(0, 12, [[1, 2, 3, 4]])])
    ]
    inputs = processor.image_processor(images=row["image"], return_tensors="pt")
    (reading,) = readings(model, processor, inputs, ["Here is a bright, strange square!"])
    text = "Here is a bright, strange square!"
    assert [word for word, _ in reading.words] == ["here", "is", "a", "bright", "square"]  # one word is unknown
    numbers = words_of_span(reading, processor.tokenizer, text, 8, 32)
    assert [reading.words[number][0] for number in numbers] == ["a", "bright", "square"]


def test_what_cannot_be_judged_is_told(processor):
    model, _ = tiny("vit_gpt2")
    with pytest.raises(ValueError, match="'attention', 'gradient', 'rollout', 'occlusion', got 'magic'"):
        evaluate_grounding(model, processor, rows(1), ("magic",))
    with pytest.raises(ValueError, match='"last" or "all"'):
        evaluate_grounding(model, processor, rows(1), words="first")
    with pytest.raises(ValueError, match="names an object with a box"):
        evaluate_grounding(model, processor, [{**rows(1)[0], "phrases": []}])
    alone = evaluate_grounding(model, processor, rows(1), samples=10)
    assert alone["best_head"] is None and "best head" not in grounding_table(alone)


@pytest.mark.parametrize("name", ["blip2", "internvl", "paligemma"])
def test_models_without_a_chat_template_and_with_tiles(name):
    """They are asked as `pipeline("image-to-text")` asks them."""
    model, _ = tiny(name)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8))
    found = evaluate_grounding(
        model, PROCESSORS[name](), [{"image": image, "expression": "the dog", "box": [0, 0, 24, 16]}], samples=5
    )
    assert found["words"] == 1 and len(found["layers"]) == 2 and len(found["heads"][0]) == 4
