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
"""
Every reach into the private parts of other libraries. Each says why it is there and which versions need it, and has a
test in `tests/test_compat.py` that fails when it stops working or is no longer needed.
"""

from transformers import pipelines


def let_image_to_text_through() -> None:
    """
    Lets `pipeline("image-to-text")` reach the pipeline that is registered under that name.

    transformers 5.17 to 5.22 rewrite the name to "image-text-to-text" before they ask the registry. Every other task
    takes the path it took before.
    """
    resolve = getattr(pipelines, "_resolve_deprecated_task", None)
    if resolve is not None:
        pipelines._resolve_deprecated_task = lambda task: task if task == "image-to-text" else resolve(task)
