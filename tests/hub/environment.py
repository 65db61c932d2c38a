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
"""A Python environment with torch, transformers, Pillow and their dependencies, but without hf_vg."""

import os
import subprocess
import textwrap
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


class Environment:
    """Makes a virtual environment that links to installed distributions, without a download or a copy."""

    def __init__(self, folder: Path, requirements: tuple[str, ...] = ("torch", "transformers", "pillow")):
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        for found in closure(requirements).values():
            # The first path components of a distribution's files are its packages, modules and metadata.
            for name in {path.parts[0] for path in found.files} - {"..", "__pycache__"}:
                link = site_packages / name
                if not link.exists() and not name.endswith(".pth"):
                    link.symlink_to(found.locate_file(name))

    def run(self, code: str, cwd: Path, **variables: str) -> str:
        """Runs code in a new process with its own caches, and returns its output."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
        caches = {"HF_HOME": str(self.folder / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        process = subprocess.run(
            [self.python, "-c", textwrap.dedent(code)],
            cwd=cwd,
            env={
                **inherited,
                **caches,
                **({} if "HF_ENDPOINT" in variables else {"HF_HUB_OFFLINE": "1"}),
                **variables,
            },
            stdin=subprocess.DEVNULL,  # nobody can confirm a prompt for trust_remote_code
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
        return process.stdout


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Returns the named distributions and their dependencies, without extras."""
    found, pending = {}, list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # not needed on this machine
        for text in found[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found
