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
"""The structure-content language model: words from the words before, the tags ahead and a content vector."""

import torch
from torch import nn

from .configuration_vse_scnlm import VseScnlmConfig


class VseScnlmDecoder(nn.Module):
    """
    The SC-NLM. With W_fv the matrix of `lm_head`, W_fk of `factor_context` and W_fd of `factor_attribute`:

        E = W_fk^T W_fv                                                     folded word embeddings
        r = sum_i C^(i) E[:, w_{n-i}]                                       from the words before
        u_hat = ReLU(sum_j T^(j) t_{n+j} + T_u u + b)                       from the tags ahead and the content
        P(w_n) = softmax(W_fv^T (W_fk r * W_fd u_hat) + b)
    """

    def __init__(self, config: VseScnlmConfig):
        super().__init__()
        self.config = config
        size, num_tags = config.hidden_size, config.num_forward_tags + 1
        self.lm_head = nn.Linear(config.num_factors, config.vocab_size)
        self.factor_context = nn.Linear(config.word_size, config.num_factors, bias=False)
        self.factor_attribute = nn.Linear(size, config.num_factors, bias=False)
        # C^(context_size), ..., C^(1) side by side, and T^(0), ..., T^(k) one above the other.
        self.context = nn.Linear(config.context_size * config.word_size, config.word_size, bias=False)
        self.embed_tags = nn.Embedding(len(config.tags), size)
        self.structure = nn.Linear(size, num_tags * size, bias=False)
        self.content = nn.Linear(size, size)
        self.dropout = nn.Dropout(config.decoder_dropout)

    def tag_table(self) -> torch.Tensor:
        """T^(j) t for each tag, of shape `(k + 1, tags, hidden_size)`: there are far fewer tags than words."""
        return self.structure(self.embed_tags.weight).unflatten(1, (-1, self.config.hidden_size)).transpose(0, 1)

    def word_table(self) -> torch.Tensor:
        """W_fk C^(i) E for each place of the context, the first the farthest: `(context_size, words, factors)`."""
        folded = self.lm_head.weight @ self.factor_context.weight  # E, transposed: (V, K_w)
        context = (self.factor_context.weight @ self.context.weight).unflatten(1, (-1, self.config.word_size))
        return torch.einsum("vk,fik->ivf", folded, context)

    def read(self, words: torch.LongTensor) -> torch.Tensor:
        r"""
        W_fk r, of shape `(sentences, length, factors)`.

        words (`torch.LongTensor` of shape `(sentences, context_size + length - 1)`):
            The words before each position, from `context_size` before the first on.
        """
        embeddings = nn.functional.embedding(words, self.lm_head.weight) @ self.factor_context.weight
        windows = embeddings.unfold(1, self.config.context_size, 1)  # (B, T, K_w, context_size)
        return self.factor_context(self.context(windows.transpose(2, 3).flatten(2)))

    def forward(
        self,
        context: torch.Tensor,
        tag_windows: torch.LongTensor,
        content: torch.Tensor,
        tag_table: torch.Tensor,
    ) -> torch.Tensor:
        r"""
        context (`torch.FloatTensor` of shape `(..., factors)`):
            W_fk r.
        tag_windows (`torch.LongTensor` of shape `(..., k + 1)`):
            The tags of each position and of the k after it.
        content (`torch.FloatTensor` of shape `(..., hidden_size)`):
            T_u u + b.
        """
        attribute = content
        for table, tags in zip(tag_table, tag_windows.unbind(-1), strict=True):
            attribute = attribute + nn.functional.embedding(tags, table)
        attribute = self.dropout(torch.relu(attribute))  # (..., G)
        return self.lm_head(context * self.factor_attribute(attribute))
