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
"""PyTorch SpatialTransformerCaptioner model: a Transformer from the locations of an image to a caption."""

import math
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..generation import CaptionGenerationMixin
from ..image_encoder import ImageEncoder, spare_backbone
from ..publishing import PublishedModelMixin
from .configuration_spatial_transformer import SpatialTransformerCaptionerConfig
from .layers_spatial_transformer import (
    SpatialTransformerCaptionerCrossAttention,
    SpatialTransformerCaptionerDecoderLayer,
    SpatialTransformerCaptionerEncoderLayer,
    SpatialTransformerCaptionerSelfAttention,
    location_encodings,
    sinusoids,
)
from .outputs_spatial_transformer import SpatialTransformerCaptionerCache, SpatialTransformerCaptionerOutput


class SpatialTransformerCaptionerPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    """Base class of the SpatialTransformerCaptioner models: weight initialization, loading and saving."""

    config: SpatialTransformerCaptionerConfig
    auto_map = {
        "AutoConfig": "configuration_spatial_transformer.SpatialTransformerCaptionerConfig",
        "AutoModel": "modeling_spatial_transformer.SpatialTransformerCaptionerModel",
        "AutoModelForImageTextToText": (
            "modeling_spatial_transformer.SpatialTransformerCaptionerForConditionalGeneration"
        ),
    }
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")
    _no_split_modules = ["SpatialTransformerCaptionerEncoderLayer", "SpatialTransformerCaptionerDecoderLayer"]
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_compile_fullgraph = True

    def set_attn_implementation(self, attn_implementation: str | dict, *args: Any, **kwargs: Any) -> None:
        super().set_attn_implementation(spare_backbone(self, attn_implementation), *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in the original Transformer: Glorot-uniform matrices, and embeddings with unit variance."""
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            # A layer that computes several projections at once is initialized like separate matrices.
            fan_out = module.out_features // getattr(module, "num_matrices", 1)
            bound = math.sqrt(6 / (module.in_features + fan_out))
            init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, nn.Embedding):
            # The original embeddings have variance 1/d and are multiplied by sqrt(d): here with `scale_embedding`.
            init.normal_(module.weight, std=self.config.hidden_size**-0.5 if self.config.scale_embedding else 1.0)


class SpatialTransformerCaptionerEncoder(SpatialTransformerCaptionerPreTrainedModel):
    """The encoder: the feature map of the image, and self-attention among its locations."""

    _can_record_outputs = {
        "hidden_states": SpatialTransformerCaptionerEncoderLayer,
        "attentions": SpatialTransformerCaptionerSelfAttention,
    }

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.image_encoder = ImageEncoder(config)
        self.projection = (
            nn.Linear(config.feature_size, config.hidden_size) if config.feature_size != config.hidden_size else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            SpatialTransformerCaptionerEncoderLayer(config) for _ in range(config.encoder_layers)
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encodes images. See [`SpatialTransformerCaptionerModel.forward`] for the arguments."""
        return self.encode(self.image_encoder(pixel_values, image_features), **kwargs, return_dict=True)

    # Not part of `forward`: the backbone captures its own outputs.
    @capture_outputs
    def encode(self, image_features: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        positions = location_encodings(image_features, self.config)
        hidden_states = image_features.flatten(1, -2).to(self.dtype)  # (B, L, C)
        if self.projection is not None:
            hidden_states = self.projection(hidden_states)
        hidden_states = self.dropout(hidden_states + positions.to(hidden_states.dtype))
        if self.is_gradient_checkpointing and self.training and not hidden_states.requires_grad:
            # Reentrant checkpointing needs an input that requires gradients. Features of a frozen backbone do not.
            hidden_states.requires_grad_(torch.is_grad_enabled())
        output_attentions = kwargs.get("output_attentions", self.config.output_attentions)
        for layer in self.layers:
            hidden_states = layer(hidden_states, output_attentions=output_attentions)
        return BaseModelOutput(last_hidden_state=hidden_states)


class SpatialTransformerCaptionerDecoder(SpatialTransformerCaptionerPreTrainedModel):
    """The decoder: each word attends to the words before it and to the encoded image."""

    _can_record_outputs = {
        "hidden_states": SpatialTransformerCaptionerDecoderLayer,
        "attentions": SpatialTransformerCaptionerSelfAttention,
        "cross_attentions": SpatialTransformerCaptionerCrossAttention,
    }

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            SpatialTransformerCaptionerDecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)
        )
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if input_ids.shape[0] % encoder_hidden_states.shape[0]:
            raise ValueError(
                f"{input_ids.shape[0]} captions cannot be shared out evenly among {encoder_hidden_states.shape[0]} "
                "images."
            )
        if self.is_gradient_checkpointing and self.training:
            use_cache, past_key_values = False, None  # layers are computed twice
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = SpatialTransformerCaptionerCache(DynamicCache(), DynamicCache())
        output_attentions = kwargs.get("output_attentions", self.config.output_attentions)
        hidden_states = self.embed_tokens(input_ids) * self.embedding_scale
        seen_tokens = past_key_values.get_seq_length() if past_key_values is not None else 0
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + seen_tokens
        if attention_mask is not None and attention_mask.dim() == 2:  # padding on the left has no position
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        # Padding on the right needs no mask: the causal mask already hides it.
        attention_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=past_key_values.self_attention_cache if past_key_values is not None else None,
        )
        positions = sinusoids(positions, self.config.hidden_size).to(hidden_states.dtype)
        hidden_states = self.dropout(hidden_states + positions)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                attention_mask,
                past_key_values=past_key_values,
                output_attentions=output_attentions,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values
        )


class SpatialTransformerCaptionerModel(SpatialTransformerCaptionerPreTrainedModel):
    r"""
    The encoder and the decoder, without the output layer over words.

    Args:
        config ([`SpatialTransformerCaptionerConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import SpatialTransformerCaptionerConfig, SpatialTransformerCaptionerModel

    >>> sizes = dict(vocab_size=20, hidden_size=16, num_attention_heads=2, intermediate_size=32)
    >>> config = SpatialTransformerCaptionerConfig(backbone_config=None, feature_size=8, **sizes)
    >>> model = SpatialTransformerCaptionerModel(config)
    >>> model(image_features=torch.rand(2, 9, 8), decoder_input_ids=torch.zeros(2, 5).long()).last_hidden_state.shape
    torch.Size([2, 5, 16])
    ```
    """

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.encoder = SpatialTransformerCaptionerEncoder(config)
        self.decoder = SpatialTransformerCaptionerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        r"""
        Encodes images, and runs the decoder on captions.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`. They may also have the shape
                `(images, height, width, feature_size)`, which `positional_encoding="2d"` needs for maps that are not
                square.
            decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
                The start token and the words so far. With K captions per image, rows `b * K` to `b * K + K - 1`
                belong to image `b` and share its keys and values. Defaults to the start token.
            decoder_attention_mask (`torch.Tensor` of shape `(captions, length)`, *optional*):
                0 for padding on the left of a caption. Padding on the right needs no mask.
            encoder_outputs (`BaseModelOutput`, *optional*):
                The output of the encoder, instead of `pixel_values` and `image_features`.
            past_key_values (`EncoderDecoderCache`, *optional*):
                The cache of the words before `decoder_input_ids`.
            use_cache (`bool`, *optional*):
                Whether to return a cache. Defaults to `config.use_cache`.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.Seq2SeqModelOutput`]: `last_hidden_state` of shape
            `(captions, length, hidden_size)`, and `cross_attentions` (word to location) if you ask for attentions.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values, image_features, **kwargs, return_dict=True)
        elif isinstance(encoder_outputs, tuple):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        encoded = encoder_outputs.last_hidden_state
        if decoder_input_ids is None:
            decoder_input_ids = torch.full(
                (encoded.shape[0], 1), self.config.decoder_start_token_id, device=encoded.device
            )
        decoder_outputs = self.decoder(
            decoder_input_ids,
            encoded,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
            return_dict=True,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class SpatialTransformerCaptionerForConditionalGeneration(
    SpatialTransformerCaptionerPreTrainedModel, CaptionGenerationMixin
):
    r"""
    The image-to-text Transformer with spatial self-attention (Springenberg et al., 2018), an image captioner.

    Args:
        config ([`SpatialTransformerCaptionerConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model, processor = (c.from_pretrained(folder) for c in (AutoModelForImageTextToText, AutoProcessor))
    >>> scene = hf_vg.examples.scenes()[0]
    >>> inputs = processor(images=Image.open(scene["image"]), return_tensors="pt")
    >>> caption = processor.batch_decode(model.generate(**inputs, num_beams=3), skip_special_tokens=True)[0]
    >>> hf_vg.caption_is_true(scene, caption)
    True
    ```
    """

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.model = SpatialTransformerCaptionerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        self.suppress_special_tokens()
        self.generation_config.max_new_tokens = config.max_target_length

    def get_encoder(self, modality: str | None = None) -> SpatialTransformerCaptionerEncoder:
        return self.model.encoder

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SpatialTransformerCaptionerOutput:
        r"""
        Computes the scores of the next words, and the loss if you pass `labels`.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`: see [`SpatialTransformerCaptionerModel.forward`].
            labels (`torch.LongTensor` of shape `(captions, length)` or `(images, captions, length)`, *optional*):
                Captions that end with the end token, padded with -100. Rows that are all -100 are skipped.
            decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
                The start token and the words so far. Made from `labels` by default.
            decoder_attention_mask (`torch.Tensor` of shape `(captions, length)`, *optional*):
                0 for padding on the left of a caption. Padding on the right needs no mask.
            encoder_outputs (`BaseModelOutput`, *optional*):
                The output of the encoder, instead of `pixel_values` and `image_features`.
            past_key_values (`EncoderDecoderCache`, *optional*):
                The cache of the words before `decoder_input_ids`.
            use_cache (`bool`, *optional*):
                Whether to return a cache. Defaults to `config.use_cache`, and to `False` with `labels`.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`SpatialTransformerCaptionerOutput`]: The loss and the logits.
        """
        if labels is not None:
            use_cache = False
            labels = labels.flatten(0, -2)
            if decoder_input_ids is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            pixel_values=pixel_values,
            image_features=image_features,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
            return_dict=True,
        )

        hidden_states, loss, loss_caption, caption_losses = outputs.last_hidden_state, None, None, None
        only_loss = self.training and labels is not None
        only_words = only_loss and not torch.compiler.is_compiling()
        if labels is not None:
            is_word = labels != -100
            num_words = is_word.sum().clamp(min=1)
            if only_words:
                # Drop padding before the vocabulary projection, the widest layer. Compiled code needs fixed shapes.
                hidden_states, labels = hidden_states[is_word], labels[is_word]
        logits = self.lm_head(hidden_states)
        if labels is not None:
            word_losses = nn.functional.cross_entropy(
                logits.flatten(0, -2).float(), labels.flatten(), ignore_index=-100, reduction="none"
            )
            loss_caption = word_losses.sum() / num_words
            # Trainer passes the number of tokens in all batches and devices whose gradients are accumulated.
            num_items = kwargs.get("num_items_in_batch")
            num_items = num_words if num_items is None else num_items
            loss = word_losses.sum() / num_items
            of_words = torch.zeros_like(is_word, dtype=word_losses.dtype)
            of_words = of_words.masked_scatter(is_word, word_losses) if only_words else word_losses.view_as(is_word)
            caption_losses = of_words.sum(dim=1) / num_items

        return SpatialTransformerCaptionerOutput(
            loss=loss,
            loss_caption=loss_caption,
            caption_losses=caption_losses,
            logits=None if only_loss else logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _reorder_cache(self, past_key_values: EncoderDecoderCache, beam_idx: torch.Tensor) -> EncoderDecoderCache:
        # Beams of the same image share its keys and values, so only the words' cache is reordered.
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values


__all__ = [
    "SpatialTransformerCaptionerForConditionalGeneration",
    "SpatialTransformerCaptionerModel",
    "SpatialTransformerCaptionerPreTrainedModel",
]
