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
import math
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel, AutoModelForImageTextToText, ResNetConfig, set_seed
from transformers.modeling_outputs import BaseModelOutput

from hf_vg.data import train_word_tokenizer
from hf_vg.models.show_attend_tell import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellModel,
    ShowAttendTellProcessor,
)
from hf_vg.models.show_attend_tell.kernels_show_attend_tell import (
    energy_of_steps,
    factored_energy,
    plain_energy,
    tanh_factors,
)
from hf_vg.models.show_attend_tell.outputs_show_attend_tell import ShowAttendTellState
from hf_vg.models.vgg import VggConfig
from tests.common import CaptionerTesterMixin


def tiny_config(**kwargs) -> ShowAttendTellConfig:
    defaults = {
        "backbone_config": VggConfig(depths=[1, 1], hidden_sizes=[4, 6]),
        "freeze_backbone": False,
        "feature_size": 6,
        "vocab_size": 12,
        "embedding_size": 5,
        "hidden_size": 7,
        "attention_size": 4,
        "initializer_range": 0.3,
    }
    return ShowAttendTellConfig(**{**defaults, **kwargs})


def tiny_processor(image_size: int = 8) -> ShowAttendTellProcessor:
    from transformers import CLIPImageProcessorPil

    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    )
    tokenizer = train_word_tokenizer(["a red circle above two blue squares", "some words"], vocab_size=12)
    return ShowAttendTellProcessor(image_processor, tokenizer)


def tiny_inputs(batch_size: int = 3, size: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, 12, (batch_size, 6), generator=generator)
    for row, length in enumerate([6, 4, 5, 3][:batch_size]):
        labels[row, length - 1] = 0
        labels[row, length:] = -100
    return {"pixel_values": torch.randn(batch_size, 3, size, size, generator=generator), "labels": labels}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def restated_loss(model, features: np.ndarray, captions: list[list[int]], penalty: float) -> tuple[float, list]:
    """The paper as loops over captions, words and locations. Details that it omits follow the authors' code."""
    w = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    config = model.config
    total, all_alphas = 0.0, []
    for a, words in zip(features, captions, strict=True):
        mean = a.mean(axis=0)
        for i in range(config.num_init_layers - 1):
            layer = f"model.decoder.init_layers.{i}"
            mean = np.maximum(w[f"{layer}.weight"] @ mean + w[f"{layer}.bias"], 0)
        h = np.tanh(w["model.decoder.init_hidden.weight"] @ mean + w["model.decoder.init_hidden.bias"])
        c = np.tanh(w["model.decoder.init_memory.weight"] @ mean + w["model.decoder.init_memory.bias"])
        previous = np.zeros(config.embedding_size)
        alphas = []
        for word in words:
            energies = []
            for a_i in a:
                p = w["model.encoder.key_layers.0.weight"] @ a_i + w["model.encoder.key_layers.0.bias"]
                for i in range(1, config.num_attention_layers):
                    layer = f"model.encoder.key_layers.{i}"
                    p = np.tanh(w[f"{layer}.weight"] @ p + w[f"{layer}.bias"])
                query = w["model.decoder.attention.query.weight"] @ h
                if config.attention_sees_word:
                    query = query + w["model.decoder.attention.word_query.weight"] @ previous
                energies.append(float(w["model.decoder.attention.score.weight"][0] @ np.tanh(p + query)))
            alpha = np.exp(energies) / np.exp(energies).sum()
            alphas.append(alpha)
            z = sum(alpha_i * a_i for alpha_i, a_i in zip(alpha, a, strict=True))
            if config.context_gate != "none":
                gate = w["model.decoder.attention.gate.weight"] @ h + w["model.decoder.attention.gate.bias"]
                assert len(gate) == (1 if config.context_gate == "scalar" else config.feature_size)
                z = sigmoid(gate) * z
            gates = (
                w["model.decoder.gates_from_word.weight"] @ previous
                + w["model.decoder.gates_from_word.bias"]
                + w["model.decoder.gates_from_hidden.weight"] @ h
                + w["model.decoder.gates_from_context.weight"] @ z
            )
            n = config.hidden_size
            i, f, o, g = gates[:n], gates[n : 2 * n], gates[2 * n : 3 * n], gates[3 * n :]
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            readout = w["output_from_hidden.weight"] @ h + w["output_from_hidden.bias"]
            if config.output_from_embedding:
                readout = readout + previous
            if config.output_from_context:
                readout = readout + w["output_from_context.weight"] @ z
            if config.deep_output_activation == "tanh":
                readout = np.tanh(readout)
            logits = w["lm_head.weight"] @ readout + w["lm_head.bias"]
            total += math.log(np.exp(logits).sum()) - logits[word]
            previous = w["model.decoder.embed_tokens.weight"][word]
        for location in range(len(a)):
            total += penalty * (1 - sum(alpha[location] for alpha in alphas)) ** 2
        all_alphas.append(alphas)
    return total / len(captions), all_alphas


class TestShowAttendTell(CaptionerTesterMixin):
    model_class = ShowAttendTellForConditionalGeneration
    auto_class = AutoModelForImageTextToText
    num_hidden_states = {"decoder_hidden_states": 1, "encoder_hidden_states": 1}
    num_attentions = {"cross_attentions": 1}

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        return tiny_inputs(batch_size)

    def processor(self):
        return tiny_processor()

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"context_gate": "vector", "deep_output_activation": "linear"},
            {"context_gate": "none", "num_attention_layers": 1, "num_init_layers": 1, "attention_penalty": 0.3},
            {"num_attention_layers": 3, "num_init_layers": 3},
            {"output_from_embedding": False, "output_from_context": False},
            {"attention_sees_word": True},
        ],
        ids=lambda options: "-".join(options) or "defaults",
    )
    def test_equals_the_paper_restated(self, options):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, **options)).double().eval()
        features = torch.randn(3, 5, 6, dtype=torch.double)
        labels = tiny_inputs()["labels"]
        outputs = model(image_features=features, labels=labels, output_attentions=True)
        captions = [[id for id in row if id != -100] for row in labels.tolist()]
        loss, alphas = restated_loss(model, features.numpy(), captions, model.config.attention_penalty)
        assert outputs.loss.item() == pytest.approx(loss, abs=1e-5)
        for row, steps in enumerate(alphas):
            actual = outputs.cross_attentions[0][row, 0, : len(steps)]
            np.testing.assert_allclose(actual.detach().numpy(), np.stack(steps), atol=1e-6)
        parts = outputs.loss_caption + model.config.attention_penalty * outputs.loss_attention
        torch.testing.assert_close(outputs.loss, parts)


class TestShowAttendTellHard(CaptionerTesterMixin):
    """Hard attention passes all tests of soft attention."""

    model_class = ShowAttendTellForConditionalGeneration
    auto_class = AutoModelForImageTextToText
    num_hidden_states = {"decoder_hidden_states": 1, "encoder_hidden_states": 1}
    num_attentions = {"cross_attentions": 1}

    def config(self):
        # Training batches use expected contexts only, so the losses of two passes can be compared.
        return tiny_config(attention_type="hard", semi_sampling_probability=0.0)

    def inputs(self, batch_size=3):
        return tiny_inputs(batch_size)

    def processor(self):
        return tiny_processor()


def hard_model(num_words: int = 12, **options) -> ShowAttendTellForConditionalGeneration:
    """Without dropout, so only the sampled locations are random."""
    set_seed(0)
    config = tiny_config(backbone_config=None, attention_type="hard", dropout=0.0, vocab_size=num_words, **options)
    return ShowAttendTellForConditionalGeneration(config).double()


def gradients(loss, model) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class TestHardAttention:
    def test_expected_gradient_is_that_of_the_variational_bound(self):
        """
        On 3 locations and 2 words all 9 paths can be enumerated: the bound is sum_s p(s|a) log p(y|s,a), equation 10.
        The surrogate of many sampled paths must have this gradient up to Monte Carlo error: each of the estimate's
        components within 5 standard errors of 40 batches, and the whole within 3% of the exact gradient.
        """
        length, paths, batches = 2, 4000, 40
        # One image with a repeated caption: with this weight the sum over the batch becomes a mean, and the reward,
        # a mean over words, becomes the caption's log likelihood.
        model = hard_model(
            semi_sampling_probability=1.0, reinforce_weight=length / paths, entropy_weight=0.0, baseline_decay=1.0
        ).train()
        features, caption = torch.randn(1, 3, 6).double(), torch.tensor([[5, 0]])

        bound = 0
        for path in itertools.product(range(3), repeat=length):
            log_prior, log_likelihood = self.path_log_probabilities(model, features, caption, path)
            bound = bound + torch.exp(log_prior) * log_likelihood
        exact = gradients(-bound, model)
        labels = caption.expand(1, paths, length)
        estimates = torch.stack(
            [gradients(model(image_features=features, labels=labels).loss, model) for _ in range(batches)]
        )
        mean, error = estimates.mean(dim=0), estimates.std(dim=0) / batches**0.5
        assert ((mean - exact).abs() <= 5 * error + 1e-9).all()
        assert (mean - exact).norm() <= 0.03 * exact.norm()
        # The estimate must differ from the gradient with fixed attention.
        fixed = hard_model(semi_sampling_probability=1.0, reinforce_weight=0.0, entropy_weight=0.0).train()
        biased = gradients(fixed(image_features=features, labels=labels).loss, fixed)
        assert (biased - exact).norm() > 0.06 * exact.norm()

    @staticmethod
    def path_log_probabilities(model, features, caption, path):
        """log p(s|a) and log p(y|s,a) of one path of locations, through the model's own attention and LSTM."""
        attention = model.model.decoder.attention
        step, log_prior = iter(path), []

        def forced(weights, features, choice):
            location = next(step)
            log_prior.append(torch.log(weights[0, 0, location]))
            return features[:, location], torch.tensor([location])

        with mock.patch.object(type(attention), "context", staticmethod(forced)):
            states = model.model(image_features=features, decoder_input_ids=torch.tensor([[0, caption[0, 0]]]))
        logits = model.deep_output(states.last_hidden_state, states.contexts, states.embeddings)
        log_likelihood = torch.log_softmax(logits, dim=-1).gather(2, caption.unsqueeze(-1)).sum()
        return torch.stack(log_prior).sum(), log_likelihood

    def test_loss_is_the_surrogate_restated(self):
        model = hard_model(semi_sampling_probability=1.0).train()
        model.baseline.fill_(1.5)
        features, labels = torch.randn(3, 5, 6).double(), tiny_inputs()["labels"]
        set_seed(3)
        outputs = model(image_features=features, labels=labels)
        # Sample the same locations again, with the same seed.
        set_seed(3)
        ids = torch.cat([torch.zeros(3, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)], dim=1)
        states = model.model(image_features=features, decoder_input_ids=ids)
        logits = model.deep_output(states.last_hidden_state, states.contexts, states.embeddings)
        alphas, nll, reinforce, entropy, words = states.cross_attentions[0][:, 0], 0.0, 0.0, 0.0, []
        for row, caption in enumerate(labels.tolist()):
            caption = [id for id in caption if id != -100]
            losses = [-torch.log_softmax(logits[row, t], -1)[id].item() for t, id in enumerate(caption)]
            words += losses
            nll += sum(losses) / 3
            for t in range(len(caption)):
                alpha = alphas[row, t].tolist()
                reinforce += (sum(losses) / len(losses) - 1.5) / 10 * math.log(alpha[states.locations[row, t]])
                entropy += 0.002 * sum(a * math.log(a) for a in alpha)
        assert outputs.loss_caption.item() == pytest.approx(nll, abs=1e-5)
        assert outputs.loss_reinforce.item() == pytest.approx(reinforce, abs=1e-5)
        assert outputs.loss_entropy.item() == pytest.approx(entropy, abs=1e-5)
        assert outputs.loss.item() == pytest.approx(nll + reinforce + entropy, abs=1e-5)
        assert not outputs.loss_attention.requires_grad
        assert model.baseline.item() == pytest.approx(0.9 * 1.5 + 0.1 * sum(words) / len(words), abs=1e-5)

    def test_baseline_is_saved_and_moves_only_in_training(self, tmp_path):
        model = hard_model().float()
        features, labels = torch.randn(3, 5, 6), tiny_inputs()["labels"]
        assert model.baseline == 0
        model.train()(image_features=features, labels=labels)
        moved = model.baseline.clone()
        assert moved > 0
        model.eval()(image_features=features, labels=labels)
        assert model.baseline == moved
        model.save_pretrained(tmp_path)
        assert AutoModelForImageTextToText.from_pretrained(tmp_path).baseline == moved

    def test_half_of_the_batches_sample(self):
        model = hard_model().train()
        features, labels = torch.randn(3, 5, 6).double(), tiny_inputs()["labels"]
        set_seed(0)
        sampled = [model(image_features=features, labels=labels).loss_reinforce.item() != 0 for _ in range(100)]
        assert 35 <= sum(sampled) <= 65

    def test_without_gradients_it_decodes_even_in_training(self):
        model = hard_model(semi_sampling_probability=1.0).train()
        inputs = {"image_features": torch.randn(4, 5, 6).double(), "decoder_input_ids": torch.tensor([[0, 3]] * 4)}
        assert model.model(**inputs).locations is not None
        with torch.no_grad():
            found = model.model(**inputs)
        assert found.locations is None
        assert torch.equal(found.contexts, model.eval().model(**inputs).contexts)

    def test_ways_to_decode(self):
        features = torch.randn(4, 5, 6).double()
        inputs = {"image_features": features, "decoder_input_ids": torch.zeros(4, 1, dtype=torch.long)}
        outputs = {}
        for choice in ("expected", "argmax", "sample"):
            set_seed(0)
            outputs[choice] = hard_model(hard_decoding=choice).eval().model(**inputs)
        weights = outputs["expected"].cross_attentions[0][:, 0, 0]
        assert outputs["expected"].locations is None
        assert torch.equal(outputs["argmax"].locations[:, 0], weights.argmax(dim=-1))
        gate = outputs["argmax"].contexts[:, 0] / features[torch.arange(4), weights.argmax(dim=-1)]
        torch.testing.assert_close(gate, gate[:, :1].expand_as(gate))  # only the scalar gate
        assert outputs["sample"].locations.shape == (4, 1)
        torch.testing.assert_close(outputs["sample"].cross_attentions[0], outputs["argmax"].cross_attentions[0])

    def test_temperature_sharpens(self):
        inputs = {"image_features": torch.randn(4, 5, 6).double()}
        plain, sharp = (
            hard_model(attention_temperature=t).eval().model(**inputs).cross_attentions[0] for t in (1.0, 3.0)
        )
        torch.testing.assert_close(torch.softmax(3 * plain.log(), dim=-1), sharp)


class TestShowAttendTellModel:
    @pytest.mark.parametrize(
        "lengths", [[[2, 5, 0], [7, 0, 3], [1, 4, 4]], [[3], [1], [6]], [[0, 0], [0, 0]], [[4, 4], [4, 4]]]
    )
    def test_training_without_logits_changes_no_gradient(self, lengths):
        """Training projects only words to the vocabulary. Evaluation, the reference, also projects padding."""
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, dropout=0.0)).double()
        features = torch.randn(len(lengths), 4, 6, dtype=torch.double, requires_grad=True)
        labels = torch.full((len(lengths), len(lengths[0]), 8), -100)
        for image, caption in np.ndindex(*labels.shape[:2]):
            labels[image, caption, : lengths[image][caption]] = torch.randint(3, 12, (lengths[image][caption],))
        results = []
        for mode in (True, False):
            model.train(mode).zero_grad()
            outputs = model(image_features=features, labels=labels)
            outputs.loss.backward()
            assert (outputs.logits is None) == mode
            results.append([outputs.loss_caption, outputs.loss_attention, features.grad.clone()])
            results[-1] += [parameter.grad for parameter in model.parameters()]
            assert torch.equal(outputs.encoder_last_hidden_state, features)
            features.grad = None
        for left_out, computed in zip(*results, strict=True):
            torch.testing.assert_close(left_out, computed, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("scale", [1.0, 8.0, 100.0])
    def test_attention_without_gradients_is_that_with(self, scale):
        """Without gradients, tanh is computed from factors while these are in range, also where it saturates."""
        set_seed(0)
        config = tiny_config(backbone_config=None, num_attention_layers=1)
        model = ShowAttendTellForConditionalGeneration(config).eval()
        model.model.encoder.key_layers[0].weight.data *= scale
        inputs = {"image_features": torch.randn(3, 4, 6), "decoder_input_ids": torch.randint(0, 12, (6, 5))}
        expected = model.model(**inputs)
        assert model.model.encoder(image_features=inputs["image_features"]).key_factors is None
        with torch.no_grad():
            factors = model.model.encoder(image_features=inputs["image_features"]).key_factors
            outputs = model.model(**inputs)
        assert (factors is not None) == (scale * 3 < 100)
        torch.testing.assert_close(outputs.cross_attentions, expected.cross_attentions, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-6)

    def test_loss_without_gradients_is_that_with(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, dropout=0.0)).train()
        inputs = {"image_features": torch.randn(3, 4, 6), "labels": tiny_inputs()["labels"].flip(0)}
        expected = model(**inputs).loss
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).loss, expected)

    @pytest.mark.parametrize("mode", [True, False])
    def test_returned_attention_has_the_whole_derivative(self, mode):
        """The derivative of the logits by a weight of step 1, through its context and all later states."""
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, dropout=0.0)).double()
        features, ids = torch.randn(2, 4, 6).double(), torch.randint(3, 12, (2, 5))
        outputs = model.train(mode)(image_features=features, decoder_input_ids=ids, output_attentions=True)
        (gradient,) = torch.autograd.grad(outputs.logits[:, -1].sum(), outputs.cross_attentions, retain_graph=True)

        decoder, encoded = model.model.decoder, model.model.encoder(image_features=features)
        state = decoder.initial_state(features, 1)
        embeddings = decoder.embed_tokens(ids)
        embeddings[:, 0] = 0

        def last_logits(attention: torch.Tensor) -> float:
            states = decoder.loop(embeddings, state, encoded, "expected", attention)
            return model.deep_output(states.last_hidden_state, states.contexts, embeddings)[:, -1].sum().item()

        for index in [(0, 0, 1, 2), (1, 0, 4, 0)]:
            moved = outputs.cross_attentions[0].detach().clone()
            moved[index] += 1e-6
            difference = (last_logits(moved) - last_logits(outputs.cross_attentions[0].detach())) / 1e-6
            assert gradient[index].item() == pytest.approx(difference, rel=1e-3, abs=1e-7)

    def test_asking_for_attention_changes_no_gradient(self):
        """Also after a backward pass that stops at the attention."""
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, dropout=0.0)).double().train()
        inputs = {"image_features": torch.randn(3, 4, 6).double(), "labels": tiny_inputs()["labels"]}
        expected = gradients(model(**inputs).loss, model)
        outputs = model(**inputs, output_attentions=True)
        torch.autograd.grad(outputs.logits.sum(), outputs.cross_attentions, retain_graph=True)
        torch.testing.assert_close(gradients(outputs.loss, model), expected)
        model.config.output_attentions = True
        assert model(**inputs).logits is not None

    def test_a_second_backward_pass_gives_the_same_gradient(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None, dropout=0.0)).double().train()
        features = torch.randn(3, 4, 6, dtype=torch.double, requires_grad=True)
        loss = model(image_features=features, labels=tiny_inputs()["labels"]).loss
        weight = model.model.decoder.gates_from_word.weight
        (expected,) = torch.autograd.grad(loss, features, retain_graph=True)
        # Stops before the keys, whose gradients the energies have already accumulated.
        torch.autograd.grad(loss, weight, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss, features, retain_graph=True)[0], expected)

    def test_logits_are_returned_in_training_without_labels(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config()).train()
        outputs = model(tiny_inputs()["pixel_values"], decoder_input_ids=torch.tensor([[0, 4]] * 3))
        assert outputs.logits.shape == (3, 2, 12) and outputs.logits.requires_grad

    @pytest.mark.parametrize("by_config", [False, True])
    def test_parts_return_tuples_too(self, by_config):
        model, pixel_values = ShowAttendTellModel(tiny_config()).eval(), tiny_inputs()["pixel_values"]
        expected = [part(pixel_values, output_hidden_states=True).to_tuple() for part in (model, model.encoder)]
        model.config.return_dict = not by_config
        kwargs = {"output_hidden_states": True} if by_config else {"output_hidden_states": True, "return_dict": False}
        for part, values in zip((model, model.encoder), expected, strict=True):
            outputs = part(pixel_values, **kwargs)
            assert isinstance(outputs, tuple) and len(outputs) == len(values)
            assert torch.equal(outputs[0], values[0])

    def test_encoder_outputs_may_be_any_that_hold_features(self):
        model, ids = ShowAttendTellModel(tiny_config()).eval(), torch.tensor([[0, 4]] * 3)
        encoded = model.encoder(tiny_inputs()["pixel_values"])
        expected = model(encoder_outputs=encoded, decoder_input_ids=ids).last_hidden_state
        for given in ((encoded.last_hidden_state,), BaseModelOutput(last_hidden_state=encoded.last_hidden_state)):
            torch.testing.assert_close(model(encoder_outputs=given, decoder_input_ids=ids).last_hidden_state, expected)

    def test_base_model_is_the_captioners_own(self, tmp_path):
        captioner = ShowAttendTellForConditionalGeneration(tiny_config()).eval()
        captioner.save_pretrained(tmp_path)
        base = AutoModel.from_pretrained(tmp_path)
        assert type(base) is ShowAttendTellModel
        inputs = {"pixel_values": tiny_inputs()["pixel_values"], "decoder_input_ids": torch.tensor([[0, 4, 5]] * 3)}
        with torch.no_grad():
            outputs = base(**inputs)
            expected = captioner.model(**inputs)
        assert outputs.last_hidden_state.shape == (3, 3, 7)
        for name, weight in captioner.model.state_dict().items():
            assert torch.equal(base.state_dict()[name], weight), name
        torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state)

    def test_initialisation_follows_the_authors(self):
        model = ShowAttendTellForConditionalGeneration(
            ShowAttendTellConfig(backbone_config=None, vocab_size=2000, hidden_size=512)
        )
        decoder = model.model.decoder
        identity = torch.eye(512)
        for block in decoder.gates_from_hidden.weight.chunk(4):
            torch.testing.assert_close(block @ block.T, identity, atol=1e-4, rtol=0)
        for layer in (decoder.init_hidden, decoder.attention.query, model.output_from_hidden):
            torch.testing.assert_close(layer.weight @ layer.weight.T, identity, atol=1e-4, rtol=0)
        # Square, but Gaussian as in the authors' code.
        keys = model.model.encoder.key_layers
        assert keys[0].weight.std().item() == pytest.approx(0.01, rel=0.05)
        torch.testing.assert_close(keys[1].weight @ keys[1].weight.T, identity, atol=1e-4, rtol=0)
        for weight in (decoder.embed_tokens.weight, decoder.gates_from_word.weight, model.lm_head.weight):
            assert weight.std().item() == pytest.approx(0.01, rel=0.05)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name

    def test_defaults_are_the_paper(self):
        config = ShowAttendTellConfig()
        assert (config.embedding_size, config.hidden_size, config.vocab_size) == (512, 1800, 10000)
        assert (config.attention_size, config.feature_size, config.attention_penalty) == (512, 512, 1.0)
        assert config.backbone_config.depths == [2, 2, 4, 4, 4]
        assert (config.context_gate, config.deep_output_activation, config.dropout) == ("scalar", "tanh", 0.5)

    def test_dropout_of_features_takes_channels_of_an_image_whole(self):
        torch.manual_seed(0)
        model = ShowAttendTellModel(tiny_config(feature_dropout=0.5))
        features = torch.rand(3, 6, model.config.feature_size) + 1
        inputs = {"image_features": features, "decoder_input_ids": torch.tensor([[0, 4, 5]] * 3)}
        assert torch.equal(model.eval()(**inputs).encoder_last_hidden_state, features)
        seen = model.train()(**inputs).encoder_last_hidden_state
        kept = seen[:, :1] != 0
        torch.testing.assert_close(seen, 2 * features * kept)
        assert 0 < kept.sum() < kept.numel() and not torch.equal(kept[0], kept[1])

    def test_first_input_is_zero_whatever_the_start_token(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config()).eval()
        pixel_values = tiny_inputs()["pixel_values"]
        with torch.no_grad():
            logits = [model(pixel_values, decoder_input_ids=torch.full((3, 1), id)).logits for id in (0, 5)]
        assert torch.equal(*logits)

    def test_any_backbone_plugs_in(self):
        backbone = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        )
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=backbone, feature_size=8)).eval()
        outputs = model(**tiny_inputs(size=32), output_attentions=True)
        assert outputs.cross_attentions[0].shape == (3, 1, 6, 16)
        with pytest.raises(ValueError, match="feature_size=8"):
            ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=backbone, feature_size=6))

    def test_frozen_backbone_stays_as_it_was(self):
        backbone = VggConfig(depths=[1, 1], hidden_sizes=[4, 6], use_batch_norm=True)
        config = tiny_config(backbone_config=backbone, freeze_backbone=True)
        model = ShowAttendTellForConditionalGeneration(config).train()
        before = {
            name: tensor.clone() for name, tensor in model.model.encoder.image_encoder.backbone.state_dict().items()
        }
        model(**tiny_inputs()).loss.backward()
        assert model.model.decoder.embed_tokens.weight.grad is not None
        for name, tensor in model.model.encoder.image_encoder.backbone.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert all(parameter.grad is None for parameter in model.model.encoder.image_encoder.backbone.parameters())

    def test_without_backbone_pixels_are_refused(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None))
        with pytest.raises(ValueError, match="has no backbone.*image_features"):
            model(**tiny_inputs())

    def test_features_may_keep_their_grid(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None)).eval()
        features, labels = torch.randn(3, 2, 5, 6), tiny_inputs()["labels"]
        grid, flat = (model(image_features=f, labels=labels).loss for f in (features, features.flatten(1, 2)))
        assert torch.equal(grid, flat)

    def test_uneven_captions_are_refused(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config())
        inputs = tiny_inputs()
        with pytest.raises(ValueError, match="3 captions cannot be shared out evenly among 2 images"):
            model(pixel_values=inputs["pixel_values"][:2], labels=inputs["labels"])

    @pytest.mark.parametrize(
        "field",
        [
            {"context_gate": "matrix"},
            {"num_init_layers": 0},
            {"num_attention_layers": 10**6},
            {"hidden_size": "big"},
            {"hidden_size": 10**12},
            {"feature_size": -1},
            {"attention_size": math.nan},
            {"vocab_size": 10**9},
            {"dropout": math.nan},
            {"semi_sampling_probability": 1.5},
            {"attention_temperature": 0},
            {"attention_penalty": math.inf},
            {"num_labels": 20_000_000},
            {"backbone_config": {"model_type": "vgg", "hidden_sizes": [10**12] * 5}},
            {"backbone_config": {"model_type": "resnet", "hidden_sizes": [10**12] * 4}},
            {"backbone_config": {"model_type": "resnet", "num_labels": 20_000_000}},
        ],
        ids=str,
    )
    def test_config_names_a_wrong_field(self, field):
        (name, value), *_ = field.items()
        name = {"backbone_config": "hidden_sizes|num_labels"}.get(name, name)
        with pytest.raises((ValueError, StrictDataclassError), match=name):
            tiny_config(**field)
        if "backbone_config" not in field and "num_labels" not in field:
            with pytest.raises(StrictDataclassError, match=name):
                setattr(tiny_config(), name, value)


@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
class TestShowAttendTellKernels:
    """Each kernel has the value and the gradient of its plain version."""

    @torch.no_grad()
    def test_factored_energy(self, dtype):
        keys, query, score = (torch.randn(shape, dtype=dtype) for shape in ((3, 5, 4), (3, 2, 4), (4,)))
        factors = tanh_factors(keys)
        assert (factors is None) == (dtype == torch.bfloat16) and tanh_factors(keys + 50) is None
        energy = energy_of_steps(keys, score, factors)
        assert energy.func is (plain_energy if factors is None else factored_energy)
        with torch.enable_grad():
            assert energy_of_steps(keys, score, factors).func is plain_energy
        for scale in (1, 100):
            assert_near([energy(scale * query)], [plain_energy(scale * query, keys, score)], dtype)


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype):
    tolerance = {"rtol": 0, "atol": 1e-10} if dtype == torch.double else {"rtol": 0.1, "atol": 0.1}
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, **tolerance)


class TestShowAttendTellState:
    def captioner(self):
        set_seed(0)
        model = ShowAttendTellForConditionalGeneration(tiny_config()).eval()
        model.lm_head.bias.data[0] = -100.0  # never generates the end token
        return model, partial(model.generate, tiny_inputs()["pixel_values"], do_sample=False)

    @pytest.mark.parametrize("words", [0, 2])
    def test_generation_continues_from_a_state(self, words):
        _, generate = self.captioner()
        first = generate(max_new_tokens=4, return_dict_in_generate=True)
        assert first.past_key_values.get_seq_length() == 4
        ids = torch.cat([first.sequences, torch.full((3, words), 5)], dim=1)
        continued = generate(decoder_input_ids=ids, past_key_values=first.past_key_values, max_new_tokens=4)
        assert torch.equal(continued, generate(decoder_input_ids=ids, max_new_tokens=4))
        if words == 0:
            assert torch.equal(continued, generate(max_new_tokens=8))

    def test_assistants_are_refused(self):
        model, generate = self.captioner()
        with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
            generate(assistant_model=model)

    def test_rows_are_chosen_and_repeated(self):
        hidden, memory = torch.randn(2, 3, 7).unbind()
        state = ShowAttendTellState(hidden, memory, 4)
        assert not state.is_compileable
        state.batch_repeat_interleave(2)
        assert torch.equal(state.memory, memory[[0, 0, 1, 1, 2, 2]])
        state.reorder_cache(torch.tensor([5, 0]))
        assert torch.equal(state.hidden, hidden[[2, 0]]) and torch.equal(state.memory, memory[[2, 0]])

    @torch.no_grad()
    def test_exports_as_input_and_output(self):
        model = ShowAttendTellForConditionalGeneration(tiny_config(backbone_config=None)).eval()
        inputs = {"image_features": torch.randn(2, 4, 6), "decoder_input_ids": torch.tensor([[3], [5]])}
        inputs["past_key_values"] = ShowAttendTellState(torch.randn(2, 7), torch.randn(2, 7), seen_tokens=2)
        exported = torch.export.export(model, (), inputs).module()
        expected, outputs = model(**inputs), exported(**inputs)
        torch.testing.assert_close(outputs.logits, expected.logits)
        state = outputs.past_key_values
        assert type(state) is ShowAttendTellState and state.seen_tokens == 3
        torch.testing.assert_close(state.hidden, expected.past_key_values.hidden)
