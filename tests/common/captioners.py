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
"""Tests for all captioners, in addition to those for all models."""

import copy

import pytest
import torch
from transformers import AutoProcessor, set_seed

from hf_vg.interpretation import record_attention, word_maps

from .inputs import random_images
from .models import ModelTesterMixin
from .processes import run_without_hf_vg


class CaptionerTesterMixin(ModelTesterMixin):
    r"""Mixin for captioners. A subclass also has `processor()`, a tiny processor that fits the config."""

    outputs_to_compare = ("logits",)
    # Decoding options whose result must not depend on the cache, on batching or on precomputed features.
    decodings = {"greedy": {}, "beam": {"num_beams": 3}, "beams": {"num_beams": 4, "num_return_sequences": 2}}

    def processor(self):
        raise NotImplementedError

    def images(self, count: int = 3) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.inputs(count)["pixel_values"]}

    def generate(self, model, inputs, **kwargs):
        return model.generate(**inputs, **{"max_new_tokens": 8, "do_sample": False, **kwargs})

    @pytest.mark.parametrize("decoding", decodings)
    def test_cache_changes_nothing(self, decoding):
        model, images = self.model(), self.images()
        kwargs = {**self.decodings[decoding], "return_dict_in_generate": True, "output_scores": True}
        cached = self.generate(model, images, use_cache=True, **kwargs)
        plain = self.generate(model, images, use_cache=False, **kwargs)
        assert cached.sequences.tolist() == plain.sequences.tolist()
        for with_cache, without in zip(cached.scores, plain.scores, strict=True):
            torch.testing.assert_close(with_cache, without, rtol=1e-4, atol=1e-5)

    @torch.no_grad()
    def test_generation_reads_its_settings_off_the_config(self):
        model, ids = self.model(), torch.tensor([[0, 4]] * 3)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            assert getattr(model.generation_config, name) == getattr(model.config, name) is not None, name
        assert model(**self.images(), decoder_input_ids=ids).past_key_values is not None
        model.config.use_cache = False
        assert model(**self.images(), decoder_input_ids=ids).past_key_values is None

    @pytest.mark.parametrize("decoding", decodings)
    def test_batched_generation_equals_one_by_one(self, decoding):
        model, images = self.model(), self.images(3)
        kwargs = self.decodings[decoding]
        batch = self.generate(model, images, **kwargs)
        per_image = kwargs.get("num_return_sequences", 1)
        for row in range(3):
            single = self.generate(model, {name: v[row : row + 1] for name, v in images.items()}, **kwargs)
            rows = batch[row * per_image : (row + 1) * per_image, : single.shape[1]]
            assert single.tolist() == rows.tolist()

    def test_sampling_is_reproducible_and_varies(self):
        model, images = self.model(), self.images(1)

        def sample(seed):
            set_seed(seed)
            return self.generate(model, images, do_sample=True, num_return_sequences=4).tolist()

        assert sample(0) == sample(0)
        assert sample(0) != sample(1)

    def test_beam_sampling_and_dict_outputs(self):
        model, images = self.model(), self.images(2)
        set_seed(0)
        outputs = self.generate(
            model,
            images,
            do_sample=True,
            num_beams=3,
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            output_attentions=True,
            output_hidden_states=True,
        )
        assert len(outputs.sequences) == 4 and torch.isfinite(outputs.sequences_scores).all()
        steps = len(outputs.scores)
        assert len(outputs.logits) == len(outputs.cross_attentions) == len(outputs.decoder_hidden_states) == steps
        assert all(step is not None and torch.isfinite(step[-1]).all() for step in outputs.decoder_hidden_states)

    @pytest.mark.parametrize("argument", ["decoder_input_ids", "input_ids"])
    @pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3}], ids=["greedy", "beam"])
    def test_a_prefix_is_kept_and_continued(self, kwargs, argument):
        """A prompt with or without the start token gives the caption that begins with these words."""
        model, images = self.model(), self.images(2)
        start, words = model.config.decoder_start_token_id, torch.tensor([[5, 7], [6, 4]])
        prefix = torch.cat([torch.full((2, 1), start), words], dim=1)
        expected = self.generate(model, images, decoder_input_ids=prefix, max_new_tokens=4, **kwargs)
        assert torch.equal(expected[:, 1:3], words) and expected.shape[1] > 3
        actual = self.generate(model, images, **{argument: words}, max_new_tokens=4, **kwargs)
        assert torch.equal(actual, expected)
        for row in range(2):
            alone = {name: value[row : row + 1] for name, value in images.items()}
            single = self.generate(model, alone, decoder_input_ids=prefix[row : row + 1], max_new_tokens=4, **kwargs)
            assert single.tolist() == expected[row : row + 1, : single.shape[1]].tolist()

    def test_a_tokenized_prompt_is_continued(self):
        """Tokenizers and processors add an end token and padding. Captions continue before them."""
        model, images, processor = self.model(), self.images(3), self.processor()
        model.get_output_embeddings().bias.data[model.config.eos_token_id] = -100.0
        texts = ["a red", "", "two blue squares"]
        prompts = [processor.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        alone = [
            self.generate(
                model,
                {name: value[row : row + 1] for name, value in images.items()},
                decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *prompt]]),
                max_new_tokens=3,
                num_beams=2,
            )[0].tolist()
            for row, prompt in enumerate(prompts)
        ]
        assert [len(row) for row in alone] == [1 + len(prompt) + 3 for prompt in prompts]
        batches = [processor(text=texts, return_tensors="pt", padding_side=side) for side in ("left", "right")]
        batches.append({"input_ids": processor.tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]})
        for batch in batches:
            generated = self.generate(model, images, **batch, max_new_tokens=3, num_beams=2)
            assert generated.shape == (3, max(map(len, alone)))
            for row, expected in zip(generated.tolist(), alone, strict=True):
                assert row[: len(expected)] == expected
                assert set(row[len(expected) :]) <= {model.config.pad_token_id}
        with pytest.raises(ValueError, match="return_dict_in_generate"):
            self.generate(model, images, **batches[0], return_dict_in_generate=True)
        same = processor(text=["a red", "two blue", "a circle"], return_tensors="pt")
        outputs = self.generate(model, images, **same, return_dict_in_generate=True)
        assert torch.equal(outputs.sequences[:, :3], same["decoder_input_ids"])

    @torch.no_grad()
    def test_continues_from_a_returned_cache(self):
        model, images = self.model(), self.images(2)
        model.get_output_embeddings().bias.data[model.config.eos_token_id] = -100.0
        whole = self.generate(model, images, max_new_tokens=6)
        first = self.generate(model, images, max_new_tokens=3, return_dict_in_generate=True)
        rest = self.generate(
            model,
            images,
            decoder_input_ids=first.sequences,
            past_key_values=first.past_key_values,
            max_new_tokens=3,
        )
        assert torch.equal(rest, whole)
        expected = model(**images, decoder_input_ids=whole).logits
        begun = model(**images, decoder_input_ids=whole[:, :3], use_cache=True)
        continued = model(**images, decoder_input_ids=whole[:, 3:], past_key_values=begun.past_key_values)
        torch.testing.assert_close(torch.cat([begun.logits, continued.logits], 1), expected, rtol=1e-4, atol=1e-5)

    def test_assisted_decoding_agrees_or_is_refused(self):
        model, images = self.model(), self.images(1)
        try:
            assisted = self.generate(model, images, assistant_model=self.model())
        except (ValueError, NotImplementedError) as error:
            assert "assist" in str(error)
        else:
            assert assisted.tolist() == self.generate(model, images).tolist()

    @torch.no_grad()
    def test_exports_a_step_with_its_cache(self):
        model, images = self.model(), self.images(2)
        ids = torch.tensor([[0, 5], [0, 6]])
        begun = model(**images, decoder_input_ids=ids, use_cache=True)
        inputs = {**images, "decoder_input_ids": ids[:, 1:], "use_cache": True}
        state = copy.deepcopy(begun.past_key_values)
        exported = torch.export.export(model, (), {**inputs, "past_key_values": begun.past_key_values}, strict=False)
        expected = model(**inputs, past_key_values=copy.deepcopy(state)).logits
        actual = exported.module()(**inputs, past_key_values=state).logits
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

    def test_features_serve_as_well_as_pixels(self):
        model, images = self.model(), self.images()
        with torch.no_grad():
            features = model(**self.inputs()).encoder_last_hidden_state
        for kwargs in self.decodings.values():
            expected = self.generate(model, images, **kwargs).tolist()
            assert self.generate(model, {"image_features": features}, **kwargs).tolist() == expected

    def test_pixels_or_features_and_not_both(self):
        model, inputs = self.model(), self.inputs()
        with torch.no_grad():
            features = model(**inputs).encoder_last_hidden_state
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(**inputs, image_features=features)
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(labels=inputs["labels"])
        with pytest.raises(ValueError, match="image_features.*must be"):
            model(labels=inputs["labels"], image_features=features[..., :-1])

    def test_attention_rows_sum_to_one(self):
        model = self.model()
        with torch.no_grad():
            (attention,) = model(**self.inputs(), output_attentions=True).cross_attentions[-1:]
        torch.testing.assert_close(attention.sum(dim=-1), torch.ones(attention.shape[:-1]))

    @pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3}], ids=["greedy", "beam"])
    def test_word_maps_follow_the_words(self, kwargs):
        """The map of a word is the attention of the finished caption at that word's step."""
        model, images = self.model(), self.images()
        tokenizer = self.processor().tokenizer
        with record_attention(model) as record:
            outputs = self.generate(model, images, return_dict_in_generate=True, **kwargs)
        with torch.no_grad():
            teacher_forced = model(**images, decoder_input_ids=outputs.sequences[:, :-1], output_attentions=True)
        attentions = torch.stack([layer.mean(dim=1) for layer in teacher_forced.cross_attentions]).mean(dim=0)
        captions = word_maps(record, outputs, tokenizer, images)
        assert len(captions) == 3
        for ids, attention, caption in zip(outputs.sequences, attentions, captions, strict=True):
            words = [
                (id, row) for id, row in zip(ids[1:], attention, strict=True) if id not in tokenizer.all_special_ids
            ]
            assert [word for word, _ in caption] == [tokenizer.decode([id]) for id, _ in words]
            for (_, word_map), (_, row) in zip(caption, words, strict=True):
                assert word_map.shape == (4, 4) and word_map.sum().item() == pytest.approx(1)
                torch.testing.assert_close(word_map.flatten(), row, rtol=1e-4, atol=1e-6)

    def test_unknown_word_and_padding_are_never_generated(self):
        model, images = self.model(), self.images()
        hidden = {model.config.unk_token_id, model.config.pad_token_id}
        model.get_output_embeddings().bias.data[list(hidden)] = 100.0
        eos = model.config.eos_token_id
        for ids in self.generate(model, images, num_beams=2)[:, 1:].tolist():
            written = ids[: ids.index(eos)] if eos in ids else ids
            assert not hidden & set(written)
        asked_for = self.generate(model, images, suppress_tokens=None)
        assert hidden & set(asked_for[:, 1:].flatten().tolist())

    @pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3}], ids=["greedy", "beam"])
    def test_caption_that_never_ends_is_returned_as_far_as_it_came(self, kwargs):
        model, images = self.model(), self.images()
        eos = model.config.eos_token_id
        model.get_output_embeddings().bias.data[eos] = -100.0
        generated = self.generate(model, images, max_new_tokens=5, **kwargs)[:, 1:]
        assert generated.shape == (3, 5) and eos not in generated

    def test_least_length_and_length_penalty(self):
        model, images = self.model(), self.images()
        eos = model.config.eos_token_id
        model.get_output_embeddings().bias.data[eos] = 4.0  # every caption would end at once

        def lengths(**kwargs) -> list[int]:
            rows = self.generate(model, images, num_beams=4, **kwargs)[:, 1:].tolist()
            return [row.index(eos) if eos in row else len(row) for row in rows]

        shortest = lengths(length_penalty=-2.0)
        assert max(shortest) < 4 and min(lengths(min_new_tokens=5)) >= 4
        assert sum(lengths(length_penalty=8.0)) > sum(shortest)

    def test_captions_of_an_image_share_it(self):
        """Labels of shape (images, captions, length) give the same loss as repeated images."""
        model, inputs = self.model(), self.inputs(4)
        labels = inputs["labels"].view(2, 2, -1)
        shared = model(pixel_values=inputs["pixel_values"][:2], labels=labels)
        repeated = model(pixel_values=inputs["pixel_values"][:2].repeat_interleave(2, dim=0), labels=inputs["labels"])
        torch.testing.assert_close(shared.loss, repeated.loss)
        torch.testing.assert_close(shared.logits, repeated.logits)
        # A row without words is ignored.
        padded = torch.cat([labels, torch.full_like(labels[:, :1], -100)], dim=1)
        torch.testing.assert_close(model(pixel_values=inputs["pixel_values"][:2], labels=padded).loss, shared.loss)

    def test_padding_changes_no_loss(self):
        model, inputs = self.model(), self.inputs()
        longer = torch.nn.functional.pad(inputs["labels"], (0, 3), value=-100)
        torch.testing.assert_close(model(**inputs).loss, model(**{**inputs, "labels": longer}).loss)

    def test_training_loss_equals_evaluation_loss(self):
        """In training, only real tokens are projected to the vocabulary, and logits are not returned."""
        model, inputs = self.model_without_dropout(), self.inputs()
        training, evaluation = model.train()(**inputs), model.eval()(**inputs)
        assert training.logits is None and evaluation.logits is not None
        torch.testing.assert_close(training.loss, evaluation.loss)

    def test_processor_round_trip(self, tmp_path):
        processor, images = self.processor(), random_images(2)
        processor.save_pretrained(tmp_path)
        self.model().save_pretrained(tmp_path)
        loaded = AutoProcessor.from_pretrained(tmp_path)
        assert type(loaded) is type(processor)
        captions = ["a red circle", "two words"]
        expected = processor(images=images, text=captions, return_tensors="pt")
        actual = loaded(images=images, text=captions, return_tensors="pt")
        assert set(actual) == set(expected) == {"pixel_values", "decoder_input_ids", "labels"}
        for name in expected:
            assert torch.equal(actual[name], expected[name])
        ids = [[id for id in row if id != -100] for row in actual["labels"].tolist()]
        assert loaded.batch_decode(ids, skip_special_tokens=True)[0] == "a red circle"
        # A process without this package can use it too.
        printed = run_without_hf_vg(
            f"""
            from transformers import AutoProcessor
            processor = AutoProcessor.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)
            print(processor(text=["a red circle"])["labels"])
            """,
            tmp_path,
        )
        assert printed.strip() == str(processor(text=["a red circle"])["labels"])

    def test_overfits_a_batch(self):
        """A captioner must be able to memorize two captions."""
        set_seed(0)
        model, inputs = self.model().train(), self.inputs(2)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        for _ in range(120):
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        generated = self.generate(model, {"pixel_values": inputs["pixel_values"]})[:, 1:]
        for ids, labels in zip(generated.tolist(), inputs["labels"].tolist(), strict=True):
            expected = [label for label in labels if label != -100]
            assert ids[: len(expected)] == expected
