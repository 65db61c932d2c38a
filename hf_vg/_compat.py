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
What reaches into the private parts of other libraries. Each part says why it is there and which versions need it, and
has a test in `tests/test_compat.py` that fails when it stops working or is no longer needed.

Model files cannot import this one: they are published beside weights. They and the trainers override methods that
transformers means to be overridden; the same tests list those, and check that they are still there.
"""

from typing import TYPE_CHECKING

from transformers import PreTrainedModel, pipelines
from transformers.models.auto import modeling_auto


if TYPE_CHECKING:
    from datasets import IterableDataset


def let_image_to_text_through() -> None:
    """
    Lets `pipeline("image-to-text")` reach the pipeline that is registered under that name.

    transformers 5.19 to 5.22 rewrite the name to "image-text-to-text" before they ask the registry. Every other task
    takes the path it took before.
    """
    resolve = pipelines._resolve_deprecated_task
    pipelines._resolve_deprecated_task = lambda task: task if task == "image-to-text" else resolve(task)


def let_pipelines_know(auto_class: type, model_class: type[PreTrainedModel]) -> None:
    """
    Adds a model to those that transformers' pipelines say they support.

    In transformers 5.20 to 5.22 two pipelines look into these tables, and not at what was registered with the Auto
    class. They log an error about a model that is not there.
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
    Reads the columns of a stream off its first rows, if its files do not name them.

    datasets 4.0 to 5.2 have no public way to do so: `features` stays `None`.
    """
    return dataset if dataset.features is not None else dataset._resolve_features()
