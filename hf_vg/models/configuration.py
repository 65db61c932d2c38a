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
"""What the configs of all models with a backbone share."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.pipelines import PIPELINE_REGISTRY

from .vgg.configuration_vgg import VggConfig, check_num_labels


class VisionConfigMixin:
    """
    For a config with a field `backbone_config`. A config is read from a file that may be damaged or hostile, so its
    numbers are checked before they are used.
    """

    backbone_config: dict | PreTrainedConfig | None

    def __post_init__(self, **kwargs: Any) -> None:
        check_num_labels(kwargs)
        self.backbone_config = read_backbone_config(self.backbone_config)
        # Where "image-to-text" is registered, the pipeline that `config.json` names for other machines is left out:
        # transformers would ask for trust in it even though it is not needed.
        pipelines = kwargs.pop("custom_pipelines", None) or {}
        unknown = {task: info for task, info in pipelines.items() if task not in PIPELINE_REGISTRY.supported_tasks}
        kwargs |= {"custom_pipelines": unknown} if unknown else {}
        super().__post_init__(**kwargs)  # type: ignore[misc]


def read_backbone_config(backbone_config: dict | PreTrainedConfig | None) -> dict | PreTrainedConfig | None:
    """
    Reads the config of a VGG from a `dict`, so that a published checkpoint loads where "vgg" is not registered with
    the Auto classes. The config of another backbone stays a `dict` for `AutoConfig`, and its numbers are checked.
    """
    if not isinstance(backbone_config, dict):
        return backbone_config
    if backbone_config.get("model_type", "vgg") == "vgg":
        return VggConfig.from_dict(backbone_config)
    check_num_labels(backbone_config)
    for name, value in backbone_config.items():
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and not abs(number) <= 1_000_000:
                raise ValueError(f"`backbone_config` has {name}={number}: must be from -1,000,000 to 1,000,000.")
    return backbone_config


def check_heads(hidden_size: int, num_attention_heads: int) -> None:
    """Every attention head has an equal share of the width."""
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"`hidden_size` must be a multiple of `num_attention_heads`, got {hidden_size} and {num_attention_heads}."
        )


__all__ = ["VisionConfigMixin", "check_heads"]
