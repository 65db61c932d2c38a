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

from hf_vg.models.self_attn_grounded_encoder import (
    SelfAttnGroundedEncoderForPreTraining,
    SelfAttnGroundedEncoderProcessor,
)
from tests.common.processors import TEXTS, ProcessorTesterMixin


class TestSelfAttnGroundedEncoderProcessor(ProcessorTesterMixin):
    processor_class = SelfAttnGroundedEncoderProcessor
    model_class = SelfAttnGroundedEncoderForPreTraining

    def test_targets_are_labels(self):
        processor = self.processor()
        batch = processor(text=TEXTS, text_target=TEXTS, max_length=5)
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        assert batch["labels"] == [[id if id != 2 else -100 for id in row] for row in batch["input_ids"]]
        assert set(processor(text_target=TEXTS)) == {"labels"}
        with pytest.raises(TypeError, match=r"`text_target\[1\]` must be a str"):
            processor(text_target=["a", None])
