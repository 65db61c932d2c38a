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


# The first tags of every inventory: padding, the end of a caption, and tags that do not occur in training.
PAD_TAG, EOS_TAG, UNK_TAG = "<pad>", "<eos>", "<unk>"

window_field = bounded_field(1, 1024)  # numbers of words
count_field = bounded_field(0, 1024)  # numbers of tags
table_field = bounded_field(0, 100_000_000)  # table rows that come from the training captions


@strict
class VseScnlmConfig(VisionConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the joint space of images and sentences, and of the structure-content language model (SC-NLM)
    that decodes from it (Kiros et al., 2014). The defaults are those of the paper. If the paper does not give a value,
    the default is that of the authors' code for the most similar model.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*):
            Config of the backbone. Its last feature map is averaged over locations. By default there is no backbone,
            and the model takes `image_features`: the paper's 4096 features come from a fully connected layer.
        freeze_backbone (`bool`, *optional*, defaults to `True`):
            Whether to keep the pretrained weights of the backbone, as in the paper.
        feature_size (`int`, *optional*, defaults to 4096):
            D, the number of features q of an image.
        normalize_features (`bool`, *optional*, defaults to `True`):
            Whether q is scaled to unit length before the image projection.
        vocab_size (`int`, *optional*, defaults to 10000):
            Number of words, including the special tokens.
        embedding_size (`int`, *optional*, defaults to 300):
            Width of the word embeddings of the sentence encoder.
        hidden_size (`int`, *optional*, defaults to 1024):
            K, the dimension of the space.
        sentence_encoder (`str`, *optional*, defaults to `"lstm"`):
            `"lstm"` takes the last state of an LSTM, as in the paper. `"gru"` takes the last state of a GRU, as in the
            authors' released code. `"bow"` takes the sum of word embeddings, and needs
            `embedding_size == hidden_size`.
        margin (`float`, *optional*, defaults to 0.2):
            The margin of the ranking loss.
        max_violation (`bool`, *optional*, defaults to `False`):
            Whether only the hardest negative of each image and each sentence counts (VSE++), instead of all.
        loss_reduction (`str`, *optional*, defaults to `"mean"`):
            `"mean"` averages the loss over the pairs of the batch. `"sum"` sums it, as in the paper: the loss and its
            gradient then grow with the batch size.
        normalize_image (`bool`, *optional*, defaults to `True`):
            Whether the loss uses image vectors of unit length, as in the paper, or unscaled ones, as in the released
            code. The model always returns vectors of unit length.
        embedding_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on the word embeddings of the sentence encoder. The paper uses none.
        feature_dropout (`float`, *optional*, defaults to 0.0):
            Dropout on the features of an image. The paper uses none.
        context_size (`int`, *optional*, defaults to 5):
            Number of previous words from which the SC-NLM predicts a word.
        word_size (`int`, *optional*, defaults to 100):
            K_w, the width of the folded word embeddings of the SC-NLM and of its predicted representation r.
        num_factors (`int`, *optional*, defaults to 50):
            F, the number of factors of the multiplicative tensor: the rows of W_fk, W_fd and W_fv.
        num_forward_tags (`int`, *optional*, defaults to 3):
            k. A word is predicted from its own tag and the next k tags.
        decoder_dropout (`float`, *optional*, defaults to 0.15):
            Dropout on the attribute vector of the SC-NLM.
        tags (`list[str]`, *optional*, defaults to `["<pad>", "<eos>", "<unk>"]`):
            The part-of-speech tags. The list must begin with these three. The id of a tag is its index.
        num_templates (`int`, *optional*, defaults to 0):
            Number of tag sequences that captions are generated from. This field and the next four are set by
            [`~VseScnlmForConditionalGeneration.remember`]: they are the sizes of tables in the checkpoint.
        template_size (`int`, *optional*, defaults to 0):
            Number of tags of the longest template.
        num_sentences (`int`, *optional*, defaults to 0):
            Number of training sentences whose vectors are kept. `generate` finds nearest neighbors among them.
        num_bigrams (`int`, *optional*, defaults to 0):
            Number of bigrams of the language model that ranks captions.
        num_trigrams (`int`, *optional*, defaults to 0):
            Number of trigrams of this language model.
        is_encoder_decoder (`bool`, *optional*, defaults to `True`):
            Always `True`: labels are the words themselves and are not shifted. Otherwise Trainer would not count the
            first word of each caption.
        use_cache (`bool`, *optional*, defaults to `False`):
            Always `False`: a word is predicted from a window of words, so there is nothing to cache.
        bos_token_id (`int`, *optional*, defaults to 0):
            Not used. Captions begin with `decoder_start_token_id`.
        eos_token_id (`int`, *optional*, defaults to 0):
            The token that ends a sentence.
        unk_token_id (`int`, *optional*, defaults to 1):
            The token for words that are not in the vocabulary. It is never generated.
        pad_token_id (`int`, *optional*, defaults to 2):
            The padding token.
        decoder_start_token_id (`int`, *optional*, defaults to 0):
            The word that fills the context at the start of a caption.

    Example:

    ```python
    >>> from hf_vg import VseScnlmConfig

    >>> config = VseScnlmConfig(vocab_size=5000, feature_size=512, max_violation=True)
    >>> config.hidden_size, config.sentence_encoder
    (1024, 'lstm')
    ```
    """

    model_type = "vse_scnlm"
    # Trainer need not collect these: only vectors of different batches can be compared with each other.
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
