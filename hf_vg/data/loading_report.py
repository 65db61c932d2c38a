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
"""The report of a loader: counts, and every row that was skipped or repaired, with file and line."""

import logging
import os
from collections import Counter
from os import PathLike
from typing import NamedTuple


logger = logging.getLogger(__name__)

MAX_SHOWN = 20  # problems of each kind in the log
MAX_KEPT = 1000  # problems of each kind in memory


def printable(text: object) -> str:
    r"""
    Makes text safe for a terminal: everything on one line, with control characters and lone surrogates escaped.

    Args:
        text (`object`):
            The text, for example a file name.

    Returns:
        `str`: The escaped text.

    Example:

    ```python
    >>> from hf_vg.data.loading_report import printable

    >>> print(printable("red\x1b[31m\nalert"))
    red\x1b[31m\nalert
    ```
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in str(text)
    )


class Problem(NamedTuple):
    """
    A row with a problem.

    - **kind** (`str`) -- `"skipped"`, `"repaired"` or `"noted"`.
    - **file** (`str`) -- The file.
    - **line** (`int` or `None`) -- The line, counted from 1, or `None` if the file has no lines.
    - **reason** (`str`) -- What is wrong.
    """

    kind: str
    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{where}: {self.kind}: {self.reason}"
        # The text comes from an untrusted file: it must not fill the screen or control the terminal.
        return printable(text if len(text) <= 600 else text[:600] + "...")


class LoadingReport:
    r"""
    Collects what a loader read, and every row that it skipped or repaired. Pass one to a loader to inspect it
    afterwards. A loader calls [`~LoadingReport.count`], [`~LoadingReport.skip`], [`~LoadingReport.repair`] and
    [`~LoadingReport.note`] while it reads, and [`~LoadingReport.finish`] once at the end.

    Args:
        name (`str`):
            The name of the data, for example `"Flickr8k"`.

    Example:

    ```python
    >>> from hf_vg.data import LoadingReport

    >>> report = LoadingReport("my photos")
    >>> report.count("train images", 2)
    >>> report.skip("captions.csv", 3, "there is no image 'dog.jpg' in 'photos'")
    >>> print(report)
    my photos: 2 train images, 1 rows skipped
    captions.csv:3: skipped: there is no image 'dog.jpg' in 'photos'
    ```
    """

    def __init__(self, name: str):
        self.name = name
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.problems: list[Problem] = []  # the first `MAX_KEPT` of each kind

    def count(self, what: str, number: int = 1) -> None:
        """Adds to the count of `what`, a plural such as `"train images"`."""
        self.counts[what] += number

    def skip(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records that a row is left out. `line` counts from 1; it is `None` if the file has no lines."""
        self._add("skipped", file, line, reason)

    def repair(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records that a row was repaired and is used. `reason` says what was wrong and what was done."""
        self._add("repaired", file, line, reason)

    def note(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records something unusual about a valid row. It is never an error."""
        self._add("noted", file, line, reason)

    def _add(self, kind: str, file: str | PathLike, line: int | None, reason: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= MAX_KEPT:
            self.problems.append(Problem(kind, str(file), line, reason))

    def summary(self) -> str:
        """Returns the counts on one line."""
        parts = [f"{number:,} {what}" for what, number in self.counts.items()]
        parts += [f"{number:,} rows {kind}" for kind, number in self.kinds.items()]
        return f"{self.name}: {', '.join(parts) or 'nothing'}"

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(str, self.problems)])

    def finish(self, strict: bool = False) -> None:
        r"""
        Logs the report. It is a warning if any row was skipped, repaired or noted. Only the main process logs it.

        Args:
            strict (`bool`, *optional*, defaults to `False`):
                Whether to raise a `ValueError` if a row was skipped or repaired.
        """
        lines = [self.summary()]
        for kind, number in self.kinds.items():
            problems = [problem for problem in self.problems if problem.kind == kind][:MAX_SHOWN]
            lines += [f"  {problem}" for problem in problems]
            if number > len(problems):
                lines.append(f"  ... and {number - len(problems):,} more {kind}")
        if strict and self.kinds.keys() - {"noted"}:
            raise ValueError("\n".join([*lines, "Correct these rows, or load without `strict` to skip them."]))
        if os.environ.get("RANK", "0") == "0":
            logger.log(logging.WARNING if self.kinds else logging.INFO, "\n".join(lines))
