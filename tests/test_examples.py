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
"""The example checkpoints: what they say is true, they look at what they name, and they find what is asked for."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, pipeline

from hf_vg import EmbeddingSpace, caption_is_true, examples
from hf_vg.cli import main
from hf_vg.evaluation import scene_grounding_metrics
from hf_vg.interpretation import ground_phrase, load_region_model
from hf_vg.loading import load_config
from hf_vg.pipelines import load_captioner, load_sentence_encoder, load_space
from tests.checkpoints import save_spatial


SCENES = examples.scenes()
IMAGES = [row["image"] for row in SCENES]


def test_scenes_are_rows_with_files():
    assert len(SCENES) == 12
    for row in SCENES:
        with Image.open(row["image"]) as image:
            assert image.size == (128, 128)
        assert len(row["captions"]) == 5 and all(caption_is_true(row, caption) for caption in row["captions"])
        for phrase in row["phrases"]:
            assert row["captions"][phrase["caption"]][phrase["start"] : phrase["end"]] == phrase["text"]
            assert all(0 <= side <= 128 for index in phrase["objects"] for side in row["objects"][index]["box"])


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'show_attend_tell'?"):
        examples.checkpoint("show_attend_and_tell")
    with pytest.raises(ValueError, match="There are: show_attend_tell, spatial_transformer"):
        examples.checkpoint("bert")


def test_all_of_it_is_small():
    files = [file for file in Path(examples.__file__).parent.rglob("*") if file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 6_000_000


@pytest.mark.parametrize("name", examples.CHECKPOINTS)
def test_stored_in_half_precision_and_loaded_in_float32(name):
    folder = Path(examples.checkpoint(name))
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert model.dtype == torch.float32 and not info["missing_keys"]
    # The installed code is used, and so there is none beside the weights.
    assert not {*folder.glob("*.py")} and "auto_map" not in json.loads((folder / "config.json").read_text())
    assert "accelerate launch" in (folder / "README.md").read_text(encoding="utf-8")
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    kinds = {entry["dtype"] for key, entry in header.items() if key != "__metadata__"}
    assert "F16" in kinds and "F32" not in kinds


@pytest.mark.parametrize("name, pointing", [("show_attend_tell", 0.7), ("spatial_transformer", 0.8)])
def test_captions_are_true_and_nouns_look_at_their_objects(name, pointing):
    captioner = pipeline("image-to-text", model=examples.checkpoint(name))
    captions = [records[0] for records in captioner(IMAGES, return_attention=True)]
    true = [caption_is_true(row, c["generated_text"]) for row, c in zip(SCENES, captions, strict=True)]
    assert sum(true) >= 11, [caption["generated_text"] for caption in captions]
    rows = [{**row, "image": Image.open(row["image"])} for row in SCENES]
    metrics = scene_grounding_metrics(rows, captions)
    assert metrics["pointing"] > pointing > 4 * metrics["pointing_random"]


@pytest.fixture(scope="module")
def space():
    return EmbeddingSpace.from_pretrained(examples.checkpoint("vse_scnlm"))


@pytest.fixture(scope="module")
def vectors(space):
    return space.encode_images(IMAGES)


class TestSpace:
    def first(self, space, query, vectors) -> dict:
        return SCENES[space.search(query, vectors, 1)[0]["index"]]

    def test_a_caption_finds_a_scene_that_it_is_true_of(self, space, vectors):
        captions = [caption for row in SCENES for caption in row["captions"]]
        true = [caption_is_true(self.first(space, caption, vectors), caption) for caption in captions]
        chance = np.mean([caption_is_true(row, caption) for row in SCENES for caption in captions])
        assert np.mean(true) > 0.75 > 3 * chance

    def test_an_image_minus_a_word_plus_another(self, space, vectors):
        purple, white = (
            next(r for r in SCENES if "a big " + what in r["captions"]) for what in ("purple cross", "white object")
        )
        assert self.first(space, space.image(purple["image"]) - "purple" + "white", vectors) is white
        assert self.first(space, space.image(white["image"]) - "white" + "purple", vectors) is purple
        assert self.first(space, space.text("a purple cross") - "purple" + "white", vectors) is white

    def test_it_also_writes_captions(self):
        captioner = load_captioner("vse_scnlm")
        assert captioner.model.generation_config.num_candidates == 200  # as its recipe says
        captions = [records[0]["generated_text"] for records in captioner(IMAGES)]
        true = np.array([[caption_is_true(row, caption) for row in SCENES] for caption in captions])
        assert true.diagonal().mean() >= 0.5 > 2 * true.mean(), captions


def test_a_phrase_is_grounded_in_its_box():
    model, processor = load_region_model(examples.checkpoint("grounded_visual_bert"))
    found, chance = [], []
    for row in SCENES:
        boxes = [obj["box"] for obj in row["objects"]]
        for phrase in row["phrases"] if len(boxes) > 1 else ():
            caption = row["captions"][phrase["caption"]]
            best = ground_phrase(model, processor, Image.open(row["image"]), caption, boxes, phrase["text"])[0]
            found.append(any(np.allclose(best["box"], boxes[index], atol=0.1) for index in phrase["objects"]))
            chance.append(len(phrase["objects"]) / len(boxes))
    assert len(found) > 30 and np.mean(found) > 0.9 > np.mean(chance) + 0.3


def test_nearest_sentences_mean_the_same():
    model, tokenizer = load_sentence_encoder("self_attn_grounded_encoder")
    captions = [(caption, row) for row in SCENES for caption in row["captions"]]
    vectors = model.encode([caption for caption, _ in captions], normalize_embeddings=True, tokenizer=tokenizer)
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -1)
    nearest = [captions[place][0] for place in similarities.argmax(axis=1)]
    assert np.mean([caption_is_true(row, other) for (_, row), other in zip(captions, nearest, strict=True)]) > 0.8
    sentences = ["a small red circle", "a big green square", "two blue crosses"]
    others = ["a little red circle", "a large green square", "two big blue crosses"]
    vectors = model.encode([*sentences, *others], normalize_embeddings=True, tokenizer=tokenizer)
    assert (vectors[:3] @ vectors[3:].T).argmax(axis=1).tolist() == [0, 1, 2]


def run(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


class TestCommands:
    def test_captions_in_one_line(self, capsys):
        code, out, err = run(capsys, "caption", "--examples")
        assert code == 0 and "using the example show_attend_tell" in err
        lines = [line.split("\t") for line in out.splitlines()]
        assert [path for path, _ in lines] == IMAGES
        assert sum(caption_is_true(row, text) for row, (_, text) in zip(SCENES, lines, strict=True)) >= 11

    def test_explanations_by_what_is_given(self, capsys, tmp_path):
        output = ("--output", tmp_path / "looks.html")
        for name, arguments in {
            "show_attend_tell": [IMAGES[0]],
            "grounded_visual_bert": ["--examples", "--text", "a red circle"],
            "self_attn_grounded_encoder": ["--text", "a red circle"],
        }.items():
            code, _, err = run(capsys, "explain", *arguments, *output)
            assert code == 0 and f"using the example {name}" in err
            assert "circle" in (tmp_path / "looks.html").read_text(encoding="utf-8") or name == "show_attend_tell"

    def test_search(self, capsys, tmp_path):
        query = ("--query", "a purple cross", "--minus", "purple", "--plus", "white", "--top", 1)
        code, out, err = run(capsys, "search", "--examples", *query, "--index", tmp_path)
        row = next(row for row in SCENES if row["image"] == out.strip().split("\t")[1])
        assert code == 0 and caption_is_true(row, "a white cross") and "using the example vse_scnlm" in err

    def test_grounding_takes_the_boxes_of_the_scenes(self, capsys, tmp_path):
        text = ("--text", "a white circle", "--output", tmp_path)
        code, out, err = run(capsys, "ground", "--examples", *text, "--json")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and "using the example grounded_visual_bert" in err and len(records) == len(SCENES)
        for row, record in zip(SCENES, records, strict=True):
            circles = [obj["box"] for obj in row["objects"] if (obj["color"], obj["shape"]) == ("white", "circle")]
            assert not circles or record["regions"][0]["box"] in circles

    def test_the_list(self, capsys):
        code, out, _ = run(capsys, "examples", "--json")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and [record["model"] for record in records if "model" in record] == list(examples.CHECKPOINTS)
        assert [record["image"] for record in records if "image" in record] == IMAGES


def test_a_folder_of_yours_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("spatial_transformer").hidden_size == 128
    save_spatial(tmp_path / "spatial_transformer")
    assert (
        load_config("spatial_transformer").hidden_size
        == load_config(tmp_path / "spatial_transformer").hidden_size
        < 128
    )
    shutil.rmtree(tmp_path / "spatial_transformer")
    assert load_captioner("spatial_transformer").model.config.hidden_size == 128
    assert load_space("vse_scnlm").text("a circle").vector.shape == (128,)
