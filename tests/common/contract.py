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
"""Tests of what transformers expects of every model."""

import inspect

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, set_seed
from transformers.utils import ModelOutput


def flat(value) -> list[torch.Tensor]:
    """Returns the tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, ModelOutput):
        value = value.to_tuple()
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, (tuple, list)) else []


class ContractTesterMixin:
    r"""
    Part of [`ModelTesterMixin`], whose `model()`, `config()` and `inputs()` it uses.

    - `num_hidden_states` and `num_attentions`: the number of tensors of each output, by name, such as
      `{"decoder_hidden_states": 3}`. If empty, the model must raise a `ValueError` that names the argument;
    - `attn_implementations`: the implementations to switch between with `set_attn_implementation`, in this order;
    - `main_input`: the expected `main_input_name`;
    - `unlabelled_inputs()`: the inputs of the model without labels.
    """

    auto_class: type = AutoModel
    num_hidden_states: dict[str, int] = {}
    num_attentions: dict[str, int] = {}
    attn_implementations: tuple[str, ...] = ("eager",)
    main_input: str = "pixel_values"

    def unlabelled_inputs(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.inputs().items() if not name.endswith("labels")}

    # Outputs

    @torch.no_grad()
    def test_a_tuple_holds_what_the_dict_holds(self):
        model, inputs = self.model(), self.inputs()
        set_seed(0)
        expected = flat(model(**inputs))
        set_seed(0)
        by_argument = model(**inputs, return_dict=False)
        set_seed(0)
        model.config.return_dict = False
        by_config = model(**inputs)
        for outputs in (by_argument, by_config):
            assert isinstance(outputs, tuple)
            assert len(flat(outputs)) == len(expected)
            for actual, tensor in zip(flat(outputs), expected, strict=True):
                torch.testing.assert_close(actual, tensor, equal_nan=True)

    @pytest.mark.parametrize("what", ["hidden_states", "attentions"])
    @torch.no_grad()
    def test_states_are_returned_when_asked_for_or_refused(self, what):
        asked, names = f"output_{what}", self.num_hidden_states if what == "hidden_states" else self.num_attentions
        model, inputs = self.model(), self.inputs()
        if not names:
            with pytest.raises(ValueError, match=asked):
                model(**inputs, **{asked: True})
            return
        if what == "attentions":
            model.set_attn_implementation("eager")
        outputs = model(**inputs, **{asked: True})
        setattr(model.config, asked, True)
        by_config = model(**inputs)
        for name, count in names.items():
            assert len(outputs[name]) == count, name
            for actual, expected in zip(by_config[name], outputs[name], strict=True):
                torch.testing.assert_close(actual, expected)
                assert torch.isfinite(expected).all()
                # (batch, positions, size), or (batch, heads, queries, keys) with rows that sum to 1. An encoder with
                # several rows of attention over a sentence has no heads.
                assert expected.dim() in ((3,) if what == "hidden_states" else (3, 4)), name
                assert len(expected) == len(inputs[next(iter(inputs))]), name
                if what == "attentions":
                    sums = expected.sum(dim=-1)
                    torch.testing.assert_close(sums[sums > 0], torch.ones_like(sums[sums > 0]))

    def test_returned_states_are_part_of_the_graph(self):
        model, inputs = self.model(), self.inputs()
        if self.num_attentions:
            model.set_attn_implementation("eager")
        asked = {"output_hidden_states": bool(self.num_hidden_states), "output_attentions": bool(self.num_attentions)}
        outputs = model(**inputs, **{name: True for name, wanted in asked.items() if wanted})
        compared = sum(outputs[name].float().square().sum() for name in self.outputs_to_compare)
        for name in [*self.num_hidden_states, *self.num_attentions]:
            if name.startswith("encoder"):
                continue
            gradients = torch.autograd.grad(compared, outputs[name], retain_graph=True, allow_unused=True)
            assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients), name

    # Attention, gradient checkpointing

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @torch.no_grad()
    def test_attention_implementations_agree_and_switch(self, dtype, tmp_path):
        model, inputs = self.model().to(dtype), self.inputs()
        inputs = {name: v.to(dtype) if v.is_floating_point() else v for name, v in inputs.items()}
        outputs = {}
        for implementation in self.attn_implementations:
            model.set_attn_implementation(implementation)
            outputs[implementation] = self.compared(model, inputs)
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
        model.save_pretrained(tmp_path)
        for implementation in outputs:
            loaded = self.model_class.from_pretrained(tmp_path, attn_implementation=implementation)
            for name, value in self.compared(loaded, inputs).items():
                torch.testing.assert_close(
                    outputs[implementation][name], outputs["eager"][name], **tolerance, msg=name
                )
                torch.testing.assert_close(value, outputs["eager"][name], **tolerance, msg=name)

    @pytest.mark.parametrize("use_reentrant", [False, True])
    @pytest.mark.parametrize("input_gradients", [False, True])
    def test_gradient_checkpointing_in_both_modes(self, use_reentrant, input_gradients):
        model = self.model_without_dropout().train()
        if not model.supports_gradient_checkpointing:
            pytest.skip(f"{self.model_class.__name__} declares no gradient checkpointing")
        plain = self.gradients(model)
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        if input_gradients:
            model.enable_input_require_grads()
        checkpointed = self.gradients(model)
        assert set(checkpointed) == set(plain)
        for name, gradient in plain.items():
            torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
        flat(model(**self.unlabelled_inputs()))[0].float().sum().backward()

    # Embeddings

    @torch.no_grad()
    def test_embeddings_are_resized_saved_and_loaded(self, tmp_path):
        model, inputs = self.model(), self.inputs()
        size = model.config.vocab_size
        before = self.compared(model, inputs)
        embeddings = model.resize_token_embeddings(size + 3)
        assert model.get_input_embeddings() is embeddings and embeddings.num_embeddings == size + 3
        assert model.config.vocab_size == size + 3
        model.save_pretrained(tmp_path)
        loaded, report = self.model_class.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        after, again = self.compared(model, inputs), self.compared(loaded, inputs)
        for name, value in after.items():
            torch.testing.assert_close(again[name], value, rtol=1e-5, atol=1e-6, msg=name)
            # The scores of the old words do not change. Their probabilities may be smaller.
            if value.shape == before[name].shape:
                torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-5, msg=name)
        output = model.get_output_embeddings()
        if output is not None:
            assert output.weight.shape[0] == size + 3
        loaded.resize_token_embeddings(size)
        for name, value in self.compared(loaded, inputs).items():
            torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-5, msg=name)

    def test_embeddings_can_be_set(self):
        model = self.model()
        embeddings = torch.nn.Embedding.from_pretrained(model.get_input_embeddings().weight.detach().clone())
        model.set_input_embeddings(embeddings)
        assert model.get_input_embeddings() is embeddings
        output = model.get_output_embeddings()
        if output is not None:
            new = torch.nn.Linear(output.in_features, output.out_features, bias=output.bias is not None)
            model.set_output_embeddings(new)
            assert model.get_output_embeddings() is new

    # Loading

    @torch.no_grad()
    def test_loads_with_the_usual_arguments(self, tmp_path):
        model, inputs = self.model(), self.inputs()
        model.save_pretrained(tmp_path)
        expected = self.compared(model, inputs)
        by_state = self.model_class.from_pretrained(None, config=model.config, state_dict=model.state_dict())
        on_device = self.model_class.from_pretrained(tmp_path, device_map="cpu")
        for loaded in (by_state, on_device):
            for name, value in self.compared(loaded, inputs).items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)
        half = self.model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
        assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
        with torch.device("meta"):
            empty = self.model_class(self.config())
        assert {p.device.type for p in empty.parameters()} == {"meta"}

    def test_missing_and_mismatched_weights_are_reported(self, tmp_path):
        model = self.model()
        model.save_pretrained(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        names = [name for name in weights if weights[name].dim() == 2]
        missing, mismatched = names[0], names[-1]
        assert missing != mismatched
        del weights[missing]
        weights[mismatched] = torch.zeros(weights[mismatched].shape[0] + 1, weights[mismatched].shape[1])
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            self.model_class.from_pretrained(tmp_path)
        loaded, report = self.model_class.from_pretrained(
            tmp_path, ignore_mismatched_sizes=True, output_loading_info=True
        )
        assert missing in report["missing_keys"]
        assert mismatched in {entry[0] for entry in report["mismatched_keys"]}
        assert all(torch.isfinite(parameter).all() for parameter in loaded.parameters())

    def test_a_frozen_backbone_stays_frozen(self, tmp_path):
        if getattr(self.config(), "backbone_config", None) is None:
            pytest.skip(f"{self.model_class.__name__} has no backbone here")
        model = self.model(freeze_backbone=True)
        model.save_pretrained(tmp_path)
        for loaded in (
            model,
            self.model_class.from_pretrained(tmp_path),
            self.model_class.from_pretrained(tmp_path, dtype=torch.bfloat16),
            self.auto_class.from_pretrained(tmp_path, device_map="cpu"),
        ):
            for mode in (True, False, True):
                loaded.train(mode)
                parts = dict(loaded.named_parameters())
                frozen = [name for name in parts if "backbone" in name.split(".")]
                assert frozen and not any(parts[name].requires_grad for name in frozen)
                modules = [m for name, m in loaded.named_modules() if "backbone" in name.split(".")]
                assert not any(module.training for module in modules)
        model.train()(**self.inputs()).loss.backward()
        assert all(p.grad is None for name, p in model.named_parameters() if "backbone" in name.split("."))

    # Names

    def test_names_are_those_of_real_things(self):
        model, inputs = self.model(), self.inputs()
        signature = inspect.signature(model.forward).parameters
        assert model.main_input_name == self.main_input and self.main_input in signature
        assert set(inputs) <= set(signature)
        prefix = model.base_model_prefix
        assert model.base_model is (getattr(model, prefix) if hasattr(model, prefix) else model)
        blocks = {type(module).__name__ for module in model.modules()}
        assert set(model._no_split_modules or []) <= blocks | {"GradientCheckpointingLayer"}

    @torch.no_grad()
    def test_is_spread_over_devices(self, tmp_path):
        """Without accelerators, the whole model is placed on the CPU if `_no_split_modules` is declared."""
        model, inputs = self.model(), self.inputs()
        expected = self.compared(model, inputs)
        model.save_pretrained(tmp_path)
        loaded = self.model_class.from_pretrained(tmp_path, device_map="auto")
        for name, value in self.compared(loaded, inputs).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)

    @torch.no_grad()
    def test_exports_to_one_graph(self):
        model, inputs = self.model(), self.unlabelled_inputs()
        expected = flat(model(**inputs))
        exported = torch.export.export(model, (), inputs, strict=False).module()
        for actual, tensor in zip(flat(exported(**inputs)), expected, strict=True):
            torch.testing.assert_close(actual, tensor, rtol=1e-4, atol=1e-5)
