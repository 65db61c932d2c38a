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

import io
import pickle
import pickletools
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, List, Value

from ..models.grounded_visual_bert.inputs_grounded_visual_bert import check_boxes
from .records import describe, find_image, read_json, take, take_records


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
    """Reads lists, dicts, strings and numbers. Anything else in a pickle is code to run: it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, but referring expressions are plain data")


def load_referring(folder: str | PathLike, images: str | PathLike, split_by: str = "unc") -> DatasetDict:
    r"""
    Reads the published files of a data set of referring expressions: `refs(SPLIT_BY).p` and `instances.json`. The
    first is a pickle. It is read as plain data: nothing in it is run, and a pickle that asks for more is refused.

    Args:
        folder (`str` or `PathLike`):
            Folder of the two files, for example `refcoco+`.
        images (`str` or `PathLike`):
            The folder of COCO's `train2014` images.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Whose splits to use: `"unc"` or `"google"`, and `"umd"` for RefCOCOg.

    Returns:
        `datasets.DatasetDict`: A split for each that the file names, with one row per expression: `ref_id`,
        `image_id`, `image`, `expression`, the `box` that is referred to, and the `boxes` of all annotated objects of
        the image, that one among them. Boxes are (left, top, right, bottom) in pixels.
    """
    folder = Path(folder)
    refs_file, instances_file = folder / f"refs({split_by}).p", folder / "instances.json"
    for file in (refs_file, instances_file):
        if not file.is_file():
            there = sorted(path.name for path in folder.glob("refs(*).p")) if folder.is_dir() else []
            raise FileNotFoundError(f"There is no {file.name!r} in {str(folder)!r}; of references it has {there}.")
    refs = _read_refs(refs_file)
    names, boxes_of = _read_instances(instances_file)
    rows: dict[str, list[dict[str, Any]]] = {}
    for index, ref in enumerate(refs):
        where = f"{refs_file}: reference {index}"
        ref_id, image_id, annotation = (take(ref, name, int, where) for name in ("ref_id", "image_id", "ann_id"))
        where = f"{refs_file}: reference {ref_id}"
        box = boxes_of.get(image_id, {}).get(annotation)
        if box is None or image_id not in names:
            raise ValueError(
                f"{where} is to annotation {annotation} of image {image_id}, of which {instances_file} has no box."
            )
        try:
            image = find_image(images, names[image_id])
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{where}: {error}.") from None
        rows.setdefault(take(ref, "split", str, where), []).extend(
            {
                "ref_id": ref_id,
                "image_id": str(image_id),
                "image": str(image),
                "expression": take(sentence, "sent", str, place),
                "box": box,
                "boxes": list(boxes_of[image_id].values()),
            }
            for place, sentence in take_records(ref, "sentences", where)
        )
    return DatasetDict({split: Dataset.from_list(rows[split], features=REFERRING_FEATURES) for split in sorted(rows)})


def _read_refs(file: Path) -> list:
    try:
        pickled = file.read_bytes()
        # Python makes room for as many objects as the highest number that a pickle gives one.
        for opcode, number, _ in pickletools.genops(pickled):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (number or 0) > len(pickled):
                raise pickle.UnpicklingError(f"it numbers an object {number}, but has only {len(pickled)} bytes")
        refs = _DataOnlyUnpickler(io.BytesIO(pickled), encoding="latin-1").load()
    # A damaged pickle may raise anything: its opcodes are a small program.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or "it ends too early"
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {reason}.") from None
    if not isinstance(refs, list) or not refs:
        raise ValueError(f"{file} must hold a list of references, got {describe(refs)}.")
    return refs


def _read_instances(file: Path) -> tuple[dict[int, str], dict[int, dict[int, list[float]]]]:
    """The file name of each image, and the box of each of its annotations, which has an area."""
    instances = read_json(file)
    names = {
        take(image, "id", int, where): take(image, "file_name", str, where)
        for where, image in take_records(instances, "images", str(file))
    }
    boxes_of: dict[int, dict[int, list[float]]] = {}
    for where, annotation in take_records(instances, "annotations", str(file)):
        image_id, number = take(annotation, "image_id", int, where), take(annotation, "id", int, where)
        left, top, width, height = check_boxes([take(annotation, "bbox", list, where)], where)[0].tolist()
        if width > 0 and height > 0:
            boxes_of.setdefault(image_id, {})[number] = [left, top, left + width, top + height]
    return names, boxes_of


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
