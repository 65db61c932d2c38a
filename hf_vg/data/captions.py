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

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow.compute as compute
from datasets import Dataset, DatasetDict, Features, Image, List, Value, load_dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .entities import load_flickr30k_entities
from .files import IMAGE_SUFFIXES, read_text
from .formats import check_dataset_name, detect_format
from .images import image_problem
from .loading_report import LoadingReport
from .records import parse_json
from .streaming import load_webdataset
from .tables import TABLE_SUFFIXES, as_list, caption_columns, find_column, read_table, split_name


CAPTION_FEATURES = Features(image_id=Value("string"), image=Image(), captions=List(Value("string")))

# Lower case: folders are compared without regard to theirs.
IMAGE_FOLDERS = ("images", "flicker8k_dataset", "flickr8k_dataset", "flickr30k-images", "flickr30k_images", "photos")
FLICKR_SPLIT_FILES = {
    "train": ("flickr_8k.trainimages.txt", "train.txt"),
    "validation": ("flickr_8k.devimages.txt", "val.txt", "dev.txt"),
    "test": ("flickr_8k.testimages.txt", "test.txt"),
}


@dataclass(slots=True)
class _Image:
    """An image that a file mentions, and where it does."""

    image_id: str
    root: str  # the folder that it must lie in
    path: str | dict[str, Any]
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
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    data_dir = _folder(data_dir)
    report = report or LoadingReport(data_dir.name)
    names = {path.name.lower(): path for path in sorted(data_dir.iterdir()) if path.is_file()}
    token_files = [path for name, path in names.items() if ".token" in name and "lemma" not in name]
    token_file = _only(token_files, data_dir, "Flickr8k.token.txt or results_20130124.token")
    folder = str(_images_folder(data_dir, images_dir))

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
            image = images.setdefault(
                name, _Image(name, folder, os.path.join(folder, name), "train", token_file, line)
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
    images_dir: str | PathLike | None = None,
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
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images; for COCO, the one with `train2014` and `val2014`. A folder `images` beside the
            file by default, or else the file's own.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    file = Path(file)
    if file.is_dir():
        file = _only(sorted(file.glob("dataset*.json")), file, "dataset_flickr8k.json")
    report = report or LoadingReport(file.stem)
    folder = str(_images_folder(file.parent, images_dir))
    images: dict[str, _Image] = {}
    for index, row in enumerate(_read_json(file, report, "images")["images"]):
        place = f"images[{index}]"
        texts = [row.get("filename"), row.get("split"), row.get("filepath", "")]
        sentences = row.get("sentences")
        if not all(isinstance(text, str) for text in texts) or not texts[0] or not isinstance(sentences, list):
            report.skip(file, None, f"{place}: expected the texts filename and split and a list sentences")
            continue
        name = os.path.join(texts[2], texts[0])
        if name in images:
            report.skip(file, None, f"{place}: {name} is there twice; the first is kept")
            continue
        path = os.path.join(folder, name)
        if not os.path.isfile(path) and os.path.isfile(os.path.join(folder, texts[0])):
            path = os.path.join(folder, texts[0])
        image = images[name] = _Image(name, folder, path, split_name(texts[1]), file, None, f"{place}: ")
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
            The folder with the files, or with a folder `annotations` that has them; or one file. A file whose name
            does not tell its split is training data.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images or with `train2014`, `val2014`, ...; `images` in `data_dir`, or `data_dir`.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    data_dir = Path(data_dir)
    report = report or LoadingReport(data_dir.name)
    if data_dir.is_file():
        files, data_dir = [data_dir], data_dir.parent
    else:
        annotations = _first_folder(_folder(data_dir), ("annotations",))
        files = sorted(path for path in annotations.iterdir() if path.suffix.lower() == ".json")
        files = [path for path in files if path.name.lower().startswith("captions_")] or files
        if not files:
            raise FileNotFoundError(f"there is no captions_*.json in {annotations}")
    root = _images_folder(data_dir, images_dir)

    images: dict[Any, _Image] = {}
    for file in files:
        matched = re.fullmatch(r"captions_([a-z]+)(\d*)", file.stem.lower())
        split = split_name(matched[1]) if matched else "train"
        folder = str(_first_folder(root, (matched[1] + matched[2],)) if matched else root)
        content = _read_json(file, report, "images", "annotations")
        for index, row in enumerate(content["images"]):
            place = f"images[{index}]"
            name, number = row.get("file_name"), row.get("id")
            if not isinstance(name, str) or not name or not isinstance(number, (int, str)):
                report.skip(file, None, f"{place}: expected a number id and a text file_name")
            elif number in images:
                report.skip(file, None, f"{place}: id {number} is there twice; the first is kept")
            else:
                path = os.path.join(folder, name)
                images[number] = _Image(str(number), folder, path, split, file, None, f"{place}: ")
        ids_seen = set()
        for index, row in enumerate(content["annotations"]):
            place = f"annotations[{index}]: "
            image_id, number = row.get("image_id"), row.get("id")
            image = images.get(image_id) if isinstance(image_id, (int, str)) else None
            if image is None:
                report.skip(file, None, f"{place}there is no image of id {image_id!r}")
            elif not isinstance(number, (int, str, type(None))):
                report.skip(file, None, f"{place}expected a number id, found {number!r}")
            elif number in ids_seen:
                report.skip(file, None, f"{place}id {number} is there twice; the first is kept")
            else:
                if number is not None:
                    ids_seen.add(number)
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
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    file = Path(file)
    if file.is_dir():
        tables = [path for path in sorted(file.iterdir()) if path.suffix.lower() in TABLE_SUFFIXES]
        named = [path for path in tables if path.stem.lower() == "captions"]
        file = _only(named or tables, file, "captions.csv, captions.jsonl or captions.parquet")
    elif not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    report = report or LoadingReport(file.stem)
    beside = os.path.abspath(file.parent)
    folder = str(_images_folder(file.parent, images_dir))

    images: dict[str, _Image] = {}
    columns, split_column = [], None
    for line, row in read_table(file, report):
        if not columns:
            columns, split_column = caption_columns(list(row), file), find_column(list(row), ("split",))
        source, split = row.get(columns[0]), split_name(row.get(split_column or "split"))
        content = source.get("bytes") if isinstance(source, dict) else None  # as `datasets` writes them to Parquet
        name = source.get("path") if isinstance(source, dict) else source
        name = f"row {line}" if content and not name else name
        if not isinstance(name, (str, int)) or not str(name).strip():
            report.skip(file, line, f"{columns[0]!r} is empty or no text, so the caption has no image")
            continue
        image_id = str(name).strip()
        image = images.get(image_id)
        if image is None:
            root, path = folder, {"bytes": content, "path": image_id}
            if not isinstance(content, bytes):
                path = os.path.join(folder, image_id)
                if images_dir is None and not os.path.isfile(path):
                    root, path = beside, os.path.join(beside, image_id)
            image = images[image_id] = _Image(image_id, root, path, split, file, line)
        if image.split != split:
            report.skip(file, line, f"{image_id} is in the split {image.split} before, and in {split} here")
            continue
        for caption in [caption for column in columns[1:] for caption in as_list(row.get(column)) or [None]]:
            _add_caption(image, caption, file, line, report)
    _count_others(folder, images.values(), report)
    return _to_datasets(images.values(), strict, check_images, report)


def load_captions(
    name: str | None = None,
    data_dir: str | PathLike | None = None,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Loads images with captions by the name of their format, or in the format that [`detect_format`] finds.

    Args:
        name (`str`, *optional*):
            `"flickr8k"` or `"flickr30k"` ([`load_flickr`]), `"karpathy"` ([`load_karpathy`]), `"coco"`
            ([`load_coco_captions`]), `"table"` ([`load_caption_table`]), `"flickr30k_entities"`
            ([`load_flickr30k_entities`]), `"webdataset"` ([`load_webdataset`]), or a dataset of the Hub, `user/name`.
            By default it is detected in `data_dir`.
        data_dir (`str` or `PathLike`, *optional*):
            The folder or the file. Not needed for a dataset of the Hub.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images, if it is not the usual one. Paths that leave it are refused.
        strict (`bool`, *optional*, defaults to `False`):
            Whether a row that must be skipped or repaired is an error.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now, and to skip those that cannot be.
        report ([`LoadingReport`], *optional*):
            Is told the counts, and every row that is skipped or repaired.
    """
    if name is None:
        if data_dir is None:
            raise ValueError("give a `name`, or a `data_dir` to look into")
        name, data_dir, _ = detect_format(data_dir)
    loaders: dict[str, Callable[..., DatasetDict]] = {
        "flickr8k": load_flickr,
        "flickr30k": load_flickr,
        "karpathy": load_karpathy,
        "coco": load_coco_captions,
        "table": load_caption_table,
        "webdataset": load_webdataset,
        "flickr30k_entities": _load_entities,
    }
    check_dataset_name(name)
    if name not in loaders:
        datasets = load_dataset(name, data_dir=None if data_dir is None else str(data_dir))
        return DatasetDict({split: to_caption_schema(dataset) for split, dataset in datasets.items()})
    if data_dir is None:
        raise ValueError(f"{name!r} needs a `data_dir`: where are its files?")
    return loaders[name](data_dir, images_dir, strict=strict, check_images=check_images, report=report)


def _load_entities(
    data_dir: str | PathLike,
    images_dir: str | PathLike | None,
    strict: bool,
    check_images: bool,
    report: LoadingReport,
) -> DatasetDict:
    folder = Path(data_dir)
    data = load_flickr30k_entities(folder, _images_folder(folder, images_dir), strict=strict, report=report)
    return DatasetDict({split: rows.select_columns(list(CAPTION_FEATURES)) for split, rows in data.items()})


def to_caption_schema(dataset: Dataset) -> Dataset:
    r"""
    Gives a dataset with images and captions, whatever these columns are called, the columns `image_id`, `image` and
    `captions`. No image is read.

    Args:
        dataset ([`~datasets.Dataset`]):
            For example one of the Hub. Captions are strings, lists of strings, or columns `caption_0`, `caption_1`...
    """
    image_column, *text_columns = caption_columns(dataset.column_names, "the dataset")
    rows = dataset.select_columns(text_columns)[:]
    captions = [[c for value in values for c in as_list(value)] for values in zip(*rows.values(), strict=True)]
    ids = range(len(dataset))
    if "image_id" in dataset.column_names:
        ids = dataset.select_columns("image_id")[:]["image_id"]
    images = dataset.select_columns(image_column)
    if image_column != "image":
        images = images.rename_column(image_column, "image")
    if not isinstance(images.features["image"], Image):
        images = images.cast_column("image", Image())
    _refuse_addresses(images)
    images = images.add_column("image_id", [str(value) for value in ids]).add_column("captions", captions)
    return images.select_columns(list(CAPTION_FEATURES))


def _refuse_addresses(dataset: Dataset) -> None:
    """`datasets` would ask the network for an image whose path is an address, as soon as somebody looks at it."""
    column = dataset.data.column("image")
    is_address = compute.match_substring_regex(compute.struct_field(column, "path"), r"^\w+://")
    is_address = compute.and_(is_address, compute.is_null(compute.struct_field(column, "bytes")))
    if addresses := compute.sum(is_address).as_py():
        row = compute.index(is_address, True).as_py()
        raise ValueError(
            f"{addresses:,} images are addresses, and none is fetched: the first, of row {row}, is "
            f"{column[row]['path'].as_py()!r:.200}. Download the images, and name their files."
        )


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
        found = "an empty caption" if caption is None or isinstance(caption, str) else f"no text: {caption!r:.80}"
        report.skip(file, line, f"{entry}{image.image_id} has {found}")
    elif not _is_unicode(caption):
        report.skip(
            file, line, f"{entry}the caption of {image.image_id} has half of a surrogate pair: {caption!a:.80}"
        )
    else:
        image.captions.append(" ".join(caption.split()))


def _to_datasets(images: Iterable[_Image], strict: bool, check_images: bool, report: LoadingReport) -> DatasetDict:
    splits: dict[str, list[_Image]] = {}
    for image in tqdm(images, desc="Checking images", unit="image", delay=2):
        if reason := _problem(image, check_images):
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


def _problem(image: _Image, decode: bool) -> str | None:
    if not image.captions:
        return f"{image.image_id} has no captions"
    if not _is_unicode(image.image_id):
        return f"the name {image.image_id!a:.80} has half of a surrogate pair"
    if isinstance(image.path, str):
        path = os.path.normpath(image.path)
        if not path.startswith(os.path.join(image.root, "")):
            return f"{image.image_id} lies outside of {image.root}: name a folder that holds it as `images_dir`"
        if not os.path.exists(path):
            return f"there is no image {path}"
    return image_problem(image.path, decode)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _to_dataset(rows: list[_Image]) -> Dataset:
    columns = {
        "image_id": [image.image_id for image in rows],
        "image": [image.path for image in rows],
        "captions": [image.captions for image in rows],
    }
    return Dataset.from_dict(columns, features=CAPTION_FEATURES)


def _count_others(folder: str, images: Iterable[_Image], report: LoadingReport) -> None:
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
    """The first of these folders, in upper or lower case, that is in `root`; or `root`."""
    folders = {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir()} if root.is_dir() else {}
    return next((folders[name] for name in names if name in folders), root)


def _images_folder(data_dir: Path, images_dir: str | PathLike | None) -> Path:
    """The folder with the images: the one that is named, or the usual one in the folder of the data or beside it."""
    if images_dir is not None:
        return Path(os.path.abspath(_folder(images_dir)))
    data_dir = Path(os.path.abspath(_folder(data_dir)))
    folder = _first_folder(data_dir, IMAGE_FOLDERS)
    return _first_folder(folder, IMAGE_FOLDERS)  # some archives have a folder in a folder of the same name


def _only(files: list[Path], folder: Path, expected: str) -> Path:
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise FileNotFoundError(f"{folder}: expected one file such as {expected}, found {found}")
    return files[0]
