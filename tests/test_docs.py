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
"""README and the documentation: code runs as it is pasted, links lead somewhere, numbers are those of RESULTS.md."""

import csv
import os
import re
from pathlib import Path

import pytest
from PIL import Image

import hf_vg
from hf_vg.data import load_scenes
from tests.common import ROOT, random_images
from tests.documentation import PAGES, Reader, blocks, kind, listing
from tests.interpretation.any_models import tiny
from tests.interpretation.any_processors import PROCESSORS, save


def write_photos(folder: Path) -> None:
    """A folder as people have it: photos, and a table of captions."""
    folder.mkdir()
    scenes = load_scenes(8, 4, 4, 64)["train"]
    with open(folder / "captions.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for number, scene in enumerate(scenes):
            scene["image"].save(folder / f"{number}.jpg")
            table.writerows([f"{number}.jpg", caption] for caption in scene["captions"])


# What pages name, and what stands for it here: large models of the Hub are tiny ones in folders of the same name.
STAND_INS = {
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda folder: save("qwen2_5_vl", folder),
    "photos": write_photos,
    "dog.jpg": lambda path: random_images(1, size=64)[0].save(path),
    "new.jpg": lambda path: random_images(1, size=64)[0].save(path),
}


@pytest.fixture
def reader_folder(tmp_path, monkeypatch):
    """A fresh folder with a clone of the repository in it, as far as readers use it, and with what the page names."""

    def make(page: str) -> None:
        (tmp_path / "recipes").symlink_to(ROOT / "recipes")
        text = PAGES[page].read_text(encoding="utf-8")
        for name, write in STAND_INS.items():
            if re.search(rf"(?<![\w/]){re.escape(name)}\b", text):
                write(tmp_path / name)
        monkeypatch.chdir(tmp_path)

    return make


WITH_CODE = [page for page in PAGES if any(block.reason is None for block in blocks(page))]
WITH_RECIPES = [
    page
    for page in WITH_CODE
    if any(
        kind(command) == "recipe"
        for block in blocks(page)
        if block.language == "bash" and block.reason is None
        for command in block.commands()
    )
]


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(page, reader_folder):
    reader_folder(page)
    Reader(**(names_of_a_reader() if page == "README.md" else {})).read(page)


def names_of_a_reader() -> dict:
    """README's two lines around `generate` are for a model that the reader has."""
    model, _ = tiny("llava")
    processor = PROCESSORS["llava"]()
    model.generation_config.max_new_tokens = 4
    inputs = processor(images=Image.new("RGB", (20, 20)), text="<image>what", return_tensors="pt")
    return {"model": model, "processor": processor, "inputs": inputs}


def test_two_lines_around_generate_give_maps():
    snippet = next(block.code for block in blocks("README.md") if "record_attention" in block.code)
    names = names_of_a_reader()
    exec(snippet, names)
    assert names["maps"] and all(word and where.shape == (4, 4) for word, where in names["maps"])


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_RECIPES)
def test_recipes_run(page, reader_folder):
    reader_folder(page)
    Reader(dry_runs=True).read(page)


def test_blocks_are_listed():
    rows = listing().splitlines()
    assert len(rows) > 80
    assert not [row for row in rows if "not run: " in row and row.count("not run:  ")]


def test_links_lead_somewhere():
    """Links within the repository: to files, and to headings."""
    texts = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *PAGES.values()]}
    texts |= {path: path.read_text(encoding="utf-8") for path in (ROOT / "recipes").rglob("*.md")}
    broken = []
    for path, text in texts.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)):
            if re.match(r"\w+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = Path(os.path.normpath(path.parent / file)) if file else path
            if not target.exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
            elif anchor and anchor not in headings(target.read_text(encoding="utf-8")):
                broken.append(f"{path.relative_to(ROOT)}: {link} (no such heading)")
    assert not broken


def headings(text: str) -> set[str]:
    """The names that GitHub and the site give to headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_readme_is_short_and_its_results_are_those_of_results():
    readme, results = (ROOT.joinpath(name).read_text(encoding="utf-8") for name in ("README.md", "RESULTS.md"))
    assert len(readme.split()) <= 900
    rows = [line.split("|") for line in readme.partition("## Results")[2].splitlines() if line.startswith("| ")]
    numbers = {number for row in rows for cell in row[3:5] for number in re.findall(r"\d+\.\d+", cell)}
    assert len(numbers) > 20 and not [number for number in numbers if not re.search(rf"\b{number}\b", results)]


def test_one_version_everywhere():
    texts = {name: ROOT.joinpath(name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff")}
    assert f'version = "{hf_vg.__version__}"' in texts["pyproject.toml"]
    assert f"version: {hf_vg.__version__}" in texts["CITATION.cff"]
    assert f"## [{hf_vg.__version__}]" in ROOT.joinpath("CHANGELOG.md").read_text(encoding="utf-8")


def test_commands_do_not_let_accelerate_add_its_traceback():
    """Without `--quiet` it prints a traceback of its own after the one sentence of a recipe."""
    texts = [ROOT / "README.md", ROOT / "RESULTS.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "hf_vg").rglob("*.py")]
    texts += [path for path in (ROOT / "recipes").rglob("*") if path.suffix in (".md", ".py", ".sh", ".yaml")]
    commands = [line for path in texts for line in re.findall("accelerate launch [-r].*", path.read_text("utf-8"))]
    assert len(commands) > 30 and not [line for line in commands if "--quiet" not in line]
