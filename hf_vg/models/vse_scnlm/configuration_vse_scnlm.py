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
"""VseScnlm model configuration"""

from dataclasses import field
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..configuration import VisionConfigMixin
from ..vgg.configuration_vgg import bounded_field, probability_field, vocabulary_field, weight_field, width_field


# The first tags of every inventory: what follows a caption's end, the end itself, and a tag training did not show.
PAD_TAG, EOS_TAG, UNK_TAG = "<pad>", "<eos>", "<unk>"

window_field = bounded_field(1, 1024)  # of words
count_field = bounded_field(0, 1024)  # of tags
table_field = bounded_field(0, 100_000_000)  # rows that are kept of the training captions


@strict
class VseScnlmConfig(VisionConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the joint space of images and sentences and of the structure-content language model (SC-NLM) that
    decodes from it (Kiros et al., 2014). The defaults are the paper's; where it gives none, those of the authors' code
    for the nearest model.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            The convolutional network whose last feature map is averaged over its locations. By default there is none
            and the model takes `image_features` only, as the paper's 4096 numbers come from a fully connected layer.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether the network stays as it was pretrained, as in the paper.
        feature_size (`int`, *optional*, defaults to 4096):
            D, the number of features q of an image.
        normalize_features (`bool`, *optional*, defaults to `True`):
            Whether q is scaled to unit length before the image map.
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, special tokens included.
        embedding_size (`int`, *optional*, defaults to 300):
            Width of the sentence encoder's word embeddings.
        hidden_size (`int`, *optional*, defaults to 1024):
            K, the dimension of the space.
        sentence_encoder (`str`, *optional*, defaults to `"lstm"`):
            The last state of an `"lstm"` (the paper) or of a `"gru"` (the authors' released code), or the sum of word
            embeddings (`"bow"`), for which `embedding_size` must be `hidden_size`.
        margin (`float`, *optional*, defaults to 0.2):
            Of the hinges of the ranking loss.
        max_violation (`bool`, *optional*, defaults to `False`):
            Whether only the hardest negative of each image and of each sentence counts (VSE++), and not their sum.
        loss_reduction (`str`, *optional*, defaults to `"mean"`):
            Whether the hinges of a pair are averaged over the pairs of the batch (`"mean"`), or summed (`"sum"`), as
            in the paper. The sum is as many times larger as the batch has pairs, and so is its gradient.
        normalize_image (`bool`, *optional*, defaults to `True`):
            Whether the loss sees image vectors of unit length (the paper), or as they are (the released code).
            What the model returns is of unit length either way.
        embedding_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on the sentence encoder's word embeddings; none in the paper.
        feature_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on the features of an image; none in the paper.
        context_size (`int`, *optional*, defaults to 5):
            How many words before it the SC-NLM predicts a word from.
        word_size (`int`, *optional*, defaults to 100):
            K_w, the width of the SC-NLM's folded word embeddings and of its predicted representation r.
        num_factors (`int`, *optional*, defaults to 50):
            F, the factors of the multiplicative tensor: the rows of W_fk, W_fd and W_fv.
        num_forward_tags (`int`, *optional*, defaults to 3):
            k, how many tags after its own a word is predicted from.
        decoder_dropout (`float`, *optional*, defaults to 0.15):
            Dropout on the SC-NLM's attribute vector.
        tags (`list[str]`, *optional*, defaults to `["<pad>", "<eos>", "<unk>"]`):
            The inventory of part-of-speech tags, which always begins with these three. A tag's id is its place.
        num_templates (`int`, *optional*, defaults to 0):
            Tag sequences that captions are generated along. This and the sizes below are set by
            [`~VseScnlmForConditionalGeneration.remember`], and say how much the checkpoint carries.
        template_size (`int`, *optional*, defaults to 0):
            Tags of the longest template.
        num_sentences (`int`, *optional*, defaults to 0):
            Vectors of training sentences to find neighbours among.
        num_bigrams (`int`, *optional*, defaults to 0):
            Bigrams of the language model that ranks captions.
        num_trigrams (`int`, *optional*, defaults to 0):
            Trigrams of the same.
        use_cache (`bool`, *optional*, defaults to `False`):
            There is no cache: a word is predicted from a window of words.
        bos_token_id (`int`, *optional*, defaults to 0):
            Given to `generate` like any other special token.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            The word that fills the context at a caption's start.
    """

    model_type = "vse_scnlm"
    # What Trainer shall not collect: only the vectors of a batch say something about another batch.
    keys_to_ignore_at_inference = [
        "loss_images",
        "loss_sentences",
        "logits_per_image",
        "logits_per_text",
        "hidden_states",
    ]
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="vgg", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = None
    freeze_backbone: bool = True
    feature_size: int = width_field(default=4096)
    normalize_features: bool = True
    vocab_size: int = vocabulary_field(default=10000)
    embedding_size: int = width_field(default=300)
    hidden_size: int = width_field(default=1024)
    sentence_encoder: Literal["lstm", "gru", "bow"] = "lstm"
    margin: float | int = weight_field(default=0.2)
    max_violation: bool = False
    loss_reduction: Literal["mean", "sum"] = "mean"
    normalize_image: bool = True
    embedding_dropout: float | int = probability_field(default=0.0)
    feature_dropout: float | int = probability_field(default=0.0)
    context_size: int = window_field(default=5)
    word_size: int = width_field(default=100)
    num_factors: int = width_field(default=50)
    num_forward_tags: int = count_field(default=3)
    decoder_dropout: float | int = probability_field(default=0.15)
    tags: list[str] = field(default_factory=lambda: [PAD_TAG, EOS_TAG, UNK_TAG])
    num_templates: int = table_field(default=0)
    template_size: int = count_field(default=0)
    num_sentences: int = table_field(default=0)
    num_bigrams: int = table_field(default=0)
    num_trigrams: int = table_field(default=0)
    # Labels are the words themselves, not shifted: else Trainer would not count the first of each caption.
    is_encoder_decoder: bool = True
    use_cache: bool = False
    bos_token_id: int | None = 0
    eos_token_id: int | None = 0
    unk_token_id: int | None = 1
    pad_token_id: int | None = 2
    decoder_start_token_id: int = 0

    def validate_architecture(self) -> None:
        """Part of `@strict`-powered validation."""
        if self.sentence_encoder == "bow" and self.embedding_size != self.hidden_size:
            raise ValueError(
                f'`embedding_size` must be `hidden_size` for `sentence_encoder="bow"`, got {self.embedding_size} and '
                f"{self.hidden_size}."
            )
        if self.tags[:3] != [PAD_TAG, EOS_TAG, UNK_TAG] or len(set(self.tags)) != len(self.tags):
            raise ValueError(
                f"`tags` must begin with {[PAD_TAG, EOS_TAG, UNK_TAG]} and hold no tag twice, got {self.tags}."
            )


__all__ = ["VseScnlmConfig"]
