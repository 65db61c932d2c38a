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
"""The output of commands: text and JSON lines that are safe for any terminal, and errors on one line."""

import argparse
import json
import os
import sys
from typing import Any, TextIO

from tqdm.auto import tqdm

from ..data.loading_report import printable


class UsageError(Exception):
    """An error in the arguments of a command."""


def first_line(problem: object) -> str:
    """Returns the first line of an error, or the name of its class if it has no message."""
    lines = [line for line in str(problem).strip().splitlines() if line.strip()]
    return printable(lines[0][:500]) if lines else type(problem).__name__


def to_json(record: dict[str, Any]) -> str:
    """Formats a record as one line of JSON. Characters that are not printable are escaped."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(record, ensure_ascii=not is_utf8)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def emit(line: str, stream: TextIO) -> None:
    """Prints a line above the progress bar, if there is one."""
    tqdm.write(line, file=stream)
    stream.flush()


def say(args: argparse.Namespace, record: dict[str, Any], *columns: object) -> None:
    """Prints a record as JSON with `--json`, otherwise its columns separated by tabs."""
    emit(to_json(record) if args.json else "\t".join(map(printable, columns)), sys.stdout)


def note(args: argparse.Namespace, text: str) -> None:
    """Prints a note to standard error, unless `--quiet` is set."""
    if not args.quiet:
        emit(f"hf-vg: {text}", sys.stderr)


def check_output(path: str) -> None:
    """Checks that a file can be written, before any work is done."""
    if os.path.isdir(path):
        raise UsageError(f"--output {path} is a folder: pass the name of a file.")
    check_folder(os.path.dirname(os.path.abspath(path)), path)


def check_folder(folder: str, name: str) -> None:
    """Checks that files can be written to a folder, which is created if necessary."""
    folder = os.path.abspath(folder)
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"--output {name} cannot be written: {folder} is a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--output {name} cannot be written: you have no permission to write to {folder}.")
