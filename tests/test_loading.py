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
import ast
import json
import re
import zipfile

import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import httpx
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor

from hf_vg import VggBackbone, VggConfig, VseScnlmForConditionalGeneration
from hf_vg.loading import check_weights, find_checkpoint, load_checkpoint, load_config, load_part
from hf_vg.pipelines import load_captioner
from tests.checkpoints import save_captioner, save_encoder, save_regions, save_space
from tests.common import ROOT


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    for name, save in (
        ("captioner", save_captioner),
        ("space", save_space),
        ("encoder", save_encoder),
        ("regions", save_regions),
    ):
        save(folder / name)
    return folder


@pytest.fixture
def captioner(saved, tmp_path):
    for file in (saved / "captioner").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


class TestFinding:
    @pytest.fixture(autouse=True)
    def no_hub(self, monkeypatch):
        def asked(*args, **kwargs):
            raise AssertionError("the Hub was asked")

        monkeypatch.setattr(HfApi, "model_info", asked)

    def test_a_mistyped_folder_gets_the_nearest_one(self, saved, monkeypatch):
        with pytest.raises(FileNotFoundError, match="Did you mean .*captioner?"):
            find_checkpoint(saved / "captionr")
        monkeypatch.chdir(saved.parent)
        with pytest.raises(FileNotFoundError, match=f"Did you mean {saved.name}/captioner?"):
            find_checkpoint(f"{saved.name}/captionr")  # it could be a name on the Hub

    def test_names_are_compared_and_not_paths(self, saved, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "outputs").symlink_to(saved)
        with pytest.raises(FileNotFoundError, match=r"no folder .*/captoner\. Did you mean outputs/captioner\?$"):
            find_checkpoint("/a/folder/that/is/not/there/captoner")
        # Its path is similar to each of them.
        with pytest.raises(FileNotFoundError, match=r"There are: .*/captioner, .*/encoder, .*/regions, .*/space\.$"):
            find_checkpoint(saved / "zzz")
        with pytest.raises(FileNotFoundError, match=r"no folder a\x00b/c"):
            find_checkpoint("a\x00b/c")

    @pytest.mark.parametrize("name", ["./none", "a/b/c", "/nowhere/at/all", "../x", "a b", ""])
    def test_what_cannot_be_a_name_on_the_hub(self, name):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            find_checkpoint(name)

    def test_a_folder_that_holds_checkpoints_is_none(self, saved):
        with pytest.raises(FileNotFoundError, match="no config.json.*captioner, encoder"):
            find_checkpoint(saved)

    def test_a_file_is_no_folder(self, saved):
        with pytest.raises(NotADirectoryError, match="is a file"):
            find_checkpoint(saved / "captioner" / "config.json")

    def test_a_folder_is_found(self, saved):
        assert find_checkpoint(saved / "space") == str(saved / "space")


def test_the_hub_is_asked_once(monkeypatch):
    for error, message in (
        (httpx.ConnectError("no network"), "the Hub cannot be reached"),
        (RepositoryNotFoundError("", response=httpx.Response(404, request=httpx.Request("GET", "x:"))), "on the Hub"),
    ):
        calls = []

        def fail(self, name, error=error, calls=calls, **kwargs):
            calls.append(name)
            raise error

        monkeypatch.setattr(HfApi, "model_info", fail)
        with pytest.raises(FileNotFoundError, match=message):
            load_checkpoint("somebody/captioner", "captions")
        assert calls == ["somebody/captioner"]


def test_offline_is_said(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE"):
        find_checkpoint("somebody/captioner")
    (tmp_path / "outputs").symlink_to(saved)
    with pytest.raises(FileNotFoundError, match=r"HF_HUB_OFFLINE.*Did you mean outputs/captioner\?"):
        find_checkpoint("captioner")  # without the output folder of recipes


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("space", "captions", "vse_scnlm .VseScnlmModel.*`hf-vg search`"),
        (
            "encoder",
            "captions",
            "`hf-vg explain --text` .*recipes/evaluate_sentences.py",
        ),
        ("regions", "captions", "does not write captions; use `hf-vg ground`"),
        ("captioner", "search", "is a show_attend_tell .*use `hf-vg caption`"),
        ("captioner", "regions", "does not relate words to regions"),
        ("captioner", "sentences", "does not encode sentences"),
    ],
)
def test_a_checkpoint_for_another_task_is_refused_and_its_use_named(saved, name, task, message):
    with pytest.raises(ValueError, match=message):
        load_config(saved / name, task)


@pytest.mark.parametrize(("name", "task"), [("captioner", "captions"), ("space", "search"), ("encoder", "sentences")])
def test_a_good_checkpoint_is_loaded(saved, name, task):
    assert not load_checkpoint(saved / name, task).training


def test_a_head_may_be_new_and_the_base_may_not(saved, tmp_path):
    model = load_checkpoint(saved / "space", "search", VseScnlmForConditionalGeneration, new_head=True, tags=["NN"])
    assert torch.isfinite(next(model.decoder.parameters())).all()
    with pytest.raises(ValueError, match="lacks weights of VseScnlmForConditionalGeneration"):
        load_checkpoint(saved / "space", "search", VseScnlmForConditionalGeneration, tags=["NN"])


class TestDamage:
    def change(self, captioner, change):
        weights = load_file(captioner / "model.safetensors")
        change(weights)
        save_file(weights, captioner / "model.safetensors", {"format": "pt"})

    def refused(self, captioner, message):
        with pytest.raises((ValueError, OSError), match=message) as error:
            load_checkpoint(captioner, "captions")
        assert str(captioner) in str(error.value)

    def test_missing_weights(self, captioner):
        self.change(captioner, lambda weights: weights.pop("lm_head.weight"))
        self.refused(captioner, "lacks weights of ShowAttendTell.*lm_head.weight")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, captioner, value):
        self.change(captioner, lambda weights: weights["lm_head.bias"].view(-1)[0:1].fill_(value))
        self.refused(captioner, "not finite, in lm_head.bias")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_variances_of_batch_norm_may_be_infinite(self, value, caplog):
        """Published in float16, ResNets have such channels. A NaN is always refused."""
        config = VggConfig(depths=[1], hidden_sizes=[4], use_batch_norm=True)
        backbone = VggBackbone(config).eval()
        name, variances = next(item for item in backbone.state_dict().items() if item[0].endswith("running_var"))
        variances[1] = value
        if value != value:
            with pytest.raises(ValueError, match=f"not finite, in {name}"):
                check_weights("resnet", backbone, [])
            return
        check_weights("resnet", backbone, [])
        assert f"1 of 4 variances in {name} are infinite" in caplog.text
        assert torch.isfinite(backbone(torch.randn(1, 3, 8, 8)).feature_maps[-1]).all()

    def test_weights_of_another_shape(self, captioner):
        self.change(captioner, lambda weights: weights.update({"lm_head.bias": torch.zeros(3)}))
        self.refused(captioner, "do not fit")

    @pytest.mark.parametrize("length", [0, 7, 1000])
    def test_cut_off_weights(self, captioner, length):
        file = captioner / "model.safetensors"
        file.write_bytes(file.read_bytes()[:length])
        self.refused(captioner, "damaged")

    def test_no_weights(self, captioner):
        (captioner / "model.safetensors").unlink()
        self.refused(captioner, "model.safetensors")

    @pytest.mark.parametrize(
        "text",
        [
            *("{", "[]", "[" * 99_999, "{}"),
            *('{"model_type": "no_such"}', '{"model_type": "show_attend_tell", "hidden_size": "x"}'),
        ],
    )
    def test_config(self, captioner, text):
        (captioner / "config.json").write_text(text)
        self.refused(captioner, "config.json|cannot be loaded|do not fit|hidden_size.* expected int")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("hidden_size", value) for value in ("1e12", "1000000000000", "-1", "0", "NaN", '"x"', "[]", "null")),
            *(("num_labels", value) for value in ("20000000", "-3", '"x"')),
            *(("architectures", value) for value in ("3", "[[]]", '"x"')),
            *(("id2label", value) for value in ("3", '"x"')),
            *(("backbone_config", value) for value in ('{"model_type": "vgg", "hidden_sizes": [-1]}', "3", '"x"')),
        ],
    )
    def test_a_value_out_of_range(self, captioner, field, value):
        """The error is one sentence, however transformers reports it."""
        file = captioner / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps(config | {field: "?"}).replace('"?"', value))
        with pytest.raises(ValueError) as error:
            load_config(captioner)
        message = str(error.value)
        assert str(captioner) in message and "\n" not in message and len(message) < 600
        assert field in message or "hidden_sizes" in message or "config.json is wrong" in message

    @pytest.mark.parametrize("damage", ["compressed", "overlapping", "cut"])
    def test_a_hostile_file_of_torch_is_not_read(self, captioner, damage, monkeypatch):
        weights = load_file(captioner / "model.safetensors")
        (captioner / "model.safetensors").unlink()
        file = captioner / "pytorch_model.bin"
        torch.save(weights, file)
        load_checkpoint(captioner, "captions")
        whole = file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            members = {member.filename: archive.read(member) for member in archive.infolist()}
        with zipfile.ZipFile(
            file, "w", zipfile.ZIP_DEFLATED if damage == "compressed" else zipfile.ZIP_STORED
        ) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            if damage == "overlapping":  # many names for the same bytes
                archive.filelist += archive.filelist[:] * 20
        if damage == "cut":
            file.write_bytes(whole[:-200] + whole[-22:])
        monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("the file was read"))
        self.refused(captioner, "is compressed|claims to hold more|is damaged")

    def test_foreign_code_is_not_run(self, captioner):
        config = json.loads((captioner / "config.json").read_text())
        config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
        (captioner / "config.json").write_text(json.dumps(config))
        (captioner / "code.py").write_text("raise SystemExit('code was run')")
        self.refused(captioner, "--trust_remote_code")


class TestParts:
    def change(self, captioner, file, path, value):
        content = json.loads((captioner / file).read_text())
        *parents, name = path.split(".")
        target = content
        for parent in parents:
            target = target[parent]
        target[name] = value
        (captioner / file).write_text(json.dumps(content))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("crop_size.height", value) for value in (-1, 0, 10**12, 2**31, float("inf"), "x", [], 1.5, True)),
            *(("size.shortest_edge", value) for value in (-1, 2**31, "x")),
            *(("image_mean", value) for value in ([float("nan")] * 3, [1.0], "x")),
            *(("image_std", value) for value in ([0.0] * 3, [float("inf")] * 3, {})),
            *(("rescale_factor", value) for value in ({}, float("nan"), "x")),
            ("resample", 99),
        ],
    )
    def test_image_processor(self, captioner, field, value):
        self.change(captioner, "processor_config.json", f"image_processor.{field}", value)
        with pytest.raises(
            ValueError, match=f"ImageProcessor of {re.escape(str(captioner))} cannot be loaded: ."
        ) as error:
            load_part(AutoImageProcessor, captioner)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *((field, value) for field in ("max_new_tokens", "max_length") for value in (10**9, -1, "x", 1.5, True)),
            *(("num_beams", value) for value in (10**6, [])),
            *((f"{name}_token_id", value) for name in ("bos", "pad", "decoder_start") for value in (10**9, -1)),
            *(("eos_token_id", value) for value in ([1, 10**9], "x")),
            ("suppress_tokens", [10**9]),
        ],
    )
    def test_generation_config(self, captioner, field, value):
        self.change(captioner, "generation_config.json", field, value)
        with pytest.raises(ValueError) as error:
            load_captioner(captioner)
        assert str(captioner) in str(error.value) and "\n" not in str(error.value)

    @pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "processor_config.json"])
    @pytest.mark.parametrize("text", ["", "[]", "5", "[" * 99_999, '{"a": ' + "9" * 6000 + "}", "\0"])
    def test_a_file_of_another_shape(self, captioner, file, text):
        (captioner / file).write_text(text)
        with pytest.raises(ValueError, match="captioner|cannot be loaded") as error:
            load_captioner(captioner)
        assert str(captioner) in str(error.value)

    def test_what_fails_later_is_told_with_the_settings(self, captioner, monkeypatch):
        def fail(*args, **kwargs):
            raise IndexError("index out of range in self")

        loaded = load_captioner(captioner)
        monkeypatch.setattr(loaded.model, "generate", fail)
        with pytest.raises(ValueError, match="cannot write a caption with these settings: IndexError: index out of"):
            loaded(Image.new("RGB", (32, 32)))


def test_nobody_is_asked_to_trust_code():
    """By default transformers prompts on standard input, where a pipe could answer."""
    untold = []
    for file in sorted([*(ROOT / "hf_vg").rglob("*.py"), *(ROOT / "recipes").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "from_pretrained"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id.lower().startswith(("auto", "model_class", "cls"))
                and "trust_remote_code" not in {keyword.arg for keyword in node.keywords}
            ):
                untold.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not untold
