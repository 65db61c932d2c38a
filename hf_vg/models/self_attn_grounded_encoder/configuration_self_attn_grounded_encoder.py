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
"""SelfAttnGroundedEncoder model configuration"""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..configuration import VisionConfigMixin
from ..vgg.configuration_vgg import layers_field, probability_field, vocabulary_field, weight_field, width_field


@strict
class SelfAttnGroundedEncoderConfig(VisionConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the self-attentive visually grounded sentence encoder (Yoo, Shin and Lee, 2017). The defaults are
    the authors' "Att. CAP2ALL". For their baselines, set `use_attention=False, hidden_size=2048`.

    Args:
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, including the special tokens.
        embedding_size (`int`, *optional*, defaults to 300):
            Width of the word embeddings. The encoder and the caption decoder share them.
        hidden_size (`int`, *optional*, defaults to 1024):
            d, the width of each direction of the encoder LSTM, and of the caption decoder.
        state_merge (`str`, *optional*, defaults to `"max"`):
            How the two directions are merged into a word's state h_t. `"max"` is their elementwise maximum and gives
            a sentence vector of 2048, the size in the paper's tables. `"concat"` is their concatenation, as the paper
            describes it, and gives 3072.
        use_attention (`bool`, *optional*, defaults to `True`):
            Whether the sentence vector is [h_A ; h_S]. Without self-attention it is h_S, the elementwise maximum of
            the final states of both directions.
        attention_size (`int`, *optional*, defaults to 350):
            d_a, the width of the attention's hidden layer.
        num_attention_rows (`int`, *optional*, defaults to 30):
            n_a, the number of attention distributions over the words.
        attention_penalty (`float`, *optional*, defaults to 0.0):
            Weight of ||A A^T - I||^2, which keeps the attention rows different (Lin et al., 2017). The paper does not
            mention a weight.
        objective (`str`, *optional*, defaults to `"cap2all"`):
            What the model predicts from a caption: another caption of the same image (`"cap2cap"`), the vector of the
            image (`"cap2img"`), or both (`"cap2all"`).
        grounding_loss (`str`, *optional*, defaults to `"log_sum_exp"`):
            `"log_sum_exp"` is equation 1, with one logarithm around the sum over the batch. `"margin"` is the margin
            ranking loss of GroundSent (Kiela et al., 2017).
        negatives (`str`, *optional*, defaults to `"anchored"`):
            Which negatives equation 1 compares with a positive pair: the pairs with the same sentence or the same
            image (`"anchored"`), or all pairs of the batch (`"global"`). The margin loss does not use this field: it
            compares a sentence's image with the other images.
        margin (`float`, *optional*, defaults to 0.2):
            The margin of `grounding_loss="margin"`.
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            Config of the backbone. The mean of its last feature map is the vector of the image. By default there is no
            backbone, and the model takes `image_features`.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether to keep the pretrained weights of the backbone, as in the paper.
        feature_size (`int`, *optional*, defaults to 2048):
            Width of the image vector h_I.
        image_head_layers (`int`, *optional*, defaults to 4):
            Number of linear layers of psi, the network from the sentence vector to the image vector.
        image_head_size (`int`, *optional*, defaults to 2048):
            Width of the hidden layers of psi.
        image_head_dropout (`float`, *optional*, defaults to 0.3):
            Dropout after each hidden layer of psi.
        eos_token_id (`int`, *optional*, defaults to 0):
            The token that ends a sentence.
        unk_token_id (`int`, *optional*, defaults to 1):
            The token for words that are not in the vocabulary.
        pad_token_id (`int`, *optional*, defaults to 2):
            The padding token.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            The first input of the caption decoder.

    Example:

    ```python
    >>> from hf_vg import SelfAttnGroundedEncoderConfig

    >>> SelfAttnGroundedEncoderConfig().sentence_size
    2048
    ```
    """

    model_type = "self_attn_grounded_encoder"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    vocab_size: int = vocabulary_field(default=10000)
    embedding_size: int = width_field(default=300)
    hidden_size: int = width_field(default=1024)
    state_merge: Literal["max", "concat"] = "max"
    use_attention: bool = True
    attention_size: int = width_field(default=350)
    num_attention_rows: int = width_field(default=30)
    attention_penalty: float | int = weight_field(default=0.0)
    objective: Literal["cap2cap", "cap2img", "cap2all"] = "cap2all"
    grounding_loss: Literal["log_sum_exp", "margin"] = "log_sum_exp"
    negatives: Literal["anchored", "global"] = "anchored"
    margin: float | int = weight_field(default=0.2)
    backbone_config: dict | PreTrainedConfig | None = None
    freeze_backbone: bool = True
    feature_size: int = width_field(default=2048)
    image_head_layers: int = layers_field(default=4)
    image_head_size: int = width_field(default=2048)
    image_head_dropout: float | int = probability_field(default=0.3)
    eos_token_id: int | None = 0
    unk_token_id: int | None = 1
    pad_token_id: int | None = 2
    decoder_start_token_id: int = 0

    @property
    def sentence_size(self) -> int:
        """Width of the sentence vector h."""
        if not self.use_attention:
            return self.hidden_size
        return self.hidden_size * (3 if self.state_merge == "concat" else 2)

    @property
    def projection_dim(self) -> int:
        """The same number, under the name that sentence-transformers reads."""
        return self.sentence_size


__all__ = ["SelfAttnGroundedEncoderConfig"]
