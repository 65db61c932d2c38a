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
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.backbone_utils import load_backbone
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..vgg.modeling_vgg import VggBackbone
from .configuration_grounded_visual_bert import GroundedVisualBertConfig
from .functional_grounded_visual_bert import (
    align_words,
    attention_loss,
    attention_rollout,
    geometry_embedding,
    means_over_ranks,
    pool_spans,
    repeat_images,
    roi_align,
)


NUM_IDENTIFICATION_LABELS = 3  # both captions are of the image, the first only, the second only
NUM_PARAPHRASE_LABELS = 5  # alternation, forward and reverse entailment, equivalence, independence


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
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        # Boolean where the model runs with SDPA and is asked for its attentions, to be added where it runs eagerly.
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    context = torch.matmul(nn.functional.dropout(weights, p=dropout, training=module.training), value)
    # The weights before dropout: what is looked at, supervised or drawn sums to one.
    return context.transpose(1, 2).contiguous(), weights


class GroundedVisualBertRegionEncoder(nn.Module):
    """What is in each box of an image, and where the box is."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.config = config
        if config.backbone_config.model_type == "vgg":
            self.backbone = VggBackbone(config.backbone_config)
        else:
            self.backbone = load_backbone(config)
        if self.backbone.channels[-1] != config.region_feature_size:
            raise ValueError(
                f"`region_feature_size` is {config.region_feature_size}, but the backbone's last feature map has "
                f"{self.backbone.channels[-1]} channels. Set `region_feature_size={self.backbone.channels[-1]}`."
            )
        if config.freeze_backbone:
            self.backbone.requires_grad_(False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(
            config.region_feature_size + 8 * config.geometry_frequencies, config.visual_embedding_dim
        )

    def train(self, mode: bool = True):
        super().train(mode)
        if self.config.freeze_backbone:
            # Batch statistics and dropout of a frozen network stay as pretrained. Its parameters are frozen once more
            # as `from_pretrained` makes new ones, which it leaves in evaluation mode.
            self.backbone.eval().requires_grad_(False)
        return self

    def feature_map(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The backbone's last map, `(batch, height, width, region_feature_size)`."""
        # Convolutions are faster on channels-last images, and their map is then of this shape without a copy.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
            return self.backbone(pixel_values).feature_maps[-1].permute(0, 2, 3, 1)

    def forward(
        self, image_features: torch.Tensor, boxes: torch.Tensor, pixel_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        height, width = image_features.shape[1:3]
        cells = boxes.float() * torch.tensor([width, height, width, height], device=boxes.device)
        if pixel_mask is not None:
            # Boxes are relative to the image, which fills only a part of the tensor where it was padded.
            rows, columns = pixel_mask.amax(dim=2).float().mean(dim=1), pixel_mask.amax(dim=1).float().mean(dim=1)
            cells = cells * torch.stack([columns, rows, columns, rows], dim=-1).unsqueeze(1)
        image_features = image_features.to(self.projection.weight.dtype).permute(0, 3, 1, 2)
        regions = roi_align(image_features, cells, sampling_ratio=self.config.region_samples)[..., 0, 0]
        geometry = geometry_embedding(boxes, self.config.geometry_frequencies).to(regions.dtype)
        return torch.relu(self.projection(self.dropout(torch.cat([regions, geometry], dim=-1))))


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
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_token_type_ids: torch.LongTensor | None = None,
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
        if kwargs.get("output_attentions"):
            attention_interface = eager_attention_forward  # the others return no weights
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
    ) -> torch.Tensor:
        context, _ = self.self(hidden_states, attention_mask, **kwargs)
        return self.output(context, hidden_states)


class GroundedVisualBertIntermediate(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class GroundedVisualBertLayer(nn.Module):
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
    ) -> torch.Tensor:
        attended = self.attention(hidden_states, attention_mask, **kwargs)
        return self.output(self.intermediate(attended), attended)


class GroundedVisualBertEncoder(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.layer = nn.ModuleList(GroundedVisualBertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        return hidden_states


class GroundedVisualBertPooler(nn.Module):
    """[CLS], projected."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))


class GroundedVisualBertTransform(nn.Module):
    """What masked words, and answers, are read from."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class GroundedVisualBertLMHead(nn.Module):
    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.transform = GroundedVisualBertTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # the decoder's, under BERT's name

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.transform(hidden_states))


class GroundedVisualBertPreTrainedModel(PreTrainedModel):
    config: GroundedVisualBertConfig
    base_model_prefix = "visual_bert"
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    # Every part of a loss has its own mean, so that Trainer's number of items is no use; it averages batches instead.
    accepts_loss_kwargs = False
    _no_split_modules = ["GroundedVisualBertLayer"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, GroundedVisualBertLMHead):
            init.zeros_(module.bias)

    @classmethod
    def from_text_pretrained(
        cls, text_model: str | os.PathLike, backbone: PreTrainedModel | None = None, **kwargs
    ) -> "GroundedVisualBertPreTrainedModel":
        r"""
        Makes a model that reads as a BERT checkpoint does, and sees with a pretrained backbone.

        Args:
            text_model (`str` or `os.PathLike`):
                Folder or name of a BERT checkpoint, whose sizes and weights are taken over. Where its pooler is
                missing, the model's own is new.
            backbone ([`PreTrainedModel`], *optional*):
                A loaded backbone, such as `ResNetBackbone.from_pretrained(folder)`.
            kwargs:
                Fields of [`GroundedVisualBertConfig`], which win over those of the checkpoint.
        """
        from transformers import BertModel

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
                f"{os.fspath(text_model)!r} is no BERT encoder of these sizes: it lacks {new}, and the model has no "
                f"place for its {unexpected}."
            )
        if model.config.special_visual_initialize:
            embeddings = base.embeddings
            with torch.no_grad():
                embeddings.visual_token_type_embeddings.weight.copy_(embeddings.token_type_embeddings.weight)
                embeddings.visual_position_embeddings.weight.copy_(embeddings.position_embeddings.weight)
        if backbone is not None:
            base.region_encoder.backbone.load_state_dict(backbone.state_dict())
        return model.eval()


@dataclass
class GroundedVisualBertForVGPOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The sum of the parts below, masked language modelling by its weight.
    loss_identification (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of which captions are of the image.
    loss_paraphrase (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of a phrase pair's type, averaged over the pairs of the batch.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The loss of `attention_supervision`, from words to boxes and from boxes to words.
    loss_masked_lm (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of masked words.
    logits (`torch.FloatTensor` of shape `(batch, 3)`):
        Scores of: both captions are of the image, the first only, the second only.
    paraphrase_logits (`torch.FloatTensor` of shape `(batch, pairs, 5)`, *optional*):
        Scores of the types of phrase pairs, zeros for pairs that are padding.
    grounding_logits (`torch.FloatTensor` of shape `(batch, phrases, boxes)`, *optional*):
        Scores of phrases and boxes under `"indirect"` supervision, zeros for phrases that are padding.
    """

    loss: torch.FloatTensor | None = None
    loss_identification: torch.FloatTensor | None = None
    loss_paraphrase: torch.FloatTensor | None = None
    loss_attention: torch.FloatTensor | None = None
    loss_masked_lm: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    paraphrase_logits: torch.FloatTensor | None = None
    grounding_logits: torch.FloatTensor | None = None
    last_hidden_state: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


@dataclass
class GroundedVisualBertHeadOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Binary cross entropy: summed over answers, or averaged over regions.
    logits (`torch.FloatTensor`):
        Of answers, `(batch, num_labels)`; or of regions, `(batch, boxes)`, lowest at padding.
    """

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


class GroundedVisualBertModel(GroundedVisualBertPreTrainedModel):
    """VisualBERT, weight for weight, with a region encoder in front of it."""

    _can_record_outputs = {
        "hidden_states": GroundedVisualBertLayer,
        "attentions": GroundedVisualBertSelfAttention,
    }

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

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.embeddings.word_embeddings = value

    def get_image_features(self, pixel_values: torch.FloatTensor) -> BaseModelOutputWithPooling:
        """
        The backbone's feature map as `last_hidden_state`, of shape `(batch, height, width, region_feature_size)`.
        Where the backbone is frozen it may be computed once, and given as `image_features` from then on.
        """
        if self.region_encoder is None:
            raise ValueError("This model has no backbone (`backbone_config=None`): give it `visual_embeds`.")
        return BaseModelOutputWithPooling(last_hidden_state=self.region_encoder.feature_map(pixel_values))

    def embed_regions(
        self,
        pixel_values: torch.FloatTensor | None = None,
        boxes: torch.FloatTensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        image_features: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
    ) -> torch.FloatTensor | None:
        """`visual_embeds` from whichever of the three an image is given as; `None` where there is no image."""
        given = {"pixel_values": pixel_values, "image_features": image_features, "visual_embeds": visual_embeds}
        given = [name for name, value in given.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"Give one of `pixel_values`, `image_features` and `visual_embeds`, got {given}.")
        if given in ([], ["visual_embeds"]):
            return visual_embeds
        if boxes is None:
            raise ValueError(f"`{given[0]}` need `boxes`, of shape (batch, boxes, 4) and relative to the image.")
        if image_features is None:
            image_features = self.get_image_features(pixel_values).last_hidden_state
        elif self.region_encoder is None:
            raise ValueError("This model has no region encoder (`backbone_config=None`): give it `visual_embeds`.")
        return self.region_encoder(image_features, boxes, pixel_mask)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        visual_token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        r"""
        pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
            The images. Texts may be K times as many as images: rows `b * K` to `b * K + K - 1` of them are then about
            image `b`, which is encoded once. The same holds for everything else that is of images.
        pixel_mask (`torch.Tensor` of shape `(batch, height, width)`, *optional*):
            1 where `pixel_values` hold the image, which lies at their top left, and 0 where they are padded.
        boxes (`torch.FloatTensor` of shape `(batch, boxes, 4)`, *optional*):
            Left, top, right and bottom of regions as shares of the image's width and height. By convention the first
            is the whole image.
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
            **kwargs,
        )

    # Apart from `forward`, as a backbone captures outputs of its own.
    @capture_outputs
    def encode(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        visual_token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        shape, device = inputs_embeds.shape[:2], inputs_embeds.device
        if attention_mask is None:
            attention_mask = torch.ones(shape, dtype=torch.long, device=device)
        if visual_embeds is not None:
            visual_embeds = visual_embeds.to(self.embeddings.visual_projection.weight.dtype)
            if visual_attention_mask is None:
                visual_attention_mask = torch.ones(visual_embeds.shape[:2], dtype=torch.long, device=device)
            visual_embeds, visual_attention_mask = (
                repeat_images(tensor, shape[0]) for tensor in (visual_embeds, visual_attention_mask)
            )
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
        hidden_states = self.encoder(hidden_states, attention_mask, **kwargs)
        pooled = self.pooler(hidden_states) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


class GroundedVisualBertForVGP(GroundedVisualBertPreTrainedModel):
    """
    Learns from pairs of captions which of them are of an image and how their phrases relate, while its attention is
    supervised by the boxes of the phrases.
    """

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "visual_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__(config)
        self.visual_bert = GroundedVisualBertModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.identification = nn.Linear(config.hidden_size, NUM_IDENTIFICATION_LABELS)
        self.paraphrase = nn.Linear(4 * config.hidden_size, NUM_PARAPHRASE_LABELS)
        indirect = config.attention_supervision == "indirect"
        self.grounding = nn.Linear(2 * config.hidden_size, 1) if indirect else None
        # Where VisualBERT's pretraining checkpoints have it.
        self.cls = nn.ModuleDict()
        if config.masked_lm_weight:
            self.cls["predictions"] = GroundedVisualBertLMHead(config)
        else:
            self._tied_weights_keys = None
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.cls["predictions"].decoder if "predictions" in self.cls else None

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        phrase_spans: torch.LongTensor | None = None,
        phrase_boxes: torch.Tensor | None = None,
        pair_spans: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        pair_labels: torch.LongTensor | None = None,
        masked_input_ids: torch.LongTensor | None = None,
        masked_labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> GroundedVisualBertForVGPOutput:
        r"""
        phrase_spans (`torch.LongTensor` of shape `(batch, phrases, 2)`, *optional*):
            First token, and first token after, of each phrase that names something in the image. Padded with zeros.
        phrase_boxes (`torch.Tensor` of shape `(batch, phrases, boxes)`, *optional*):
            1 where a box shows what a phrase names. An entity may have several boxes.
        pair_spans (`torch.LongTensor` of shape `(batch, pairs, 2, 2)`, *optional*):
            The spans of the two phrases of each pair. Padded with zeros.
        labels (`torch.LongTensor` of shape `(batch,)`, *optional*):
            0 where both captions are of the image, 1 where the first is, 2 where the second is.
        pair_labels (`torch.LongTensor` of shape `(batch, pairs)`, *optional*):
            Alternation, forward entailment, reverse entailment, equivalence or independence; -100 for padding.
        masked_input_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
            `input_ids` with some words masked, for masked language modelling.
        masked_labels (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
            The words that were masked, and -100 elsewhere.
        """
        has_targets = labels is not None and phrase_spans is not None
        supervised = has_targets and self.config.attention_supervision in ("direct", "rollout")
        asked_for_attentions = kwargs.pop("output_attentions", self.config.output_attentions)
        visual_embeds = self.visual_bert.embed_regions(pixel_values, boxes, pixel_mask, image_features, visual_embeds)
        image = {"visual_embeds": visual_embeds, "visual_attention_mask": visual_attention_mask}
        text = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.visual_bert(
            input_ids, **text, **image, output_attentions=supervised or asked_for_attentions, **kwargs
        )
        hidden_states = outputs.last_hidden_state
        words, regions = hidden_states.split([input_ids.shape[1], hidden_states.shape[1] - input_ids.shape[1]], dim=1)

        logits = self.identification(self.dropout(outputs.pooler_output))
        paraphrase_logits = grounding_logits = None
        if pair_spans is not None:
            paraphrase_logits = self.classify_pairs(words, pair_spans)
        if self.grounding is not None and phrase_spans is not None:
            grounding_logits = self.classify_phrases(words, regions, phrase_spans)

        sums, counts = {}, {}
        if labels is not None:
            sums["identification"] = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
            counts["identification"] = labels.new_tensor(labels.shape[0])
        if pair_labels is not None and paraphrase_logits is not None:
            sums["paraphrase"] = nn.functional.cross_entropy(
                paraphrase_logits.flatten(0, 1).float(), pair_labels.flatten(), ignore_index=-100, reduction="sum"
            )
            counts["paraphrase"] = (pair_labels != -100).sum()
        if masked_input_ids is not None:
            if "predictions" not in self.cls:
                raise ValueError("`masked_input_ids` need a model with `masked_lm_weight` above 0, got 0.")
            masked = self.visual_bert(masked_input_ids, **text, **image).last_hidden_state[:, : input_ids.shape[1]]
            is_masked = masked_labels != -100
            scores = self.cls["predictions"](masked[is_masked])
            sums["masked_lm"] = nn.functional.cross_entropy(scores.float(), masked_labels[is_masked], reduction="sum")
            counts["masked_lm"] = is_masked.sum()
        if has_targets:
            if visual_attention_mask is None:
                visual_attention_mask = torch.ones(regions.shape[:2], dtype=torch.long, device=regions.device)
            visual_attention_mask = repeat_images(visual_attention_mask, len(input_ids))
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            if grounding_logits is not None:
                # The whole image, box 0, shows everything: it says nothing about where a phrase is.
                is_pair = (phrase_boxes.amax(dim=2, keepdim=True) > 0) & (visual_attention_mask > 0).unsqueeze(1)
                is_pair = is_pair & (torch.arange(is_pair.shape[2], device=is_pair.device) > 0)
                sums["phrase_box"] = nn.functional.binary_cross_entropy_with_logits(
                    grounding_logits[is_pair].float(), phrase_boxes[is_pair].float(), reduction="sum"
                )
                counts["phrase_box"] = is_pair.sum()
            elif supervised:
                alignment = align_words(phrase_spans, phrase_boxes, input_ids.shape[1])  # (B, T, R)
                for name, (summed, count) in self.supervise_attention(
                    outputs.attentions, alignment, attention_mask, visual_attention_mask
                ).items():
                    sums[name], counts[name] = summed, count

        parts, loss = {}, None
        if sums:
            means = means_over_ranks(sums, counts, self.training)
            attention_parts = [means.pop(name) for name in ("phrase_box", "to_image", "to_text") if name in means]
            if attention_parts:
                means["attention"] = sum(attention_parts)
            loss = sum(
                part * (self.config.masked_lm_weight if name == "masked_lm" else 1) for name, part in means.items()
            )
            parts = {f"loss_{name}": part for name, part in means.items()}
        return GroundedVisualBertForVGPOutput(
            loss=loss,
            **parts,
            logits=logits,
            paraphrase_logits=paraphrase_logits,
            grounding_logits=grounding_logits,
            last_hidden_state=hidden_states,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions if asked_for_attentions else None,
        )

    def classify_pairs(self, words: torch.Tensor, pair_spans: torch.LongTensor) -> torch.Tensor:
        first, is_pair = pool_spans(words, pair_spans[:, :, 0])
        second, _ = pool_spans(words, pair_spans[:, :, 1])
        both = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        scores = self.paraphrase(self.dropout(both))
        return scores.new_zeros(*is_pair.shape, scores.shape[-1]).masked_scatter(is_pair.unsqueeze(-1), scores)

    def classify_phrases(
        self, words: torch.Tensor, regions: torch.Tensor, phrase_spans: torch.LongTensor
    ) -> torch.Tensor:
        phrases, is_phrase = pool_spans(words, phrase_spans)
        boxes = regions[is_phrase.nonzero()[:, 0]]  # (N, R, D)
        both = torch.cat([phrases.unsqueeze(1).expand_as(boxes), boxes], dim=-1)
        scores = self.grounding(self.dropout(both)).squeeze(-1)
        return scores.new_zeros(*is_phrase.shape, scores.shape[-1]).masked_scatter(is_phrase.unsqueeze(-1), scores)

    def supervise_attention(
        self,
        attentions: tuple[torch.Tensor, ...],
        alignment: torch.Tensor,
        attention_mask: torch.Tensor,
        visual_attention_mask: torch.Tensor,
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The sums of both directions' losses, and the numbers of words and boxes that they are sums over."""
        layers, heads = self.config.supervised_layers, self.config.supervised_heads
        if self.config.attention_supervision == "rollout":
            maps = [rollout.unsqueeze(1) for rollout in attention_rollout(attentions, layers, heads)]
        else:
            maps = attentions if layers is None else [attentions[layer] for layer in layers]
            maps = maps if heads is None else [attention[:, heads] for attention in maps]
        tokens = alignment.shape[1]
        to_image = torch.stack([attention[:, :, :tokens, tokens:] for attention in maps])  # (L, B, H, T, R)
        to_text = torch.stack([attention[:, :, tokens:, :tokens] for attention in maps])  # (L, B, H, R, T)
        kind = self.config.image_to_text_loss
        return {
            "to_image": (
                attention_loss(to_image, alignment, visual_attention_mask),
                alignment.amax(dim=2).sum(),
            ),
            "to_text": (
                attention_loss(to_text, alignment.transpose(1, 2), attention_mask, kind),
                alignment.amax(dim=1).sum(),
            ),
        }


class GroundedVisualBertForQuestionAnswering(GroundedVisualBertPreTrainedModel):
    """Answers a question at its mask token: `[CLS] question [SEP] [MASK] [SEP]` and regions."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__(config)
        self.visual_bert = GroundedVisualBertModel(config, add_pooling_layer=False)
        self.transform = GroundedVisualBertTransform(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        labels: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> GroundedVisualBertHeadOutput:
        r"""
        labels (`torch.FloatTensor` of shape `(batch, num_labels)`, *optional*):
            Score of each answer, from 0 to 1.
        """
        outputs = self.visual_bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            pixel_values=pixel_values,
            pixel_mask=pixel_mask,
            boxes=boxes,
            image_features=image_features,
            visual_embeds=visual_embeds,
            visual_attention_mask=visual_attention_mask,
            **kwargs,
        )
        # The position of the first mask token, or of [CLS] where there is none.
        position = (input_ids == self.config.mask_token_id).int().argmax(dim=1)
        answer = outputs.last_hidden_state[torch.arange(len(position), device=position.device), position]  # (B, D)
        logits = self.classifier(self.dropout(self.transform(answer)))
        loss = None
        if labels is not None:
            # Summed over answers: their mean would make the gradient of a question some 3,000 times smaller.
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels.float()) * logits.shape[1]
        return GroundedVisualBertHeadOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GroundedVisualBertForReferringExpression(GroundedVisualBertPreTrainedModel):
    """Finds the region that an expression refers to: `[CLS] expression [SEP]` and regions."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__(config)
        self.visual_bert = GroundedVisualBertModel(config, add_pooling_layer=False)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        visual_embeds: torch.FloatTensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        labels: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> GroundedVisualBertHeadOutput:
        r"""
        labels (`torch.FloatTensor` of shape `(batch, boxes)`, *optional*):
            1 for regions that overlap what is referred to by an IoU above 0.5.
        """
        outputs = self.visual_bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            pixel_values=pixel_values,
            pixel_mask=pixel_mask,
            boxes=boxes,
            image_features=image_features,
            visual_embeds=visual_embeds,
            visual_attention_mask=visual_attention_mask,
            **kwargs,
        )
        regions = outputs.last_hidden_state[:, input_ids.shape[1] :]  # (B, R, D)
        logits = self.classifier(self.dropout(nn.functional.gelu(self.dense(regions)))).squeeze(-1)
        if visual_attention_mask is None:
            visual_attention_mask = torch.ones_like(logits)
        is_region = repeat_images(visual_attention_mask, len(input_ids)) > 0
        loss = None
        if labels is not None:
            summed = nn.functional.binary_cross_entropy_with_logits(
                logits[is_region].float(), labels[is_region].float(), reduction="sum"
            )
            loss = means_over_ranks({"referring": summed}, {"referring": is_region.sum()}, self.training)["referring"]
        logits = logits.masked_fill(~is_region, torch.finfo(logits.dtype).min)
        return GroundedVisualBertHeadOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = [
    "GroundedVisualBertForQuestionAnswering",
    "GroundedVisualBertForReferringExpression",
    "GroundedVisualBertForVGP",
    "GroundedVisualBertModel",
    "GroundedVisualBertPreTrainedModel",
]
