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
"""The examples in the docstrings of all public names run, and print what they say."""

import doctest
import inspect
import re

import pytest

from hf_vg import interpretation


# What is imported from another room has its example there.
NAMES = [
    name
    for name in interpretation.__all__
    if getattr(getattr(interpretation, name), "__module__", "").startswith(interpretation.__name__)
]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # figures and pages are saved here
    blocks = re.findall(r"```python\n(.*?)```", inspect.getdoc(getattr(interpretation, name)), flags=re.DOTALL)
    assert blocks, f"{name} has no example"
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, None, 0)
    printed: list[str] = []
    result = doctest.DocTestRunner().run(example, out=printed.append)
    assert result.attempted and not result.failed, "".join(printed)
