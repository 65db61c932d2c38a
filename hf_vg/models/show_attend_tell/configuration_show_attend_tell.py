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
            Config of the backbone. The model attends to its last feature map. With `None`, the model has no backbone
            and takes `image_features`.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether to keep the pretrained weights of the backbone, as in the paper.
        feature_size (`int`, *optional*, defaults to 512):
            D, the number of channels of the feature map.
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, including the special tokens.
        embedding_size (`int`, *optional*, defaults to 512):
            m, the width of the word embeddings and of the deep output layer.
        hidden_size (`int`, *optional*, defaults to 1800):
            n, the width of the LSTM.
        attention_size (`int`, *optional*, defaults to `feature_size`):
            Width of the hidden layer of the attention network.
        num_attention_layers (`int`, *optional*, defaults to 2):
            Number of layers from the features to the attention network. The first is linear, the others use tanh.
        num_init_layers (`int`, *optional*, defaults to 2):
            Number of layers from the mean feature to the initial LSTM state. All but the last use ReLU.
        attention_type (`str`, *optional*, defaults to `"soft"`):
            `"soft"` uses the expected context of section 4.2. `"hard"` samples a location, as in section 4.1.
        hard_decoding (`str`, *optional*, defaults to `"expected"`):
            The context of a hard model outside training: the `"expected"` context (as in the authors' code), the
            feature of the most probable location (`"argmax"`), or of a sampled location (`"sample"`).
        semi_sampling_probability (`float`, *optional*, defaults to 0.5):
            The probability that a training batch of a hard model samples locations. Other batches use the expected
            context.
        reinforce_weight (`float`, *optional*, defaults to 0.1):
            lambda_r of the hard gradient. As in the authors' code, the reward is the mean negative log likelihood of
            the words of a caption, and the term is summed over the batch.
        entropy_weight (`float`, *optional*, defaults to 0.002):
            lambda_e of the hard gradient, summed over the batch as in the authors' code.
        baseline_decay (`float`, *optional*, defaults to 0.9):
            Decay of the moving average of rewards that the hard gradient subtracts.
        attention_temperature (`float`, *optional*, defaults to 1.0):
            Factor on the attention scores before the softmax. A larger value makes attention sharper.
        attention_sees_word (`bool`, *optional*, defaults to `False`):
            Whether attention also depends on the previous word: u . tanh(key_i + W h_{t-1} + V E y_{t-1}). In the
            paper it only depends on h_{t-1}, which is computed before that word is chosen.
        context_gate (`str`, *optional*, defaults to `"scalar"`):
            The gate beta_t on the context (section 4.2.1): one number per step (`"scalar"`, as in the paper), one
            number per channel (`"vector"`), or no gate (`"none"`).
        deep_output_activation (`str`, *optional*, defaults to `"tanh"`):
            `"tanh"` as in the authors' code, or `"linear"` as in equation 7.
        output_from_embedding (`bool`, *optional*, defaults to `True`):
            Whether the previous word feeds the deep output layer (E y of equation 7).
        output_from_context (`bool`, *optional*, defaults to `True`):
            Whether the context feeds the deep output layer (L_z z of equation 7).
        attention_penalty (`float`, *optional*, defaults to 1.0):
            lambda of the doubly stochastic term (equation 14), summed over locations. For soft attention only: in the
            authors' code, hard attention does not have this term.
        dropout (`float`, *optional*, defaults to 0.5):
            Dropout on the hidden initialization layers, on h_t before the output and on the deep output layer.
        embedding_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on word embeddings. The paper uses none.
        feature_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on feature channels: a channel is dropped at all locations of an image. It reduces overfitting on
            few photos. The paper uses none.
        initializer_range (`float`, *optional*, defaults to 0.01):
            Standard deviation of initial weights. Square matrices are orthogonal instead.
        use_cache (`bool`, *optional*, defaults to `True`):
            Whether the model returns its recurrent state. `generate` needs it for the next word.
        is_encoder_decoder (`bool`, *optional*, defaults to `True`):
            Always `True`: `generate` encodes the image once.
        bos_token_id (`int`, *optional*, defaults to 0):
            Not used. Captions begin with `decoder_start_token_id`.
        eos_token_id (`int`, *optional*, defaults to 0):
            The token that ends a caption.
        unk_token_id (`int`, *optional*, defaults to 1):
            The token for words that are not in the vocabulary. It is never generated.
        pad_token_id (`int`, *optional*, defaults to 2):
            The padding token.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            Placeholder for the first input, which is a vector of zeros and not an embedding.

    Example:

    ```python
    >>> from hf_vg import ShowAttendTellConfig

    >>> config = ShowAttendTellConfig(vocab_size=5000, attention_type="hard")
    >>> config.hidden_size, config.attention_size
    (1800, 512)
    ```
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
