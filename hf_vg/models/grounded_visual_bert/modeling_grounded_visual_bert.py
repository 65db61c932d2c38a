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
"""PyTorch GroundedVisualBert model: VisualBERT from pixels and boxes, whose attention can be supervised."""

import os
from typing import Any

import torch
from transformers import BertModel, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..image_encoder import spare_backbone
from ..publishing import PublishedModelMixin
from .configuration_grounded_visual_bert import GroundedVisualBertConfig
from .functional_grounded_visual_bert import mask_of, repeat_images
from .layers_grounded_visual_bert import (
    GroundedVisualBertEmbeddings,
    GroundedVisualBertEncoder,
    GroundedVisualBertLayer,
    GroundedVisualBertPooler,
)
from .regions_grounded_visual_bert import GroundedVisualBertRegionEncoder


class GroundedVisualBertPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    """Base class of the GroundedVisualBert models: weight initialization, loading and saving."""

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
    # Each part of the loss is a mean of its own, so Trainer must average batches instead of passing a number of items.
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
        Builds a model from the text encoder of a BERT checkpoint and a pretrained backbone.

        Args:
            text_model (`str` or `os.PathLike`):
                Folder or name of a BERT checkpoint. The model takes over its sizes and weights. If the checkpoint has
                no pooler, the pooler is initialized at random.
            backbone ([`PreTrainedModel`], *optional*):
                A loaded backbone, such as `ResNetBackbone.from_pretrained(folder)`.
            kwargs (*optional*):
                Fields of [`GroundedVisualBertConfig`]. They override those of the checkpoint.

        Returns:
            [`GroundedVisualBertPreTrainedModel`]: The model, in evaluation mode.
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
                f"{os.fspath(text_model)!r} is not a BERT encoder of these sizes: it lacks the weights {new}, and its "
                f"weights {unexpected} do not belong to the model."
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
    r"""
    VisualBERT with a region encoder in front of it. The weights of VisualBERT checkpoints fit.

    The input is one sequence: the tokens of the text, then the regions of the image.

    Args:
        config ([`GroundedVisualBertConfig`]):
            The configuration of the model.
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
            Whether to add a pooling layer.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertModel, VggConfig

    >>> config = GroundedVisualBertConfig(
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]), region_feature_size=16,
    ...     vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    ... )
    >>> model = GroundedVisualBertModel(config).eval()
    >>> boxes = torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]]])  # the whole image, and its top left
    >>> outputs = model(torch.tensor([[1, 7, 8, 2]]), pixel_values=torch.rand(1, 3, 32, 32), boxes=boxes)
    >>> outputs.last_hidden_state.shape  # 4 tokens and 2 regions
    torch.Size([1, 6, 32])
    ```
    """

    _can_record_outputs = {"hidden_states": GroundedVisualBertLayer}
    _input_embed_layer = "word_embeddings"

    def __init__(self, config: GroundedVisualBertConfig, add_pooling_layer: bool = True):
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
        Computes the feature map of the backbone. If the backbone is frozen, you can compute it once and pass it as
        `image_features` from then on.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch, channels, height, width)`):
                Images from the image processor.
            kwargs (*optional*):
                `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `last_hidden_state` is the feature map, of
            shape `(batch, height, width, region_feature_size)`.
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
        """
        Returns `visual_embeds`, computed from `pixel_values` or `image_features` if you pass one of these. Returns
        `None` without an image. See `forward` for the arguments.
        """
        given = {"pixel_values": pixel_values, "image_features": image_features, "visual_embeds": visual_embeds}
        given = [name for name, value in given.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"Pass only one of `pixel_values`, `image_features` and `visual_embeds`, got {given}.")
        if given in ([], ["visual_embeds"]):
            return visual_embeds
        if boxes is None:
            raise ValueError(f"`{given[0]}` need `boxes`, of shape (batch, boxes, 4), relative to the image size.")
        self._check_has_backbone()
        return self.region_encoder(boxes, pixel_values, pixel_mask, image_features)

    def _check_has_backbone(self) -> None:
        if self.region_encoder is None:
            raise ValueError("This model has no backbone (`backbone_config=None`). Pass `visual_embeds` instead.")

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
        Encodes texts and the regions of images.

        With K texts per image, texts `b * K` to `b * K + K - 1` belong to image `b`, which is encoded once.

        Args:
            input_ids (`torch.LongTensor` of shape `(texts, tokens)`, *optional*):
                Texts from the tokenizer.
            attention_mask (`torch.Tensor` of shape `(texts, tokens)`, *optional*):
                1 for tokens, 0 for padding.
            token_type_ids (`torch.LongTensor` of shape `(texts, tokens)`, *optional*):
                0 for the first text of a pair, 1 for the second.
            position_ids (`torch.LongTensor` of shape `(texts, tokens)`, *optional*):
                Positions of the tokens. Defaults to 0, 1, 2, ...
            inputs_embeds (`torch.FloatTensor` of shape `(texts, tokens, hidden_size)`, *optional*):
                Word embeddings, instead of `input_ids`.
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor. They need `boxes`.
            pixel_mask (`torch.Tensor` of shape `(images, height, width)`, *optional*):
                1 for pixels of the image, 0 for padding on its right and below it.
            boxes (`torch.FloatTensor` of shape `(images, boxes, 4)`, *optional*):
                Left, top, right and bottom of the regions, relative to the width and height of the image. By
                convention, the first region is the whole image.
            image_features (`torch.FloatTensor` of shape `(images, height, width, region_feature_size)`, *optional*):
                The precomputed feature map of the backbone, instead of `pixel_values`.
            visual_embeds (`torch.FloatTensor` of shape `(images, boxes, visual_embedding_dim)`, *optional*):
                Region features from any detector, instead of `pixel_values` and `boxes`.
            visual_attention_mask (`torch.Tensor` of shape `(images, boxes)`, *optional*):
                1 for regions, 0 for padding.
            visual_token_type_ids (`torch.LongTensor` of shape `(images, boxes)`, *optional*):
                Token types of the regions. Defaults to 1.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.BaseModelOutputWithPooling`]: `last_hidden_state` of shape
            `(texts, tokens + boxes, hidden_size)`, and `pooler_output`. Attentions are those before dropout.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass either `input_ids` or `inputs_embeds`, not both.")
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

    # Not part of `forward`: the states of the backbone must not be recorded as states of this model.
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
