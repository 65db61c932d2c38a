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
"""Supervision of attention as plain functions: rollout, the losses, and what they need."""

import torch
from torch import nn


EPSILON = 1e-6  # of the attention losses, as in the authors' code


def attention_rollout(
    attentions: tuple[torch.Tensor, ...], layers: list[int] | None = None, heads: list[int] | None = None
) -> tuple[torch.Tensor, ...]:
    r"""
    Attention rollout (Abnar and Zuidema, 2020): how much of each input a position of a layer holds, if attention mixed
    inputs linearly and half of every layer were its residual connection.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities, one tensor of shape `(batch, heads, length, length)` per layer, first layer first.
        layers (`list[int]`, *optional*):
            The layers to return, all by default. Nothing is computed above the last of them.
        heads (`list[int]`, *optional*):
            The heads whose mean is rolled out, all by default.

    Returns:
        `tuple[torch.Tensor]`: One tensor of shape `(batch, length, length)` per returned layer. Its rows sum to one.
    """
    wanted = [index % len(attentions) for index in (range(len(attentions)) if layers is None else layers)]
    rollouts = []
    for attention in attentions[: max(wanted) + 1]:
        mean = (attention if heads is None else attention[:, heads]).mean(dim=1)
        mixing = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        mixing = mixing / mixing.sum(dim=-1, keepdim=True)
        rollouts.append(mixing @ rollouts[-1] if rollouts else mixing)
    return tuple(rollouts[index] for index in wanted)


def cross_attention_rollout(
    attentions: tuple[torch.Tensor, ...], layers: list[int] | None = None, heads: list[int] | None = None
) -> tuple[torch.Tensor, ...]:
    r"""
    Rollout for cross-attention, which adds what it looks at to a stream of words. A layer with attention A makes
    (C + A) / 2 of what the layers below have gathered, C. What words gather from each other is left out.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention to the image, one tensor of shape `(batch, heads, words, columns)` per layer, first layer first.
        layers (`list[int]`, *optional*), heads (`list[int]`, *optional*):
            As for [`attention_rollout`].

    Returns:
        `tuple[torch.Tensor]`: One tensor of shape `(batch, words, columns)` per returned layer.
    """
    gathered = [torch.zeros_like(attentions[0][:, 0])]
    for attention in attentions:
        gathered.append((gathered[-1] + (attention if heads is None else attention[:, heads]).mean(dim=1)) / 2)
    return tuple(gathered[1:] if layers is None else [gathered[1:][layer] for layer in layers])


def attention_loss(
    attention: torch.Tensor, targets: torch.Tensor, column_mask: torch.Tensor, kind: str = "ce"
) -> torch.Tensor:
    r"""
    Loss of the attention from rows to columns, summed over the rows that have a target and averaged over layers and
    heads.

    Args:
        attention (`torch.Tensor` of shape `(layers, batch, heads, rows, columns)`):
            Attention or rollout, zero at padded columns.
        targets (`torch.Tensor` of shape `(batch, rows, columns)`):
            1 where a row should look, which may be several columns. A row without any has no loss.
        column_mask (`torch.Tensor` of shape `(batch, columns)`):
            1 for columns that are not padding.
        kind (`str`, *optional*, defaults to `"ce"`):
            Cross entropy with the targets, each of which has an equal share; or `"bce_log"`.
    """
    attention, targets = attention.float(), targets.float()
    log_share = torch.log(EPSILON + attention / (attention.sum(dim=-1, keepdim=True) + EPSILON))
    if kind == "ce":
        share = targets / targets.sum(dim=-1, keepdim=True).clamp(min=1)
        return -(share.unsqueeze(1) * log_share).sum() / (attention.shape[0] * attention.shape[2])
    # The authors take the log of a probability for a logit.
    columns = column_mask.float()[:, None, None]
    supervised = targets.amax(dim=-1, keepdim=True).unsqueeze(1)
    terms = nn.functional.binary_cross_entropy_with_logits(
        log_share, targets.unsqueeze(1).expand_as(log_share), reduction="none"
    )
    terms = terms * columns * supervised / columns.sum(dim=-1, keepdim=True)
    return terms.sum() / (attention.shape[0] * attention.shape[2])


def supervise_attention(
    attentions: tuple[torch.Tensor, ...],
    alignment: torch.Tensor,
    text_mask: torch.Tensor,
    region_mask: torch.Tensor,
    rollout: bool = False,
    layers: list[int] | None = None,
    heads: list[int] | None = None,
    image_to_text_loss: str = "ce",
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    r"""
    The losses of a sequence of words and then regions: words should look at the regions that show them, and regions at
    the words that name them.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities before dropout, one tensor of shape `(batch, heads, length, length)` per layer.
        alignment (`torch.Tensor` of shape `(batch, words, regions)`):
            1 where a region shows a word. See [`align_words`].
        text_mask (`torch.Tensor` of shape `(batch, words)`), region_mask (`torch.Tensor` of shape `(batch, regions)`):
            0 for padding.
        rollout (`bool`, *optional*, defaults to `False`):
            Whether attention rollout is supervised instead of each head's attention.
        layers (`list[int]`, *optional*), heads (`list[int]`, *optional*):
            The layers and heads to supervise, all by default.
        image_to_text_loss (`str`, *optional*, defaults to `"ce"`):
            The kind of loss from regions to words. See [`attention_loss`].

    Returns:
        `dict`: `to_image` and `to_text`: the summed loss, and the number of words or regions that it is summed over.
    """
    if rollout:
        maps = [mixed.unsqueeze(1) for mixed in attention_rollout(attentions, layers, heads)]
    else:
        maps = attentions if layers is None else [attentions[layer] for layer in layers]
        maps = maps if heads is None else [attention[:, heads] for attention in maps]
    words = alignment.shape[1]
    to_image = torch.stack([attention[:, :, :words, words:] for attention in maps])  # (L, B, H, T, R)
    to_text = torch.stack([attention[:, :, words:, :words] for attention in maps])  # (L, B, H, R, T)
    return {
        "to_image": (attention_loss(to_image, alignment, region_mask), alignment.amax(dim=2).sum()),
        "to_text": (
            attention_loss(to_text, alignment.transpose(1, 2), text_mask, image_to_text_loss),
            alignment.amax(dim=1).sum(),
        ),
    }


def align_words(phrase_spans: torch.Tensor, phrase_boxes: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """1 where a token belongs to a phrase that a box shows, of shape `(batch, tokens, boxes)`."""
    position = torch.arange(num_tokens, device=phrase_spans.device)
    start, end = phrase_spans.unsqueeze(2).unbind(-1)
    inside = (position >= start) & (position < end)  # (B, E, T)
    return (inside.float().transpose(1, 2) @ phrase_boxes.float()).clamp(max=1)


def means_over_ranks(losses: dict[str, tuple[torch.Tensor, torch.Tensor]], training: bool) -> dict[str, torch.Tensor]:
    """
    Divides summed losses by their counts; a count of zero gives zero. In distributed training the counts are those of
    all ranks: gradients are averaged over ranks, and the average is then the mean over all that the ranks hold.
    """
    total = torch.stack([count.float() for _, count in losses.values()])
    ranks = 1
    if training and torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        torch.distributed.all_reduce(total)
    scales = ranks / total.clamp(min=1)
    return {name: summed * scale for (name, (summed, _)), scale in zip(losses.items(), scales, strict=True)}


__all__ = [
    "align_words",
    "attention_loss",
    "attention_rollout",
    "cross_attention_rollout",
    "means_over_ranks",
    "supervise_attention",
]
