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
"""Loads images with captions from many formats into one schema: `image_id`, `image` and `captions`."""

import os
from collections.abc import Callable, Iterable
from itertools import count
from os import PathLike
from pathlib import Path

import pyarrow
import pyarrow.compute as compute
from datasets import Dataset, DatasetDict, Features, Image, List, Value, concatenate_datasets, load_dataset
from datasets.config import HF_DATASETS_CACHE
from huggingface_hub.constants import HF_HUB_CACHE
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .caption_files import (
    CaptionedImage,
    EmbeddedImage,
    images_folder,
    is_unicode,
    read_caption_table,
    read_coco,
    read_flickr,
    read_karpathy,
)
from .entities import load_flickr30k_entities
from .files import outside
from .formats import check_card, check_dataset_name, detect_format
from .images import image_problem
from .loading_report import LoadingReport
from .streaming import load_webdataset
from .tables import as_list, caption_columns


CAPTION_FEATURES = Features(image_id=Value("string"), image=Image(), captions=List(Value("string")))


def load_captions(
    name: str | None = None,
    data_dir: str | PathLike | None = None,
    images_dir: str | PathLike | None = None,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
    phrases: bool = False,
) -> DatasetDict:
    r"""
    Loads images with captions. You can name the format, or let [`detect_format`] find it. Images are opened when you
    read a row, not before.

    Args:
        name (`str`, *optional*):
            A format, or a dataset on the Hub (`user/name`). By default the format is detected in `data_dir`.

            - `"flickr8k"` or `"flickr30k"`: their published files, `*.token.txt` or `*.token` with lines
              `IMAGE#NUMBER<tab>CAPTION`, and one list of images per split.
            - `"karpathy"`: Karpathy's `dataset_flickr8k.json`, `dataset_flickr30k.json` or `dataset_coco.json`.
            - `"coco"`: `captions_train2014.json`, `captions_val2014.json` and similar files.
            - `"table"`: a CSV, TSV, JSONL or Parquet file with an image column, a caption column, and optionally a
              `split` column.
            - `"flickr30k_entities"`: see [`load_flickr30k_entities`].
            - `"webdataset"`: `.tar` files, which are copied into the cache of `datasets`. Use [`stream_captions`] to
              read them without a copy.
        data_dir (`str` or `PathLike`, *optional*):
            The folder or file with the captions. Not needed for a dataset on the Hub.
        images_dir (`str` or `PathLike`, *optional*):
            The folder with the images, if it is not the usual one. Images outside of it are skipped.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error if a row must be skipped or repaired.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now and skip the ones that cannot be decoded.
        report ([`LoadingReport`], *optional*):
            Collects the counts, and every row that is skipped or repaired.
        phrases (`bool`, *optional*, defaults to `False`):
            Whether to keep the columns `phrases` and `boxes` of `"flickr30k_entities"`.

    Returns:
        [`~datasets.DatasetDict`]: Splits with the columns `image_id`, `image` and `captions`.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import load_captions

    >>> folder = tempfile.TemporaryDirectory()
    >>> Image.new("RGB", (64, 64)).save(Path(folder.name, "dog.jpg"))
    >>> table = Path(folder.name, "captions.csv")
    >>> _ = table.write_text("image,caption\ndog.jpg,a dog runs\ndog.jpg,a brown dog\n")
    >>> load_captions(data_dir=folder.name)["train"][0]["captions"]
    ['a dog runs', 'a brown dog']
    ```
    """
    if name is None:
        if data_dir is None:
            raise ValueError("pass a `name` or a `data_dir`")
        name, data_dir, _ = detect_format(data_dir)
    check_dataset_name(name)
    readers: dict[str, Callable[..., Iterable[CaptionedImage]]] = {
        "flickr8k": read_flickr,
        "flickr30k": read_flickr,
        "karpathy": read_karpathy,
        "coco": read_coco,
        "table": read_caption_table,
    }
    is_format = name in (*readers, "flickr30k_entities", "webdataset")
    if is_format and data_dir is None:
        raise ValueError(f"{name!r} needs a `data_dir`: the folder with its files")
    folder = Path(data_dir or name)
    report = report or LoadingReport(folder.name if is_format else name)
    if name == "flickr30k_entities":
        splits = load_flickr30k_entities(folder, images_folder(folder, images_dir), strict, check_images, report)
        columns = [*CAPTION_FEATURES, *(("phrases", "boxes") if phrases else ())]
        return DatasetDict({split: rows.select_columns(columns) for split, rows in splits.items()})
    if name == "webdataset":
        data = load_webdataset(folder, check_images, report)
    elif is_format:
        data = _to_datasets(readers[name](folder, images_dir, report), check_images, report)
    else:
        data = _load_dataset(name, data_dir, check_images, report)
    for split, rows in data.items():
        report.count(f"{split} images", len(rows))
        report.count(f"{split} captions", sum(map(len, rows["captions"])))
    if not data or not all(map(len, data.values())):
        first = "".join(f"\n  {problem}" for problem in report.problems[:5])
        hint = (
            "\nIf the images are in another folder, pass it as `images_dir`." if first and images_dir is None else ""
        )
        raise ValueError(f"{folder}: no image with a caption is left. {report.summary()}.{first}{hint}")
    report.finish(strict)
    return data


def _load_dataset(
    name: str, data_dir: str | PathLike | None, check_images: bool, report: LoadingReport
) -> DatasetDict:
    """Loads a dataset from the Hub or a local folder. Rows without captions or a usable image are skipped."""
    check_card(name)
    try:
        datasets = load_dataset(name, data_dir=None if data_dir is None else str(data_dir))
    except Exception as error:  # bad files raise errors of many types
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(f"{name} cannot be loaded as a dataset: {reason:.300}") from error
    roots = [name] if os.path.isdir(name) else [HF_HUB_CACHE, HF_DATASETS_CACHE]
    data = DatasetDict()
    for split, dataset in datasets.items():
        dataset, kept = to_caption_schema(dataset), []
        rows = dataset.cast_column("image", Image(decode=False))
        for number, row in enumerate(tqdm(rows, desc="Checking images", unit="image", delay=2)):
            image, reason = row["image"], None
            if not row["captions"]:
                reason = "the row has no captions"
            elif image is None:
                reason = "the row has no image"
            elif not image["bytes"] and (not image["path"] or all(outside(image["path"], root) for root in roots)):
                reason = f"the image {image['path']!r:.200} is not one of the dataset's files"
            reason = reason or image_problem(image, check_images)
            if reason is None:
                kept.append(number)
            else:
                report.skip(f"{name}, {split}", number, reason)
        data[split] = dataset if len(kept) == len(dataset) else dataset.select(kept)
    return data


def to_caption_schema(dataset: Dataset) -> Dataset:
    r"""
    Converts a dataset with images and captions to the columns `image_id`, `image` and `captions`. The columns are
    found by their usual names. No image is read.

    Args:
        dataset ([`~datasets.Dataset`]):
            For example a dataset from the Hub. Captions are strings, lists of strings, or columns `caption_0`,
            `caption_1`, ...

    Returns:
        [`~datasets.Dataset`]: The same rows with the columns `image_id`, `image` and `captions`.
    """
    image_column, *text_columns = caption_columns(dataset.column_names, "the dataset")
    rows = dataset.select_columns(text_columns)[:]
    captions = [
        [text for value in values for text in as_list(value) if isinstance(text, str) and text.strip()]
        for values in zip(*rows.values(), strict=True)
    ]
    ids = range(len(dataset))
    if "image_id" in dataset.column_names:
        ids = dataset.select_columns("image_id")[:]["image_id"]
    images = dataset.select_columns(image_column)
    if image_column != "image":
        images = images.rename_column(image_column, "image")
    if not isinstance(images.features["image"], Image):
        try:
            images = images.cast_column("image", Image())
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            kind = images.features["image"]
            raise ValueError(f"the column {image_column!r} does not contain images, but {kind!r:.200}") from error
    _refuse_addresses(images)
    images = images.add_column("image_id", [str(value) for value in ids])
    images = images.add_column("captions", captions, feature=CAPTION_FEATURES["captions"])
    return images.select_columns(list(CAPTION_FEATURES))


def _refuse_addresses(dataset: Dataset) -> None:
    """Raises an error if images are URLs. Otherwise `datasets` would download them when a row is read."""
    column = dataset.data.column("image")
    is_address = compute.match_substring_regex(compute.struct_field(column, "path"), r"^\w+://")
    is_address = compute.and_(is_address, compute.is_null(compute.struct_field(column, "bytes")))
    if addresses := compute.sum(is_address).as_py():
        row = compute.index(is_address, True).as_py()
        raise ValueError(
            f"{addresses:,} images are URLs, which are not downloaded. The first is in row {row}: "
            f"{column[row]['path'].as_py()!r:.200}. Download the images and use the paths of the files."
        )


def one_caption_a_row(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_words: int | None = None) -> Dataset:
    r"""
    Makes one row per caption and adds a column `length`, the number of tokens. [`LengthBatchSampler`] needs it to draw
    batches of captions of similar length.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with `captions`. No image is read.
        tokenizer ([`PreTrainedTokenizerBase`]):
            Counts the tokens, including the end token. Captions are cut at its `model_max_length`.
        max_words (`int`, *optional*):
            Captions with more words are left out.

    Returns:
        [`~datasets.Dataset`]: Rows whose `captions` has one caption, with the column `length`.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> from hf_vg.data import one_caption_a_row, train_word_tokenizer

    >>> rows = Dataset.from_dict({"image_id": ["1.jpg"], "captions": [["a dog", "a dog runs"]]})
    >>> one_caption_a_row(rows, train_word_tokenizer(["a dog runs"])).to_list()
    [{'image_id': '1.jpg', 'captions': ['a dog'], 'length': 3},
     {'image_id': '1.jpg', 'captions': ['a dog runs'], 'length': 4}]
    ```
    """
    captions_of = dataset.select_columns("captions")[:]["captions"]
    rows = [row for row, captions in enumerate(captions_of) for _ in captions]
    captions = [caption for captions in captions_of for caption in captions]
    lengths = [len(ids) for ids in tokenizer(captions, truncation=True)["input_ids"]] if captions else []
    kept = [i for i, length in enumerate(lengths) if max_words is None or length <= max_words + 1]  # + 1: end token
    if not kept:
        raise ValueError(f"no caption of {len(dataset)} rows has {max_words} words or fewer")
    expanded = dataset.remove_columns("captions").select([rows[i] for i in kept])
    expanded = expanded.add_column("captions", [[captions[i]] for i in kept])
    return expanded.add_column("length", [lengths[i] for i in kept])


def _to_datasets(images: Iterable[CaptionedImage], check_images: bool, report: LoadingReport) -> DatasetDict:
    splits: dict[str, list[CaptionedImage]] = {}
    for image in tqdm(images, desc="Checking images", unit="image", delay=2):
        if reason := _problem(image, check_images):
            report.skip(image.file, image.line, f"{image.entry}{reason}")
        else:
            splits.setdefault(image.split, []).append(image)
    return DatasetDict({split: _to_dataset(rows) for split, rows in splits.items()})


def _to_dataset(rows: list[CaptionedImage]) -> Dataset:
    files = [image for image in rows if isinstance(image.path, str)]
    columns = {
        "image_id": [image.image_id for image in files],
        "image": [image.path for image in files],
        "captions": [image.captions for image in files],
    }
    data = Dataset.from_dict(columns, features=CAPTION_FEATURES)
    of_row = {image.path.row: image for image in rows if isinstance(image.path, EmbeddedImage)}
    if not of_row:
        return data
    embedded = next(image.path.images for image in rows if isinstance(image.path, EmbeddedImage))
    # Columns are added to all rows of the Parquet file: adding them to a selection would copy its images.
    ids = [of_row[row].image_id if row in of_row else "" for row in range(len(embedded))]
    captions = [of_row[row].captions if row in of_row else [] for row in range(len(embedded))]
    within = embedded.cast_column("image", Image()).add_column("image_id", ids)
    within = within.add_column("captions", captions, feature=CAPTION_FEATURES["captions"])
    places = count(len(embedded))
    order = [image.path.row if isinstance(image.path, EmbeddedImage) else next(places) for image in rows]
    return concatenate_datasets([within.select_columns(list(CAPTION_FEATURES)), data]).select(order)


def _problem(image: CaptionedImage, decode: bool) -> str | None:
    if not image.captions:
        return f"{image.image_id} has no captions"
    if not is_unicode(image.image_id):
        return f"the name {image.image_id!a:.80} has half of a surrogate pair"
    if isinstance(image.path, str):
        path = os.path.normpath(image.path)
        if not path.startswith(os.path.join(image.root, "")):
            return f"{image.image_id} is outside of {image.root}: pass the folder that contains it as `images_dir`"
        if not os.path.exists(image.path):
            return f"there is no image {path}"
        if real := outside(image.path, image.root):
            return (
                f"{image.image_id} is a link to {real}, outside of {image.root}: pass the folder that contains it as "
                "`images_dir`"
            )
        return image_problem(image.path, decode)
    return image_problem({**image.path.images[image.path.row]["image"], "path": image.image_id}, decode)
