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
"""Typing mistakes and malicious files: each gives a one-line message and the right exit code."""

import json
import os
import re
from pathlib import Path

import pytest

from hf_vg.cli import main
from tests.checkpoints import save_captioner, save_regions, save_space
from tests.common import random_images


OUT_OF_RANGE = {
    "huge_config": {"hidden_size": 10**12},
    "negative_config": {"hidden_size": -1},
    "nan_config": {"hidden_size": float("nan")},
    "text_config": {"hidden_size": "x"},
    "classes_config": {"num_labels": 20_000_000},
}


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """A folder with a checkpoint of each kind, a photo, and many kinds of bad files."""
    folder = tmp_path_factory.mktemp("bad")
    for name, save in (("captioner", save_captioner), ("regions", save_regions), ("space", save_space)):
        save(folder / name)
    random_images(1, size=24)[0].save(folder / "photo.png")
    files = {
        "empty.png": b"", "text.png": b"no image", "half.png": (folder / "photo.png").read_bytes()[:99],
        "pickle.png": b"\x80\x04\x95\x01", "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "empty.json": b"", "broken.json": b'{"a": ', "number.json": b"5", "latin.json": b'{"\xe9": ["a"]}',
        "list.json": b"[1, 2]", "wrong.json": b'{"photo.png": 5}', "none.json": b'{"photo.png": []}',
        "deep.json": b"[" * 99_999, "pairs.json": b"[[1,2],[3,4]]", "infinite.json": b"[[0,0,1e999,9]]",
        "nan.json": b"[[0,0,NaN,9]]", "empty_box.json": b"[[5,5,5,5]]", "outside.json": b"[[90,90,99,99]]",
        "many.json": json.dumps([[0, 0, 9, 9]] * 5000).encode(), "named.json": b'{"other.png": [[0,0,9,9]]}',
        "good.json": b'{"photo.png": ["a red circle"]}', "untabbed.txt": b"photo.png a red circle\n",
        "latin.txt": b"photo.png#0\t\xe9\n", "captions.jsonl": b'{"image": "photo.png", "caption": "a"}\n',
        "bad.jsonl": b'[]\n{"image": 5}\n{"image": "x"}\nnull\n{"image": "photo.png", "caption": "a"}\n',
        "latin.jsonl": b'{"image": "\xe9"}\n', "other.jsonl": b'{"image": "other.png", "caption": "a"}\n',
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "no_config").mkdir()
    (folder / "bad_config").mkdir()
    (folder / "bad_config" / "config.json").write_text("{")
    (folder / "no_type").mkdir()
    (folder / "no_type" / "config.json").write_text("{}")
    config = json.loads((folder / "captioner" / "config.json").read_text())
    for name, fields in OUT_OF_RANGE.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config | fields))
    os.mkfifo(folder / "pipe.png")
    return folder


CAPTION = "caption {0} --model @captioner"
GROUND = "ground @photo.png --model @regions --output @out --text 'a circle' {0}"
BOXES = "ground @photo.png --model @regions --output @out --text 'a circle' --boxes @{0}"
SCORES = "evaluate @captions.jsonl --references @{0}"
# The command, the exit code and the message. @ is the folder.
CASES = [
    *((CAPTION.format(f"@{name}.png"), 1, f"{name}.png: ") for name in ("empty", "text", "half", "pickle", "eps")),
    (CAPTION.format("@pipe.png"), 1, "not a regular file"),
    (CAPTION.format("/dev/zero"), 1, "not a regular file"),
    (CAPTION.format("@no_config"), 1, "no images in this folder"),
    (CAPTION.format("@nothing/*.png"), 1, "no file matches"),
    (CAPTION.format("'a\0b'"), 1, "no such file"),
    (CAPTION.format("'[\0'"), 1, "no such file"),
    (CAPTION.format("x" * 5000), 1, "no such file"),
    (CAPTION.format("''"), 1, "no such file"),
    (CAPTION.format("ftp://example.org/a.png"), 1, "no such file"),
    (CAPTION.format("@photo.png --batch_size 0"), 2, "from 1 to 1000000"),
    (CAPTION.format("@photo.png --num_beams -1"), 2, "--num_beams"),
    (CAPTION.format("@photo.png --num_captions ²"), 2, "--num_captions"),
    (CAPTION.format("@photo.png --batch_size " + "9" * 5000), 2, "--batch_size"),
    ("explain --examples --otput page.html", 2, "unknown argument --otput, did you mean --output?"),
    (CAPTION.format("@photo.png --beams 3"), 2, "unknown argument --beams, did you mean --num_beams?"),
    ("caption @photo.png --model @no_config", 2, "no config.json"),
    ("caption @photo.png --model @bad_config", 2, "is damaged"),
    ("caption @photo.png --model @no_type", 2, "no_type"),
    *(
        (f"{command} --model @{name}", 2, f"{name} (is wrong|cannot be loaded).*{next(iter(fields))}")
        for name, fields in OUT_OF_RANGE.items()
        for command in ("caption @photo.png", "search @photo.png --query a")
    ),
    ("caption @photo.png --model @photo.png", 2, "is a file"),
    ("caption @photo.png --model @missing/checkpoint", 2, "there is no folder"),
    ("caption @photo.png --model ''", 2, "there is no folder|not a checkpoint"),
    ("caption @photo.png --model nobody/nothing-at-all", 2, "nobody/nothing-at-all"),
    ("search @photo.png --model @space", 2, "either --query or --image"),
    ("search @photo.png --model @space --query ' '", 2, "is empty"),
    ("search @photo.png --model @space --query a --image @photo.png", 2, "either --query or --image"),
    ("search @photo.png --model @space --image @text.png", 2, "text.png"),
    ("search @photo.png --model @space --query a --top 0", 2, "--top"),
    (GROUND.format("--phrase dog"), 2, "not in the text"),
    (GROUND.format("--phrase ''"), 2, "not in the text"),
    (GROUND.format("--boxes @good.json --detector x"), 2, "not allowed with"),
    (GROUND.format("--detector @missing/x"), 2, "there is no folder"),
    (GROUND.format("--threshold 2"), 2, "from 0 to 1"),
    (GROUND.format("--threshold nan"), 2, "from 0 to 1"),
    (BOXES.format("missing.json"), 2, "missing.json cannot be read"),
    (BOXES.format("pipe.png"), 2, "not a regular file"),
    (BOXES.format("captioner"), 2, "not a regular file"),
    *((BOXES.format(f"{name}.json"), 2, f"{name}.json") for name in ("empty", "broken", "number", "latin", "deep")),
    (BOXES.format("list.json"), 1, "four finite numbers"),
    (BOXES.format("wrong.json"), 1, "must be a list"),
    (BOXES.format("none.json"), 1, "must be a list"),
    (BOXES.format("named.json"), 1, "no boxes for this image"),
    *((BOXES.format(f"{name}.json"), 1, "four finite numbers") for name in ("pairs", "infinite", "nan")),
    *((BOXES.format(f"{name}.json"), 1, "no area") for name in ("empty_box", "outside")),
    (BOXES.format("many.json"), 1, "the limit is 1,000"),
    (SCORES.format("missing.json"), 2, "cannot be read"),
    *((SCORES.format(f"{name}.json"), 2, f"{name}.json") for name in ("empty", "broken", "latin", "deep", "list")),
    (SCORES.format("wrong.json"), 2, "no list of captions"),
    (SCORES.format("untabbed.txt"), 2, "untabbed.txt:1"),
    (SCORES.format("latin.txt"), 2, "not UTF-8"),
    (SCORES.format("good.json --metrics spice"), 2, "unknown metric 'spice'"),
    ("evaluate @missing.jsonl --references @good.json", 2, "cannot be read"),
    ("evaluate @latin.jsonl --references @good.json", 2, "not UTF-8"),
    ("evaluate @empty.json --references @good.json", 2, "no captions in"),
    ("evaluate @other.jsonl --references @good.json", 1, "no captions for this image"),
    ("evaluate @bad.jsonl --references @good.json", 1, "bad.jsonl:4: expected an object"),
    ("explain @photo.png --model @captioner --output @captioner", 2, "is a folder"),
    ("explain @photo.png --model @captioner --output @photo.png/x.html", 2, "is a file"),
    ("app --port 0", 2, "from 1 to 65535"),
    ("app --images @no_config", 2, "no images"),
    ("app --detector @missing/x", 2, "there is no folder"),
    ("app --time_limit 0", 2, "--time_limit"),
]


@pytest.mark.parametrize("command, code, message", CASES, ids=range(len(CASES)))
def test_one_sentence_and_no_traceback(command, code, message, at, capsys):
    arguments = [part.strip("'").replace("@", f"{at}{os.sep}") for part in re.findall(r"'[^']*'|[^ ']+", command)]
    try:
        ended = main(arguments)
    except SystemExit as error:
        ended = error.code
    out, err = capsys.readouterr()
    assert ended == code, err
    assert re.search(message, err) and "Traceback" not in err and err.startswith("hf-vg"), err
    assert all(len(line) < 6000 for line in err.splitlines())
    assert not out or "bad.jsonl" in command  # one good line is scored
    assert not Path("grounded").exists() and not Path("explanation.html").exists()
