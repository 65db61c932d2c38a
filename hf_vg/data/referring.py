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
"""Loads referring expressions: RefCOCO, RefCOCO+ and RefCOCOg."""

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
    """Reads lists, dicts, strings and numbers. Everything else in a pickle could run code, so it raises an error."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, but referring expressions are plain data")


def load_referring(folder: str | PathLike, images: str | PathLike, split_by: str = "unc") -> DatasetDict:
    r"""
    Reads the published files of a referring expression dataset: `refs(SPLIT_BY).p` and `instances.json`. The first is
    a pickle. It is read as plain data: no code in it can run, and a pickle with code raises an error.

    Args:
        folder (`str` or `PathLike`):
            The folder with the two files, for example `refcoco+`.
        images (`str` or `PathLike`):
            The folder with COCO's `train2014` images.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Which splits to use: `"unc"` or `"google"`, and `"umd"` for RefCOCOg.

    Returns:
        [`~datasets.DatasetDict`]: The splits of the file. Each expression is a row with `ref_id`, `image_id`, `image`,
        `expression`, its `box`, and the `boxes` of all annotated objects of the image, including that one. Boxes are
        (left, top, right, bottom) in pixels.

    Example:

    ```python
    >>> import json, pickle, tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import load_referring

    >>> tmp = tempfile.TemporaryDirectory()
    >>> folder = Path(tmp.name)
    >>> Image.new("RGB", (64, 64)).save(folder / "1.jpg")
    >>> instances = {
    ...     "images": [{"id": 1, "file_name": "1.jpg"}],
    ...     "annotations": [{"id": 5, "image_id": 1, "bbox": [10, 20, 30, 40]}],
    ... }
    >>> _ = (folder / "instances.json").write_text(json.dumps(instances))
    >>> ref = {"ref_id": 0, "image_id": 1, "ann_id": 5, "split": "val", "sentences": [{"sent": "the left dog"}]}
    >>> _ = (folder / "refs(unc).p").write_bytes(pickle.dumps([ref]))
    >>> row = load_referring(folder, images=folder)["val"][0]
    >>> row["expression"], row["box"]
    ('the left dog', [10.0, 20.0, 40.0, 60.0])
    ```
    """
    folder = Path(folder)
    refs_file, instances_file = folder / f"refs({split_by}).p", folder / "instances.json"
    for file in (refs_file, instances_file):
        if not file.is_file():
            there = sorted(path.name for path in folder.glob("refs(*).p")) if folder.is_dir() else []
            raise FileNotFoundError(f"There is no {file.name!r} in {str(folder)!r}; its reference files are {there}.")
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
                f"{where} refers to annotation {annotation} of image {image_id}, but {instances_file} has no box for "
                "it."
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
        # Python allocates memory for the highest object number in a pickle.
        for opcode, number, _ in pickletools.genops(pickled):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (number or 0) > len(pickled):
                raise pickle.UnpicklingError(f"it numbers an object {number}, but has only {len(pickled)} bytes")
        refs = _DataOnlyUnpickler(io.BytesIO(pickled), encoding="latin-1").load()
    # A damaged pickle may raise any error: its opcodes are a small program.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or "it ends too early"
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {reason}.") from None
    if not isinstance(refs, list) or not refs:
        raise ValueError(f"{file} must contain a list of references, got {describe(refs)}.")
    return refs


def _read_instances(file: Path) -> tuple[dict[int, str], dict[int, dict[int, list[float]]]]:
    """Returns the file name of each image, and the boxes of its annotations. Boxes without an area are left out."""
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
    Computes the intersection over union of boxes (left, top, right, bottom).

    Args:
        boxes1 (`np.ndarray` of shape `(..., 4)`):
            Boxes.
        boxes2 (`np.ndarray` of shape `(..., 4)`):
            Boxes with a shape that broadcasts with `boxes1`.

    Returns:
        `np.ndarray` of shape `(...)`: Values from 0 to 1.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data.referring import box_iou

    >>> float(box_iou(np.array([0, 0, 2, 2]), np.array([0, 1, 2, 3])).round(3))
    0.333
    ```
    """
    boxes1, boxes2 = np.asarray(boxes1, dtype=np.float64), np.asarray(boxes2, dtype=np.float64)
    sides = np.minimum(boxes1[..., 2:], boxes2[..., 2:]) - np.maximum(boxes1[..., :2], boxes2[..., :2])
    intersection = sides.clip(min=0).prod(axis=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clip(min=0).prod(axis=-1) for boxes in (boxes1, boxes2)]
    return intersection / np.maximum(areas[0] + areas[1] - intersection, 1e-12)
