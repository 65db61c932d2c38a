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
"""Starts processes for tests: with everything imported, or without this package."""

import atexit
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path


def start_process(target: Callable, *args) -> multiprocessing.Process:
    """Starts a process with everything imported, in a tenth of the time of a new interpreter."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "hf_vg.training", "hf_vg.interpretation.figures", "hf_vg.pipelines"])
    process = context.Process(target=_run, args=(target, *args))
    process.start()
    return process


def _run(target: Callable, *args) -> None:
    multiprocessing.set_start_method("fork", force=True)  # its child processes start as from any interpreter
    target(*args)
    atexit._run_exitfuncs()  # multiprocessing does not do this


def run_without_hf_vg(code: str, folder: Path) -> str:
    """Runs code in a new process that cannot import this package, and returns its output."""
    blocker = """
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "hf_vg":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Blocked())
    """
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(blocker) + textwrap.dedent(code)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
