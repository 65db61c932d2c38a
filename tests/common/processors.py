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
"""Tests for all processors. A test class inherits from the mixin and provides its processor."""

import inspect

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, CLIPImageProcessorPil, PreTrainedTokenizerFast, ProcessorMixin

from hf_vg.data import train_word_tokenizer

from .inputs import random_images


WORDS = ["a red circle above two blue squares", "some words"]
TEXTS = ["a red circle", "some words above two blue squares"]  # 3 and 6 words


class ProcessorTesterMixin:
    r"""
    A subclass has `processor_class` and `model_class`, and overrides these if they differ:

    - `text_names`: the outputs for `text`. The first holds token ids, padded with `pad_value`;
    - `other_names`: the outputs for images, in addition to `pixel_values`;
    - `tokenizer()`, and `special_tokens`, the number of tokens that it adds to a text.
    """

    processor_class: type[ProcessorMixin]
    model_class: type
    text_names: tuple[str, ...] = ("input_ids", "attention_mask")
    other_names: tuple[str, ...] = ()
    pad_value = 2
    special_tokens = 1

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return train_word_tokenizer(WORDS)

    def image_processor(self, **kwargs) -> CLIPImageProcessorPil:
        return CLIPImageProcessorPil(**{"size": {"height": 8, "width": 8}, "do_center_crop": False, **kwargs})

    def processor(self, **kwargs) -> ProcessorMixin:
        return self.processor_class(self.image_processor(**kwargs), self.tokenizer())

    def lengths(self, features) -> list[int]:
        """Returns the number of tokens of each text, without padding."""
        return [sum(id != self.pad_value for id in row) for row in features[self.text_names[0]]]

    def test_the_first_line_that_everybody_types(self):
        processor = self.processor()
        arguments = {"padding": True, "truncation": True, "max_length": 4, "return_tensors": "pt"}
        batch = processor(images=random_images(2), text=TEXTS, **arguments)
        assert set(batch) == {"pixel_values", *self.text_names, *self.other_names}
        assert all(isinstance(value, torch.Tensor) for value in batch.values())
        assert batch["pixel_values"].shape == (2, 3, 8, 8)
        for name in self.text_names:
            assert batch[name].shape == (2, 4)
        assert processor(random_images(2), TEXTS, **arguments).keys() == batch.keys()

    def test_text_alone(self):
        processor, special = self.processor(), self.special_tokens
        batch = processor(text=TEXTS)
        assert set(batch) == set(self.text_names)
        assert self.lengths(batch) == [3 + special, 6 + special]
        assert {len(row) for name in self.text_names for row in batch[name]} == {6 + special}
        assert self.lengths(processor(text=TEXTS, padding=False)) == [3 + special, 6 + special]
        assert [len(row) for row in processor(text=TEXTS, padding=False)[self.text_names[0]]] == [
            3 + special,
            6 + special,
        ]
        batch = processor(text=TEXTS[0], padding="max_length", max_length=11, return_tensors="np")
        assert batch[self.text_names[0]].shape == (1, 11) and self.lengths(batch) == [3 + special]
        cut = processor(text=TEXTS, max_length=4)
        assert self.lengths(cut) == [min(4, 3 + special), 4]
        # Options of one call do not affect the next call.
        assert self.lengths(processor(text=TEXTS)) == [3 + special, 6 + special]
        end = [row[-1] for row in processor(text=TEXTS, padding=False)[self.text_names[0]]]
        assert [row[-1] for row in cut[self.text_names[0]]] == end  # the end token is kept
        padded = processor(text=TEXTS, padding_side="left")[self.text_names[0]]
        assert padded[0][: 6 - 3] == [self.pad_value] * 3

    def test_images_alone(self):
        processor = self.processor()
        for images in (random_images(1)[0], random_images(1), np.zeros((12, 12, 3), dtype=np.uint8)):
            batch = processor(images=images, return_tensors="pt")
            assert set(batch) == {"pixel_values", *self.other_names}
            assert batch["pixel_values"].shape == (1, 3, 8, 8)

    def test_arguments_of_the_image_processor_reach_it(self):
        processor, (image,) = self.processor(), random_images(1, size=8)
        normal = processor(images=image, return_tensors="pt")["pixel_values"]
        plain = processor(images=image, do_normalize=False, return_tensors="pt")["pixel_values"]
        expected = torch.tensor(np.asarray(image)).permute(2, 0, 1) / 255
        torch.testing.assert_close(plain[0], expected)
        assert not torch.allclose(normal, plain)
        both = processor(images=image, text=TEXTS[0], images_kwargs={"do_normalize": False}, return_tensors="pt")
        assert torch.equal(both["pixel_values"], plain)
        larger = processor(images=image, size={"height": 6, "width": 10}, return_tensors="pt")["pixel_values"]
        assert larger.shape == (1, 3, 6, 10)
        assert torch.equal(processor(images=image, return_tensors="pt")["pixel_values"], normal)

    def test_nested_arguments_equal_flat_ones(self):
        processor, images = self.processor(), random_images(2)
        flat = processor(
            images=images, text=TEXTS, padding="max_length", max_length=9, do_normalize=False, return_tensors="pt"
        )
        nested = processor(
            images=images,
            text=TEXTS,
            text_kwargs={"padding": "max_length", "max_length": 9},
            images_kwargs={"do_normalize": False},
            common_kwargs={"return_tensors": "pt"},
        )
        assert flat.keys() == nested.keys()
        for name in flat:
            assert torch.equal(flat[name], nested[name]), name
        with pytest.raises(ValueError, match="max_length was passed two times"):
            processor(text=TEXTS, max_length=9, text_kwargs={"max_length": 9})

    @pytest.mark.parametrize(
        "arguments",
        [
            {"nonsense": 1},
            {"text_kwargs": {"nonsense": 1}},
            {"images_kwargs": {"nonsense": 1}},
            {"common_kwargs": {"nonsense": 1}},
            {"nonsense": 1, "text_kwargs": {"padding": True}},
        ],
        ids=lambda arguments: "-".join(arguments),
    )
    @pytest.mark.parametrize("inputs", [("images", "text"), ("text",), ("images",)], ids="-".join)
    def test_an_unknown_argument_is_named(self, arguments, inputs):
        given = {"images": random_images(2), "text": TEXTS}
        with pytest.raises(TypeError, match="nonsense"):
            self.processor()(**{name: given[name] for name in inputs}, **arguments)

    def test_nothing_at_all_is_refused(self):
        with pytest.raises(ValueError, match="Pass `images`, `text`"):
            self.processor()()
        with pytest.raises(TypeError, match=r"`text\[1\]` must be a str, got int: 7"):
            self.processor()(text=["a", 7])
        with pytest.raises(ValueError, match=r"`text\[1\]` holds half of a surrogate pair"):
            self.processor()(text=["é 🙂", "a \ud800"])

    def test_input_names_are_what_the_model_takes(self):
        processor = self.processor()
        taken = inspect.signature(self.model_class.forward).parameters
        assert set(processor.model_input_names) <= set(taken)
        batch = processor(images=random_images(2), text=TEXTS)
        assert set(batch) <= set(processor.model_input_names)
        assert len(set(processor.model_input_names)) == len(processor.model_input_names)

    def test_decoding(self):
        processor = self.processor()
        ids = processor.tokenizer(TEXTS)["input_ids"]
        assert processor.batch_decode(ids, skip_special_tokens=True) == TEXTS
        assert processor.decode(ids[0], skip_special_tokens=True) == TEXTS[0]
        batch = torch.tensor(processor.tokenizer(TEXTS, padding=True)["input_ids"])
        assert processor.batch_decode(batch, skip_special_tokens=True) == TEXTS
        assert processor.post_process_image_text_to_text(batch) == TEXTS

    def test_save_and_load(self, tmp_path):
        processor, images = self.processor(), random_images(2)
        processor(images=images, text=TEXTS, padding="max_length", max_length=3)  # it must not be saved
        processor.save_pretrained(tmp_path)
        expected = processor(images=images, text=TEXTS, return_tensors="pt")
        for loaded in (self.processor_class.from_pretrained(tmp_path), AutoProcessor.from_pretrained(tmp_path)):
            assert type(loaded) is self.processor_class
            actual = loaded(images=images, text=TEXTS, return_tensors="pt")
            assert actual.keys() == expected.keys()
            for name in expected:
                assert torch.equal(actual[name], expected[name]), name

    def test_load_with_overrides(self, tmp_path):
        self.processor().save_pretrained(tmp_path)
        loaded = self.processor_class.from_pretrained(tmp_path, do_normalize=False, size={"height": 4, "width": 6})
        assert loaded.image_processor.do_normalize is False
        assert loaded(images=random_images(1), return_tensors="pt")["pixel_values"].shape == (1, 3, 4, 6)
        loaded = self.processor_class.from_pretrained(tmp_path, model_max_length=3)
        assert max(self.lengths(loaded(text=TEXTS))) == 3
        loaded.save_pretrained(tmp_path / "again")
        assert max(self.lengths(self.processor_class.from_pretrained(tmp_path / "again")(text=TEXTS))) == 3

    def test_defaults_of_the_parts_are_kept(self):
        """As in transformers, the settings of the parts take precedence over the defaults of the processor."""
        image_processor = self.image_processor(do_normalize=False, size={"height": 5, "width": 5})
        tokenizer = self.tokenizer()
        tokenizer.init_kwargs |= {"padding": "max_length", "max_length": 12}
        batch = self.processor_class(image_processor, tokenizer)(
            images=random_images(1), text=TEXTS[0], return_tensors="pt"
        )
        assert batch["pixel_values"].shape == (1, 3, 5, 5) and batch["pixel_values"].min() >= 0
        assert batch[self.text_names[0]].shape == (1, 12)
