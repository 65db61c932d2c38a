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
"""PyTorch VseScnlm model: a joint space of images and sentences."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..distributed import gather_rows
from ..image_encoder import ImageEncoder
from ..publishing import PublishedModelMixin
from .configuration_vse_scnlm import VseScnlmConfig


def ranking_losses(
    image_embeds: torch.Tensor, text_embeds: torch.Tensor, image_ids: torch.Tensor, config: VseScnlmConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    The ranking loss: hinges of each sentence against the other images, and of each image against the other sentences.

    Args:
        image_embeds (`torch.Tensor` of shape `(pairs, hidden_size)`):
            The image vector of each pair.
        text_embeds (`torch.Tensor` of shape `(pairs, hidden_size)`):
            The sentence vector of each pair.
        image_ids (`torch.LongTensor` of shape `(pairs,)`):
            The image of each pair. Pairs with the same image are not used as negatives of each other.
        config ([`VseScnlmConfig`]):
            `margin`, `max_violation` and `loss_reduction`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The loss over images, and the loss over sentences.
    """
    scores = image_embeds.float() @ text_embeds.float().T  # images in rows, sentences in columns
    right = scores.diagonal()
    same_image = image_ids.unsqueeze(0) == image_ids.unsqueeze(1)
    images = (config.margin - right.unsqueeze(0) + scores).clamp(min=0).masked_fill(same_image, 0.0)
    sentences = (config.margin - right.unsqueeze(1) + scores).clamp(min=0).masked_fill(same_image, 0.0)
    if config.max_violation:
        images, sentences = images.max(dim=0).values, sentences.max(dim=1).values
    else:
        images, sentences = images.sum(dim=0), sentences.sum(dim=1)
    return (images.mean(), sentences.mean()) if config.loss_reduction == "mean" else (images.sum(), sentences.sum())


class VseScnlmTextEncoder(nn.Module):
    """Encodes sentences with an LSTM, a GRU or the sum of word embeddings."""

    def __init__(self, config: VseScnlmConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.embedding_dropout)
        if config.sentence_encoder == "bow":
            self.rnn = None
        else:
            rnn_class = nn.LSTM if config.sentence_encoder == "lstm" else nn.GRU
            self.rnn = rnn_class(config.embedding_size, config.hidden_size, batch_first=True)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns word embeddings, the state after each word, and the vector of each sentence."""
        embeddings = self.dropout(self.embed_tokens(input_ids))  # (B, T, E)
        mask = attention_mask.bool()
        if self.rnn is None:
            states = embeddings * mask.unsqueeze(-1)
            return embeddings, states, states.sum(dim=1)
        # Not every CPU has an LSTM or GRU kernel for the half precision of autocast.
        device = embeddings.device.type
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device) and device != "cpu"):
            states, _ = self.rnn(embeddings)  # (B, T, K)
        last = mask.sum(dim=1).clamp(min=1) - 1
        return embeddings, states, states[torch.arange(len(states), device=states.device), last]


class VseScnlmPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    """Base class of the VseScnlm models: weight initialization, loading and saving."""

    config: VseScnlmConfig
    auto_map = {
        "AutoConfig": "configuration_vse_scnlm.VseScnlmConfig",
        "AutoModel": "modeling_vse_scnlm.VseScnlmModel",
        "AutoModelForZeroShotImageClassification": "modeling_vse_scnlm.VseScnlmModel",
        "AutoModelForImageTextToText": "modeling_scnlm.VseScnlmForConditionalGeneration",
    }
    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    _no_split_modules = ["VseScnlmTextEncoder"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in the released code: small uniform weights, orthogonal recurrent weights, Glorot-uniform projections."""
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, (nn.LSTM, nn.GRU)):
            init.uniform_(module.weight_ih_l0, -0.1, 0.1)
            for gate in module.get_parameter("weight_hh_l0").split(module.hidden_size):
                init.orthogonal_(gate)
            init.zeros_(module.bias_ih_l0)
            init.zeros_(module.bias_hh_l0)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)

    def returns_hidden_states(self, kwargs: dict) -> bool:
        """Returns whether the caller or the config asks for hidden states. Raises an error for attentions."""
        asked = {}
        for name in ("output_attentions", "output_hidden_states"):
            value = kwargs.get(name)
            asked[name] = getattr(self.config, name) if value is None else value
        if asked["output_attentions"]:
            raise ValueError("This model has no attention, so `output_attentions` must be `False`.")
        return bool(asked["output_hidden_states"])


@dataclass
class VseScnlmOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*, returned when `image_ids` are given):
        `loss_images + loss_sentences`.
    loss_images (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The loss of sentences against other images, reduced by `config.loss_reduction`. In training, the other images
        come from the batches of all processes.
    loss_sentences (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The loss of images against other sentences.
    logits_per_image (`torch.FloatTensor` of shape `(images, sentences)`, *optional*):
        Cosines between images and sentences.
    logits_per_text (`torch.FloatTensor` of shape `(sentences, images)`, *optional*):
        The same, transposed.
    image_embeds (`torch.FloatTensor` of shape `(images, hidden_size)`, *optional*):
        Image vectors of unit length.
    text_embeds (`torch.FloatTensor` of shape `(sentences, hidden_size)`, *optional*):
        Sentence vectors of unit length.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The word embeddings of the sentences, and the encoder's state after each word.
    """

    loss: torch.Tensor | None = None
    loss_images: torch.Tensor | None = None
    loss_sentences: torch.Tensor | None = None
    logits_per_image: torch.Tensor | None = None
    logits_per_text: torch.Tensor | None = None
    image_embeds: torch.Tensor | None = None
    text_embeds: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


class VseScnlmModel(VseScnlmPreTrainedModel):
    r"""
    A joint space of images and sentences: a linear projection of image features, and a sentence encoder. Images and
    sentences that belong together have similar vectors.

    Args:
        config ([`VseScnlmConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import VseScnlmConfig, VseScnlmModel

    >>> model = VseScnlmModel(VseScnlmConfig(vocab_size=20, feature_size=8, embedding_size=8, hidden_size=16)).eval()
    >>> outputs = model(torch.tensor([[5, 6, 0], [7, 8, 0]]), image_features=torch.rand(2, 8))
    >>> outputs.image_embeds.shape, outputs.logits_per_image.shape  # vectors, and cosines
    (torch.Size([2, 16]), torch.Size([2, 2]))
    ```
    """

    # You can load the space from a checkpoint of the language model, which has these weights too.
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^memory\.", r"^trigrams\."]

    def __init__(self, config: VseScnlmConfig):
        super().__init__(config)
        self.image_encoder = ImageEncoder(config, pooled=True)
        self.feature_dropout = nn.Dropout(config.feature_dropout)
        self.image_projection = nn.Linear(config.feature_size, config.hidden_size)
        self.text_encoder = VseScnlmTextEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.text_encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.text_encoder.embed_tokens = value

    @can_return_tuple
    def get_image_features(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        Computes the vectors of images.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`.
            kwargs (*optional*):
                `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `pooler_output` holds the image vectors, of
            unit length. `last_hidden_state` holds the same vectors before scaling.
        """
        features = self.image_encoder(pixel_values, image_features).to(self.dtype)  # q, (B, D)
        if self.config.normalize_features:
            features = nn.functional.normalize(features, dim=-1)
        projected = self.image_projection(self.feature_dropout(features))  # x = W q + b, (B, K)
        return BaseModelOutputWithPooling(
            last_hidden_state=projected,
            pooler_output=nn.functional.normalize(projected, dim=-1),
            hidden_states=(features, projected) if self.returns_hidden_states(kwargs) else None,
        )

    @can_return_tuple
    def get_text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        Computes the vectors of sentences.

        Args:
            input_ids (`torch.LongTensor` of shape `(sentences, length)`):
                Sentences that end with the end token, padded on the right.
            attention_mask (`torch.Tensor` of shape `(sentences, length)`, *optional*):
                1 for tokens, 0 for padding. By default, all tokens except the padding token count.
            kwargs (*optional*):
                `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `pooler_output` holds the sentence vectors,
            of unit length. `last_hidden_state` holds the state of the encoder after each word.
        """
        if attention_mask is None:
            attention_mask = input_ids != self.config.pad_token_id
        embeddings, states, sentence = self.text_encoder(input_ids, attention_mask)
        return BaseModelOutputWithPooling(
            last_hidden_state=states,
            pooler_output=nn.functional.normalize(sentence, dim=-1),
            hidden_states=(embeddings, states) if self.returns_hidden_states(kwargs) else None,
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VseScnlmOutput:
        r"""
        Compares images with sentences, and computes the ranking loss if you pass `image_ids`.

        Args:
            input_ids (`torch.LongTensor` of shape `(sentences, length)`):
                Sentences that end with the end token, padded on the right. For the loss there must be K sentences per
                image: rows `b * K` to `b * K + K - 1` describe image `b`.
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`.
            attention_mask (`torch.Tensor` of shape `(sentences, length)`, *optional*):
                1 for tokens, 0 for padding. By default, all tokens except the padding token count.
            image_ids (`torch.LongTensor` of shape `(images,)`, *optional*):
                The id of each image, unique over all processes. Rows with the same id are not used as negatives of
                each other. Without ids, no loss is computed.
            kwargs (*optional*):
                `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`VseScnlmOutput`]: The loss, and the vectors of images and sentences with their cosines.
        """
        kwargs["return_dict"] = True
        images = self.get_image_features(pixel_values, image_features, **kwargs)
        sentences = self.get_text_features(input_ids, attention_mask, **kwargs)
        image_embeds, text_embeds = images.pooler_output, sentences.pooler_output
        logits_per_image = image_embeds @ text_embeds.T

        loss, loss_images, loss_sentences = None, None, None
        if image_ids is not None:
            captions, rest = divmod(text_embeds.shape[0], image_embeds.shape[0])
            if rest or image_ids.shape != image_embeds.shape[:1]:
                raise ValueError(
                    f"{text_embeds.shape[0]} sentences and {image_ids.numel()} `image_ids` do not fit "
                    f"{image_embeds.shape[0]} images: pass one id and the same number of sentences per image."
                )
            vectors = image_embeds if self.config.normalize_image else images.last_hidden_state
            vectors, image_ids = (tensor.repeat_interleave(captions, dim=0) for tensor in (vectors, image_ids))
            sentence_vectors = text_embeds
            if self.training:  # other processes may not evaluate at the same time
                vectors, sentence_vectors, image_ids = map(gather_rows, (vectors, text_embeds, image_ids))
            loss_images, loss_sentences = ranking_losses(vectors, sentence_vectors, image_ids, self.config)
            loss = loss_images + loss_sentences

        return VseScnlmOutput(
            loss=loss,
            loss_images=loss_images,
            loss_sentences=loss_sentences,
            logits_per_image=logits_per_image,
            logits_per_text=logits_per_image.T,
            image_embeds=image_embeds,
            text_embeds=text_embeds,
            hidden_states=sentences.hidden_states,
        )


__all__ = ["VseScnlmModel", "VseScnlmPreTrainedModel"]
