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
from collections import Counter

import pytest
import torch
from datasets import Dataset
from transformers import CLIPImageProcessorPil

from hf_vg.data import CaptionPairCollator, train_word_tokenizer
from hf_vg.data.caption_pairs import fixed_caption_pairs
from hf_vg.data.draws import image_number
from hf_vg.models.self_attn_grounded_encoder import SelfAttnGroundedEncoderProcessor
from tests.common import random_images


CAPTIONS = ["a red circle", "one circle", "a round thing in red"]


@pytest.fixture
def collator():
    image_processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    return CaptionPairCollator(SelfAttnGroundedEncoderProcessor(image_processor, train_word_tokenizer(CAPTIONS)))


def decoded(collator, batch, row=0):
    decode = collator.processor.tokenizer.decode
    target = [id for id in batch["labels"][row].tolist() if id != -100]
    return tuple(decode(ids, skip_special_tokens=True) for ids in (batch["input_ids"][row], target))


def test_draws_two_different_captions_each_as_often(collator):
    row = {"image_id": "7.jpg", "captions": CAPTIONS}

    def batch(other: int) -> dict[str, torch.Tensor]:
        return collator([row, {"image_id": f"{other}.jpg", "captions": CAPTIONS}])

    pairs = Counter(decoded(collator, batch(other)) for other in range(600))
    # A resumed run must draw the same pairs, whatever was drawn in between.
    assert all(torch.equal(batch(3)["input_ids"], batch(3)["input_ids"]) for _ in range(5))
    assert len(pairs) == 6 and all(first != second for first, second in pairs)
    assert all(60 < count < 140 for count in pairs.values())


def test_images_and_features(collator):
    rows = [{"image_id": name, "captions": CAPTIONS} for name in ("a", "b", "a")]
    assert set(collator(rows)) == {"input_ids", "attention_mask", "labels", "image_ids"}
    images = collator([{**row, "image": image} for row, image in zip(rows, random_images(3), strict=True)])
    assert images["pixel_values"].shape == (3, 3, 8, 8)
    half = torch.ones(4, dtype=torch.float16)
    features = collator([{**row, "image_features": half} for row in rows])["image_features"]
    assert features.dtype == torch.float32 and features.shape == (3, 4)


def test_images_keep_their_numbers_everywhere(collator):
    rows = [{"image_id": name, "captions": CAPTIONS} for name in ("a", "b", "a")]
    numbers = collator(rows)["image_ids"]
    assert numbers.dtype == torch.int64 and numbers[0] == numbers[2] != numbers[1]
    assert image_number("1000268201.jpg") == 5939944826912204222  # the same in every process


def test_fixed_pairs_stay_the_same(collator):
    dataset = Dataset.from_dict({"image_id": ["a", "b"], "captions": [CAPTIONS, CAPTIONS[1:]]})
    fixed = fixed_caption_pairs(dataset)
    assert sorted(fixed.column_names) == ["caption", "image_id", "target_caption"]
    for _ in range(3):
        batch = collator(list(fixed))
        assert decoded(collator, batch, 0) == tuple(CAPTIONS[:2])
        assert decoded(collator, batch, 1) == tuple(CAPTIONS[1:])


def test_an_image_with_one_caption_is_named(collator):
    with pytest.raises(ValueError, match="Image 'x.jpg' .*two captions.* 1"):
        collator([{"image_id": "x.jpg", "captions": ["only one"]}])
    with pytest.raises(ValueError, match="Image 'x.jpg' must have at least two captions"):
        fixed_caption_pairs(Dataset.from_dict({"image_id": ["x.jpg"], "captions": [["only one"]]}))
