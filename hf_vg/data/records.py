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
"""Reads records of annotation files. Every field is checked, and errors name the place in the file."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from .files import outside


_KINDS = {int: "an integer", str: "a string", list: "a list", dict: "an object"}


def read_json(file: str | PathLike) -> Any:
    """Reads a JSON file. Raises a `ValueError` with the file, and the line if known, if it cannot be parsed."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not JSON: {error}.") from None
    return parse_json(text, file)


def parse_json(text: str, where: str | PathLike) -> Any:
    """Parses JSON. Raises a `ValueError` that starts with `where` if it cannot be parsed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}:{error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits, deeply nested brackets
        raise ValueError(f"{where}: not JSON: {error}.") from None


def take(record: Any, name: str, kind: type, where: str) -> Any:
    r"""
    Returns a field of a record after checking its type.

    Args:
        record (`Any`):
            The record, which should be a dictionary.
        name (`str`):
            The name of the field.
        kind (`type`):
            The expected type: `int` (64 bits), `str` (valid Unicode), `list` or `dict`.
        where (`str`):
            The place of the record for error messages, such as `"questions.json: questions[3]"`.

    Returns:
        `Any`: The value of the field.

    Example:

    ```python
    >>> from hf_vg.data.records import take

    >>> take({"image_id": 7}, "image_id", int, "file.json: images[0]")
    7
    >>> take({"image_id": "seven"}, "image_id", int, "file.json: images[0]")
    Traceback (most recent call last):
    ValueError: 'image_id' of file.json: images[0] must be an integer, got 'seven'.
    ```
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
            f"{name!r} of {where} has half of a surrogate pair, which is not valid Unicode: {value!a:.80}."
        )
    return value


def take_records(record: Any, name: str, where: str) -> list[tuple[str, Any]]:
    """Returns the items of a list field, each with its place for error messages."""
    return [(f"{where}: {name}[{index}]", item) for index, item in enumerate(take(record, name, list, where))]


def describe(value: Any) -> str:
    """Describes a value in a few words for an error message, however large it is."""
    if isinstance(value, (str, bytes)):
        return ascii(value[:60])
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63):
        return repr(value)
    return f"a {type(value).__name__}"


def find_image(folder: str | PathLike, name: str) -> Path:
    """
    Finds an image that an annotation file names. Names that lead out of the folder raise a `ValueError`.

    Args:
        folder (`str` or `PathLike`):
            The folder with the images.
        name (`str`):
            The file name from the annotation file.

    Returns:
        `Path`: The path of the image.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"the image {describe(name)} is not inside {str(folder)!r}")
    # No file system allows names this long, and some raise an error for them.
    if len(name) > 1000 or any(len(part) > 255 for part in path.parts) or not Path(folder, path).is_file():
        raise FileNotFoundError(f"there is no image {describe(name)} in {str(folder)!r}")
    if real := outside(Path(folder, path), folder):
        raise ValueError(
            f"the image {describe(name)} is a link to {real}, outside of {str(folder)!r}: pass the folder that "
            "contains it as `images_dir`"
        )
    return Path(folder, path)
