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
"""GroundedVisualBert model configuration"""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, VisualBertConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..vgg.configuration_vgg import VggConfig


@strict
class GroundedVisualBertConfig(VisualBertConfig):
    r"""
    Configuration of VisualBERT with a region encoder in front, and with supervision of its attention (Samaran et al.,
    2021). Fields that are not listed here are those of [`VisualBertConfig`].

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            The convolutional network on whose last feature map regions are pooled. `None` makes a model that takes
            `visual_embeds` only, as VisualBERT does.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether the network stays as it was pretrained.
        visual_embedding_dim (`int`, *optional*, defaults to 768):
            Width of `visual_embeds`, which the region encoder makes from pixels and boxes.
        region_feature_size (`int`, *optional*, defaults to 2048):
            The number of channels of the feature map.
        region_samples (`int`, *optional*, defaults to 14):
            A region's feature is the mean over this many points a side, which is that of a 7 x 7 RoI align with 2 x 2
            points a bin.
        geometry_frequencies (`int`, *optional*, defaults to 256):
            Frequencies of the sinusoids of a box's centre, width and height: 4 x 2 x 256 = 2,048 numbers.
        attention_supervision (`str`, *optional*, defaults to `"none"`):
            What a VGP model learns grounding by: `"none"`; a classifier of phrases and boxes (`"indirect"`); the
            attention of every layer and head (`"direct"`); or attention rollout, which the paper calls semi-direct
            (`"rollout"`).
        attention_loss_weight (`float`, *optional*, defaults to 1.0):
            Weight of that supervision in the loss. It is a mean over all layers and heads, each of which it moves
            little: where training is short, it needs more weight than the paper's 1.
        supervised_layers (`list[int]`, *optional*):
            The layers whose attention, or rollout, is supervised. All are by default.
        supervised_heads (`list[int]`, *optional*):
            The heads whose attention is supervised, or whose mean is rolled out. All are by default.
        image_to_text_loss (`str`, *optional*, defaults to `"ce"`):
            How a box's attention to words is supervised: by the cross entropy of the paper, or by `"bce_log"`, the
            binary cross entropy of log probabilities that the authors' code computes.
        masked_lm_weight (`float`, *optional*, defaults to 0.0):
            Weight of masked language modelling in VGP training, which keeps up what VisualBERT was pretrained for.
        mask_token_id (`int`, *optional*, defaults to 103):
            The token at which questions are answered.
    """

    model_type = "grounded_visual_bert"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = None
    freeze_backbone: bool = True
    visual_embedding_dim: int = 768
    pad_token_id: int | None = 0  # BERT's; VisualBertConfig has RoBERTa's
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    region_feature_size: int = 2048
    region_samples: int = 14
    geometry_frequencies: int = 256
    attention_supervision: Literal["none", "indirect", "direct", "rollout"] = "none"
    attention_loss_weight: float | int = 1.0
    supervised_layers: list[int] | None = None
    supervised_heads: list[int] | None = None
    image_to_text_loss: Literal["ce", "bce_log"] = "ce"
    masked_lm_weight: float | int = 0.0
    mask_token_id: int = 103

    def __post_init__(self, **kwargs):
        # A published checkpoint also loads where nobody has registered "vgg" with the Auto classes.
        if isinstance(self.backbone_config, dict) and self.backbone_config.get("model_type", "vgg") == "vgg":
            self.backbone_config = VggConfig.from_dict(self.backbone_config)
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        """Part of `@strict`-powered validation."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` must be a multiple of `num_attention_heads`, got {self.hidden_size} and "
                f"{self.num_attention_heads}."
            )
        if self.bypass_transformer:
            raise ValueError(
                "`bypass_transformer=True` is not supported: its attention has no text-to-region rows to supervise."
            )
        for name in ("region_samples", "geometry_frequencies"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name, count in (
            ("supervised_layers", self.num_hidden_layers),
            ("supervised_heads", self.num_attention_heads),
        ):
            indices = getattr(self, name)
            if indices is not None and (not indices or not all(-count <= index < count for index in indices)):
                raise ValueError(f"`{name}` must be indices from {-count} to {count - 1}, or `None`, got {indices}.")


__all__ = ["GroundedVisualBertConfig"]
