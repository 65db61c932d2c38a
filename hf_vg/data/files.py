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
"""Reads text files in any encoding, writes files atomically, and finds images in folders."""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from uuid import uuid4

from .loading_report import LoadingReport


IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"}
# UTF-32 comes first: its mark starts with the mark of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def images_below(folder: str | PathLike) -> list[str]:
    """
    Lists the image files in a folder and its subfolders.

    Args:
        folder (`str` or `PathLike`):
            The folder to search.

    Returns:
        `list[str]`: Sorted paths of the files with an image extension, such as `.jpg` or `.png`.
    """
    return sorted(
        str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    )


def outside(path: str | PathLike, folder: str | PathLike) -> str | None:
    r"""
    Checks whether a file is outside of a folder, following links. Files in a snapshot of the Hub cache are links to
    blobs; they count as inside.

    Args:
        path (`str` or `PathLike`):
            An existing file.
        folder (`str` or `PathLike`):
            The folder that must contain it.

    Returns:
        `str` or `None`: The real path if it is outside of the folder, otherwise `None`.
    """
    real, root = os.path.realpath(path), os.path.realpath(folder)
    roots = [root]
    repository, snapshots, _ = os.path.join(root, "").rpartition(f"{os.sep}snapshots{os.sep}")
    if snapshots:
        roots.append(os.path.join(repository, "blobs"))
    return None if any(real == root or real.startswith(os.path.join(root, "")) for root in roots) else real


@contextmanager
def atomic_write(path: str | PathLike, flush: bool = True) -> Iterator[Path]:
    r"""
    Opens a temporary path that replaces `path` when the block ends. If the block fails or the process is killed,
    `path` does not change. Missing folders are created.

    Args:
        path (`str` or `PathLike`):
            The file to write.
        flush (`bool`, *optional*, defaults to `True`):
            Whether to wait until the file is on disk. Otherwise a power failure may lose it.

    Yields:
        `Path`: The temporary file to write.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data.files import atomic_write

    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "metrics.json")
    >>> with atomic_write(path) as file:
    ...     _ = file.write_text("{}")
    >>> path.read_text()
    '{}'
    ```
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the replacement is atomic. The name is unique: other processes may write `path` too.
    temporary = path.with_name(f".{path.name[:40]}.{uuid4().hex[:16]}.tmp")
    try:
        yield temporary
        if flush:
            with open(temporary, "r+b") as written:  # Windows flushes only files opened for writing
                os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_text(file: str | PathLike, report: LoadingReport) -> str:
    r"""
    Reads a text file. Line endings become `\n`, and a byte order mark is removed. Files that are not UTF-8 are read
    and reported: UTF-16 and UTF-32 are recognized by their byte order mark, and other lines that are not UTF-8 are
    read as Windows-1252.

    Args:
        file (`str` or `PathLike`):
            The file.
        report ([`LoadingReport`]):
            Collects the repairs.

    Returns:
        `str`: The text.
    """
    raw = Path(file).read_bytes()
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            report.repair(file, 1, f"the file should be UTF-8 but is {encoding.upper()}; it is read as such")
            raw = raw[len(mark) :].decode(encoding, errors="replace").encode()
            break
    raw = raw.removeprefix(codecs.BOM_UTF8)
    raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        lines = raw.split(b"\n")
    text = []
    for number, line in enumerate(lines, start=1):
        try:
            text.append(line.decode())
        except UnicodeDecodeError as error:
            text.append(line.decode("cp1252", errors="replace"))
            report.repair(file, number, f"byte {line[error.start]:#x} is not UTF-8; the line is read as Windows-1252")
    return "\n".join(text)
