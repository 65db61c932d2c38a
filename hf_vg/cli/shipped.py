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
"""`hf-vg examples`."""

import argparse

from ..examples import CHECKPOINTS, checkpoint, scenes
from .inputs import ImageInputs
from .output import say


SUMMARY = "List the example checkpoints and scenes that come with hf_vg"
EXAMPLES = """\
  hf-vg examples
  hf-vg examples --json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg examples`: there are none."""


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Lists the examples."""
    for name, does in CHECKPOINTS.items():
        say(args, {"model": name, "does": does, "folder": checkpoint(name)}, "--model", name, does, checkpoint(name))
    for row in scenes():
        caption = row["captions"][0]
        say(args, {"image": row["image"], "caption": caption}, "scene", row["image"], caption)
