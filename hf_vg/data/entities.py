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
"""Flickr30k Entities, and the common schema of captions with phrases that are grounded in boxes."""

import math
import xml.etree.ElementTree as ElementTree
from os import PathLike
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, Features, Image, List, Value
from tqdm.auto import tqdm

from ..models.grounded_visual_bert.inputs_grounded_visual_bert import parse_entities
from .files import read_text
from .images import image_problem
from .loading_report import LoadingReport
from .records import describe, find_image


_INT, _STRING = Value("int32"), Value("string")
GROUNDED_FEATURES = Features(
    {
        "image_id": _STRING,
        "image": Image(),
        "boxes": List(List(Value("float32"), length=4)),
        "captions": List(_STRING),
        "phrases": List({"caption": _INT, "start": _INT, "end": _INT, "text": _STRING, "boxes": List(_INT)}),
    }
)
SPLITS = {"train": "train", "val": "validation", "test": "test"}


def load_flickr30k_entities(
    folder: str | PathLike,
    images: str | PathLike,
    strict: bool = False,
    check_images: bool = False,
    report: LoadingReport | None = None,
) -> DatasetDict:
    r"""
    Reads the published files of Flickr30k Entities: `Annotations/ID.xml`, `Sentences/ID.txt`, and lists of ids in
    `train.txt`, `val.txt` and `test.txt`. Images with unusable files are skipped and reported.

    Args:
        folder (`str` or `PathLike`):
            The folder with these files.
        images (`str` or `PathLike`):
            The folder with the images. The annotations give their file names.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error if an image must be skipped.
        check_images (`bool`, *optional*, defaults to `False`):
            Whether to decode every image now and skip the ones that cannot be decoded.
        report ([`LoadingReport`], *optional*):
            Collects the skipped images and the reasons.

    Returns:
        [`~datasets.DatasetDict`]: One split per list, with these columns:

        - **image_id** and **image**.
        - **boxes** -- (left, top, right, bottom) in pixels.
        - **captions** -- without markup.
        - **phrases** -- the phrases of all captions. Each has the index of its caption (`caption`), its span in
          characters (`start`, `end`), its `text`, and the indices of its entity's `boxes`. A box may belong to several
          entities, and an entity may have no box.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import load_flickr30k_entities

    >>> tmp = tempfile.TemporaryDirectory()
    >>> folder = Path(tmp.name)
    >>> for name in ("Annotations", "Sentences"):
    ...     (folder / name).mkdir()
    >>> Image.new("RGB", (64, 64)).save(folder / "1.jpg")
    >>> box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
    >>> xml = f"<annotation><filename>1.jpg</filename><object><name>9</name>{box}</object></annotation>"
    >>> _ = (folder / "Annotations/1.xml").write_text(xml)
    >>> _ = (folder / "Sentences/1.txt").write_text("[/EN#9/animals A dog] runs .")
    >>> _ = (folder / "train.txt").write_text("1")
    >>> load_flickr30k_entities(folder, folder)["train"]["phrases"][0]
    [{'caption': 0, 'start': 0, 'end': 5, 'text': 'A dog', 'boxes': [0]}]
    ```
    """
    folder, images = Path(folder), Path(images)
    lists = {split: folder / f"{name}.txt" for name, split in SPLITS.items() if (folder / f"{name}.txt").is_file()}
    if not lists:
        raise FileNotFoundError(f"There is no train.txt, val.txt or test.txt in {str(folder)!r}.")
    report = report or LoadingReport("Flickr30k Entities")
    splits = {}
    for split, file in lists.items():
        rows = []
        lines = read_text(file, report).splitlines()
        for line, identifier in enumerate(tqdm(lines, desc=f"Reading {split} annotations", unit="image"), 1):
            if not identifier.strip():
                continue
            try:
                rows.append(_read_image(folder, images, identifier.strip(), check_images, report))
            except (OSError, ValueError) as error:
                report.skip(file, line, str(error))
        report.count(f"{split} images", len(rows))
        report.count("boxes", sum(len(row["boxes"]) for row in rows))
        report.count("grounded phrases", sum(bool(phrase["boxes"]) for row in rows for phrase in row["phrases"]))
        if not rows:
            raise ValueError(f"None of the {len(lines)} images in {file} can be used:\n{report}")
        splits[split] = Dataset.from_list(rows, features=GROUNDED_FEATURES)
    report.finish(strict)
    return DatasetDict(splits)


def grounded_scenes(scenes: Dataset) -> Dataset:
    r"""
    Converts scenes to the schema of [`load_flickr30k_entities`]. The columns `paraphrases`, `questions`, `referring`
    and `objects` are kept.

    Args:
        scenes ([`~datasets.Dataset`]):
            A split of [`load_scenes`].

    Returns:
        [`~datasets.Dataset`]: The scenes with `boxes`, and with `phrases` that refer to them.

    Example:

    ```python
    >>> from hf_vg.data import grounded_scenes, load_scenes

    >>> scenes = grounded_scenes(load_scenes(1, 1, 1)["train"])
    >>> scenes[0]["phrases"][0]
    {'caption': 0, 'start': 0, 'end': 23, 'text': 'a large yellow triangle', 'boxes': [0]}
    >>> scenes[0]["boxes"][0]
    [34.25, 39.75, 52.25, 57.75]
    ```
    """
    boxes = [[obj["box"] for obj in objects] for objects in scenes["objects"]]
    phrases = [
        [
            {**{key: phrase[key] for key in ("caption", "start", "end", "text")}, "boxes": phrase["objects"]}
            for phrase in row
        ]
        for row in scenes["phrases"]
    ]
    kept = scenes.remove_columns("phrases")
    kept = kept.add_column("boxes", boxes, feature=GROUNDED_FEATURES["boxes"])
    return kept.add_column("phrases", phrases, feature=GROUNDED_FEATURES["phrases"])


def _read_image(
    folder: Path, images: Path, identifier: str, check_images: bool, report: LoadingReport
) -> dict[str, Any]:
    if len(identifier) > 200 or Path(identifier).name != identifier:
        raise ValueError(f"{describe(identifier)} is not an image id")
    file = folder / "Annotations" / f"{identifier}.xml"
    try:
        annotation = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # encoding errors are not ParseErrors
        raise ValueError(f"{file}: not XML: {error}") from None
    image = find_image(images, annotation.findtext("filename") or f"{identifier}.jpg")
    problem = image_problem(image, check_images)
    if problem is not None:
        raise ValueError(problem)
    boxes, boxes_of = [], {}
    for obj in annotation.iter("object"):
        # A scene or an invisible object has no box. A box of several entities has one name per entity.
        names = [(name.text or "").strip() for name in obj.iter("name")]
        if not all(names):
            raise ValueError(f"{file}: an object has an empty name")
        for bounds in obj.iter("bndbox"):
            corners = [_number(bounds.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax")]
            if not (all(map(math.isfinite, corners)) and corners[0] < corners[2] and corners[1] < corners[3]):
                report.repair(file, None, f"left out box {corners}: a box must be finite and have an area")
                continue
            for name in names:
                boxes_of.setdefault(name, []).append(len(boxes))
            boxes.append(corners)
    captions, phrases = [], []
    sentences = folder / "Sentences" / f"{identifier}.txt"
    for number, line in enumerate(read_text(sentences, report).splitlines(), 1):
        if not line.strip():
            continue
        try:
            caption, marked = parse_entities(line.strip())
        except ValueError as error:
            raise ValueError(f"{sentences}:{number}: {error}") from None
        phrases += [
            {
                "caption": len(captions),
                **{key: phrase[key] for key in ("start", "end", "text")},
                "boxes": boxes_of.get(phrase["entity"], []),
            }
            for phrase in marked
        ]
        captions.append(caption)
    if not captions:
        raise ValueError(f"{sentences}: there are no captions")
    return {"image_id": identifier, "image": str(image), "boxes": boxes, "captions": captions, "phrases": phrases}


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def entities_of(
    rows: Dataset, entities_dir: str, images_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[int]]:
    r"""
    Finds the Flickr30k Entities annotations of images. Images are matched by file name.

    Args:
        rows ([`~datasets.Dataset`]):
            Rows whose `image` is a file.
        entities_dir (`str`):
            The folder with Flickr30k Entities.
        images_dir (`str`, *optional*):
            The folder with its images. By default the folder of the first row's image.

    Returns:
        `tuple[list[dict], list[int]]`: The annotations of the images that have some, as rows of
        [`load_flickr30k_entities`], and the indices of these images in `rows`.

    Example:

    ```python
    >>> from hf_vg.data import entities_of, load_captions

    >>> photos = load_captions("flickr8k", "data/flickr8k")["validation"]  # doctest: +SKIP
    >>> annotations, indices = entities_of(photos, "data/flickr30k_entities")  # doctest: +SKIP
    ```
    """
    paths = [Path(image["path"]) for image in rows.cast_column("image", Image(decode=False))["image"]]
    annotated = {}
    for table in load_flickr30k_entities(entities_dir, images_dir or paths[0].parent).values():
        table = table.cast_column("image", Image(decode=False))
        annotated |= {Path(row["image"]["path"]).name: row for row in table}
    numbers = [number for number, path in enumerate(paths) if path.name in annotated]
    return [annotated[paths[number].name] for number in numbers], numbers
