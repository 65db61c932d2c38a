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
"""Datasets for every task, each with one schema."""

from importlib import import_module
from typing import Any


_MODULES = {
    "CaptionCollator": "collators",
    "caption_is_true": "scenes",
    "load_scenes": "scenes",
    "open_image": "images",
    "train_word_tokenizer": "tokenizers",
}
__all__ = sorted(_MODULES)


# `datasets` takes a second to import: only who asks for a name pays for it.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
