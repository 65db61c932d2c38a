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
import textwrap

import pytest
from transformers import AutoConfig, pipelines
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

import hf_vg
from hf_vg.auto import FAMILIES, PIPELINES


def test_imports_are_silent_and_load_no_more_than_they_need(tmp_path):
    code = """
        import hf_vg, sys
        assert not {"datasets", "matplotlib", "gradio", "spacy"} & set(sys.modules)
        # What recipes and commands use. Some image processors of transformers warn if torchvision is not installed.
        import hf_vg.cli.program, hf_vg.reports, hf_vg.training.grounding
        from hf_vg.data.arguments import CaptionDataArguments
        from hf_vg.training.images import build_image_processor
        from transformers import AutoImageProcessor
        build_image_processor(CaptionDataArguments()).save_pretrained(sys.argv[1])
        AutoImageProcessor.from_pretrained(sys.argv[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0].model_type)
def test_transformers_knows_the_family(family):
    config_class, processor_class, models = family
    assert type(AutoConfig.for_model(config_class.model_type)) is config_class
    for auto_class, model_class in models:
        assert auto_class._model_mapping[config_class] is model_class
        assert model_class.config_class is config_class
        # The entry of a checkpoint for machines without this package.
        file = model_class.__module__.rpartition(".")[2]
        assert model_class.auto_map[auto_class.__name__] == f"{file}.{model_class.__name__}"
        assert model_class.auto_map["AutoConfig"].rpartition(".")[2] == config_class.__name__
        assert set(model_class.auto_map) == {"AutoConfig", *(auto_class.__name__ for auto_class, _ in models)}
    if processor_class is not None:
        assert PROCESSOR_MAPPING[config_class] is processor_class


def test_transformers_knows_the_pipelines():
    for task, pipeline_class, auto_class, _ in PIPELINES:
        assert pipelines.check_task(task)[1]["impl"] is pipeline_class
        assert pipelines.check_task(task)[1]["pt"] == (auto_class,)


def test_public_names_exist():
    for name in hf_vg.__all__:
        assert getattr(hf_vg, name).__name__.rpartition(".")[2] == name
        assert name in dir(hf_vg)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hf_vg.nonsense  # noqa: B018
