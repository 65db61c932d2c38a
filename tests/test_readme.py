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
"""What README and the recipes show runs as it is pasted."""

import re

from PIL import Image

from tests.checkpoints import save_captioner
from tests.common import ROOT, random_images
from tests.interpretation.any_models import tiny
from tests.interpretation.any_processors import PROCESSORS, save


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)


def test_first_snippet_runs_after_the_demo(tmp_path, monkeypatch, capsys):
    snippet = SNIPPETS[0]
    # What `make demo` leaves behind: the checkpoint, and an image to try it on.
    checkpoint = tmp_path / "outputs" / "show_attend_tell_scenes"
    save_captioner(checkpoint)
    random_images(1, size=24)[0].save(checkpoint / "example.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {})
    caption, maps = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"\[\{'generated_text': '.+'\}\]", caption)
    words, shape = re.fullmatch(r"(\[.*\]) \((\d+), 4, 4\)", maps).groups()
    assert len(words.split(", ")) == int(shape)


def test_commands_do_not_let_accelerate_add_its_traceback():
    """Without `--quiet` it prints a traceback of its own after the one sentence of a recipe."""
    texts = [ROOT / "README.md", ROOT / "RESULTS.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "hf_vg").rglob("*.py")]
    texts += [path for path in (ROOT / "recipes").rglob("*") if path.suffix in (".md", ".py", ".sh", ".yaml")]
    commands = [line for path in texts for line in re.findall("accelerate launch [-r].*", path.read_text("utf-8"))]
    assert len(commands) > 30 and not [line for line in commands if "--quiet" not in line]


def test_word_maps_of_a_chat_model(tmp_path, monkeypatch):
    """Of a tiny model in the place of the large one."""
    save("qwen2_5_vl", tmp_path / "Qwen" / "Qwen2.5-VL-3B-Instruct")
    random_images(1, size=24)[0].save(tmp_path / "dog.jpg")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec("from transformers import pipeline", names)
    code = SNIPPETS[1].rstrip().splitlines()
    exec("\n".join([*code[:-1], f"records = {code[-1]}"]), names)
    (caption,) = names["records"]
    assert len(caption["words"]) == len(caption["attention"]) > 0


def test_word_maps_around_generate():
    model, _ = tiny("llava")
    processor = PROCESSORS["llava"]()
    model.generation_config.max_new_tokens = 4
    inputs = processor(images=Image.new("RGB", (20, 20)), text="<image>what", return_tensors="pt")
    names = {"model": model, "processor": processor, "inputs": inputs}
    exec(SNIPPETS[2], names)
    assert names["maps"] and all(word and where.shape == (4, 4) for word, where in names["maps"])
