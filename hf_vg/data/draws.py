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
"""Random draws of the collators. They depend only on the contents of the batch."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def image_number(image_id: str) -> int:
    """
    Hashes the name of an image to a 64-bit number. The number is the same in every process. Among a million images,
    the chance that any two share a number is 3e-8.
    """
    return int.from_bytes(hashlib.blake2b(str(image_id).encode(), digest_size=8).digest(), "big", signed=True)


def batch_generator(contents: Iterable[Any]) -> torch.Generator:
    """
    Returns a random generator seeded with the contents of the batch and their order. Batches differ in every epoch, so
    the draws do too. A resumed run, or another number of workers, draws the same.
    """
    text = "\0".join(str(content) for content in contents)
    return torch.Generator().manual_seed(image_number(text))


def toss(contents: Iterable[Any]) -> list[bool]:
    """Draws a random boolean for each item of a batch. See [`batch_generator`]."""
    contents = [*contents]
    return torch.randint(2, (len(contents),), generator=batch_generator(contents)).bool().tolist()
