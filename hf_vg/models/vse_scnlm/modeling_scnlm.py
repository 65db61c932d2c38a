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
"""PyTorch structure-content language model (SC-NLM): decodes sentences from vectors of the joint space."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_vse_scnlm import PAD_TAG, VseScnlmConfig
from .generation_vse_scnlm import VseScnlmGenerationMixin, VseScnlmMemory
from .modeling_vse_scnlm import VseScnlmModel, VseScnlmPreTrainedModel
from .trigrams_vse_scnlm import VseScnlmTrigrams


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
        """Returns T^(j) t for each tag, of shape `(k + 1, tags, hidden_size)`. There are far fewer tags than words."""
        return self.structure(self.embed_tags.weight).unflatten(1, (-1, self.config.hidden_size)).transpose(0, 1)

    def word_table(self) -> torch.Tensor:
        """Returns W_fk C^(i) E of each context position, farthest first: `(context_size, words, factors)`."""
        folded = self.lm_head.weight @ self.factor_context.weight  # E, transposed: (V, K_w)
        context = (self.factor_context.weight @ self.context.weight).unflatten(1, (-1, self.config.word_size))
        return torch.einsum("vk,fik->ivf", folded, context)

    def read(self, words: torch.Tensor) -> torch.Tensor:
        r"""
        Computes W_fk r from the previous words.

        Args:
            words (`torch.LongTensor` of shape `(sentences, context_size + length - 1)`):
                The words, with `context_size` start tokens before the first one.

        Returns:
            `torch.Tensor` of shape `(sentences, length, factors)`: W_fk r of each position.
        """
        embeddings = nn.functional.embedding(words, self.lm_head.weight) @ self.factor_context.weight
        windows = embeddings.unfold(1, self.config.context_size, 1)  # (B, T, K_w, context_size)
        return self.factor_context(self.context(windows.transpose(2, 3).flatten(2)))

    def forward(
        self,
        context: torch.Tensor,
        tag_windows: torch.Tensor,
        content: torch.Tensor,
        tag_table: torch.Tensor,
    ) -> torch.Tensor:
        r"""
        Computes W_fk r * W_fd u_hat, the input of `lm_head`.

        Args:
            context (`torch.FloatTensor` of shape `(..., factors)`):
                W_fk r.
            tag_windows (`torch.LongTensor` of shape `(..., k + 1)`):
                The tag of each position and the next k tags.
            content (`torch.FloatTensor` of shape `(..., hidden_size)`):
                T_u u + b.
            tag_table (`torch.FloatTensor` of shape `(k + 1, tags, hidden_size)`):
                The result of `tag_table()`.

        Returns:
            `torch.Tensor` of shape `(..., factors)`: The product.
        """
        attribute = content
        for table, tags in zip(tag_table, tag_windows.unbind(-1), strict=True):
            attribute = attribute + nn.functional.embedding(tags, table)
        attribute = self.dropout(torch.relu(attribute))  # (..., G)
        return context * self.factor_attribute(attribute)  # (..., F)


@dataclass
class VseScnlmLMOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption`. If you pass `num_items_in_batch`, the sum over tokens divided by that number.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of the words, averaged over the tokens of the batch.
    logits (`torch.FloatTensor` of shape `(sentences, length, vocab_size)`, *optional*):
        Scores of each word, given the previous words. `None` if the model is in training mode and gets `labels`.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        W_fk r, computed from the previous words, and its product with W_fd u_hat, the input of `lm_head`. Both have
        the shape `(sentences, length, num_factors)`.
    """

    loss: torch.Tensor | None = None
    loss_caption: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


class VseScnlmForConditionalGeneration(VseScnlmPreTrainedModel, VseScnlmGenerationMixin):
    r"""
    The structure-content language model (SC-NLM) on top of a frozen joint space. It is trained on sentences and their
    vectors, and describes images.

    After training, call `remember` with the training captions. `generate` needs the templates and vectors that it
    collects.

    Args:
        config ([`VseScnlmConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import VseScnlmConfig, VseScnlmForConditionalGeneration

    >>> tags = ["<pad>", "<eos>", "<unk>", "DET", "ADJ", "NOUN"]
    >>> config = VseScnlmConfig(vocab_size=20, feature_size=8, embedding_size=8, hidden_size=16, tags=tags)
    >>> model = VseScnlmForConditionalGeneration(config).eval()
    >>> captions = torch.tensor([[5, 6, 7, 0], [5, 8, 9, 0]])  # words, then the end token
    >>> model.remember(captions, tag_ids=torch.tensor([[3, 4, 5, 1], [3, 4, 5, 1]]), min_template_length=3)
    >>> model.generate(image_features=torch.rand(1, 8)).shape  # three words and the end token
    torch.Size([1, 4])
    ```
    """

    _no_split_modules = ["VseScnlmTextEncoder", "VseScnlmDecoder"]

    def __init__(self, config: VseScnlmConfig):
        super().__init__(config)
        self.model = VseScnlmModel(config)
        self.decoder = VseScnlmDecoder(config)
        self.memory = VseScnlmMemory(config)
        self.trigrams = VseScnlmTrigrams(config)
        self.model.requires_grad_(False)
        self.post_init()
        self.generation_config.update(allow_custom_entries=True, **self.generation_defaults)
        # Otherwise loading would drop the options that only this model has.
        self.generation_config._from_model_config = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (VseScnlmMemory, VseScnlmTrigrams)):
            for buffer in module.buffers():
                init.zeros_(buffer)

    def train(self, mode: bool = True) -> "VseScnlmForConditionalGeneration":
        super().train(mode)
        # `from_pretrained` creates new parameters and then calls `eval`, which calls `train`. So these are frozen too.
        self.model.eval().requires_grad_(False)
        return self

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.decoder.lm_head = new_embeddings

    @torch.no_grad()
    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        r"""
        Changes the number of words. The word vectors and trigrams that `generate` uses are resized too.

        N-grams with a removed word are deleted. A new word gets a vector, and the probability of an unseen word.

        Args:
            new_num_tokens (`int`, *optional*):
                The new number of words. By default it does not change.
            pad_to_multiple_of (`int`, *optional*):
                Rounds the number of words up to a multiple of this number.
            mean_resizing (`bool`, *optional*, defaults to `True`):
                Whether new embeddings are drawn from the mean and covariance of the old ones.

        Returns:
            `nn.Embedding`: The word embeddings.
        """
        old_size = self.config.vocab_size
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.vocab_size != old_size:
            self.trigrams.resize(self.config.vocab_size)
            self.config.num_bigrams, self.config.num_trigrams = len(self.trigrams.bigrams), len(self.trigrams.trigrams)
            if len(self.memory.word_embeds):
                new_words = torch.arange(self.config.vocab_size, device=self.device)[old_size:]
                kept = self.memory.word_embeds[: self.config.vocab_size]
                self.memory.word_embeds = torch.cat([kept, self.embed_words(new_words)])
        return embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        tag_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        content_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VseScnlmLMOutput:
        r"""
        Computes the scores of each word of sentences, and the loss if you pass `labels`.

        Args:
            input_ids (`torch.LongTensor` of shape `(sentences, length)`, *optional*):
                Sentences that end with the end token, padded on the right. Made from `labels` by default.
            tag_ids (`torch.LongTensor` of shape `(sentences, length)`):
                The tag of each token, including the end token. Positions after it have the padding tag, 0.
            attention_mask (`torch.Tensor` of shape `(sentences, length)`, *optional*):
                1 for tokens, 0 for padding. By default, all tokens except the padding token count.
            content_embeds (`torch.FloatTensor` of shape `(sentences, hidden_size)`, *optional*):
                u, any vector of the space. Defaults to the vector of the sentence itself.
            labels (`torch.LongTensor` of shape `(sentences, length)`, *optional*):
                The same sentences, padded with -100. They are not shifted.
            kwargs (*optional*):
                `num_items_in_batch`, the number of tokens that the loss is divided by, and `output_hidden_states` and
                `return_dict`, as in other transformers models.

        Returns:
            [`VseScnlmLMOutput`]: The loss and the logits.
        """
        if input_ids is None:
            input_ids = labels.masked_fill(labels == -100, self.config.pad_token_id)
            attention_mask = (labels != -100).long()
        if tag_ids is None or tag_ids.shape != input_ids.shape:
            raise ValueError(
                f"`tag_ids` must hold one tag per token, so its shape must be {tuple(input_ids.shape)}, got "
                f"{None if tag_ids is None else tuple(tag_ids.shape)}."
            )
        if content_embeds is None:
            with torch.no_grad():
                outputs = self.model.get_text_features(input_ids, attention_mask, return_dict=True)
            content_embeds = outputs.pooler_output
        size, config = self.config.context_size, self.config
        previous = nn.functional.pad(input_ids[:, :-1], (size, 0), value=config.decoder_start_token_id)
        ahead = nn.functional.pad(tag_ids, (0, config.num_forward_tags), value=config.tags.index(PAD_TAG))
        context = self.decoder.read(previous)
        factors = self.decoder(
            context,
            ahead.unfold(1, config.num_forward_tags + 1, 1),
            self.decoder.content(content_embeds.to(self.dtype)).unsqueeze(1),
            self.decoder.tag_table(),
        )
        logits = self.decoder.lm_head(factors)

        loss, loss_caption = None, None
        if labels is not None:
            summed = nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum"
            )
            loss_caption = summed / (labels != -100).sum().clamp(min=1)
            # Trainer passes the number of tokens in all batches and devices whose gradients are accumulated.
            num_items_in_batch = kwargs.get("num_items_in_batch")
            loss = loss_caption if num_items_in_batch is None else summed / num_items_in_batch
        only_loss = self.training and labels is not None
        return VseScnlmLMOutput(
            loss=loss,
            loss_caption=loss_caption,
            logits=None if only_loss else logits,
            hidden_states=(context, factors) if self.returns_hidden_states(kwargs) else None,
        )


__all__ = ["VseScnlmForConditionalGeneration"]
