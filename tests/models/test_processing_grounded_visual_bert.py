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
import torch

from hf_vg.data import train_wordpiece_tokenizer
from hf_vg.models.grounded_visual_bert import GroundedVisualBertModel, GroundedVisualBertProcessor
from tests.common import random_images
from tests.common.processors import TEXTS, WORDS, ProcessorTesterMixin


class TestGroundedVisualBertProcessor(ProcessorTesterMixin):
    processor_class = GroundedVisualBertProcessor
    model_class = GroundedVisualBertModel
    text_names = ("input_ids", "attention_mask", "token_type_ids")
    other_names = ("boxes", "visual_attention_mask")
    pad_value = 0
    special_tokens = 2

    def tokenizer(self):
        return train_wordpiece_tokenizer(WORDS, vocab_size=80)

    def test_no_call_may_crop(self):
        with pytest.raises(ValueError, match="do_center_crop=False"):
            self.processor()(images=random_images(1), do_center_crop=True)

    def test_pairs_take_the_standard_arguments_too(self):
        batch = self.processor()(text=TEXTS, text_pair=TEXTS, padding="max_length", max_length=12, return_tensors="pt")
        assert batch["input_ids"].shape == (2, 12) and (batch["token_type_ids"] == 1).any()
        assert torch.equal(batch["attention_mask"], (batch["input_ids"] != 0).long())
