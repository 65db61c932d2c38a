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
import subprocess
import sys

import pytest

import hf_vg


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_brings_in_neither_torch_nor_datasets():
    code = "import hf_vg, sys; print([m for m in ('torch', 'transformers', 'datasets', 'PIL') if m in sys.modules])"
    assert run(code).strip() == "[]"


REGISTERED = """
from transformers import AutoBackbone, AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, pipelines
from hf_vg import (ShowAttendTellConfig, ShowAttendTellForConditionalGeneration, ShowAttendTellModel,
                   ShowAttendTellProcessor, VggBackbone, VggConfig, ImageToTextPipeline)
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
assert type(AutoConfig.for_model("show_attend_tell", backbone_config=None)) is ShowAttendTellConfig
assert AutoModel._model_mapping[ShowAttendTellConfig] is ShowAttendTellModel
assert AutoModelForImageTextToText._model_mapping[ShowAttendTellConfig] is ShowAttendTellForConditionalGeneration
assert AutoBackbone._model_mapping[VggConfig] is VggBackbone
assert PROCESSOR_MAPPING[ShowAttendTellConfig] is ShowAttendTellProcessor
assert pipelines.check_task("image-to-text")[1]["impl"] is ImageToTextPipeline
print("registered")
"""


@pytest.mark.parametrize(
    "first",
    [
        "import hf_vg",
        "import hf_vg, hf_vg; hf_vg.auto.register()",
        "import transformers.pipelines; import hf_vg",
        "from transformers import AutoConfig; import hf_vg",
        "import hf_vg; from transformers import AutoProcessor",
        "import hf_vg.models.show_attend_tell.modeling_show_attend_tell",
        "from hf_vg.models.vgg import VggConfig",
        "from hf_vg.pipelines import ImageToTextPipeline",
    ],
)
def test_everything_is_registered_whatever_is_imported_first(first):
    assert run(first + REGISTERED).strip() == "registered"


def test_public_names_exist():
    for name in hf_vg._MODULE_OF:
        assert getattr(hf_vg, name).__name__ == name
        assert name in dir(hf_vg)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hf_vg.nonsense  # noqa: B018
