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
"""PyTorch VseScnlm model: one space for images and sentences."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..distributed import gather_rows
from ..image_encoder import ImageEncoder
from .configuration_vse_scnlm import VseScnlmConfig


def ranking_losses(
    image_embeds: torch.Tensor,
    text_embeds: torch.Tensor,
    image_ids: torch.Tensor,
    margin: float,
    max_violation: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Hinges of all pairs, summed over the batch: contrastive images for each sentence, and contrastive sentences for
    each image. Row i of each tensor belongs to pair i, and pairs with the same image are no negatives of each other.
    """
    scores = image_embeds.float() @ text_embeds.float().T  # images in rows, sentences in columns
    right = scores.diagonal()
    same_image = image_ids.unsqueeze(0) == image_ids.unsqueeze(1)
    images = (margin - right.unsqueeze(0) + scores).clamp(min=0).masked_fill(same_image, 0.0)
    sentences = (margin - right.unsqueeze(1) + scores).clamp(min=0).masked_fill(same_image, 0.0)
    if max_violation:
        images, sentences = images.max(dim=0).values, sentences.max(dim=1).values
    return images.sum(), sentences.sum()


class VseScnlmTextEncoder(nn.Module):
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

    def forward(self, input_ids: torch.LongTensor, attention_mask: torch.Tensor) -> torch.Tensor:
        embeddings = self.dropout(self.embed_tokens(input_ids))
        if self.rnn is None:
            return (embeddings * attention_mask.unsqueeze(-1).to(embeddings.dtype)).sum(dim=1)
        lengths = attention_mask.sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(embeddings, lengths, batch_first=True, enforce_sorted=False)
        # Not every CPU has a recurrent kernel for the half precision that autocast would ask for.
        enabled = torch.is_autocast_enabled(embeddings.device.type) and embeddings.device.type != "cpu"
        with torch.autocast(embeddings.device.type, enabled=enabled):
            _, state = self.rnn(packed)
        return (state[0] if isinstance(state, tuple) else state).squeeze(0)  # an LSTM's memory is left out

    def encode_alike(self, input_ids: torch.LongTensor, lengths: torch.LongTensor) -> torch.Tensor:
        """The same, without dropout, for sentences that begin alike: a beginning that several share is read once."""
        if self.rnn is None:
            return self(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device) < lengths.unsqueeze(1))
        size = self.config.vocab_size
        encoded = self.embed_tokens.weight.new_empty(len(input_ids), self.config.hidden_size)
        # Of each sentence the place of its beginning among all different ones, and the state after these.
        place, state = torch.zeros_like(lengths), None
        for position in range(int(lengths.max())):
            goes_on = lengths > position
            # A beginning is a shorter one and a word.
            beginnings = place[goes_on] * size + input_ids[goes_on, position]
            beginnings, place[goes_on] = torch.unique(beginnings, return_inverse=True)
            if state is not None:
                before = beginnings // size
                state = tuple(part[:, before] for part in state) if isinstance(state, tuple) else state[:, before]
            output, state = self.rnn(self.embed_tokens(beginnings % size).unsqueeze(1), state)
            ends = lengths == position + 1
            encoded[ends] = output[place[ends], 0]
        return encoded


class VseScnlmPreTrainedModel(PreTrainedModel):
    config: VseScnlmConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")
    _no_split_modules = ["VseScnlmTextEncoder"]

    @torch.no_grad()
    def _init_weights(self, module):
        """As in the released code: small uniform weights, orthogonal recurrent ones, a Glorot-uniform image map."""
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, (nn.LSTM, nn.GRU)):
            init.uniform_(module.weight_ih_l0, -0.1, 0.1)
            for gate in module.weight_hh_l0.split(module.hidden_size):
                init.orthogonal_(gate)
            init.zeros_(module.bias_ih_l0)
            init.zeros_(module.bias_hh_l0)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)


@dataclass
class VseScnlmOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*, returned when `image_ids` are given):
        `loss_images + loss_sentences`.
    loss_images (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Hinges of sentences against contrastive images, summed over the batch; in training over all processes.
    loss_sentences (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Hinges of images against contrastive sentences, likewise.
    logits_per_image (`torch.FloatTensor` of shape `(images, sentences)`, *optional*):
        Cosines of images and sentences.
    logits_per_text (`torch.FloatTensor` of shape `(sentences, images)`, *optional*):
        The same, transposed.
    image_embeds (`torch.FloatTensor` of shape `(images, hidden_size)`, *optional*):
        Image vectors of unit length.
    text_embeds (`torch.FloatTensor` of shape `(sentences, hidden_size)`, *optional*):
        Sentence vectors of unit length.
    """

    loss: torch.FloatTensor | None = None
    loss_images: torch.FloatTensor | None = None
    loss_sentences: torch.FloatTensor | None = None
    logits_per_image: torch.FloatTensor | None = None
    logits_per_text: torch.FloatTensor | None = None
    image_embeds: torch.FloatTensor | None = None
    text_embeds: torch.FloatTensor | None = None


class VseScnlmModel(VseScnlmPreTrainedModel):
    """The joint space: a linear map of image features, and a sentence encoder."""

    def __init__(self, config: VseScnlmConfig):
        super().__init__(config)
        self.image_encoder = ImageEncoder(config, pooled=True)
        self.feature_dropout = nn.Dropout(config.feature_dropout)
        self.image_projection = nn.Linear(config.feature_size, config.hidden_size)
        self.text_encoder = VseScnlmTextEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.text_encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        self.text_encoder.embed_tokens = value

    def project_images(
        self, pixel_values: torch.FloatTensor | None = None, image_features: torch.FloatTensor | None = None
    ) -> torch.Tensor:
        """x = W q + b, not of unit length."""
        image_features = self.image_encoder(pixel_values, image_features).to(self.dtype)
        if self.config.normalize_features:
            image_features = nn.functional.normalize(image_features, dim=-1)
        return self.image_projection(self.feature_dropout(image_features))

    @can_return_tuple
    def get_image_features(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        image_features (`torch.FloatTensor` of shape `(images, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `pooler_output` holds the image vectors, of
            unit length.
        """
        projected = self.project_images(pixel_values, image_features)
        return BaseModelOutputWithPooling(pooler_output=nn.functional.normalize(projected, dim=-1))

    @can_return_tuple
    def get_text_features(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        input_ids (`torch.LongTensor` of shape `(sentences, length)`):
            Sentences that end with the end token, padded on the right.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `pooler_output` holds the sentence vectors,
            of unit length.
        """
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        encoded = self.text_encoder(input_ids, attention_mask)
        return BaseModelOutputWithPooling(pooler_output=nn.functional.normalize(encoded, dim=-1))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VseScnlmOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(sentences, length)`):
            Sentences that end with the end token, padded on the right.
        image_features (`torch.FloatTensor` of shape `(images, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`.
        image_ids (`torch.LongTensor` of shape `(images,)`, *optional*):
            Which image each row shows; images with the same id, on any process, are not contrasted with each other's
            sentences. Given them, the loss is computed. The number of sentences is then a multiple K of the number of
            images: rows `b * K` to `b * K + K - 1` describe image `b`.
        """
        projected = self.project_images(pixel_values, image_features)
        image_embeds = nn.functional.normalize(projected, dim=-1)
        text_embeds = self.get_text_features(input_ids, attention_mask).pooler_output
        logits_per_image = image_embeds @ text_embeds.T

        loss, loss_images, loss_sentences = None, None, None
        if image_ids is not None:
            captions, rest = divmod(text_embeds.shape[0], image_embeds.shape[0])
            if rest or image_ids.shape != image_embeds.shape[:1]:
                raise ValueError(
                    f"{text_embeds.shape[0]} sentences and {image_ids.numel()} `image_ids` can not be shared out "
                    f"evenly among {image_embeds.shape[0]} images."
                )
            images = image_embeds if self.config.normalize_image else projected
            pairs = [images.repeat_interleave(captions, dim=0), text_embeds, image_ids.repeat_interleave(captions)]
            if self.training:  # other processes may not evaluate at the same time
                pairs = [gather_rows(tensor) for tensor in pairs]
            loss_images, loss_sentences = ranking_losses(*pairs, self.config.margin, self.config.max_violation)
            loss = loss_images + loss_sentences

        return VseScnlmOutput(
            loss=loss,
            loss_images=loss_images,
            loss_sentences=loss_sentences,
            logits_per_image=logits_per_image,
            logits_per_text=logits_per_image.T,
            image_embeds=image_embeds,
            text_embeds=text_embeds,
        )


__all__ = ["VseScnlmModel", "VseScnlmPreTrainedModel"]
