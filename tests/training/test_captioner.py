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
from transformers import AutoModelForImageTextToText

from hf_vg.data import train_word_tokenizer
from hf_vg.training import CaptionerArguments, build_captioner


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_checkpoint_decodes_as_it_was_scored(tmp_path, num_beams):
    fields = {"backbone_config": None, "feature_size": 4, "embedding_size": 8, "hidden_size": 8}
    args = CaptionerArguments(model=fields, num_beams=num_beams, length_penalty=0.0, max_new_tokens=7)
    model, _ = build_captioner(args, train_word_tokenizer(["a dog"]))
    model.save_pretrained(tmp_path)
    settings = AutoModelForImageTextToText.from_pretrained(tmp_path).generation_config
    assert (settings.num_beams, settings.max_new_tokens) == (num_beams, 7)
    if num_beams > 1:
        assert settings.length_penalty == 0.0
