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
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hf_vg.data import (
    CaptionPairCollatorForVGP,
    LoadingReport,
    QuestionCollator,
    ReferringCollator,
    RegionDataArguments,
    answer_vocabulary,
    caption_is_true,
    grounded_scenes,
    load_captions,
    load_flickr30k_entities,
    load_paraphrases,
    load_referring,
    load_scenes,
    load_vqa,
    make_caption_pairs,
    phrase_rows,
    train_wordpiece_tokenizer,
)
from hf_vg.data import entities as entities_module
from hf_vg.data.paraphrases import find_phrase_pairs, nearest_images, paraphrases_by_image
from hf_vg.data.referring import box_iou
from hf_vg.data.region_collators import ImageGroupSampler
from hf_vg.data.vqa import answer_scores, normalize_answer
from hf_vg.evaluation import referring_accuracy, vqa_accuracy
from hf_vg.models.grounded_visual_bert import GroundedVisualBertProcessor
from tests.common import SHARED, needs_shared


ANNOTATION = """<annotation><filename>{name}.jpg</filename><size><width>40</width><height>30</height></size>
<object><name>1</name><name>2</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>11</xmax><ymax>22</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>20</xmin><ymin>3</ymin><xmax>30</xmax><ymax>13</ymax></bndbox></object>
<object><name>3</name><scene>1</scene><nobndbox>0</nobndbox></object>
</annotation>"""


def write_entities(folder: Path, names=("100", "200", "300")) -> tuple[Path, Path]:
    images = folder / "images"
    for part in ("Annotations", "Sentences", "images"):
        (folder / part).mkdir(parents=True)
    for name in names:
        Image.new("RGB", (40, 30), (int(name) % 256, 0, 0)).save(images / f"{name}.jpg")
        (folder / "Annotations" / f"{name}.xml").write_text(ANNOTATION.format(name=name))
        lines = [
            f"[/EN#1/people Two men] of {name} sit in [/EN#3/scene the park] .",
            f"[/EN#1/people Two people] with [/EN#2/other a dog] {name} .",
            f"[/EN#2/animals The brown dog] of {name} sees [/EN#0/notvisual nothing] .",
        ]
        (folder / "Sentences" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (folder / "train.txt").write_text("\n".join(names[:2]) + "\n")
    (folder / "val.txt").write_text("\n".join(names[2:]))
    return folder, images


class TestEntities:
    @pytest.mark.parametrize("check_images", [True, False])
    def test_all_images_are_decoded_if_that_is_asked_for(self, check_images, tmp_path, monkeypatch):
        decoded = []
        monkeypatch.setattr("hf_vg.data.entities.image_problem", lambda image, decode=False: decoded.append(decode))
        folder, images = write_entities(tmp_path)
        data = load_captions("flickr30k_entities", folder, images, check_images=check_images)
        assert {split: len(rows) for split, rows in data.items()} == {"train": 2, "validation": 1}
        assert decoded == [check_images] * 3

    def test_official_folders(self, tmp_path):
        report = LoadingReport("test")
        splits = load_flickr30k_entities(*write_entities(tmp_path), strict=True, report=report)
        assert {split: len(rows) for split, rows in splits.items()} == {"train": 2, "validation": 1}
        row = splits["train"][0]
        assert row["image_id"] == "100" and row["image"].size == (40, 30)
        assert row["boxes"] == [[1, 2, 11, 22], [20, 3, 30, 13]]
        assert row["captions"][0] == "Two men of 100 sit in the park ."
        said = [(p["caption"], p["text"], p["boxes"]) for p in row["phrases"]]
        # Entity 1 has two boxes and shares one with entity 2. The other entities have no box.
        assert said == [
            (0, "Two men", [0, 1]),
            (0, "the park", []),
            (1, "Two people", [0, 1]),
            (1, "a dog", [0]),
            (2, "The brown dog", [0]),
            (2, "nothing", []),
        ]
        for phrase in row["phrases"]:
            assert row["captions"][phrase["caption"]][phrase["start"] : phrase["end"]] == phrase["text"]
        assert report.counts["boxes"] == 6 and report.counts["grounded phrases"] == 12

    def test_what_is_broken_is_skipped_and_named(self, tmp_path):
        folder, images = write_entities(tmp_path)
        (images / "100.jpg").unlink()
        report = LoadingReport("test")
        assert load_flickr30k_entities(folder, images, report=report)["train"]["image_id"][:] == ["200"]
        (problem,) = report.problems
        assert "train.txt:1: skipped: there is no image '100.jpg'" in str(problem)
        (images / "100.jpg").write_bytes((images / "200.jpg").read_bytes()[:300])
        assert load_flickr30k_entities(folder, images)["train"]["image_id"][:] == ["200"]
        with pytest.raises(ValueError, match="100.jpg"):
            load_flickr30k_entities(folder, images, strict=True)
        (folder / "Annotations" / "200.xml").write_text("<annotation>")
        with pytest.raises(ValueError, match="(?s)2 images.*train.txt:2: skipped: .*200.xml"):
            load_flickr30k_entities(folder, images)
        with pytest.raises(FileNotFoundError, match="no train.txt"):
            load_flickr30k_entities(images, images)

    @pytest.mark.parametrize(
        "annotation, reason",
        [
            ('<?xml version="1.0" encoding="klingon"?><annotation/>', "100.xml: not XML"),
            ('<?xml version="1.0" encoding="utf-7"?><annotation/>', "100.xml: not XML"),
            ("", "100.xml: not XML"),
            ("<annotation>&#xD800;</annotation>", "100.xml: not XML"),
            (ANNOTATION.replace("<name>2</name>", "<name></name>"), "100.xml: an object has an empty name"),
            (ANNOTATION.replace("<name>2</name>", "<name> </name>"), "100.xml: an object has an empty name"),
            (ANNOTATION.replace("{name}.jpg", "x" * 5000 + ".jpg"), "there is no image 'xxx"),
            (ANNOTATION.replace("{name}.jpg", "../100.jpg"), "the image '../100.jpg' is not inside"),
            (ANNOTATION.replace("{name}.jpg", "/etc/passwd"), "the image '/etc/passwd' is not inside"),
            (ANNOTATION.replace("{name}.jpg", "."), "there is no image '.'"),
        ],
        ids=lambda value: value[-40:],
    )
    def test_one_bad_annotation_does_not_end_the_load(self, annotation, reason, tmp_path):
        folder, images = write_entities(tmp_path)
        (folder / "Annotations" / "100.xml").write_text(annotation.replace("{name}", "100"))
        report = LoadingReport("test")
        assert load_flickr30k_entities(folder, images, report=report)["train"]["image_id"][:] == ["200"]
        (problem,) = report.problems
        assert str(problem).startswith(f"{folder / 'train.txt'}:1: skipped: ") and reason in str(problem)
        assert len(str(problem)) < 500
        with pytest.raises(ValueError, match="train.txt:1"):
            load_flickr30k_entities(folder, images, strict=True)

    @pytest.mark.parametrize("line", ["[/EN#1/people A man", "[/EN#1/people A [/EN#2/other b]", "[/EN#1"])
    def test_broken_mark_up_is_named_by_file_and_line(self, line, tmp_path):
        folder, images = write_entities(tmp_path)
        with open(folder / "Sentences" / "100.txt", "a") as file:
            file.write(line)
        report = LoadingReport("test")
        load_flickr30k_entities(folder, images, report=report)
        assert "100.txt:4: " in str(report)

    @pytest.mark.parametrize("bad", ["inf", "-inf", "nan", "abc", "", "1e999", "1"])
    def test_a_bad_box_is_left_out_and_named(self, bad, tmp_path):
        folder, images = write_entities(tmp_path)
        broken = ANNOTATION.format(name="100").replace("<xmax>11</xmax>", f"<xmax>{bad}</xmax>")
        (folder / "Annotations" / "100.xml").write_text(broken)
        report = LoadingReport("test")
        row = load_flickr30k_entities(folder, images, report=report)["train"][0]
        assert row["boxes"] == [[20, 3, 30, 13]]
        assert "100.xml: repaired: left out box [1.0, 2.0" in str(report)

    @pytest.mark.parametrize("name", ["../100", "/etc/passwd", "x" * 5000, "a/b"], ids=lambda name: name[:12])
    def test_lists_name_images_and_not_paths(self, name, tmp_path):
        folder, images = write_entities(tmp_path)
        (folder / "train.txt").write_text(f"{name}\n\n200\n")
        report = LoadingReport("test")
        assert load_flickr30k_entities(folder, images, report=report)["train"]["image_id"][:] == ["200"]
        assert "train.txt:1: skipped: " in str(report) and "is not an image id" in str(report)

    def test_scenes_have_the_same_schema(self):
        scenes = load_scenes(3, 0, 0, 32)["train"]
        rows = grounded_scenes(scenes)
        for name, feature in entities_module.GROUNDED_FEATURES.items():
            assert rows.features[name] == feature
        for scene, row in zip(scenes, rows, strict=True):
            assert row["boxes"] == [obj["box"] for obj in scene["objects"]]
            assert [p["boxes"] for p in row["phrases"]] == [p["objects"] for p in scene["phrases"]]
            assert row["paraphrases"] == scene["paraphrases"]

    @needs_shared("data", "flickr30k_entities")
    def test_real_counts(self):
        report = LoadingReport("Flickr30k Entities")
        splits = load_flickr30k_entities(
            SHARED / "data/flickr30k_entities", SHARED / "data/flickr8k/Images", strict=True, report=report
        )
        assert (len(splits["train"]), len(splits["validation"])) == (5988, 998)
        assert report.counts["boxes"] == 22316
        assert report.counts["grounded phrases"] == 36199


class TestParaphrases:
    def test_csv(self, tmp_path):
        file = tmp_path / "train_data.csv"
        header = "image,phrase1,phrase2,original_phrase1,original_phrase2,original_label,type_label"
        file.write_text(f'{header}\n100,dog,brown dog,a dog,"The brown , old dog",Entailment2,2\n')
        assert load_paraphrases(file)[0] == {
            "image_id": "100",
            "phrase1": "a dog",
            "phrase2": "The brown , old dog",
            "label": 2,
        }
        (tmp_path / "val_data.csv").write_text(f"{header}\n200,dog,pet,a dog,a pet,Entailment1,1\n")
        assert load_paraphrases(tmp_path)["image_id"][:] == ["100", "200"]  # from all files
        with pytest.raises(FileNotFoundError, match="or other .*_data.csv in '.*empty'"):
            (tmp_path / "empty").mkdir()
            load_paraphrases(tmp_path / "empty")
        file.write_text(f"{header}\n100,dog,brown dog,a dog,The brown dog,Entailment2,7\n")
        with pytest.raises(ValueError, match="train_data.csv:2: `type_label` .*0 to 4.* '7'"):
            load_paraphrases(file)
        file.write_text("image,phrase1\n")
        with pytest.raises(ValueError, match="has no columns .'original_phrase1', 'original_phrase2', 'type_label'"):
            load_paraphrases(file)

    @pytest.mark.parametrize(
        "row, message",
        [
            ("100,a dog", "csv:2: `original_phrase2` .*text on one line"),
            ("100,,a cat,1", "csv:2: `original_phrase1` .*text on one line"),
            ("100,a dog,a cat", "csv:2: `type_label` .*0 to 4.* None"),
            ("100,a dog,a cat,1.0", "csv:2: `type_label` .*0 to 4.* '1.0'"),
            ('100,a dog,"a cat,1\n200,a dog,a cat,1\n', "csv:3: not CSV"),
            ('100,a dog,"a\ncat",1\n', "csv:3: `original_phrase2` .*text on one line"),
            ('100,"a" dog,a cat,1\n', "csv:2: not CSV"),
            (f"100,{'x' * 200_000},a cat,1", "csv:2: not CSV"),
            ("100,a dog,a \0 cat,1", "csv:2: "),
            (b"100,a dog,caf\xe9,1", "csv:1: not UTF-8|csv:2: not UTF-8"),
        ],
        ids=lambda value: str(value)[-25:],
    )
    def test_a_bad_row_is_named(self, row, message, tmp_path):
        file = tmp_path / "train_data.csv"
        header = b"image,original_phrase1,original_phrase2,type_label\n"
        file.write_bytes(header + (row if isinstance(row, bytes) else row.encode()))
        with pytest.raises(ValueError, match=f"train_data.{message}") as error:
            load_paraphrases(file)
        assert len(str(error.value)) < 500

    @needs_shared("data", "vgp")
    def test_real_counts(self):
        train, validation = (load_paraphrases(SHARED / f"data/vgp/{name}_data.csv") for name in ("train", "val"))
        assert (len(train), len(validation)) == (4488, 1137)
        assert set(validation["label"]) == {0, 1, 2, 3, 4}

    @pytest.mark.parametrize("label, swapped", [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)])
    def test_a_swapped_pair_is_relabelled(self, label, swapped):
        pair = {"phrase1": "a dog", "phrase2": "the brown dog", "label": label}
        first, second = "A dog runs .", "I see the brown dog ."
        (forward,) = find_phrase_pairs(first, second, [pair], random.Random(0))
        (backward,) = find_phrase_pairs(second, first, [pair], random.Random(0))
        assert forward == {"start1": 0, "end1": 5, "start2": 6, "end2": 19, "label": label}
        assert backward == {"start1": 6, "end1": 19, "start2": 0, "end2": 5, "label": swapped}

    def test_contained_pairs_are_removed_and_equal_ones_drawn(self):
        pairs = [
            {"phrase1": "dog", "phrase2": "brown dog", "label": 2},
            {"phrase1": "a big dog", "phrase2": "the brown dog", "label": 0},
            {"phrase1": "a big dog", "phrase2": "the brown dog", "label": 3},
            {"phrase1": "big", "phrase2": "man", "label": 4},
        ]
        labels = set()
        for seed in range(20):
            found = find_phrase_pairs("a big dog", "the brown dog and a man", pairs, random.Random(seed))
            assert [(p["start1"], p["start2"]) for p in found] == [(0, 0), (2, 20)]
            labels.add(found[0]["label"])
        assert labels == {0, 3}
        assert find_phrase_pairs("a dogged man", "brown dogs", pairs, random.Random(0)) == []

    def test_neighbors_are_exact(self):
        features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) + 100
        nearest = nearest_images(features, 3)
        for i in range(50):
            distances = [(float((features[i].double() - features[j].double()).norm()), j) for j in range(50) if j != i]
            assert nearest[i].tolist() == [j for _, j in sorted(distances)[:3]]
        with pytest.raises(ValueError, match="at least two images, got 1"):
            nearest_images(features[:1])

    def test_pairs_of_an_image(self, tmp_path):
        images = load_flickr30k_entities(*write_entities(tmp_path))["train"]
        paraphrases = {"100": [{"phrase1": "a dog", "phrase2": "The brown dog", "label": 2}]}
        rows = make_caption_pairs(images, paraphrases, np.array([[1], [0]]), seed=1)
        first = [row for row in rows if row["row"] == 0]
        assert [row["label"] for row in first][:3] == [0, 0, 0]  # three captions give three pairs
        negative = [row for row in first if row["label"]]
        assert len(negative) == 3 * 2
        for row in first:
            captions = row["caption1"], row["caption2"]
            is_own = tuple("100" in caption for caption in captions)
            assert is_own == {0: (True, True), 1: (True, False), 2: (False, True)}[row["label"]]
            for caption, phrases, own in zip(captions, (row["phrases1"], row["phrases2"]), is_own, strict=True):
                # Phrases of the other image and phrases without a box are not grounded in this image.
                assert bool(phrases) == own
                assert all(caption[p["start"] : p["end"]] not in ("the park", "nothing") for p in phrases)
        assert {row["label"] for row in negative} == {1, 2}
        assert len({c for row in negative for c in (row["caption1"], row["caption2"]) if "200" in c}) == 2
        with_pairs = [row for row in first if row["pairs"]]
        assert [row["caption2"] for row in with_pairs] == ["The brown dog of 100 sees nothing ."]
        (pair,) = with_pairs[0]["pairs"]
        assert with_pairs[0]["caption1"][pair["start1"] : pair["end1"]] == "a dog" and pair["label"] == 2
        few = make_caption_pairs(images, paraphrases, np.array([[1], [0]]), pairs_per_image=4)
        assert sorted(label == 0 for label in few["label"]) == [False] * 4 + [True] * 4
        assert few["length"][0] == len(few["caption1"][0].split()) + len(few["caption2"][0].split())
        for seed in range(5):  # one of three positive pairs has a paraphrase
            kept = make_caption_pairs(images, paraphrases, np.array([[1], [0]]), seed, 2, paraphrases_first=True)
            assert [bool(row["pairs"]) for row in kept if row["row"] == 0 and not row["label"]] == [True]
        assert rows.to_list() == make_caption_pairs(images, paraphrases, np.array([[1], [0]]), seed=1).to_list()

    def test_negatives_of_scenes_are_false(self):
        scenes = load_scenes(30, 0, 0, 32)["train"]
        images = grounded_scenes(scenes)
        nearest = nearest_images(np.random.default_rng(0).normal(size=(30, 4)))
        paraphrases = dict(zip(images["image_id"], images["paraphrases"], strict=True))
        objects = images["objects"]
        rows = make_caption_pairs(images, paraphrases, nearest, is_true=lambda i, c: caption_is_true(objects[i], c))
        assert len(rows) == 30 * 20 and sum(len(row["pairs"]) for row in rows) > 100
        for row in rows:
            truth = tuple(caption_is_true(objects[row["row"]], row[f"caption{side}"]) for side in (1, 2))
            assert truth == {0: (True, True), 1: (True, False), 2: (False, True)}[row["label"]]

    def test_by_image(self):
        rows = [{"image_id": "1", "label": 0}, {"image_id": "2", "label": 1}, {"image_id": "1", "label": 2}]
        assert paraphrases_by_image(rows) == {"1": [rows[0], rows[2]], "2": [rows[1]]}


class TestVqa:
    def write(self, folder: Path, answers: list[str]) -> tuple[Path, Path]:
        questions = {
            "data_subtype": "val2014",
            "questions": [{"question_id": 10, "image_id": 7, "question": "What is it?"}],
        }
        annotations = {"annotations": [{"question_id": 10, "answers": [{"answer": answer} for answer in answers]}]}
        (folder / "q.json").write_text(json.dumps(questions))
        (folder / "a.json").write_text(json.dumps(annotations))
        Image.new("RGB", (8, 6)).save(folder / "COCO_val2014_000000000007.jpg")
        return folder / "q.json", folder / "a.json"

    def test_files(self, tmp_path):
        questions, annotations = self.write(tmp_path, ["a dog"] * 9 + ["cat"])
        (row,) = load_vqa(questions, annotations, tmp_path)
        assert row["question"] == "What is it?" and row["answers"][-1] == "cat" and row["image"].size == (8, 6)
        assert load_vqa(questions, None, tmp_path)[0]["answers"] == []
        (tmp_path / "COCO_val2014_000000000007.jpg").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"q.json: questions\[0\]: there is no image 'COCO_val2014_0+7.jpg'"
        ):
            load_vqa(questions, annotations, tmp_path)
        (tmp_path / "a.json").write_text('{"annotations": []}')
        with pytest.raises(ValueError, match="no answers to question 10"):
            load_vqa(questions, annotations, tmp_path)

    @pytest.mark.parametrize(
        "annotations, message",
        [
            ("[\n\n", "a.json:3: not JSON"),
            ("[" * 100_000, "a.json: not JSON"),
            ("9" * 5000, "a.json: not JSON"),
            ("[]", "a.json .*object.* a list"),
            ("{}", "a.json has no 'annotations'"),
            ('{"annotations": 3}', "'annotations' of .*a.json .*list.* 3"),
            ('{"annotations": [7]}', r"annotations\[0\] .*object.* 7"),
            ('{"annotations": [{"question_id": 10}]}', r"annotations\[0\] has no 'answers'"),
            (
                '{"annotations": [{"question_id": "10", "answers": []}]}',
                "'question_id' .*must be an integer, got '10'",
            ),
            ('{"annotations": [{"question_id": true, "answers": []}]}', "'question_id' .*an integer, got True"),
            ('{"annotations": [{"question_id": 1e400, "answers": []}]}', "'question_id' .*an integer, got inf"),
            ('{"annotations": [{"question_id": 99999999999999999999, "answers": []}]}', "an integer, got a int"),
            ('{"annotations": [{"question_id": 10, "answers": "yes"}]}', "'answers' .*must be a list, got 'yes'"),
            (
                '{"annotations": [{"question_id": 10, "answers": ["yes"]}]}',
                r"answers\[0\] .*object.* 'yes'",
            ),
            ('{"annotations": [{"question_id": 10, "answers": [{"answer": null}]}]}', "must be a string, got None"),
            ('{"annotations": [{"question_id": 10, "answers": [{"answer": "\\ud800"}]}]}', "half of a surrogate pair"),
        ],
        ids=lambda value: value[-40:],
    )
    def test_wrong_types_are_named(self, annotations, message, tmp_path):
        questions, file = self.write(tmp_path, ["yes"] * 10)
        file.write_text(annotations)
        with pytest.raises(ValueError, match=message) as error:
            load_vqa(questions, file, tmp_path)
        assert "a.json" in str(error.value) and len(str(error.value)) < 500

    @pytest.mark.parametrize(
        "answer, normal",
        [
            ("The Dog.", "dog"),
            ("two", "2"),
            ("none", "0"),
            ("dont know", "don't know"),
            ("black/white", "black white"),
            ("yes, it is", "yes it is"),
            ("1,000", "1000"),
            ("2.5", "2.5"),
            ("2.", "2"),
            ("2. 5", "2 5"),
            (".5", ".5"),
            ("no.", "no"),
            ("  an  apple\n", "apple"),
            ("isnt", "isn't"),
            ("couldnt've couldn'tve couldntve", "couldn't've couldn't've couldntve"),  # one apostrophe, not two
            ("im sure, lets go", "im sure lets go"),  # not in the official list
            ("yall'd've 'ows'at twas", "y'all'd've 'ow's'at 'twas"),
            ("x,y-,z", "x y z"),  # each mark is judged by the answer as it was given
            ("1,000!x", "1000x"),
            ("x - b-c", "x bc"),
        ],
    )
    def test_normal_form(self, answer, normal):
        assert normalize_answer(answer) == normal

    @pytest.mark.parametrize("given", [1, 2, 3, 4, 10])
    def test_scores_are_means_over_nine_people(self, given):
        answers = ["yes"] * given + [f"other{i}" for i in range(10 - given)]
        expected = []
        for left_out in range(10):
            others = answers[:left_out] + answers[left_out + 1 :]
            expected.append(min(1, others.count("yes") / 3))
        assert answer_scores(answers)["yes"] == pytest.approx(np.mean(expected))
        assert vqa_accuracy(["Yes!"], [answers]) == pytest.approx(np.mean(expected))

    def test_vocabulary_and_accuracy(self):
        answers = [["yes"] * 10, ["yes"] * 5 + ["no"] * 5, ["maybe"] + ["no"] * 9]
        assert answer_vocabulary(answers) == ["no", "yes", "maybe"]
        assert answer_vocabulary(answers, size=1) == ["no"]
        assert vqa_accuracy(["yes", "no", "never"], answers) == pytest.approx(2 / 3)
        with pytest.raises(ValueError, match="got 1 for 3"):
            vqa_accuracy(["yes"], answers)


def test_phrases_with_boxes_of_each_dataset(tmp_path):
    rows = phrase_rows(RegionDataArguments(num_train_images=1, num_eval_images=2, image_size=32))
    assert len(rows) == 2 and {"image", "captions", "boxes", "phrases"} <= set(rows.column_names)
    folder, images = write_entities(tmp_path / "entities")
    entities = RegionDataArguments("flickr30k_entities", data_dir=str(folder), images_dir=str(images))
    assert phrase_rows(entities, "train")["image_id"][:] == ["100", "200"]
    (tmp_path / "refcoco").mkdir()
    TestReferring().write(tmp_path / "refcoco")
    referring = RegionDataArguments(
        "refcoco", data_dir=str(tmp_path), images_dir=str(tmp_path / "refcoco"), num_eval_images=1
    )
    assert phrase_rows(referring, "val")["expression"][:] == ["left man"]
    with pytest.raises(ValueError, match="has no split 'testA'; its splits are 'train', 'val'"):
        phrase_rows(referring, "testA")
    with pytest.raises(ValueError, match="must be one of 'scenes', 'flickr30k_entities', 'refcoco'"):
        phrase_rows(RegionDataArguments("vqa", data_dir="."))


class TestReferring:
    def write(self, folder: Path, refs=None) -> Path:
        refs = refs or [
            {
                "ref_id": 5,
                "ann_id": 2,
                "image_id": 9,
                "split": split,
                "sentences": [{"sent": "left man"}, {"sent": "man"}],
            }
            for split in ("train", "val")
        ]
        (folder / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
        annotations = [
            {"id": 1, "image_id": 9, "bbox": [0, 0, 10, 10]},
            {"id": 2, "image_id": 9, "bbox": [5, 6, 20, 10]},
        ]
        instances = {"images": [{"id": 9, "file_name": "nine.jpg"}], "annotations": annotations}
        (folder / "instances.json").write_text(json.dumps(instances))
        Image.new("RGB", (40, 30)).save(folder / "nine.jpg")
        return folder

    def test_files(self, tmp_path):
        splits = load_referring(self.write(tmp_path), tmp_path)
        assert {split: rows["expression"][:] for split, rows in splits.items()} == {
            "train": ["left man", "man"],
            "val": ["left man", "man"],
        }
        row = splits["val"][0]
        assert row["box"] == [5, 6, 25, 16] and row["boxes"] == [[0, 0, 10, 10], [5, 6, 25, 16]]
        with pytest.raises(FileNotFoundError, match=r"no 'refs\(google\).p' .*files are \['refs\(unc\).p'\]"):
            load_referring(tmp_path, tmp_path, "google")
        (tmp_path / "nine.jpg").unlink()
        with pytest.raises(FileNotFoundError, match="reference 5: there is no image 'nine.jpg'"):
            load_referring(tmp_path, tmp_path)
        missing = [{"ref_id": 5, "ann_id": 77, "image_id": 9, "split": "train", "sentences": []}]
        with pytest.raises(ValueError, match="reference 5 .* annotation 77"):
            load_referring(self.write(tmp_path, missing), tmp_path)

    def test_nothing_in_a_pickle_is_run(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return Path.touch, (tmp_path / "was_run",)

        self.write(tmp_path)
        (tmp_path / "refs(unc).p").write_bytes(pickle.dumps([Evil()]))
        with pytest.raises(ValueError, match="cannot be read: .*plain data"):
            load_referring(tmp_path, tmp_path)
        assert not (tmp_path / "was_run").exists()

    @pytest.mark.parametrize(
        "pickled",
        [
            *(b"", b"\x80", b"\x80\x63.", b"not a pickle", b"(lp0\n", b"I1", b".", b"0.", b"]K\x01a", b"h\x05."),
            *(b"cos\nsystem\n.", b"N}R.", b"]Nb.", b"(N(t\x93.", b"P1\n.", b"V\\ud8\n.", b"L" + b"9" * 5000 + b"L\n."),
            *(b"\x8e" + b"\xff" * 8 + b".", b"\x95" + b"\xff" * 8 + b"N.", b"Fabc\n.", b"S'a\n.", b"\x82\x01."),
            *(b"Nr\xff\xff\xff\x0f.", b"Np99999999\n."),  # these would need 4 GB and 1.6 GB
        ],
        ids=str,
    )
    def test_a_damaged_pickle_is_named(self, pickled, tmp_path):
        self.write(tmp_path)
        (tmp_path / "refs(unc).p").write_bytes(pickled)
        with pytest.raises(ValueError, match=r"refs\(unc\).p cannot be read: \w+: .+\.$|must contain a list") as error:
            load_referring(tmp_path, tmp_path)
        assert len(str(error.value)) < 500

    REF = {"ref_id": 5, "ann_id": 2, "image_id": 9, "split": "train", "sentences": [{"sent": "man"}]}

    @pytest.mark.parametrize(
        "refs, message",
        [
            ({"a": 1}, "list of references.* dict"),
            ([3], "reference 0 .*object.* 3"),
            ([{}], "reference 0 has no 'ref_id'"),
            ([REF | {"ref_id": "5"}], "'ref_id' of .*reference 0 .*integer.* '5'"),
            ([REF | {"image_id": None}], "'image_id' of .* .*integer.* None"),
            ([REF | {"image_id": 10}], "annotation 2 of image 10"),
            ([REF | {"split": 3}], "'split' of .*reference 5 .*string.* 3"),
            ([REF | {"sentences": "man"}], "'sentences' of .* .*list.* 'man'"),
            ([REF | {"sentences": ["man"]}], r"sentences\[0\] .*object.* 'man'"),
            ([REF | {"sentences": [{"sent": ["man"]}]}], "'sent' of .* .*string.* a list"),
            ([REF | {"sentences": [{"sent": "\ud800"}]}], "half of a surrogate pair"),
        ],
        ids=lambda value: str(value)[-40:].encode("ascii", "replace").decode(),
    )
    def test_wrong_references_are_named(self, refs, message, tmp_path):
        with pytest.raises(ValueError, match=message) as error:
            load_referring(self.write(tmp_path, refs), tmp_path)
        assert "refs(unc).p" in str(error.value) and len(str(error.value)) < 500

    @pytest.mark.parametrize(
        "images, annotations, message",
        [
            (None, [], "'images' of .*instances.json .*list.* None"),
            ([{"id": 9}], [], r"images\[0\] has no 'file_name'"),
            ([{"id": 9, "file_name": 3}], [], "'file_name' of .* .*string.* 3"),
            ([{"id": 9, "file_name": "x" * 5000}], None, "there is no image 'xxxxx"),
            ([{"id": 9, "file_name": "../nine.jpg"}], None, "the image '../nine.jpg' is not inside"),
            (
                ...,
                [{"id": 2, "image_id": 9, "bbox": [[1, 2], [3, 4]]}],
                r"annotations\[0\] must be four finite numbers",
            ),
            (..., [{"id": 2, "image_id": 9, "bbox": [1, 2, 3]}], "must be four finite numbers"),
            (..., [{"id": 2, "image_id": 9, "bbox": [1, 2, float("inf"), 3]}], "must be four finite numbers"),
            (..., [{"id": 2, "image_id": 9, "bbox": "1234"}], "'bbox' of .* .*list.* '1234'"),
            (..., [{"id": 2, "image_id": 9, "bbox": [1, 2, 0, 3]}], "reference 5 .*annotation 2 .*box"),
            (..., [{"id": 2, "image_id": [9], "bbox": [1, 2, 3, 3]}], "'image_id' .* .*integer.* a list"),
        ],
        ids=lambda value: str(value)[-40:],
    )
    def test_wrong_instances_are_named(self, images, annotations, message, tmp_path):
        self.write(tmp_path)
        instances = json.loads((tmp_path / "instances.json").read_text())
        instances["images"] = instances["images"] if images is ... else images
        instances["annotations"] = instances["annotations"] if annotations is None else annotations
        (tmp_path / "instances.json").write_text(json.dumps(instances))
        with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
            load_referring(tmp_path, tmp_path)
        assert len(str(error.value)) < 500

    def test_overlap(self):
        boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [2, 2, 4, 4]])
        np.testing.assert_allclose(box_iou(boxes, [0, 0, 10, 10]), [1, 1 / 3, 0, 0.04])
        right = [[0, 0, 10, 10]] * 4
        assert referring_accuracy(boxes, right) == 0.25
        assert referring_accuracy(boxes, right, threshold=0.3) == 0.5
        with pytest.raises(ValueError, match="one box per expression"):
            referring_accuracy(boxes, right[:2])


class TestCollators:
    @pytest.fixture
    def setting(self):
        from transformers import CLIPImageProcessorPil

        images = grounded_scenes(load_scenes(4, 0, 0, 32)["train"])
        texts = [c for captions in images["captions"] for c in captions]
        texts += [q["question"] for questions in images["questions"] for q in questions]
        tokenizer = train_wordpiece_tokenizer(texts)
        image_processor = CLIPImageProcessorPil(size={"height": 16, "width": 16}, do_center_crop=False)
        return images, GroundedVisualBertProcessor(image_processor, tokenizer)

    def test_caption_pairs(self, setting):
        images, processor = setting
        paraphrases = dict(zip(images["image_id"], images["paraphrases"], strict=True))
        rows = make_caption_pairs(images, paraphrases, np.array([[1], [0], [3], [2]]))
        batch = CaptionPairCollatorForVGP(processor, images)(list(rows))
        assert batch["labels"].tolist() == rows["label"][:]
        assert (batch["pair_labels"] != -100).sum() == sum(len(row["pairs"]) for row in rows)
        tokenizer = processor.tokenizer
        for i, row in enumerate(rows):
            said = [row["caption1"][p["start"] : p["end"]] for p in row["phrases1"]]
            said += [row["caption2"][p["start"] : p["end"]] for p in row["phrases2"]]
            spans = [span for span in batch["phrase_spans"][i].tolist() if span[1]]
            assert [tokenizer.decode(batch["input_ids"][i, a:b]) for a, b in spans] == said
            width = images[row["row"]]["image"].size[0]
            image = i * len(batch["boxes"]) // len(rows)
            expected = [[0, 0, 1, 1], *([x / width for x in box] for box in images[row["row"]]["boxes"])]
            real = batch["visual_attention_mask"][image] == 1
            torch.testing.assert_close(batch["boxes"][image][real], torch.tensor(expected))

    def test_pairs_of_an_image_share_it(self, setting):
        images, processor = setting
        rows = make_caption_pairs(images, {}, np.array([[1], [0], [3], [2]]))
        collator = CaptionPairCollatorForVGP(processor, images)
        batch = collator([rows[i] for i in (0, 1, 20, 21, 60, 61)])
        assert batch["pixel_values"].shape[0] == batch["boxes"].shape[0] == 3 and len(batch["input_ids"]) == 6
        assert (
            len(collator([rows[i] for i in (0, 1, 20)])["pixel_values"]) == 3
        )  # different numbers of texts: images are not shared

    def test_groups_of_an_image_stand_together(self):
        images = [0] * 5 + [1] * 4 + [2] * 4
        sampler = ImageGroupSampler(images, 2)
        drawn = list(sampler)
        assert sorted(drawn) == list(range(13)) and len(sampler) == 13
        assert all(images[drawn[i]] == images[drawn[i + 1]] for i in range(0, 12, 2))
        assert drawn == list(sampler)
        sampler.set_epoch(1)
        assert drawn != list(sampler)
        assert images[drawn[12]] == 0  # the incomplete group is last

    def test_masked_words(self, setting):
        images, processor = setting
        rows = make_caption_pairs(images, {}, np.array([[1], [0], [3], [2]]))
        collator = CaptionPairCollatorForVGP(processor, images, mask_words=True)
        batch = collator(list(rows))
        assert torch.equal(collator(list(rows))["masked_input_ids"], batch["masked_input_ids"])
        chosen = batch["masked_labels"] != -100
        assert torch.equal(batch["masked_labels"][chosen], batch["input_ids"][chosen])
        assert torch.equal(batch["masked_input_ids"][~chosen], batch["input_ids"][~chosen])
        special = torch.isin(batch["input_ids"], torch.tensor(processor.tokenizer.all_special_ids))
        assert not (chosen & special).any()
        assert 0.1 < chosen.sum() / (~special).sum() < 0.2
        is_mask = batch["masked_input_ids"][chosen] == processor.tokenizer.mask_token_id
        assert 0.7 < is_mask.float().mean() < 0.9

    def test_questions(self, setting):
        images, processor = setting
        rows = [
            {"row": 2, "question": "is there a red circle?", "answers": ["yes"] * 2 + ["no"] * 8},
            {"row": 0, "question": "how many?", "answers": ["two"] * 9 + ["never heard"]},
        ]
        batch = QuestionCollator(processor, images, ["no", "2", "yes"])(rows)
        torch.testing.assert_close(batch["labels"], torch.tensor([[1, 0, 0.6], [0, 1, 0]]))
        assert ((batch["input_ids"] == processor.tokenizer.mask_token_id).sum(dim=1) == 1).all()

    def test_referring(self, setting):
        images, processor = setting
        rows = [{"row": i, **images[i]["referring"][-1]} for i in range(4)]
        rows = [{**row, "box": [side / 32 for side in row["box"]]} for row in rows]
        batch = ReferringCollator(processor, images)(rows)
        for labels, row in zip(batch["labels"].tolist(), rows, strict=True):
            assert [i for i, label in enumerate(labels) if label] == [row["object"] + 1]

    def test_cached_features_stand_for_images(self, setting):
        images, processor = setting
        rows = [{"row": 1, "question": "how many?", "answers": ["two"]}]
        cached = [{"image_features": np.ones((2, 2, 3), dtype=np.float16), "boxes": [[0, 0, 0.5, 0.5]]}] * 4
        batch = QuestionCollator(processor, cached, ["2"])(rows)
        assert batch["image_features"].shape == (1, 2, 2, 3) and "pixel_values" not in batch
        assert batch["boxes"].tolist() == [[[0, 0, 1, 1], [0, 0, 0.5, 0.5]]]
