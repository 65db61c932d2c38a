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
"""The losses of ShowAttendTell: the likelihood of captions, and the attention terms of sections 4.1 and 4.2."""

import torch
from torch import nn

from .configuration_show_attend_tell import ShowAttendTellConfig


def captioning_losses(
    config: ShowAttendTellConfig,
    word_logits: torch.Tensor,
    labels: torch.Tensor,
    attention: torch.Tensor,
    num_items_in_batch: torch.Tensor | None = None,
    locations: torch.Tensor | None = None,
    baseline: torch.Tensor | None = None,
    update_baseline: bool = False,
) -> dict[str, torch.Tensor]:
    r"""
    Computes the loss and its parts.

    Args:
        config ([`ShowAttendTellConfig`]):
            The type of attention and the weights of the parts.
        word_logits (`torch.Tensor` of shape `(words, vocab_size)`):
            The logits of the words in `labels`, without padding.
        labels (`torch.LongTensor` of shape `(captions, length)`):
            Captions, padded with -100.
        attention (`torch.Tensor` of shape `(captions, length, locations)`):
            The attention weights alpha.
        num_items_in_batch (`torch.Tensor`, *optional*):
            The number of captions in all batches whose gradients are accumulated.
        locations (`torch.LongTensor` of shape `(captions, length)`, *optional*):
            The locations that hard attention sampled.
        baseline (`torch.Tensor`, *optional*):
            The moving average of rewards of hard attention.
        update_baseline (`bool`, *optional*, defaults to `False`):
            Whether to update the baseline with these captions.

    Returns:
        `dict[str, torch.Tensor]`: `loss` and its parts, with the names of [`ShowAttendTellCaptionerOutput`].
    """
    is_word = labels != -100
    is_caption = is_word.any(dim=-1)  # images can have different numbers of captions
    num_captions = is_caption.sum().clamp(min=1)
    share = 1 if num_items_in_batch is None else num_captions / num_items_in_batch
    word_losses = nn.functional.cross_entropy(word_logits.float(), labels[is_word], reduction="none")
    of_words = torch.zeros_like(labels, dtype=word_losses.dtype).masked_scatter(is_word, word_losses)
    caption_losses = of_words.sum(dim=1) / num_captions
    losses = {"loss_caption": word_losses.sum() / num_captions}

    # Equation 14: the attention to each location over a caption should sum to 1.
    attention = attention * is_word.unsqueeze(-1)
    uncovered = (1 - attention.sum(dim=1)).square().sum(dim=-1)
    losses["loss_attention"] = (uncovered * is_caption).sum() / num_captions
    if config.attention_type == "soft":
        loss = share * (losses["loss_caption"] + config.attention_penalty * losses["loss_attention"])
        return {"loss": loss, "caption_losses": share * caption_losses, **losses}

    losses["loss_attention"] = losses["loss_attention"].detach()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    # These terms are sums over the global batch, but DDP averages over processes. If `num_items_in_batch` is given,
    # Trainer already corrects for that.
    processes = torch.distributed.get_world_size() if distributed and num_items_in_batch is None else 1
    word_losses = word_losses.detach()
    reinforce, entropy = hard_attention_terms(attention, locations, of_words.detach(), is_word, baseline)
    if update_baseline:
        total = torch.stack([word_losses.sum(), is_word.sum().to(word_losses.dtype)])
        if distributed:
            torch.distributed.all_reduce(total)
        # Updated after use, with the words of all processes, so the baseline is the same on each.
        baseline.lerp_((total[0] / total[1].clamp(min=1)).to(baseline), 1 - config.baseline_decay)
    reinforce = processes * config.reinforce_weight * reinforce
    losses["loss_reinforce"] = reinforce.sum()
    losses["loss_entropy"] = processes * config.entropy_weight * entropy
    loss = share * losses["loss_caption"] + losses["loss_reinforce"] + losses["loss_entropy"]
    return {"loss": loss, "caption_losses": share * caption_losses + reinforce, **losses}


def hard_attention_terms(
    attention: torch.Tensor,
    locations: torch.Tensor | None,
    word_losses: torch.Tensor,
    is_word: torch.Tensor,
    baseline: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The REINFORCE and entropy terms of equation 11, with the reward, baseline and sums of the authors' code. The first
    has one number per caption.
    """
    log_attention = torch.log(attention.float() + 1e-8)
    entropy = (attention * log_attention).sum()
    if locations is None:
        return attention.new_zeros(len(attention)), entropy
    rewards = word_losses.sum(dim=1) / is_word.sum(dim=1).clamp(min=1) - baseline
    chosen = log_attention.gather(2, locations.unsqueeze(-1)).squeeze(-1) * is_word
    return rewards * chosen.sum(dim=1), entropy
