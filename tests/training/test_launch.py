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
"""Recipes as they are launched: by `accelerate launch`, on configs of this repository and on two machines."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command, launch_command_parser
from safetensors.torch import load_file

from hf_vg.training.checkpoints import is_complete
from tests.common import ROOT
from tests.training.test_recipes import CAPTIONER


CONFIGS = ROOT / "recipes" / "accelerate"
# What a rank of the second machine does not write by itself: the world it saw, and its weights.
RANK = """
import os, runpy, sys
import torch
from safetensors.torch import save_file
from hf_vg.training import VgTrainer

train = VgTrainer.train

def train_and_save(self, *args, **kwargs):
    output = train(self, *args, **kwargs)
    assert torch.distributed.get_world_size() == self.args.world_size == 2
    assert self.model_wrapped.find_unused_parameters is False
    weights = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
    save_file(weights, f"{self.args.run_name}/rank{self.args.process_index}.safetensors")
    return output

VgTrainer.train = train_and_save
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_accelerate_reads_the_configs(file, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    written = yaml.safe_load(file.read_text())
    config = load_config_from_file(str(file))  # refuses unknown keys
    for name, value in written.items():
        read = getattr(config, name)
        assert getattr(read, "value", read) == value, name
    parser = launch_command_parser()
    args, _, _ = _validate_launch_command(parser.parse_args(["--config_file", str(file), "recipe.py"]))
    assert args.num_processes == written["num_processes"] and args.num_machines == written["num_machines"]
    assert args.use_fsdp == (file.stem == "fsdp") and args.mixed_precision == written["mixed_precision"]


def test_the_configs_are_those_that_were_promised():
    assert {file.stem for file in CONFIGS.glob("*.yaml")} == {"cpu", "one_gpu", "multi_gpu", "two_nodes", "fsdp"}
    readme = (CONFIGS / "README.md").read_text()
    assert all(file.name in readme for file in CONFIGS.glob("*.yaml")) and "--deepspeed" in readme


def test_two_machines_train_one_model(tmp_path):
    """Each has one process; both are on loopback."""
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    recipe = [str(ROOT / "recipes/train_captioner.py"), *CAPTIONER, "--output_dir", str(tmp_path / "output")]
    recipe += ["--run_name", str(tmp_path), "--max_steps", "2", "--save_strategy", "steps", "--save_steps", "2"]
    recipe += ["--eval_strategy", "steps", "--eval_steps", "2", "--max_length_difference", "3"]
    processes = []
    for rank in range(2):
        command = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            str(CONFIGS / "two_nodes.yaml"),
        ]
        command += ["--num_processes", "2", "--machine_rank", str(rank), "--main_process_port", str(port)]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        log = open(tmp_path / f"{rank}.log", "w")
        processes.append(
            subprocess.Popen(
                [*command, str(tmp_path / "rank.py"), *recipe], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        )
    codes = [process.wait() for process in processes]
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(2)]
    assert codes == [0, 0], "\n".join(log[-3000:] for log in logs)
    # One machine speaks, both have learnt the same.
    assert "true captions" in logs[0] and "true captions" not in logs[1]
    first, second = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2))
    saved = load_file(tmp_path / "output" / "model.safetensors")
    learnt = [name for name in first if "running_" not in name]  # batch norm counts on its own machine
    assert all(first[name].equal(second[name]) and first[name].equal(saved[name]) for name in learnt)
    checkpoint = tmp_path / "output" / "checkpoint-2"
    assert is_complete(checkpoint) and (checkpoint / "rng_state_1.pth").exists()
    assert "# processes: 2" in Path(checkpoint, "training_config.yaml").read_text()


def test_a_mistake_is_one_line_where_it_is_launched(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    command = ["--quiet", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", str(ROOT / "recipes" / "train_captioner.py"), "--data_dir"]
    with pytest.raises(SystemExit) as ended:
        launch_command(launch_command_parser().parse_args([*command, str(tmp_path / "phtos")]))
    assert ended.value.code == 1
    assert capfd.readouterr().err == f"error: there is no folder or file {tmp_path / 'phtos'}\n"
