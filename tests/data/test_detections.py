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
import base64
import json

import numpy as np
import pytest
from PIL import Image

from hf_vg.data import load_detections, question_rows, referring_rows
from hf_vg.data.region_rows import RegionDataArguments
from tests.data.test_regions import TestReferring as Referring


def write_tsv(path, boxes_of: dict[int, list[list[float]]], image_size=(40, 30)) -> None:
    """Writes detections in the format of bottom-up attention: no header, boxes and features in base64."""
    lines = []
    for image_id, boxes in boxes_of.items():
        boxes, features = np.array(boxes, dtype="<f4"), np.zeros((len(boxes), 2048), dtype="<f4")
        encoded = [base64.b64encode(array.tobytes()).decode() for array in (boxes, features)]
        lines.append("\t".join(map(str, (image_id, *image_size, len(boxes), *encoded))))
    path.write_text("\n".join(lines) + "\n")


def write_json(path, boxes_of: dict[int, list[list[float]]], name: str = "box") -> None:
    """Writes detections in the format of MAttNet and COCO results: left, top, width, height."""
    rows = [
        {"image_id": image_id, name: box, "category_id": 1, "score": 0.5 + 0.1 * number, "det_id": number}
        for image_id, boxes in boxes_of.items()
        for number, box in enumerate(boxes)
    ]
    path.write_text(json.dumps(rows))


@pytest.mark.parametrize("name", ["box", "bbox"])
def test_json_has_widths_and_scores(tmp_path, name):
    write_json(tmp_path / "dets.json", {9: [[1, 2, 3, 4], [5, 6, 7, 8]], 11: [[0, 0, 1, 1]]}, name)
    detections = load_detections(tmp_path / "dets.json")
    assert detections == {"9": [[5, 6, 12, 14], [1, 2, 4, 6]], "11": [[0, 0, 1, 1]]}  # best first
    assert load_detections(tmp_path / "dets.json", max_boxes=1)["9"] == [[5, 6, 12, 14]]


def test_tsv_has_corners(tmp_path):
    (tmp_path / "vqa").mkdir()
    write_tsv(tmp_path / "vqa" / "trainval.tsv.0", {9: [[1, 2, 3, 4], [5, 6, 7, 8]]})
    write_tsv(tmp_path / "vqa" / "trainval.tsv.1", {11: [[0, 0, 1, 1]]})
    assert load_detections(tmp_path / "vqa") == {"9": [[1, 2, 3, 4], [5, 6, 7, 8]], "11": [[0, 0, 1, 1]]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "must contain a list of detections, got"),
        ("a.json", "[]", "has no detections"),
        ("a.json", "[3]", "detection 0 must be an object"),
        ("a.json", '[{"image_id": 1}]', "detection 0 has no 'bbox'"),
        ("a.json", '[{"image_id": 1, "box": [1, 2]}]', "detection 0"),
        ("a.json", '[{"image_id": 1, "box": [1, 2, 3, 4], "score": "high"}]', "'score' of .*must be a number"),
        ("a.tsv", "1\t2\t3\t1\tnot base 64\t\n", "a.tsv:1: cannot read the boxes"),
        ("a.tsv", "1\t2\t3\t7\tAAAAAAAAAAAAAAAAAAAAAA==\t\n", "found 1 boxes, but num_boxes is 7"),
        ("a.tsv", "1\n", "a.tsv:1: cannot read the boxes"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_detections(tmp_path / name)


class TestRows:
    def test_expressions_are_resolved_among_detections(self, tmp_path):
        (tmp_path / "refcoco+").mkdir()
        Referring().write(tmp_path / "refcoco+")
        args = RegionDataArguments(dataset="refcoco+", data_dir=str(tmp_path), images_dir=str(tmp_path / "refcoco+"))
        annotated = [[0, 0, 10, 10], [5, 6, 25, 16]]
        images, _ = referring_rows(args, test_split="val")
        assert [images[split][0]["boxes"] for split in images] == [annotated] * 3
        write_json(tmp_path / "dets.json", {9: [[1, 2, 3, 4]]})
        images, rows = referring_rows(args, test_split="val", detections=str(tmp_path / "dets.json"))
        assert images["train"][0]["boxes"] == [[1, 2, 4, 6], *annotated]
        assert images["validation"][0]["boxes"] == images["test"][0]["boxes"] == [[1, 2, 4, 6]]
        assert rows["test"][0]["box"] == pytest.approx(
            [5 / 40, 6 / 30, 25 / 40, 16 / 30]
        )  # the box of the expression does not change
        write_json(tmp_path / "dets.json", {7: [[1, 2, 3, 4]]})
        with pytest.raises(ValueError, match="dets.json has no boxes for 1 of 1 images. The first is 9"):
            referring_rows(args, test_split="val", detections=str(tmp_path / "dets.json"))

    def test_questions_are_answered_from_detections(self, tmp_path):
        for split in ("train2014", "val2014"):
            (tmp_path / split).mkdir()
            Image.new("RGB", (40, 30)).save(tmp_path / split / f"COCO_{split}_000000000007.jpg")
            asked = [{"question_id": 10, "image_id": 7, "question": "What is it?"}]
            (tmp_path / f"v2_OpenEnded_mscoco_{split}_questions.json").write_text(
                json.dumps({"data_subtype": split, "questions": asked})
            )
            answers = [{"question_id": 10, "answers": [{"answer": "dog"}] * 10}]
            (tmp_path / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({"annotations": answers}))
        args = RegionDataArguments(dataset="vqa", data_dir=str(tmp_path), images_dir=str(tmp_path))
        write_tsv(tmp_path / "boxes.tsv", {7: [[index, 0, index + 5, 9] for index in range(12)]})
        images, _ = question_rows(args, detections=str(tmp_path / "boxes.tsv"), max_regions=10)
        assert images["train"][0]["boxes"] == [[index, 0, index + 5, 9] for index in range(10)]
        with pytest.raises(ValueError, match="pass one of the two"):
            question_rows(args, "detr", str(tmp_path / "boxes.tsv"))

    def test_scenes_have_boxes_of_their_own(self, tmp_path):
        with pytest.raises(ValueError, match="`dataset: scenes` .*but you set `detections`"):
            referring_rows(RegionDataArguments(), detections=str(tmp_path))
