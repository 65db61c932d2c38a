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
"""Tests for all models. A test class inherits from the mixin and provides its model."""

import re

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, set_seed

import hf_vg  # noqa: F401

from .contract import ContractTesterMixin
from .processes import run_without_hf_vg


class ModelTesterMixin(ContractTesterMixin):
    r"""
    Mixin for model classes. A subclass has:

    - `model_class`, `auto_class`, and `config()`: the smallest config with all parts;
    - `inputs(batch_size)`: the inputs of the model, with labels if it has a loss;
    - `outputs_to_compare`: names of outputs with one row per example.
    """

    model_class: type
    auto_class: type = AutoModel
    outputs_to_compare: tuple[str, ...] = ()
    # Prefixes of parameters that should not get a gradient.
    frozen_parameters: tuple[str, ...] = ()

    def config(self):
        raise NotImplementedError

    def inputs(self, batch_size: int = 3) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def model(self, **overrides):
        set_seed(0)
        config = self.config()
        for name, value in overrides.items():
            setattr(config, name, value)
        return self.model_class(config).eval()

    @torch.no_grad()
    def compared(self, model, inputs) -> dict[str, torch.Tensor]:
        outputs = model(**inputs)
        return {name: outputs[name] for name in self.outputs_to_compare}

    def test_save_and_load_give_equal_outputs(self, tmp_path):
        model, inputs = self.model(), self.inputs()
        model.save_pretrained(tmp_path)
        assert not list(tmp_path.glob("*.bin")) and list(tmp_path.glob("*.safetensors"))
        loaded = self.auto_class.from_pretrained(tmp_path)
        assert type(loaded) is self.model_class
        assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
        loaded.save_pretrained(tmp_path / "again")
        without_dtype = [
            re.sub(r'"dtype": .*', "", (p / "config.json").read_text()) for p in (tmp_path, tmp_path / "again")
        ]
        assert without_dtype[0] == without_dtype[1]
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
        # The memory layout of a tensor can change the last bit of a product.
        for name, expected in self.compared(model, inputs).items():
            torch.testing.assert_close(self.compared(loaded, inputs)[name], expected, rtol=1e-5, atol=1e-6)

    def test_load_from_an_empty_checkpoint_initialises_everything(self, tmp_path):
        """`from_pretrained` builds on the meta device: weights that are not initialized contain garbage."""
        model = self.model()
        model.save_pretrained(tmp_path)
        save_file({}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        loaded = self.model_class.from_pretrained(tmp_path)
        fresh = dict(model.state_dict())
        for name, tensor in loaded.state_dict().items():
            assert torch.isfinite(tensor.float()).all(), name
            # The same distribution as in a new model. The order of random draws may differ.
            spread, expected = (t.float().std(unbiased=False) for t in (tensor, fresh[name]))
            torch.testing.assert_close(spread, expected, rtol=0.6, atol=0.05, msg=name)
        for name, buffer in loaded.named_buffers():
            torch.testing.assert_close(buffer, dict(model.named_buffers())[name], msg=name)

    def test_every_parameter_receives_gradient(self):
        model = self.model().train()
        model(**self.inputs()).loss.backward()
        for name, parameter in model.named_parameters():
            if name.startswith(self.frozen_parameters or ("\0",)):
                assert parameter.grad is None, f"{name} is frozen but has a gradient"
            else:
                assert parameter.grad is not None and parameter.grad.abs().sum() > 0, f"{name} has no gradient"

    def test_training_is_deterministic_under_a_seed(self):
        def losses():
            set_seed(1)
            model = self.model().train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            values = []
            for _ in range(3):
                loss = model(**self.inputs()).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                values.append(loss.item())
            return values

        first = losses()
        assert first == losses()
        assert first[0] != first[-1]

    def test_a_batch_equals_its_examples_one_by_one(self):
        model, inputs = self.model(), self.inputs(batch_size=3)
        batch = self.compared(model, inputs)
        for row in range(3):
            single = self.compared(model, {name: value[row : row + 1] for name, value in inputs.items()})
            for name, value in single.items():
                torch.testing.assert_close(value, batch[name][row : row + 1], rtol=1e-4, atol=1e-5, msg=name)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_finite(self, dtype):
        model = self.model().to(dtype)
        inputs = {name: v.to(dtype) if v.is_floating_point() else v for name, v in self.inputs().items()}
        for name, value in self.compared(model, inputs).items():
            assert value.dtype == dtype and torch.isfinite(value).all(), name

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_autocast_trains(self, dtype):
        model, inputs = self.model_without_dropout().train(), self.inputs()
        set_seed(1)
        expected = model(**inputs).loss
        set_seed(1)
        with torch.autocast("cpu", dtype=dtype):
            loss = model(**inputs).loss
        loss.backward()
        torch.testing.assert_close(loss.float(), expected, rtol=0.05, atol=0.05)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    def model_without_dropout(self):
        set_seed(0)
        config = self.config()
        for name in vars(config):
            if "dropout" in name:
                setattr(config, name, 0.0)
        return self.model_class(config)

    def gradients(self, model, compiled=None) -> dict[str, torch.Tensor]:
        set_seed(1)
        model.zero_grad()
        (model if compiled is None else compiled)(**self.inputs()).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def test_gradient_checkpointing_changes_no_gradient(self):
        model = self.model_without_dropout().train()
        if not model.supports_gradient_checkpointing:
            with pytest.raises(ValueError, match="does not support gradient checkpointing"):
                model.gradient_checkpointing_enable()
            return
        plain = self.gradients(model)
        model.gradient_checkpointing_enable()
        recomputed = []
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                original = module._gradient_checkpointing_func
                module._gradient_checkpointing_func = lambda *args, original=original, **kwargs: (
                    recomputed.append(1) or original(*args, **kwargs)
                )
        checkpointed = self.gradients(model)
        assert recomputed and set(checkpointed) == set(plain)
        for name, gradient in plain.items():
            torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-6, msg=name)

    @pytest.mark.slow  # `test_compiles_to_one_graph` of the spatial Transformer is a fast version
    def test_compiling_changes_no_gradient(self):
        model = self.model_without_dropout().train()
        plain = self.gradients(model)
        torch.compiler.reset()
        compiled = self.gradients(model, torch.compile(model, backend="aot_eager"))
        assert set(compiled) == set(plain)
        for name, gradient in plain.items():
            torch.testing.assert_close(compiled[name], gradient, rtol=1e-4, atol=1e-5, msg=name)

    def test_loads_as_remote_code_without_this_package(self, tmp_path):
        model, inputs = self.model(), self.inputs()
        model.save_pretrained(tmp_path)
        torch.save(inputs, tmp_path / "inputs.pt")
        torch.save(self.compared(model, inputs), tmp_path / "expected.pt")
        printed = run_without_hf_vg(
            f"""
            import torch
            from transformers import {self.auto_class.__name__}
            model = {self.auto_class.__name__}.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)
            inputs, expected = torch.load("inputs.pt"), torch.load("expected.pt")
            with torch.no_grad():
                outputs = model(**inputs)
            for name, value in expected.items():
                torch.testing.assert_close(outputs[name], value, rtol=1e-5, atol=1e-6)
            model.save_pretrained({str(tmp_path / "again")!r})
            print(type(model).__module__.partition(".")[0], *expected)
            """,
            tmp_path,
        )
        assert printed.split() == ["transformers_modules", *self.outputs_to_compare]
        # A model saved by the copied code is as complete as one saved by the original.
        again = self.auto_class.from_pretrained(tmp_path / "again")
        assert type(again) is self.model_class
        assert {path.name for path in tmp_path.glob("*.py")} == {
            path.name for path in (tmp_path / "again").glob("*.py")
        }
