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
"""Proposes a name for one that is misspelt."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known_names: Iterable[str], prefix: str = "") -> str:
    r"""
    Ends a sentence about an unknown name with ", did you mean X?" if a known name is similar.

    Args:
        name (`str`):
            The unknown name.
        known_names (`Iterable[str]`):
            The known names. Similar are a near spelling, the same initials (`lr`), or a common part (`epochs`).
        prefix (`str`, *optional*, defaults to `""`):
            Text in front of the proposed name.

    Returns:
        `str`: The end of the sentence, which is a full stop if no name is similar.
    """
    known_names = sorted(known_names)
    near = difflib.get_close_matches(name, known_names, n=1)
    near += [known for known in known_names if "".join(part[:1] for part in known.split("_")) == name]
    near += [known for known in known_names if name in known.split("_") or known.endswith(f"_{name}")]
    return f", did you mean {prefix}{near[0]}?" if near else "."
