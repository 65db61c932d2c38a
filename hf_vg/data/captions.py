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
"""Images with captions, from the formats they come in to one schema.

Every loader gives a `DatasetDict` whose rows have an `image_id`, an `image` and its `captions`. Images are paths until
a row is read: loading decodes none, unless `check_images` asks for it. What is wrong with the files is reported by
file and line, see [`LoadingReport`]; with `strict` it is an error.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, DatasetDict, Features, Image, List, Value, load_dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .files import read_text
from .images import open_image
from .loading_report import LoadingReport


CAPTION_FEATURES = Features(image_id=Value("string"), image=Image(), captions=List(Value("string")))
SPLIT_NAMES = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}

FLICKR_IMAGE_FOLDERS = (
    "Images",
    "images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
    "flickr30k-images",
    "flickr30k_images",
)
FLICKR_SPLIT_FILES = {
    "train": ("Flickr_8k.trainImages.txt", "train.txt"),
    "validation": ("Flickr_8k.devImages.txt", "val.txt", "dev.txt"),
    "test": ("Flickr_8k.testImages.txt", "test.txt"),
}
# What people call these columns.
IMAGE_COLUMNS = ("image", "file_name", "filename", "image_path", "image_name", "path", "file")
CAPTION_COLUMNS = ("captions", "caption", "text", "sentences", "sentence", "comment", "raw")
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")


@dataclass
class _Image:
    """An image that a file mentions, and where it does."""

    image_id: str
    path: Path | dict[str, Any]
    split: str
    file: Path
    line: int | None
    entry: str = ""  # the place in a file without lines
    captions: list[str] = field(default_factory=list)


def load_flickr(
    data_dir: str | PathLike,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads Flickr8k or Flickr30k from their own files: `*.token.txt` or `*.token` with lines `IMAGE#NUMBER<tab>CAPTION`,
    and lists of images for the splits (`Flickr_8k.trainImages.txt`, ... or `train.txt`, `val.txt`, `test.txt`).
    Without lists all is training data; with some, an image that no list names is left out.

    Args:
        data_dir (`str` or `PathLike`):
            The folder with these files.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images. `Images`, `Flicker8k_Dataset` or `flickr30k-images` in `data_dir` by default.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip what can not be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    data_dir = _folder(data_dir)
    report = report or LoadingReport(data_dir.name)
    token_files = [path for path in sorted(data_dir.glob("*.token*")) if "lemma" not in path.name]
    token_file = _only(token_files, data_dir, "Flickr8k.token.txt or results_20130124.token")
    folder = Path(images_dir) if images_dir else _first_folder(data_dir, FLICKR_IMAGE_FOLDERS)

    images: dict[str, _Image] = {}
    numbers_seen = set()
    for line, text in enumerate(read_text(token_file, report).split("\n"), start=1):
        if not text.strip():
            continue
        name_and_number, tab, caption = text.partition("\t")
        name, hash_sign, number = name_and_number.strip().rpartition("#")
        if not (tab and hash_sign and name):
            report.skip(token_file, line, f"expected IMAGE#NUMBER<tab>CAPTION, found {text[:80]!r}")
        elif (name, number) in numbers_seen:
            report.skip(token_file, line, f"{name}#{number} is there twice; the first is kept")
        else:
            numbers_seen.add((name, number))
            image = images.setdefault(name, _Image(name, folder / name, "train", token_file, line))
            _add_caption(image, caption, token_file, line, report)

    lists = {
        split: path
        for split, names in FLICKR_SPLIT_FILES.items()
        for path in [next((data_dir / name for name in names if (data_dir / name).is_file()), None)]
        if path is not None
    }
    if lists:
        images = _split_by_lists(images, lists, report)
    return _to_datasets(images.values(), strict, check_images, report)


def _split_by_lists(images: dict[str, _Image], lists: dict[str, Path], report: LoadingReport) -> dict[str, _Image]:
    listed: dict[str, _Image] = {}
    for split, file in lists.items():
        for line, text in enumerate(read_text(file, report).split("\n"), start=1):
            name = text.strip()
            if not name:
                continue
            if name not in images and f"{name}.jpg" in images:  # Flickr30k's lists leave the extension out
                name += ".jpg"
            if name not in images:
                report.skip(file, line, f"{name} has no captions")
            elif name in listed:
                report.skip(file, line, f"{name} is listed before, for {listed[name].split}; the first is kept")
            else:
                listed[name] = images[name]
                listed[name].split = split
    if len(images) > len(listed):
        report.count("images in no split", len(images) - len(listed))
    return listed


def load_karpathy(
    file: str | PathLike,
    images_dir: str | PathLike,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads Karpathy's `dataset_flickr8k.json`, `dataset_flickr30k.json` or `dataset_coco.json`. COCO's `restval`, which
    many add to the training data and the first papers did not, stays a split of its own.

    Args:
        file (`str` or `PathLike`):
            The file, or a folder that has one `dataset*.json`.
        images_dir (`str` or `PathLike`):
            The folder with the images; for COCO, the one with `train2014` and `val2014`.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip what can not be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    file, images_dir = Path(file), _folder(images_dir)
    if file.is_dir():
        file = _only(sorted(file.glob("dataset*.json")), file, "dataset_flickr8k.json")
    report = report or LoadingReport(file.stem)
    images: dict[str, _Image] = {}
    for index, row in enumerate(_read_json(file, report, "images")["images"]):
        place = f"images[{index}]"
        name, sentences = row.get("filename"), row.get("sentences")
        if not name or not isinstance(sentences, list) or not row.get("split"):
            report.skip(file, None, f"{place}: expected filename, split and sentences, found {sorted(row)}")
            continue
        name = os.path.join(row.get("filepath", ""), name)
        if name in images:
            report.skip(file, None, f"{place}: {name} is there twice; the first is kept")
            continue
        path = images_dir / name
        if not path.is_file() and (images_dir / row["filename"]).is_file():
            path = images_dir / row["filename"]
        split = SPLIT_NAMES.get(row["split"], row["split"])
        image = images[name] = _Image(name, path, split, file, None, f"{place}: ")
        for number, sentence in enumerate(sentences):
            caption = sentence.get("raw") if isinstance(sentence, dict) else None
            _add_caption(image, caption, file, None, report, f"{place}.sentences[{number}]: ")
    return _to_datasets(images.values(), strict, check_images, report)


def load_coco_captions(
    data_dir: str | PathLike,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads COCO's `captions_train2014.json`, `captions_val2014.json` and the like, each as the split it is named after.

    Args:
        data_dir (`str` or `PathLike`):
            The folder with the files, or with a folder `annotations` that has them.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images or with `train2014`, `val2014`, ...; `images` in `data_dir`, or `data_dir`.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip what can not be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    data_dir = _folder(data_dir)
    report = report or LoadingReport(data_dir.name)
    annotations = data_dir / "annotations" if (data_dir / "annotations").is_dir() else data_dir
    files = sorted(annotations.glob("captions_*.json"))
    if not files:
        raise FileNotFoundError(f"there is no captions_*.json in {annotations}")
    root = Path(images_dir) if images_dir else _first_folder(data_dir, ("images",))

    images: dict[Any, _Image] = {}
    for file in files:
        matched = re.fullmatch(r"captions_([a-z]+)(\d*)", file.stem)
        if matched is None:
            raise ValueError(f"{file}: expected a name such as captions_train2014.json, which says the split")
        split, year = SPLIT_NAMES.get(matched[1], matched[1]), matched[2]
        folder = _first_folder(root, (f"{matched[1]}{year}",))
        content = _read_json(file, report, "images", "annotations")
        for index, row in enumerate(content["images"]):
            place = f"images[{index}]"
            if "id" not in row or not row.get("file_name"):
                report.skip(file, None, f"{place}: expected id and file_name, found {sorted(row)}")
            elif row["id"] in images:
                report.skip(file, None, f"{place}: id {row['id']} is there twice; the first is kept")
            else:
                path = folder / row["file_name"]
                images[row["id"]] = _Image(str(row["id"]), path, split, file, None, f"{place}: ")
        ids_seen = set()
        for index, row in enumerate(content["annotations"]):
            place = f"annotations[{index}]: "
            image = images.get(row.get("image_id"))
            if image is None:
                report.skip(file, None, f"{place}there is no image of id {row.get('image_id')!r}")
            elif row.get("id") in ids_seen:
                report.skip(file, None, f"{place}id {row['id']} is there twice; the first is kept")
            else:
                if "id" in row:
                    ids_seen.add(row["id"])
                _add_caption(image, row.get("caption"), file, None, report, place)
    return _to_datasets(images.values(), strict, check_images, report)


def load_caption_table(
    file: str | PathLike,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads your own photos: a CSV, TSV, JSONL or Parquet file with a column of images (`image`, `file_name`, ...), one
    of captions (`caption`, `text`, ..., or `captions` with a list), and maybe a `split`, without which all is training
    data. An image with several captions may have several rows.

    Args:
        file (`str` or `PathLike`):
            The file, or a folder that has one.
        images_dir (`str` or `PathLike`, *optional*):
            The folder that the images' names are relative to. That of the file, or `Images` in it, by default.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip what can not be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    file = Path(file)
    if file.is_dir():
        tables = [path for path in sorted(file.iterdir()) if path.suffix.lower() in TABLE_SUFFIXES]
        file = _only(tables, file, "captions.csv, captions.jsonl or captions.parquet")
    report = report or LoadingReport(file.stem)
    folder = Path(images_dir) if images_dir else _first_folder(file.parent, ("Images", "images"))

    images: dict[Any, _Image] = {}
    columns = None
    for line, row in _read_table(file, report):
        columns = columns or _caption_columns(list(row), file)
        source, captions = row.get(columns[0]), row.get(columns[1])
        split = str(row.get("split") or "train").strip().lower()
        split = SPLIT_NAMES.get(split, split)
        if not source:
            report.skip(file, line, f"{columns[0]!r} is empty, so the caption has no image")
            continue
        if isinstance(source, dict):  # an image within a Parquet file, as `datasets` writes them
            image_id, path = source.get("path") or f"row {line}", source
            if not source.get("bytes"):
                path = folder / image_id
        else:
            image_id = str(source).strip()
            path = folder / image_id
            if images_dir is None and not path.is_file() and (file.parent / image_id).is_file():
                path = file.parent / image_id
        image = images.setdefault(image_id, _Image(image_id, path, split, file, line))
        if image.split != split:
            report.skip(file, line, f"{image_id} is in the split {image.split} before, and in {split} here")
            continue
        for caption in captions if isinstance(captions, list) else [captions]:
            _add_caption(image, caption, file, line, report)
    return _to_datasets(images.values(), strict, check_images, report)


def load_captions(
    name: str,
    data_dir: str | PathLike | None = None,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads images with captions by the name of their format.

    Args:
        name (`str`):
            `"flickr8k"` or `"flickr30k"` ([`load_flickr`]), `"karpathy"` ([`load_karpathy`]), `"coco"`
            ([`load_coco_captions`]), `"table"` ([`load_caption_table`]), or a dataset of the Hub.
        data_dir (`str` or `PathLike`, *optional*):
            The folder, or for `"karpathy"` and `"table"` the file. Not needed for a dataset of the Hub.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images, where it is not the usual one.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip what can not be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    loaders = {
        "flickr8k": load_flickr,
        "flickr30k": load_flickr,
        "karpathy": load_karpathy,
        "coco": load_coco_captions,
        "table": load_caption_table,
    }
    if name not in loaders:
        datasets = load_dataset(name, data_dir=None if data_dir is None else str(data_dir))
        return DatasetDict({split: to_caption_schema(dataset) for split, dataset in datasets.items()})
    if data_dir is None:
        raise ValueError(f"{name!r} needs a `data_dir`: where are its files?")
    if name == "karpathy" and images_dir is None:
        images_dir = data_dir if Path(data_dir).is_dir() else Path(data_dir).parent
        images_dir = _first_folder(images_dir, ("Images", "images"))
    return loaders[name](data_dir, images_dir, strict=strict, check_images=check_images, report=report)


def to_caption_schema(dataset: Dataset) -> Dataset:
    r"""
    Gives a dataset with images and captions, whatever these columns are called, the columns `image_id`, `image` and
    `captions`. No image is read.

    Args:
        dataset ([`~datasets.Dataset`]):
            For example one of the Hub. Captions are strings, lists of strings, or columns `caption_0`, `caption_1`...
    """
    image_column, *caption_columns = _caption_columns(dataset.column_names, "the dataset")
    rows = dataset.select_columns(caption_columns)[:]
    captions = [[c for value in values for c in as_list(value)] for values in zip(*rows.values(), strict=True)]
    ids = range(len(dataset))
    if "image_id" in dataset.column_names:
        ids = dataset.select_columns("image_id")[:]["image_id"]
    images = dataset.select_columns(image_column)
    if image_column != "image":
        images = images.rename_column(image_column, "image")
    if not isinstance(images.features["image"], Image):
        images = images.cast_column("image", Image())
    images = images.add_column("image_id", [str(value) for value in ids]).add_column("captions", captions)
    return images.select_columns(list(CAPTION_FEATURES))


def as_list(captions: str | list[str] | None) -> list[str]:
    """The captions of a row, which may have one, several, or none."""
    if captions is None:
        return []
    return [captions] if isinstance(captions, str) else list(captions)


def one_caption_a_row(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_words: int | None = None) -> Dataset:
    r"""
    Repeats an image for each of its captions, and adds a column `length`, the caption's number of tokens. That is what
    batches of one length are drawn from, see [`LengthBatchSampler`].

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with `captions`. No image is read.
        tokenizer ([`PreTrainedTokenizerBase`]):
            Counts the tokens, with its own limit and with the end token.
        max_words (`int`, *optional*):
            Captions of more words are left out.
    """
    captions_of = dataset.select_columns("captions")[:]["captions"]
    rows = [row for row, captions in enumerate(captions_of) for _ in captions]
    captions = [caption for captions in captions_of for caption in captions]
    lengths = [len(ids) for ids in tokenizer(captions, truncation=True)["input_ids"]] if captions else []
    kept = [i for i, length in enumerate(lengths) if max_words is None or length <= max_words + 1]  # and the end token
    if not kept:
        raise ValueError(f"no caption of {len(dataset)} rows has {max_words} words or fewer")
    expanded = dataset.remove_columns("captions").select([rows[i] for i in kept])
    expanded = expanded.add_column("captions", [[captions[i]] for i in kept])
    return expanded.add_column("length", [lengths[i] for i in kept])


def _add_caption(
    image: _Image, caption: Any, file: Path, line: int | None, report: LoadingReport, entry: str = ""
) -> None:
    if not isinstance(caption, str) or not caption.strip():
        report.skip(file, line, f"{entry}{image.image_id} has an empty caption")
    else:
        image.captions.append(" ".join(caption.split()))


def _to_datasets(images: Iterable[_Image], strict: bool, check_images: bool, report: LoadingReport) -> DatasetDict:
    splits: dict[str, list[_Image]] = {}
    for image in tqdm(images, desc="Checking images", unit="image", disable=not check_images):
        if not image.captions:
            report.skip(image.file, image.line, f"{image.entry}{image.image_id} has no captions")
        elif isinstance(image.path, Path) and not image.path.is_file():
            report.skip(image.file, image.line, f"{image.entry}there is no image {image.path}")
        elif check_images and (reason := _unreadable(image.path)):
            report.skip(image.file, image.line, f"{image.entry}{reason}")
        else:
            splits.setdefault(image.split, []).append(image)
    for split, rows in splits.items():
        report.count(f"{split} images", len(rows))
        report.count(f"{split} captions", sum(len(image.captions) for image in rows))
    report.finish(strict)
    if not splits:
        raise ValueError(f"{report.name}: no image with a caption is left.\n{report}"[:4000])
    return DatasetDict({split: _to_dataset(rows) for split, rows in splits.items()})


def _to_dataset(rows: list[_Image]) -> Dataset:
    paths = [str(image.path.absolute()) if isinstance(image.path, Path) else image.path for image in rows]
    columns = {
        "image_id": [image.image_id for image in rows],
        "image": paths,
        "captions": [image.captions for image in rows],
    }
    return Dataset.from_dict(columns, features=CAPTION_FEATURES)


def _unreadable(image: Path | dict[str, Any]) -> str | None:
    try:
        open_image(image if isinstance(image, Path) else image["bytes"])
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _read_json(file: Path, report: LoadingReport, *keys: str) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads(read_text(file, report))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    for key in keys:
        rows = content.get(key) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{file}: expected an object with a list {key!r} of objects")
    return content


def _read_table(file: Path, report: LoadingReport) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line or row number, counted from 1, and the row."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        batches = pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    elif suffix == ".jsonl":
        for line, text in enumerate(read_text(file, report).split("\n"), start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                report.skip(file, line, f"not JSON: {error.msg}")
                continue
            if isinstance(row, dict):
                yield line, row
            else:
                report.skip(file, line, f"expected an object, found {text[:80]!r}")
    elif suffix in TABLE_SUFFIXES:
        yield from _read_csv(file, report)
    else:
        raise ValueError(f"{file}: expected one of {', '.join(TABLE_SUFFIXES)}")


def _read_csv(file: Path, report: LoadingReport) -> Iterator[tuple[int, dict[str, Any]]]:
    text = read_text(file, report)
    header = text.partition("\n")[0]
    delimiter = next((mark for mark in "\t|;" if mark in header), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    names = [name.strip() for name in next(reader, [])]
    line = reader.line_num + 1
    for values in reader:
        if len(values) > len(names) and names[-1] in CAPTION_COLUMNS:
            caption = f"{delimiter} ".join(values[len(names) - 1 :])
            report.repair(file, line, f"the caption has {delimiter!r} and no quotes around it; read as {caption!r}")
            values = [*values[: len(names) - 1], caption]
        if values and len(values) != len(names):
            report.skip(file, line, f"expected the {len(names)} columns {names}, found {len(values)}")
        elif values:
            yield line, dict(zip(names, values, strict=True))
        line = reader.line_num + 1  # of the next row: one within quotes may span lines


def _caption_columns(columns: list[str], where: str | PathLike) -> list[str]:
    """The column of images, then those of captions."""
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    captions = [next((name for name in CAPTION_COLUMNS if name in columns), None)]
    if captions == [None]:
        captions = sorted(name for name in columns if re.fullmatch(r"caption_\d+", name))
    if image is None or not captions:
        raise ValueError(
            f"{where}: expected a column of images ({', '.join(IMAGE_COLUMNS)}) and one of captions "
            f"({', '.join(CAPTION_COLUMNS)}), found {columns}"
        )
    return [image, *captions]


def _folder(path: str | PathLike) -> Path:
    if not Path(path).is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    return Path(path)


def _first_folder(root: Path, names: tuple[str, ...]) -> Path:
    return next((root / name for name in names if (root / name).is_dir()), root)


def _only(files: list[Path], folder: Path, expected: str) -> Path:
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise FileNotFoundError(f"{folder}: expected one file such as {expected}, found {found}")
    return files[0]
