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
import shutil

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText

from hf_vg.data import train_word_tokenizer, unknown_words
from hf_vg.pipelines import load_captioner as load_captioner_pipeline
from hf_vg.training import (
    CaptionerArguments,
    VgTrainer,
    VgTrainingArguments,
    build_captioner,
    caption_collator,
    caption_scorer,
    load_captioner,
)
from tests.common import random_images
from tests.interpretation.any_processors import PROCESSORS, save


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
        return args, model.eval(), processor, caption_collator(args, model, processor)

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
        prompts = caption_collator(args, loaded, processor).prompts(self.rows)
        expected = model.generate(**collator.prompts(self.rows), do_sample=False)
        assert torch.equal(loaded.generate(**prompts, do_sample=False), expected)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a tiny checkpoint with its processor, once."""
    made = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = save(name, tmp_path_factory.mktemp(name))
        return made[name]

    return folder


class TestAnyCheckpoint:
    # Prompts of different lengths where a model has more tokens for a larger image.
    rows = [
        {"image": random_images(1, size=48)[0].resize((48, 32)), "captions": ["a red dog"]},
        {"image": random_images(1, size=16)[0], "captions": ["a cat"]},
    ]

    def step_losses(self, model, collator, row):
        """The loss of each token, by a forward pass on what `generate` would have read so far."""
        prompt, losses = collator.prompts([row]), []
        (caption,) = collator._tokens(row["captions"])
        for place, token in enumerate(caption):
            inputs, new = dict(prompt), torch.tensor([caption[:place]], dtype=torch.long)
            if model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = torch.cat([torch.tensor([[collator.start]]), new], dim=1)
            else:
                inputs["input_ids"] = torch.cat(
                    [prompt.get("input_ids", torch.tensor([[collator.start]])), new], dim=1
                )
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
                for name in {"token_type_ids", "mm_token_type_ids"} & inputs.keys():
                    is_suffix = model.config.model_type == "paligemma"
                    inputs[name] = torch.cat([inputs[name], torch.full_like(new, int(is_suffix))], dim=1)
                if "cross_attention_mask" in inputs:
                    seen = inputs["cross_attention_mask"]
                    inputs["cross_attention_mask"] = torch.cat([seen, seen[:, -1:].repeat(1, place, 1, 1)], dim=1)
            with torch.no_grad():
                logits = model(**inputs).logits[0, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(token)))
        return losses

    @pytest.mark.parametrize("name", PROCESSORS)
    def test_the_loss_is_that_of_the_captions_alone(self, name, saved):
        args = CaptionerArguments(checkpoint=saved(name))
        model, processor = load_captioner(args)
        collator = caption_collator(args, model, processor)
        batch = collator(self.rows)
        expected = [loss for row in self.rows for loss in self.step_losses(model, collator, row)]
        assert (batch["labels"] != -100).sum() == len(expected) == len("a red dog") + len("a cat") + 2
        assert not (batch["labels"] == getattr(model.config, "image_token_id", 90)).any()
        torch.testing.assert_close(model(**batch).loss, torch.stack(expected).mean(), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", ["florence2", "git", "paligemma", "qwen2_5_vl", "vit_gpt2"])
    def test_it_learns_and_is_loaded_again(self, name, saved, tmp_path):
        args = CaptionerArguments(checkpoint=saved(name), max_new_tokens=4)
        model, processor = load_captioner(args)
        model.generation_config.suppress_tokens = None
        collator = caption_collator(args, model, processor)
        rows = Dataset.from_list([{**row, "captions": ["dog"]} for row in self.rows])
        settings = VgTrainingArguments(
            str(tmp_path),
            remove_unused_columns=False,
            max_steps=60,
            learning_rate=0.01,
            disable_tqdm=True,
            save_strategy="no",
            per_device_train_batch_size=2,
        )
        score = caption_scorer(args, rows, collator, 2)
        trainer = VgTrainer(
            model=model, args=settings, train_dataset=rows, data_collator=collator, processing_class=processor
        )
        trainer.train()
        assert score(model.eval())["bleu1"] == pytest.approx(1, abs=1e-6)
        trainer.save_model(tmp_path / "trained")
        captions = load_captioner_pipeline(str(tmp_path / "trained"))([row["image"] for row in self.rows])
        assert [caption["generated_text"] for (caption,) in captions] == ["dog", "dog"]

    @pytest.mark.parametrize("name", ["llava", "vit_gpt2", "git"])
    def test_a_tokenizer_without_a_padding_token(self, name, saved, tmp_path):
        shutil.copytree(saved(name), tmp_path / "copy")
        for file in (tmp_path / "copy").glob("*token*.json"):
            values = json.loads(file.read_text())
            values.pop("pad_token", None)
            file.write_text(json.dumps(values))
        args = CaptionerArguments(checkpoint=str(tmp_path / "copy"))
        model, processor = load_captioner(args)
        assert processor.tokenizer.pad_token == "</s>"
        batch, expected = (
            caption_collator(args, model, made)(self.rows)
            for made in (processor, load_captioner(CaptionerArguments(checkpoint=saved(name)))[1])
        )
        # The end of a caption is learned, and padding is not, though they are one token.
        assert torch.equal(batch["labels"], expected["labels"])
        torch.testing.assert_close(model(**batch).loss, model(**expected).loss)

    @pytest.mark.parametrize("name", ["blip", "git"])
    def test_a_tokenizer_of_bert(self, name, saved, tmp_path):
        """Has no `eos_token`: its [SEP] ends a caption, as BLIP and GIT were trained."""
        shutil.copytree(saved(name), tmp_path / "copy")
        for file in (tmp_path / "copy").glob("*token*.json"):
            values = json.loads(file.read_text())
            if values.pop("eos_token", None):
                values["sep_token"] = "</s>"
            values.pop("bos_token", None)
            file.write_text(json.dumps(values))
        args = CaptionerArguments(checkpoint=str(tmp_path / "copy"))
        model, processor = load_captioner(args)
        assert processor.tokenizer.eos_token is None
        labels = caption_collator(args, model, processor)(self.rows)["labels"]
        assert labels[0, -1] == 2 and (labels == 2).sum() == 2

    def test_fields_of_another_model_are_refused(self, saved):
        with pytest.raises(ValueError, match="unknown field freeze_backbone of GitConfig"):
            load_captioner(CaptionerArguments(checkpoint=saved("git"), model={"freeze_backbone": False}))

    def test_sizes_of_a_checkpoint_stay(self, saved):
        model, _ = load_captioner(
            CaptionerArguments(checkpoint=saved("git"), model={"hidden_size": 8, **NATIVE["git"]})
        )
        assert model.config.hidden_size == 16
