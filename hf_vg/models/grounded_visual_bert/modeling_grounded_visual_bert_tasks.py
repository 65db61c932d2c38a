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

from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..attention_supervision import align_words, means_over_ranks, supervise_attention
from .configuration_grounded_visual_bert import GroundedVisualBertConfig
from .functional_grounded_visual_bert import mask_of, pool_spans, summed_cross_entropy
from .modeling_grounded_visual_bert import GroundedVisualBertModel, GroundedVisualBertPreTrainedModel


NUM_IDENTIFICATION_LABELS = 3  # both captions are of the image, the first only, the second only
NUM_PARAPHRASE_LABELS = 5  # alternation, forward and reverse entailment, equivalence, independence


class GroundedVisualBertTransform(nn.Module):
    """Transforms the states that masked words and answers are predicted from."""

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


@dataclass
class GroundedVisualBertForVGPOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The sum of the parts below, the supervision of attention and masked language modelling by their weights.
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

    loss: torch.Tensor | None = None
    loss_identification: torch.Tensor | None = None
    loss_paraphrase: torch.Tensor | None = None
    loss_attention: torch.Tensor | None = None
    loss_masked_lm: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    paraphrase_logits: torch.Tensor | None = None
    grounding_logits: torch.Tensor | None = None
    last_hidden_state: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


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

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GroundedVisualBertLMHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.cls["predictions"].get_submodule("decoder") if "predictions" in self.cls else None

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        if "predictions" not in self.cls:
            raise ValueError("This model predicts no words (`masked_lm_weight=0`): it has no output embeddings.")
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
        asked_for_attentions = kwargs.pop("output_attentions", self.config.output_attentions)
        # Without targets there is nothing to supervise: attention is then computed only if it is asked for.
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

        losses = {}  # sums, and what they are summed over
        if labels is not None:
            losses["identification"] = summed_cross_entropy(logits, labels)
        if pair_labels is not None and paraphrase_logits is not None:
            losses["paraphrase"] = summed_cross_entropy(paraphrase_logits.flatten(0, 1), pair_labels.flatten())
        if masked_input_ids is not None and masked_labels is not None:
            losses["masked_lm"] = self.masked_lm_loss(masked_input_ids, masked_labels, inputs)
        if has_targets and self.config.attention_supervision != "none":
            masks = mask_of(words, attention_mask), mask_of(regions, visual_attention_mask)
            losses |= self.grounding_losses(outputs.attentions, grounding_logits, phrase_spans, phrase_boxes, *masks)
        loss, parts = self.weigh_losses(losses)
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

    def grounding_losses(
        self,
        attentions: tuple[torch.Tensor, ...] | None,
        grounding_logits: torch.Tensor | None,
        phrase_spans: torch.Tensor,
        phrase_boxes: torch.Tensor,
        text_mask: torch.Tensor,
        region_mask: torch.Tensor,
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The supervision of the config: of a classifier of phrases and boxes, of attention, or of rollout."""
        if grounding_logits is not None:
            # The whole image, box 0, shows everything: it says nothing about where a phrase is.
            is_pair = (phrase_boxes.amax(dim=2, keepdim=True) > 0) & (region_mask > 0).unsqueeze(1)
            is_pair = is_pair & (torch.arange(is_pair.shape[2], device=is_pair.device) > 0)
            summed = nn.functional.binary_cross_entropy_with_logits(
                grounding_logits[is_pair].float(), phrase_boxes[is_pair].float(), reduction="sum"
            )
            return {"phrase_box": (summed, is_pair.sum())}
        return supervise_attention(
            attentions,
            align_words(phrase_spans, phrase_boxes, text_mask.shape[1]),  # (B, T, R)
            text_mask,
            region_mask,
            rollout=self.config.attention_supervision == "rollout",
            layers=self.config.supervised_layers,
            heads=self.config.supervised_heads,
            image_to_text_loss=self.config.image_to_text_loss,
        )

    def weigh_losses(
        self, losses: dict[str, tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """The loss, and its named parts."""
        if not losses:
            return None, {}
        means = means_over_ranks(losses, self.training)
        grounding = [means.pop(name) for name in ("phrase_box", "to_image", "to_text") if name in means]
        if grounding:
            means["attention"] = sum(grounding)  # type: ignore[assignment]  # there is one at least
        weights = {"attention": self.config.attention_loss_weight, "masked_lm": self.config.masked_lm_weight}
        loss: torch.Tensor = sum(part * weights.get(name, 1) for name, part in means.items())  # type: ignore[assignment]
        return loss, {f"loss_{name}": part for name, part in means.items()}


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
        labels (`torch.FloatTensor` of shape `(batch, num_labels)`, *optional*):
            Score of each answer, from 0 to 1. The loss is the binary cross entropy, summed over answers.
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
        # The position of the first mask token, or of [CLS] where there is none.
        position = (input_ids == self.config.mask_token_id).int().argmax(dim=1)
        answer = outputs.last_hidden_state[torch.arange(len(position), device=position.device), position]  # (B, D)
        logits = self.classifier(self.dropout(self.transform(answer)))
        loss = None
        if labels is not None:
            # Summed over answers: their mean would make the gradient of a question some 3,000 times smaller.
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels.float()) * logits.shape[1]
        return SequenceClassifierOutput(
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
        labels (`torch.FloatTensor` of shape `(batch, boxes)`, *optional*):
            1 for regions that overlap what is referred to by an IoU above 0.5. The loss is the binary cross entropy,
            averaged over regions; logits are lowest at padding.
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
