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
"""RefCOCO, RefCOCO+ and RefCOCOg: expressions that refer to one object of an image."""

import json
import pickle
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, List, Value


_STRING, _BOX = Value("string"), List(Value("float32"), length=4)
REFERRING_FEATURES = Features(
    {
        "ref_id": Value("int64"),
        "image_id": _STRING,
        "image": Image(),
        "expression": _STRING,
        "box": _BOX,
        "boxes": List(_BOX),
    }
)


class _DataOnlyUnpickler(pickle.Unpickler):
    """Reads lists, dicts, strings and numbers. Anything else in a pickle is code to run, and is refused."""

    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, but referring expressions are plain data")


def load_referring(folder: str | PathLike, images: str | PathLike, split_by: str = "unc") -> DatasetDict:
    r"""
    Reads a data set of referring expressions as it is published: `refs(SPLIT_BY).p` and `instances.json`. The former
    is a pickle, which is read without running anything in it.

    Args:
        folder (`str` or `PathLike`):
            Where the two files are, for example `refcoco+`.
        images (`str` or `PathLike`):
            The folder of COCO's `train2014` images.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Whose splits to take: `"unc"` or `"google"`, and `"umd"` for RefCOCOg.

    Returns:
        `datasets.DatasetDict`: A split for each that is named in the file, one row an expression: `ref_id`,
        `image_id`, `image`, `expression`, the `box` that is referred to, and the `boxes` of all annotated objects of
        the image, that one among them; (left, top, right, bottom) in pixels.
    """
    folder, images = Path(folder), Path(images)
    refs_file, instances_file = folder / f"refs({split_by}).p", folder / "instances.json"
    for file in (refs_file, instances_file):
        if not file.is_file():
            there = sorted(path.name for path in folder.glob("refs(*).p")) if folder.is_dir() else []
            raise FileNotFoundError(f"There is no {file.name!r} in {str(folder)!r}; of references it has {there}.")
    try:
        with open(refs_file, "rb") as opened:
            refs = _DataOnlyUnpickler(opened, encoding="latin-1").load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{refs_file} can not be read: {error}") from error
    instances = json.loads(instances_file.read_text(encoding="utf-8"))
    names = {image["id"]: image["file_name"] for image in instances["images"]}
    boxes_of: dict[int, dict[int, list[float]]] = {}
    for annotation in instances["annotations"]:
        left, top, width, height = annotation["bbox"]
        box = [left, top, left + width, top + height]
        boxes_of.setdefault(annotation["image_id"], {})[annotation["id"]] = box

    rows: dict[str, list[dict[str, Any]]] = {}
    for ref in refs:
        box = boxes_of.get(ref["image_id"], {}).get(ref["ann_id"])
        if box is None:
            raise ValueError(
                f"Reference {ref['ref_id']} of {refs_file} is to annotation {ref['ann_id']} of image "
                f"{ref['image_id']}, which {instances_file} does not have."
            )
        image = images / names[ref["image_id"]]
        if not image.is_file():
            raise FileNotFoundError(
                f"Reference {ref['ref_id']} of {refs_file} is to {image.name!r}, which is not in {str(images)!r}."
            )
        rows.setdefault(ref["split"], []).extend(
            {
                "ref_id": ref["ref_id"],
                "image_id": str(ref["image_id"]),
                "image": str(image),
                "expression": sentence["sent"],
                "box": box,
                "boxes": list(boxes_of[ref["image_id"]].values()),
            }
            for sentence in ref["sentences"]
        )
    return DatasetDict({split: Dataset.from_list(rows[split], features=REFERRING_FEATURES) for split in sorted(rows)})


def box_iou(boxes1: np.ndarray, boxes2: np.ndarray) -> np.ndarray:
    r"""
    Intersection over union of boxes (left, top, right, bottom).

    Args:
        boxes1 (`np.ndarray` of shape `(..., 4)`), boxes2 (`np.ndarray` of shape `(..., 4)`):
            Boxes, of shapes that broadcast.

    Returns:
        `np.ndarray` of shape `(...)`.
    """
    boxes1, boxes2 = np.asarray(boxes1, dtype=np.float64), np.asarray(boxes2, dtype=np.float64)
    sides = np.minimum(boxes1[..., 2:], boxes2[..., 2:]) - np.maximum(boxes1[..., :2], boxes2[..., :2])
    intersection = sides.clip(min=0).prod(axis=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clip(min=0).prod(axis=-1) for boxes in (boxes1, boxes2)]
    return intersection / np.maximum(areas[0] + areas[1] - intersection, 1e-12)
