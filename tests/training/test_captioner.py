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
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText

from hf_vg.data import train_word_tokenizer, unknown_words
from hf_vg.training import CaptionerArguments, build_captioner, caption_collator, caption_scorer, load_captioner


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


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VISION = {**SMALL, "image_size": 32, "patch_size": 16}
NATIVE = {
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit", **VISION},
        "decoder": {
            **{"model_type": "gpt2", "add_cross_attention": True},
            **{"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16},
        },
    },
    "git": {"vision_config": {"model_type": "git_vision_model", **VISION}, **SMALL},
    "blip": {
        "vision_config": {"model_type": "blip_vision_model", **VISION},
        "text_config": {"model_type": "blip_text_model", "encoder_hidden_size": 8, **SMALL},
    },
    "llava": {
        "vision_config": {"model_type": "clip_vision_model", **VISION},
        "text_config": {"model_type": "llama", "num_key_value_heads": 2, **SMALL},
        "vision_feature_layer": -1,
    },
}


@pytest.mark.parametrize("model_type", NATIVE)
class TestCaptionersOfTransformers:
    rows = [
        {"image": Image.new("RGB", (32, 32), "red"), "captions": ["a red dog", "a dog that is red and runs"]},
        {"image": Image.new("RGB", (40, 30), "blue"), "captions": ["a cat"]},
    ]

    def build(self, model_type, **options):
        args = CaptionerArguments(
            **{"model_type": model_type, "model": NATIVE[model_type], "image_size": 32, "max_new_tokens": 5}, **options
        )
        tokenizer = train_word_tokenizer([caption for row in self.rows for caption in row["captions"]])
        torch.manual_seed(0)
        model, processor = build_captioner(args, tokenizer)
        return args, model.eval(), processor, caption_collator(args, model.config, processor)

    @pytest.mark.parametrize("longest", [None, 4])
    def test_the_loss_is_that_of_the_words_behind_what_generate_is_given(self, model_type, longest):
        _, model, processor, collator = self.build(model_type, max_caption_words=longest)
        rows = (
            self.rows if longest or collator.packs else [{**row, "captions": row["captions"][:1]} for row in self.rows]
        )
        losses, start = [], torch.tensor([[processor.tokenizer.eos_token_id]])
        for row in rows:
            prompt = collator.prompts([row])
            for caption in row["captions"]:
                if longest is not None and len(caption.split()) > longest:
                    continue
                ids = processor.tokenizer(caption)["input_ids"]
                for place, id in enumerate(ids):  # what a step of `generate` makes of the words before
                    given = torch.tensor([ids[:place]], dtype=torch.long)
                    inputs = {name: value for name, value in prompt.items() if name != "attention_mask"}
                    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
                    inputs[name] = torch.cat([prompt.get("input_ids", start), given], dim=1)
                    logits = model(**inputs).logits[0, -1]
                    losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(id)))
        assert len(losses) == (7 if longest or not collator.packs else 15)
        torch.testing.assert_close(model(**collator(rows)).loss, torch.stack(losses).mean())

    def test_it_is_scored_and_captions_alike_when_loaded_again(self, model_type, tmp_path):
        args, model, processor, collator = self.build(model_type)
        assert 0 <= caption_scorer(args, Dataset.from_list(self.rows), collator, 2)(model)["bleu1"] <= 1
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        loaded, processor = load_captioner(CaptionerArguments(checkpoint=str(tmp_path)))
        prompts = caption_collator(args, loaded.config, processor).prompts(self.rows)
        expected = model.generate(**collator.prompts(self.rows), do_sample=False)
        assert torch.equal(loaded.generate(**prompts, do_sample=False), expected)
