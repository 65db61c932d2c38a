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
"""`hf-vg app`."""

import argparse

from .arguments import positive
from .inputs import ImageInputs
from .output import UsageError


SUMMARY = "Start the web app"
EXAMPLES = """\
  hf-vg app
  hf-vg app --model outputs/show_attend_tell_scenes --images photos/ --port 8000
  hf-vg app --model outputs/show_attend_tell_scenes --model vse_scnlm --host 0.0.0.0"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg app`."""
    command.add_argument(
        "--model",
        action="append",
        help="a checkpoint or example to offer; can be repeated",
    )
    command.add_argument("--images", help="folder of images to pick and search (default: scenes)")
    command.add_argument("--detector", help="object-detection model that finds the regions of images")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    command.add_argument("--port", type=port, default=7860, help="port to listen on (default: %(default)s)")
    command.add_argument("--share", action="store_true", help="create a public Gradio link")
    command.add_argument(
        "--any_model",
        action="store_true",
        help="let visitors enter any checkpoint (default: only on 127.0.0.1 and without --share)",
    )
    command.add_argument("--max_file_size", default="20mb", help="maximum size of an upload (default: %(default)s)")
    command.add_argument(
        "--max_queue", type=positive, default=64, help="maximum number of waiting requests (default: %(default)s)"
    )
    command.add_argument(
        "--concurrency", type=positive, default=2, help="requests at the same time (default: %(default)s)"
    )
    command.add_argument(
        "--cache_age", type=positive, default=3600, help="seconds to keep files (default: %(default)s)"
    )
    command.add_argument("--time_limit", type=positive, default=60, help="seconds per request (default: %(default)s)")


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Starts the web app."""
    try:
        from ..app import launch
    except ImportError as error:
        raise UsageError(f"The web app needs Gradio: `pip install hf-vg[demo]`. ({error})") from error
    launch(
        args.model,
        args.images,
        detector=args.detector,
        host=args.host,
        port=args.port,
        share=args.share,
        any_model=True if args.any_model else None,
        trust_remote_code=args.trust_remote_code,
        max_file_size=args.max_file_size,
        max_queue=args.max_queue,
        concurrency=args.concurrency,
        time_limit=args.time_limit,
        cache_age=args.cache_age,
        quiet=args.quiet,
    )


def port(text: str) -> int:
    """Parses a port number."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, got {text!r}")
    return int(text)
