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
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SkipBatchSampler
from datasets import IterableDataset
from torch import nn
from torch.utils.data import BatchSampler, DataLoader
from transformers import Pipeline, Trainer, TrainingArguments, pipelines
from transformers.models.auto import modeling_auto

from hf_vg._compat import ResumingMixin, resolve_features
from hf_vg.training import SelfCriticalTrainer, VgTrainer
from tests.common import ROOT


# Private names of other libraries that are used outside `_compat.py`. All but the last group are what transformers'
# own models, processors and pipelines override or read.
EXTENSION_POINTS = {
    "models": {
        *("_attn_implementation", "_expand_inputs_for_generation", "_gradient_checkpointing_func", "_init_weights"),
        *("_merge_kwargs", "_prepare_model_inputs", "_reorder_cache", "_supports_default_dynamic_cache"),
        "_supports_sdpa",
        *("_C", "_current_graph_task_id"),  # of torch: by it a kernel knows which backward pass it is in
        "_pytree",  # of torch: caches are registered there, as transformers registers its own
    },
    "pipelines": {"_forward", "_prepare_generate_kwargs", "_sanitize_parameters"},
    "evaluation": {"_compute", "_info"},  # of an `evaluate` module
    "interpretation": {"_DummyThread"},  # of threading
    "training": {
        *("_finish_current_push", "_get_num_items_in_batch", "_get_output_dir", "_get_train_sampler"),
        *("_push_from_checkpoint", "_remove_unused_columns", "_save", "_save_checkpoint"),
    },
}
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def private_names(path) -> set[str]:
    """Names with a leading underscore that a file takes from objects, and does not define itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    defined |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in attributes if isinstance(node.ctx, ast.Load)} - defined
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            used |= {alias.name for alias in node.names}
    return {name for name in used if name.startswith("_") and not name.startswith("__")} - NAMED_TUPLES


def test_only_this_file_reaches_into_other_libraries():
    allowed = set().union(*EXTENSION_POINTS.values())
    # Defined in one file of the package and used in another.
    defined = {
        node.name if isinstance(node, ast.FunctionDef) else node.attr
        for path in (ROOT / "hf_vg").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }
    for path in (ROOT / "hf_vg").rglob("*.py"):
        if path.name != "_compat.py":
            assert private_names(path) - allowed - defined == set(), path


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


class ResumingTrainer(ResumingMixin, Trainer):
    pass


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x, labels=None):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


@pytest.mark.parametrize(("trainer_class", "steps"), [(Trainer, 3), (ResumingTrainer, 2)])
def test_a_finished_training_takes_no_step_more(trainer_class, steps, tmp_path):
    """Of eight batches two were seen. Where the plain Trainer stops at 2 as well, the override is no longer needed."""
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
    arguments = {"max_steps": 2, "save_steps": 2, "per_device_train_batch_size": 1, "use_cpu": True}
    for resume in (None, True):
        args = TrainingArguments(tmp_path, report_to="none", disable_tqdm=True, **arguments)
        trainer = trainer_class(Regression(), args, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == steps


class Ordered(torch.utils.data.Sampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(self.epoch, self.epoch + 4))

    def __len__(self):
        return 4


def test_set_epoch_does_not_reach_a_sampler_that_is_sharded_and_skips():
    batches = BatchSampler(Ordered(), 1, False)
    sharded = BatchSamplerShard(batches, num_processes=2, process_index=0)
    loader = DataLoaderShard(list(range(9)), batch_sampler=SkipBatchSampler(sharded, skip_batches=1))
    assert isinstance(loader, DataLoader)
    loader.set_epoch(3)
    assert batches.sampler.epoch == 0, "no longer needed"
