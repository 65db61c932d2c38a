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
"""Records of annotation files, of which nothing is certain: each field is checked, and an error names its place."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from .files import outside


_KINDS = {int: "an integer", str: "a string", list: "a list", dict: "an object"}


def read_json(file: str | PathLike) -> Any:
    """Reads a JSON file. What is wrong with it is a `ValueError` that names the file, and the line if there is one."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not JSON that can be read: {error}.") from None
    return parse_json(text, file)


def parse_json(text: str, where: str | PathLike) -> Any:
    """Parses JSON. What is wrong with it is a `ValueError` that names the place."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}:{error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise ValueError(f"{where}: not JSON that can be read: {error}.") from None


def take(record: Any, name: str, kind: type, where: str) -> Any:
    r"""
    A field of a record, of the right type.

    Args:
        record (`Any`):
            What should be an object with that field.
        name (`str`):
            The name of the field.
        kind (`type`):
            `int` (of 64 bits), `str` (of valid Unicode), `list` or `dict`.
        where (`str`):
            Names the record in error messages, such as `"questions.json: questions[3]"`.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where} must be an object, got {describe(record)}.")
    if name not in record:
        raise ValueError(f"{where} has no {name!r}.")
    value = record[name]
    is_kind = isinstance(value, kind) and not isinstance(value, bool)
    if not is_kind or (kind is int and not -(2**63) <= value < 2**63):
        raise ValueError(f"{name!r} of {where} must be {_KINDS[kind]}, got {describe(value)}.")
    if kind is str and not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(
            f"{name!r} of {where} holds half of a surrogate pair, and is no valid Unicode: {value!a:.80}."
        )
    return value


def take_records(record: Any, name: str, where: str) -> list[tuple[str, Any]]:
    """The items of a list field, each with the words that name it in error messages."""
    return [(f"{where}: {name}[{index}]", item) for index, item in enumerate(take(record, name, list, where))]


def describe(value: Any) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, (str, bytes)):
        return ascii(value[:60])
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63):
        return repr(value)
    return f"a {type(value).__name__}"


def find_image(folder: str | PathLike, name: str) -> Path:
    """An image in a folder, by a name that an annotation file gives. It must not lead out of the folder."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"the image {describe(name)} is not inside {str(folder)!r}")
    # No file system has names this long, and some raise an error if they are asked.
    if len(name) > 1000 or any(len(part) > 255 for part in path.parts) or not Path(folder, path).is_file():
        raise FileNotFoundError(f"there is no image {describe(name)} in {str(folder)!r}")
    if real := outside(Path(folder, path), folder):
        raise ValueError(
            f"the image {describe(name)} is a link to {real}, outside of {str(folder)!r}: name the folder that holds "
            "it as `images_dir`"
        )
    return Path(folder, path)
