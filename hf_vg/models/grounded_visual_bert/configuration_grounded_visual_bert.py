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

from ..configuration import VisionConfigMixin, check_heads
from ..vgg.configuration_vgg import layers_field, probability_field, vocabulary_field, weight_field, width_field


@strict
class GroundedVisualBertConfig(VisionConfigMixin, VisualBertConfig):
    r"""
    Configuration of VisualBERT with a region encoder and supervised attention (Samaran et al., 2021). It also has the
    fields of [`VisualBertConfig`] that are not listed here.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            Config of the backbone. Regions are pooled from its last feature map. With `None`, the model has no
            backbone and takes `visual_embeds`, as VisualBERT does.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether to keep the pretrained weights of the backbone.
        pad_token_id (`int`, *optional*, defaults to 0):
            The padding token. The default is BERT's: [`VisualBertConfig`] has RoBERTa's.
        visual_embedding_dim (`int`, *optional*, defaults to 768):
            Width of `visual_embeds`, which the region encoder computes from pixels and boxes.
        region_feature_size (`int`, *optional*, defaults to 2048):
            Number of channels of the feature map.
        region_samples (`int`, *optional*, defaults to 14):
            The feature of a region is the mean over this many sampling points per side. 14 equals a 7 x 7 RoI align
            with 2 x 2 points per bin.
        geometry_frequencies (`int`, *optional*, defaults to 256):
            Number of frequencies that encode the center, width and height of a box: 4 x 2 x 256 = 2,048 numbers.
        attention_supervision (`str`, *optional*, defaults to `"none"`):
            How a VGP model learns grounding: not at all (`"none"`), with a classifier of phrases and boxes
            (`"indirect"`), with the attention of every layer and head (`"direct"`), or with attention rollout
            (`"rollout"`, called semi-direct in the paper). The last two need attention probabilities, so batches with
            targets run eagerly, whatever `attn_implementation` is set.
        attention_loss_weight (`float`, *optional*, defaults to 1.0):
            Weight of that supervision in the loss. The loss is a mean over all layers and heads, so it changes each
            of them little: short trainings need a larger weight than the paper's 1.
        supervised_layers (`list[int]`, *optional*):
            The layers whose attention or rollout is supervised. Defaults to all layers.
        supervised_heads (`list[int]`, *optional*):
            The heads whose attention is supervised, or whose mean is used for rollout. Defaults to all heads.
        image_to_text_loss (`str`, *optional*, defaults to `"ce"`):
            The loss for the attention from boxes to words. `"ce"` is the cross entropy of the paper. `"bce_log"` is
            the binary cross entropy of log probabilities, as in the authors' code.
        masked_lm_weight (`float`, *optional*, defaults to 0.0):
            Weight of masked language modelling in VGP training. This is VisualBERT's pretraining task.
        mask_token_id (`int`, *optional*, defaults to 103):
            The mask token. Questions are answered at its position.

    Example:

    ```python
    >>> from hf_vg import GroundedVisualBertConfig

    >>> config = GroundedVisualBertConfig(attention_supervision="rollout", supervised_layers=[-1])
    >>> config.hidden_size, config.backbone_config
    (768, None)
    ```
    """

    model_type = "grounded_visual_bert"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = None
    freeze_backbone: bool = True
    # Fields of VisualBERT, with ranges.
    vocab_size: int = vocabulary_field(default=30522)
    hidden_size: int = width_field(default=768)
    num_hidden_layers: int = layers_field(default=12)
    num_attention_heads: int = layers_field(default=12)
    intermediate_size: int = width_field(default=3072)
    hidden_dropout_prob: float | int = probability_field(default=0.1)
    attention_probs_dropout_prob: float | int = probability_field(default=0.1)
    max_position_embeddings: int = width_field(default=512)
    type_vocab_size: int = layers_field(default=2)
    initializer_range: float = weight_field(default=0.02)
    layer_norm_eps: float = probability_field(default=1e-12)
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    visual_embedding_dim: int = width_field(default=768)
    # Fields of this model.
    region_feature_size: int = width_field(default=2048)
    region_samples: int = layers_field(default=14)
    geometry_frequencies: int = layers_field(default=256)
    attention_supervision: Literal["none", "indirect", "direct", "rollout"] = "none"
    attention_loss_weight: float | int = weight_field(default=1.0)
    supervised_layers: list[int] | None = None
    supervised_heads: list[int] | None = None
    image_to_text_loss: Literal["ce", "bce_log"] = "ce"
    masked_lm_weight: float | int = weight_field(default=0.0)
    mask_token_id: int = 103

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation."""
        check_heads(self.hidden_size, self.num_attention_heads)
        if self.bypass_transformer:
            raise ValueError("`bypass_transformer=True` is not supported: it has no attention from text to regions.")
        for name in ("pad_token_id", "mask_token_id"):
            token = getattr(self, name)
            if token is not None and token < 0:
                raise ValueError(f"`{name}` must be at least 0, got {token}.")
        for name, count in (
            ("supervised_layers", self.num_hidden_layers),
            ("supervised_heads", self.num_attention_heads),
        ):
            indices = getattr(self, name)
            if indices is not None and (not indices or not all(-count <= index < count for index in indices)):
                raise ValueError(
                    f"`{name}` must be a list of indices from {-count} to {count - 1}, or `None`, got {indices}."
                )


__all__ = ["GroundedVisualBertConfig"]
