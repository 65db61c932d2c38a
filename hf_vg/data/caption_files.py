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
"""Readers of caption files. Each reader returns the images that a file mentions, with file and line.

Problems are reported with file and line, see [`LoadingReport`]. No image is opened.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as compute
from datasets import Dataset

from .files import IMAGE_SUFFIXES, outside, read_text
from .loading_report import LoadingReport
from .records import parse_json
from .tables import (
    TABLE_SUFFIXES,
    as_list,
    caption_columns,
    embedded_images,
    find_column,
    read_table,
    split_name,
)


# Lower case, because folder names are compared in lower case.
IMAGE_FOLDERS = ("images", "flicker8k_dataset", "flickr8k_dataset", "flickr30k-images", "flickr30k_images", "photos")
FLICKR_SPLIT_FILES = {
    "train": ("flickr_8k.trainimages.txt", "train.txt"),
    "validation": ("flickr_8k.devimages.txt", "val.txt", "dev.txt"),
    "test": ("flickr_8k.testimages.txt", "test.txt"),
}


class EmbeddedImage(NamedTuple):
    """An image stored inside a Parquet file."""

    images: Dataset  # all images of the file
    row: int


@dataclass(slots=True)
class CaptionedImage:
    """An image that a caption file mentions, with the place in the file."""

    image_id: str
    root: str  # the folder that must contain the image
    path: str | EmbeddedImage
    split: str
    file: Path
    line: int | None
    entry: str = ""  # the place in a JSON file, such as "images[3]: "
    captions: list[str] = field(default_factory=list)


def read_flickr(data_dir: Path, images_dir: str | PathLike | None, report: LoadingReport) -> Iterable[CaptionedImage]:
    """
    Reads Flickr8k or Flickr30k in their published files: `*.token.txt` or `*.token` with lines
    `IMAGE#NUMBER<tab>CAPTION`, and one list of images per split (`Flickr_8k.trainImages.txt`, ... or `train.txt`,
    `val.txt`, `test.txt`). Without lists, everything is training data. With lists, unlisted images are left out.
    """
    names = {path.name.lower(): path for path in sorted(_folder(data_dir).iterdir()) if path.is_file()}
    token_files = [path for name, path in names.items() if ".token" in name and "lemma" not in name]
    token_file = _only(token_files, data_dir, "Flickr8k.token.txt or results_20130124.token")
    folder = str(images_folder(data_dir, images_dir))

    images: dict[str, CaptionedImage] = {}
    numbers_seen = set()
    for line, text in enumerate(read_text(token_file, report).split("\n"), start=1):
        if not text.strip():
            continue
        name_and_number, tab, caption = text.partition("\t")
        name, hash_sign, number = name_and_number.strip().rpartition("#")
        if not (tab and hash_sign and name):
            report.skip(token_file, line, f"expected IMAGE#NUMBER<tab>CAPTION, found {text[:80]!r}")
        elif (name, number) in numbers_seen:
            report.skip(token_file, line, f"{name}#{number} appears twice; the first is kept")
        else:
            numbers_seen.add((name, number))
            image = images.setdefault(
                name, CaptionedImage(name, folder, os.path.join(folder, name), "train", token_file, line)
            )
            _add_caption(image, caption, token_file, line, report)

    lists = {
        split: path
        for split, file_names in FLICKR_SPLIT_FILES.items()
        for path in [next((names[name] for name in file_names if name in names), None)]
        if path is not None
    }
    if lists:
        images = _split_by_lists(images, lists, report)
    return images.values()


def _split_by_lists(
    images: dict[str, CaptionedImage], lists: dict[str, Path], report: LoadingReport
) -> dict[str, CaptionedImage]:
    listed: dict[str, CaptionedImage] = {}
    for split, file in lists.items():
        for line, text in enumerate(read_text(file, report).split("\n"), start=1):
            name = text.strip()
            if not name:
                continue
            if name not in images and f"{name}.jpg" in images:  # Flickr30k's lists omit the extension
                name += ".jpg"
            if name not in images:
                report.skip(file, line, f"{name} has no captions")
            elif name in listed:
                report.skip(file, line, f"{name} is already listed for {listed[name].split}; the first is kept")
            else:
                listed[name] = images[name]
                listed[name].split = split
    if len(images) > len(listed):
        report.count("images in no split", len(images) - len(listed))
    return listed


def read_karpathy(
    data_dir: Path, images_dir: str | PathLike | None, report: LoadingReport
) -> Iterable[CaptionedImage]:
    """
    Reads Karpathy's `dataset_flickr8k.json`, `dataset_flickr30k.json` or `dataset_coco.json`, or a folder with one of
    them. COCO's images are in `train2014` and `val2014`. COCO's `restval` stays a separate split: many papers add it
    to the training data, the first ones did not.
    """
    file = data_dir
    if file.is_dir():
        file = _only(sorted(file.glob("dataset*.json")), file, "dataset_flickr8k.json")
    folder = str(images_folder(file.parent, images_dir))
    images: dict[str, CaptionedImage] = {}
    for index, row in enumerate(_read_json(file, report, "images")["images"]):
        place = f"images[{index}]"
        texts = [row.get("filename"), row.get("split"), row.get("filepath", "")]
        sentences = row.get("sentences")
        if not all(isinstance(text, str) for text in texts) or not texts[0] or not isinstance(sentences, list):
            report.skip(file, None, f"{place}: expected strings 'filename' and 'split' and a list 'sentences'")
            continue
        name = os.path.join(texts[2], texts[0])
        if name in images:
            report.skip(file, None, f"{place}: {name} appears twice; the first is kept")
            continue
        path = os.path.join(folder, name)
        if not os.path.isfile(path) and os.path.isfile(os.path.join(folder, texts[0])):
            path = os.path.join(folder, texts[0])
        image = images[name] = CaptionedImage(name, folder, path, split_name(texts[1]), file, None, f"{place}: ")
        for number, sentence in enumerate(sentences):
            caption = sentence.get("raw") if isinstance(sentence, dict) else None
            _add_caption(image, caption, file, None, report, f"{place}.sentences[{number}]: ")
    return images.values()


def read_coco(data_dir: Path, images_dir: str | PathLike | None, report: LoadingReport) -> Iterable[CaptionedImage]:
    """
    Reads COCO captions: `captions_train2014.json`, `captions_val2014.json` and similar files, in a folder or its
    subfolder `annotations`, or a single file. The file name gives the split; a file without a split in its name is
    training data. Images are in `images` or in `train2014`, `val2014`, ...
    """
    if data_dir.is_file():
        files, data_dir = [data_dir], data_dir.parent
    else:
        annotations = _first_folder(_folder(data_dir), ("annotations",))
        files = sorted(path for path in annotations.iterdir() if path.suffix.lower() == ".json")
        files = [path for path in files if path.name.lower().startswith("captions_")] or files
        if not files:
            raise FileNotFoundError(f"there is no captions_*.json in {annotations}")
    root = images_folder(data_dir, images_dir)

    images: dict[Any, CaptionedImage] = {}
    for file in files:
        matched = re.fullmatch(r"captions_([a-z]+)(\d*)", file.stem.lower())
        split = split_name(matched[1]) if matched else "train"
        folder = str(_inside(root, _first_folder(root, (matched[1] + matched[2],))) if matched else root)
        content = _read_json(file, report, "images", "annotations")
        for index, row in enumerate(content["images"]):
            place = f"images[{index}]"
            name, number = row.get("file_name"), row.get("id")
            if not isinstance(name, str) or not name or not isinstance(number, (int, str)):
                report.skip(file, None, f"{place}: expected a number 'id' and a string 'file_name'")
            elif number in images:
                report.skip(file, None, f"{place}: id {number} appears twice; the first is kept")
            else:
                path = os.path.join(folder, name)
                images[number] = CaptionedImage(str(number), folder, path, split, file, None, f"{place}: ")
        ids_seen = set()
        for index, row in enumerate(content["annotations"]):
            place = f"annotations[{index}]: "
            image_id, number = row.get("image_id"), row.get("id")
            image = images.get(image_id) if isinstance(image_id, (int, str)) else None
            if image is None:
                report.skip(file, None, f"{place}there is no image with id {image_id!r}")
            elif not isinstance(number, (int, str, type(None))):
                report.skip(file, None, f"{place}expected a number 'id', found {number!r}")
            elif number in ids_seen:
                report.skip(file, None, f"{place}id {number} appears twice; the first is kept")
            else:
                if number is not None:
                    ids_seen.add(number)
                _add_caption(image, row.get("caption"), file, None, report, place)
    return images.values()


def read_caption_table(
    data_dir: Path, images_dir: str | PathLike | None, report: LoadingReport
) -> Iterable[CaptionedImage]:
    """
    Reads a table of your own photos: a CSV, TSV, JSONL or Parquet file, or a folder with one. It needs an image column
    (`image`, `file_name`, ...) and a caption column (`caption`, `text`, ..., or `captions` with lists). A `split`
    column is optional; without it, everything is training data. An image with several captions may have several rows.
    Image paths are relative to `images_dir`, to the folder of the file, or to its subfolder `Images`.
    """
    file = data_dir
    if file.is_dir():
        tables = [path for path in sorted(file.iterdir()) if path.suffix.lower() in TABLE_SUFFIXES]
        named = [path for path in tables if path.stem.lower() == "captions"]
        file = _only(named or tables, file, "captions.csv, captions.jsonl or captions.parquet")
    elif not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    beside = os.path.abspath(file.parent)
    folder = str(images_folder(file.parent, images_dir))

    images: dict[str, CaptionedImage] = {}
    columns, split_column = [], None
    embedded = embedded_images(file)
    has_bytes = [] if embedded is None else _have_bytes(embedded)
    for line, row in read_table(file, report):
        if not columns:
            columns, split_column = caption_columns(list(row), file), find_column(list(row), ("split",))
        source, split = row.get(columns[0]), split_name(row.get(split_column or "split"))
        within = EmbeddedImage(embedded, line - 1) if embedded is not None and has_bytes[line - 1] else None
        name = source.get("path") if isinstance(source, dict) else source
        name = f"row {line}" if within and not name else name
        if not isinstance(name, (str, int)) or not str(name).strip():
            report.skip(file, line, f"{columns[0]!r} is empty or not a string, so the caption has no image")
            continue
        image_id = str(name).strip()
        image = images.get(image_id)
        if image is None:
            root, path = folder, os.path.join(folder, image_id)
            if images_dir is None and not os.path.isfile(path):
                root, path = beside, os.path.join(beside, image_id)
            image = images[image_id] = CaptionedImage(image_id, root, within or path, split, file, line)
        if image.split != split:
            report.skip(file, line, f"{image_id} is already in the split {image.split}, and in {split} here")
            continue
        for caption in [caption for column in columns[1:] for caption in as_list(row.get(column)) or [None]]:
            _add_caption(image, caption, file, line, report)
    _count_others(folder, images.values(), report)
    return images.values()


def _have_bytes(images: Dataset) -> list[bool]:
    lengths = compute.binary_length(compute.struct_field(images.data.column("image"), "bytes"))
    return compute.greater(lengths, 0).fill_null(False).to_pylist()


def _add_caption(
    image: CaptionedImage, caption: Any, file: Path, line: int | None, report: LoadingReport, entry: str = ""
) -> None:
    if not isinstance(caption, str) or not caption.strip():
        empty = caption is None or isinstance(caption, str)
        found = "an empty caption" if empty else f"a caption that is not a string: {caption!r:.80}"
        report.skip(file, line, f"{entry}{image.image_id} has {found}")
    elif not is_unicode(caption):
        report.skip(
            file, line, f"{entry}the caption of {image.image_id} has half of a surrogate pair: {caption!a:.80}"
        )
    else:
        image.captions.append(" ".join(caption.split()))


def is_unicode(text: str) -> bool:
    """Returns whether a string can be encoded: strings from JSON may contain half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count_others(folder: str, images: Iterable[CaptionedImage], report: LoadingReport) -> None:
    """Counts the images in the folder that no row mentions."""
    mentioned = {os.path.normpath(image.path) for image in images if isinstance(image.path, str)}
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES]
    if others := sum(path not in mentioned for path in paths) if mentioned else 0:
        report.count("images without captions", others)


def _read_json(file: Path, report: LoadingReport, *keys: str) -> dict[str, list[dict[str, Any]]]:
    content = parse_json(read_text(file, report), file)
    for key in keys:
        rows = content.get(key) if isinstance(content, Mapping) else None
        if not isinstance(rows, list):
            raise ValueError(f"{file}: expected an object with a list {key!r} of objects")
        bad = [index for index, row in enumerate(rows) if not isinstance(row, Mapping)]
        for index in bad:
            report.skip(file, None, f"{key}[{index}]: expected an object, found {rows[index]!r:.80}")
            rows[index] = {}
    return content


def _folder(path: str | PathLike) -> Path:
    if not Path(path).is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    return Path(path)


def _first_folder(root: Path, names: tuple[str, ...]) -> Path:
    """Returns the first of these subfolders that exists in `root`, ignoring case; otherwise `root`."""
    folders = {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir()} if root.is_dir() else {}
    return next((folders[name] for name in names if name in folders), root)


def images_folder(data_dir: Path, images_dir: str | PathLike | None) -> Path:
    """
    Finds the folder with the images.

    Args:
        data_dir (`Path`):
            The folder with the captions, searched for the usual image folders such as `Images`.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images, if you know it.

    Returns:
        `Path`: `images_dir` if given, otherwise the image folder in `data_dir`, otherwise `data_dir`.
    """
    if images_dir is not None:
        return Path(os.path.abspath(_folder(images_dir)))
    data_dir = Path(os.path.abspath(_folder(data_dir)))
    folder = _first_folder(data_dir, IMAGE_FOLDERS)
    # Some archives contain a folder inside a folder of the same name.
    return _inside(data_dir, _first_folder(folder, IMAGE_FOLDERS))


def _inside(root: Path, folder: Path) -> Path:
    if real := outside(folder, root):
        raise ValueError(f"{folder} is a link to {real}, outside of {root}: pass that folder as `images_dir`")
    return folder


def _only(files: list[Path], folder: Path, expected: str) -> Path:
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise FileNotFoundError(f"{folder}: expected one file such as {expected}, found {found}")
    return files[0]
