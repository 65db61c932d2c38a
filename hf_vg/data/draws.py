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
"""What is drawn at random for a batch, which depends on the batch alone."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def image_number(image_id: str) -> int:
    """A number for an image's name, the same in every process. Two of a million share one at a chance of 3e-8."""
    return int.from_bytes(hashlib.blake2b(str(image_id).encode(), digest_size=8).digest(), "big", signed=True)


def batch_generator(contents: Iterable[Any]) -> torch.Generator:
    """
    What a collator draws with. Its numbers depend on what is in the batch and in which order, which is another in
    every epoch, and on nothing else: neither a run that is resumed nor other workers change what is drawn.
    """
    text = "\0".join(str(content) for content in contents)
    return torch.Generator().manual_seed(image_number(text))


def toss(contents: Iterable[Any]) -> list[bool]:
    """A coin for each of what is in a batch. See [`batch_generator`]."""
    contents = [*contents]
    return torch.randint(2, (len(contents),), generator=batch_generator(contents)).bool().tolist()
