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
"""Prints mlinter's rules, without those that only make sense inside transformers."""

import re
import sys
from pathlib import Path

import mlinter


SWITCHED_OFF = {
    "TRF041": "asks which published transformers checkpoints take a branch",
    "TRF057": "asks for @auto_docstring, which prints an error on import for models outside of transformers",
}


def main():
    rules = Path(mlinter.__file__).with_name("rules.toml").read_text(encoding="utf-8")
    for rule in SWITCHED_OFF:
        rules, count = re.subn(
            rf"(\[rules\.{rule}\]\n(?:[^\[].*\n)*?default_enabled = )true", r"\1false", rules, count=1
        )
        if not count:
            sys.exit(f"mlinter {mlinter.__version__} has no rule {rule} that is on: remove it from this file.")
    print(rules)


if __name__ == "__main__":
    main()
