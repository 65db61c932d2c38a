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
"""The images of a command: files, folders, patterns and URLs."""

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from PIL import Image
from tqdm.auto import tqdm

from ..data.files import images_below
from ..data.images import open_image
from ..data.loading_report import printable
from .output import emit, first_line


class ImageInputs:
    r"""
    Opens the images of a command line, and counts failures.

    Args:
        quiet (`bool`, *optional*, defaults to `False`):
            Whether to hide progress. It is only shown in a terminal.
    """

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.failures = 0

    def fail(self, name: str, problem: object) -> None:
        """Counts a failure and prints it to standard error."""
        self.failures += 1
        emit(f"hf-vg: {printable(name)}: {first_line(problem)}", sys.stderr)

    def paths(self, patterns: Iterable[str]) -> list[str]:
        """
        Expands files, folders, patterns and URLs to a list of images, each once, in order.

        Args:
            patterns (`Iterable[str]`):
                The arguments of the command.

        Returns:
            `list[str]`: Paths and URLs.
        """
        found: dict[str, None] = {}
        for pattern in patterns:
            if pattern.startswith(("http://", "https://")) or os.path.isfile(pattern):
                files, problem = [pattern], ""
            elif os.path.isdir(pattern):
                files, problem = images_below(pattern), "there are no images in this folder"
            elif os.path.exists(pattern):
                files, problem = [], "it is not a regular file"
            elif glob.has_magic(pattern) and "\0" not in pattern:
                files = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
                problem = "no file matches this pattern"
            else:
                files, problem = [], "there is no such file or folder"
            if not files:
                self.fail(pattern, problem)
            found |= dict.fromkeys(files)
        return list(found)

    def images(self, paths: Iterable[str], description: str) -> Iterator[tuple[str, Image.Image]]:
        """
        Opens images one by one. Images that cannot be opened are reported and skipped.

        Args:
            paths (`Iterable[str]`):
                Paths and URLs.
            description (`str`):
                Label of the progress bar.

        Yields:
            `tuple[str, PIL.Image.Image]`: The path and the image.
        """
        hidden = self.quiet or not sys.stderr.isatty()
        for path in tqdm(paths, desc=description, unit="image", disable=hidden, leave=False, file=sys.stderr):
            try:
                image = open_image(path)
            except (ValueError, TypeError, OSError, MemoryError) as error:
                self.fail(path, error.__cause__ or error)
            else:
                yield path, image

    def results(
        self, function: Callable[[list], Iterable], paths: Iterable[str], description: str, batch_size: int = 1
    ) -> Iterator[tuple[str, Image.Image, Any]]:
        r"""
        Opens images and applies a function to batches of them. If a batch fails, for example because there is not
        enough memory, its images are tried one by one. Images that still fail are reported and skipped.

        Args:
            function (`Callable`):
                Takes a list of images and returns one result per image.
            paths (`Iterable[str]`):
                Paths and URLs.
            description (`str`):
                Label of the progress bar.
            batch_size (`int`, *optional*, defaults to 1):
                Number of images per batch.

        Yields:
            `tuple[str, PIL.Image.Image, Any]`: The path, the image and its result.
        """
        images = iter(self.images(paths, description))
        while batch := list(islice(images, batch_size)):
            yield from self._results(function, batch)

    def _results(
        self, function: Callable[[list], Iterable], batch: list[tuple[str, Image.Image]]
    ) -> Iterator[tuple[str, Image.Image, Any]]:
        try:
            results = function([image for _, image in batch])
        # torch raises a RuntimeError if there is not enough memory.
        except (ValueError, TypeError, RuntimeError, OSError, MemoryError) as error:
            if len(batch) == 1:
                self.fail(batch[0][0], error)
                return
            for one in batch:
                yield from self._results(function, [one])
            return
        for (path, image), result in zip(batch, results, strict=True):
            yield path, image, result
