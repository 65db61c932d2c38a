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
from collections import Counter
from os import PathLike
from typing import NamedTuple


logger = logging.getLogger(__name__)

MAX_SHOWN = 20  # of one kind; a folder without its images would otherwise fill the screen


class Problem(NamedTuple):
    """A row that was skipped or repaired."""

    kind: str
    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.kind}: {self.reason}"


class LoadingReport:
    r"""
    What a loader read. A loader makes one, or is given one by a caller who wants to look into it. It calls
    [`~LoadingReport.count`], [`~LoadingReport.skip`] and [`~LoadingReport.repair`] while it reads, and
    [`~LoadingReport.finish`] once at the end.

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
        self.problems: list[Problem] = []

    def count(self, what: str, number: int = 1) -> None:
        """Adds to the count of `what`, a plural such as `"train images"`."""
        self.counts[what] += number

    def skip(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Notes that a row is left out. `line` counts from 1, and is `None` where a file has no lines."""
        self.problems.append(Problem("skipped", str(file), line, reason))

    def repair(self, file: str | PathLike, line: int | None, reason: str) -> None:
        """Notes that a row is used after it was changed; `reason` says what was wrong and what was made of it."""
        self.problems.append(Problem("repaired", str(file), line, reason))

    def summary(self) -> str:
        """The counts in one line."""
        kinds = Counter(problem.kind for problem in self.problems)
        parts = [f"{number:,} {what}" for what, number in self.counts.items()]
        parts += [f"{number:,} rows {kind}" for kind, number in kinds.items()]
        return f"{self.name}: {', '.join(parts) or 'nothing'}"

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(str, self.problems)])

    def finish(self, strict: bool = False) -> None:
        r"""
        Logs the report, as a warning when a row was skipped or repaired.

        Args:
            strict (`bool`, *optional*, defaults to `False`):
                Whether a skipped or repaired row is an error.
        """
        if not self.problems:
            logger.info(self.summary())
            return
        lines = [self.summary()]
        for kind in dict.fromkeys(problem.kind for problem in self.problems):
            problems = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"  {problem}" for problem in problems[:MAX_SHOWN]]
            if len(problems) > MAX_SHOWN:
                lines.append(f"  ... and {len(problems) - MAX_SHOWN:,} more {kind}")
        if strict:
            raise ValueError("\n".join([*lines, "Mend these rows, or load without `strict` to go on without them."]))
        logger.warning("\n".join(lines))
