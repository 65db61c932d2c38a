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
"""Isolates tests from the user's caches, settings and working folder. Tests leave no files behind."""

import os
import random
import shutil
import tempfile

import pytest


# Libraries read these variables on import, before any fixture runs.
_HOME = tempfile.mkdtemp(prefix="hf_vg_tests_")
# Launchers and browsers leave temporary files behind. pytest removes its own.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ["TMPDIR"] = _HOME
for name in [*os.environ]:
    if name.startswith(("HF_", "HUGGING", "ACCELERATE_", "TRANSFORMERS_", "GRADIO_", "TRACKIO_", "TENSORBOARD_")):
        del os.environ[name]
os.environ |= {
    "HF_HOME": os.path.join(_HOME, "huggingface"),
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MPLCONFIGDIR": os.path.join(_HOME, "matplotlib"),
    "GRADIO_TEMP_DIR": os.path.join(_HOME, "gradio"),
    "GRADIO_ANALYTICS_ENABLED": "False",
    "TOKENIZERS_PARALLELISM": "false",
}


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests of each, in random order")


def pytest_unconfigure():
    shutil.rmtree(_HOME, ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    files: dict[str, list] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups = [*files.values()]
    generator = random.Random(seed)
    generator.shuffle(groups)
    for group in groups:
        generator.shuffle(group)
    items[:] = [item for group in groups for item in group]


@pytest.fixture(scope="session", autouse=True)
def empty_working_folder(tmp_path_factory):
    """Runs all tests in an empty folder, which must stay empty."""
    before, folder = os.getcwd(), tmp_path_factory.mktemp("working_folder")
    os.chdir(folder)
    yield
    os.chdir(before)
    assert not [*folder.iterdir()], "a test wrote into the working folder"
