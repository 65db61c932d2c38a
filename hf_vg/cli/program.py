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
"""The program `hf-vg`: parses arguments, runs a command and returns its exit code."""

import argparse
import itertools
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import transformers
from huggingface_hub.utils import disable_progress_bars

from .. import __version__
from ..data.spelling import did_you_mean
from ..examples import scenes
from . import captioning, evaluate, explain, ground, search, shipped, web
from .inputs import ImageInputs
from .output import UsageError, first_line


DESCRIPTION = """\
Visually grounded language on the command line.

Results go to standard output, progress and errors to standard error.
Exit codes: 0 success, 1 some inputs failed (each is named), 2 the command failed, 130 interrupted."""

EXAMPLES = """\
examples:
  hf-vg caption --examples
  hf-vg caption photos/ --model outputs/show_attend_tell_scenes
  hf-vg explain dog.jpg --model outputs/show_attend_tell_scenes --output dog.html
  hf-vg search photos/ --model outputs/vse_scenes --query "a dog runs through the grass"
  hf-vg ground dog.jpg --model outputs/vgp_rollout_scenes --text "a dog with a red ball" --phrase "a red ball"
  hf-vg caption photos/ --model outputs/show_attend_tell_scenes --json > captions.jsonl
  hf-vg evaluate captions.jsonl --references Flickr8k.token.txt
  hf-vg app

Run `hf-vg COMMAND --help` for the arguments of a command."""

# Each module has a summary, examples, `add_arguments` and `run`. "+": images are required; "*": images are optional.
COMMANDS = {
    "caption": (captioning, "+"),
    "explain": (explain, "*"),
    "search": (search, "+"),
    "ground": (ground, "+"),
    "evaluate": (evaluate, None),
    "app": (web, None),
    "examples": (shipped, None),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the error without the usage."""
        print(f"{self.prog}: error: {first_line(message)} (`{self.prog} --help` shows all arguments)", file=sys.stderr)
        sys.exit(2)


class _CommandParser(_Parser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Names an unknown option before its value can be mistaken for something else."""
        known = re.findall(r"--(\w+)", self.format_usage())
        for text in itertools.takewhile(lambda text: text != "--", args):
            name = text.removeprefix("--").split("=")[0]
            if text.startswith("--") and not any(option.startswith(name) for option in ("help", *known)):
                self.error(f"unknown argument --{name}{did_you_mean(name, known, '--')}")
        return super().parse_known_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    """Builds the argument parser of all commands."""
    main_parser = _Parser(
        "hf-vg", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    main_parser.add_argument("--version", action="version", version=f"hf-vg {__version__}")
    commands = main_parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, (module, images) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.SUMMARY + ".",
            epilog="examples:\n" + module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=module.run)
        if images is not None:
            given = command.add_mutually_exclusive_group(required=images == "+")
            given.add_argument(
                "images", nargs="*", default=[], metavar="IMAGE", help="image file, folder, pattern or URL"
            )
            given.add_argument("--examples", action="store_true", help="use the example scenes that come with hf_vg")
            command.add_argument(
                "--model",
                help="a checkpoint folder, a model on the Hub, or an example from `hf-vg examples` (default: the "
                "example that fits)",
            )
        module.add_arguments(command)
        if name not in ("evaluate", "examples"):
            command.add_argument(
                "--trust_remote_code", action="store_true", help="run code that comes with a checkpoint"
            )
        if name != "app":
            command.add_argument("--json", action="store_true", help="write JSON lines")
        command.add_argument("--quiet", action="store_true", help="show only results and errors, no progress")
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return main_parser


def hush(quiet: bool) -> None:
    """Hides warnings of other libraries, and with `--quiet` or outside of a terminal also their progress bars."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if quiet or not sys.stderr.isatty():
        transformers.logging.disable_progress_bar()
        disable_progress_bars()


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs a command.

    Args:
        argv (`Sequence[str]`, *optional*):
            The arguments. Defaults to the command line.

    Returns:
        `int`: The exit code: 0 success, 1 some inputs failed, 2 the command failed, 130 interrupted.

    Example:

    ```python
    >>> from hf_vg.cli import main

    >>> main(["search", "--examples", "--query", "a red circle", "--quiet"])  # doctest: +SKIP
    ```
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that is not UTF-8 is no error
    args = parser().parse_args(argv)
    if getattr(args, "examples", False):
        args.images = [row["image"] for row in scenes()]
    inputs = ImageInputs(args.quiet)
    try:
        if not args.debug:
            hush(args.quiet)
        args.run(args, inputs)
    except BrokenPipeError:
        # The reader of our output has exited. Python would raise the error again when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if args.debug:
            raise
        # Imported here because it imports datasets, which takes a second.
        from ..errors import USER_ERRORS, error_message

        # Messages of user errors are complete. Other errors get the name of their class.
        known = isinstance(error, (UsageError, *USER_ERRORS))
        kind = "" if known else f"{type(error).__name__}: "
        print(f"hf-vg: error: {kind}{first_line(error_message(error))}", file=sys.stderr)
        if not known:
            print("hf-vg: use --debug to see the traceback.", file=sys.stderr)
        return 2
    if inputs.failures:
        print(f"hf-vg: {inputs.failures} inputs failed.", file=sys.stderr)
    return 1 if inputs.failures else 0
