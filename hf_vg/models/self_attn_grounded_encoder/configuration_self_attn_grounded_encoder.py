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
    the authors' "Att. CAP2ALL"; their baselines are `use_attention=False, hidden_size=2048`.

    Args:
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, special tokens included.
        embedding_size (`int`, *optional*, defaults to 300):
            Width of word embeddings, which the encoder and the caption decoder share.
        hidden_size (`int`, *optional*, defaults to 1024):
            d, the cell size of each direction of the encoder, and of the caption decoder.
        state_merge (`str`, *optional*, defaults to `"max"`):
            How the two directions make a word's state h_t: their elementwise maximum (`"max"`), with which the
            paper's numbers agree (a vector of 2048), or their concatenation (`"concat"`), which its wording says (a
            vector of 3072).
        use_attention (`bool`, *optional*, defaults to `True`):
            Whether the sentence vector is [h_A ; h_S]. Without self-attention it is h_S, the maximum of both
            directions' final states.
        attention_size (`int`, *optional*, defaults to 350):
            d_a, the width of the attention's hidden layer.
        num_attention_rows (`int`, *optional*, defaults to 30):
            n_a, how many distributions over the words the attention has.
        attention_penalty (`float`, *optional*, defaults to 0.0):
            Weight of ||A A^T - I||^2, which keeps attention rows apart (Lin et al., 2017). The paper names none.
        objective (`str`, *optional*, defaults to `"cap2all"`):
            What is predicted from a caption: another caption of its image (`"cap2cap"`), the image's vector
            (`"cap2img"`) or both (`"cap2all"`).
        grounding_loss (`str`, *optional*, defaults to `"log_sum_exp"`):
            Equation 1, one logarithm around the sum over the batch, or the margin ranking (`"margin"`) of GroundSent
            (Kiela et al., 2017).
        negatives (`str`, *optional*, defaults to `"anchored"`):
            Which negatives equation 1 sets against a positive: those with the same sentence or the same image
            (`"anchored"`), or all of the batch (`"global"`). Margin ranking sets a sentence's image against the other
            images.
        margin (`float`, *optional*, defaults to 0.2):
            The margin of `grounding_loss="margin"`.
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            The convolutional network whose pooled last feature map is the image's vector. By default there is none,
            and the model takes `image_features`.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether the network stays as it was pretrained, as in the paper.
        feature_size (`int`, *optional*, defaults to 2048):
            Width of the image's vector h_I.
        image_head_layers (`int`, *optional*, defaults to 4):
            Linear layers of psi, from the sentence vector to the image's.
        image_head_size (`int`, *optional*, defaults to 2048):
            Width of psi's hidden layers.
        image_head_dropout (`float`, *optional*, defaults to 0.3):
            Dropout after each hidden layer of psi.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            The first input of the caption decoder.
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
        """The same, under the name that sentence-transformers reads."""
        return self.sentence_size


__all__ = ["SelfAttnGroundedEncoderConfig"]
