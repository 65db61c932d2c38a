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
"""Prints errors that a user can cause as one sentence, without a traceback. For commands, recipes and converters."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from datasets.exceptions import DatasetsError
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from .data.loading_report import printable
from .loading import config_problem


# Errors that a user can cause. Any other error is a bug of this package and shows its traceback.
USER_ERRORS = (
    *(ValueError, OSError, ImportError, MemoryError),
    *(SafetensorError, StrictDataclassError, DatasetsError),
)


@contextmanager
def told_in_one_sentence(debug: bool) -> Iterator[None]:
    r"""
    A context manager that prints an error of the user as one sentence, and exits with code 1.

    Args:
        debug (`bool`):
            Whether to show the traceback instead.

    Yields:
        `None`: Run the program inside the `with` block.
    """
    try:
        yield
    except USER_ERRORS as error:
        if debug:
            raise
        sys.exit(f"error: {error_message(error)}")


def error_message(error: BaseException) -> str:
    """Returns the message of an error, without the traceback that a worker process adds to it."""
    message = str(error).strip()
    if "Original Traceback (most recent call last):" in message:
        message = message.splitlines()[-1].partition(": ")[2]
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if isinstance(error, StrictDataclassError):
        message = config_problem(error)
    # The message may quote a file of somebody else: control characters must not reach the terminal.
    return "\n".join(map(printable, message.splitlines())) or type(error).__name__
