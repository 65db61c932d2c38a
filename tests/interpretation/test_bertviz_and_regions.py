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
"""What bertviz draws, and regions of words."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, pipeline, set_seed

from hf_vg import (
    GroundedVisualBertForReferringExpression,
    GroundedVisualBertForVGP,
    SpatialTransformerCaptionerForConditionalGeneration,
)
from hf_vg.interpretation import (
    bertviz_arguments,
    ground_phrase,
    load_region_model,
    location_names,
    regions_of_words,
)
from tests.common import random_images
from tests.models import test_modeling_grounded_visual_bert as regions
from tests.models import test_modeling_spatial_transformer as spatial


def random_attentions(layers: int, heads: int, length: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.softmax(3 * torch.randn(2, heads, length, length, generator=generator), -1) for _ in range(layers)
    )


@pytest.fixture(scope="module")
def bert_outputs():
    set_seed(0)
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=1.0,
        attn_implementation="eager",
    )
    with torch.no_grad():
        return BertModel(config).eval()(torch.tensor([[2, 5, 7, 9, 3]]), output_attentions=True)


class TestBertviz:
    def test_self_attention_and_cross_attention(self):
        attentions = random_attentions(2, heads=3, length=6)
        arguments = bertviz_arguments(attentions, ["a", "red", "dog", "[1]"], second_start=3, example=1)
        assert arguments["tokens"] == ["a", "red", "dog", "[1]"] and arguments["sentence_b_start"] == 3
        for layer, given in zip(arguments["attention"], attentions, strict=True):
            assert torch.equal(layer, given[1:, :, :4, :4])
        crossed = bertviz_arguments([torch.rand(1, 2, 3, 6)], ["a", "dog", "."], seen=location_names(2, 3))
        assert crossed["encoder_tokens"] == ["1,1", "1,2", "1,3", "2,1", "2,2", "2,3"]
        assert crossed["cross_attention"][0].shape == (1, 2, 3, 6)
        with pytest.raises(ValueError, match=r"Layer 0 must be of shape \(batch, heads, 7, 7\) or larger"):
            bertviz_arguments(attentions, list("abcdefg"))

    def test_bertviz_draws_them(self, bert_outputs):
        bertviz = pytest.importorskip("bertviz", reason="needs bertviz: `pip install hf-vg[bertviz]`")
        tokens = ["[CLS]", "a", "red", "dog", "[SEP]"]
        arguments = bertviz_arguments(bert_outputs.attentions, tokens, second_start=3)
        for view in (bertviz.head_view, bertviz.model_view):
            assert '"red' in view(**arguments, html_action="return").data
        crossed = bertviz_arguments([torch.rand(1, 2, 3, 6)], ["a", "dog", "."], seen=location_names(2, 3))
        assert "2,3" in bertviz.head_view(**crossed, html_action="return").data


class TestRegions:
    boxes = [[0, 0, 12, 12], [8, 4, 24, 20]]

    @pytest.fixture(params=[GroundedVisualBertForVGP, GroundedVisualBertForReferringExpression])
    def loaded(self, request, tmp_path):
        regions.tiny_model(request.param, attention_supervision="rollout").save_pretrained(tmp_path)
        regions.tiny_processor(tmp_path).save_pretrained(tmp_path)
        model, processor = load_region_model(str(tmp_path))
        assert type(model) is request.param
        return model, processor

    def test_words_and_their_regions(self, loaded):
        image = random_images(1, size=24)[0]
        example = regions_of_words(*loaded, image, "a red circles is above", self.boxes)
        assert example["words"] == ["a", "red", "circles", "is", "above"]  # "circles" is of two pieces
        np.testing.assert_allclose(example["boxes"][1:], np.array(self.boxes) / 24, atol=1e-6)
        assert example["attention"].shape == (5, 3) and example["head_attention"].shape == (3, 2, 5, 3)
        np.testing.assert_allclose(example["attention"].sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(example["head_attention"].sum(-1), 1, atol=1e-5)
        # Without rollout it is the last layer's mean, of which each row is then made to sum to one.
        inputs = loaded[1](images=[image], text=["a red circles is above"], boxes=[self.boxes], return_tensors="pt")
        with torch.no_grad():
            last = loaded[0](**inputs, output_attentions=True).attentions[-1][0].mean(dim=0)
        tokens = last.shape[0] - 3
        shares = last[:tokens, tokens:] / last[:tokens, tokens:].sum(-1, keepdim=True)
        plain = regions_of_words(*loaded, image, "a red circles is above", self.boxes, rollout=False)
        np.testing.assert_allclose(plain["attention"][2], shares[3:5].mean(0), atol=1e-5)

    def test_phrases(self, loaded):
        image = random_images(1, size=24)[0]
        found = ground_phrase(*loaded, image, "a red circle is above", self.boxes, phrase="red circle")
        assert sorted(record["box"] for record in found) == sorted(self.boxes)
        assert found[0]["score"] >= found[1]["score"]
        if isinstance(loaded[0], GroundedVisualBertForVGP):
            example = regions_of_words(*loaded, image, "a red circle is above", self.boxes)
            looked = example["attention"][1:3, 1:].sum(0)
            assert found[0]["score"] == pytest.approx(looked.max() / looked.sum(), abs=1e-5)
        assert len(ground_phrase(*loaded, image, "a circle")) == 9  # of a grid
        marked = "[/EN#1/other a red circle] is above"
        assert ground_phrase(*loaded, image, marked, self.boxes, phrase="red circle") == found
        assert regions_of_words(*loaded, image, marked)["words"] == ["a", "red", "circle", "is", "above"]
        with pytest.raises(TypeError, match="`text` must be a string, got NoneType"):
            ground_phrase(*loaded, image, None)
        with pytest.raises(ValueError, match="'blue' is not in the text 'a circle'"):
            ground_phrase(*loaded, image, "a circle", phrase="blue")

    def test_other_models_are_refused(self, tmp_path):
        spatial.tiny_model().save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="is a spatial_transformer_captioner .*use .hf-vg caption"):
            load_region_model(str(tmp_path))


def test_pipeline_gives_the_maps_of_each_head(tmp_path):
    set_seed(0)
    model = SpatialTransformerCaptionerForConditionalGeneration(spatial.tiny_config()).eval()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(12)) if model.lm_head.bias is None else model.lm_head.bias
    model.lm_head.bias.data[model.config.eos_token_id] = -9.0
    captioner = pipeline("image-to-text", model=model, processor=spatial.tiny_processor(), max_new_tokens=4)
    image = random_images(1, size=24)[0]
    for beams in (1, 3):
        (record,) = captioner(image, return_attention="heads", num_beams=beams)
        layers, heads, words = record["head_attention"].shape[:3]
        assert (layers, heads, words) == (3, 2, len(record["words"])) and words > 1
        np.testing.assert_allclose(record["head_attention"].mean(axis=(0, 1)), record["attention"], atol=1e-6)
        (plain,) = captioner(image, return_attention=True, num_beams=beams)
        assert "head_attention" not in plain
        np.testing.assert_allclose(plain["attention"], record["attention"], rtol=1e-6)
    with pytest.raises(ValueError, match='must be True, False or "heads"'):
        captioner(image, return_attention="layers")
