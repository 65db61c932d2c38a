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
"""Explainers of words: each is restated by loops, for families with the image in the sequence and beside it."""

import pytest
import torch

from hf_vg.interpretation.explainers import EXPLAINERS, explain_words, hidden_cells
from hf_vg.interpretation.reading import readings
from hf_vg.interpretation.recording import record_attention
from hf_vg.interpretation.word_maps import word_maps
from hf_vg.pipelines import load_captioner
from hf_vg.training import tiny_captioner
from tests.common import random_images

from .any_models import BUILDERS, IMAGE, tiny
from .test_recording import CELLS, DECODINGS, Words, brighten, generate, state_of


RESTATED = ("llava", "paligemma", "git", "vit_gpt2", "donut", "blip")


def sharp(name: str):
    """A tiny model whose words depend on the image, which those of small random weights do not."""
    # Kosmos-2 makes its masks in single precision.
    model, inputs = tiny(name, torch.float32 if name == "kosmos2" else torch.float64)
    if name == "paligemma":  # as its processor gives them
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("_gate"):  # of Mllama's cross-attention, which begin closed
                parameter.fill_(0.5)
    return model, inputs


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("name", BUILDERS)
@torch.no_grad()
def test_reading_gives_the_probabilities_of_writing(name, decoding):
    model, inputs = sharp(name)
    outputs = generate(model, inputs, output_logits=True, **DECODINGS[decoding])
    rows = getattr(outputs, "beam_indices", None)
    for number, reading in enumerate(readings(model, Words(), inputs, outputs)):
        ids = reading.ids[0, reading.prompt_length :].tolist()
        for step, id in enumerate(ids):
            row = number if rows is None else rows[number, step]
            expected = outputs.logits[step][row].log_softmax(dim=-1)[id]
            actual = reading.log_probabilities(reading.arguments(2))[:, step]
            torch.testing.assert_close(actual.double(), expected.double().expand(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BUILDERS)
@torch.no_grad()
def test_attention_is_what_was_recorded_while_writing(name):
    model, inputs = tiny(name)
    with record_attention(model) as record:
        outputs = generate(model, inputs, **DECODINGS["beams"])
    expected = word_maps(record, outputs, Words(), inputs)
    before = state_of(model)
    actual = explain_words(model, Words(), inputs, outputs)
    assert state_of(model) == before
    for sequence, other in zip(actual, expected, strict=True):
        for (word, word_map), (other_word, other_map) in zip(sequence, other, strict=True):
            assert word == other_word
            torch.testing.assert_close(word_map, other_map, rtol=1e-4, atol=1e-6)


def whole_attention(name: str, model, reading) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The attention of each layer, `(1, heads, queries, keys)`, and log-probabilities, as the model has them."""
    arguments = reading.arguments()
    if name == "blip":
        features = model.vision_model(arguments["pixel_values"])[0]
        outputs = model.text_decoder(
            input_ids=reading.ids, encoder_hidden_states=features, output_attentions=True, return_dict=True
        )
    else:
        model.set_attn_implementation("eager")
        outputs = model(**arguments, output_attentions=True)
    layers = outputs.get("cross_attentions") or outputs.get("attentions")
    logits = outputs.logits[0, -reading.ids.shape[1] :]
    tokens = reading.ids[0, reading.prompt_length :]
    rows = range(reading.prompt_length - 1, reading.ids.shape[1] - 1)
    return list(layers), torch.stack(
        [logits[row].log_softmax(dim=-1)[id] for row, id in zip(rows, tokens, strict=True)]
    )


def places_of_image(name: str, reading, keys: int) -> list[int]:
    if name in ("llava", "paligemma"):
        return [place for place, id in enumerate(reading.ids[0].tolist()) if id == IMAGE]
    return list(range(0 if name == "donut" else 1, 32 if name == "donut" else 17))  # a class token comes first


def scaled(rows: list[float], height: int) -> torch.Tensor:
    total = sum(rows)
    return torch.tensor([row / total for row in rows]).view(height, -1)


@pytest.mark.parametrize("name", RESTATED)
def test_gradient_restated(name):
    model, inputs = sharp(name)
    outputs = generate(model, inputs)
    found = explain_words(model, Words(), inputs, outputs, "gradient")
    for number, reading in enumerate(readings(model, Words(), inputs, outputs)):
        layers, log_probabilities = whole_attention(name, model, reading)
        for word, (_, pieces) in enumerate(reading.words):
            (piece,) = pieces  # the tokens of `Words` are words
            gradients = torch.autograd.grad(log_probabilities[piece], layers, retain_graph=True)
            expected = []
            for place in places_of_image(name, reading, layers[0].shape[-1]):
                total = 0.0
                for attention, gradient in zip(layers, gradients, strict=True):
                    row = attention.shape[2] - len(reading.ids[0]) + reading.prompt_length - 1 + piece
                    for head in range(attention.shape[1]):
                        total += max(0.0, (attention * gradient)[0, head, row, place].item())
                expected.append(total)
            actual = found[number][word][1]
            torch.testing.assert_close(actual, scaled(expected, len(actual)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", RESTATED)
@torch.no_grad()
def test_rollout_restated(name):
    model, inputs = sharp(name)
    outputs = generate(model, inputs)
    found = explain_words(model, Words(), inputs, outputs, "rollout")
    for number, reading in enumerate(readings(model, Words(), inputs, outputs)):
        layers, _ = whole_attention(name, model, reading)
        if name in ("vit_gpt2", "donut", "blip"):
            rolled = torch.zeros_like(layers[0][0, 0])
            for attention in layers:
                rolled = 0.5 * rolled + 0.5 * sum(attention[0]) / attention.shape[1]
        else:
            rolled = torch.eye(layers[0].shape[-1], dtype=torch.float64)
            for attention in layers:
                mean = sum(attention[0]) / attention.shape[1]
                rolled = (0.5 * mean + 0.5 * torch.eye(len(mean), dtype=torch.float64)) @ rolled
        for word, (_, (piece,)) in enumerate(reading.words):
            row = len(rolled) - len(reading.ids[0]) + reading.prompt_length - 1 + piece
            expected = [rolled[row, place].item() for place in places_of_image(name, reading, rolled.shape[-1])]
            actual = found[number][word][1]
            torch.testing.assert_close(actual, scaled(expected, len(actual)), rtol=1e-3, atol=1e-5)


def painted(name: str, inputs: dict, row: int, column: int, height: int, width: int) -> dict:
    """The inputs with a cell of the last image in the mean color of that image."""
    key = "flattened_patches" if name == "pix2struct" else "pixel_values"
    pixels = inputs[key]
    changed = brighten(name, inputs, row, column, height, width)
    is_cell = changed[key] != pixels
    if name == "llava_next":  # the image is also seen whole, in 16 x 16 pixels
        is_cell[-1, 0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = True
    if name == "pix2struct":
        real = pixels[-1, :12, 2:].unflatten(-1, (2, 2, 3))  # patches of padding do not count
        color = real.mean(dim=(0, 1, 2)).repeat(4)
        color = torch.cat([torch.zeros(2, dtype=pixels.dtype), color])
    elif name.startswith("qwen"):
        color = pixels[32:].unflatten(1, (3, -1)).mean(dim=(0, 2)).repeat_interleave(8)
    else:
        last = pixels.flatten(1, -4)[-1] if pixels.dim() > 4 else pixels[-1:]
        color = last.mean(dim=(0, 2, 3))[:, None, None]
    return {**inputs, key: torch.where(is_cell, color, pixels)}


@pytest.mark.parametrize("name", [name for name in CELLS if name != "gemma3"])
@torch.no_grad()
def test_occlusion_restated(name):
    model, inputs = sharp(name)
    outputs = generate(model, inputs, output_logits=True)
    *_, words = explain_words(model, Words(), inputs, outputs, "occlusion", batch_size=5)
    *_, reading = readings(model, Words(), inputs, outputs)
    height, width = words[0][1].shape
    shown = reading.log_probabilities(reading.arguments())[0]
    falls = torch.zeros(len(words), height, width)
    for row in range(height):
        for column in range(width):
            hidden = painted(name, inputs, row, column, height, width)
            *_, without = readings(model, Words(), hidden, outputs)
            fall = shown - without.log_probabilities(without.arguments())[0]
            falls[:, row, column] = torch.stack([fall[piece].clamp(min=0) for _, (piece,) in reading.words])
            if (row, column) == (1, 2):  # all of them would be slow
                break
        if row == 1:
            break
    assert falls.sum() > 0
    for (_, word_map), expected in zip(words, falls, strict=True):
        # Maps are scaled: the cells that were computed here are in the same proportion.
        cells = [(row, column) for row in range(2) for column in range(width) if (row, column) <= (1, 2)]
        actual = torch.stack([word_map[cell] for cell in cells])
        wanted = torch.stack([expected[cell] for cell in cells])
        if wanted.sum() > 0:
            torch.testing.assert_close(actual / actual.sum(), wanted / wanted.sum(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_a_hidden_cell_is_that_cell_of_the_image(name):
    model, inputs = tiny(name, torch.float64)
    outputs = generate(model, inputs)
    *_, reading = readings(model, Words(), inputs, outputs)
    cells = hidden_cells(reading)
    height, width = cells.grid
    for row, column in [(0, 0), (0, width - 1), (height - 1, 0), (height // 2, width // 2)]:
        changed = brighten(name, inputs, row, column, height, width)[cells.name] != inputs[cells.name]
        changed = changed[32:] if name.startswith("qwen") else changed[-1:]  # of the last row
        hidden = (cells.cells == row * width + column).expand_as(reading.inputs[cells.name])
        if name == "llava_next":  # the first is the whole image, which `brighten` leaves as it is
            changed, hidden = changed[:, 1:], hidden[:, 1:]
        assert torch.equal(hidden, changed)


@pytest.mark.parametrize("method", EXPLAINERS)
@pytest.mark.parametrize("name", ["blip2", "kosmos2", "florence2", "mllama", "qwen3_vl", "gemma3"])
def test_maps_are_shares_of_the_image(name, method):
    model, inputs = sharp(name)
    outputs = generate(model, inputs)
    found = explain_words(model, Words(), inputs, outputs, method)
    assert len(found) == 2
    for words in found:
        for _, word_map in words:
            assert word_map.dim() == 2 and (word_map >= 0).all() and not word_map.requires_grad
            assert word_map.sum().item() == pytest.approx(1, abs=1e-3)


class Pieces(Words):
    """Two tokens are a word, and texts are made of their numbers."""

    def decode(self, ids, **kwargs) -> str:
        return "".join((" " if place % 2 == 0 else "") + f"w{id}" for place, id in enumerate(ids))

    def __call__(self, text, **kwargs):
        return {"input_ids": [int(id) for id in text.replace("w", " ").split()]}


def test_the_log_probability_of_a_word_is_that_of_all_its_pieces():
    model, inputs = sharp("llava")
    texts = ["w11w12 w13w14", "w21w22 w23w24"]
    found = explain_words(model, Pieces(), inputs, texts, "occlusion")
    assert [[word for word, _ in words] for words in found] == [["w11w12", "w13w14"], ["w21w22", "w23w24"]]
    reading, _ = readings(model, Pieces(), inputs, texts)
    hidden = torch.eye(16, dtype=torch.bool)
    of_words = hidden_cells(reading).log_probabilities(hidden)
    assert of_words.shape == (16, 2)
    with torch.no_grad():
        tokens = reading.log_probabilities(reading.arguments())
    torch.testing.assert_close(reading.of_words(tokens)[0, 1], tokens[0, 2] + tokens[0, 3])


def test_a_frozen_model_in_training_mode_is_explained_and_left_as_it_was():
    model, inputs = sharp("vit_gpt2")
    outputs = generate(model, inputs)
    expected = explain_words(model, Words(), inputs, outputs, "gradient")
    model.requires_grad_(False).train()
    with torch.no_grad():
        actual = explain_words(model, Words(), inputs, outputs, "gradient")
    assert model.training and not any(p.requires_grad or p.grad is not None for p in model.parameters())
    torch.testing.assert_close(actual[0][0][1], expected[0][0][1])


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    return load_captioner(tiny_captioner(tmp_path_factory.mktemp("captioner")))


def test_our_captioner_is_explained_and_its_gradient_restated(captioner):
    model, tokenizer = captioner.model, captioner.tokenizer
    text = "a large red circle"
    images = random_images(1, size=32)
    inputs = captioner.image_processor(images=images, return_tensors="pt")
    for method in EXPLAINERS:
        (words,) = explain_words(model, tokenizer, inputs, [text], method)
        assert [word for word, _ in words] == text.split()
        assert all(word_map.sum().item() == pytest.approx(1, abs=1e-3) for _, word_map in words)
    (words,) = explain_words(model, tokenizer, inputs, [text], "gradient")
    (reading,) = readings(model, tokenizer, inputs, [text])
    outputs = model(**inputs, decoder_input_ids=reading.ids, output_attentions=True)
    (attention,) = outputs.cross_attentions  # (1, 1, length, locations)
    for number, (_, (piece,)) in enumerate(reading.words):
        row = reading.prompt_length - 1 + piece
        log_probability = outputs.logits[0, row].log_softmax(dim=-1)[reading.ids[0, row + 1]]
        (gradient,) = torch.autograd.grad(log_probability, attention, retain_graph=True)
        products = zip(gradient[0, 0, row].tolist(), attention[0, 0, row].tolist(), strict=True)
        expected = scaled([max(0.0, g * a) for g, a in products], len(words[number][1]))
        torch.testing.assert_close(words[number][1], expected, rtol=1e-3, atol=1e-5)


def test_hard_attention_has_no_gradient(captioner, monkeypatch):
    monkeypatch.setattr(captioner.model.config, "attention_type", "hard")
    monkeypatch.setattr(captioner.model.config, "hard_decoding", "argmax")
    inputs = captioner.image_processor(images=random_images(1, size=32), return_tensors="pt")
    with pytest.raises(ValueError, match=r"no gradient with respect to its attention.*occlusion"):
        explain_words(captioner.model, captioner.tokenizer, inputs, ["a large red circle"], "gradient")


def test_wrong_arguments_are_told():
    model, inputs = tiny("llava")
    with pytest.raises(ValueError, match="'attention', 'gradient', 'rollout', 'occlusion', got 'magic'"):
        explain_words(model, Pieces(), inputs, ["w5w6", "w7w8"], "magic")
    with pytest.raises(ValueError, match="3 sequences cannot be shared out evenly among 2"):
        explain_words(model, Pieces(), inputs, ["w5w6"] * 3)
