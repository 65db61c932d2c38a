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
"""Reads published files of object detections."""

import base64
import binascii
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..models.grounded_visual_bert.inputs_grounded_visual_bert import check_boxes
from .records import describe, read_json, take


# Columns of the bottom-up attention files (Anderson et al. 2018). They have no header.
TSV_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")


def load_detections(path: str | PathLike, max_boxes: int | None = None) -> dict[str, list[list[float]]]:
    r"""
    Reads the detected boxes of each image from published files.

    Args:
        path (`str` or `PathLike`):
            One of these:

            - A JSON file with a list of detections. Each has an `image_id`, a `box` or `bbox` (left, top, width,
              height) and optionally a `score`. MAttNet's `res101_coco_minus_refer_notime_dets.json` and COCO results
              have this format.
            - A `.tsv` file of bottom-up attention, with 10 to 100 boxes per image.
            - A folder of such files.
        max_boxes (`int`, *optional*):
            Maximum number of boxes per image. The boxes with the highest scores are kept. Bottom-up attention files
            have no scores; there the first boxes are kept.

    Returns:
        `dict[str, list[list[float]]]`: Maps an image id to its boxes (left, top, right, bottom) in pixels.

    Example:

    ```python
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data import load_detections

    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name, "detections.json")
    >>> _ = file.write_text(json.dumps([{"image_id": 7, "bbox": [10, 20, 30, 40], "score": 0.9}]))
    >>> load_detections(file)
    {'7': [[10.0, 20.0, 40.0, 60.0]]}
    ```
    """
    path = Path(path)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    scored: dict[str, list[tuple[float, list[float]]]] = {}
    for file in files:
        # Bottom-up attention files are named `x.tsv.0`, `x.tsv.1` ...
        rows = _read_tsv(file) if ".tsv" in file.name else _read_json(file)
        for image_id, score, box in rows:
            scored.setdefault(image_id, []).append((score, box))
    if not scored:
        raise ValueError(f"{path} has no detections.")
    # Python's sort is stable: boxes with equal scores keep their order.
    return {
        image_id: [box for _, box in sorted(found, key=lambda detection: -detection[0])[:max_boxes]]
        for image_id, found in scored.items()
    }


def _read_json(file: Path) -> Iterator[tuple[str, float, list[float]]]:
    detections = read_json(file)
    if not isinstance(detections, list):
        raise ValueError(f"{file} must contain a list of detections, got {describe(detections)}.")
    for index, detection in enumerate(detections):
        where = f"{file}: detection {index}"
        image_id = take(detection, "image_id", int, where)
        name = "box" if "box" in detection else "bbox"
        left, top, width, height = check_boxes([take(detection, name, list, where)], where)[0].tolist()
        yield str(image_id), _score(detection, where), [left, top, left + width, top + height]


def _score(detection: dict[str, Any], where: str) -> float:
    score = detection.get("score", 0.0)
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not np.isfinite(score):
        raise ValueError(f"'score' of {where} must be a number, got {describe(score)}.")
    return score


def _read_tsv(file: Path) -> Iterator[tuple[str, float, list[float]]]:
    # Not `csv`: the features on each line exceed its limit, which only the whole process can raise.
    with open(file, newline="\n", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            row = dict(zip(TSV_COLUMNS, line.rstrip("\r\n").split("\t"), strict=False))
            try:
                boxes = np.frombuffer(base64.b64decode(row.get("boxes", ""), validate=True), dtype="<f4").reshape(
                    -1, 4
                )
                if len(boxes) != int(row["num_boxes"]):
                    raise ValueError(f"found {len(boxes)} boxes, but num_boxes is {row['num_boxes']}")
            except (ValueError, KeyError, binascii.Error) as error:
                raise ValueError(f"{where}: cannot read the boxes: {error}.") from None
            for box in check_boxes(boxes, where).tolist():
                yield row["image_id"], 0.0, box
