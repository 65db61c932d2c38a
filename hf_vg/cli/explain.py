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
"""`hf-vg explain`."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..data.loading_report import printable
from ..interpretation import (
    attention_of_sentences,
    candidate_examples,
    caption_examples,
    family_of,
    find_regions,
    load_region_model,
    regions_of_words,
    save_html,
)
from ..loading import load_config
from ..pipelines import caption_settings, load_captioner, load_sentence_encoder
from .arguments import add_generation, add_regions, detector_of, read_boxes, use_example_model
from .inputs import ImageInputs
from .output import UsageError, check_output, note, say


SUMMARY = "Write an HTML page that shows where each word looks, or which captions a model considered"
EXAMPLES = """\
  hf-vg explain --examples
  hf-vg explain photos/ --model outputs/show_attend_tell_scenes --output looks.html
  hf-vg explain photos/ --model Qwen/Qwen2.5-VL-3B-Instruct --prompt "What is the dog doing?"
  hf-vg explain photos/ --model outputs/show_attend_tell_scenes --deletion
  hf-vg explain photos/ --model outputs/scnlm_scenes
  hf-vg explain dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a ball" --boxes boxes.json
  hf-vg explain --model outputs/grounded_encoder_scenes --text "two dogs play" --text "a cat sleeps\""""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg explain`."""
    command.add_argument(
        "--text", action="append", help="a text to explain, for models that read text; can be repeated"
    )
    command.add_argument("--output", default="explanation.html", help="the HTML file (default: %(default)s)")
    command.add_argument(
        "--deletion",
        action="store_true",
        help="test the maps of a captioner: hide the marked regions and show how much the probability of each word "
        "falls (about 80 more forward passes per image)",
    )
    add_regions(command)
    add_generation(command)


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Writes the HTML page."""
    check_output(args.output)
    paths = inputs.paths(args.images)
    if args.images and not paths:
        return
    reads = "grounded_visual_bert" if paths else "self_attn_grounded_encoder"
    use_example_model(args, reads if args.text else "show_attend_tell")
    config = load_config(args.model, trust_remote_code=args.trust_remote_code)
    architecture = next(iter(config.architectures or []), "")
    has_maps = config.model_type not in ("self_attn_grounded_encoder", "grounded_visual_bert", "vse_scnlm")
    if args.deletion and not has_maps:
        raise UsageError(f"--deletion tests image maps, but a {config.model_type} has none.")
    if config.model_type == "self_attn_grounded_encoder":
        if not args.text or args.images:
            raise UsageError("A sentence encoder explains sentences: pass --text and no images.")
        examples = of_sentences(args)
    elif config.model_type == "grounded_visual_bert":
        if not args.text or not args.images:
            raise UsageError("A grounded_visual_bert explains texts about images: pass images and --text.")
        examples = of_regions(args, inputs, paths)
    else:
        load_config(args.model, "captions", args.trust_remote_code)
        if args.text or not args.images:
            raise UsageError("A captioner explains the captions that it writes: pass images and no --text.")
        is_scnlm = architecture == "VseScnlmForConditionalGeneration"
        examples = (of_candidates if is_scnlm else of_captions)(args, inputs, paths)
    if not examples:
        inputs.fail(args.output, "not written, because there is nothing to show")
        return
    save_html(examples, args.output)
    for example in examples:
        record = {"image": example.get("name"), "words": example["words"], "file": args.output}
        if "deletion" in example:
            record["deletion"] = {name: example["deletion"][name] for name in ("score", "score_center")}
        if "candidates" in example:
            record["candidates"] = example["candidates"]
            for candidate in example["candidates"] if not args.json else []:
                pairs = zip(candidate["words"], candidate["tags"], strict=True)
                say(args, {}, f"{candidate['score']:.3f}", " ".join(f"{word}/{tag}" for word, tag in pairs))
            if not args.json:
                continue
        say(args, {key: value for key, value in record.items() if value is not None}, " ".join(example["words"]))
    note(args, f"wrote {len(examples)} explanations to {printable(args.output)}: open it in a browser.")


def of_sentences(args: argparse.Namespace) -> list[dict]:
    """Explains sentences: the attention of a sentence encoder."""
    return attention_of_sentences(*load_sentence_encoder(args.model, args.trust_remote_code), args.text)


def of_regions(args: argparse.Namespace, inputs: ImageInputs, paths: list[str]) -> list[dict]:
    """Explains texts about images: the regions that each word attends to."""
    boxes_of = read_boxes(args)
    model, processor = load_region_model(args.model, args.trust_remote_code)
    detector = detector_of(args)
    examples = []
    for path, image in inputs.images(paths, "Explaining"):
        try:
            boxes, _ = find_regions(processor, image, boxes_of(path), detector, args.threshold)
            found = [regions_of_words(model, processor, image, text, boxes) for text in args.text]
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            inputs.fail(path, error)
        else:
            examples += [{**example, "name": path} for example in found]
    return examples


def of_captions(args: argparse.Namespace, inputs: ImageInputs, paths: list[str]) -> list[dict]:
    """Explains captions: a map for each word."""
    captioner = load_captioner(args.model, args.trust_remote_code)
    family_of(captioner.model)  # raises an error for an unsupported model before any image is read
    settings = caption_settings(captioner, num_beams=args.num_beams, prompt=args.prompt)

    def write(images: list[Any]) -> Sequence[Any]:
        return caption_examples(captioner, images, batch_size=args.batch_size, test_deletion=args.deletion, **settings)

    found = inputs.results(write, paths, "Captioning", args.batch_size)
    return [{**records[0], "name": path} for path, _, records in found]


def of_candidates(args: argparse.Namespace, inputs: ImageInputs, paths: list[str]) -> list[dict]:
    """Explains captions of an SC-NLM: the captions that it considered."""
    if args.prompt:
        raise UsageError("An SC-NLM explains whole captions and takes no --prompt.")
    captioner = load_captioner(args.model, args.trust_remote_code)
    caption_settings(captioner, num_beams=args.num_beams)  # raises an error for beams

    def write(images: list[Any]) -> Sequence[Any]:
        return candidate_examples(captioner, images)

    found = inputs.results(write, paths, "Captioning", args.batch_size)
    return [{**records[0], "name": path} for path, _, records in found]
