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
"""Shared by the converters of published weights."""

import argparse
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from ..loading import check_archive


REAL_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def converter_parser(module: str, description: str, checkpoint_help: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that all converters take."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--checkpoint", required=True, help=checkpoint_help)
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to create")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], help="default: the dtype of the file")
    parser.add_argument("--push_to_hub", metavar="USER/NAME", help="also upload the folder to this repository")
    parser.add_argument("--debug", action="store_true", help="show the traceback if there is an error")
    return parser


def read_state_dict(checkpoint: str | Path, expected: str) -> dict[str, torch.Tensor]:
    r"""
    Reads the tensors of a file. It never runs code that the file may contain.

    Args:
        checkpoint (`str` or `Path`):
            A `.safetensors` file, or a file saved by torch, which is read with `weights_only=True`.
        expected (`str`):
            What the file should contain, for error messages.

    Returns:
        `dict[str, torch.Tensor]`: The tensors by name.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_file():
        problem = f"{checkpoint} is not a regular file" if checkpoint.exists() else f"there is no file {checkpoint}"
        raise FileNotFoundError(f"{problem}; expected {expected}.")
    expected = f"expected {expected}, as a `.safetensors` file or a state dict of tensors saved by torch"
    with open(checkpoint, "rb") as opened:
        start = opened.read(24)
    try:
        if checkpoint.suffix == ".safetensors":
            return load_file(checkpoint)
        check_archive(checkpoint)
        with warnings.catch_warnings(action="ignore"):  # torch warns about files that are rejected anyway
            state_dict = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise any exception
        code = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
        reason = f"it would run {code[1]}" if code else f"it begins with {start!r}" if start else "it is empty"
        raise ValueError(f"{checkpoint} cannot be read as weights: {reason}; {expected}.") from error
    if not isinstance(state_dict, Mapping):
        raise ValueError(f"{checkpoint} holds an object of type {type(state_dict).__name__}; {expected}.")
    for name, value in state_dict.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{checkpoint}: {name!r:.100} is of type {type(value).__name__}; {expected}.")
        if not _is_plain(value):
            raise ValueError(f"{checkpoint}: {name!r:.100} is not a plain tensor with complete data; {expected}.")
    return dict(state_dict)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the file contained all numbers of a tensor. Otherwise, a few bytes could claim any size."""
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check_tensors(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], what: str) -> None:
    r"""
    Raises a `ValueError` if tensors do not have the names, shapes and types of a model.

    Args:
        found (`Mapping[str, torch.Tensor]`):
            The tensors of a file.
        expected (`Mapping[str, torch.Tensor]`):
            The tensors of the model. They may be on the meta device.
        what (`str`):
            What the file should contain, for error messages.
    """
    misshapen = [
        f"{name} is {list(tensor.shape)}, not {list(expected[name].shape)}"
        for name, tensor in found.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    problems = {
        "Missing": sorted(expected.keys() - found.keys()),
        "Unexpected": sorted(found.keys() - expected.keys()),
        "Wrong shape": misshapen,
        "Not real numbers": sorted(
            name
            for name, tensor in found.items()
            if name in expected and expected[name].is_floating_point() and tensor.dtype not in REAL_NUMBERS
        ),
    }
    if any(problems.values()):
        told = (f"{problem}: {some(names)}." for problem, names in problems.items() if names)
        raise ValueError(f"not {what}. {' '.join(told)}")


def some(names: Sequence[str]) -> str:
    """Returns the first five names of a list, for error messages."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return str([name[:100] for name in names[:5]]) + more


@contextmanager
def new_folder(output_dir: str | Path) -> Iterator[Path]:
    """Yields a temporary folder, which is renamed to `output_dir` at the end. On errors, nothing is written."""
    output_dir = Path(output_dir)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise FileExistsError(f"{output_dir} is not empty. Pass a new or empty folder.")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    # Next to `output_dir`, so on the same file system: the final rename is atomic.
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as staging_dir:
        staged = Path(staging_dir, output_dir.name)
        staged.mkdir()
        yield staged
        os.replace(staged, output_dir)
