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
import pytest

from hf_vg.data import SENTENCE_TASKS, load_sentence_task
from tests.common import SHARED, needs_shared


def write_tasks(folder, rows: int = 12):
    """Writes tiny files in the formats of the real ones, with odd bytes, byte order marks and quotes."""
    for name in ("rt-polarity.all", "custrev.all", "subj.all", "mpqa.all"):
        lines = [f"{row % 2} word{row} " + "good " * (row % 5) for row in range(rows)]
        lines[3] = "1 caf\xe9 \x85 ends here"
        (folder / name).write_bytes("\n".join(lines).encode("latin-1") + b"\n")
    for split in ("train", "dev"):
        lines = [f"{row % 2} {split}{row} naïve" for row in range(rows)]
        (folder / f"stsa.binary.{split}").write_text("\n".join(lines), encoding="utf-8")
    for split in ("train", "val"):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f'{row % 2}\t1\t2\t{split} "first{row}\tsecond{row}' for row in range(rows)]
        (folder / f"msr-para-{split}.tsv").write_text("\r\n".join(lines), encoding="utf-8-sig")
    for split in ("train", "trial"):
        lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        judgments = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
        lines += [f"{row}\tA {row}\tB{row}\t{1 + row % 5 * 0.9:.1f}\t{judgments[row % 3]}" for row in range(rows)]
        (folder / f"SICK_{split}.txt").write_text("\n".join(lines))


def test_rows_are_sorted_and_read_whole(tmp_path):
    write_tasks(tmp_path)
    split = load_sentence_task("MR", tmp_path).splits["train"]
    assert len(split.sentences) == len(split.labels) == 12
    assert ("café ends here",) in split.sentences
    keys = [(len(s.split()), label) for (s,), label in zip(split.sentences, split.labels, strict=True)]
    assert keys == sorted(keys)
    assert split.labels[split.sentences.index(("word4 good good good good",))] == 0


def test_pairs(tmp_path):
    write_tasks(tmp_path)
    splits = load_sentence_task("MRPC", tmp_path).splits
    assert list(splits) == ["train", "test"]
    assert splits["test"].sentences[0] == ('val "first0', "second0")
    entailment, relatedness = (load_sentence_task(name, tmp_path).splits["train"] for name in ("SICK-E", "SICK-R"))
    row = entailment.sentences.index(("A 1", "B1"))
    assert entailment.labels[row] == 2
    assert relatedness.labels[relatedness.sentences.index(("A 1", "B1"))] == 1.9


def test_an_official_test_split_is_used_and_the_rest_trained_on(tmp_path):
    write_tasks(tmp_path)
    for source, copy in (
        ("msr-para-val.tsv", "msr-para-test.tsv"),
        ("stsa.binary.dev", "stsa.binary.test"),
        ("SICK_trial.txt", "SICK_test_annotated.txt"),
    ):
        (tmp_path / copy).write_bytes((tmp_path / source).read_bytes())
    splits = load_sentence_task("MRPC", tmp_path).splits
    assert {name: len(split.labels) for name, split in splits.items()} == {"train": 24, "test": 12}
    for name in ("SST2", "SICK-E", "SICK-R"):
        assert list(load_sentence_task(name, tmp_path).splits) == ["train", "dev", "test"]


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="rt-polarity.all"):
        load_sentence_task("MR", tmp_path)
    with pytest.raises(ValueError, match="'MRR'.* MR, CR"):
        load_sentence_task("MRR", tmp_path)
    write_tasks(tmp_path)
    with open(tmp_path / "mpqa.all", "a") as file:
        file.write("2 what label is this")
    with pytest.raises(ValueError, match="mpqa.all, line 13: .*`0 sentence`.*2 what"):
        load_sentence_task("MPQA", tmp_path)
    with open(tmp_path / "SICK_trial.txt", "a") as file:
        file.write("\n13\tonly a sentence")
    with pytest.raises(ValueError, match="SICK_trial.txt, line 14: .*5 columns.*only a sentence"):
        load_sentence_task("SICK-E", tmp_path)
    (tmp_path / "SICK_train.txt").write_text("pair_ID\tsentence_A\n")
    with pytest.raises(ValueError, match="SICK_train.txt .*'sentence_B'.*pair_ID, sentence_A"):
        load_sentence_task("SICK-R", tmp_path)


@needs_shared("data", "senteval")
def test_real_files_are_read_whole():
    sizes = {}
    for task in SENTENCE_TASKS:
        splits = load_sentence_task(task, SHARED / "data" / "senteval").splits
        sizes[task] = tuple(len(split.labels) for split in splits.values())
    assert sizes["MR"] == (10662,) and sizes["CR"] == (3775,) and sizes["SUBJ"] == (10000,)
    assert sizes["MPQA"] == (10606,) and sizes["SST2"] == (6920, 872) and sizes["MRPC"] == (3576, 500)
    assert sizes["SICK-E"] == sizes["SICK-R"] == (4500, 500)
