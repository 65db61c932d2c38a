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
"""What converters of published weights share."""

import argparse
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file


def converter_parser(module: str, description: str, checkpoint_help: str) -> argparse.ArgumentParser:
    """The arguments that every converter takes."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--checkpoint", required=True, help=checkpoint_help)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to create")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], help="default: as in the file")
    parser.add_argument("--push_to_hub", metavar="USER/NAME", help="also upload the folder to this repository")
    return parser


def read_state_dict(checkpoint: str | Path, expected: str) -> dict[str, torch.Tensor]:
    r"""
    Reads tensors, and never runs code that a file may hold.

    Args:
        checkpoint (`str` or `Path`):
            A `.safetensors` file, or one that torch has saved, which is read with `weights_only=True`.
        expected (`str`):
            What the file should be, for errors.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_file():
        raise FileNotFoundError(f"there is no file {checkpoint}; expected {expected}")
    try:
        if checkpoint.suffix == ".safetensors":
            return load_file(checkpoint)
        state_dict = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(
            f"cannot be read as weights: {error}\nExpected a `.safetensors` file, or a `{checkpoint.suffix}` file "
            "that holds a state dict of tensors and no code."
        ) from error
    if not isinstance(state_dict, Mapping):
        raise ValueError(f"holds a {type(state_dict).__name__}; expected a state dict of tensors")
    for name, value in state_dict.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"`{name}` is a {type(value).__name__}; expected a state dict of tensors")
    return dict(state_dict)


@contextmanager
def new_folder(output_dir: str | Path) -> Iterator[Path]:
    """A folder to fill, which becomes `output_dir` at the end: all of it, or nothing if anything fails."""
    output_dir = Path(output_dir)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise FileExistsError(f"{output_dir} is not empty; expected a new or empty folder")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    # A sibling is on the same file system, so the rename that publishes it is one step.
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as staging_dir:
        staged = Path(staging_dir, output_dir.name)
        staged.mkdir()
        yield staged
        os.replace(staged, output_dir)
