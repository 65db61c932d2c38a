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
from transformers import AutoModelForImageTextToText

from hf_vg.data import train_word_tokenizer, unknown_words
from hf_vg.training import CaptionerArguments, build_captioner, load_captioner


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_checkpoint_decodes_as_it_was_scored(tmp_path, num_beams):
    fields = {"backbone_config": None, "feature_size": 4, "embedding_size": 8, "hidden_size": 8}
    args = CaptionerArguments(model=fields, num_beams=num_beams, length_penalty=0.0, max_new_tokens=7)
    model, _ = build_captioner(args, train_word_tokenizer(["a dog"]))
    model.save_pretrained(tmp_path)
    settings = AutoModelForImageTextToText.from_pretrained(tmp_path).generation_config
    assert (settings.num_beams, settings.max_new_tokens) == (num_beams, 7)
    assert settings.length_penalty == (0.0 if num_beams > 1 else None)


class TestGoingOnFromACheckpoint:
    def save(self, folder):
        fields = {"backbone_config": None, "feature_size": 4, "embedding_size": 8, "hidden_size": 8}
        tokenizer = train_word_tokenizer(["a dog runs", "a cat sleeps"])
        model, processor = build_captioner(CaptionerArguments(model=fields), tokenizer)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return model

    def test_keeps_weights_words_and_sizes_and_takes_other_fields(self, tmp_path):
        trained = self.save(tmp_path)
        fields = {"hidden_size": 32, "num_init_layers": 1, "attention_type": "hard", "dropout": 0.25}
        args = CaptionerArguments(checkpoint=str(tmp_path), model=fields, num_beams=3, max_new_tokens=9)
        model, processor = load_captioner(args)
        assert (model.config.attention_type, model.config.dropout) == ("hard", 0.25)
        assert (model.config.hidden_size, model.config.num_init_layers) == (8, 2)
        assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (3, 9)
        assert processor.tokenizer.convert_tokens_to_ids("sleeps") != processor.tokenizer.unk_token_id
        for name, weight in trained.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=0)

    def test_decodes_as_before_unless_told(self, tmp_path):
        trained = self.save(tmp_path)
        assert (trained.generation_config.num_beams, trained.generation_config.max_new_tokens) == (1, 30)
        trained.generation_config.update(num_beams=4, length_penalty=0.5, max_new_tokens=7)
        trained.save_pretrained(tmp_path)
        for given, expected in (
            ({}, (4, 0.5, 7)),
            ({"length_penalty": 0.0, "max_new_tokens": 9}, (4, 0.0, 9)),
            ({"num_beams": 1}, (1, None, 7)),
        ):
            settings = load_captioner(CaptionerArguments(checkpoint=str(tmp_path), **given))[0].generation_config
            assert (settings.num_beams, settings.length_penalty, settings.max_new_tokens) == expected

    def test_the_share_of_unknown_words(self):
        tokenizer = train_word_tokenizer(["a dog runs", "a cat sleeps"])
        assert unknown_words(tokenizer, ["A dog barks.", "a cat"]) == pytest.approx(1 / 5)

    def test_has_a_backbone_of_its_own(self, tmp_path):
        self.save(tmp_path)
        with pytest.raises(ValueError, match="has one of its own"):
            load_captioner(CaptionerArguments(checkpoint=str(tmp_path), backbone="vgg16"))
