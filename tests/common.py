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
"""What every model of this package must pass. A test class takes the mixins and gives them its model."""

import atexit
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoProcessor, set_seed

import hf_vg  # noqa: F401
from hf_vg.interpretation import attention_maps, word_maps


ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


def needs_shared(*parts: str):
    """Skips a test where the data it is measured on is not beside the repository."""
    path = SHARED.joinpath(*parts)
    return pytest.mark.skipif(
        not path.exists(), reason=f"needs {'/'.join(parts)}, which is not part of the repository"
    )


def random_images(count: int, size: int = 16, seed: int = 0) -> list[Image.Image]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)
    return [Image.fromarray(array) for array in pixels.numpy()]


def start_process(target: Callable, *args) -> multiprocessing.Process:
    """Starts a process of its own that has everything imported: in a tenth of the time of a new interpreter."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "hf_vg.training", "hf_vg.interpretation.figures", "hf_vg.pipelines"])
    process = context.Process(target=_run, args=(target, *args))
    process.start()
    return process


def _run(target: Callable, *args) -> None:
    multiprocessing.set_start_method("fork", force=True)  # its own processes are as those of any interpreter
    target(*args)
    atexit._run_exitfuncs()  # which a process of multiprocessing leaves out


def run_without_hf_vg(code: str, folder: Path) -> str:
    """Runs code in a new process that can import transformers but not this package, and returns what it prints."""
    blocker = """
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "hf_vg":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Blocked())
    """
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(blocker) + textwrap.dedent(code)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


class ModelTesterMixin:
    r"""
    For every model class. A subclass gives:

    - `model_class`, `auto_class`, and `config()`: the smallest config that has all parts;
    - `inputs(batch_size)`: what the model is called with, labels included if it has a loss;
    - `outputs_to_compare`: names of outputs that hold one row an example.
    """

    model_class: type
    auto_class: type = AutoModel
    outputs_to_compare: tuple[str, ...] = ()
    # Parameters that rightly get no gradient, by the start of their name.
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
        # Where a tensor lies in memory can change the last bit of a product.
        for name, expected in self.compared(model, inputs).items():
            torch.testing.assert_close(self.compared(loaded, inputs)[name], expected, rtol=1e-5, atol=1e-6)

    def test_load_from_an_empty_checkpoint_initialises_everything(self, tmp_path):
        """`from_pretrained` builds on the meta device, so what nobody initialises comes out as garbage."""
        model = self.model()
        model.save_pretrained(tmp_path)
        save_file({}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        loaded = self.model_class.from_pretrained(tmp_path)
        fresh = dict(model.state_dict())
        for name, tensor in loaded.state_dict().items():
            assert torch.isfinite(tensor.float()).all(), name
            # Same distribution as a fresh model, whatever the order of the random draws.
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

    @pytest.mark.slow  # a fast one is `test_compiles_to_one_graph` of the spatial Transformer
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
        # Saved by the copy, it is as good as saved by the original.
        again = self.auto_class.from_pretrained(tmp_path / "again")
        assert type(again) is self.model_class
        assert {path.name for path in tmp_path.glob("*.py")} == {
            path.name for path in (tmp_path / "again").glob("*.py")
        }


class CaptionerTesterMixin(ModelTesterMixin):
    r"""For captioners, besides: `processor()`, a tiny processor that fits the config."""

    outputs_to_compare = ("logits",)
    # Ways of decoding that must not depend on the cache, on batching or on where features were computed.
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
        """The map of a word is the attention that the finished caption has at the step that wrote it."""
        model, images = self.model(), self.images()
        tokenizer = self.processor().tokenizer
        outputs = self.generate(model, images, output_attentions=True, return_dict_in_generate=True, **kwargs)
        with torch.no_grad():
            teacher_forced = model(**images, decoder_input_ids=outputs.sequences[:, :-1], output_attentions=True)
        attentions = torch.stack([layer.mean(dim=1) for layer in teacher_forced.cross_attentions]).mean(dim=0)
        height, width = images["pixel_values"].shape[-2:]
        captions = word_maps(outputs, tokenizer, height, width)
        assert len(captions) == 3
        for ids, attention, caption in zip(outputs.sequences, attentions, captions, strict=True):
            words = [
                (id, row) for id, row in zip(ids[1:], attention, strict=True) if id not in tokenizer.all_special_ids
            ]
            assert [word for word, _ in caption] == [tokenizer.decode([id]) for id, _ in words]
            for (_, word_map), (_, row) in zip(caption, words, strict=True):
                assert word_map.shape == (height, width) and word_map.sum().item() == pytest.approx(1)
                grid = attention_maps(row, height, width)
                larger = torch.nn.functional.interpolate(grid[None, None], (height, width), mode="bilinear")[0, 0]
                torch.testing.assert_close(word_map, larger / larger.sum(), rtol=1e-4, atol=1e-6)

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
        model.get_output_embeddings().bias.data[eos] = 4.0  # as if every caption were to end at once

        def lengths(**kwargs) -> list[int]:
            rows = self.generate(model, images, num_beams=4, **kwargs)[:, 1:].tolist()
            return [row.index(eos) if eos in row else len(row) for row in rows]

        shortest = lengths(length_penalty=-2.0)
        assert max(shortest) < 4 and min(lengths(min_new_tokens=5)) >= 4
        assert sum(lengths(length_penalty=8.0)) > sum(shortest)

    def test_captions_of_an_image_share_it(self):
        """Labels of shape (images, captions, length) give the loss of the captions with their images repeated."""
        model, inputs = self.model(), self.inputs(4)
        labels = inputs["labels"].view(2, 2, -1)
        shared = model(pixel_values=inputs["pixel_values"][:2], labels=labels)
        repeated = model(pixel_values=inputs["pixel_values"][:2].repeat_interleave(2, dim=0), labels=inputs["labels"])
        torch.testing.assert_close(shared.loss, repeated.loss)
        torch.testing.assert_close(shared.logits, repeated.logits)
        # A row without any word is no caption, and changes nothing.
        padded = torch.cat([labels, torch.full_like(labels[:, :1], -100)], dim=1)
        torch.testing.assert_close(model(pixel_values=inputs["pixel_values"][:2], labels=padded).loss, shared.loss)

    def test_padding_changes_no_loss(self):
        model, inputs = self.model(), self.inputs()
        longer = torch.nn.functional.pad(inputs["labels"], (0, 3), value=-100)
        torch.testing.assert_close(model(**inputs).loss, model(**{**inputs, "labels": longer}).loss)

    def test_training_loss_equals_evaluation_loss(self):
        """In training the vocabulary is projected to for real tokens only, and logits are left out."""
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
        assert set(actual) == set(expected) == {"pixel_values", "labels"}
        for name in expected:
            assert torch.equal(actual[name], expected[name])
        ids = [[id for id in row if id != -100] for row in actual["labels"].tolist()]
        assert loaded.batch_decode(ids, skip_special_tokens=True)[0] == "a red circle"
        # Another process, without this package, can use it too.
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
        """A captioner that can not learn two captions by heart is broken somewhere."""
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
