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
"""The processors of the captioners. They share one implementation."""

import torch
from transformers import set_seed

from hf_vg.data import CaptionCollator
from hf_vg.models.processing import CaptionProcessor
from hf_vg.models.show_attend_tell import ShowAttendTellForConditionalGeneration, ShowAttendTellProcessor
from hf_vg.models.spatial_transformer import (
    SpatialTransformerCaptionerForConditionalGeneration,
    SpatialTransformerCaptionerProcessor,
)
from hf_vg.models.vgg import VggConfig
from tests.common import random_images
from tests.common.processors import TEXTS, ProcessorTesterMixin


class CaptionProcessorTester(ProcessorTesterMixin):
    text_names = ("labels", "decoder_input_ids")
    pad_value = -100

    def test_feeds_the_model(self):
        """`decoder_input_ids` of the processor equal those that the model makes from the labels."""
        processor = self.processor()
        set_seed(0)
        backbone = VggConfig(depths=[1, 1], hidden_sizes=[4, 6])
        config_class = self.model_class.config_class
        model = self.model_class(config_class(backbone_config=backbone, feature_size=6, vocab_size=20)).eval()
        batch = processor(images=random_images(2), text=TEXTS, return_tensors="pt")
        with torch.no_grad():
            loss = model(**batch).loss
            expected = model(batch["pixel_values"], labels=batch["labels"]).loss
        assert torch.isfinite(loss)
        torch.testing.assert_close(loss, expected)


class TestShowAttendTellProcessor(CaptionProcessorTester):
    processor_class = ShowAttendTellProcessor
    model_class = ShowAttendTellForConditionalGeneration


class TestSpatialTransformerCaptionerProcessor(CaptionProcessorTester):
    processor_class = SpatialTransformerCaptionerProcessor
    model_class = SpatialTransformerCaptionerForConditionalGeneration

    def test_implementation_is_shared(self):
        assert SpatialTransformerCaptionerProcessor.__call__ is ShowAttendTellProcessor.__call__
        assert SpatialTransformerCaptionerProcessor.__call__ is CaptionProcessor.__call__

    def test_captions_are_labels_and_what_the_decoder_reads(self):
        processor = self.processor()
        word = processor.tokenizer.get_vocab()
        captions = ["A red circle!", "words never-seen", ""]
        batch = processor(text=captions)
        a, red, circle, words = (word[name] for name in ("a", "red", "circle", "words"))
        assert batch["labels"] == [[a, red, circle, 0], [words, 1, 0, -100], [0, -100, -100, -100]]
        assert batch["decoder_input_ids"] == [[0, a, red, circle], [0, words, 1, 2], [0, 2, 2, 2]]
        left = processor(text=captions, padding_side="left")
        assert left["labels"][1] == [-100, words, 1, 0] and left["decoder_input_ids"][1] == [2, 0, words, 1]
        open_ended = processor(text=captions, add_special_tokens=False)
        assert open_ended["labels"] == [[a, red, circle, -100], [words, 1, -100, -100], [-100] * 4]
        assert open_ended["decoder_input_ids"] == batch["decoder_input_ids"]
        split = processor(text=[["a", "red", "circle"], ["words"]], is_split_into_words=True)
        assert split["labels"] == [[a, red, circle, 0], [words, 0, -100, -100]]
        assert processor(text=["a", "red", "circle"], is_split_into_words=True)["labels"] == [[a, red, circle, 0]]

    def test_long_captions_are_cut_and_still_end(self):
        (labels,) = self.processor()(text=["red " * 500])["labels"]
        assert len(labels) == 100 and labels[-1] == 0

    def test_text_of_any_script(self):
        assert self.processor()(text=["красный круг 红色"])["labels"] == [[1, 1, 1, 0]]

    def test_collator_takes_labels_alone(self):
        rows = [{"image": image, "captions": TEXTS} for image in random_images(2)]
        batch = CaptionCollator(self.processor())(rows)
        assert set(batch) == {"pixel_values", "labels"} and batch["labels"].shape == (2, 2, 7)

    def test_long_captions_are_dropped_from_batches(self):
        captions = [["a red circle", "a red circle above two blue squares"], ["two words", "a red circle above words"]]
        rows = [{"image": i, "captions": c} for i, c in zip(random_images(2), captions, strict=True)]
        processor = self.processor()
        labels = CaptionCollator(processor, max_caption_words=4)(rows)["labels"]
        kept = [["a red circle"], ["two words"]]
        expected = CaptionCollator(processor)([{**row, "captions": c} for row, c in zip(rows, kept, strict=True)])
        assert labels.shape == (2, 2, 5)
        assert torch.equal(labels[:, 0, :4], expected["labels"][:, 0])
        assert (labels[:, 0, 4] == -100).all() and (labels[:, 1] == -100).all()
        everything = CaptionCollator(processor)(rows)["labels"]
        assert torch.equal(CaptionCollator(processor, max_caption_words=7)(rows)["labels"], everything)
