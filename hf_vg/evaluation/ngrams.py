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

"""N-gram counts of captions in numpy, for BLEU and CIDEr."""

from collections.abc import Iterable
from functools import cached_property
from itertools import chain

import numpy as np


ORDERS = (1, 2, 3, 4)

Ngram = tuple[str, ...]


class CaptionCorpus:
    """
    All captions as one list of sentences: the prediction of image 0, the references of image 0, the prediction of
    image 1, and so on.

    Args:
        predictions (`list[list[str]]`):
            The words of one caption per image.
        references (`list[list[list[str]]]`):
            The words of each reference of each image.
    """

    def __init__(self, predictions: list[list[str]], references: list[list[list[str]]]):
        self.predictions, self.references = predictions, references
        sentences = [
            words
            for prediction, others in zip(predictions, references, strict=True)
            for words in (prediction, *others)
        ]
        self.words = list(chain.from_iterable(sentences))
        self.lengths = np.array([len(words) for words in sentences])
        self.num_images = len(predictions)
        self.num_references = np.array([len(others) for others in references])
        # The image of each sentence, and the index of each image's prediction.
        self.image = np.repeat(np.arange(self.num_images), self.num_references + 1)
        self.prediction = np.cumsum(self.num_references + 1) - self.num_references - 1
        self.is_reference = np.ones(len(sentences), dtype=bool)
        self.is_reference[self.prediction] = False

    @cached_property
    def counts(self) -> "list[NgramCounts]":
        """The counts for n = 1, 2, 3, 4."""
        vocabulary = {word: index for index, word in enumerate(dict.fromkeys(self.words))}
        words = np.fromiter(map(vocabulary.__getitem__, self.words), dtype=np.int64, count=len(self.words))
        sentence = np.repeat(np.arange(len(self.lengths)), self.lengths)
        end = np.repeat(np.cumsum(self.lengths), self.lengths)
        position, ids = np.arange(len(words)), words
        counts = []
        for order in ORDERS:
            if order > 1:
                # An n-gram is the (n-1)-gram at the same position and the next word.
                inside = position + order <= end[position]
                position = position[inside]
                ids = ids[inside] * len(vocabulary) + words[position + order - 1]
            # The sort is stable, so it groups by n-gram, then by image, then by sentence.
            by_ngram = np.argsort(ids, kind="stable")
            starts = _run_starts(ids[by_ngram])
            rank = np.cumsum(starts) - 1
            ids = np.empty_like(ids)
            ids[by_ngram] = rank
            sorted_sentence = sentence[position[by_ngram]]
            entry = np.flatnonzero(starts | _run_starts(sorted_sentence))
            count = np.diff(entry, append=len(rank))
            first_position = position[by_ngram[starts]]
            counts.append(NgramCounts(self, order, rank[entry], sorted_sentence[entry], count, first_position))
        return counts


class NgramCounts:
    """
    Counts of n-grams. Entry `e` means that sentence `sentence[e]` has n-gram `ngram[e]` `count[e]` times.

    The entries are sorted by n-gram, then by sentence. The entries of an n-gram in an image form a group, in which the
    entry of the prediction, if there is one, comes first.
    """

    def __init__(
        self,
        corpus: CaptionCorpus,
        order: int,
        ngram: np.ndarray,
        sentence: np.ndarray,
        count: np.ndarray,
        first_position: np.ndarray,
    ):
        self.ngram, self.sentence, self.count = ngram, sentence, count
        self.is_reference = corpus.is_reference[sentence]
        self._words, self._order, self._first_position = corpus.words, order, first_position
        image = corpus.image[sentence]
        self._starts = _run_starts(ngram) | _run_starts(image)
        self.group = np.cumsum(self._starts) - 1
        self.group_start = np.flatnonzero(self._starts)
        self.group_image = image[self.group_start]

    def predicted(self) -> np.ndarray:
        """Returns the count in the prediction, for each group."""
        return np.where(self.is_reference[self.group_start], 0, self.count[self.group_start])

    def most_in_a_reference(self) -> np.ndarray:
        """Returns the largest count in a reference, for each group."""
        count = np.where(self.is_reference, self.count, 0)
        return np.maximum.reduceat(count, self.group_start) if len(count) else count

    def images_with(self) -> np.ndarray:
        """Returns the number of images with each n-gram in a reference."""
        # The last entry of a group is a reference, unless only the prediction has the n-gram.
        group_end = np.roll(self._starts, -1)
        return np.bincount(self.ngram[group_end & self.is_reference], minlength=len(self._first_position))

    def ngrams(self) -> list[Ngram]:
        """Returns the words of each n-gram."""
        return [tuple(self._words[start : start + self._order]) for start in self._first_position]


def ngrams(words: list[str], order: int) -> Iterable[Ngram]:
    """Returns the n-grams of a sentence from left to right."""
    return zip(*(words[start:] for start in range(order)), strict=False)


def _run_starts(values: np.ndarray) -> np.ndarray:
    """Marks the start of each run of equal values."""
    starts = np.ones(len(values), dtype=bool)
    starts[1:] = values[1:] != values[:-1]
    return starts
