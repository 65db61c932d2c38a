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
"""A trigram language model with interpolated Kneser-Ney smoothing, stored in sorted tables."""

import torch
from torch import nn

from .configuration_vse_scnlm import VseScnlmConfig


class VseScnlmTrigrams(nn.Module):
    """
    P(w | u v) = max(c(u v w) - D3, 0) / c(u v) + D3 N(u v *) / c(u v) P(w | v). N(u v *) is the number of distinct
    words after u v. P(w | v) and P(w) have the same form, but count the distinct words before an n-gram instead of its
    occurrences. P(w) is mixed with a uniform distribution. The discount D of each order is n1 / (n1 + 2 n2), from the
    numbers of n-grams seen once and twice.

    The tables are tensors: they are saved with the model, and looked up for a whole batch at once.
    """

    trigrams: torch.Tensor
    trigram_scores: torch.Tensor
    bigrams: torch.Tensor
    bigram_scores: torch.Tensor
    bigram_backoffs: torch.Tensor
    word_scores: torch.Tensor
    word_backoffs: torch.Tensor

    def __init__(self, config: VseScnlmConfig):
        super().__init__()
        # This token comes twice before each sentence and once after it. That is unambiguous: nothing follows an end.
        self.boundary = config.eos_token_id
        self.trigrams = nn.Buffer(torch.zeros(config.num_trigrams, dtype=torch.long))
        self.trigram_scores = nn.Buffer(torch.zeros(config.num_trigrams))
        self.bigrams = nn.Buffer(torch.zeros(config.num_bigrams, dtype=torch.long))
        self.bigram_scores = nn.Buffer(torch.zeros(config.num_bigrams))
        self.bigram_backoffs = nn.Buffer(torch.zeros(config.num_bigrams))
        self.word_scores = nn.Buffer(torch.zeros(config.vocab_size))
        self.word_backoffs = nn.Buffer(torch.zeros(config.vocab_size))

    @torch.no_grad()
    def count(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        """Builds the tables from sentences that end with the end token."""
        size, device = len(self.word_scores), self.word_scores.device
        words, is_word = self.windows(input_ids.to(device), attention_mask.to(device))
        first, second, third = words[is_word].unbind(-1)
        trigrams, counts = torch.unique((first * size + second) * size + third, return_counts=True)
        # Lower orders count the distinct words before a bigram, and before a word.
        bigrams, after = torch.unique(trigrams % size**2, return_counts=True)
        unigrams, after_any = torch.unique(bigrams % size, return_counts=True)

        scores, histories, backoffs = self._discount(trigrams, counts, size)
        all_bigrams = torch.unique(torch.cat([bigrams, histories]))
        self.trigrams, self.trigram_scores = trigrams, scores
        self.bigrams = all_bigrams
        # The start of a sentence is a bigram that only occurs as a history. It has no score.
        self.bigram_scores = torch.full(all_bigrams.shape, -torch.inf, device=device)
        self.bigram_backoffs = torch.zeros(all_bigrams.shape, device=device)
        self.bigram_backoffs[torch.searchsorted(all_bigrams, histories)] = backoffs
        scores, histories, backoffs = self._discount(bigrams, after, size)
        self.bigram_scores[torch.searchsorted(all_bigrams, bigrams)] = scores
        # Buffers must be finite: e^-100 is as good as 0.
        self.bigram_scores.clamp_(min=-100.0)
        self.word_backoffs = torch.zeros(size, device=device)
        self.word_backoffs[histories] = backoffs
        discount = self._discount_of(after_any)
        total = after_any.sum()
        probabilities = torch.zeros(size, device=device)
        probabilities[unigrams] = (after_any - discount) / total
        self.word_scores = (probabilities + discount * len(unigrams) / total / size).log()

    @torch.no_grad()
    def resize(self, size: int) -> None:
        """Changes the number of words. N-grams with a removed word are deleted. New words count as unseen words."""
        old, few = len(self.word_scores), min(size, len(self.word_scores))

        def renumbered(ngrams: torch.Tensor, order: int) -> tuple[torch.Tensor, torch.Tensor]:
            words = [ngrams // old**place % old for place in range(order)]
            kept = torch.stack(words).amax(dim=0) < size
            return sum(word * size**place for place, word in enumerate(words))[kept], kept

        self.trigrams, kept = renumbered(self.trigrams, 3)
        self.trigram_scores = self.trigram_scores[kept]
        self.bigrams, kept = renumbered(self.bigrams, 2)
        self.bigram_scores, self.bigram_backoffs = self.bigram_scores[kept], self.bigram_backoffs[kept]
        self.word_backoffs = nn.functional.pad(self.word_backoffs[:few], (0, size - few))
        # The probability of unseen words (padding is one of them) is now shared by more or fewer words.
        probabilities = self.word_scores.exp()
        unseen = probabilities.min()
        probabilities = nn.functional.pad(probabilities[:few] - unseen, (0, size - few)) + unseen * old / size
        self.word_scores = (probabilities / probabilities.sum()).log()

    def _discount_of(self, counts: torch.Tensor) -> float:
        once, twice = ((counts == number).sum().item() for number in (1, 2))
        # With few sentences, no n-gram may occur once or twice. The bounds keep all probabilities above zero.
        return min(max(once / max(once + 2 * twice, 1), 0.1), 0.9)

    def _discount(self, ngrams: torch.Tensor, counts: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        """Returns discounted log probabilities of n-grams, their histories, and the log weight of lower orders."""
        histories, which, different = torch.unique(ngrams // size, return_inverse=True, return_counts=True)
        totals = torch.zeros(len(histories), device=counts.device).index_add_(0, which, counts.float())
        discount = self._discount_of(counts)
        scores = ((counts - discount) / totals[which]).log()
        return scores, histories, (discount * different / totals).log()

    def windows(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each token with the two before it, of shape `(sentences, length, 3)`, and a mask of real tokens."""
        padded = nn.functional.pad(input_ids, (2, 0), value=self.boundary)
        return padded.unfold(1, 3, 1), attention_mask.bool()

    @torch.no_grad()
    def log_probabilities(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the natural log probability of each token given the tokens before it, and 0 for padding."""
        words, is_word = self.windows(input_ids, attention_mask)
        first, second, third = words.unbind(-1)
        size = len(self.word_scores)

        def look_up(keys: torch.Tensor, table: torch.Tensor, values: torch.Tensor, missing: float) -> torch.Tensor:
            place = torch.searchsorted(table, keys).clamp(max=len(table) - 1)
            return torch.where(table[place] == keys, values.float()[place], missing)

        # An unseen n-gram has probability 0 in its own order. An unseen history leaves everything to lower orders.
        trigram = look_up((first * size + second) * size + third, self.trigrams, self.trigram_scores, -torch.inf)
        bigram = look_up(second * size + third, self.bigrams, self.bigram_scores, -torch.inf)
        backoff = look_up(first * size + second, self.bigrams, self.bigram_backoffs, 0.0)
        shorter = torch.logaddexp(bigram, self.word_backoffs.float()[second] + self.word_scores.float()[third])
        return torch.logaddexp(trigram, backoff + shorter).masked_fill(~is_word, 0.0)
