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
"""What a loader read, and every row that it skipped or repaired, by file and line."""

import logging
import os
from collections import Counter
from os import PathLike
from typing import NamedTuple


logger = logging.getLogger(__name__)

MAX_SHOWN = 20  # of one kind; a folder without its images would otherwise fill the screen
MAX_KEPT = 1000  # of one kind; a million rows may all be wrong


def printable(text: object) -> str:
    """Text on one line. Control characters, escapes and lone surrogates, as of a file name, are written as `\\x1b`."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in str(text)
    )


class Problem(NamedTuple):
    """A row that was skipped, repaired, or used and worth a note."""

    kind: str
    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{where}: {self.kind}: {self.reason}"
        # The text is from a file of somebody else: it must neither fill the screen nor command the terminal.
        return printable(text if len(text) <= 600 else text[:600] + "...")


class LoadingReport:
    r"""
    What a loader read. A loader makes one, or is given one by a caller who wants to look into it. It calls
    [`~LoadingReport.count`], [`~LoadingReport.skip`], [`~LoadingReport.repair`] and [`~LoadingReport.note`] while it
    reads, and [`~LoadingReport.finish`] once at the end.

    Args:
        name (`str`):
            The data that is read, for example `"Flickr8k"`.

    Example:

    ```python
    report = LoadingReport("my photos")
    report.count("train images", 2)
    report.skip("captions.csv", 3, "there is no image 'dog.jpg' in 'photos'")
    report.finish(strict=True)  # ValueError, which names captions.csv:3
    ```
    """

    def __init__(self, name: str):
        self.name = name
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.problems: list[Problem] = []  # the first of each kind, no more than `MAX_KEPT`

    def count(self, what: str, number: int = 1) -> None:
        """Adds to the count of `what`, a plural such as `"train images"`."""
        self.counts[what] += number

    def skip(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records that a row is left out. `line` counts from 1, and is `None` where a file has no lines."""
        self._add("skipped", file, line, reason)

    def repair(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records that a row is used after it was changed. `reason` says what was wrong and what became of it."""
        self._add("repaired", file, line, reason)

    def note(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Records something unusual about a row that is right. It is never an error."""
        self._add("noted", file, line, reason)

    def _add(self, kind: str, file: str | PathLike, line: int | None, reason: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= MAX_KEPT:
            self.problems.append(Problem(kind, str(file), line, reason))

    def summary(self) -> str:
        """The counts in one line."""
        parts = [f"{number:,} {what}" for what, number in self.counts.items()]
        parts += [f"{number:,} rows {kind}" for kind, number in self.kinds.items()]
        return f"{self.name}: {', '.join(parts) or 'nothing'}"

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(str, self.problems)])

    def finish(self, strict: bool = False) -> None:
        r"""
        Logs the report, as a warning when a row was skipped, repaired or noted. Of several processes, one does.

        Args:
            strict (`bool`, *optional*, defaults to `False`):
                Whether a skipped or repaired row is an error.
        """
        lines = [self.summary()]
        for kind, number in self.kinds.items():
            problems = [problem for problem in self.problems if problem.kind == kind][:MAX_SHOWN]
            lines += [f"  {problem}" for problem in problems]
            if number > len(problems):
                lines.append(f"  ... and {number - len(problems):,} more {kind}")
        if strict and self.kinds.keys() - {"noted"}:
            raise ValueError("\n".join([*lines, "Correct these rows, or load without `strict` to leave them out."]))
        if os.environ.get("RANK", "0") == "0":
            logger.log(logging.WARNING if self.kinds else logging.INFO, "\n".join(lines))
