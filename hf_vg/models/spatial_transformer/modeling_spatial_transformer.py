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
"""PyTorch SpatialTransformerCaptioner model: a Transformer from the locations of an image to words of a caption."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers import initialization as init
from transformers.backbone_utils import load_backbone
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..generation import CaptionGenerationMixin
from ..publishing import PublishedModelMixin
from ..vgg.modeling_vgg import VggBackbone
from .configuration_spatial_transformer import SpatialTransformerCaptionerConfig


def sinusoids(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Positional encodings of Vaswani et al. (2017), of shape `(positions, size)`."""
    frequencies = torch.exp(torch.arange(0, size, 2, device=positions.device) * (-math.log(10000.0) / size))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def dropout_of_weights(weights: torch.Tensor, probability: float) -> torch.Tensor:
    """Dropout of as many numbers as attention has, at a third of what it takes `torch` on a CPU."""
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(weights, p=probability)
    # Drawing random numbers is what takes time: 64 bits are drawn at once, and 16 decide.
    count = weights.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = bits.view(weights.shape) >= round(probability * 2**16) - 2**15
    return weights * kept.to(weights.dtype).mul_(1 / (1 - probability))


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.matmul(query * scaling, key.transpose(2, 3))
    if attention_mask is not None:
        # Boolean where the model runs with SDPA and is asked for its attentions, to be added where it runs eagerly.
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    dropped = dropout_of_weights(weights, dropout) if dropout > 0.0 else weights
    context = torch.matmul(dropped, value)
    # The weights before dropout: what is looked at, supervised or drawn sums to one.
    return context.transpose(1, 2).contiguous(), weights


class SpatialTransformerCaptionerAttention(nn.Module):
    """Equations 1-3, without the projections of queries, keys and values."""

    def __init__(self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = nn.Dropout(config.dropout)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def split_heads(self, projected: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        """`(batch, length, count * hidden_size)` to `count` tensors of shape `(batch, heads, length, head_dim)`."""
        return projected.unflatten(-1, (count, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout.p if self.training else 0.0
        # On a CPU torch's own attention has no fast way with dropout. That among words is small, and needs its mask.
        slow_dropout = dropout > 0.0 and query.device.type == "cpu" and not self.is_causal
        if attention_interface is sdpa_attention_forward and slow_dropout and not torch.compiler.is_compiling():
            attention_interface = eager_attention_forward
        if kwargs.get("output_attentions"):
            attention_interface = eager_attention_forward  # the others return no weights
        # d_len is one number for each attention of the model. Words have a constant of the config, so that it depends
        # neither on the padding of a batch nor on how far decoding has come.
        length = self.config.max_target_length if self.is_causal else key.shape[2]
        squared_tau = self.head_dim + (length if self.config.scaling == "length" else 0)
        return attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=squared_tau**-0.5,
            dropout=dropout,
        )


class SpatialTransformerCaptionerSelfAttention(SpatialTransformerCaptionerAttention):
    def __init__(
        self, config: SpatialTransformerCaptionerConfig, is_causal: bool = False, layer_idx: int | None = None
    ):
        super().__init__(config, is_causal)
        self.layer_idx = layer_idx
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.qkv_proj.num_matrices = 3

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.split_heads(self.qkv_proj(hidden_states), 3)
        if past_key_values is not None:
            key, value = past_key_values.self_attention_cache.update(key, value, self.layer_idx)
        context, weights = self.attend(query, key, value, attention_mask, **kwargs)
        return self.o_proj(context.flatten(2)), weights


class SpatialTransformerCaptionerCrossAttention(SpatialTransformerCaptionerAttention):
    """Attention of words to locations. Captions, or beams, of one image share its keys and values."""

    def __init__(self, config: SpatialTransformerCaptionerConfig, layer_idx: int):
        super().__init__(config)
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.kv_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.kv_proj.num_matrices = 2

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # Nothing here depends on a word's place, so all words of an image's captions are one sequence of queries.
        words = hidden_states.reshape(encoder_hidden_states.shape[0], -1, hidden_states.shape[-1])  # (B, K * T, D)
        (query,) = self.split_heads(self.q_proj(words), 1)
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            cached = past_key_values.cross_attention_cache.layers[self.layer_idx]
            key, value = cached.keys, cached.values
        else:
            key, value = self.split_heads(self.kv_proj(encoder_hidden_states), 2)
            if past_key_values is not None:
                key, value = past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
                past_key_values.is_updated[self.layer_idx] = True
        context, weights = self.attend(query, key, value, **kwargs)
        if weights is not None:  # (B, heads, K * T, L) to (B * K, heads, T, L)
            weights = weights.unflatten(2, (-1, hidden_states.shape[1])).transpose(1, 2).flatten(0, 1)
        return self.o_proj(context.reshape(hidden_states.shape)), weights


class SpatialTransformerCaptionerFeedForward(nn.Module):
    """Equation 4."""

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.up_proj(hidden_states)))


class SpatialTransformerCaptionerEncoderLayer(nn.Module):
    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__()
        self.self_attention = SpatialTransformerCaptionerSelfAttention(config)
        self.self_attention_norm = nn.LayerNorm(config.hidden_size)
        self.feed_forward = SpatialTransformerCaptionerFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        attended, _ = self.self_attention(hidden_states, **kwargs)
        hidden_states = self.self_attention_norm(hidden_states + attended)
        return self.feed_forward_norm(hidden_states + self.feed_forward(hidden_states))


class SpatialTransformerCaptionerDecoderLayer(nn.Module):
    def __init__(self, config: SpatialTransformerCaptionerConfig, layer_idx: int):
        super().__init__()
        self.self_attention = SpatialTransformerCaptionerSelfAttention(config, is_causal=True, layer_idx=layer_idx)
        self.self_attention_norm = nn.LayerNorm(config.hidden_size)
        self.cross_attention = SpatialTransformerCaptionerCrossAttention(config, layer_idx)
        self.cross_attention_norm = nn.LayerNorm(config.hidden_size)
        self.feed_forward = SpatialTransformerCaptionerFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        attended, _ = self.self_attention(hidden_states, attention_mask, past_key_values, **kwargs)
        hidden_states = self.self_attention_norm(hidden_states + attended)
        # The paper's residual is the values' input, which has a row for each location; words have the queries'.
        attended, _ = self.cross_attention(hidden_states, encoder_hidden_states, past_key_values, **kwargs)
        hidden_states = self.cross_attention_norm(hidden_states + attended)
        return self.feed_forward_norm(hidden_states + self.feed_forward(hidden_states))


class SpatialTransformerCaptionerPreTrainedModel(PublishedModelMixin, PreTrainedModel):
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

    # Not transformers' `GradientCheckpointingLayer`: its module imports the Auto classes, which import this one.
    gradient_checkpointing = False

    def checkpointed(self, layer: nn.Module) -> Callable[..., torch.Tensor]:
        """The layer, which is computed once more in the backward pass if gradient checkpointing is on."""
        if self.gradient_checkpointing and self.training:
            return partial(self._gradient_checkpointing_func, layer.__call__)
        return layer

    @torch.no_grad()
    def _init_weights(self, module):
        """As in the original Transformer: Glorot-uniform matrices, and embeddings that begin with unit variance."""
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            # Projections that are computed together are initialised as the separate matrices that they are.
            fan_out = module.out_features // getattr(module, "num_matrices", 1)
            bound = math.sqrt(6 / (module.in_features + fan_out))
            init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, nn.Embedding):
            # There they begin with variance 1/d and are multiplied by sqrt(d); here only with `scale_embedding`.
            init.normal_(module.weight, std=self.config.hidden_size**-0.5 if self.config.scale_embedding else 1.0)


@dataclass
class SpatialTransformerCaptionerOutput(Seq2SeqLMOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption`; given `num_items_in_batch`, the sum over tokens divided by that number instead.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` in training, where only the loss is wanted.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of a token, averaged over the tokens of the batch.
    """

    loss_caption: torch.FloatTensor | None = None


class SpatialTransformerCaptionerEncoder(SpatialTransformerCaptionerPreTrainedModel):
    """Feature map of the image, and self-attention among its locations."""

    _can_record_outputs = {
        "hidden_states": SpatialTransformerCaptionerEncoderLayer,
        "attentions": SpatialTransformerCaptionerSelfAttention,
    }

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        if config.backbone_config is None:
            self.backbone = None
        elif config.backbone_config.model_type == "vgg":
            self.backbone = VggBackbone(config.backbone_config)
        else:
            self.backbone = load_backbone(config)
        if self.backbone is not None and self.backbone.channels[-1] != config.feature_size:
            raise ValueError(
                f"`feature_size` is {config.feature_size}, but the backbone's last feature map has "
                f"{self.backbone.channels[-1]} channels. Set `feature_size={self.backbone.channels[-1]}`."
            )
        if self.backbone is not None and config.freeze_backbone:
            self.backbone.requires_grad_(False)
        self.projection = (
            nn.Linear(config.feature_size, config.hidden_size) if config.feature_size != config.hidden_size else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            SpatialTransformerCaptionerEncoderLayer(config) for _ in range(config.encoder_layers)
        )
        self.post_init()

    def train(self, mode: bool = True):
        super().train(mode)
        if self.backbone is not None and self.config.freeze_backbone:
            # Batch statistics and dropout of a frozen network stay as pretrained. Its parameters are frozen once more
            # as `from_pretrained` makes new ones, which it leaves in evaluation mode.
            self.backbone.eval().requires_grad_(False)
        return self

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        r"""
        image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`. `(images, height, width, feature_size)` is taken too.
        """
        if (pixel_values is None) == (image_features is None):
            raise ValueError("Give either `pixel_values` or `image_features`, and not both.")
        if image_features is None:
            if self.backbone is None:
                raise ValueError("This model has no backbone (`backbone_config=None`): give it `image_features`.")
            # Convolutions are faster on channels-last images, and their map is then (B, H, W, C) without a copy.
            pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
                feature_map = self.backbone(pixel_values).feature_maps[-1]  # (B, C, H, W)
            image_features = feature_map.permute(0, 2, 3, 1)
        elif image_features.shape[-1] != self.config.feature_size or image_features.dim() not in (3, 4):
            raise ValueError(
                f"`image_features` must be (batch, locations, {self.config.feature_size}) or (batch, height, width, "
                f"{self.config.feature_size}), got {tuple(image_features.shape)}."
            )
        return self.encode(image_features, **kwargs)

    # Apart from `forward`, as a backbone captures outputs of its own.
    @capture_outputs
    def encode(self, image_features: torch.FloatTensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        positions = self.positions(image_features)
        hidden_states = image_features.flatten(1, -2).to(self.dtype)  # (B, L, C)
        if self.projection is not None:
            hidden_states = self.projection(hidden_states)
        hidden_states = self.dropout(hidden_states + positions.to(hidden_states.dtype))
        for layer in self.layers:
            layer_call = self.checkpointed(layer)
            hidden_states = layer_call(hidden_states, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)

    def positions(self, image_features: torch.FloatTensor) -> torch.Tensor:
        """Positional encodings of the locations, of shape `(locations, hidden_size)`."""
        grid, device, size = image_features.shape[1:-1], image_features.device, self.config.hidden_size
        if self.config.positional_encoding == "1d":
            return sinusoids(torch.arange(math.prod(grid), device=device), size)
        if len(grid) == 1:
            side = math.isqrt(grid[0])
            if side**2 != grid[0]:
                raise ValueError(
                    f"`image_features` of {grid[0]} locations are no square map: give them as (batch, height, width, "
                    f'{self.config.feature_size}) for `positional_encoding="2d"`.'
                )
            grid = (side, side)
        rows, columns = (sinusoids(torch.arange(length, device=device), size // 2) for length in grid)
        return torch.cat([rows.repeat_interleave(grid[1], dim=0), columns.repeat(grid[0], 1)], dim=-1)


class SpatialTransformerCaptionerDecoder(SpatialTransformerCaptionerPreTrainedModel):
    """Words that attend to the words before them, and to the encoded image."""

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
        input_ids: torch.LongTensor,
        encoder_hidden_states: torch.FloatTensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if input_ids.shape[0] % encoder_hidden_states.shape[0]:
            raise ValueError(
                f"{input_ids.shape[0]} captions can not be shared out evenly among {encoder_hidden_states.shape[0]} "
                "images."
            )
        if use_cache is not False and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        hidden_states = self.embed_tokens(input_ids) * self.embedding_scale
        # Padding follows a caption's end, so that the causal mask alone hides it from the caption's words.
        attention_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=past_key_values.self_attention_cache if past_key_values is not None else None,
            allow_is_causal_skip=not kwargs.get("output_attentions"),
        )
        seen_tokens = past_key_values.get_seq_length() if past_key_values is not None else 0
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + seen_tokens
        positions = sinusoids(positions, self.config.hidden_size).to(hidden_states.dtype)
        hidden_states = self.dropout(hidden_states + positions)
        for layer in self.layers:
            layer_call = self.checkpointed(layer)
            hidden_states = layer_call(
                hidden_states, encoder_hidden_states, attention_mask, past_key_values=past_key_values, **kwargs
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values
        )


class SpatialTransformerCaptionerModel(SpatialTransformerCaptionerPreTrainedModel):
    """The encoder and the decoder, without the layer that chooses words."""

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.encoder = SpatialTransformerCaptionerEncoder(config)
        self.decoder = SpatialTransformerCaptionerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        r"""
        image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`. `(images, height, width, feature_size)` is taken too,
            and needed for `positional_encoding="2d"` where the map is not square.
        decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
            The caption so far, from the start token on. The number of captions is a multiple K of the number of
            images: rows `b * K` to `b * K + K - 1` belong to image `b`, and share its keys and values.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values=pixel_values, image_features=image_features, **kwargs)
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
    """The image-to-text Transformer with spatial self-attention, an image captioner."""

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__(config)
        self.model = SpatialTransformerCaptionerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        # A caption is not the place for a token that stands for words unknown.
        hidden_tokens = [token for token in (config.unk_token_id, config.pad_token_id) if token is not None]
        self.generation_config.suppress_tokens = hidden_tokens or None
        self.generation_config.max_new_tokens = config.max_target_length

    def get_encoder(self, modality: str | None = None) -> SpatialTransformerCaptionerEncoder:
        return self.model.encoder

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        caption_weights: torch.FloatTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SpatialTransformerCaptionerOutput:
        r"""
        labels (`torch.LongTensor` of shape `(captions, length)` or `(images, captions, length)`, *optional*):
            Captions that end with the end token, padded with -100; a row of -100 alone is no caption.
            `decoder_input_ids` are made from them.
        caption_weights (`torch.FloatTensor` of shape `(captions,)` or `(images, captions)`, *optional*):
            What the log likelihood of each caption counts. Below zero, it is made less likely.
        """
        if labels is not None:
            use_cache = False
            labels = labels.flatten(0, -2)
            if decoder_input_ids is None:
                decoder_input_ids = labels.new_full(labels.shape, self.config.decoder_start_token_id)
                decoder_input_ids[:, 1:] = labels[:, :-1].clamp(min=0)
        outputs = self.model(
            pixel_values=pixel_values,
            image_features=image_features,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )

        hidden_states, loss, loss_caption = outputs.last_hidden_state, None, None
        only_loss = self.training and labels is not None
        if labels is not None:
            is_word = labels != -100
            num_words = is_word.sum().clamp(min=1)
            weights = None
            if caption_weights is not None:
                weights = caption_weights.view(-1, 1).expand_as(labels)
            if only_loss and not torch.compiler.is_compiling():
                # Padding is left out before the vocabulary projection, the widest of the model. Compiled code is
                # faster with shapes that stay.
                hidden_states, labels = hidden_states[is_word], labels[is_word]
                weights = None if weights is None else weights[is_word]
        logits = self.lm_head(hidden_states)
        if labels is not None:
            word_losses = nn.functional.cross_entropy(
                logits.flatten(0, -2).float(), labels.flatten(), ignore_index=-100, reduction="none"
            )
            summed = (word_losses if weights is None else word_losses * weights.flatten()).sum()
            loss_caption = summed / num_words
            # Trainer gives the tokens of all batches whose gradients it adds up, on all devices.
            num_items_in_batch = kwargs.get("num_items_in_batch")
            loss = loss_caption if num_items_in_batch is None else summed / num_items_in_batch

        return SpatialTransformerCaptionerOutput(
            loss=loss,
            loss_caption=loss_caption,
            logits=None if only_loss else logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _reorder_cache(self, past_key_values: EncoderDecoderCache, beam_idx: torch.LongTensor) -> EncoderDecoderCache:
        # Beams change places within their image only, and share its keys and values.
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values


__all__ = [
    "SpatialTransformerCaptionerForConditionalGeneration",
    "SpatialTransformerCaptionerModel",
    "SpatialTransformerCaptionerPreTrainedModel",
]
