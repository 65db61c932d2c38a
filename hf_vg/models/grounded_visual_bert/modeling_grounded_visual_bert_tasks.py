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
"""PyTorch GroundedVisualBert models for paraphrases, questions and referring expressions."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..attention_supervision import means_over_ranks
from .configuration_grounded_visual_bert import GroundedVisualBertConfig
from .functional_grounded_visual_bert import (
    grounding_losses,
    mask_of,
    pool_spans,
    summed_cross_entropy,
    weigh_losses,
)
from .layers_grounded_visual_bert import GroundedVisualBertLMHead, GroundedVisualBertTransform
from .modeling_grounded_visual_bert import GroundedVisualBertModel, GroundedVisualBertPreTrainedModel
from .outputs_grounded_visual_bert import GroundedVisualBertForVGPOutput


NUM_IDENTIFICATION_LABELS = 3  # both captions match the image, only the first, only the second
NUM_PARAPHRASE_LABELS = 5  # alternation, forward and reverse entailment, equivalence, independence


class GroundedVisualBertForVGP(GroundedVisualBertPreTrainedModel):
    r"""
    Visually grounded paraphrases (VGP). For a pair of captions, the model predicts which of them match the image and
    how their phrases are related. Its attention can be supervised with the boxes of the phrases.

    Args:
        config ([`GroundedVisualBertConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForVGP

    >>> sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    >>> model = GroundedVisualBertForVGP(GroundedVisualBertConfig(attention_supervision="direct", **sizes))
    >>> phrases = dict(phrase_spans=torch.tensor([[[1, 3]]]), phrase_boxes=torch.tensor([[[0, 1]]]))
    >>> inputs = dict(input_ids=torch.tensor([[1, 7, 8, 2]]), visual_embeds=torch.rand(1, 2, 768), **phrases)
    >>> model(**inputs, labels=torch.tensor([0])).loss_attention > 0
    tensor(True)
    ```
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
        # The name of this head in VisualBERT's pretraining checkpoints.
        self.cls = nn.ModuleDict()
        if config.masked_lm_weight:
            self.cls["predictions"] = GroundedVisualBertLMHead(config)
        else:
            self._tied_weights_keys = None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GroundedVisualBertLMHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.cls["predictions"].get_submodule("decoder") if "predictions" in self.cls else None

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        if "predictions" not in self.cls:
            raise ValueError("This model has no output embeddings: it does not predict words (`masked_lm_weight=0`).")
        self.cls["predictions"].decoder = new_embeddings
        self.cls["predictions"].bias = new_embeddings.bias

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        phrase_spans: torch.Tensor | None = None,
        phrase_boxes: torch.Tensor | None = None,
        pair_spans: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        pair_labels: torch.Tensor | None = None,
        masked_input_ids: torch.Tensor | None = None,
        masked_labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> GroundedVisualBertForVGPOutput:
        r"""
        Classifies pairs of captions and pairs of phrases, and computes the losses for the targets that you pass.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, tokens)`):
                Pairs of captions from the tokenizer.
            attention_mask (`torch.Tensor` of shape `(batch, tokens)`, *optional*):
                1 for tokens, 0 for padding.
            token_type_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                0 for the first caption of a pair, 1 for the second.
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor. They need `boxes`.
            pixel_mask (`torch.Tensor` of shape `(images, height, width)`, *optional*):
                1 for pixels of the image, 0 for padding on its right and below it.
            boxes (`torch.FloatTensor` of shape `(images, boxes, 4)`, *optional*):
                Left, top, right and bottom of the regions, relative to the image size. The first is the whole image.
            image_features (`torch.FloatTensor` of shape `(images, height, width, region_feature_size)`, *optional*):
                The precomputed feature map of the backbone, instead of `pixel_values`.
            visual_embeds (`torch.FloatTensor` of shape `(images, boxes, visual_embedding_dim)`, *optional*):
                Region features from any detector, instead of `pixel_values` and `boxes`.
            visual_attention_mask (`torch.Tensor` of shape `(images, boxes)`, *optional*):
                1 for regions, 0 for padding.
            phrase_spans (`torch.LongTensor` of shape `(batch, phrases, 2)`, *optional*):
                For each phrase that names something in the image: its first token, and the first token after it.
                Padded with zeros.
            phrase_boxes (`torch.Tensor` of shape `(batch, phrases, boxes)`, *optional*):
                1 if a box shows what a phrase names. A phrase may have several boxes.
            pair_spans (`torch.LongTensor` of shape `(batch, pairs, 2, 2)`, *optional*):
                The spans of the two phrases of each pair. Padded with zeros.
            labels (`torch.LongTensor` of shape `(batch,)`, *optional*):
                0 if both captions match the image, 1 if only the first does, 2 if only the second does.
            pair_labels (`torch.LongTensor` of shape `(batch, pairs)`, *optional*):
                0 alternation, 1 forward entailment, 2 reverse entailment, 3 equivalence, 4 independence, -100 padding.
            masked_input_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                `input_ids` with some words masked, for masked language modelling.
            masked_labels (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                The masked words, and -100 elsewhere.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`GroundedVisualBertForVGPOutput`]: The loss with its parts, and the logits.
        """
        asked_for_attentions = kwargs.pop("output_attentions", self.config.output_attentions)
        # Without targets there is nothing to supervise, and attentions are returned only on request.
        has_targets = labels is not None and phrase_spans is not None and phrase_boxes is not None
        is_supervised = has_targets and self.config.attention_supervision in ("direct", "rollout")
        visual_embeds = self.visual_bert.embed_regions(pixel_values, boxes, pixel_mask, image_features, visual_embeds)
        inputs = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "visual_embeds": visual_embeds,
            "visual_attention_mask": visual_attention_mask,
            "return_dict": True,
        }
        outputs = self.visual_bert(
            input_ids, **inputs, output_attentions=is_supervised or asked_for_attentions, **kwargs
        )
        words, regions = outputs.last_hidden_state.tensor_split([input_ids.shape[1]], dim=1)

        logits = self.identification(self.dropout(outputs.pooler_output))
        paraphrase_logits = self.classify_pairs(words, pair_spans) if pair_spans is not None else None
        has_scores = self.grounding is not None and phrase_spans is not None
        grounding_logits = self.classify_phrases(words, regions, phrase_spans) if has_scores else None

        losses = {}  # name: (sum, count)
        if labels is not None:
            losses["identification"] = summed_cross_entropy(logits, labels)
        if pair_labels is not None and paraphrase_logits is not None:
            losses["paraphrase"] = summed_cross_entropy(paraphrase_logits.flatten(0, 1), pair_labels.flatten())
        if masked_input_ids is not None and masked_labels is not None:
            losses["masked_lm"] = self.masked_lm_loss(masked_input_ids, masked_labels, inputs)
        if has_targets and self.config.attention_supervision != "none":
            masks = mask_of(words, attention_mask), mask_of(regions, visual_attention_mask)
            targets = phrase_spans, phrase_boxes
            losses |= grounding_losses(self.config, outputs.attentions, grounding_logits, *targets, *masks)
        loss, parts = weigh_losses(self.config, losses, self.training)
        return GroundedVisualBertForVGPOutput(
            loss=loss,
            **parts,
            logits=logits,
            paraphrase_logits=paraphrase_logits,
            grounding_logits=grounding_logits,
            last_hidden_state=outputs.last_hidden_state,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions if asked_for_attentions else None,
        )

    def classify_pairs(self, words: torch.Tensor, pair_spans: torch.Tensor) -> torch.Tensor:
        first, is_pair = pool_spans(words, pair_spans[:, :, 0])
        second, _ = pool_spans(words, pair_spans[:, :, 1])
        both = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        scores = self.paraphrase(self.dropout(both))
        return scores.new_zeros(*is_pair.shape, scores.shape[-1]).masked_scatter(is_pair.unsqueeze(-1), scores)

    def classify_phrases(self, words: torch.Tensor, regions: torch.Tensor, phrase_spans: torch.Tensor) -> torch.Tensor:
        phrases, is_phrase = pool_spans(words, phrase_spans)
        boxes = regions[is_phrase.nonzero()[:, 0]]  # (N, R, D)
        both = torch.cat([phrases.unsqueeze(1).expand_as(boxes), boxes], dim=-1)
        scores = self.grounding(self.dropout(both)).squeeze(-1)
        return scores.new_zeros(*is_phrase.shape, scores.shape[-1]).masked_scatter(is_phrase.unsqueeze(-1), scores)

    def masked_lm_loss(
        self, masked_input_ids: torch.Tensor, masked_labels: torch.Tensor, inputs: dict
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if "predictions" not in self.cls:
            raise ValueError("`masked_input_ids` need a model with `masked_lm_weight` above 0, got 0.")
        states = self.visual_bert(masked_input_ids, **inputs).last_hidden_state[:, : masked_input_ids.shape[1]]
        is_masked = masked_labels != -100
        return summed_cross_entropy(self.cls["predictions"](states[is_masked]), masked_labels[is_masked])


class GroundedVisualBertForQuestionAnswering(GroundedVisualBertPreTrainedModel):
    r"""
    Answers questions about images. The input is `[CLS] question [SEP] [MASK] [SEP]` and the regions of the image, and
    the answer is predicted at the mask token.

    Args:
        config ([`GroundedVisualBertConfig`]):
            The configuration of the model. `num_labels` is the number of answers.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForQuestionAnswering

    >>> sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    >>> config = GroundedVisualBertConfig(num_labels=5, mask_token_id=3, **sizes)
    >>> model = GroundedVisualBertForQuestionAnswering(config)
    >>> model(torch.tensor([[1, 7, 8, 2, 3, 2]]), visual_embeds=torch.rand(1, 2, 768)).logits.shape
    torch.Size([1, 5])
    ```
    """

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
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        r"""
        Scores the answers to questions. The inputs of the image are those of [`GroundedVisualBertModel.forward`].

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, tokens)`):
                Questions and mask tokens from the tokenizer.
            attention_mask (`torch.Tensor` of shape `(batch, tokens)`, *optional*):
                1 for tokens, 0 for padding.
            token_type_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                0 for the question, 1 for the mask token.
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor. They need `boxes`.
            pixel_mask (`torch.Tensor` of shape `(images, height, width)`, *optional*):
                1 for pixels of the image, 0 for padding.
            boxes (`torch.FloatTensor` of shape `(images, boxes, 4)`, *optional*):
                The regions, relative to the image size.
            image_features (`torch.FloatTensor` of shape `(images, height, width, region_feature_size)`, *optional*):
                The precomputed feature map of the backbone, instead of `pixel_values`.
            visual_embeds (`torch.FloatTensor` of shape `(images, boxes, visual_embedding_dim)`, *optional*):
                Region features from any detector, instead of `pixel_values` and `boxes`.
            visual_attention_mask (`torch.Tensor` of shape `(images, boxes)`, *optional*):
                1 for regions, 0 for padding.
            labels (`torch.FloatTensor` of shape `(batch, num_labels)`, *optional*):
                The score of each answer, from 0 to 1. The loss is the binary cross entropy, summed over answers.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.SequenceClassifierOutput`]: `logits` of shape `(batch, num_labels)`.
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
            return_dict=True,
            **kwargs,
        )
        # The position of the first mask token, or of [CLS] if there is none.
        position = (input_ids == self.config.mask_token_id).int().argmax(dim=1)
        answer = outputs.last_hidden_state[torch.arange(len(position), device=position.device), position]  # (B, D)
        logits = self.classifier(self.dropout(self.transform(answer)))
        loss = None
        if labels is not None:
            # Summed over answers: with about 3,000 answers, a mean would make the gradient 3,000 times smaller.
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels.float()) * logits.shape[1]
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GroundedVisualBertForReferringExpression(GroundedVisualBertPreTrainedModel):
    r"""
    Finds the region that an expression refers to. The input is `[CLS] expression [SEP]` and the regions of the image.

    Args:
        config ([`GroundedVisualBertConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForReferringExpression

    >>> sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    >>> model = GroundedVisualBertForReferringExpression(GroundedVisualBertConfig(**sizes))
    >>> model(torch.tensor([[1, 7, 8, 2]]), visual_embeds=torch.rand(1, 4, 768)).logits.shape  # one score per region
    torch.Size([1, 4])
    ```
    """

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
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        boxes: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        visual_embeds: torch.Tensor | None = None,
        visual_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""
        Scores the regions of an image. The inputs of the image are those of [`GroundedVisualBertModel.forward`].

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, tokens)`):
                Expressions from the tokenizer.
            attention_mask (`torch.Tensor` of shape `(batch, tokens)`, *optional*):
                1 for tokens, 0 for padding.
            token_type_ids (`torch.LongTensor` of shape `(batch, tokens)`, *optional*):
                Token types. Defaults to 0.
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor. They need `boxes`.
            pixel_mask (`torch.Tensor` of shape `(images, height, width)`, *optional*):
                1 for pixels of the image, 0 for padding.
            boxes (`torch.FloatTensor` of shape `(images, boxes, 4)`, *optional*):
                The regions, relative to the image size.
            image_features (`torch.FloatTensor` of shape `(images, height, width, region_feature_size)`, *optional*):
                The precomputed feature map of the backbone, instead of `pixel_values`.
            visual_embeds (`torch.FloatTensor` of shape `(images, boxes, visual_embedding_dim)`, *optional*):
                Region features from any detector, instead of `pixel_values` and `boxes`.
            visual_attention_mask (`torch.Tensor` of shape `(images, boxes)`, *optional*):
                1 for regions, 0 for padding.
            labels (`torch.FloatTensor` of shape `(batch, boxes)`, *optional*):
                1 for regions that overlap the right one with an IoU above 0.5. The loss is the binary cross entropy,
                averaged over regions.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.TokenClassifierOutput`]: `logits` of shape `(batch, boxes)`, lowest at
            padding.
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
            return_dict=True,
            **kwargs,
        )
        regions = outputs.last_hidden_state[:, input_ids.shape[1] :]  # (B, R, D)
        logits = self.classifier(self.dropout(nn.functional.gelu(self.dense(regions)))).squeeze(-1)
        is_region = mask_of(regions, visual_attention_mask) > 0
        loss = None
        if labels is not None:
            summed = nn.functional.binary_cross_entropy_with_logits(
                logits[is_region].float(), labels[is_region].float(), reduction="sum"
            )
            loss = means_over_ranks({"referring": (summed, is_region.sum())}, self.training)["referring"]
        logits = logits.masked_fill(~is_region, torch.finfo(logits.dtype).min)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = [
    "GroundedVisualBertForQuestionAnswering",
    "GroundedVisualBertForReferringExpression",
    "GroundedVisualBertForVGP",
]
