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
"""The output of GroundedVisualBertForVGP."""

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import ModelOutput


@dataclass
class GroundedVisualBertForVGPOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The sum of the parts below. `loss_attention` and `loss_masked_lm` are multiplied by their weights in the
        config.
    loss_identification (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of caption-image matching.
    loss_paraphrase (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of the types of phrase pairs, averaged over the pairs of the batch.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The loss of `attention_supervision`, from words to boxes and from boxes to words.
    loss_masked_lm (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Cross entropy of masked words.
    logits (`torch.FloatTensor` of shape `(batch, 3)`):
        Scores of three cases: both captions match the image, only the first does, only the second does.
    paraphrase_logits (`torch.FloatTensor` of shape `(batch, pairs, 5)`, *optional*):
        Scores of the types of phrase pairs, with zeros for padding.
    grounding_logits (`torch.FloatTensor` of shape `(batch, phrases, boxes)`, *optional*):
        Scores of phrases and boxes for `"indirect"` supervision, with zeros for padding.
    last_hidden_state (`torch.FloatTensor` of shape `(batch, tokens + boxes, hidden_size)`):
        The states of the words, then of the regions.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The states after the embeddings and after each layer.
    attentions (`tuple(torch.FloatTensor)`, *optional*, returned when `output_attentions=True`):
        Attention probabilities before dropout, one tensor of shape `(batch, heads, length, length)` per layer.
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
