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
"""Flickr30k Entities, and the one schema of images with captions whose phrases are grounded in boxes."""

import xml.etree.ElementTree as ElementTree
from os import PathLike
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, Features, Image, List, Value
from tqdm.auto import tqdm

from ..models.grounded_visual_bert.inputs_grounded_visual_bert import parse_entities
from .files import read_text
from .loading_report import LoadingReport


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
    folder: str | PathLike, images: str | PathLike, strict: bool = False, report: LoadingReport | None = None
) -> DatasetDict:
    r"""
    Reads Flickr30k Entities as it is published: `Annotations/ID.xml`, `Sentences/ID.txt`, and lists of identifiers in
    `train.txt`, `val.txt` and `test.txt`.

    Args:
        folder (`str` or `PathLike`):
            Where these are.
        images (`str` or `PathLike`):
            The folder of the images, named as the annotations say.
        strict (`bool`, *optional*, defaults to `False`):
            Whether an image that must be skipped is an error.
        report ([`LoadingReport`], *optional*):
            Is told of images that were skipped, and why.

    Returns:
        `datasets.DatasetDict`: A split for each list that is there, with the columns

        - **image_id** and **image**.
        - **boxes** -- (left, top, right, bottom) in pixels.
        - **captions** -- without mark-up.
        - **phrases** -- of all captions: the caption's number, the span in characters, and the numbers of all boxes
          of the phrase's entity. A box may belong to several entities, and an entity may have none.
    """
    folder, images = Path(folder), Path(images)
    lists = {split: folder / f"{name}.txt" for name, split in SPLITS.items() if (folder / f"{name}.txt").is_file()}
    if not lists:
        raise FileNotFoundError(f"There is none of train.txt, val.txt and test.txt in {str(folder)!r}.")
    report = report or LoadingReport("Flickr30k Entities")
    splits = {}
    for split, file in lists.items():
        rows = []
        identifiers = read_text(file, report).split()
        for line, identifier in enumerate(tqdm(identifiers, desc=f"Reading {split} annotations", unit="image"), 1):
            try:
                row = _read_image(folder, images, identifier, report)
            except (OSError, ValueError, ElementTree.ParseError) as error:
                report.skip(file, line, f"{identifier}: {error}")
                continue
            rows.append(row)
        report.count(f"{split} images", len(rows))
        report.count("boxes", sum(len(row["boxes"]) for row in rows))
        report.count("grounded phrases", sum(bool(phrase["boxes"]) for row in rows for phrase in row["phrases"]))
        if not rows:
            raise ValueError(f"None of the {len(identifiers)} images of {file} can be used:\n{report}")
        splits[split] = Dataset.from_list(rows, features=GROUNDED_FEATURES)
    report.finish(strict)
    return DatasetDict(splits)


def grounded_scenes(scenes: Dataset) -> Dataset:
    r"""
    Scenes in the schema of [`load_flickr30k_entities`], with the columns `paraphrases`, `questions`, `referring` and
    `objects` kept.

    Args:
        scenes ([`~datasets.Dataset`]):
            A split of [`load_scenes`].
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


def _read_image(folder: Path, images: Path, identifier: str, report: LoadingReport) -> dict[str, Any]:
    annotation = ElementTree.parse(folder / "Annotations" / f"{identifier}.xml").getroot()
    image = images / (annotation.findtext("filename") or f"{identifier}.jpg")
    if not image.is_file():
        raise FileNotFoundError(f"there is no image {image.name!r} in {str(images)!r}")
    boxes, boxes_of = [], {}
    for obj in annotation.iter("object"):
        # A scene, or what is not visible, has no box. One box may be of several entities: it has a name for each.
        for bounds in obj.iter("bndbox"):
            corners = [float(bounds.findtext(side, "nan")) for side in ("xmin", "ymin", "xmax", "ymax")]
            if not (corners[0] < corners[2] and corners[1] < corners[3]):
                report.repair(folder / "Annotations" / f"{identifier}.xml", None, f"box {corners} is left out")
                continue
            for name in obj.iter("name"):
                boxes_of.setdefault(name.text.strip(), []).append(len(boxes))
            boxes.append(corners)
    captions, phrases = [], []
    for line in read_text(folder / "Sentences" / f"{identifier}.txt", report).splitlines():
        if line.strip():
            caption, marked = parse_entities(line.strip())
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
        raise ValueError("it has no captions")
    return {"image_id": identifier, "image": str(image), "boxes": boxes, "captions": captions, "phrases": phrases}
