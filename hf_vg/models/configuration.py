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
"""Shared by the configs of all models with a backbone."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.pipelines import PIPELINE_REGISTRY

from .vgg.configuration_vgg import VggConfig, check_num_labels


class VisionConfigMixin:
    """
    Mixin for a config with a field `backbone_config`. It reads the backbone's config and checks its numbers, because
    `config.json` may be damaged or hostile.
    """

    backbone_config: dict | PreTrainedConfig | None

    def __post_init__(self, **kwargs: Any) -> None:
        check_num_labels(kwargs)
        self.backbone_config = read_backbone_config(self.backbone_config)
        # `config.json` names a pipeline for machines without hf_vg. If "image-to-text" is registered, drop that entry:
        # otherwise transformers would ask for `trust_remote_code`, which is not needed.
        pipelines = kwargs.pop("custom_pipelines", None) or {}
        unknown = {task: info for task, info in pipelines.items() if task not in PIPELINE_REGISTRY.supported_tasks}
        kwargs |= {"custom_pipelines": unknown} if unknown else {}
        super().__post_init__(**kwargs)  # type: ignore[misc]


def read_backbone_config(backbone_config: dict | PreTrainedConfig | None) -> dict | PreTrainedConfig | None:
    r"""
    Reads a backbone's config from a `dict`.

    A VGG config becomes a [`VggConfig`], so a published checkpoint also loads where "vgg" is not registered with the
    Auto classes. The config of any other backbone stays a `dict`, which `AutoConfig` reads later.

    Args:
        backbone_config (`dict` or `PreTrainedConfig`, *optional*):
            The config, as `config.json` holds it.

    Returns:
        `dict` or `PreTrainedConfig`: The config, or `None` if there is none. Numbers out of range raise a
        `ValueError`.
    """
    if not isinstance(backbone_config, dict):
        return backbone_config
    if backbone_config.get("model_type", "vgg") == "vgg":
        return VggConfig.from_dict(backbone_config)
    check_num_labels(backbone_config)
    for name, value in backbone_config.items():
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and not abs(number) <= 1_000_000:
                raise ValueError(f"`backbone_config` has {name}={number}. It must be from -1,000,000 to 1,000,000.")
    return backbone_config


def check_heads(hidden_size: int, num_attention_heads: int) -> None:
    """Raises a `ValueError` unless `hidden_size` is a multiple of `num_attention_heads`."""
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"`hidden_size` must be a multiple of `num_attention_heads`, got {hidden_size} and {num_attention_heads}."
        )


__all__ = ["VisionConfigMixin", "check_heads"]
