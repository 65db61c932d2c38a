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
"""Phrases with boxes become tokens: of captions, of mark-up, and of conversations of any processor."""

import pytest
import torch
from PIL import Image

from hf_vg.data import (
    CaptionCollator,
    PhraseChatCollator,
    find_phrases,
    grounded_captions,
    grounded_scenes,
    load_scenes,
)
from hf_vg.data.tokenizers import train_word_tokenizer
from hf_vg.training import CaptionerArguments, build_captioner, caption_collator
from tests.interpretation import any_processors
from tests.training.test_captioner import NATIVE


@pytest.fixture(scope="module")
def scenes():
    return list(grounded_scenes(load_scenes(4, 0, 0, image_size=32)["train"]))


def named(batch: dict, ids: torch.Tensor, tokenizer) -> list[tuple[str, list]]:
    """The text of each phrase of a batch, and its boxes in pixels of images of 32 x 32."""
    spans, boxes = batch["phrase_spans"].flatten(0, -3), batch["phrase_boxes"].flatten(0, -3)
    texts = len(spans) // len(batch["boxes"])
    found = []
    for row, (of_row, flags) in enumerate(zip(spans, boxes, strict=True)):
        for (start, end), flag in zip(of_row.tolist(), flags, strict=True):
            if end > start:
                shares = batch["boxes"][row // texts][flag > 0]
                words = tokenizer.decode(ids.flatten(0, -2)[row, start:end])
                found.append((words, sorted((32 * shares).round(decimals=2).tolist())))
    return found


def expected(rows: list[dict], captions: dict[int, list[int]] | None = None) -> list[tuple[str, list]]:
    return [
        (phrase["text"], sorted([round(side, 2) for side in row["boxes"][number]] for number in phrase["boxes"]))
        for number_of_row, row in enumerate(rows)
        for caption in (range(5) if captions is None else captions[number_of_row])
        for phrase in row["phrases"]
        if phrase["caption"] == caption
    ]


@pytest.mark.parametrize("model_type", NATIVE)
def test_phrases_of_captioners_of_transformers(model_type, scenes):
    args = CaptionerArguments(model_type=model_type, model=NATIVE[model_type], image_size=32, max_new_tokens=5)
    tokenizer = train_word_tokenizer(caption for row in scenes for caption in row["captions"])
    model, processor = build_captioner(args, tokenizer)
    collator = caption_collator(args, model, processor)
    batch = collator(scenes)
    found = named(batch, batch["labels"].masked_fill(batch["labels"] < 0, 0), tokenizer)
    wanted = expected(scenes)
    if collator.packs:
        assert sorted(words for words, _ in found) == sorted(words for words, _ in wanted)
    assert found and batch["missing_phrases"].sum() == 0
    for words, boxes in found:
        same = [other for text, other in wanted if text == words]
        assert any(
            torch.tensor(boxes).sub(torch.tensor(other)).abs().max() < 0.02
            for other in same
            if len(other) == len(boxes)
        )
    assert "phrase_spans" not in collator([{key: row[key] for key in ("image", "captions")} for row in scenes])


def test_phrases_of_our_captioners(scenes):
    tokenizer = train_word_tokenizer(caption for row in scenes for caption in row["captions"])
    args = CaptionerArguments(model={"backbone_config": None, "feature_size": 4}, image_size=32)
    _, processor = build_captioner(args, tokenizer)
    collator = CaptionCollator(processor, max_caption_words=8)
    batch = collator(scenes)
    assert batch["phrase_spans"].shape[:2] == batch["labels"].shape[:2] == (4, 5)
    found = named(batch, batch["labels"].masked_fill(batch["labels"] < 0, 0), tokenizer)
    short = {
        i: [n for n, text in enumerate(row["captions"]) if len(text.split()) <= 8] for i, row in enumerate(scenes)
    }
    assert [words for words, _ in found] == [words for words, _ in expected(scenes, short)]
    assert "phrase_spans" not in collator.prompts(scenes)


def test_phrases_are_found_as_words():
    found, missing = find_phrases(
        "Dogs see a dog and a Dog.",
        [("a dog", [0, 0, 1, 1]), ("a dog", [[2, 2, 3, 3], [4, 4, 5, 5]]), ("cat", [0] * 4)],
    )
    assert [(phrase["start"], phrase["end"], phrase["text"]) for phrase in found] == [
        (9, 14, "a dog"),
        (19, 24, "a Dog"),
    ]
    assert found[1]["boxes"] == [[2, 2, 3, 3], [4, 4, 5, 5]] and missing == ["cat"]
    assert find_phrases("a dog or a dog", [("a dog", [0] * 4)], start=3)[0][0]["start"] == 9
    assert find_phrases("dogs", [("dog", [0] * 4)])[1] == ["dog"]


def test_rows_from_pairs_and_from_mark_up():
    pairs = [("a dog", [0, 0, 9, 9]), ("a cat", [5, 0, 9, 9])]
    plain = grounded_captions(["A dog chases a cat.", "A dog runs."], pairs)
    marked = grounded_captions(
        ["[/EN#1/animals A dog] chases [/EN#2/animals a cat].", "[/EN#1/animals A dog] runs."],
        {"1": [[0, 0, 9, 9]], "2": [[5, 0, 9, 9]]},
    )
    assert plain == marked
    assert [phrase["caption"] for phrase in plain["phrases"]] == [0, 0, 1]
    with pytest.raises(ValueError, match="No caption contains the phrase 'a fox'"):
        grounded_captions(["A dog."], [("a fox", [0, 0, 9, 9])])


def conversation(answer: str = "A dog chases a cat", size: tuple[int, int] = (32, 32), phrases=None) -> dict:
    question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is a dog by the tree?"}]}
    boxes = [("a dog", [0, 0, 8, 8]), ("a cat", [24, 24, 32, 32]), ("the tree", [8, 8, 16, 16])]
    return {
        "messages": [question, {"role": "assistant", "content": [{"type": "text", "text": answer}]}],
        "images": [Image.new("RGB", size, "red")],
        "phrases": boxes if phrases is None else phrases,
    }


CHATS = ["llava", "llava_next", "qwen2_5_vl", "internvl", "idefics3", "gemma3"]


@pytest.mark.parametrize("name", CHATS)
def test_phrases_are_found_behind_the_image_tokens_of_any_processor(name):
    processor = any_processors.PROCESSORS[name]()
    batch = PhraseChatCollator(processor)([conversation(), conversation("So a dog is by a cat, I think.")])
    tokenizer = processor.tokenizer
    for row, dog in enumerate(("A dog", "a dog")):
        spans = batch["phrase_spans"][row].tolist()
        words = [tokenizer.decode(batch["input_ids"][row, start:end]) for start, end in spans]
        assert words == [dog, "a cat", "the tree"]
        is_learned = [bool((batch["labels"][row, start:end] != -100).all()) for start, end in spans]
        assert is_learned == [True, True, False]  # the tree is in the question alone
    learned = tokenizer.decode(batch["labels"][0][batch["labels"][0] != -100])
    assert learned.strip() == "A dog chases a cat"
    assert batch["missing_phrases"].tolist() == [0, 0]
    model_inputs = {key for key in batch if "phrase" not in key and key not in ("boxes", "labels")}
    assert model_inputs >= {"input_ids", "attention_mask", "pixel_values"}


def test_a_phrase_that_is_not_found_is_reported_and_counted(caplog):
    collator = PhraseChatCollator(any_processors.llava())
    rows = [conversation(phrases=[("a fox", [0, 0, 8, 8]), ("a cat", [24, 24, 32, 32])]), conversation()]
    with caplog.at_level("WARNING"):
        collator.warnings = 0
        batch = collator(rows)
    assert batch["missing_phrases"].tolist() == [1, 0]
    assert batch["phrase_spans"][0, 1].tolist() == [0, 0]
    with pytest.raises(ValueError, match="'a fox' is not in the conversation"):
        PhraseChatCollator(any_processors.llava(), strict=True)(rows)
    with pytest.raises(ValueError, match="has no chat template"):
        PhraseChatCollator(any_processors.blip())


def test_boxes_are_those_of_what_the_processor_leaves_of_the_image():
    """CLIP's processor cuts the middle out of a wide image: half of a box may be left, or nothing."""
    phrases = [("a dog", [0, 0, 8, 32]), ("a cat", [8, 0, 24, 32]), ("the tree", [16, 8, 32, 24])]
    batch = PhraseChatCollator(any_processors.llava())([conversation(size=(64, 32), phrases=phrases)])
    assert batch["missing_phrases"].tolist() == [1]
    assert batch["boxes"][0].tolist() == [[0.0, 0.0, 0.25, 1.0], [0.0, 0.25, 0.5, 0.75]]
