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
"""
The code in README and the documentation, as a reader would run it: each page from top to bottom, in a fresh folder.

`python -m tests.documentation` lists every command and block, and says whether a test runs it.

A comment before a block says that it is not run, and why: `<!-- not run: needs a GPU -->`. A block of `text` after
another is its output, where `...` stands for anything. Of shell commands

- `hf-vg` and `python -c` are run;
- recipes are run with `--dry_run` by the slow tests; the fast tests check their arguments;
- of `make`, only the target is looked up: other tests run what stands behind it.
"""

import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hf_vg.cli import main
from tests.common import ROOT


PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not {"_build", "notebooks"} & set(path.relative_to(ROOT).parts)
}
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.*?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@dataclass
class Block:
    language: str
    code: str
    line: int
    reason: str | None  # why it is not run

    def commands(self) -> list[str]:
        """The commands of a shell block, without comments, each on one line."""
        lines = re.sub(r"\\\n\s*", "", self.code).splitlines()
        return [line for line in (re.sub(r"(^|\s+)# .*", "", line).strip() for line in lines) if line]


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(match["language"], match["code"], text.count("\n", 0, match.start("code")) + 1, match["reason"])
        for match in BLOCK.finditer(text)
        if match["language"] in ("python", "bash", "text")
    ]


def kind(command: str) -> str:
    """How a shell command is tested: `run`, `recipe` or `make`."""
    words = shlex.split(command)
    if words[0] == "make":
        return "make"
    if any(word.startswith("recipes/") and word.endswith(".py") for word in words):
        return "recipe"
    return "run"


class Reader:
    """Runs the blocks of a page in the working folder. Python blocks share their names, as in one session."""

    def __init__(self, dry_runs: bool = False, **names: Any):
        self.names = {"__name__": "__main__", **names}
        self.dry_runs = dry_runs
        self.printed = ""

    def read(self, page: str) -> None:
        for block in blocks(page):
            if block.reason is not None:
                self.printed = "..."
                continue
            try:
                self.run(block, page)
            except BaseException as error:
                raise AssertionError(f"{page}:{block.line}: {type(error).__name__}: {error}") from error

    def run(self, block: Block, page: str) -> None:
        if block.language == "text":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            # doctest does not take `...` at the beginning for an ellipsis of any length over lines.
            same = doctest.OutputChecker().check_output(block.code, self.printed, flags)
            assert same or self.printed == "...", f"printed\n{self.printed}"
            return
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # a stream like standard output
        with contextlib.redirect_stdout(output):
            if block.language == "python":
                if not self.dry_runs:
                    exec(compile(block.code, f"{page}:{block.line}", "exec"), self.names)
            else:
                for command in block.commands():
                    self.shell(command)
        output.flush()
        self.printed = "..." if self.dry_runs else output.buffer.getvalue().decode()

    def shell(self, command: str) -> None:
        words = shlex.split(command)
        if kind(command) == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= MAKE_TARGETS, f"make has no target {targets}"
        elif kind(command) == "recipe":
            position = next(i for i, word in enumerate(words) if word.startswith("recipes/") and word.endswith(".py"))
            (self.dry_run if self.dry_runs else self.parse)(ROOT / words[position], words[position + 1 :])
        elif self.dry_runs:
            return
        elif words[0] == "hf-vg" and not {"|", ">", "<", ";", "&&"} & set(words):
            paths = [match for word in words[1:] for match in self.expand(word)]
            assert main(paths) == 0, f"`{command}` failed"
        else:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
            print(done.stdout, end="")
            assert done.returncode == 0, done.stderr

    def expand(self, word: str) -> list[str]:
        return sorted(map(str, Path().glob(word))) or [word] if "*" in word else [word]

    def parse(self, recipe: Path, flags: list[str]) -> None:
        """Runs a recipe up to where its arguments are known to be right, or until it has told its flags."""
        import hf_vg.training as training

        class Parsed(Exception):
            pass

        def start_recipe(dataclass_types, default_config, needs=None, photo_config=None, **kwargs):
            training.parse_arguments(dataclass_types, photo_config or default_config, flags)
            raise Parsed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "start_recipe", start_recipe)
            patch.setattr(training, "run_recipe", lambda main: main())
            patch.setattr(sys, "argv", [str(recipe), *flags])
            with pytest.raises(SystemExit if "--help" in flags else Parsed):
                runpy.run_path(str(recipe), run_name="__main__")

    def dry_run(self, recipe: Path, flags: list[str]) -> None:
        from tests.training.test_recipes import Recipes

        if "--help" in flags:
            return
        Path("temporary").mkdir(exist_ok=True)
        Recipes(Path()).run(recipe.stem, [*flags, *([] if "--dry_run" in flags else ["--dry_run"])])


def listing() -> str:
    """Every block and command, and how it is tested."""
    rows = []
    said = {"run": "run", "recipe": "dry run (slow); arguments checked (fast)", "make": "target looked up"}
    for page in PAGES:
        for block in blocks(page):
            where, first = f"{page}:{block.line}", block.code.strip().partition("\n")[0]
            if block.reason is not None:
                rows.append((where, block.language, f"not run: {block.reason}", first))
            elif block.language == "bash":
                rows += [(where, "bash", said[kind(command)], command) for command in block.commands()]
            elif block.language == "python":
                rows.append((where, "python", "run", first))
            else:
                rows.append((where, "text", "compared with what the block before it prints", first))
    return "\n".join(f"{where:44}  {language:6}  {status:44}  {first[:80]}" for where, language, status, first in rows)


if __name__ == "__main__":
    print(listing())
