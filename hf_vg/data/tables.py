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
"""Reads the rows of CSV, TSV, JSONL and Parquet files with their line numbers."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, Features, Image
from datasets.exceptions import DatasetGenerationError

from .files import read_text
from .loading_report import LoadingReport
from .records import parse_json


# Common names of these columns.
IMAGE_COLUMNS = ("image", "file_name", "filename", "image_path", "image_name", "path", "file")
CAPTION_COLUMNS = ("captions", "caption", "text", "sentences", "sentence", "comment", "raw")
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
SPLIT_NAMES = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}
MAX_LINES = 50  # maximum number of lines in a quoted value
_IMAGE_NAME = re.compile(r"\.(jpe?g|png|webp|gif|bmp|tiff?|ppm|avif)\s*$", re.IGNORECASE)


def read_table(file: Path, report: LoadingReport) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""
    Reads a table row by row.

    Args:
        file (`Path`):
            A `.csv`, `.tsv`, `.txt`, `.jsonl` or `.parquet` file.
        report ([`LoadingReport`]):
            Collects the rows that are skipped or repaired.

    Yields:
        `tuple[int, dict]`: The number of the line or row, counted from 1, and the row.
    """
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        yield from enumerate(_read_parquet(file), start=1)
    elif suffix == ".jsonl":
        yield from _read_jsonl(file, report)
    elif suffix in TABLE_SUFFIXES:
        yield from _read_csv(file, report)
    else:
        raise ValueError(f"{file}: expected one of {', '.join(TABLE_SUFFIXES)}")


def caption_columns(columns: Sequence[str], where: str | PathLike) -> list[str]:
    """
    Finds the image column and the caption columns by their usual names.

    Args:
        columns (`Sequence[str]`):
            The column names of the table.
        where (`str` or `PathLike`):
            The table, for the error message.

    Returns:
        `list[str]`: The image column, followed by the caption columns.

    Example:

    ```python
    >>> from hf_vg.data.tables import caption_columns

    >>> caption_columns(["id", "File Name", "caption_0", "caption_1"], "photos.csv")
    ['File Name', 'caption_0', 'caption_1']
    ```
    """
    image, caption = find_column(columns, IMAGE_COLUMNS), find_column(columns, CAPTION_COLUMNS)
    numbered = sorted(name for name in columns if re.fullmatch(r"caption[_ ]?\d+", name, flags=re.IGNORECASE))
    captions = numbered if caption is None else [caption]
    if image is None or not captions:
        raise ValueError(
            f"{where}: expected an image column ({', '.join(IMAGE_COLUMNS)}) and a caption column "
            f"({', '.join(CAPTION_COLUMNS)}), found {[name[:40] for name in columns[:20]]}"
        )
    return [image, *captions]


def find_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the first column of the table whose name is in `names`. `File Name` counts as `file_name`."""
    written = {name.strip().lower().replace(" ", "_"): name for name in reversed(columns)}
    return next((written[name] for name in names if name in written), None)


def as_list(captions: Any) -> list:
    """Returns the captions of a row as a list: the value may be one caption, a list, or `None`."""
    if captions is None:
        return []
    return captions if isinstance(captions, list) else [captions]


def split_name(value: Any) -> str:
    """Normalizes the name of a split: `val` becomes `validation`, and an empty value `train`."""
    name = re.sub(r"[^\w.]+", "_", str(value or "train").strip().lower())
    return SPLIT_NAMES.get(name, name)


def embedded_images(file: Path) -> Dataset | None:
    r"""
    Opens the images stored inside a Parquet file, as `datasets` writes them. They are memory-mapped from a cache on
    disk, so the file may be larger than memory.

    Args:
        file (`Path`):
            The file.

    Returns:
        [`~datasets.Dataset`] or `None`: The images, not decoded, one per row; or `None` if the file contains only the
        names of images.
    """
    if file.suffix.lower() != ".parquet":
        return None
    with _readable(file):
        image = _open_parquet(file)[1]
        if not pyarrow.types.is_struct(image.type) or image.type.get_field_index("bytes") < 0:
            return None
        state = file.stat()
        version = (str(file), state.st_size, state.st_mtime_ns)
        try:
            return Dataset.from_generator(
                _image_rows, features=Features(image=Image(decode=False)), gen_kwargs={"version": version}
            )
        except DatasetGenerationError as error:
            raise ValueError(f"{file}: cannot be read as Parquet: {error.__cause__!s:.200}") from error


def _image_rows(version: tuple[str, int, int]) -> Iterator[dict[str, Any]]:
    """Yields the images of a file. Its size and time are arguments because they are the cache key of `datasets`."""
    parquet, column, _ = _open_parquet(Path(version[0]))
    for batch in parquet.iter_batches(batch_size=16, columns=[column.name]):
        for value in batch.column(0).to_pylist():
            content, path = (value or {}).get("bytes"), (value or {}).get("path")
            image = {"bytes": content, "path": path if isinstance(path, str) else None}
            yield {"image": image if any(image.values()) else None}


def _read_parquet(file: Path) -> Iterator[dict[str, Any]]:
    """Yields rows with the necessary columns. Only the names of embedded images are read."""
    with _readable(file):
        parquet, image, columns = _open_parquet(file)
        embeds = pyarrow.types.is_struct(image.type) and image.type.get_field_index("bytes") >= 0
        if not embeds:
            columns.append(image.name)
        elif image.type.get_field_index("path") >= 0:
            columns.append(f"{image.name}.path")
        for batch in parquet.iter_batches(batch_size=1024, columns=columns):
            for row in batch.to_pylist():
                yield {image.name: None, **row}


def _open_parquet(file: Path) -> tuple[pyarrow.parquet.ParquetFile, pyarrow.Field, list[str]]:
    """Returns the file, read page by page, its image column, and the names of the other necessary columns."""
    parquet = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    schema = parquet.schema_arrow
    image, *captions = caption_columns(schema.names, file)
    if len({*schema.names}) < len(schema.names):
        raise ValueError(f"{file}: two columns have the same name: {[name[:40] for name in schema.names[:20]]}")
    split = find_column(schema.names, ("split",))
    return parquet, schema.field(image), [*captions, *([split] if split else [])]


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read as Parquet: {str(error)[:200]}") from error


def _read_jsonl(file: Path, report: LoadingReport) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(read_text(file, report).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            row = parse_json(text, "")
        except ValueError as error:
            report.skip(file, line, str(error).split(": ", 1)[1])
            continue
        if isinstance(row, dict):
            yield line, row
        else:
            report.skip(file, line, f"expected an object, found {text[:80]!r}")


def _read_csv(file: Path, report: LoadingReport) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = read_text(file, report).split("\n")
    delimiter = next((mark for mark in "\t|;" if mark in lines[0]), ",")
    if "\0" in lines[0]:
        raise ValueError(f"{file}:1: the file has NUL characters, so it is not UTF-8 text. Save it as UTF-8.")
    names = [name.strip() for name in _parse_line(lines[0], delimiter)]
    images, captions = find_column(names, IMAGE_COLUMNS), find_column(names, CAPTION_COLUMNS)
    image = None if images is None else names.index(images)
    start = 1
    while start < len(lines):
        line, end = start + 1, start + 1
        try:
            values, end = _parse_row(lines, start, delimiter, len(names), image)
            if end > start + 1:
                report.note(file, line, f"a value spans {end - start} lines; line breaks are read as spaces")
        except csv.Error as error:
            values = None
            report.skip(file, line, f"not CSV: {error}")
        if values and len(values) > len(names) and names[-1] == captions:
            caption = f"{delimiter} ".join(values[len(names) - 1 :])
            report.repair(file, line, f"the caption contains {delimiter!r} but has no quotes; read as {caption!r}")
            values = [*values[: len(names) - 1], caption]
        if values and "\0" in "".join(values):
            report.skip(file, line, "the row has NUL characters")
        elif values and len(values) != len(names):
            report.skip(file, line, f"expected the {len(names)} columns {names}, found {len(values)}")
        elif values:
            yield line, dict(zip(names, values, strict=True))
        start = end


def _parse_row(lines: list[str], start: int, delimiter: str, columns: int, image: int | None) -> tuple[list[str], int]:
    """Returns the values of the row that starts at `lines[start]`, and the index of the line after it."""
    text, end = lines[start], start + 1
    while True:
        try:
            values = _parse_line(text, delimiter, strict=True)
        except csv.Error as error:
            if "unexpected end" not in str(error):
                break
        else:
            if end == start + 1 or len(values) == columns:
                return values, end
            break
        # A missing closing quote must not swallow the rows after it.
        if end == len(lines) or end - start == MAX_LINES or _is_row(lines[end], delimiter, columns, image):
            raise csv.Error(f"a quote is opened here and not closed: {lines[start][:80]!r}")
        text += "\n" + lines[end]
        end += 1
    if end > start + 1:
        raise csv.Error(f"a quote is opened here and not closed: {lines[start][:80]!r}")
    return _parse_line(text, delimiter), end  # quotes inside quotes that are not doubled, or a field that is too large


def _parse_line(text: str, delimiter: str, strict: bool = False) -> list[str]:
    return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True, strict=strict), [])


def _is_row(text: str, delimiter: str, columns: int, image: int | None) -> bool:
    """Returns whether a line is a complete row, with an image name in the image column."""
    try:
        values = _parse_line(text, delimiter)
    except csv.Error:
        return False
    return image is not None and len(values) >= columns and bool(_IMAGE_NAME.search(values[image]))
