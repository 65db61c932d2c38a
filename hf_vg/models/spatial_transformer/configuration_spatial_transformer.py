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
"""SpatialTransformerCaptioner model configuration"""

from dataclasses import field
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..configuration import VisionConfigMixin, check_heads
from ..vgg.configuration_vgg import (
    VGG_DEPTHS,
    VggConfig,
    layers_field,
    probability_field,
    vocabulary_field,
    width_field,
)


@strict
class SpatialTransformerCaptionerConfig(VisionConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the image-to-text Transformer with spatial self-attention (Springenberg et al., 2018). The
    defaults are the authors' settings for COCO.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*, defaults to VGG-11):
            Config of the backbone. Its last feature map is encoded. With `None`, the model has no backbone and takes
            `image_features`.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether to keep the pretrained weights of the backbone.
        feature_size (`int`, *optional*, defaults to 512):
            Number of channels of the feature map. If it differs from `hidden_size`, features are projected.
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, including the special tokens.
        hidden_size (`int`, *optional*, defaults to 512):
            d_feat, the width of every layer and of the word embeddings.
        num_attention_heads (`int`, *optional*, defaults to 8):
            h, the number of attention heads. Each head has the width d_attn = `hidden_size / num_attention_heads`.
        intermediate_size (`int`, *optional*, defaults to 1024):
            Width of the hidden layer of the feed-forward blocks (equation 4).
        encoder_layers (`int`, *optional*, defaults to 2):
            Number of encoder layers, with self-attention among the locations of the image.
        decoder_layers (`int`, *optional*, defaults to 4):
            Number of decoder layers.
        positional_encoding (`str`, *optional*, defaults to `"1d"`):
            `"1d"` encodes the index of a location in row-major order, as in the paper. `"2d"` encodes its row in one
            half of the channels and its column in the other half. Words always use `"1d"`.
        scaling (`str`, *optional*, defaults to `"length"`):
            tau of equation 2: sqrt(d_len + d_attn) (`"length"`, as in the paper) or sqrt(d_attn) (`"standard"`).
        max_target_length (`int`, *optional*, defaults to 16):
            d_len of the decoder's self-attention, and by default the largest number of generated tokens. It is a
            constant: with the length so far, decoding would scale attention differently than training. For attention
            to the image, d_len is the number of locations.
        scale_embedding (`bool`, *optional*, defaults to `False`):
            Whether to multiply word embeddings by sqrt(`hidden_size`) and to initialize them smaller by the same
            factor, as in the original Transformer. An optimizer step then changes the decoder's inputs more.
        dropout (`float`, *optional*, defaults to 0.1):
            Dropout on the sums of inputs and positions, and on attention weights.
        is_encoder_decoder (`bool`, *optional*, defaults to `True`):
            Always `True`: `generate` encodes the image once.
        use_cache (`bool`, *optional*, defaults to `True`):
            Whether the model returns its cache, which makes `generate` faster.
        bos_token_id (`int`, *optional*, defaults to 0):
            Not used. Captions begin with `decoder_start_token_id`.
        eos_token_id (`int`, *optional*, defaults to 0):
            The token that ends a caption.
        unk_token_id (`int`, *optional*, defaults to 1):
            The token for words that are not in the vocabulary. It is never generated.
        pad_token_id (`int`, *optional*, defaults to 2):
            The padding token.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            The first input of the decoder.

    Example:

    ```python
    >>> from hf_vg import SpatialTransformerCaptionerConfig

    >>> config = SpatialTransformerCaptionerConfig(vocab_size=5000, positional_encoding="2d")
    >>> config.hidden_size, config.backbone_config.model_type
    (512, 'vgg')
    ```
    """

    model_type = "spatial_transformer_captioner"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = field(
        default_factory=lambda: VggConfig(depths=VGG_DEPTHS["vgg11"])
    )
    freeze_backbone: bool = True
    feature_size: int = width_field(default=512)
    vocab_size: int = vocabulary_field(default=10000)
    hidden_size: int = width_field(default=512)
    num_attention_heads: int = layers_field(default=8)
    intermediate_size: int = width_field(default=1024)
    encoder_layers: int = layers_field(default=2)
    decoder_layers: int = layers_field(default=4)
    positional_encoding: Literal["1d", "2d"] = "1d"
    scaling: Literal["length", "standard"] = "length"
    max_target_length: int = width_field(default=16)
    scale_embedding: bool = False
    dropout: float | int = probability_field(default=0.1)
    is_encoder_decoder: bool = True
    use_cache: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    unk_token_id: int | None = 1
    pad_token_id: int | None = 2
    decoder_start_token_id: int = 0

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation."""
        check_heads(self.hidden_size, self.num_attention_heads)
        divisor = 4 if self.positional_encoding == "2d" else 2  # one sine and one cosine per dimension
        if self.hidden_size % divisor:
            raise ValueError(
                f"`hidden_size` must be a multiple of {divisor} for "
                f"`positional_encoding={self.positional_encoding!r}`, got {self.hidden_size}."
            )


__all__ = ["SpatialTransformerCaptionerConfig"]
