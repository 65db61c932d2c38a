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
"""Attention rollout and the losses of supervised attention, as plain functions."""

import torch
from torch import nn


EPSILON = 1e-6  # of the attention losses, as in the authors' code


def attention_rollout(
    attentions: tuple[torch.Tensor, ...], layers: list[int] | None = None, heads: list[int] | None = None
) -> tuple[torch.Tensor, ...]:
    r"""
    Attention rollout (Abnar and Zuidema, 2020): how much each input contributes to each position of a layer. It
    assumes that attention mixes its inputs linearly, and that half of each layer is the residual connection.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities, one tensor of shape `(batch, heads, length, length)` per layer, first layer first.
        layers (`list[int]`, *optional*):
            The layers to return. Defaults to all layers.
        heads (`list[int]`, *optional*):
            The heads to average. Defaults to all heads.

    Returns:
        `tuple[torch.Tensor]`: One tensor of shape `(batch, length, length)` per returned layer. Its rows sum to 1.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.models.attention_supervision import attention_rollout

    >>> attentions = tuple(torch.rand(1, 2, 4, 4).softmax(-1) for _ in range(3))  # 3 layers of 2 heads
    >>> attention_rollout(attentions, layers=[-1])[0].shape
    torch.Size([1, 4, 4])
    ```
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
    Rollout for cross-attention from words to an image: how much each location contributes to each word of a layer.

    With attention A, a layer turns the contributions C of the layers below into (C + A) / 2. Self-attention among
    words is left out.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention to the image, one tensor of shape `(batch, heads, words, columns)` per layer, first layer first.
        layers (`list[int]`, *optional*):
            The layers to return. Defaults to all layers.
        heads (`list[int]`, *optional*):
            The heads to average. Defaults to all heads.

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
    The loss of the attention from rows to columns: summed over the rows with a target, averaged over layers and heads.

    Args:
        attention (`torch.Tensor` of shape `(layers, batch, heads, rows, columns)`):
            Attention or rollout, zero at padded columns.
        targets (`torch.Tensor` of shape `(batch, rows, columns)`):
            1 for the columns that a row should attend to. Rows without such a column have no loss.
        column_mask (`torch.Tensor` of shape `(batch, columns)`):
            0 for padded columns.
        kind (`str`, *optional*, defaults to `"ce"`):
            `"ce"` is the cross entropy with the targets, which share the probability equally. `"bce_log"` is the
            binary cross entropy of log probabilities, as in the authors' code.

    Returns:
        `torch.Tensor`: The loss, a scalar.
    """
    attention, targets = attention.float(), targets.float()
    log_share = torch.log(EPSILON + attention / (attention.sum(dim=-1, keepdim=True) + EPSILON))
    if kind == "ce":
        share = targets / targets.sum(dim=-1, keepdim=True).clamp(min=1)
        return -(share.unsqueeze(1) * log_share).sum() / (attention.shape[0] * attention.shape[2])
    # The authors use the log of a probability as a logit.
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
    The attention losses of a sequence of words and then regions. Words should attend to the regions that show them,
    and regions to the words that name them.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities before dropout, one tensor of shape `(batch, heads, length, length)` per layer.
        alignment (`torch.Tensor` of shape `(batch, words, regions)`):
            1 if a region shows a word. See [`align_words`].
        text_mask (`torch.Tensor` of shape `(batch, words)`):
            0 for padded words.
        region_mask (`torch.Tensor` of shape `(batch, regions)`):
            0 for padded regions.
        rollout (`bool`, *optional*, defaults to `False`):
            Whether to supervise attention rollout instead of the attention of each head.
        layers (`list[int]`, *optional*):
            The layers to supervise. Defaults to all layers.
        heads (`list[int]`, *optional*):
            The heads to supervise. Defaults to all heads.
        image_to_text_loss (`str`, *optional*, defaults to `"ce"`):
            The kind of loss from regions to words. See [`attention_loss`].

    Returns:
        `dict`: For `to_image` and `to_text`, the summed loss and the number of words or regions in the sum.
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
    r"""
    Turns phrases and their boxes into targets for each token.

    Args:
        phrase_spans (`torch.LongTensor` of shape `(batch, phrases, 2)`):
            The first token of each phrase, and the first token after it.
        phrase_boxes (`torch.Tensor` of shape `(batch, phrases, boxes)`):
            1 if a box shows what a phrase names.
        num_tokens (`int`):
            The number of tokens of the text.

    Returns:
        `torch.Tensor` of shape `(batch, tokens, boxes)`: 1 if a token is part of a phrase that a box shows.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.models.attention_supervision import align_words

    >>> align_words(torch.tensor([[[1, 3]]]), torch.tensor([[[0, 1]]]), num_tokens=4)  # tokens 1 and 2, box 1
    tensor([[[0., 0.],
             [0., 1.],
             [0., 1.],
             [0., 0.]]])
    ```
    """
    position = torch.arange(num_tokens, device=phrase_spans.device)
    start, end = phrase_spans.unsqueeze(2).unbind(-1)
    inside = (position >= start) & (position < end)  # (B, E, T)
    return (inside.float().transpose(1, 2) @ phrase_boxes.float()).clamp(max=1)


def means_over_ranks(losses: dict[str, tuple[torch.Tensor, torch.Tensor]], training: bool) -> dict[str, torch.Tensor]:
    """
    Divides summed losses by their counts. A count of zero gives zero. In distributed training, counts are summed over
    ranks: DDP averages gradients over ranks, and the result is then the mean over the global batch.
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
