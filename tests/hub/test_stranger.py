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
"""Checkpoints on a machine without this package, and the same folders with it."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hub.checkpoints import checkpoints
from tests.hub.environment import Environment


# Loads every checkpoint in every way, and prints the results.
LOAD = """
    import contextlib, io, json, re, sys
    from pathlib import Path

    installed, folder, auto_classes = json.loads(ARGUMENTS)
    if installed:
        import hf_vg
    else:
        assert not any(name.partition(".")[0] == "hf_vg" for name in sys.modules)
        try:
            import hf_vg
        except ModuleNotFoundError as error:
            assert error.name == "hf_vg"
        else:
            raise AssertionError("hf_vg can be imported")

    import torch
    import transformers
    from PIL import Image
    from transformers import AutoImageProcessor, AutoProcessor, pipeline

    trust = None if installed else True
    told = {}

    def origin(thing):
        return type(thing).__module__.partition(".")[0]

    for name, auto_class in auto_classes.items():
        path = str(Path(folder, name))
        loaded = getattr(transformers, auto_class).from_pretrained(path, trust_remote_code=trust)
        told[name] = {"model": origin(loaded), "parameters": sum(p.double().sum().item() for p in loaded.parameters())}
        if Path(path, "processor_config.json").exists():
            told[name]["processor"] = origin(AutoProcessor.from_pretrained(path, trust_remote_code=trust))
        (snippet,) = re.findall("```python\\n(.*?)```", Path(path, "README.md").read_text(), flags=re.DOTALL)
        assert "trust_remote_code=True" in snippet
        if installed:
            snippet = snippet.replace(", trust_remote_code=True", "")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(snippet, {})
        told[name]["snippet"] = printed.getvalue()
        image, answers = Image.new("RGB", (20, 16), "red"), {}
        if name == "vse":
            classify = pipeline("zero-shot-image-classification", model=path, trust_remote_code=trust)
            told[name]["labels"] = classify(image, candidate_labels=["a red circle", "two blue squares"])
        if auto_class != "AutoModelForImageTextToText":
            continue
        for trusted in (True, None, False):
            try:
                captioner = pipeline("image-to-text", model=path, trust_remote_code=trusted)
            except (ValueError, OSError) as error:
                answers[str(trusted)] = "refused" if "trust_remote_code=True" in str(error) else str(error)
            else:
                parts = [captioner, captioner.model, captioner.processor]
                answers[str(trusted)] = [*map(origin, parts), captioner(image)[0]["generated_text"]]
        told[name]["pipelines"] = answers
        # What a process saves is as good as what it loaded.
        captioner = pipeline("image-to-text", model=path, trust_remote_code=trust)
        captioner.save_pretrained("again-" + name)
        again = pipeline("image-to-text", model="again-" + name, trust_remote_code=trust)
        assert again(image) == captioner(image)
    Path("told.json").write_text(json.dumps(told))
"""


def script(installed: bool, folder: Path) -> str:
    auto_classes = {name: checkpoint.auto_class for name, checkpoint in checkpoints().items()}
    arguments = json.dumps([installed, str(folder), auto_classes])
    return f"ARGUMENTS = {arguments!r}\n" + textwrap.dedent(LOAD)


@pytest.fixture(scope="module")
def told(stranger: Environment, published: Path, tmp_path_factory) -> dict[str, dict]:
    """The results of a process without this package, and of a process with it."""
    folders = {"without": tmp_path_factory.mktemp("without"), "with": tmp_path_factory.mktemp("with")}
    stranger.run(script(False, published), folders["without"])
    process = subprocess.run(
        [sys.executable, "-c", script(True, published)],
        cwd=folders["with"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return {name: json.loads((folder / "told.json").read_text()) for name, folder in folders.items()}


@pytest.mark.parametrize("name", checkpoints())
def test_loads_as_its_own_code_and_as_the_installed_one(name, told):
    without, installed = told["without"][name], told["with"][name]
    assert without["model"] == "transformers_modules" and installed["model"] == "hf_vg"
    if "processor" in without:
        assert without["processor"] == "transformers_modules" and installed["processor"] == "hf_vg"
    assert without["parameters"] == installed["parameters"]
    assert without["snippet"].strip() and without["snippet"] == installed["snippet"]


def test_images_are_classified_by_their_sentences(told):
    without, installed = told["without"]["vse"]["labels"], told["with"]["vse"]["labels"]
    assert without == installed and len(without) == 2 and without[0]["score"] > without[1]["score"]


@pytest.mark.parametrize("name", [name for name, checkpoint in checkpoints().items() if checkpoint.generates])
def test_pipeline_in_every_combination(name, told):
    without, installed = told["without"][name]["pipelines"], told["with"][name]["pipelines"]
    *origins, caption = without["True"]
    assert origins == ["transformers_modules"] * 3
    assert without["None"] == without["False"] == "refused"
    assert installed["True"] == installed["None"] == installed["False"] == ["hf_vg"] * 3 + [caption]


@pytest.mark.parametrize("name", checkpoints())
def test_every_file_that_a_folder_names_is_in_it(name, published):
    config = json.loads((published / name / "config.json").read_text())
    references = [
        *config["auto_map"].values(),
        *(task["impl"] for task in config.get("custom_pipelines", {}).values()),
    ]
    assert {f"{reference.partition('.')[0]}.py" for reference in references} <= set(
        path.name for path in (published / name).iterdir()
    )
    assert ("custom_pipelines" in config) == checkpoints()[name].generates
    assert (published / name / "generation_config.json").exists() == checkpoints()[name].generates
    assert not list((published / name).glob("*.bin"))
