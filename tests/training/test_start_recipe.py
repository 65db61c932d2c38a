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
"""What recipes do before they load anything, and how they end."""

import csv
import os
import re
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image

from hf_vg import ShowAttendTellConfig
from hf_vg.data.processes import available_cores
from hf_vg.training import CaptionerArguments, CaptionReportArguments, VgTrainingArguments, run_recipe, start_recipe
from hf_vg.training.checkpoints import FolderLock
from hf_vg.training.running import check_paths
from hf_vg.training.trainer import use_all_cores
from tests.checkpoints import save_captioner, save_space
from tests.common import ROOT, start_process


CONFIGS = ROOT / "recipes" / "configs"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    with open(folder / "captions.csv", "w", newline="") as file:
        csv.writer(file).writerows([["image", "caption"], ["a.jpg", "a dog"], ["b.jpg", "a cat"]])
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def start(*flags):
    return start_recipe(
        (CaptionerArguments, VgTrainingArguments),
        CONFIGS / "show_attend_tell_scenes.yaml",
        photo_config=CONFIGS / "captions_table.yaml",
        args=[str(flag) for flag in flags],
    )


class TestDefaultsBelongToTheData:
    def test_scenes_have_those_of_scenes(self, tmp_path):
        args, _ = start("--output_dir", tmp_path / "o")
        assert (args.dataset, args.image_size, args.num_train_images, args.max_caption_words) == (
            "scenes",
            64,
            10000,
            12,
        )
        assert args.backbone is None and args.model["backbone_config"]["model_type"] == "vgg"

    def test_photos_have_those_of_photos(self, photos, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["recipes/train_captioner.py"])
        args, training_args = start("--data_dir", photos, "--model.backbone_config", "null")
        assert (args.dataset, args.image_size) == ("table", 224)
        assert args.num_train_images is args.num_eval_images is args.max_caption_words is None
        assert training_args.output_dir == "outputs/captioner_photos"

    def test_photos_are_seen_by_a_pretrained_network(self, photos, tmp_path, capsys):
        with pytest.raises(FileNotFoundError, match="--backbone: .*microsoft/resnet-50.*HF_HUB_OFFLINE"):
            start("--data_dir", photos, "--output_dir", tmp_path / "o")
        assert "To use another one: --backbone" in capsys.readouterr().out
        assert not (tmp_path / "o").exists()

    def test_models_of_transformers_have_an_image_encoder_of_their_own(self, photos, tmp_path):
        flags = ("--config", CONFIGS / "swin_gpt2_scenes.yaml", "--output_dir", tmp_path / "o")
        assert start(*flags, "--data_dir", photos)[0].backbone is None

    def test_a_config_for_scenes_does_not_make_scenes_of_photos(self, photos, tmp_path):
        flags = ("--config", CONFIGS / "show_attend_tell_scenes.yaml", "--output_dir", tmp_path / "o")
        assert start(*flags, "--data_dir", photos)[0].dataset == "table"

    def test_evaluations_take_all_photos(self, photos, tmp_path):
        save_captioner(tmp_path)
        flags = ["--data_dir", str(photos), "--checkpoint", str(tmp_path)]
        (args,) = start_recipe((CaptionReportArguments,), CONFIGS / "caption_report_scenes.yaml", args=flags)
        assert (args.dataset, args.num_eval_images, args.num_beams) == ("table", None, None)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("data_dir", "none", "--data_dir .*none"),
        ("images_dir", "none", "--images_dir .*none"),
        ("eval_data_dir", "none/*.tar", "--eval_data_dir"),
        ("checkpoint", "none", "--checkpoint: there is no folder"),
        ("backbone", "folder", "--backbone: .*no config.json"),
        ("checkpoint", "space", "--checkpoint: .*space .*vse_scnlm .*`hf-vg search`"),
        ("features", "file/features", "--features .*is not a folder"),
    ],
)
def test_what_is_not_there_is_found_before_anything_is_loaded(tmp_path, argument, value, message):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    if value == "space":
        save_space(tmp_path / "space")
    args = CaptionerArguments(dataset="table" if argument == "data_dir" else None, **{argument: str(tmp_path / value)})
    with pytest.raises((OSError, ValueError), match=message):
        check_paths(args)


def test_output_that_cannot_be_written_is_found_too(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="--output_dir .*is not a folder"):
        check_paths(VgTrainingArguments(str(tmp_path / "file" / "output")))


class TestErrors:
    def run(self, error, monkeypatch, *flags):
        def main():
            raise error

        monkeypatch.setattr(sys, "argv", ["recipe.py", *flags])
        run_recipe(main)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (ValueError("the caption is empty"), "the caption is empty"),
            (PermissionError(13, "Permission denied", "outputs"), "outputs: Permission denied"),
            (FileNotFoundError("no a\x1b[31m\u202e.jpg"), r"no a\x1b[31m\u202e.jpg"),
            (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
            (
                ValueError(
                    "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                    '  File "x.py", line 1\nValueError: a.jpg is broken'
                ),
                "a.jpg is broken",
            ),
        ],
    )
    def test_what_a_user_can_cause_is_one_sentence(self, monkeypatch, error, message):
        with pytest.raises(SystemExit) as stop:
            self.run(error, monkeypatch)
        assert stop.value.code.startswith("error: ") and message in stop.value.code
        assert "Traceback" not in stop.value.code
        with pytest.raises(type(error)):
            self.run(error, monkeypatch, "--debug")

    def test_a_config_out_of_range_is_one_sentence(self, monkeypatch):
        with pytest.raises(StrictDataclassError) as raised:
            ShowAttendTellConfig(hidden_size=-1)
        with pytest.raises(SystemExit, match=r"^error: hidden_size must be from 1 to 65,536, got -1\.$"):
            self.run(raised.value, monkeypatch)

    def test_an_error_of_this_package_shows_where_it_is(self, monkeypatch):
        with pytest.raises(KeyError):
            self.run(KeyError("labels"), monkeypatch)


def hold(folder: str, ready: str) -> None:
    lock = FolderLock(folder)
    lock.acquire()
    if os.fork() == 0:  # like a worker that outlives a killed run for some seconds
        time.sleep(5)
        os._exit(0)
    open(ready, "w").close()
    time.sleep(600)


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    process = start_process(hold, str(tmp_path / "output"), str(tmp_path / "ready"))
    while process.is_alive() and not (tmp_path / "ready").exists():
        time.sleep(0.01)
    with pytest.raises(BlockingIOError, match=f"output is in use: process {process.pid} .*another --output_dir"):
        FolderLock(tmp_path / "output").acquire()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    lock = FolderLock(tmp_path / "output")
    lock.acquire()  # what the killed run left behind does not stop the next
    lock.release()
    assert not [*(tmp_path / "output").iterdir()]


class TestOtherPlatforms:
    """What only Linux has is asked for on Linux only. These platforms are imitated, not run."""

    @pytest.mark.parametrize("platform", ["darwin", "win32"])
    def test_what_every_recipe_begins_with(self, platform, tmp_path, monkeypatch):
        def lock_one_byte(descriptor, mode, number):
            if number != 1 or locked:
                raise OSError("in use")
            locked.append(descriptor)

        locked = []
        windows = SimpleNamespace(locking=lock_one_byte, LK_NBLCK=1)
        monkeypatch.setitem(sys.modules, "msvcrt", windows if platform == "win32" else None)
        if platform == "win32":
            monkeypatch.setitem(sys.modules, "fcntl", None)
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr("ctypes.CDLL", None)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        threads = []
        monkeypatch.setattr(torch, "set_num_threads", threads.append)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("ACCELERATE_DYNAMO_MODE", raising=False)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        use_all_cores()
        assert threads == []
        monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "default")  # as `accelerate launch` sets it
        use_all_cores()
        assert threads == [available_cores()]
        assert available_cores() >= 1
        lock = FolderLock(tmp_path)
        lock.acquire()
        if platform == "win32":
            assert locked
            with pytest.raises(BlockingIOError, match="is in use"):
                FolderLock(tmp_path).acquire()
        lock.release()

    def test_nothing_else_is_of_one_platform(self):
        """Names that other platforms do not have, and the one file that asks first for each."""
        names = "sched_getaffinity|mallopt|fcntl|msvcrt|mkfifo|getuid|geteuid|killpg|setsid|SIGKILL|SIGALRM|getrusage"
        guarded = {
            "data/processes.py": {"sched_getaffinity"},
            "training/trainer.py": {"mallopt"},
            "training/checkpoints.py": {"fcntl", "msvcrt"},
        }
        package = ROOT / "hf_vg"
        for file in (*package.rglob("*.py"), *(ROOT / "recipes").glob("*.py")):
            found = set(re.findall(rf"\b({names})\b", file.read_text(encoding="utf-8")))
            allowed = guarded.get(file.relative_to(package).as_posix(), set()) if package in file.parents else set()
            assert found <= allowed, file
            assert not found or "sys.platform ==" in file.read_text(encoding="utf-8")
