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
"""The report of a captioner, and its confidence intervals."""

import json
import runpy
import sys

import numpy as np
import pytest

from hf_vg.data import load_scenes
from hf_vg.evaluation import (
    bootstrap,
    caption_intervals,
    caption_metrics,
    grounding_intervals,
    grounding_metrics,
    words_with_boxes,
    write_report,
)
from hf_vg.evaluation.grounding import boxes_in_view
from tests.checkpoints import save_captioner
from tests.common import ROOT, random_images


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
    with pytest.raises(ValueError, match="no caption metric 'spice'"):
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
    """Of an image of 40 x 20 pixels the model is given the middle 20 x 20, in which the second box can not be seen."""
    assert boxes_in_view([[15, 0, 20, 5], [0, 0, 10, 20]], (40, 20), (0.25, 0, 0.75, 1)) == (
        [[5, 0, 10, 5]], (20, 20),
    )  # fmt: skip
    attention = np.zeros((3, 4, 4))
    attention[1, 0, 1] = 1.0  # of pixels 15 to 20 from the left, and 0 to 5 from the top
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


def test_files_of_a_report(tmp_path):
    example = {
        "image": random_images(1, size=32)[0],
        "words": ["a", "dog"],
        "attention": RNG.random((2, 4, 4)),
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
    assert "| BLEU-4 | 25.1 | 20.0 to 30.0 |" in text and "| words used | 1,234 |  |" in text
    assert r"\<b\>a\</b\> \*dog\*" in text and "![Where the model looked](best.png)" in text
    page = files["html"].read_text()
    assert "<td class=number>25.1</td>" in page and "<m>" not in page and "<b>a" not in page


@pytest.fixture(scope="module")
def flickr(tmp_path_factory):
    """Three images of scenes as Flickr8k keeps them, with the boxes of Flickr30k Entities."""
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
    """In this process: a new one would first import torch and transformers again."""
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
        flags += ["--length_penalty", 0]
    run_recipe(monkeypatch, tmp_path, *flags)
    record = json.loads((tmp_path / "captioner" / "report" / "report.json").read_text())
    assert record["images"] == (6 if data == "scenes" else 2)
    assert record["length_penalty"] == (0 if data == "scenes" else 1)
    assert {"bleu4", "cider_d", "vocabulary"} < record["metrics"].keys()
    assert len(record["examples"]["Best"]) == len(record["examples"]["Worst"]) == 1
    assert "| BLEU-4 |" in capsys.readouterr().out
    if data == "flickr8k":
        assert record["metrics"]["words"]["value"] > 0
        assert record["examples"]["Best"][0]["id"] in ("1_photo.jpg", "2_photo.jpg")
        # Of 4 x 4 cells, 3 x 3 have their centre in the box.
        assert record["metrics"]["pointing_random"]["value"] == pytest.approx(9 / 16)


def test_recipe_without_a_checkpoint_says_what_makes_one(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="run recipes/train_captioner.py first"):
        run_recipe(monkeypatch, tmp_path)
