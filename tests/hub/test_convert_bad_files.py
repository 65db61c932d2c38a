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
"""Broken and hostile weight files: each is rejected with one sentence that names it, and none of its code runs."""

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save

from hf_vg.hub import convert_vgg, convert_visual_bert
from hf_vg.loading import load_checkpoint
from hf_vg.models.vgg import VggConfig
from tests.checkpoints import save_captioner
from tests.hub.test_convert_visual_bert import as_the_authors_name_them, visual_bert


class RunsCode:
    def __reduce__(self):
        return os.system, ("touch ran",)


def saved(value, **options) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def as_tar() -> bytes:
    """The format of torch before 2017."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps({})
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def compressed(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as plain, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in plain.infolist():
            archive.writestr(member.filename, plain.read(member))
    return file.getvalue()


def of_a_huge_storage() -> bytes:
    """Four numbers that claim to be 2 ** 40 numbers."""
    content = saved({"w": torch.zeros(4)}, _use_new_zipfile_serialization=False)
    small, huge = b"cpuq\x06K\x04N", b"cpuq\x06\x8a\x06\x00\x00\x00\x00\x00\x01N"
    assert small in content
    return content.replace(small, huge)


ZIPPED = saved({"w": torch.zeros(100)})
LEGACY = saved({"w": torch.zeros(100)}, _use_new_zipfile_serialization=False)
# Files that are not weights, and a part of the error message.
NO_WEIGHTS = {
    "empty": (b"", "it is empty"),
    "text": (b"hello world", "begins with b'hello world'"),
    "one byte": (b"\x80", "begins with"),
    "zeros": (bytes(5000), "begins with"),
    "web page": (b"<!DOCTYPE html><html>404</html>", "begins with b'<!DOCTYPE html>"),
    "pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "begins with b'version"),
    "zip cut off": (ZIPPED[: len(ZIPPED) // 2], "begins with b'PK"),
    "zip without its end": (ZIPPED[:-30], "begins with b'PK"),
    "zip of something else": (compressed(ZIPPED)[:200] + b"PK\x05\x06" + bytes(18), "begins with b'PK"),
    "pickle cut off": (LEGACY[:60], "begins with"),
    "legacy cut off": (LEGACY[:-200], "begins with"),
    "pickled list": (pickle.dumps([1, 2]), "begins with"),
    "pickled int": (pickle.dumps(3, 2), "begins with"),
    "pickled str": (pickle.dumps("weights", 2), "begins with"),
    "pickle with code": (pickle.dumps({"w": RunsCode()}, 2), "would run posix.system"),
    "zip with code": (saved({"w": RunsCode()}), "would run posix.system"),
    "legacy with code": (saved({"w": RunsCode()}, _use_new_zipfile_serialization=False), "would run posix.system"),
    "tar": (as_tar(), "begins with b'sys_info"),
    "compressed": (compressed(ZIPPED), "begins with b'PK"),
    "huge storage": (of_a_huge_storage(), "begins with"),
}
# Files that torch can read, but that are not state dicts.
NO_STATE_DICT = {
    "list": ([torch.zeros(2)], "holds an object of type list"),
    "tensor": (torch.zeros(3), "of type Tensor"),
    "none": (None, "of type NoneType"),
    "int": (3, "of type int"),
    "nested": ({"state_dict": {"w": torch.zeros(2)}}, "'state_dict' is of type dict"),
    "number among tensors": ({"w": torch.zeros(2), "epoch": 3}, "'epoch' is of type int"),
    "escapes": ({"\x1b[2J\n": 3}, r"'\x1b[2J\n' is of type int"),
    "numbered": ({1: torch.zeros(2)}, "1 is of type Tensor"),
    "repeated number": ({"w": torch.zeros(1).expand(10**6, 10**6)}, "'w' is not a plain tensor"),
    "no data": ({"w": torch.empty(10**9, 10**9, device="meta")}, "'w' is not a plain tensor"),
    "sparse": ({"w": torch.zeros(3, 3).to_sparse()}, "'w' is not a plain tensor"),
}
BAD_SAFETENSORS = {
    "empty": b"",
    "short": b"\x00\x01",
    "huge header": b"\xff" * 8 + b"{}",
    "header not JSON": (2).to_bytes(8, "little") + b"[[",
    "cut off": save({"w": torch.zeros(100)})[:-8],
    "web page": b"<!DOCTYPE html><html>404</html>",
}
FILES = {
    **{f"{name}.pth": case for name, case in NO_WEIGHTS.items()},
    **{f"{name}.th": (saved(value), message) for name, (value, message) in NO_STATE_DICT.items()},
    **{f"{name}.safetensors": (content, "cannot be read as weights") for name, content in BAD_SAFETENSORS.items()},
}
CONVERTERS = {"vgg": convert_vgg.main, "visual_bert": convert_visual_bert.main}


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(main: Callable, name: str, capsys) -> str:
    """Returns the error message of a command."""
    with pytest.raises(SystemExit) as exit_:
        main(["--checkpoint", name, "--output_dir", "out"])
    message = exit_.value.code
    assert message.startswith("error: ") and name in message and message.endswith(".") and "\n" not in message
    assert len(message) < 700 and "weights_only" not in message
    assert capsys.readouterr().err == ""
    assert not os.path.exists("ran") and not os.path.exists("out")
    return message


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_weights(name, converter, tmp_path, capsys):
    content, expected = FILES[name]
    (tmp_path / name).write_bytes(content)
    message = refused(CONVERTERS[converter], name, capsys)
    assert expected in message and "expected" in message and ".safetensors" in message


@pytest.mark.parametrize("converter", CONVERTERS)
def test_what_is_no_file(converter, tmp_path, capsys):
    (tmp_path / "folder.pth").mkdir()
    os.mkfifo(tmp_path / "pipe.pth")
    for name, message in (
        ("folder.pth", "not a regular file"),
        ("pipe.pth", "not a regular file"),
        ("x.pth", "no file"),
    ):
        assert message in refused(CONVERTERS[converter], name, capsys)


def test_debug_shows_the_traceback(tmp_path):
    (tmp_path / "text.pth").write_bytes(b"hello")
    with pytest.raises(ValueError, match="cannot be read as weights") as error:
        convert_vgg.main(["--checkpoint", "text.pth", "--output_dir", "out", "--debug"])
    assert error.value.__cause__ is not None


# Wrong tensors in a file, and a part of the error message.
def change_vgg(change: Callable[[dict], None]) -> dict[str, torch.Tensor]:
    backbone = convert_vgg._empty_model(VggConfig(depths=[1, 1, 2, 2, 2])).to_empty(device="cpu")
    names = dict(convert_vgg._module_names(backbone.config))
    tensors = {
        f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": torch.zeros_like(tensor)
        for name, tensor in backbone.state_dict().items()
    }
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("features.0.bias"), "Missing: ['features.0.bias']."),
        (lambda tensors: tensors.update({"x" * 9999: torch.zeros(1)}), "Unexpected: ['xxx"),
        (lambda tensors: tensors.update({"features.0.bias": torch.zeros(3)}), "features.0.bias is [3], not [64]"),
        (lambda tensors: tensors.update({"features.0.bias": torch.zeros(64).int()}), "Not real numbers"),
        (lambda tensors: tensors.update({"features.0.bias": torch.zeros(64).cfloat()}), "Not real numbers"),
        (lambda tensors: tensors["features.0.bias"].fill_(float("nan")), "not finite, in stages.0.layers.0"),
        (lambda tensors: tensors["features.0.bias"].fill_(float("-inf")), "not finite, in stages.0.layers.0"),
        (lambda tensors: tensors.clear(), "has 0 convolutions"),
        (lambda tensors: [tensors.update({f"{i}": torch.zeros(1)}) for i in range(999)], "and 994 more"),
    ],
)
def test_tensors_that_are_not_those_of_a_vgg(change, message, capsys):
    torch.save(change_vgg(change), "vgg.pth")
    assert message in refused(convert_vgg.main, "vgg.pth", capsys)


def test_weights_that_another_precision_cannot_hold(tmp_path):
    torch.save(change_vgg(lambda tensors: tensors["features.0.bias"].fill_(1e5)), "vgg.pth")
    with pytest.raises(SystemExit, match="not finite, in stages.0.layers.0"):
        convert_vgg.main(["--checkpoint", "vgg.pth", "--output_dir", "out", "--dtype", "float16"])


def test_a_hidden_size_that_heads_do_not_divide(tmp_path, capsys):
    torch.save(as_the_authors_name_them(visual_bert(hidden_size=200, num_attention_heads=1)), "vqa.th")
    assert "200 is not a multiple of 64" in refused(convert_visual_bert.main, "vqa.th", capsys)


LAYER = "bert.bert.encoder.layer."
WORDS = "bert.bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.clear(), "not a VisualBERT"),
        (lambda tensors: tensors.update({WORDS: torch.zeros(3)}), "no matrices ['embeddings.word_embeddings.weight']"),
        (lambda tensors: tensors.pop(f"{LAYER}0.intermediate.dense.weight"), "no matrices ['encoder.layer.0"),
        (lambda tensors: tensors.pop(f"{LAYER}1.output.dense.bias"), "Missing: ['encoder.layer.1.output.dense.bias']"),
        (lambda tensors: tensors.update({f"{LAYER}x.y": torch.zeros(1)}), "Unexpected: ['encoder.layer.x.y']"),
        (lambda tensors: tensors.update({f"{LAYER}": torch.zeros(1)}), "Unexpected: ['encoder.layer.']"),
        # It would need a matrix of a million by a million.
        (lambda tensors: tensors.update({WORDS: torch.zeros(1, 10**6)}), "hidden_size|Wrong shape"),
        (lambda tensors: tensors.update({WORDS: torch.zeros(0, 0)}), "vocab_size|hidden_size"),
        (lambda tensors: tensors.update({WORDS: tensors[WORDS].long()}), "Not real numbers"),
    ],
)
def test_tensors_that_are_not_those_of_a_visual_bert(change, message, capsys):
    tensors = as_the_authors_name_them(visual_bert())
    change(tensors)
    torch.save(tensors, "vqa.th")
    said = refused(convert_visual_bert.main, "vqa.th", capsys)
    assert any(part in said for part in message.split("|"))


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("captioner")
    save_captioner(folder)
    return (folder / "config.json").read_bytes()


@pytest.mark.parametrize("name", [*NO_WEIGHTS, *NO_STATE_DICT])
def test_a_checkpoint_with_such_a_file(name, config, tmp_path):
    """transformers reads the pytorch_model.bin of a checkpoint."""
    content = NO_WEIGHTS[name][0] if name in NO_WEIGHTS else saved(NO_STATE_DICT[name][0])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_bytes(config)
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises((ValueError, OSError)) as error:
        load_checkpoint(folder, "captions")
    message = str(error.value)
    assert str(folder) in message and "\n" not in message and len(message) < 700 and "weights_only" not in message
    assert not os.path.exists("ran")
