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
"""`pipeline("image-to-text")` on captioners and chat models of transformers, loaded from folders, with word maps."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, pipeline

from hf_vg.cli.program import main
from hf_vg.interpretation.families import FAMILIES
from hf_vg.pipelines import load_captioner
from tests.common import random_images
from tests.interpretation.any_processors import PROCESSORS, save


# Of an image of 48 x 32 and one of 16 x 16: height and width of their maps.
GRIDS = {
    "idefics3": [(8, 8), (8, 8)],
    "internvl": [(8, 12), (4, 4)],
    "llava_next": [(6, 8), (4, 4)],
    "mllama": [(8, 8), (4, 4)],
    "pix2struct": [(4, 6), (4, 4)],
    "qwen2_5_vl": [(4, 6), (4, 4)],
}
ASKED = ("gemma3", "idefics3", "internvl", "llava", "llava_next", "mllama", "paligemma", "qwen2_5_vl", "blip2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models are saved when they are asked for."""
    made = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = save(name, tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    return [random_images(1, size=48)[0].resize((48, 32)), random_images(1, size=16)[0]]


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_family_tells_where_its_words_look(name, folders, images):
    captioner = pipeline("image-to-text", model=folders(name), max_new_tokens=5)
    plain = captioner(images, batch_size=2)
    found = captioner(images, batch_size=2, return_attention="heads")
    single = [captioner(image, return_attention=True) for image in images]
    for place, ((caption,), (expected,), (alone,)) in enumerate(zip(found, plain, single, strict=True)):
        assert caption["generated_text"] == expected["generated_text"] == alone["generated_text"]
        assert "Describe" not in caption["generated_text"] and "assistant" not in caption["generated_text"]
        words, attention = caption["words"], caption["attention"]
        assert words and "".join(words) == re.sub(r"\s", "", caption["generated_text"])
        assert attention.shape == (len(words), *GRIDS.get(name, [(4, 4)] * 2)[place])
        np.testing.assert_allclose(attention.sum(axis=(1, 2)), 1, rtol=1e-4)
        np.testing.assert_allclose(attention, alone["attention"], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(caption["head_attention"].mean(axis=(0, 1)), attention, rtol=1e-4, atol=1e-6)
    several = captioner(images, batch_size=2, return_attention=True, num_beams=2, num_return_sequences=2)
    assert [len(captions) for captions in several] == [2, 2]
    torch.manual_seed(0)
    sampled = captioner(images[0], return_attention=True, do_sample=True, num_return_sequences=3)
    assert len(sampled) == 3 and all(len(record["words"]) == len(record["attention"]) for record in sampled)


@pytest.mark.parametrize("name", ["blip2", "git", "internvl", "llava", "qwen2_5_vl", "vit_gpt2"])
def test_maps_are_tested_by_deletion(name, folders, images):
    """Each caption has the curves that it has alone, also among several captions of several images."""
    captioner = pipeline("image-to-text", model=folders(name), max_new_tokens=5)
    decoding = {"num_beams": 2, "num_return_sequences": 2, "return_attention": "heads", "test_deletion": True}
    found = captioner(images, batch_size=2, **decoding)
    for image, captions in zip(images, found, strict=True):
        alone = captioner(image, **decoding)
        for caption, expected in zip(captions, alone, strict=True):
            deletion = caption["deletion"]
            assert [word["word"] for word in deletion["words"]] == caption["words"]
            for name in ("map", "random", "center"):
                curve = deletion["probability"][name]
                assert len(curve) == len(deletion["shares"]) == 6
                np.testing.assert_allclose(curve, expected["deletion"]["probability"][name], rtol=1e-2, atol=1e-4)
    with pytest.raises(ValueError, match="Set both"):
        captioner(images[0], test_deletion=True)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["vit_gpt2", "llava"])
def test_by_sdpa_as_by_eager_attention(name, implementation, folders, images):
    model = AutoModelForImageTextToText.from_pretrained(folders(name), attn_implementation=implementation)
    captioner = load_captioner(folders(name))
    captioner.model = model
    ((caption,),) = captioner(images[:1], return_attention=True, max_new_tokens=4)
    assert caption["attention"].shape[1:] == (4, 4)
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("name", ASKED)
def test_a_prompt_is_a_question_and_the_caption_is_the_answer(name, folders, images, monkeypatch):
    captioner = pipeline("image-to-text", model=folders(name), max_new_tokens=5)
    read = []
    generate = captioner.model.generate
    monkeypatch.setattr(captioner.model, "generate", lambda **inputs: read.append(inputs) or generate(**inputs))
    (answer,) = captioner(images[0], prompt="What is it?")
    assert "What" not in answer["generated_text"] and len(answer["generated_text"]) <= 5
    assert "What is it?" in captioner.tokenizer.decode(read[0]["input_ids"][0])
    captioner(images[0])
    if name != "blip2":  # its own `generate` makes the prompt
        words = "caption en" if name == "paligemma" else "Describe this image."
        assert words in captioner.tokenizer.decode(read[1]["input_ids"][0])


def test_captioners_continue_a_prompt(folders, images):
    for name in ("git", "vit_gpt2"):
        captioner = pipeline("image-to-text", model=folders(name), max_new_tokens=5)
        (caption,) = captioner(images[0], prompt="a dog", return_attention=True)
        assert caption["generated_text"].startswith("a dog")
        assert "".join(caption["words"]) == re.sub(r"\s", "", caption["generated_text"].removeprefix("a dog"))


def test_a_family_without_maps_captions_and_says_so(folders, images):
    captioner = load_captioner(folders("llava"))
    captioner.model.config.model_type = "brand_new"
    assert captioner(images[0], max_new_tokens=2)[0].keys() == {"generated_text"}
    with pytest.raises(ValueError, match=r"'brand_new'.*not supported yet.*grid=\(height, width\)"):
        captioner(images[0], return_attention=True)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "vit_gpt2"])
def test_the_command_line_takes_any_model(name, folders, images, tmp_path, capsys):
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number}.png")
    arguments = [str(tmp_path), "--model", folders(name), "--json", "--prompt", "what"]
    assert main(["caption", *arguments]) == 0
    captions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(captions) == 2 and all(record["caption"] for record in captions)
    page = tmp_path / "page.html"
    assert main(["explain", *arguments, "--output", str(page), "--deletion"]) == 0
    explained = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["words"] != [] for record in explained] == [True, True]
    assert all({"value", "low", "high"} == set(record["deletion"]["score_center"]) for record in explained)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [example["layers"] for example in data] == [2, 2] and [example["heads"] for example in data] == [4, 4]
    for example in data:  # curves of all words together, and of each word: by its map, at random, from the center
        assert np.shape(example["deletion"]["curves"]) == (1 + len(example["words"]), 3, 6)


def test_the_command_line_names_what_it_cannot_explain(folders, images, tmp_path, capsys, monkeypatch):
    images[0].save(tmp_path / "image.png")
    monkeypatch.delitem(FAMILIES, "llava")
    arguments = [str(tmp_path / "image.png"), "--model", folders("llava"), "--output", str(tmp_path / "page.html")]
    assert main(["explain", *arguments]) == 2
    assert "'llava' model is not supported yet" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
