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
"""Spans, masks and the losses of GroundedVisualBert, as plain functions."""

import torch
from torch import nn

from ..attention_supervision import align_words, means_over_ranks, supervise_attention
from .configuration_grounded_visual_bert import GroundedVisualBertConfig


def phrase_box_loss(
    logits: torch.Tensor, phrase_boxes: torch.Tensor, region_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Binary cross entropy of a classifier of phrases and boxes, the "indirect" supervision.

    Args:
        logits (`torch.Tensor` of shape `(batch, phrases, boxes)`):
            The scores of phrases and boxes.
        phrase_boxes (`torch.Tensor` of shape `(batch, phrases, boxes)`):
            1 if a box shows what a phrase names. Phrases without any box are skipped.
        region_mask (`torch.Tensor` of shape `(batch, boxes)`):
            0 for padding.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The summed loss, and the number of phrase-box pairs.
    """
    # Box 0 is the whole image. It shows every phrase, so it is left out.
    is_pair = (phrase_boxes.amax(dim=2, keepdim=True) > 0) & (region_mask > 0).unsqueeze(1)
    is_pair = is_pair & (torch.arange(is_pair.shape[2], device=is_pair.device) > 0)
    summed = nn.functional.binary_cross_entropy_with_logits(
        logits[is_pair].float(), phrase_boxes[is_pair].float(), reduction="sum"
    )
    return summed, is_pair.sum()


def pool_spans(hidden_states: torch.Tensor, spans: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Takes the maximum over the tokens of each span.

    Args:
        hidden_states (`torch.Tensor` of shape `(batch, tokens, hidden_size)`):
            The states of the tokens.
        spans (`torch.LongTensor` of shape `(batch, spans, 2)`):
            The first token of each span, and the first token after it. Empty spans are padding.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The vectors of the spans that are not empty, and a mask of shape
        `(batch, spans)` that marks these spans.
    """
    start, end = spans.unbind(-1)
    is_span = end > start
    position = torch.arange(hidden_states.shape[1], device=spans.device)
    outside = (position < start[is_span].unsqueeze(-1)) | (position >= end[is_span].unsqueeze(-1))
    rows = hidden_states[is_span.nonzero()[:, 0]]  # (N, T, D)
    return rows.masked_fill(outside.unsqueeze(-1), torch.finfo(rows.dtype).min).amax(dim=1), is_span


def repeat_images(images: torch.Tensor, num_texts: int) -> torch.Tensor:
    """Repeats each row of images for the K texts of that image: texts `b * K` to `b * K + K - 1` get image `b`."""
    if len(images) == num_texts:
        return images
    if num_texts % len(images):
        raise ValueError(f"{num_texts} texts cannot be shared evenly among {len(images)} images.")
    return images.repeat_interleave(num_texts // len(images), dim=0)


def mask_of(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns `mask` with one row per text, or a mask of ones if there is none."""
    if mask is None:
        return torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
    return repeat_images(mask, len(states))


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the cross entropy summed over labels, and the number of labels. Labels of -100 are ignored."""
    summed = nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
    return summed, (labels != -100).sum()


def grounding_losses(
    config: GroundedVisualBertConfig,
    attentions: tuple[torch.Tensor, ...] | None,
    grounding_logits: torch.Tensor | None,
    phrase_spans: torch.Tensor,
    phrase_boxes: torch.Tensor,
    text_mask: torch.Tensor,
    region_mask: torch.Tensor,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The losses of `config.attention_supervision`: of the phrase-box classifier, of attention or of rollout."""
    if grounding_logits is not None:
        return {"phrase_box": phrase_box_loss(grounding_logits, phrase_boxes, region_mask)}
    return supervise_attention(
        attentions,
        align_words(phrase_spans, phrase_boxes, text_mask.shape[1]),  # (B, T, R)
        text_mask,
        region_mask,
        rollout=config.attention_supervision == "rollout",
        layers=config.supervised_layers,
        heads=config.supervised_heads,
        image_to_text_loss=config.image_to_text_loss,
    )


def weigh_losses(
    config: GroundedVisualBertConfig, losses: dict[str, tuple[torch.Tensor, torch.Tensor]], training: bool
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """Returns the weighted sum of losses, and its named parts."""
    if not losses:
        return None, {}
    means = means_over_ranks(losses, training)
    grounding = [means.pop(name) for name in ("phrase_box", "to_image", "to_text") if name in means]
    if grounding:
        means["attention"] = sum(grounding)  # type: ignore[assignment]  # there is at least one
    weights = {"attention": config.attention_loss_weight, "masked_lm": config.masked_lm_weight}
    loss: torch.Tensor = sum(part * weights.get(name, 1) for name, part in means.items())  # type: ignore[assignment]
    return loss, {f"loss_{name}": part for name, part in means.items()}


__all__ = [
    "grounding_losses",
    "mask_of",
    "phrase_box_loss",
    "pool_spans",
    "repeat_images",
    "summed_cross_entropy",
    "weigh_losses",
]
