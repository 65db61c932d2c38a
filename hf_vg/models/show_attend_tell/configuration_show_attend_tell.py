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
"""ShowAttendTell model configuration"""

from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..configuration import VisionConfigMixin
from ..vgg.configuration_vgg import (
    VggConfig,
    layers_field,
    probability_field,
    scale_field,
    vocabulary_field,
    weight_field,
    width_field,
)


@strict
class ShowAttendTellConfig(VisionConfigMixin, PreTrainedConfig):
    r"""
    Configuration of Show, Attend and Tell (Xu et al., 2015). The defaults are the authors' settings for COCO.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*, defaults to VGG-19):
            The convolutional network whose last feature map is attended to. `None` makes a model without a network,
            which takes `image_features` only.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether the network stays as it was pretrained, as in the paper.
        feature_size (`int`, *optional*, defaults to 512):
            D, the number of channels of the feature map.
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, special tokens included.
        embedding_size (`int`, *optional*, defaults to 512):
            m, the width of word embeddings and of the deep output layer.
        hidden_size (`int`, *optional*, defaults to 1800):
            n, the width of the LSTM.
        attention_size (`int`, *optional*, defaults to `feature_size`):
            Width of the attention network's hidden layer.
        num_attention_layers (`int`, *optional*, defaults to 2):
            Layers that map a location's feature to the attention network. The first is linear, the others tanh.
        num_init_layers (`int`, *optional*, defaults to 2):
            Layers that map the mean feature to the first LSTM state. All but the last are ReLU layers.
        attention_type (`str`, *optional*, defaults to `"soft"`):
            `"soft"`, the expected context of section 4.2, or `"hard"`, a sampled location of section 4.1.
        hard_decoding (`str`, *optional*, defaults to `"expected"`):
            What a hard model sees when it is not trained: the `"expected"` context, as in the authors' code, that of
            the most probable location (`"argmax"`), or that of a sampled one (`"sample"`).
        semi_sampling_probability (`float`, *optional*, defaults to 0.5):
            How often a training batch of a hard model samples locations; the other batches see the expected context.
        reinforce_weight (`float`, *optional*, defaults to 0.1):
            lambda_r of the hard gradient. Its reward is the mean negative log likelihood of a caption's words, and the
            term is summed over the batch, both as in the authors' code.
        entropy_weight (`float`, *optional*, defaults to 0.002):
            lambda_e of the hard gradient, summed over the batch as in the authors' code.
        baseline_decay (`float`, *optional*, defaults to 0.9):
            Decay of the moving average of rewards that the hard gradient subtracts.
        attention_temperature (`float`, *optional*, defaults to 1.0):
            Multiplies the attention's scores before the softmax, so a larger one makes it sharper.
        attention_sees_word (`bool`, *optional*, defaults to `False`):
            Whether attention depends on the previous word too: u . tanh(key_i + W h_{t-1} + V E y_{t-1}). In the paper
            it depends on h_{t-1} alone, which was computed before that word was chosen.
        context_gate (`str`, *optional*, defaults to `"scalar"`):
            The gate beta_t on the context (section 4.2.1): `"scalar"`, one number a step as in the paper, `"vector"`,
            one a channel, or `"none"`.
        deep_output_activation (`str`, *optional*, defaults to `"tanh"`):
            `"tanh"` as in the authors' code or `"linear"` as equation 7 is printed.
        output_from_embedding (`bool`, *optional*, defaults to `True`):
            Whether the previous word feeds the deep output layer (E y of equation 7).
        output_from_context (`bool`, *optional*, defaults to `True`):
            Whether the context feeds the deep output layer (L_z z of equation 7).
        attention_penalty (`float`, *optional*, defaults to 1.0):
            lambda of the doubly stochastic term (equation 14), summed over locations. For soft attention only: in the
            authors' code the hard gradient takes its place.
        dropout (`float`, *optional*, defaults to 0.5):
            Dropout on the hidden initialisation layers, on h_t before the output and on the deep output layer.
        embedding_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on word embeddings; none in the paper.
        feature_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on the channels of features, each dropped at all locations of an image; none in the paper. It
            keeps photos from being learnt by heart where they are few.
        initializer_range (`float`, *optional*, defaults to 0.01):
            Standard deviation of the weights that are not square. Square ones are orthogonal.
        use_cache (`bool`, *optional*, defaults to `True`):
            Whether the model returns its recurrent state, from which `generate` continues.
        bos_token_id (`int`, *optional*, defaults to 0):
            Given to `generate` like any other special token. Captions begin with `decoder_start_token_id`.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            Holds the place of the first input, which is a vector of zeros and not an embedding.
    """

    model_type = "show_attend_tell"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = field(default_factory=VggConfig)
    freeze_backbone: bool = True
    feature_size: int = width_field(default=512)
    vocab_size: int = vocabulary_field(default=10000)
    embedding_size: int = width_field(default=512)
    hidden_size: int = width_field(default=1800)
    attention_size: int | None = width_field(default=None)
    num_attention_layers: int = layers_field(default=2)
    num_init_layers: int = layers_field(default=2)
    attention_type: Literal["soft", "hard"] = "soft"
    hard_decoding: Literal["expected", "argmax", "sample"] = "expected"
    semi_sampling_probability: float | int = probability_field(default=0.5)
    reinforce_weight: float | int = weight_field(default=0.1)
    entropy_weight: float | int = weight_field(default=0.002)
    baseline_decay: float | int = probability_field(default=0.9)
    attention_temperature: float | int = scale_field(default=1.0)
    attention_sees_word: bool = False
    context_gate: Literal["scalar", "vector", "none"] = "scalar"
    deep_output_activation: Literal["tanh", "linear"] = "tanh"
    output_from_embedding: bool = True
    output_from_context: bool = True
    attention_penalty: float | int = weight_field(default=1.0)
    dropout: float | int = probability_field(default=0.5)
    embedding_dropout: float | int = probability_field(default=0.0)
    feature_dropout: float | int = probability_field(default=0.0)
    initializer_range: float = weight_field(default=0.01)
    use_cache: bool = True
    is_encoder_decoder: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    unk_token_id: int | None = 1
    pad_token_id: int | None = 2
    decoder_start_token_id: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.attention_size is None:
            self.attention_size = self.feature_size
        super().__post_init__(**kwargs)


__all__ = ["ShowAttendTellConfig"]
