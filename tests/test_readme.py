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

from tests.checkpoints import save_captioner
from tests.common import ROOT, random_images


def test_first_snippet_runs_after_the_demo(tmp_path, monkeypatch, capsys):
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S).group(1)
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
