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
"""The report of a captioner, and the recipe that writes it."""

import json
import re
import runpy
import sys

import numpy as np
import pytest
from transformers import GenerationConfig, pipeline

from hf_vg.data import load_scenes
from hf_vg.reports import escape_markdown, write_report
from tests.checkpoints import save_captioner, save_scnlm
from tests.common import ROOT, random_images


def test_files_of_a_report(tmp_path):
    example = {
        "image": random_images(1, size=32)[0],
        "words": ["a", "dog"],
        "attention": np.random.default_rng(0).random((2, 4, 4)),
        "generated_text": "a dog",
        "references": ["<b>a</b> *dog*", "two_dogs"],
        "score": 1.25,
        "id": "1.jpg",
    }
    metrics = {"bleu4": {"value": 0.2512, "low": 0.2, "high": 0.3}, "vocabulary": {"value": 1234.0}}
    files = write_report(
        tmp_path / "new", "Captions of <m>", {"model": "<m>"}, metrics, {"Best": [example], "Worst": []}
    )
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "report.json", "report.md", "report.html", "best.png",
    }  # fmt: skip
    record = json.loads(files["json"].read_text())
    assert record["metrics"] == metrics and record["examples"]["Best"][0]["score"] == 1.25
    text = files["md"].read_text()
    assert "| BLEU-4 | 25.1 | 20.0 to 30.0 |" in text and "| different words used | 1,234 |  |" in text
    assert r"\<b\>a\</b\> \*dog\*" in text and "![Where the model looked](best.png)" in text
    page = files["html"].read_text()
    assert "<td class=number>25.1</td>" in page and "<m>" not in page and "<b>a" not in page


HOSTILE = "| [x](http://e.org) <img src=x> $\\frac{$ \ud800 *a*\n# b"


def test_what_others_wrote_is_text(tmp_path):
    """Titles, facts, metric names, captions and file names are shown as they are, in Markdown and in figures."""
    example = {
        "image": random_images(1, size=32)[0], "words": ["$", "$x^$", "\ud800"], "attention": np.ones((3, 2, 2)),
        "generated_text": HOSTILE, "references": [HOSTILE], "score": 1.0, "id": HOSTILE,
    }  # fmt: skip
    metrics = {HOSTILE: {"value": 1.0, "low": 0.0, "high": float("nan")}}
    files = write_report(tmp_path, HOSTILE, {HOSTILE: HOSTILE}, metrics, {HOSTILE: [example]}, ranked_by="bleu1")
    text = files["md"].read_text(encoding="utf-8")
    unescaped = re.sub(r"\\.", "", text.replace("![Where the model looked](", ""))
    assert not set("[]<>*$&") & set(unescaped.replace("**", ""))
    assert {line.count("|") for line in unescaped.splitlines()} == {0, 4}
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        f"# {escape_markdown(HOSTILE)}", f"## {escape_markdown(HOSTILE)}",
    ]  # fmt: skip
    assert "BLEU-1 100.0" in text and "0 to not measured" in text
    assert "<img" not in files["html"].read_text(encoding="utf-8")
    assert json.loads(files["json"].read_text())["title"] == HOSTILE


@pytest.fixture(scope="module")
def flickr(tmp_path_factory):
    """Three scenes in the format of Flickr8k, with the boxes of Flickr30k Entities."""
    folder = tmp_path_factory.mktemp("flickr")
    entities = folder / "entities"
    for name in ("Images", "entities/Annotations", "entities/Sentences"):
        (folder / name).mkdir(parents=True)
    scenes = load_scenes(3, 1, 1, 32)["train"]
    names = [f"{number}_photo.jpg" for number in range(3)]
    for name, scene in zip(names, scenes, strict=True):
        scene["image"].save(folder / "Images" / name)
        number = name.split("_")[0]
        (entities / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><filename>{name}</filename><object><name>7</name><bndbox><xmin>4</xmin><ymin>4</ymin>"
            "<xmax>20</xmax><ymax>20</ymax></bndbox></object></annotation>"
        )
        sentence = " and ".join(f"[/EN#7/other a {word}]" for word in "red circle above two blue squares".split())
        (entities / "Sentences" / f"{number}.txt").write_text(sentence)
    (entities / "val.txt").write_text("0\n1\n2\n")
    (folder / "Flickr8k.token.txt").write_text(
        "".join(f"{name}#{i}\ta red circle above squares\n" for name in names for i in range(5))
    )
    (folder / "Flickr_8k.trainImages.txt").write_text(names[0])
    (folder / "Flickr_8k.devImages.txt").write_text("\n".join(names[1:]))
    return folder


def run_recipe(monkeypatch, folder, *flags):
    """Runs the recipe in this process: a new process would import torch and transformers again."""
    recipe = str(ROOT / "recipes" / "evaluate_captioner.py")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [recipe, *map(str, flags)])
    runpy.run_path(recipe, run_name="__main__")


@pytest.mark.parametrize("data", ["scenes", "flickr8k"])
def test_recipe(data, flickr, tmp_path, monkeypatch, capsys):
    flags = ["--num_eval_images", 6, "--image_size", 32]
    if data == "flickr8k":
        flags = ["--dataset", data, "--data_dir", flickr, "--split", "dev", "--entities_dir", flickr / "entities"]
    flags += ["--checkpoint", save_captioner(tmp_path / "captioner"), "--num_examples", 1, "--num_samples", 20]
    if data == "scenes":
        flags += ["--length_penalty", 0, "--num_deletion_images", 3]
    run_recipe(monkeypatch, tmp_path, *flags)
    record = json.loads((tmp_path / "captioner" / "report" / "report.json").read_text())
    assert record["images"] == (6 if data == "scenes" else 2)
    assert record["length_penalty"] == (0 if data == "scenes" else 1)
    assert {"bleu4", "cider_d", "vocabulary"} < record["metrics"].keys()
    assert len(record["examples"]["Best"]) == len(record["examples"]["Worst"]) == 1
    assert "| BLEU-4 |" in capsys.readouterr().out
    report = (tmp_path / "captioner" / "report" / "report.md").read_text()
    page = (tmp_path / "captioner" / "report" / "report.html").read_text()
    if data == "scenes":
        assert record["deletion"]["score"] == record["metrics"]["deletion"]
        assert len(record["deletion"]["probability"]["center"]) == 6
        assert "![Probability of words as more is hidden](deletion.png)" in report and "of 3 images." in report
        examples = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        assert "data:image/png;base64," in page and len(examples) == 2 and all("deletion" in e for e in examples)
    else:
        assert "deletion" not in record["metrics"] and "deletion.png" not in report
        assert record["metrics"]["words"]["value"] > 0
        assert record["examples"]["Best"][0]["id"] in ("1_photo.jpg", "2_photo.jpg")
        # 3 x 3 of the 4 x 4 cells have their center in the box.
        assert record["metrics"]["pointing_random"]["value"] == pytest.approx(9 / 16)


def test_recipe_uses_the_checkpoints_own_settings(tmp_path, monkeypatch):
    """The captions of the report are those of the pipeline. An SC-NLM, which has no maps, shows its candidates."""
    checkpoint = save_captioner(tmp_path / "captioner")
    settings = GenerationConfig.from_pretrained(checkpoint)
    settings.num_beams, settings.max_new_tokens = 2, 5
    settings.save_pretrained(checkpoint)
    flags = ["--num_eval_images", 2, "--image_size", 32, "--num_examples", 1, "--num_samples", 5]
    run_recipe(monkeypatch, tmp_path, *flags, "--checkpoint", checkpoint)
    record = json.loads((tmp_path / "captioner" / "report" / "report.json").read_text())
    assert record["beams"] == 2
    captioner = pipeline("image-to-text", model=checkpoint)
    images = load_scenes(1, 2, 2, 32)["test"]["image"]
    expected = sorted(captioner(image)[0]["generated_text"] for image in images)
    shown = [record["examples"][heading][0]["generated_text"] for heading in ("Best", "Worst")]
    assert sorted(shown) == expected
    run_recipe(monkeypatch, tmp_path, *flags, "--checkpoint", save_scnlm(tmp_path / "scnlm"), "--metrics", "bleu")
    report = (tmp_path / "scnlm" / "report" / "report.md").read_text()
    assert "pointing" not in report and "(BLEU-1 " in report and (tmp_path / "scnlm" / "report" / "best.png").exists()


def test_recipe_without_a_checkpoint_says_what_makes_one(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="run recipes/train_captioner.py first"):
        run_recipe(monkeypatch, tmp_path)
