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
"""The commands that measure RESULTS.md again: they are listed without being run, and their flags are parsed."""

import json
import os
import runpy
import subprocess
import sys

import pytest

import hf_vg.training
from hf_vg.training import parse_arguments
from tests.common import ROOT


SYSTEMS = {
    "show_attend_tell": {"train_captioner": 2, "evaluate_captioner": 2},
    "show_attend_tell_hard": {"train_captioner": 4, "evaluate_captioner": 6},
    "spatial_transformer": {"train_captioner": 4, "evaluate_captioner": 6},
    "paper_settings": {"train_captioner": 4, "evaluate_captioner": 6},
    "vse": {"train_vse": 3, "evaluate_retrieval": 1, "train_scnlm": 1},
    "grounded_encoder": {"train_grounded_encoder": 5, "evaluate_sentences": 6},
    "vgp": {"train_vgp": 8},
    "vgp_scenes": {"train_vgp": 14, "finetune_vqa": 12, "finetune_referring": 12},
    "attention": {"train_captioner": 12, "evaluate_grounding": 12},
    "attention_photos": {"train_captioner": 5, "evaluate_captioner": 5},
    "data_sizes": {"train_captioner": 3, "train_vse": 3, "evaluate_captioner": 3},
}
RECORD = f"""#!{sys.executable}
import json, os, sys
if "-c" in sys.argv:
    print("minilm")
elif "-m" not in sys.argv:  # the converter of weights
    with open(os.environ["RECORD"], "a") as file:
        print(json.dumps(sys.argv[1:]), file=file)
"""


class Parsed(Exception):
    pass


def reproduce(tmp_path, *arguments, record=RECORD, **variables):
    tmp_path.mkdir(exist_ok=True)
    for name in ("accelerate", "python"):
        (tmp_path / name).write_text(record)
        (tmp_path / name).chmod(0o755)
    for file in ("weights/vgg16-1.pth", "weights/glove.6B.100d.txt", "data/flickr8k/x"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    folders = {"DATA": tmp_path / "data", "WEIGHTS": tmp_path / "weights", "OUTPUT": tmp_path / "outputs"}
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RECORD": tmp_path / "commands",
        "SEEDS": "3 4",
    } | variables
    return subprocess.run(
        ["bash", ROOT / "recipes" / "reproduce.sh", *arguments],
        env={**os.environ, **{name: str(value) for name, value in (folders | variables).items()}},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_command_is_one_that_its_recipe_takes(system, tmp_path, monkeypatch):
    process = reproduce(tmp_path, system)
    assert process.returncode == 0, process.stderr

    def parse(dataclass_types, default_config, *args, **kwargs):
        parse_arguments(dataclass_types, default_config)
        raise Parsed

    monkeypatch.setattr(hf_vg.training, "start_recipe", parse)
    counts, outputs = {}, set()
    for line in (tmp_path / "commands").read_text().splitlines():
        words = json.loads(line)
        start = next(i for i, word in enumerate(words) if word.startswith("recipes/"))
        recipe, flags = ROOT / words[start], words[start + 1 :]
        assert "--config" not in flags or (ROOT / flags[flags.index("--config") + 1]).is_file()
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", [str(recipe), *flags])
        with pytest.raises(Parsed):
            runpy.run_path(str(recipe), run_name="__main__")
        counts[recipe.stem] = counts.get(recipe.stem, 0) + 1
        output = next(flag for flag in ("--output_dir", "--output", "--metrics_file") if flag in flags)
        outputs.add(flags[flags.index(output) + 1])
    assert counts == SYSTEMS[system]
    assert len(outputs) == sum(counts.values())  # nothing is written over


def test_what_is_wrong_is_named(tmp_path):
    process = reproduce(tmp_path)
    assert process.returncode == 2 and "make results SYSTEM=" in process.stderr
    process = reproduce(tmp_path, "no_such_system")
    assert process.returncode == 2 and "SYSTEM     show_attend_tell" in process.stderr
    process = reproduce(tmp_path, "vse", DATA=tmp_path / "nowhere")
    assert process.returncode == 2 and f"There is no folder {tmp_path / 'nowhere'}." in process.stderr
    assert reproduce(tmp_path / "scenes", "attention", DATA=tmp_path / "nowhere").returncode == 0  # makes its scenes
    weights = tmp_path / "none"
    weights.mkdir()
    for system, file in (("vse", "glove"), ("show_attend_tell", "vgg16"), ("show_attend_tell_hard", "vgg16")):
        process = reproduce(tmp_path, system, WEIGHTS=weights)
        assert process.returncode != 0 and f"{weights}/{file}" in process.stderr
    assert not (tmp_path / "commands").exists()  # nothing was begun


def test_a_step_that_fails_ends_it(tmp_path):
    process = reproduce(tmp_path, "show_attend_tell_hard", record=RECORD + "sys.exit(int('launch' in sys.argv))")
    assert process.returncode == 1
    assert len((tmp_path / "commands").read_text().splitlines()) == 1
