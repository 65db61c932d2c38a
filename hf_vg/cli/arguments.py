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
"""Arguments that several commands share, and functions that read their files."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Pipeline

from ..examples import scenes
from ..pipelines import load_detector
from .output import UsageError, note


def use_example_model(args: argparse.Namespace, name: str) -> None:
    """Sets an example checkpoint if `--model` is missing, and prints a note."""
    if args.model is None:
        args.model = name
        note(args, f"no --model: using the example {name}, which knows only scenes of colored shapes.")


def add_generation(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of text generation."""
    command.add_argument("--prompt", help="the question to a chat model, or the first words of the caption")
    command.add_argument(
        "--num_beams", type=positive, help="number of beams; 1 is greedy (default: the checkpoint's setting)"
    )
    command.add_argument("--batch_size", type=positive, default=8, help="images per batch (default: %(default)s)")


def add_regions(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that choose the regions of an image."""
    regions = command.add_mutually_exclusive_group()
    regions.add_argument(
        "--boxes",
        help="JSON file with a list of [left, top, right, bottom] in pixels, or an object with one list per image "
        "(default: a 3 x 3 grid)",
    )
    regions.add_argument("--detector", help="object-detection model of transformers that finds the regions")
    command.add_argument(
        "--threshold", type=share, default=0.2, help="lowest score of a detection (default: %(default)s)"
    )


def positive(text: str) -> int:
    """Parses a whole number from 1 to 1,000,000."""
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000000, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Parses a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text!r}")
    return value


def read_text(path: str) -> str:
    """Reads a UTF-8 file that the user named. Raises a [`UsageError`] if it cannot be read."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is not a regular file.")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8, at byte {error.start}.") from error
    except ValueError as error:  # the name contains a NUL character
        raise UsageError(f"{path!r} cannot be read: {error}.") from error


def read_json(path: str) -> Any:
    """Reads a JSON file that the user named. Raises a [`UsageError`] if it cannot be parsed."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def read_boxes(args: argparse.Namespace) -> Callable[[str], Any]:
    """Reads the file of `--boxes` and returns a function from the path of an image to its boxes."""
    if args.boxes is None:
        known = {row["image"]: [obj["box"] for obj in row["objects"]] for row in scenes()} if args.examples else {}
        return known.get if args.detector is None else lambda path: None
    boxes = read_json(args.boxes)
    if not isinstance(boxes, dict | list):
        raise UsageError(f"{args.boxes} must contain a list of boxes, or an object with one such list per image.")

    def boxes_of(path: str) -> Any:
        if isinstance(boxes, list):
            return boxes
        found = boxes.get(path, boxes.get(os.path.basename(path)))
        if found is None:
            raise ValueError(f"{args.boxes} has no boxes for this image.")
        return found

    return boxes_of


def detector_of(args: argparse.Namespace) -> Pipeline | None:
    """Loads the `pipeline("object-detection")` of `--detector`, if there is one."""
    return None if args.detector is None else load_detector(args.detector, args.trust_remote_code)
