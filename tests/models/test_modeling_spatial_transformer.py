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

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForImageTextToText, ResNetConfig, pipeline
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_vg.data import train_word_tokenizer
from hf_vg.interpretation import record_attention
from hf_vg.interpretation.word_maps import attention_of_tokens
from hf_vg.models.attention import eager_attention_forward
from hf_vg.models.spatial_transformer import (
    SpatialTransformerCaptionerConfig,
    SpatialTransformerCaptionerForConditionalGeneration,
    SpatialTransformerCaptionerModel,
    SpatialTransformerCaptionerProcessor,
)
from hf_vg.models.spatial_transformer.layers_spatial_transformer import SpatialTransformerCaptionerAttention
from hf_vg.models.vgg import VggConfig
from tests.common import CaptionerTesterMixin, random_images


def tiny_config(**kwargs) -> SpatialTransformerCaptionerConfig:
    defaults = {
        "backbone_config": VggConfig(depths=[1, 1], hidden_sizes=[4, 6]),
        "freeze_backbone": False,
        "feature_size": 6,
        "vocab_size": 12,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 10,
        "decoder_layers": 3,
        "max_target_length": 7,
    }
    return SpatialTransformerCaptionerConfig(**{**defaults, **kwargs})


def tiny_model(**kwargs) -> SpatialTransformerCaptionerForConditionalGeneration:
    torch.manual_seed(0)
    return SpatialTransformerCaptionerForConditionalGeneration(tiny_config(**kwargs)).eval()


def tiny_processor(image_size: int = 8) -> SpatialTransformerCaptionerProcessor:
    from transformers import CLIPImageProcessorPil

    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    )
    tokenizer = train_word_tokenizer(["a red circle above two blue squares", "some words"], vocab_size=12)
    return SpatialTransformerCaptionerProcessor(image_processor, tokenizer)


def tiny_inputs(batch_size: int = 3, size: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, 12, (batch_size, 6), generator=generator)
    for row, length in enumerate([6, 4, 5, 3][:batch_size]):
        labels[row, length - 1] = 0
        labels[row, length:] = -100
    return {"pixel_values": torch.randn(batch_size, 3, size, size, generator=generator), "labels": labels}


def restated_positions(size: int, kind: str, height: int, width: int) -> np.ndarray:
    """One sine or cosine at a time."""

    def sinusoid(position: int, channel: int, channels: int) -> float:
        angle = position / 10000 ** (channel // 2 * 2 / channels)
        return math.cos(angle) if channel % 2 else math.sin(angle)

    table = np.zeros((height * width, size))
    for row in range(height):
        for column in range(width):
            for channel in range(size):
                if kind == "1d":
                    value = sinusoid(row * width + column, channel, size)
                elif channel < size // 2:
                    value = sinusoid(row, channel, size // 2)
                else:
                    value = sinusoid(column, channel - size // 2, size // 2)
                table[row * width + column, channel] = value
    return table


def restated(model, grid: np.ndarray, words: list[int]) -> tuple[float, dict[str, list]]:
    """The paper for one image and caption, as loops. Returns the summed loss and the attention weights."""
    w = {name.removeprefix("model."): p.detach().double().numpy() for name, p in model.named_parameters()}
    config = model.config
    h, d_feat = config.num_attention_heads, config.hidden_size
    d_attn = d_feat // h
    attentions = {"encoder": [], "decoder": [], "cross": []}

    def normalize(rows, name):
        normal = [(x - x.mean()) / np.sqrt(x.var() + 1e-5) for x in rows]
        return np.stack([w[f"{name}.weight"] * x + w[f"{name}.bias"] for x in normal])

    def attention(target, source, w_q, w_k, w_v, w_o, d_len, causal):
        tau = math.sqrt(d_attn + (d_len if config.scaling == "length" else 0))
        outputs, all_weights = np.zeros((len(target), d_feat)), np.zeros((h, len(target), len(source)))
        for head in range(h):
            part = slice(head * d_attn, (head + 1) * d_attn)
            for i, query in enumerate(target):
                visible = range(i + 1) if causal else range(len(source))
                scores = [float((w_q[part] @ query) @ (w_k[part] @ source[j])) / tau for j in visible]
                total = sum(math.exp(score) for score in scores)
                for j, score in zip(visible, scores, strict=True):
                    all_weights[head, i, j] = math.exp(score) / total
                    outputs[i, part] += all_weights[head, i, j] * (w_v[part] @ source[j])
        return outputs @ w_o.T, all_weights

    def self_attention(x, name, d_len, causal, kind):
        w_q, w_k, w_v = np.split(w[f"{name}.qkv_proj.weight"], 3)
        attended, weights = attention(x, x, w_q, w_k, w_v, w[f"{name}.o_proj.weight"], d_len, causal)
        attentions[kind].append(weights)
        return normalize(x + attended, f"{name}_norm")

    def feed_forward(x, name):
        hidden = [np.maximum(w[f"{name}.up_proj.weight"] @ row + w[f"{name}.up_proj.bias"], 0) for row in x]
        change = [w[f"{name}.down_proj.weight"] @ row + w[f"{name}.down_proj.bias"] for row in hidden]
        return normalize(x + np.stack(change), f"{name}_norm")

    height, width, _ = grid.shape
    image = grid.reshape(height * width, -1)
    if config.feature_size != d_feat:
        image = image @ w["encoder.projection.weight"].T + w["encoder.projection.bias"]
    image = image + restated_positions(d_feat, config.positional_encoding, height, width)
    for i in range(config.encoder_layers):
        layer = f"encoder.layers.{i}"
        image = self_attention(image, f"{layer}.self_attention", len(image), False, "encoder")
        image = feed_forward(image, f"{layer}.feed_forward")

    text = np.stack([w["decoder.embed_tokens.weight"][id] for id in [config.decoder_start_token_id, *words[:-1]]])
    if config.scale_embedding:
        text = text * math.sqrt(d_feat)
    text = text + restated_positions(d_feat, "1d", 1, len(words))
    for i in range(config.decoder_layers):
        layer = f"decoder.layers.{i}"
        text = self_attention(text, f"{layer}.self_attention", config.max_target_length, True, "decoder")
        name = f"{layer}.cross_attention"
        w_k, w_v = np.split(w[f"{name}.kv_proj.weight"], 2)
        w_q, w_o = w[f"{name}.q_proj.weight"], w[f"{name}.o_proj.weight"]
        attended, weights = attention(text, image, w_q, w_k, w_v, w_o, len(image), False)
        attentions["cross"].append(weights)
        text = normalize(text + attended, f"{name}_norm")
        text = feed_forward(text, f"{layer}.feed_forward")

    loss = 0.0
    for state, word in zip(text, words, strict=True):
        logits = w["lm_head.weight"] @ state + w["lm_head.bias"]
        loss += math.log(np.exp(logits).sum()) - logits[word]
    return loss, attentions


class TestSpatialTransformerCaptioner(CaptionerTesterMixin):
    model_class = SpatialTransformerCaptionerForConditionalGeneration
    auto_class = AutoModelForImageTextToText
    num_hidden_states = {"encoder_hidden_states": 3, "decoder_hidden_states": 4}
    num_attentions = {"encoder_attentions": 2, "decoder_attentions": 3, "cross_attentions": 3}
    attn_implementations = ("eager", "sdpa", "eager")

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        return tiny_inputs(batch_size)

    def processor(self):
        return tiny_processor()

    # The mixin uses the output of the encoder as features. Here it is not a feature map.
    @torch.no_grad()
    def features(self, model) -> torch.Tensor:
        return (
            model.get_encoder()
            .image_encoder.backbone(self.inputs()["pixel_values"])
            .feature_maps[-1]
            .flatten(2)
            .transpose(1, 2)
        )

    def test_features_serve_as_well_as_pixels(self):
        model, images = self.model(), self.images()
        for kwargs in self.decodings.values():
            expected = self.generate(model, images, **kwargs).tolist()
            assert self.generate(model, {"image_features": self.features(model)}, **kwargs).tolist() == expected

    def test_pixels_or_features_and_not_both(self):
        model, inputs = self.model(), self.inputs()
        features = self.features(model)
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(**inputs, image_features=features)
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(labels=inputs["labels"])
        with pytest.raises(ValueError, match="image_features.*must be"):
            model(labels=inputs["labels"], image_features=features[..., :-1])

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"scaling": "standard"},
            {"positional_encoding": "2d"},
            {"scale_embedding": True},
            {"hidden_size": 6, "num_attention_heads": 3, "encoder_layers": 1},
        ],
        ids=lambda options: "-".join(options) or "defaults",
    )
    def test_equals_the_paper_restated(self, options):
        model = tiny_model(backbone_config=None, **options).double()
        # Initial ones and zeros would hide mistakes.
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.data += 0.3 * torch.randn_like(parameter)
        assert (model.model.encoder.projection is None) == (model.config.hidden_size == model.config.feature_size)
        features = torch.randn(3, 2, 3, 6, dtype=torch.double)
        labels = tiny_inputs()["labels"]
        fast = model(image_features=features, labels=labels)
        eager = model(image_features=features, labels=labels, output_attentions=True)
        captions = [[id for id in row if id != -100] for row in labels.tolist()]
        losses = []
        for row, (grid, words) in enumerate(zip(features.numpy(), captions, strict=True)):
            loss, attentions = restated(model, grid, words)
            losses.append(loss)
            for kind, layers in attentions.items():
                returned = eager["cross_attentions" if kind == "cross" else f"{kind}_attentions"]
                for layer, expected in zip(returned, layers, strict=True):
                    actual = layer[row, :, : expected.shape[1], : expected.shape[2]]
                    np.testing.assert_allclose(actual.detach().numpy(), expected, atol=1e-6)
        expected = sum(losses) / sum(map(len, captions))
        for outputs in (fast, eager):
            assert outputs.loss.item() == pytest.approx(expected, abs=1e-5)
            assert outputs.loss_caption.item() == outputs.loss.item()

    def test_scaled_embeddings_begin_with_unit_variance_too(self):
        for scale_embedding, expected in ((False, 1.0), (True, 1 / 8)):
            model = tiny_model(hidden_size=64, vocab_size=500, scale_embedding=scale_embedding)
            assert model.get_input_embeddings().weight.std().item() == pytest.approx(expected, rel=0.02)

    @pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 4]], ids=["one by one", "in chunks"])
    def test_teacher_forced_logits_equal_cached_ones(self, chunks):
        """tau and positions do not depend on the decoding step, also after `max_target_length` steps."""
        model = tiny_model()
        pixel_values = tiny_inputs()["pixel_values"]
        ids = torch.randint(3, 12, (6, 9))
        with torch.no_grad():
            whole = model(pixel_values, decoder_input_ids=ids).logits
            encoder_outputs, cache, parts = model.get_encoder()(pixel_values), None, []
            for part in ids.split(chunks, dim=1):
                outputs = model(encoder_outputs=encoder_outputs, decoder_input_ids=part, past_key_values=cache)
                parts.append(outputs.logits)
                cache = outputs.past_key_values
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("gradients", [False, True])
    @pytest.mark.parametrize("output_attentions", [False, True])
    def test_no_word_sees_a_later_one(self, implementation, autocast, gradients, output_attentions):
        model, pixel_values = tiny_model(), tiny_inputs()["pixel_values"]
        model.set_attn_implementation(implementation)
        ids = torch.randint(3, 12, (6, 9))
        changed = ids.clone()
        changed[:, 5:] = 14 - ids[:, 5:]  # others of the same words
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits, others = (
                model(pixel_values, decoder_input_ids=i, output_attentions=output_attentions).logits
                for i in (ids, changed)
            )
        assert torch.equal(others[:, :5], logits[:, :5])
        assert not torch.equal(others[:, 5:], logits[:, 5:])

    def test_padding_changes_no_logits(self):
        model, inputs = tiny_model(), tiny_inputs()
        longer = torch.nn.functional.pad(inputs["labels"], (0, 5), value=-100)
        with torch.no_grad():
            logits, padded = (model(inputs["pixel_values"], labels=ids).logits for ids in (inputs["labels"], longer))
        torch.testing.assert_close(padded[:, :6], logits, rtol=0, atol=1e-6)

    def test_the_image_is_encoded_once_and_not_repeated(self):
        model, calls = tiny_model(), []
        encoder, decoder = model.model.encoder, model.model.decoder
        for name, module in [("backbone", encoder.image_encoder.backbone), ("encoder", encoder.layers[0])] + [
            (f"keys and values {index}", layer.cross_attention.kv_proj) for index, layer in enumerate(decoder.layers)
        ]:
            module.register_forward_hook(lambda *args, name=name: calls.append((name, args[2])))
        outputs = self.generate(model, self.images(2), num_beams=4, return_dict_in_generate=True, min_new_tokens=5)
        assert [name for name, _ in calls] == ["backbone", "encoder"] + [f"keys and values {i}" for i in range(3)]
        assert all(output.shape[0] == 2 for name, output in calls if name != "backbone")
        assert outputs.past_key_values.self_attention_cache.layers[0].keys.shape[0] == 8

    def test_static_cache_changes_nothing(self):
        model, images = tiny_model(), self.images()
        for kwargs in self.decodings.values():
            expected = self.generate(model, images, **kwargs).tolist()
            assert self.generate(model, images, cache_implementation="static", **kwargs).tolist() == expected

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("output_attentions", [False, True])
    def test_compiles_to_one_graph(self, training, output_attentions):
        model, inputs = tiny_model(dropout=0.0).train(training), tiny_inputs()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        expected, actual = (m(**inputs, output_attentions=output_attentions) for m in (model, compiled))
        torch.testing.assert_close(actual.loss, expected.loss)
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            if output_attentions:
                assert len(actual[name]) > 0
                torch.testing.assert_close(actual[name], expected[name])
            else:
                assert getattr(actual, name) is None


class TestAttention:
    @pytest.mark.parametrize("is_causal", [False, True])
    @pytest.mark.parametrize("queries", [1, 5, 7])
    @pytest.mark.parametrize("has_mask", [False, True])
    def test_eager_and_sdpa_agree_in_value_and_gradient(self, is_causal, queries, has_mask):
        attention = SpatialTransformerCaptionerAttention(tiny_config(), is_causal)
        inputs = [torch.randn(2, 2, length, 4, requires_grad=True) for length in (queries, 7, 7)]
        mask = torch.ones(1, 1, queries, 7, dtype=torch.bool).tril(7 - queries) if has_mask else None
        results = [
            function(attention, *inputs, mask, scaling=0.3)[0]
            for function in (eager_attention_forward, sdpa_attention_forward)
        ]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), inputs) for result in results))

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("training", [False, True])
    def test_is_never_empty_when_asked_for(self, implementation, training):
        """One tensor per layer, with weights before dropout: rows sum to 1 in training too."""
        model, inputs = tiny_model(dropout=0.5).train(training), tiny_inputs()
        assert model.config._attn_implementation == "sdpa"
        if implementation == "eager":
            model.set_attn_implementation(implementation)
        outputs = model(**inputs, output_attentions=True)
        for name, layers, shape in (
            ("encoder_attentions", 2, (3, 2, 16, 16)),
            ("decoder_attentions", 3, (3, 2, 6, 6)),
            ("cross_attentions", 3, (3, 2, 6, 16)),
        ):
            assert [tuple(layer.shape) for layer in outputs[name]] == [shape] * layers
            for layer in outputs[name]:
                torch.testing.assert_close(layer.sum(dim=-1), torch.ones(shape[:-1]))
        assert model(**inputs).cross_attentions is None

    def test_is_that_of_the_fast_path(self):
        model, inputs = tiny_model(), tiny_inputs()
        fast, asked = (model(**inputs, output_attentions=value).logits for value in (False, True))
        model.set_attn_implementation("eager")
        torch.testing.assert_close(asked, fast)
        torch.testing.assert_close(model(**inputs).logits, fast)

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("captions", [1, 2])
    def test_is_part_of_the_graph_of_logits(self, implementation, captions):
        model, inputs = tiny_model(), tiny_inputs(4)
        model.set_attn_implementation(implementation)
        inputs["pixel_values"] = inputs["pixel_values"][: 4 // captions]
        outputs = model(**inputs, output_attentions=True)
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            gradients = torch.autograd.grad(outputs.logits.sum(), outputs[name], retain_graph=True)
            assert all(gradient.abs().sum() > 0 for gradient in gradients), name

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @torch.no_grad()
    def test_padding_on_either_side_changes_no_logits(self, dtype):
        """With a mask and any attention implementation, positions count words and not padding."""
        model, pixel_values = tiny_model().to(dtype), tiny_inputs(2)["pixel_values"].to(dtype)
        words = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 10]])
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            expected = model(pixel_values, decoder_input_ids=words).logits
            for sides in ((0, 3), (3, 0), (1, 2)):
                ids = torch.nn.functional.pad(words, sides, value=2)
                mask = torch.nn.functional.pad(torch.ones_like(words), sides)
                logits = model(pixel_values, decoder_input_ids=ids, decoder_attention_mask=mask).logits
                assert torch.isfinite(logits).all()
                tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 0.05}
                torch.testing.assert_close(logits[:, sides[0] : sides[0] + 4], expected, **tolerance)

    def test_of_captions_that_share_an_image(self):
        model, inputs = tiny_model(), tiny_inputs(4)
        images = inputs["pixel_values"][:2]
        shared = model(images, labels=inputs["labels"].view(2, 2, -1), output_attentions=True)
        repeated = model(images.repeat_interleave(2, dim=0), labels=inputs["labels"], output_attentions=True)
        for actual, expected in zip(shared.cross_attentions, repeated.cross_attentions, strict=True):
            torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_of_generated_captions_is_what_teacher_forcing_gives(self, num_beams):
        model, pixel_values = tiny_model(), tiny_inputs()["pixel_values"]
        with record_attention(model) as record:
            outputs = model.generate(pixel_values, num_beams=num_beams, return_dict_in_generate=True, max_new_tokens=6)
        maps = attention_of_tokens(record, outputs)[0].mean(dim=(1, 2))
        forced = model(pixel_values, decoder_input_ids=outputs.sequences[:, :-1], output_attentions=True)
        expected = torch.stack(forced.cross_attentions).mean(dim=(0, 2))  # over layers and heads
        written = maps.sum(dim=-1) > 0  # rows after the end of a sequence are zeros
        assert written[:, 0].all()
        torch.testing.assert_close(maps[written], expected[:, : maps.shape[1]][written])

    def test_of_the_pipeline(self):
        captioner = pipeline("image-to-text", model=tiny_model(), processor=tiny_processor())
        results = captioner(random_images(2), return_attention=True, num_beams=2, max_new_tokens=5, batch_size=2)
        for ((caption),) in results:
            assert caption["attention"].shape == (len(caption["words"]), 4, 4)
            np.testing.assert_allclose(caption["attention"].sum(axis=(1, 2)), 1, rtol=1e-5)


class TestLoss:
    def test_accumulated_gradients_are_weighted_by_tokens(self):
        """As in Trainer: every batch gets the number of tokens of all batches."""
        model, inputs = tiny_model(), tiny_inputs()
        model(**inputs).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        num_items = (inputs["labels"] != -100).sum()
        for row in range(3):
            single = {name: value[row : row + 1] for name, value in inputs.items()}
            outputs = model(**single, num_items_in_batch=num_items)
            outputs.loss.backward()
            torch.testing.assert_close(outputs.loss_caption, model(**single).loss)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)

    def test_without_any_word_is_zero(self):
        model, inputs = tiny_model().train(), tiny_inputs()
        loss = model(inputs["pixel_values"], labels=torch.full_like(inputs["labels"], -100)).loss
        loss.backward()
        assert loss.item() == 0


class TestSpatialTransformerCaptionerModel:
    def test_base_model_is_the_captioners_own(self, tmp_path):
        captioner = tiny_model()
        captioner.save_pretrained(tmp_path)
        base = AutoModel.from_pretrained(tmp_path)
        assert type(base) is SpatialTransformerCaptionerModel
        inputs = {"pixel_values": tiny_inputs()["pixel_values"], "decoder_input_ids": torch.tensor([[0, 4, 5]] * 3)}
        with torch.no_grad():
            outputs = base(**inputs, output_hidden_states=True)
            expected = captioner.model(**inputs)
        assert outputs.last_hidden_state.shape == (3, 3, 8)
        for name, weight in captioner.model.state_dict().items():
            assert torch.equal(base.state_dict()[name], weight), name
        torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state)
        assert len(outputs.encoder_hidden_states) == 3 and len(outputs.decoder_hidden_states) == 4
        assert torch.equal(base(**inputs, return_dict=False)[0], outputs.last_hidden_state)

    def test_initialisation_is_that_of_the_original_transformer(self):
        model = SpatialTransformerCaptionerForConditionalGeneration(
            SpatialTransformerCaptionerConfig(backbone_config=None, vocab_size=2000)
        )
        layer = model.model.decoder.layers[0]
        square = math.sqrt(6 / (512 + 512))
        for weight, bound in (
            (layer.self_attention.qkv_proj.weight, square),  # three matrices in one layer
            (layer.cross_attention.kv_proj.weight, square),
            (layer.cross_attention.o_proj.weight, square),
            (layer.feed_forward.up_proj.weight, math.sqrt(6 / (512 + 1024))),
            (model.lm_head.weight, math.sqrt(6 / (512 + 2000))),
        ):
            assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert model.model.decoder.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.02)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name

    def test_defaults_are_the_paper(self):
        config = SpatialTransformerCaptionerConfig()
        assert (config.encoder_layers, config.decoder_layers, config.num_attention_heads) == (2, 4, 8)
        assert (config.hidden_size, config.intermediate_size, config.feature_size) == (512, 1024, 512)
        assert (config.positional_encoding, config.scaling, config.dropout) == ("1d", "length", 0.1)
        assert config.backbone_config.depths == [1, 1, 2, 2, 2] and config.freeze_backbone
        attention = SpatialTransformerCaptionerModel(config).encoder.layers[0].self_attention
        seen = {}

        def recording(module, query, key, value, mask, scaling, **kwargs):
            seen["tau"] = 1 / scaling
            return query.transpose(1, 2), None

        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register("recording", recording)
        config._attn_implementation = "recording"
        attention(torch.randn(1, 196, 512))
        assert seen["tau"] == pytest.approx(math.sqrt(196 + 64))

    def test_captions_end_by_themselves_or_at_the_longest_target(self):
        model = tiny_model()
        model.lm_head.bias.data[model.config.eos_token_id] = -100.0
        assert model.generate(tiny_inputs()["pixel_values"]).shape == (3, 1 + 7)

    def test_any_backbone_plugs_in(self):
        backbone = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        )
        model = tiny_model(backbone_config=backbone, feature_size=8)
        assert model.model.encoder.projection is None
        outputs = model(**tiny_inputs(size=32), output_attentions=True)
        assert outputs.cross_attentions[0].shape == (3, 2, 6, 16)
        with pytest.raises(ValueError, match="feature_size=8"):
            tiny_model(backbone_config=backbone, feature_size=6)

    def test_frozen_backbone_stays_as_it_was(self, tmp_path):
        backbone = VggConfig(depths=[1, 1], hidden_sizes=[4, 6], use_batch_norm=True)
        tiny_model(backbone_config=backbone, freeze_backbone=True).save_pretrained(tmp_path)
        model = SpatialTransformerCaptionerForConditionalGeneration.from_pretrained(tmp_path).train()
        before = {
            name: tensor.clone() for name, tensor in model.model.encoder.image_encoder.backbone.state_dict().items()
        }
        model(**tiny_inputs()).loss.backward()
        assert model.model.decoder.embed_tokens.weight.grad is not None
        for name, tensor in model.model.encoder.image_encoder.backbone.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert not any(
            parameter.requires_grad for parameter in model.model.encoder.image_encoder.backbone.parameters()
        )

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_gradient_checkpointing_of_features_without_gradient(self, use_reentrant):
        """Features of a frozen backbone get no gradient, but every layer after them does."""
        model, inputs = tiny_model(freeze_backbone=True, hidden_size=6, dropout=0.0).train(), tiny_inputs()
        model(**inputs).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        outputs = model(**inputs, use_cache=True)
        assert outputs.past_key_values is None  # a cache would be written twice
        outputs.loss.backward()
        for name, gradient in expected.items():
            torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6, msg=name)

    def test_without_backbone_pixels_are_refused(self):
        with pytest.raises(ValueError, match="has no backbone.*image_features"):
            tiny_model(backbone_config=None)(**tiny_inputs())

    @pytest.mark.parametrize("positional_encoding", ["1d", "2d"])
    def test_features_may_keep_their_grid(self, positional_encoding):
        model = tiny_model(backbone_config=None, positional_encoding=positional_encoding)
        features, labels = torch.randn(3, 4, 4, 6), tiny_inputs()["labels"]
        grid, flat = (model(image_features=f, labels=labels).loss for f in (features, features.flatten(1, 2)))
        assert torch.equal(grid, flat)

    def test_two_dimensions_need_the_grid_of_an_oblong_map(self):
        model = tiny_model(backbone_config=None, positional_encoding="2d")
        features, labels = torch.randn(3, 2, 5, 6), tiny_inputs()["labels"]
        assert torch.isfinite(model(image_features=features, labels=labels).loss)
        with pytest.raises(ValueError, match="10 locations, which is not a square.*height, width, 6"):
            model(image_features=features.flatten(1, 2), labels=labels)

    def test_uneven_captions_are_refused(self):
        inputs = tiny_inputs()
        with pytest.raises(ValueError, match="3 captions cannot be shared out evenly among 2 images"):
            tiny_model()(pixel_values=inputs["pixel_values"][:2], labels=inputs["labels"])

    @pytest.mark.parametrize(
        "field",
        [
            {"positional_encoding": "3d"},
            {"scaling": "none"},
            {"decoder_layers": 0},
            {"decoder_layers": 10**12},
            {"hidden_size": 10**12},
            {"hidden_size": -8},
            {"vocab_size": 0},
            {"max_target_length": -1},
            {"num_labels": 20_000_000},
            {"dropout": float("nan")},
            {"dropout": 1.5},
            {"hidden_size": 9},
            {"hidden_size": 6, "positional_encoding": "2d"},
        ],
    )
    def test_config_names_a_wrong_field(self, field):
        with pytest.raises(Exception, match=next(iter(field))):
            tiny_config(**field)
