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
import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoModel, AutoModelForPreTraining, AutoProcessor, CLIPImageProcessorPil, ResNetConfig

from hf_vg.data import train_word_tokenizer
from hf_vg.models.self_attn_grounded_encoder import (
    SelfAttnGroundedEncoderConfig,
    SelfAttnGroundedEncoderForPreTraining,
    SelfAttnGroundedEncoderModel,
    SelfAttnGroundedEncoderProcessor,
    kernels_self_attn_grounded_encoder,
)
from hf_vg.models.self_attn_grounded_encoder.kernels_self_attn_grounded_encoder import (
    plain_lstm,
    run_lstm,
    train_lstm,
)
from hf_vg.models.vgg import VggConfig
from tests.common import ModelTesterMixin, random_images, run_without_hf_vg
from tests.common.contract import ContractTesterMixin


def tiny_config(**kwargs) -> SelfAttnGroundedEncoderConfig:
    defaults = {
        "vocab_size": 12,
        "embedding_size": 8,
        "hidden_size": 8,
        "attention_size": 4,
        "num_attention_rows": 3,
        "feature_size": 7,
        "image_head_size": 8,
    }
    return SelfAttnGroundedEncoderConfig(**{**defaults, **kwargs})


def tiny_model(**kwargs) -> SelfAttnGroundedEncoderForPreTraining:
    torch.manual_seed(0)
    return SelfAttnGroundedEncoderForPreTraining(tiny_config(**kwargs)).eval()


def tiny_inputs(batch_size: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(3, 12, (batch_size, 5), generator=generator)
    labels = torch.randint(3, 12, (batch_size, 6), generator=generator)
    mask = torch.zeros_like(input_ids)
    # The two longest have the same length: a product with a single row can differ in the last bit with the memory
    # layout of the weights, and a loaded model has another layout.
    for row, (length, target) in enumerate(zip([5, 1, 5, 3], [2, 6, 6, 1], strict=True)):
        if row < batch_size:
            input_ids[row, length - 1] = labels[row, target - 1] = 0
            input_ids[row, length:] = 2
            mask[row, :length] = 1
            labels[row, target:] = -100
    features = torch.randn(batch_size, 7, generator=generator)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels, "image_features": features}


def tiny_tokenizer():
    return train_word_tokenizer(["a red circle above two blue squares", "some words"], vocab_size=12, max_length=5)


def tiny_processor(image_size: int = 8) -> SelfAttnGroundedEncoderProcessor:
    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    )
    return SelfAttnGroundedEncoderProcessor(image_processor, tiny_tokenizer())


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def restated_lstm(w: dict[str, np.ndarray], name: str, inputs: list, hidden, memory, suffix: str = "") -> list:
    """One step at a time. The order of torch's gates is input, forget, candidate, output."""
    w_ih, w_hh, b_ih, b_hh = (
        w[f"{name}.{part}_l0{suffix}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    states = []
    for x in inputs:
        i, f, g, o = np.split(w_ih @ x + b_ih + w_hh @ hidden + b_hh, 4)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(memory)
        states.append(hidden)
    return states


def restated_sentence(model, words: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
    """h and A of one sentence, as loops over words and attention rows."""
    w = {name.removeprefix("model."): p.detach().double().numpy() for name, p in model.named_parameters()}
    config = model.config
    zero = np.zeros(config.hidden_size)
    embedded = [w["embed_tokens.weight"][id] for id in words]
    forward = restated_lstm(w, "lstm", embedded, zero, zero)
    backward = restated_lstm(w, "lstm", embedded[::-1], zero, zero, "_reverse")[::-1]
    h_s = np.maximum(forward[-1], backward[0])
    if not config.use_attention:
        return h_s, None
    if config.state_merge == "max":
        states = [np.maximum(f, b) for f, b in zip(forward, backward, strict=True)]
    else:
        states = [np.concatenate([f, b]) for f, b in zip(forward, backward, strict=True)]
    attention = np.zeros((config.num_attention_rows, len(words)))
    h_a = np.full(len(states[0]), -np.inf)
    for row in range(config.num_attention_rows):
        scores = [
            math.exp(w["attention.score.weight"][row] @ np.tanh(w["attention.hidden.weight"] @ h)) for h in states
        ]
        attention[row] = np.array(scores) / sum(scores)
        h_a = np.maximum(h_a, sum(weight * h for weight, h in zip(attention[row], states, strict=True)))
    return np.concatenate([h_a, h_s]), attention


def restated_caption_loss(model, h: np.ndarray, words: list[int]) -> float:
    w = {name.removeprefix("model."): p.detach().double().numpy() for name, p in model.named_parameters()}
    first = w["decoder.init_state.weight"] @ h + w["decoder.init_state.bias"]
    inputs = [np.concatenate([w["embed_tokens.weight"][id], h]) for id in [0, *words[:-1]]]
    loss = 0.0
    for state, word in zip(restated_lstm(w, "decoder.lstm", inputs, *np.split(first, 2)), words, strict=True):
        logits = w["lm_head.weight"] @ state + w["lm_head.bias"]
        loss += math.log(np.exp(logits).sum()) - logits[word]
    return loss


def restated_image(model, h: np.ndarray) -> np.ndarray:
    w = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    for layer in range(4):
        h = w[f"image_head.layers.{layer}.weight"] @ h + w[f"image_head.layers.{layer}.bias"]
        if layer < 3:
            h = np.maximum(h, 0)
    return h


def restated_grounding_loss(predicted, images, image_ids, kind: str, negatives: str, margin: float) -> float:
    """Equation 1 or margin ranking, as a loop over pairs of a positive and a negative."""

    def cos(a, b):
        return float(a @ b / math.sqrt((a @ a) * (b @ b)))

    rows = range(len(predicted))
    total = 0.0
    for p in rows:
        positive = cos(predicted[p], images[p])
        for i, j in itertools.product(rows, rows):  # sentence i and image j are a negative pair
            if image_ids[i] == image_ids[j]:
                continue
            if kind == "margin":
                total += max(0.0, margin - positive + cos(predicted[i], images[j])) if i == p else 0.0
            elif negatives == "global" or p in (i, j):
                total += math.exp(cos(predicted[i], images[j]) - positive)
    return total / len(predicted) if kind == "margin" else math.log(1 + total)


LOSSES = [
    {},
    {"negatives": "global"},
    {"grounding_loss": "margin"},
    {"grounding_loss": "margin", "margin": 1.5},
    {"state_merge": "concat"},
    {"use_attention": False},
    {"objective": "cap2cap"},
    {"objective": "cap2img", "state_merge": "concat"},
    {"attention_penalty": 0.5},
]


class TestSelfAttnGroundedEncoderForPreTraining(ModelTesterMixin):
    model_class = SelfAttnGroundedEncoderForPreTraining
    auto_class = AutoModelForPreTraining
    outputs_to_compare = ("pooler_output", "image_embeds", "logits")
    num_hidden_states = {"hidden_states": 2}
    num_attentions = {"attentions": 1}
    main_input = "input_ids"

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        return tiny_inputs(batch_size)

    def unlabelled_inputs(self):
        return {name: tiny_inputs()[name] for name in ("input_ids", "attention_mask")}

    @pytest.mark.parametrize("options", LOSSES, ids=lambda options: "-".join(map(str, options.values())) or "defaults")
    def test_equals_the_paper_restated(self, options):
        model = tiny_model(**options).double()
        for name, parameter in model.named_parameters():
            if "bias" in name:  # zeros would hide mistakes
                parameter.data += 0.3 * torch.randn_like(parameter)
        inputs = tiny_inputs(4)
        image_ids = torch.tensor([5, 9, 5, 7])
        inputs["image_features"] = inputs["image_features"].double()
        asked = {"output_attentions": True} if model.config.use_attention else {}
        outputs = model(**inputs, image_ids=image_ids, **asked)
        assert model.config.sentence_size == outputs.pooler_output.shape[1]
        rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        sentences = [row[mask > 0].tolist() for row, mask in rows]
        targets = [[id for id in row if id != -100] for row in inputs["labels"].tolist()]
        vectors, penalty = [], 0.0
        for row, words in enumerate(sentences):
            h, attention = restated_sentence(model, words)
            vectors.append(h)
            np.testing.assert_allclose(outputs.pooler_output[row].detach().numpy(), h, atol=1e-7)
            if attention is not None:
                found = outputs.attentions[0][row].detach().numpy()
                np.testing.assert_allclose(found[:, : len(words)], attention, atol=1e-7)
                assert (found[:, len(words) :] == 0).all()
                for i, j in itertools.product(range(3), range(3)):
                    penalty += (attention[i] @ attention[j] - (i == j)) ** 2 / 4
        expected = {}
        if model.predicts_caption:
            pairs = zip(vectors, targets, strict=True)
            expected["loss_caption"] = sum(restated_caption_loss(model, h, words) for h, words in pairs) / 4
        if model.predicts_image:
            predicted = [restated_image(model, h) for h in vectors]
            expected["loss_grounding"] = restated_grounding_loss(
                predicted,
                inputs["image_features"].double().numpy(),
                image_ids.tolist(),
                model.config.grounding_loss,
                model.config.negatives,
                model.config.margin,
            )
        expected["loss"] = sum(expected.values()) + model.config.attention_penalty * penalty
        if model.config.attention_penalty:
            expected["loss_attention"] = penalty
        for name in ("loss", "loss_caption", "loss_grounding", "loss_attention"):
            if name in expected:
                assert outputs[name].item() == pytest.approx(expected[name], abs=1e-5), name
            else:
                assert getattr(outputs, name) is None, name

    @pytest.mark.parametrize("objective", ["cap2cap", "cap2img"])
    def test_an_objective_has_no_idle_parts(self, objective):
        """DDP waits for the gradient of every parameter."""
        model = tiny_model(objective=objective).train()
        model(**tiny_inputs()).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    @pytest.mark.parametrize("options", LOSSES[:3], ids=["anchored", "global", "margin"])
    def test_a_batch_without_negatives_has_no_grounding_loss_but_a_gradient(self, options):
        model, inputs = tiny_model(objective="cap2img", **options), tiny_inputs()
        loss = model(**inputs, image_ids=torch.tensor([4, 4, 4])).loss
        loss.backward()
        assert loss.item() == 0
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())

    def test_captions_of_one_image_are_no_negatives(self):
        model, inputs = tiny_model(objective="cap2img"), tiny_inputs(4)
        inputs["image_features"][2] = inputs["image_features"][0]
        apart, together = (
            model(**inputs, image_ids=torch.tensor(ids)).loss.item() for ids in ([0, 1, 2, 3], [0, 1, 0, 3])
        )
        assert model(**inputs).loss.item() == apart > together

    @pytest.mark.parametrize("options", LOSSES, ids=lambda options: "-".join(map(str, options.values())) or "defaults")
    def test_padding_changes_nothing(self, options):
        model, inputs = tiny_model(**options), tiny_inputs()
        longer = {
            **inputs,
            "input_ids": torch.nn.functional.pad(inputs["input_ids"], (0, 4), value=2),
            "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 4)),
            "labels": torch.nn.functional.pad(inputs["labels"], (0, 3), value=-100),
        }
        short, padded = model(**inputs), model(**longer)
        torch.testing.assert_close(padded.loss, short.loss)
        torch.testing.assert_close(padded.pooler_output, short.pooler_output)
        for row in range(3):
            length = inputs["attention_mask"][row].sum()
            alone = model.model(inputs["input_ids"][row : row + 1, :length])
            torch.testing.assert_close(alone.pooler_output[0], short.pooler_output[row])

    def test_training_loss_equals_evaluation_loss(self):
        model, inputs = tiny_model(image_head_dropout=0.0), tiny_inputs()
        training, evaluation = model.train()(**inputs), model.eval()(**inputs)
        assert training.logits is None and evaluation.logits.shape == (3, 6, 12)
        torch.testing.assert_close(training.loss, evaluation.loss)

    def test_dropout_is_the_image_heads_alone(self):
        model, inputs = tiny_model(image_head_dropout=0.5).train(), tiny_inputs()
        first, second = model(**inputs), model(**inputs)
        assert torch.equal(first.pooler_output, second.pooler_output)
        assert torch.equal(first.loss_caption, second.loss_caption)
        assert not torch.equal(first.image_embeds, second.image_embeds)

    @pytest.mark.parametrize("options", [{}, {"state_merge": "concat"}, {"use_attention": False}])
    def test_empty_and_one_word_sentences_are_finite(self, options):
        model, inputs = tiny_model(**options), tiny_inputs()
        inputs["attention_mask"][0] = 0
        inputs["labels"][1] = -100
        outputs = model(**inputs, output_attentions=model.config.use_attention)
        outputs.loss.backward()
        assert (outputs.pooler_output[0] == 0).all() and (outputs.pooler_output[1] != 0).any()
        if outputs.attentions is not None:
            (attention,) = outputs.attentions
            torch.testing.assert_close(attention.sum(dim=-1), torch.tensor([[0.0] * 3, [1.0] * 3, [1.0] * 3]))
        for value in [outputs.loss, *(parameter.grad for parameter in model.parameters())]:
            assert torch.isfinite(value).all()

    def test_recurrent_weights_begin_orthogonal_and_others_xavier(self):
        model = tiny_model(hidden_size=16)
        for lstm in (model.model.lstm, model.decoder.lstm):
            for name, parameter in lstm.named_parameters():
                for gate in parameter.detach().chunk(4):
                    if name.startswith("weight_hh"):
                        torch.testing.assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0)
                    elif name.startswith("weight_ih"):
                        bound = math.sqrt(6 / sum(gate.shape))
                        assert 0.8 * bound < gate.abs().max() <= bound
                    else:
                        assert (gate == 0).all()
        weight = model.image_head.layers[1].weight
        assert 0.8 < weight.abs().max() / math.sqrt(6 / sum(weight.shape)) <= 1

    def test_pixels_serve_as_well_as_features(self):
        backbone = VggConfig(depths=[1, 1], hidden_sizes=[4, 7])
        model, inputs = tiny_model(backbone_config=backbone), tiny_inputs()
        pixel_values = torch.randn(3, 3, 8, 8)
        features = model.image_encoder.backbone(pixel_values).feature_maps[-1].mean(dim=(2, 3))
        with_features = model(**{**inputs, "image_features": features}).loss
        del inputs["image_features"]
        loss = model(**inputs, pixel_values=pixel_values).loss
        torch.testing.assert_close(loss, with_features)
        loss.backward()
        assert all(parameter.grad is None for parameter in model.image_encoder.backbone.parameters())
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(**inputs, pixel_values=pixel_values, image_features=features)
        with pytest.raises(ValueError, match="has no backbone.*image_features"):
            tiny_model()(**inputs, pixel_values=pixel_values)

    def test_a_frozen_backbone_stays_frozen_after_loading(self, tmp_path):
        tiny_model(backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[4, 7])).save_pretrained(tmp_path)
        model, inputs = self.model_class.from_pretrained(tmp_path).train(), tiny_inputs()
        del inputs["image_features"]
        model(**inputs, pixel_values=torch.randn(3, 3, 8, 8)).loss.backward()
        backbone = model.image_encoder.backbone
        assert not backbone.training and not any(parameter.requires_grad for parameter in backbone.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        assert trained and all(parameter.grad is not None for parameter in trained)

    def test_any_backbone_plugs_in_and_may_be_trained(self):
        backbone = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        )
        model, inputs = tiny_model(backbone_config=backbone, feature_size=8, freeze_backbone=False), tiny_inputs()
        del inputs["image_features"]
        model(**inputs, pixel_values=torch.randn(3, 3, 32, 32)).loss.backward()
        assert all(parameter.grad is not None for parameter in model.image_encoder.backbone.parameters())
        with pytest.raises(ValueError, match="feature_size=8"):
            tiny_model(backbone_config=backbone)

    def test_what_is_missing_is_named(self):
        inputs = tiny_inputs()
        labels, features = inputs.pop("labels"), inputs.pop("image_features")
        assert tiny_model()(**inputs).loss is None
        with pytest.raises(ValueError, match="'cap2all' needs `labels`"):
            tiny_model()(**inputs, image_features=features)
        with pytest.raises(ValueError, match="'cap2all' needs `pixel_values` or `image_features`"):
            tiny_model()(**inputs, labels=labels)
        with pytest.raises(ValueError, match=r"must be \(batch, 7\), got \(3, 6\)"):
            tiny_model()(**inputs, image_features=features[:, :6])
        with pytest.raises(ValueError, match="`output_attentions` needs self-attention"):
            tiny_model(use_attention=False)(**inputs, output_attentions=True)
        with pytest.raises(ValueError, match="pad sentences on the right"):
            tiny_model()(inputs["input_ids"], attention_mask=inputs["attention_mask"].flip(1))

    @pytest.mark.parametrize(
        "field",
        [
            {"objective": "cap2none"},
            {"state_merge": "mean"},
            {"negatives": "hard"},
            {"num_attention_rows": 0},
            {"vocab_size": 10**12},
            {"hidden_size": -1},
            {"image_head_layers": 10**6},
            {"image_head_dropout": float("nan")},
            {"margin": float("inf")},
            {"num_labels": 20_000_000},
        ],
        ids=str,
    )
    def test_config_names_a_wrong_field(self, field):
        with pytest.raises(Exception, match=next(iter(field))):
            tiny_config(**field)

    def test_sizes_are_the_papers(self):
        assert SelfAttnGroundedEncoderConfig().sentence_size == 2048
        assert SelfAttnGroundedEncoderConfig(state_merge="concat").sentence_size == 3072
        assert SelfAttnGroundedEncoderConfig(use_attention=False, hidden_size=2048).sentence_size == 2048

    def test_learns_which_caption_belongs_to_which_image(self):
        model, inputs = tiny_model(hidden_size=16, image_head_dropout=0.0).train(), tiny_inputs()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(100):
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        outputs = model.eval()(**inputs)
        similarity = torch.nn.functional.cosine_similarity(
            outputs.image_embeds.unsqueeze(1), inputs["image_features"].unsqueeze(0), dim=-1
        )
        assert similarity.argmax(dim=1).tolist() == [0, 1, 2]
        is_word = inputs["labels"] != -100
        assert torch.equal(outputs.logits.argmax(dim=-1)[is_word], inputs["labels"][is_word])


class TestSelfAttnGroundedEncoderModel(ContractTesterMixin):
    """The encoder alone. It has no loss."""

    model_class = SelfAttnGroundedEncoderModel
    outputs_to_compare = ("last_hidden_state", "pooler_output")
    num_hidden_states = {"hidden_states": 2}
    num_attentions = {"attentions": 1}
    main_input = "input_ids"

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        return {name: tiny_inputs(batch_size)[name] for name in ("input_ids", "attention_mask")}

    model, compared = ModelTesterMixin.model, ModelTesterMixin.compared
    model_without_dropout = ModelTesterMixin.model_without_dropout


class TestRunLstm:
    """Both versions equal `nn.LSTM` on packed inputs with the constant appended."""

    @pytest.mark.parametrize("version", [train_lstm, plain_lstm])
    @pytest.mark.parametrize(("bidirectional", "constant_size"), [(True, 0), (False, 3), (True, 3)])
    def test_states_and_gradients_are_those_of_torch(self, bidirectional, constant_size, version, monkeypatch):
        monkeypatch.setattr(kernels_self_attn_grounded_encoder, "train_lstm", version)
        torch.manual_seed(0)
        lengths = torch.tensor([3, 1, 5, 0, 5])
        lstm = torch.nn.LSTM(4 + constant_size, 6, batch_first=True, bidirectional=bidirectional).double()
        leaves = [*lstm.parameters(), torch.randn(5, 7, 4).double().requires_grad_()]
        inputs, constant, state = leaves[-1], None, None
        if constant_size:
            constant = torch.randn(5, constant_size).double().requires_grad_()
            leaves.append(constant)
        if not bidirectional:
            state = [torch.randn(5, 6).double().requires_grad_() for _ in range(2)]
            leaves += state

        joined = inputs if constant is None else torch.cat([inputs, constant[:, None].expand(-1, 7, -1)], dim=-1)
        packed = pack_padded_sequence(joined, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        expected, (expected_final, _) = lstm(packed, None if state is None else tuple(part[None] for part in state))
        expected = pad_packed_sequence(expected, batch_first=True, total_length=7)[0]
        states, final = run_lstm(lstm, inputs, lengths, constant, state)
        torch.testing.assert_close(states, expected)
        torch.testing.assert_close(final, expected_final)

        slopes = torch.randn_like(states), torch.randn_like(final)
        gradients = torch.autograd.grad((states, final), leaves, slopes)
        torch.testing.assert_close(gradients, torch.autograd.grad((expected, expected_final), leaves, slopes))
        with torch.no_grad():  # always uses the plain version
            torch.testing.assert_close(run_lstm(lstm, inputs, lengths, constant, state), (expected, expected_final))


class TestEncode:
    sentences = ["a red circle", "words", "", "a red circle above two blue squares and more", "two blue words"]

    @pytest.fixture
    def folder(self, tmp_path):
        tiny_model().save_pretrained(tmp_path)
        tiny_processor().save_pretrained(tmp_path)
        return tmp_path

    @pytest.mark.parametrize("batch_size", [1, 2, 64])
    def test_keeps_the_order_whatever_the_batch(self, folder, batch_size):
        model = AutoModel.from_pretrained(folder)
        assert type(model) is SelfAttnGroundedEncoderModel
        vectors = model.encode(self.sentences, batch_size=batch_size)
        assert isinstance(vectors, np.ndarray) and vectors.shape == (5, 16) and vectors.dtype == np.float32
        for sentence, vector in zip(self.sentences, vectors, strict=True):
            ids = torch.tensor([tiny_tokenizer()(sentence, truncation=True)["input_ids"]])
            np.testing.assert_allclose(vector, model(ids).pooler_output[0].detach().numpy(), atol=1e-6)

    def test_one_sentence_is_one_vector_and_tensors_are_had(self, folder):
        model = AutoModelForPreTraining.from_pretrained(folder)
        vectors = model.encode(self.sentences, convert_to_tensor=True)
        assert isinstance(vectors, torch.Tensor) and not vectors.requires_grad
        torch.testing.assert_close(torch.tensor(model.encode(self.sentences[0])), vectors[0])
        assert model.encode([]).shape == (0, 16)
        # The argument names of sentence-transformers.
        rows = model.encode(
            self.sentences,
            batch_size=2,
            show_progress_bar=False,
            convert_to_numpy=False,
            normalize_embeddings=False,
            device="cpu",
        )
        assert isinstance(rows, list)
        torch.testing.assert_close(torch.stack(rows), vectors)

    def test_the_encoder_alone_is_loaded_without_a_word(self, folder, capfd):
        model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert "UNEXPECTED" not in "".join(capfd.readouterr())

    def test_normalizes(self, folder):
        model = AutoModel.from_pretrained(folder)
        plain, normal = model.encode(self.sentences), model.encode(self.sentences, normalize_embeddings=True)
        np.testing.assert_allclose(np.linalg.norm(normal, axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(normal, plain / np.linalg.norm(plain, axis=1, keepdims=True), rtol=1e-5)

    def test_a_tokenizer_may_give_no_token_at_all(self):
        def no_tokens(sentences, truncation):
            return {"input_ids": [[] for _ in sentences]}

        assert (tiny_model().encode(["", "a"], tokenizer=no_tokens) == 0).all()

    def test_says_what_is_wrong(self, folder):
        with pytest.raises(ValueError, match="Pass a `tokenizer` to `encode`"):
            tiny_model().encode("a red circle")
        with pytest.raises(TypeError, match="Sentence 1 must be a string, got NoneType"):
            AutoModel.from_pretrained(folder).encode(["a", None])
        with pytest.raises(ValueError, match="Sentence 1 holds half of a surrogate pair"):
            AutoModel.from_pretrained(folder).encode(["é", "\udfff"])
        assert tiny_model().encode("a red circle", tokenizer=tiny_tokenizer()).shape == (16,)

    def test_works_as_remote_code_and_so_does_the_processor(self, folder):
        expected = AutoModel.from_pretrained(folder).encode("a red circle")
        printed = run_without_hf_vg(
            f"""
            import json
            from transformers import AutoModel, AutoProcessor
            model = AutoModel.from_pretrained({str(folder)!r}, trust_remote_code=True)
            processor = AutoProcessor.from_pretrained({str(folder)!r}, trust_remote_code=True)
            print(json.dumps([model.encode("a red circle").tolist(), processor(text=["a red circle"])["input_ids"]]))
            """,
            folder,
        )
        vector, ids = json.loads(printed)
        np.testing.assert_allclose(vector, expected, atol=1e-6)
        assert ids == tiny_processor()(text=["a red circle"])["input_ids"]


class TestSelfAttnGroundedEncoderProcessor:
    def test_sentences_and_targets_end_and_are_padded(self):
        processor = tiny_processor()
        batch = processor(text=["A red circle!", "words never-seen", ""], text_target=["a", "red circle", ""])
        word = processor.tokenizer.get_vocab()
        assert batch["input_ids"] == [
            [word["a"], word["red"], word["circle"], 0],
            [word["words"], 1, 0, 2],
            [0, 2, 2, 2],
        ]
        assert batch["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
        assert batch["labels"] == [[word["a"], 0, -100], [word["red"], word["circle"], 0], [0, -100, -100]]
        with pytest.raises(TypeError, match=r"`text_target\[1\]` must be a str, got int: 3"):
            processor(text_target=["a", 3])
        with pytest.raises(ValueError, match="Pass `images`, `text`"):
            processor()

    def test_feeds_the_model(self):
        model = tiny_model(backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[4, 7]))
        batch = tiny_processor()(
            images=random_images(2), text=["a red circle", "words"], text_target=["a", "b"], return_tensors="pt"
        )
        assert set(batch) == {"pixel_values", "input_ids", "attention_mask", "labels"}
        assert torch.isfinite(model(**batch).loss)

    def test_round_trip(self, tmp_path):
        processor = tiny_processor()
        processor.save_pretrained(tmp_path)
        tiny_model().save_pretrained(tmp_path)
        loaded = AutoProcessor.from_pretrained(tmp_path)
        assert type(loaded) is SelfAttnGroundedEncoderProcessor
        arguments = {"text": ["a red circle"], "text_target": ["two words"], "images": random_images(1)}
        expected, actual = (p(**arguments, return_tensors="pt") for p in (processor, loaded))
        assert set(actual) == set(expected)
        for name in expected:
            assert torch.equal(actual[name], expected[name])
