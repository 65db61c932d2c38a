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
from pathlib import Path

import pytest

from hf_vg.hub import model_card
from tests.hub.checkpoints import checkpoints
from tests.hub.environment import Environment


@pytest.fixture(scope="session")
def stranger(tmp_path_factory) -> Environment:
    return Environment(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """A folder with one checkpoint per model, each with the card that recipes write."""
    folder = tmp_path_factory.mktemp("published")
    for name, checkpoint in checkpoints().items():
        (folder / name).mkdir()
        model_card(checkpoint.model, str(folder / name)).save(folder / name / "README.md")
        checkpoint.save(folder / name)
    return folder
