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
"""`hf-vg evaluate`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..evaluation.captions import METRICS, caption_metrics
from ..reports import metric_name, metric_text
from .arguments import read_json, read_text
from .inputs import ImageInputs
from .output import UsageError, say


SUMMARY = "Score captions against human captions"
EXAMPLES = """\
  hf-vg evaluate captions.jsonl --references Flickr8k.token.txt
  hf-vg caption photos/ --model outputs/show_attend_tell_scenes --json |
      hf-vg evaluate - --references references.json --metrics bleu cider diversity --json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg evaluate`."""
    command.add_argument("captions", help="JSON lines from `hf-vg caption --json`, or - for standard input")
    command.add_argument(
        "--references",
        required=True,
        help="a text file with lines NAME#0<tab>CAPTION, such as Flickr8k.token.txt, or a .json object with a list of "
        "captions per image",
    )
    command.add_argument(
        "--metrics",
        nargs="+",
        default=["bleu", "rouge", "cider"],
        metavar="METRIC",
        help="any of bleu, bleu_no_bp, bleu_punctuation, rouge, cider, meteor, meteor_python, diversity "
        "(default: bleu rouge cider)",
    )


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Scores captions."""
    unknown = sorted(set(args.metrics) - set(METRICS))
    if unknown:
        raise UsageError(f"unknown metric {unknown[0]!r}: choose from {', '.join(METRICS)}.")
    references = read_references(args.references)
    predictions = {}
    for number, record in read_lines(args.captions):
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("image", "caption")):
            inputs.fail(f"{args.captions}:{number}", 'expected an object with an "image" and a "caption"')
        else:
            predictions[os.path.basename(record["image"])] = record["caption"]
    if not predictions:
        raise UsageError(f"There are no captions in {args.captions!r}.")
    for name in sorted(predictions.keys() - references.keys()):
        inputs.fail(name, f"{args.references} has no captions for this image")
    names = [name for name in predictions if name in references]
    if not names:
        return
    metrics = caption_metrics([predictions[n] for n in names], [references[n] for n in names], args.metrics)
    if args.json:
        say(args, {"images": len(names), **metrics})
        return
    say(args, {}, f"{len(names)} images")
    for key, value in metrics.items():
        say(args, {}, metric_name(key), metric_text(key, value))


def read_lines(path: str) -> Iterator[tuple[int, Any]]:
    """Reads JSON lines from a file or from standard input."""
    if path == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8: {error}.") from error
    else:
        text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


def read_references(path: str) -> dict[str, list[str]]:
    """Reads human captions, from lines `NAME#0<tab>CAPTION` or a JSON object of lists. Keys are image file names."""
    references: dict[str, list[str]] = {}
    if Path(path).suffix == ".json":
        captions = read_json(path)
        if not isinstance(captions, dict):
            raise UsageError(f"{path} must contain an object with a list of captions per image.")
        for name, texts in captions.items():
            texts = [texts] if isinstance(texts, str) else texts
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise UsageError(f"{path} has no list of captions for {name!r}: {texts!r:.80}.")
            references[os.path.basename(name)] = texts
        return references
    for number, line in enumerate(read_text(path).split("\n"), 1):
        name, tab, text = line.partition("\t")
        if line.strip():
            if not tab:
                raise UsageError(f"{path}:{number}: expected NAME#0<tab>CAPTION, found {line[:60]!r}.")
            references.setdefault(os.path.basename(name.split("#")[0]), []).append(text.strip())
    return references
