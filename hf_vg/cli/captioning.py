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
"""`hf-vg caption`."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..pipelines import caption_settings, load_captioner
from .arguments import add_generation, positive, use_example_model
from .inputs import ImageInputs
from .output import say


SUMMARY = "Caption images with any captioner or vision-language chat model"
EXAMPLES = """\
  hf-vg caption --examples
  hf-vg caption dog.jpg cat.jpg --model outputs/show_attend_tell_scenes
  hf-vg caption 'photos/**/*.jpg' --model outputs/show_attend_tell_scenes --num_captions 3 --json
  hf-vg caption photos/ --model Qwen/Qwen2.5-VL-3B-Instruct --prompt "What is in the foreground?\""""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg caption`."""
    command.add_argument(
        "--num_captions", type=positive, default=1, help="captions per image, best first (default: %(default)s)"
    )
    add_generation(command)


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Captions images."""
    paths = inputs.paths(args.images)
    if not paths:
        return
    use_example_model(args, "show_attend_tell")
    captioner = load_captioner(args.model, args.trust_remote_code)
    settings = caption_settings(captioner, args.num_captions, args.num_beams, args.prompt)

    def write(images: list[Any]) -> Sequence[Any]:
        return captioner(images, batch_size=args.batch_size, **settings)

    for path, _, records in inputs.results(write, paths, "Captioning", args.batch_size):
        captions = [record["generated_text"] for record in records]
        record = {"image": path, "caption": captions[0]}
        say(args, record if args.num_captions == 1 else {**record, "captions": captions}, path, *captions)
