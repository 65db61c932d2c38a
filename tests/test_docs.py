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

from hf_vg.data import load_scenes
from tests.common import ROOT, random_images
from tests.documentation import PAGES, Reader, blocks, kind, listing
from tests.interpretation.any_processors import save


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
    Reader().read(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_RECIPES)
def test_recipes_run(page, reader_folder):
    reader_folder(page)
    Reader(dry_runs=True).read(page)


def test_blocks_are_listed():
    rows = listing().splitlines()
    assert len(rows) > 10
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
