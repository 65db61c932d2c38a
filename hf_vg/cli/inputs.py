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
"""Files, folders, patterns and addresses of images."""

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageInputs:
    r"""
    Images as they are named on a command line, and a count of what failed.

    Args:
        quiet (`bool`, *optional*, defaults to `False`):
            Whether to show no progress.
    """

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.failures = 0

    def fail(self, name: str, problem: object) -> None:
        """Counts a failure, and names it on standard error."""
        self.failures += 1
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        print(f"hf-vg: {name}: {lines[0]}", file=sys.stderr)

    def paths(self, patterns: Iterable[str]) -> list[str]:
        """Files, all images of folders, matches of patterns, and addresses; each once, in order."""
        found: dict[str, None] = {}
        for pattern in patterns:
            if os.path.isdir(pattern):
                files = sorted(
                    str(path)
                    for path in Path(pattern).rglob("*")
                    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
                )
                problem = "there are no images in this folder"
            elif os.path.isfile(pattern) or pattern.startswith(("http://", "https://")):
                files, problem = [pattern], ""
            else:
                files = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
                problem = "no file matches this" if glob.has_magic(pattern) else "there is no such file or folder"
            if not files:
                self.fail(pattern, problem)
            found |= dict.fromkeys(files)
        return list(found)

    def images(self, patterns: Iterable[str], description: str) -> "Iterator[tuple[str, Image.Image]]":
        """Opens images one by one, and says which cannot be opened."""
        from tqdm.auto import tqdm

        from ..data.images import open_image

        for path in tqdm(self.paths(patterns), desc=description, unit="image", disable=self.quiet, file=sys.stderr):
            try:
                yield path, open_image(path)
            except (ValueError, TypeError) as error:
                self.fail(path, error.__cause__ or error)
