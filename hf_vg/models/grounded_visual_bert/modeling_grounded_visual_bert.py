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
"""PyTorch GroundedVisualBert model: VisualBERT that sees regions of an image, and is taught where to look."""

import os
from typing import Any

import torch
from torch import nn
from transformers import BertModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..attention import eager_attention_forward, needs_eager_attention
from ..image_encoder import spare_backbone
from ..publishing import PublishedModelMixin
from .configuration_grounded_visual_bert import GroundedVisualBertConfig
from .functional_grounded_visual_bert import mask_of, repeat_images
from .regions_grounded_visual_bert import GroundedVisualBertRegionEncoder


class GroundedVisualBertEmbeddings(nn.Module):
    """Words and regions, one after the other."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.visual_token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.visual_position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.visual_projection = nn.Linear(config.visual_embedding_dim, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        shape, device = inputs_embeds.shape[:2], inputs_embeds.device
        if token_type_ids is None:
            token_type_ids = torch.zeros(shape, dtype=torch.long, device=device)
        if position_ids is None:
            position_ids = torch.arange(shape[1], device=device).unsqueeze(0)
        embeddings = inputs_embeds + self.token_type_embeddings(token_type_ids)
        embeddings = embeddings + self.position_embeddings(position_ids)
        if visual_embeds is not None:
            if visual_token_type_ids is None:
                visual_token_type_ids = torch.ones(visual_embeds.shape[:2], dtype=torch.long, device=device)
            regions = self.visual_projection(visual_embeds) + self.visual_token_type_embeddings(visual_token_type_ids)
            # Regions have no order: all are at position 0.
            regions = regions + self.visual_position_embeddings(torch.zeros_like(visual_token_type_ids))
            embeddings = torch.cat([embeddings, regions], dim=1)
        return self.dropout(self.LayerNorm(embeddings))


class GroundedVisualBertSelfAttention(nn.Module):
    """VisualBERT's, by any attention implementation, and with its weights before dropout."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = (
            layer(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if needs_eager_attention(query, kwargs.get("output_attentions")):
            attention_interface = eager_attention_forward
        context, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.head_dim**-0.5,
            dropout=self.dropout.p if self.training else 0.0,
            is_causal=False,
        )
        return context.flatten(2), weights


class GroundedVisualBertOutput(nn.Module):
    """The end of a block: projected, dropped out, added to what the block was given, and normalised."""

    def __init__(self, config: GroundedVisualBertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


class GroundedVisualBertAttention(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.self = GroundedVisualBertSelfAttention(config)
        self.output = GroundedVisualBertOutput(config, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        context, weights = self.self(hidden_states, attention_mask, **kwargs)
        return self.output(context, hidden_states), weights


class GroundedVisualBertIntermediate(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class GroundedVisualBertLayer(GradientCheckpointingLayer):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.attention = GroundedVisualBertAttention(config)
        self.intermediate = GroundedVisualBertIntermediate(config)
        self.output = GroundedVisualBertOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attended, weights = self.attention(hidden_states, attention_mask, **kwargs)
        return self.output(self.intermediate(attended), attended), weights


class GroundedVisualBertEncoder(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.layer = nn.ModuleList(GroundedVisualBertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        # Layers return their attention, and no hook records it: a hook inside a layer that is checkpointed
        # (`use_reentrant=True`) sees no graph, and supervision would teach nothing.
        attentions = ()
        for layer in self.layer:
            hidden_states, weights = layer(hidden_states, attention_mask, **kwargs)
            attentions += (weights,)
        return BaseModelOutput(
            last_hidden_state=hidden_states, attentions=attentions if kwargs.get("output_attentions") else None
        )


class GroundedVisualBertPooler(nn.Module):
    """[CLS], projected."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))


class GroundedVisualBertPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    config: GroundedVisualBertConfig
    auto_map = {
        "AutoConfig": "configuration_grounded_visual_bert.GroundedVisualBertConfig",
        "AutoModel": "modeling_grounded_visual_bert.GroundedVisualBertModel",
        "AutoModelForPreTraining": "modeling_grounded_visual_bert_tasks.GroundedVisualBertForVGP",
        "AutoModelForVisualQuestionAnswering": (
            "modeling_grounded_visual_bert_tasks.GroundedVisualBertForQuestionAnswering"
        ),
        "AutoModelForTokenClassification": (
            "modeling_grounded_visual_bert_tasks.GroundedVisualBertForReferringExpression"
        ),
    }
    base_model_prefix = "visual_bert"
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    # Each part of the loss has its own mean, so Trainer's number of items does not apply: it averages batches instead.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _no_split_modules = ["GroundedVisualBertLayer", "GroundedVisualBertRegionEncoder"]
    _supports_sdpa = True

    def set_attn_implementation(self, attn_implementation: str | dict, *args: Any, **kwargs: Any) -> None:
        super().set_attn_implementation(spare_backbone(self, attn_implementation), *args, **kwargs)

    @classmethod
    def from_text_pretrained(
        cls, text_model: str | os.PathLike, backbone: PreTrainedModel | None = None, **kwargs: Any
    ) -> "GroundedVisualBertPreTrainedModel":
        r"""
        Makes a model with the text encoder of a BERT checkpoint and a pretrained backbone.

        Args:
            text_model (`str` or `os.PathLike`):
                Folder or name of a BERT checkpoint. The model takes its sizes and weights. If the checkpoint has no
                pooler, the model's is new.
            backbone ([`PreTrainedModel`], *optional*):
                A loaded backbone, such as `ResNetBackbone.from_pretrained(folder)`.
            kwargs:
                Fields of [`GroundedVisualBertConfig`]. They win over those of the checkpoint.
        """
        text = BertModel.from_pretrained(text_model, dtype=torch.float32)
        shared = (
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
            *("hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id"),
        )
        fields = {name: getattr(text.config, name) for name in shared}
        if backbone is not None:
            fields |= {"backbone_config": backbone.config, "region_feature_size": backbone.channels[-1]}
        model = cls(cls.config_class(**(fields | kwargs)))
        base = model.base_model
        weights = text.state_dict()
        if base.pooler is None:
            weights = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
        missing, unexpected = base.load_state_dict(weights, strict=False)
        new = [name for name in missing if not name.startswith(("embeddings.visual_", "region_encoder."))]
        if new or unexpected:
            raise ValueError(
                f"{os.fspath(text_model)!r} is not a BERT encoder of these sizes: it lacks {new}, and the model has "
                f"no place for its {unexpected}."
            )
        if model.config.special_visual_initialize:
            embeddings = base.embeddings
            with torch.no_grad():
                embeddings.visual_token_type_embeddings.weight.copy_(embeddings.token_type_embeddings.weight)
                embeddings.visual_position_embeddings.weight.copy_(embeddings.position_embeddings.weight)
        if backbone is not None:
            base.region_encoder.image_encoder.backbone.load_state_dict(backbone.state_dict())
        return model.eval()


class GroundedVisualBertModel(GroundedVisualBertPreTrainedModel):
    """VisualBERT, weight for weight, with a region encoder in front of it."""

    _can_record_outputs = {"hidden_states": GroundedVisualBertLayer}
    _input_embed_layer = "word_embeddings"

    def __init__(self, config: GroundedVisualBertConfig, add_pooling_layer: bool = True):
        r"""
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
            Whether to add a pooling layer.
        """
        super().__init__(config)
        self.region_encoder = None if config.backbone_config is None else GroundedVisualBertRegionEncoder(config)
        self.embeddings = GroundedVisualBertEmbeddings(config)
        self.encoder = GroundedVisualBertEncoder(config)
        self.pooler = GroundedVisualBertPooler(config) if add_pooling_layer else None
        self.post_init()

    @can_return_tuple
    def get_image_features(
        self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> BaseModelOutputWithPooling:
        r"""
        pixel_values (`torch.FloatTensor` of shape `(batch, channels, height, width)`):
            The images.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `last_hidden_state` is the feature map of
            the backbone, of shape `(batch, height, width, region_feature_size)`. If the backbone is frozen, it can be
            computed once and given as `image_features` from then on.
        """
        self._check_has_backbone()
        return BaseModelOutputWithPooling(last_hidden_state=self.region_encoder.image_encoder(pixel_values))

    def embed_regions(
        self,
        pixel_values: torch.Tensor | None = None,
        boxes: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """`visual_embeds` from whichever of the three is given; `None` if there is no image."""
        given = {"pixel_values": pixel_values, "image_features": image_features, "visual_embeds": visual_embeds}
        given = [name for name, value in given.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"Give one of `pixel_values`, `image_features` and `visual_embeds`, got {given}.")
        if given in ([], ["visual_embeds"]):
            return visual_embeds
        if boxes is None:
            raise ValueError(f"`{given[0]}` need `boxes`, of shape (batch, boxes, 4) and relative to the image.")
        self._check_has_backbone()
        return self.region_encoder(boxes, pixel_values, pixel_mask, image_features)

    def _check_has_backbone(self) -> None:
        if self.region_encoder is None:
            raise ValueError("This model has no backbone (`backbone_config=None`): give it `visual_embeds`.")

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        visual_token_type_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
            The images. There may be K times as many texts as images: texts `b * K` to `b * K + K - 1` are then about
            image `b`, which is encoded once. The same holds for all other inputs of images.
        pixel_mask (`torch.Tensor` of shape `(batch, height, width)`, *optional*):
            1 where `pixel_values` hold the image, which lies at their top left, and 0 where they are padded.
        boxes (`torch.FloatTensor` of shape `(batch, boxes, 4)`, *optional*):
            Left, top, right and bottom of regions, relative to the image's width and height. By convention the first
            region is the whole image.
        image_features (`torch.FloatTensor` of shape `(batch, height, width, region_feature_size)`, *optional*):
            The backbone's feature map, computed before, instead of `pixel_values`.
        visual_embeds (`torch.FloatTensor` of shape `(batch, boxes, visual_embedding_dim)`, *optional*):
            Regions as VisualBERT takes them, from any detector, instead of `pixel_values` and `boxes`.
        visual_attention_mask (`torch.Tensor` of shape `(batch, boxes)`, *optional*):
            1 for regions, 0 for padding.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either `input_ids` or `inputs_embeds`, and not both.")
        visual_embeds = self.embed_regions(pixel_values, boxes, pixel_mask, image_features, visual_embeds)
        return self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            visual_embeds=visual_embeds,
            visual_attention_mask=visual_attention_mask,
            visual_token_type_ids=visual_token_type_ids,
            return_dict=True,
            **kwargs,
        )

    # Apart from `forward`: the backbone's own states must not be recorded as this model's.
    @capture_outputs
    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        visual_token_type_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        attention_mask = mask_of(inputs_embeds, attention_mask)
        if visual_embeds is not None:
            visual_embeds = visual_embeds.to(self.embeddings.visual_projection.weight.dtype)
            visual_embeds = repeat_images(visual_embeds, len(inputs_embeds))
            visual_attention_mask = mask_of(visual_embeds, visual_attention_mask)
            attention_mask = torch.cat([attention_mask, visual_attention_mask.to(attention_mask.dtype)], dim=1)
        hidden_states = self.embeddings(
            inputs_embeds,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            visual_embeds=visual_embeds,
            visual_token_type_ids=visual_token_type_ids,
        )  # (B, T + R, D)
        attention_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        kwargs.setdefault("output_attentions", self.config.output_attentions)
        outputs = self.encoder(hidden_states, attention_mask, **kwargs)
        pooled = self.pooler(outputs.last_hidden_state) if self.pooler is not None else None
        return BaseModelOutputWithPooling(
            last_hidden_state=outputs.last_hidden_state, pooler_output=pooled, attentions=outputs.attentions
        )


__all__ = ["GroundedVisualBertModel", "GroundedVisualBertPreTrainedModel"]
