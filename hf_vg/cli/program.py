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
"""The command `hf-vg`: captions, explanations, search, grounding and scores from a terminal."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .inputs import ImageInputs


# Nothing here imports torch or transformers before a command is run: `hf-vg --help` answers at once.

DESCRIPTION = """\
Visually grounded language from a terminal.

Results go to standard output, progress and problems to standard error.
Exit codes: 0 all went well, 1 some inputs failed (each is named), 2 the command was wrong."""

EXAMPLES = """\
examples:
  hf-vg caption photos/ --model outputs/show_attend_tell_scenes
  hf-vg explain dog.jpg --model outputs/show_attend_tell_scenes --output dog.html
  hf-vg search photos/ --model outputs/vse_scenes --query "a dog runs through the grass"
  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a red ball" --phrase "a red ball"
  hf-vg caption photos/ --model outputs/show_attend_tell_scenes --json > captions.jsonl
  hf-vg evaluate captions.jsonl --references Flickr8k.token.txt
  hf-vg app

`hf-vg COMMAND --help` tells more of each."""


def batches(items: Iterable, size: int) -> Iterator[list]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def say(args: argparse.Namespace, record: dict[str, Any], text: str) -> None:
    print(json.dumps(record, ensure_ascii=False) if args.json else text, flush=True)


def caption(args: argparse.Namespace, inputs: ImageInputs) -> None:
    captioner = load_captioner(args)
    number = args.num_captions
    for batch in batches(inputs.images(args.images, "Captioning"), args.batch_size):
        outputs = captioner(
            [image for _, image in batch],
            batch_size=args.batch_size,
            num_beams=max(args.num_beams, number),
            num_return_sequences=number,
        )
        for (path, _), records in zip(batch, outputs, strict=True):
            captions = [record["generated_text"] for record in records]
            record = {"image": path, "caption": captions[0]}
            say(args, record if number == 1 else {**record, "captions": captions}, "\t".join([path, *captions]))


def explain(args: argparse.Namespace, inputs: ImageInputs) -> None:
    from ..interpretation import (
        attention_of_sentences,
        caption_examples,
        regions_of_words,
        save_html,
    )

    kind = model_type(args.model)
    examples = []
    if kind == "self_attn_grounded_encoder":
        from transformers import AutoModel, AutoProcessor

        if not args.text or args.images:
            raise UsageError("A sentence encoder explains sentences: give --text, and no images.")
        model = AutoModel.from_pretrained(args.model).eval()
        examples = attention_of_sentences(model, AutoProcessor.from_pretrained(args.model).tokenizer, args.text)
    elif kind == "grounded_visual_bert":
        if not args.text or not args.images:
            raise UsageError("GroundedVisualBert explains what words see: give images and --text.")
        model, processor = region_model(args.model)
        for path, image in inputs.images(args.images, "Looking"):
            boxes = boxes_of(args, path)
            examples += [
                {**regions_of_words(model, processor, image, text, boxes), "name": path} for text in args.text
            ]
    else:
        if args.text or not args.images:
            raise UsageError("A captioner explains captions that it writes: give images, and no --text.")
        captioner = load_captioner(args)
        for batch in batches(inputs.images(args.images, "Captioning"), args.batch_size):
            paths, images = zip(*batch, strict=True)
            found = caption_examples(captioner, images, paths, batch_size=args.batch_size, num_beams=args.num_beams)
            examples += [records[0] for records in found]
    if not examples:
        inputs.fail(args.output, "not written, as there is nothing to show")
        return
    save_html(examples, args.output)
    for example in examples:
        record = {"image": example.get("name"), "words": example["words"], "file": args.output}
        say(args, {name: value for name, value in record.items() if value is not None}, " ".join(example["words"]))
    print(f"{len(examples)} explained in {args.output}: open it in a browser.", file=sys.stderr)


def search(args: argparse.Namespace, inputs: ImageInputs) -> None:
    import torch

    from ..data.images import open_image
    from ..models.vse_scnlm import VseScnlmSpace

    if (args.query is None) == (args.image is None):
        raise UsageError("Give one of --query and --image to begin with.")
    if model_type(args.model) != "vse_scnlm":
        raise UsageError(f"{args.model!r} is a {model_type(args.model)!r}; search needs a 'vse_scnlm'.")
    space = VseScnlmSpace.from_pretrained(args.model)
    try:
        query = space.text(args.query) if args.query is not None else space.image(open_image(args.image))
    except ValueError as error:
        raise UsageError(str(error)) from error
    for text in args.plus:
        query = query + text
    for text in args.minus:
        query = query - text
    paths, vectors = [], []
    for batch in batches(inputs.images(args.images, "Encoding"), args.batch_size):
        paths += [path for path, _ in batch]
        vectors.append(space.encode_images([image for _, image in batch], args.batch_size))
    if not paths:
        return
    for rank, hit in enumerate(space.search(query, torch.cat(vectors), args.top), 1):
        record = {"rank": rank, "image": paths[hit["index"]], "score": round(hit["score"], 4)}
        say(args, record, f"{record['score']:.4f}\t{record['image']}")


def ground(args: argparse.Namespace, inputs: ImageInputs) -> None:
    from ..interpretation import ground_phrase

    model, processor = region_model(args.model)
    if args.phrase is not None and args.phrase not in args.text:
        raise UsageError(f"The phrase {args.phrase!r} is not in the text {args.text!r}.")
    for path, image in inputs.images(args.images, "Grounding"):
        try:
            found = ground_phrase(model, processor, image, args.text, boxes_of(args, path), args.phrase)
        except ValueError as error:
            inputs.fail(path, error)
            continue
        regions = [{"box": [round(side, 1) for side in f["box"]], "score": round(f["score"], 4)} for f in found]
        record = {"image": path, "phrase": args.phrase or args.text, "regions": regions[: args.top]}
        lines = [
            f"{path}\t{r['score']:.4f}\t{' '.join(f'{side:g}' for side in r['box'])}" for r in regions[: args.top]
        ]
        say(args, record, "\n".join(lines))


def evaluate(args: argparse.Namespace, inputs: ImageInputs) -> None:
    from ..evaluation.captions import METRICS, caption_metrics

    unknown = sorted(set(args.metrics) - set(METRICS))
    if unknown:
        raise UsageError(f"There is no metric {unknown[0]!r}; there are {', '.join(METRICS)}.")
    predictions = {}
    for number, record in read_lines(args.captions):
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("image", "caption")):
            inputs.fail(f"{args.captions}:{number}", 'no object with an "image" and a "caption"')
        else:
            predictions[os.path.basename(record["image"])] = record["caption"]
    if not predictions:
        raise UsageError(f"There are no captions in {args.captions!r}.")
    references = read_references(args.references)
    for name in predictions.keys() - references.keys():
        inputs.fail(name, f"there are no captions of this image in {args.references}")
    names = [name for name in predictions if name in references]
    if not names:
        return
    metrics = caption_metrics([predictions[n] for n in names], [references[n] for n in names], args.metrics)
    lines = [f"{len(names)} images", *(f"{name}\t{value:.4f}" for name, value in metrics.items())]
    say(args, {"images": len(names), **metrics}, "\n".join(lines))


def app(args: argparse.Namespace, inputs: ImageInputs) -> None:
    try:
        from ..app import launch
    except ImportError as error:
        raise UsageError(f"The web demo needs Gradio: `pip install hf-vg[demo]`. ({error})") from error
    try:
        launch(args.model, args.images, host=args.host, port=args.port, share=args.share)
    except (OSError, ValueError) as error:  # a port that is taken, a folder without images
        raise UsageError(str(error)) from error


class UsageError(Exception):
    """The command can not be carried out as it was given."""


def model_type(name: str) -> str:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name).model_type
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"The model {name!r} can not be loaded: {first}") from error


def load_captioner(args: argparse.Namespace):
    from transformers import pipeline

    kind = model_type(args.model)
    try:
        return pipeline("image-to-text", model=args.model)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"{args.model!r}, a {kind!r}, can not be loaded as a captioner: {first}") from error


def region_model(name: str):
    from ..interpretation import load_region_model

    model_type(name)
    try:
        return load_region_model(name)
    except ValueError as error:
        raise UsageError(str(error)) from error


def boxes_of(args: argparse.Namespace, path: str) -> list[list[float]] | None:
    """The boxes of an image in a JSON file: of its name, or one list for all images."""
    if args.boxes is None:
        return None
    boxes = read_json(args.boxes)
    if isinstance(boxes, dict):
        boxes = boxes.get(path, boxes.get(os.path.basename(path)))
        if boxes is None:
            raise UsageError(f"{args.boxes} has no boxes of {path!r}.")
    return boxes


def read_json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!r} can not be read as JSON: {error}") from error


def read_lines(path: str) -> Iterator[tuple[int, Any]]:
    """JSON lines, of a file or of standard input."""
    try:
        lines = sys.stdin.readlines() if path == "-" else Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path!r} can not be read: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def read_references(path: str) -> dict[str, list[str]]:
    """By the image's file name: of Flickr's `NAME#0<tab>CAPTION`, or of a JSON object of lists."""
    if path.endswith(".json"):
        captions = read_json(path)
        if not isinstance(captions, dict):
            raise UsageError(f"{path!r} must be an object of image names and lists of captions.")
        return {
            os.path.basename(name): [texts] if isinstance(texts, str) else texts for name, texts in captions.items()
        }
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path!r} can not be read: {error.strerror}.") from error
    references: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        name, tab, text = line.partition("\t")
        if line.strip():
            if not tab:
                raise UsageError(f"{path}:{number} is not NAME#0, a tab and a caption: {line[:60]!r}.")
            references.setdefault(os.path.basename(name.split("#")[0]), []).append(text.strip())
    return references


def parser() -> argparse.ArgumentParser:
    from .. import __version__

    main_parser = argparse.ArgumentParser(
        "hf-vg", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    main_parser.add_argument("--version", action="version", version=f"hf-vg {__version__}")
    commands = main_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(run, summary: str, example: str, images: str | None = "+", model: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(
            run.__name__,
            help=summary,
            description=summary + ".",
            epilog="examples:\n" + example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        if images:
            command.add_argument("images", nargs=images, metavar="IMAGE", help="file, folder, pattern or address")
        if model:
            command.add_argument("--model", required=True, help="folder of a checkpoint, or a model of the Hub")
        command.add_argument("--json", action="store_true", help="write JSON lines")
        command.add_argument("--quiet", action="store_true", help="show no progress")
        return command

    command = add(
        caption,
        "Write captions of images",
        "  hf-vg caption dog.jpg cat.jpg --model outputs/show_attend_tell_scenes\n"
        "  hf-vg caption 'photos/**/*.jpg' --model outputs/show_attend_tell_scenes --num_captions 3 --json",
    )
    command.add_argument("--num_captions", type=positive, default=1, help="captions of each image, best first")
    add_generation(command)

    command = add(
        explain,
        "Make an HTML file that shows where words look",
        "  hf-vg explain photos/ --model outputs/show_attend_tell_scenes --output looks.html\n"
        '  hf-vg explain dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a ball" --boxes boxes.json\n'
        '  hf-vg explain --model outputs/grounded_encoder_scenes --text "two dogs play" --text "a cat sleeps"',
        images="*",
    )
    command.add_argument("--text", action="append", help="a text whose words look; may be given several times")
    command.add_argument("--output", default="explanation.html", help="the file (%(default)s)")
    add_boxes(command)
    add_generation(command)

    command = add(
        search,
        "Find images by a sentence, by an image, or by sums of them",
        '  hf-vg search photos/ --model outputs/vse_scenes --query "a red circle"\n'
        "  hf-vg search photos/ --model outputs/vse_scenes --image car.jpg --minus blue --plus red --top 3",
    )
    command.add_argument("--query", help="the sentence to begin with")
    command.add_argument("--image", help="the image to begin with")
    command.add_argument("--plus", action="append", default=[], metavar="TEXT", help="words to add")
    command.add_argument("--minus", action="append", default=[], metavar="TEXT", help="words to take away")
    command.add_argument("--top", type=positive, default=5, help="images to show (%(default)s)")
    command.add_argument("--batch_size", type=positive, default=16, help="images at a time (%(default)s)")

    command = add(
        ground,
        "Find the region of an image that a phrase names",
        '  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a red ball"\n'
        '  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a red ball" \\\n'
        '      --phrase "a red ball" --boxes boxes.json --json',
    )
    command.add_argument("--text", required=True, help="a caption, or the phrase alone")
    command.add_argument("--phrase", help="the part of the text to look for")
    command.add_argument("--top", type=positive, default=1, help="regions to show (%(default)s)")
    add_boxes(command)

    command = add(
        evaluate,
        "Score captions against those that people wrote",
        "  hf-vg evaluate captions.jsonl --references Flickr8k.token.txt\n"
        "  hf-vg caption photos/ --model outputs/show_attend_tell_scenes --json |\n"
        "      hf-vg evaluate - --references references.json --metrics bleu cider diversity --json",
        images=None,
        model=False,
    )
    command.add_argument("captions", help="JSON lines as `hf-vg caption --json` writes them, or - for standard input")
    command.add_argument(
        "--references",
        required=True,
        help="NAME#0, a tab and a caption a line, as Flickr8k.token.txt has it; or a .json object of lists",
    )
    command.add_argument(
        "--metrics",
        nargs="+",
        default=["bleu", "rouge", "cider"],
        metavar="METRIC",
        help="any of bleu, bleu_no_bp, bleu_punctuation, rouge, cider, meteor, meteor_python, diversity "
        "(bleu rouge cider)",
    )

    command = add(
        app,
        "Open the web demo",
        "  hf-vg app\n  hf-vg app --model outputs/show_attend_tell_scenes --images photos/ --port 8000",
        images=None,
        model=False,
    )
    command.add_argument("--model", action="append", help="a checkpoint to offer; may be given several times")
    command.add_argument("--images", help="folder of images to pick from and to search; scenes by default")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    command.add_argument("--port", type=int, default=7860, help="port to listen on (%(default)s)")
    command.add_argument("--share", action="store_true", help="ask Gradio for a public address")
    return main_parser


def add_generation(command: argparse.ArgumentParser) -> None:
    command.add_argument("--num_beams", type=positive, default=3, help="beams; 1 is greedy (%(default)s)")
    command.add_argument("--batch_size", type=positive, default=8, help="images at a time (%(default)s)")


def add_boxes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--boxes",
        help="JSON of [left, top, right, bottom] in pixels: a list, or an object of lists by image (a 3 x 3 grid)",
    )


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    args = parser().parse_args(argv)
    inputs = ImageInputs(args.quiet)
    try:
        args.run(args, inputs)
    except UsageError as error:
        print(f"hf-vg: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Who read our output has seen enough. Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    if inputs.failures:
        print(f"hf-vg: {inputs.failures} failed.", file=sys.stderr)
    return 1 if inputs.failures else 0
