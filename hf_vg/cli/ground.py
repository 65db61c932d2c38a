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
"""`hf-vg ground`."""

import argparse
import os
from pathlib import Path

from ..data.files import atomic_write
from ..interpretation import draw_regions, find_regions, ground_phrase, load_region_model
from .arguments import add_regions, detector_of, positive, read_boxes, use_example_model
from .inputs import ImageInputs
from .output import UsageError, check_folder, note, say


SUMMARY = "Find the region of an image that a phrase names, and draw it"
EXAMPLES = """\
  hf-vg ground --examples --text "a red circle"
  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a red ball"
  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a red ball" --detector facebook/detr-resnet-50
  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a red ball" \\
      --phrase "a red ball" --boxes boxes.json --json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg ground`."""
    command.add_argument("--text", required=True, help="a caption or a phrase")
    command.add_argument("--phrase", help="the part of the text to find (default: the whole text)")
    command.add_argument("--top", type=positive, default=1, help="number of regions to show (default: %(default)s)")
    command.add_argument(
        "--output", default="grounded", help="folder for the images with drawn boxes (default: %(default)s)"
    )
    add_regions(command)


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Grounds a phrase in each image."""
    if args.phrase is not None and (not args.phrase.strip() or args.phrase not in args.text):
        raise UsageError(f"The phrase {args.phrase!r} is not in the text {args.text!r}.")
    if not args.text.strip():
        raise UsageError("--text is empty.")
    check_folder(args.output, args.output)
    paths = inputs.paths(args.images)
    if not paths:
        return
    use_example_model(args, "grounded_visual_bert")
    boxes_of = read_boxes(args)
    model, processor = load_region_model(args.model, args.trust_remote_code)
    detector = detector_of(args)
    phrase, told, files = args.phrase or args.text, set(), set()
    for path, image in inputs.images(paths, "Grounding"):
        try:
            boxes, source = find_regions(processor, image, boxes_of(path), detector, args.threshold)
            found = ground_phrase(model, processor, image, args.text, boxes, args.phrase)
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            inputs.fail(path, error)
            continue
        file = output_file(args.output, path, files)
        with atomic_write(file) as temporary:
            draw_regions(image, found[: args.top], phrase).save(temporary, "PNG")
        regions = [{"box": [round(s, 1) for s in f["box"]], "score": round(f["score"], 4)} for f in found[: args.top]]
        if source not in told:
            told.add(source)
            note(args, f"the regions are {source}.")
        record = {"image": path, "phrase": phrase, "regions_from": source, "regions": regions, "file": str(file)}
        if args.json:
            say(args, record)
            continue
        for region in regions:
            box = " ".join(f"{side:g}" for side in region["box"])
            say(args, {}, path, f"{region['score']:.4f}", box, file)


def output_file(folder: str, path: str, taken: set[str]) -> Path:
    """Makes a unique file name for the drawing of an image: images in two folders may have the same name."""
    stem = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in Path(path).stem)[:100] or "image"
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name)
    return Path(os.path.join(folder, f"{name}.png"))
