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
Code that uses private parts of other libraries. Each function says why it exists and which versions need it. A test in
`tests/test_compat.py` fails when it stops working or is no longer needed.

Model files cannot import this file, because they are published next to the weights. Models and trainers only override
methods that transformers intends to be overridden. The same tests check that these methods still exist.
"""

from typing import TYPE_CHECKING

from transformers import PreTrainedModel, pipelines
from transformers.models.auto import modeling_auto


if TYPE_CHECKING:
    from datasets import IterableDataset


def let_image_to_text_through() -> None:
    """
    Makes `pipeline("image-to-text")` use the pipeline that is registered under that name.

    transformers 5.19 to 5.22 rename the task to "image-text-to-text" before they look it up. Other tasks are not
    affected.
    """
    resolve = pipelines._resolve_deprecated_task
    pipelines._resolve_deprecated_task = lambda task: task if task == "image-to-text" else resolve(task)


def let_pipelines_know(auto_class: type, model_class: type[PreTrainedModel]) -> None:
    """
    Adds a model to the tables of supported models in transformers' pipelines.

    In transformers 5.20 to 5.22, two pipelines check these tables and not the models registered with the Auto class.
    They log an error for a model that is missing there.
    """
    tables = {
        "AutoModelForImageTextToText": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        "AutoModelForZeroShotImageClassification": (
            modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES
        ),
    }
    if auto_class.__name__ in tables:
        tables[auto_class.__name__][model_class.config_class.model_type] = model_class.__name__


def resolve_features(dataset: "IterableDataset") -> "IterableDataset":
    """
    Detects the columns of a stream from its first rows, if its files do not declare them.

    datasets 4.0 to 5.2 have no public function for this: `features` stays `None`.
    """
    return dataset if dataset.features is not None else dataset._resolve_features()
