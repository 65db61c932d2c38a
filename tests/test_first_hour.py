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
"""The first hour with your own photos: from a folder and a CSV to a captioner that a new process loads."""

import csv
import json
import subprocess
import sys

import pytest
from huggingface_hub import ModelCard
from PIL import Image, ImageDraw

from hf_vg.cli.program import main as hf_vg_command
from hf_vg.training import tiny_backbone
from tests.training.test_recipes import Recipes


COLORS = ("red", "green", "blue", "yellow", "black", "white")
SHAPES = ("circle", "square")


def draw(path, number: int) -> str:
    """Draws a photo, and returns a description of it."""
    color, shape = COLORS[number % len(COLORS)], SHAPES[number % len(SHAPES)]
    image = Image.new("RGB", (60 + number % 7, 50 + number % 5), "gray")
    pen = ImageDraw.Draw(image)
    (pen.ellipse if shape == "circle" else pen.rectangle)((10, 10, 35, 35), fill=color)
    image.save(path)
    return f"{color} {shape}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first_hour")
    (folder / "temporary").mkdir()
    photos = folder / "photos"
    photos.mkdir()
    with open(photos / "captions.csv", "w", newline="") as file:
        table = csv.writer(file)  # Excel ends lines with CRLF
        table.writerow(["image", "caption"])
        for number in range(60):
            name = f"{number:02}.jpg"
            thing = draw(photos / name, number)
            table.writerow([name, f"A {thing}, on a gray wall."])
            table.writerow([name, f'Somebody painted a "{thing}".'])
    draw(folder / "new.png", 7)
    tiny_backbone(folder / "vgg")
    return folder


def test_from_photos_to_a_captioner(folder, capsys, monkeypatch):
    recipes, captioner, photo = Recipes(folder), folder / "captioner", str(folder / "new.png")
    monkeypatch.chdir(folder)

    printed = recipes.run(
        "train_captioner",
        [
            *("--data_dir", folder / "photos", "--backbone", folder / "vgg", "--output_dir", captioner),
            *("--num_train_epochs", "1", "--model.hidden_size", "16", "--model.embedding_size", "16"),
            *("--num_figures", "1", "--max_new_tokens", "8", "--disable_tqdm", "true"),
        ],
    )
    assert "Found table" in printed and "60 train images" in printed
    assert "scenes" not in printed and "repaired" not in printed  # no warning about CRLF

    assert hf_vg_command(["caption", photo, "--model", str(captioner), "--json", "--quiet"]) in (0, None)
    caption = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert hf_vg_command(["explain", photo, "--model", str(captioner), "--output", "e.html", "--quiet"]) in (0, None)
    assert "<html" in (folder / "e.html").read_text()[:500]

    evaluated = recipes.run(
        "evaluate_captioner",
        ["--checkpoint", captioner, "--data_dir", folder / "photos", "--num_samples", "10", "--num_examples", "1"],
    )
    assert "BLEU-4" in evaluated
    metrics = json.loads((captioner / "report" / "report.json").read_text())
    assert metrics["images"] == 3 and metrics["split"] == "validation"  # held out of 60
    (result,) = {result.dataset_split for result in ModelCard.load(captioner / "README.md").data.eval_results}
    assert result == "validation"  # the card does not call it the test split

    load = f"pipeline('image-to-text', {str(captioner)!r})"
    code = f"import hf_vg; from transformers import pipeline; print({load}({photo!r}))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert repr(caption["caption"]) in process.stdout  # all give the same caption
