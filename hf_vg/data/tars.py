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
"""Reads `.tar` files in the WebDataset format: each row is an image and the texts that share its name."""

import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from itertools import groupby
from lzma import LZMAError
from typing import Any, Literal

import fsspec
from datasets import Features, Image, List, Value

from .files import IMAGE_SUFFIXES
from .images import MAX_BYTES
from .tables import CAPTION_COLUMNS, as_list


# `datasets` uses `__url__` for the file and `__key__` for the name of a row.
TAR_FEATURES = Features(
    {
        "image": Image(),
        "captions": List(Value("string")),
        "problem": Value("string"),
        "__key__": Value("string"),
        "__url__": Value("string"),
    }
)
# A name up to its first dot, and the extension.
_MEMBER = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)


def find_tars(patterns: Iterable[str]) -> list[str]:
    """
    Lists `.tar` files.

    Args:
        patterns (`Iterable[str]`):
            Files, folders, URLs, or patterns of files or URLs.

    Returns:
        `list[str]`: The paths and URLs of the files.
    """
    found = []
    for pattern in patterns:
        if "://" in pattern:
            files, _, paths = fsspec.get_fs_token_paths(pattern)
            found += sorted(files.unstrip_protocol(path) for path in paths)
        else:
            within = sorted(entry.path for entry in os.scandir(pattern)) if os.path.isdir(pattern) else []
            matches = [path for path in within if path.lower().endswith(".tar")]
            matches = matches or ([pattern] if os.path.exists(pattern) else sorted(glob(pattern)))
            found += filter(os.path.isfile, matches)  # reading a device might never end
    return found


def tar_rows(files: Sequence[str], versions: Sequence[Any] = ()) -> Iterator[dict[str, Any]]:
    r"""
    Reads the rows of `.tar` files. Only images, `.txt` and `.json` members are read, each up to 100 MiB. If a row is
    bad, its `problem` says why. If a file is damaged, the error names it.

    Args:
        files (`Sequence[str]`):
            Paths or URLs.
        versions (`Sequence`, *optional*):
            Not used. `datasets` caches rows by the arguments of this function, so a changed file must change them.

    Yields:
        `dict`: Rows with the columns of `TAR_FEATURES`.
    """
    for file in files:
        try:
            # Seek if possible: otherwise a member that claims a huge size would be skipped block by block.
            with fsspec.open(file, "rb") as opened, tarfile.open(fileobj=opened, mode=_mode(opened)) as tar:
                for name, members in groupby(_members(tar), key=lambda member: member[0]):
                    yield {**_row(members), "__key__": _printable(name), "__url__": file}
        except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError, ValueError) as error:
            raise ValueError(
                f"{file}: the tar file is damaged: {str(error).partition(chr(10))[0] or type(error).__name__}"
            ) from error


def _mode(opened: Any) -> Literal["r:*", "r|*"]:
    return "r:*" if opened.seekable() else "r|*"


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, str, bytes | None]]:
    """Yields the row's name, the member's extension and name, and its content, or `None` if it is too large."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # otherwise the list grows with the file
        named = _MEMBER.fullmatch(member.name)
        if named is None or not member.isfile():  # links are not followed
            continue
        ending = named[2].lower()
        if ending not in ("txt", "json") and f".{ending.rpartition('.')[2]}" not in IMAGE_SUFFIXES:
            continue
        content = None
        if member.size <= MAX_BYTES:
            content = tar.extractfile(member).read()  # type: ignore[union-attr]  # not None for a regular file
            if len(content) < member.size:
                raise tarfile.ReadError("unexpected end of data")
        yield named[1], ending, _printable(member.name), content


def _row(members: Iterable[tuple[str, str, str, bytes | None]]) -> dict[str, Any]:
    row: dict[str, Any] = {"image": None, "captions": [], "problem": None}
    captions: dict[str, list[Any]] = {}
    for _, ending, name, content in members:
        if content is None:
            row["problem"] = f"{name} has more than {MAX_BYTES:,} bytes"
        elif ending in ("txt", "json"):
            try:
                text = content.decode("utf-8-sig")
                captions[ending] = text.splitlines() if ending == "txt" else _captions_of(json.loads(text))
            except (ValueError, RecursionError) as error:
                row["problem"] = f"{name} cannot be read: {error!s:.200}"
        elif row["image"] is None:
            row["image"] = {"bytes": content, "path": name}
        else:
            row["problem"] = "the row has two images"
    # If there are both, the JSON repeats the caption of the text file.
    found = captions.get("txt") or captions.get("json") or []
    row["captions"] = [" ".join(text.split()) for text in found if isinstance(text, str) and text.strip()]
    return row


def _captions_of(fields: Any) -> list[Any]:
    if not isinstance(fields, dict):
        raise ValueError("expected an object with `caption` or `captions`")
    return as_list(next((fields[name] for name in CAPTION_COLUMNS if fields.get(name)), None))


def _printable(name: str) -> str:
    """Escapes a name for a table: `tarfile` decodes bytes that are not UTF-8 to lone surrogates."""
    return name.encode(errors="backslashreplace").decode()
