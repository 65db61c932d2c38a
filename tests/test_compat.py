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
import ast
import inspect
import logging

import pytest
from datasets import IterableDataset
from transformers import Pipeline, Trainer, pipelines
from transformers.models.auto import modeling_auto

from hf_vg._compat import resolve_features
from hf_vg.training import SelfCriticalTrainer, VgTrainer
from tests.common import ROOT


# Private names of other libraries that are used outside `_compat.py`. Except for the last group, transformers' own
# models, processors and pipelines override or read them too.
EXTENSION_POINTS = {
    "models": {
        *("_attn_implementation", "_expand_inputs_for_generation", "_gradient_checkpointing_func", "_init_weights"),
        *("_merge_kwargs", "_prepare_model_inputs", "_reorder_cache", "_supports_default_dynamic_cache"),
        "_supports_sdpa",
        "_from_model_config",  # generation configs: custom fields are kept on loading
        "_pytree",  # torch: caches are registered there, as in transformers
    },
    "pipelines": {"_forward", "_prepare_generate_kwargs", "_sanitize_parameters"},
    "evaluation": {"_compute", "_info"},  # `evaluate` modules
    "interpretation": {"_DummyThread"},  # threading
    "training": {
        *("_finish_current_push", "_get_num_items_in_batch", "_get_output_dir", "_get_train_sampler"),
        *("_push_from_checkpoint", "_remove_unused_columns", "_save", "_save_checkpoint"),
    },
}
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def private_names(path) -> tuple[set[str], set[str]]:
    """Returns the names with a leading underscore that a file uses, and those that it defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used, defined = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            (defined if of_self and isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used |= {name for alias in node.names for name in (*node.module.split("."), alias.name)}
        elif isinstance(node, ast.Import):
            used |= {name for alias in node.names for name in alias.name.split(".")}
    private = {name for name in used if name.startswith("_") and not name.startswith("__")} - NAMED_TUPLES
    return private, defined


def test_only_this_file_reaches_into_other_libraries():
    paths = [path for path in (ROOT / "hf_vg").rglob("*.py") if path.name != "_compat.py"]
    names = {path: private_names(path) for path in paths}
    ours = set().union(*(defined for _, defined in names.values()))
    theirs = set().union(*EXTENSION_POINTS.values())
    for path, (used, defined) in names.items():
        assert used - defined - ours <= theirs, path
    unused = theirs - set().union(*(used | defined for used, defined in names.values()))
    assert not unused, "the list names what is no longer used"


def test_overridden_methods_of_trainer_and_pipeline_are_still_there():
    for name in EXTENSION_POINTS["training"]:
        assert callable(getattr(Trainer, name)), name
        for trainer in (VgTrainer, SelfCriticalTrainer):
            theirs, ours = (inspect.signature(getattr(cls, name)).parameters for cls in (Trainer, trainer))
            assert list(theirs) == list(ours), f"{trainer.__name__}.{name}"
    for name in EXTENSION_POINTS["pipelines"]:
        assert callable(getattr(Pipeline, name)), name


def test_image_to_text_is_let_through_and_nothing_else():
    assert pipelines._resolve_deprecated_task("image-to-text") == "image-to-text"
    assert pipelines._resolve_deprecated_task("image-text-to-text") == "image-text-to-text"
    with pytest.raises(KeyError, match="removed"):
        pipelines._resolve_deprecated_task("translation_en_to_fr")
    original = inspect.getclosurevars(pipelines._resolve_deprecated_task).nonlocals["resolve"]
    logging.disable()  # its warning is malformed
    try:
        assert original("image-to-text") == "image-text-to-text", "no longer needed"
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("table", "model_type", "pipeline_class"),
    [
        ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", "vse_scnlm", "ZeroShotImageClassificationPipeline"),
        ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "show_attend_tell", "ImageTextToTextPipeline"),
    ],
)
def test_pipelines_look_into_a_table(table, model_type, pipeline_class):
    assert model_type in getattr(modeling_auto, table)
    assert table in inspect.getsource(getattr(pipelines, pipeline_class)), "no longer needed"


def test_features_of_a_stream_are_resolved():
    stream = IterableDataset.from_generator(lambda: iter([{"caption": "a dog"}]))
    assert stream.features is None, "no longer needed"
    resolved = resolve_features(stream)
    assert list(resolved.features) == ["caption"] and resolve_features(resolved) is resolved
