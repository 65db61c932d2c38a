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

"""Caption metrics with the numbers of the COCO caption evaluation, in plain Python and numpy.

On the same tokens BLEU, ROUGE-L and CIDEr-D equal `pycocoevalcap`; [`ptb_tokenize`] stands in for its Java tokenizer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from transformers.utils import logging

from .meteor import meteor_java, meteor_java_available, meteor_python
from .ngrams import ORDERS, CaptionCorpus, Ngram, NgramCounts, ngrams
from .tokenization import ptb_tokenize


if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

logger = logging.get_logger(__name__)

METRICS = ("bleu", "bleu_no_bp", "bleu_punctuation", "rouge", "cider", "meteor", "meteor_python", "diversity")
OF_A_SET = ("bleu_punctuation", "diversity")  # and not of each caption

# The COCO evaluation keeps BLEU finite with these two; equal numbers need equal constants.
BLEU_TINY, BLEU_SMALL = 1e-15, 1e-9
ROUGE_BETA = 1.2
CIDER_SIGMA = 6.0

Tokenize = Callable[[str], list[str]]


def caption_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = ("bleu", "rouge", "cider"),
    df: "DocumentFrequencies | None" = None,
    tokenize: Tokenize = ptb_tokenize,
) -> dict[str, float]:
    """
    Scores one caption per image against that image's references, over the whole set.

    Args:
        predictions (`list[str]`):
            One caption per image. An empty caption scores 0.
        references (`list[list[str]]`):
            The captions people wrote, at least one per image.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider")`):
            Any of

            - `"bleu"`: corpus BLEU-1 to BLEU-4 with the closest reference length, `bleu1` to `bleu4`.
            - `"bleu_no_bp"`: the same without brevity penalty, as many papers up to about 2015 report it,
              `bleu1_no_bp` to `bleu4_no_bp`.
            - `"bleu_punctuation"`: with punctuation as words, see [`bleu_punctuation`].
            - `"rouge"`: `rouge_l`, the F-measure (beta 1.2) of the best recall and the best precision over the
              references.
            - `"cider"`: `cider_d` is what `pycocoevalcap` and nearly all papers call CIDEr. Counts are clipped at the
              reference's, and a difference in length is penalised (sigma 6). `cider` is the plain variant, the mean
              cosine of the TF-IDF vectors of the 1- to 4-grams, with neither. Both have the factor 10 of their
              authors' code, and neither stems words.
            - `"meteor"`: METEOR 1.5 by its authors' Java program, where Java and `pycocoevalcap` are installed.
              Elsewhere this gives `"meteor_python"`.
            - `"meteor_python"`: the same formula without the paraphrase stage. Its scores are not comparable with
              `meteor`.
            - `"diversity"`: `distinct1` to `distinct4` (distinct n-grams over all n-grams predicted), `vocabulary`
              (number of distinct words predicted), `vocabulary_use` (share of the references' distinct words that are
              predicted), `length` and `reference_length` (mean number of words).
        df (`DocumentFrequencies`, *optional*):
            Corpus statistics for CIDEr, from [`document_frequencies`]. Counted on `references` when not given.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words. Pass `str.split` for captions that are tokenized already.

    Returns:
        `dict[str, float]`: Fractions from 0 to 1 (CIDEr: 0 to 10), as `pycocoevalcap` gives them.
    """
    metrics = _check_metrics(metrics, METRICS)
    corpus = make_corpus(predictions, references, tokenize)
    results: dict[str, float] = {}
    for metric in metrics:
        if metric == "bleu_punctuation":
            results |= bleu_punctuation(predictions, references)
        else:
            results |= _score(corpus, metric, df)[0]
    return results


def caption_scores(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = ("bleu", "rouge", "cider"),
    df: "DocumentFrequencies | None" = None,
    tokenize: Tokenize = ptb_tokenize,
) -> dict[str, np.ndarray]:
    """
    The scores of each caption by itself, under the names of [`caption_metrics`]: to sort captions from best to worst,
    or to test a difference for significance. Takes the same arguments, but for `"diversity"` and
    `"bleu_punctuation"`, which only a set has.
    """
    metrics = _check_metrics(metrics, tuple(name for name in METRICS if name not in OF_A_SET))
    corpus = make_corpus(predictions, references, tokenize)
    results: dict[str, np.ndarray] = {}
    for metric in metrics:
        results |= _score(corpus, metric, df)[1]
    return results


def bleu_punctuation(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """
    BLEU with punctuation as words and without brevity penalty: `bleu1_punctuation` .. `bleu4_punctuation`. Captions
    and references are treated alike: split at spaces, in lower case, and with a full stop at the end where none
    stands. It is near to how the authors of Show, Attend and Tell count, whose reference files keep full stops and
    commas, but not equal: these keep capitals, and one in ten has no full stop. Do not compare it with scores of the
    usual tokenization, which are several points lower for the same captions.
    """
    _check_captions(predictions, references)
    corpus = make_corpus(
        [_with_full_stop(caption) for caption in predictions],
        [[_with_full_stop(caption) for caption in captions] for captions in references],
        tokenize=str.split,
    )
    scores, _ = _bleu(corpus, brevity_penalty=False)
    return {name.replace("no_bp", "punctuation"): score for name, score in scores.items()}


def _with_full_stop(caption: str) -> str:
    """The caption in lower case, its last mark a word of its own. An empty caption stays empty."""
    caption = caption.lower().rstrip()
    if not caption:
        return caption
    last = caption[-1] if caption[-1] in ".!?" else ""
    return f"{caption.removesuffix(last)} {last or '.'}"


@dataclass(frozen=True)
class DocumentFrequencies:
    """
    In how many images' references each n-gram of a corpus stands: the statistics that CIDEr weighs n-grams by.

    Args:
        counts (`dict[tuple[str, ...], int]`):
            Number of images with the n-gram in at least one reference.
        num_images (`int`):
            Number of images in the corpus.
    """

    counts: dict[Ngram, int]
    num_images: int


def document_frequencies(
    references: Sequence[Sequence[str]], tokenize: Tokenize = ptb_tokenize
) -> DocumentFrequencies:
    """
    Counts a corpus once, so that small sets can be scored with its statistics.

    Args:
        references (`list[list[str]]`):
            The captions of each image of the corpus.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words, as the scored captions will be.
    """
    _check_references(references)
    counts: Counter[Ngram] = Counter()
    for captions in references:
        sentences = [tokenize(caption) for caption in captions]
        counts.update({ngram for words in sentences for order in ORDERS for ngram in ngrams(words, order)})
    return DocumentFrequencies(dict(counts), len(references))


def make_compute_metrics(
    tokenizer: "PreTrainedTokenizerBase",
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = ("bleu", "rouge", "cider"),
    df: DocumentFrequencies | None = None,
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """
    Builds the `compute_metrics` of a `Seq2SeqTrainer` that runs with `predict_with_generate=True`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            Turns the generated ids into captions.
        references (`list[list[str]]`):
            The captions of each row of the evaluation dataset, in its order.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider")`):
            As in [`caption_metrics`].
        df (`DocumentFrequencies`, *optional*):
            As in [`caption_metrics`].
    """
    metrics = _check_metrics(metrics, METRICS)
    _check_references(references)
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no padding token; set `tokenizer.pad_token`.")

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        ids = np.asarray(prediction.predictions)
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"caption metrics need generated token ids of shape (captions, length), got {ids.dtype} of shape "
                f"{ids.shape}: set `predict_with_generate=True`."
            )
        # The Trainer pads batches of different lengths with -100, which is no token.
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        captions = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return caption_metrics(captions, references, metrics, df)

    return compute_metrics


def make_corpus(predictions: Sequence[str], references: Sequence[Sequence[str]], tokenize: Tokenize) -> CaptionCorpus:
    """Checks captions and splits them into words, once for all metrics."""
    _check_captions(predictions, references)
    return CaptionCorpus(
        [tokenize(caption) for caption in predictions],
        [[tokenize(caption) for caption in captions] for captions in references],
    )


def _score(
    corpus: CaptionCorpus, metric: str, df: DocumentFrequencies | None
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The metric over the set, and for each caption."""
    if metric == "bleu":
        return _bleu(corpus, brevity_penalty=True)
    if metric == "bleu_no_bp":
        return _bleu(corpus, brevity_penalty=False)
    if metric == "rouge":
        return _rouge_l(corpus)
    if metric == "cider":
        return _cider(corpus, df)
    if metric == "meteor":
        return _meteor(corpus, prefer_java=True)
    if metric == "meteor_python":
        return _meteor(corpus, prefer_java=False)
    return _diversity(corpus), {}


def _bleu(corpus: CaptionCorpus, brevity_penalty: bool) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    statistics = bleu_statistics(corpus)
    name = "bleu{}" if brevity_penalty else "bleu{}_no_bp"
    per_caption = bleu_from_statistics(statistics, brevity_penalty)
    total = bleu_from_statistics(statistics.sum(axis=1, keepdims=True), brevity_penalty)
    return (
        {name.format(order): float(total[order - 1, 0]) for order in ORDERS},
        {name.format(order): per_caption[order - 1] for order in ORDERS},
    )


def bleu_statistics(corpus: CaptionCorpus) -> np.ndarray:
    """
    What BLEU of any set of images is computed from when it is summed over them, of shape `(10, images)`: n-grams that
    the references have, for n = 1 to 4; n-grams predicted, likewise; words predicted; the closest reference's words.
    """
    length = corpus.lengths[corpus.prediction]
    # Smallest difference in length wins, then the shorter reference: the order of difference * big + length.
    big = corpus.lengths.max() + 1
    difference = np.abs(corpus.lengths - length[corpus.image])
    key = np.where(corpus.is_reference, difference * big + corpus.lengths, big * big)
    reference_length = np.minimum.reduceat(key, corpus.prediction) % big
    correct = np.stack([_clipped_matches(counts, corpus.num_images) for counts in corpus.counts])
    guessed = np.maximum(length - np.array(ORDERS)[:, None] + 1, 0)
    return np.concatenate([correct, guessed, length[None], reference_length[None]])


def _clipped_matches(counts: NgramCounts, num_images: int) -> np.ndarray:
    """For each image, the n-grams of the prediction that its references have, each at most as often as one of them."""
    matches = np.minimum(counts.predicted(), counts.most_in_a_reference())
    return np.bincount(counts.group_image, weights=matches, minlength=num_images)


def bleu_from_statistics(statistics: np.ndarray, brevity_penalty: bool = True) -> np.ndarray:
    """BLEU-1 to BLEU-4, of shape `(4, sets)`, of sums of [`bleu_statistics`] of shape `(10, sets)`."""
    correct, guessed, (length, reference_length) = statistics[:4], statistics[4:8], statistics[8:]
    precision = (correct + BLEU_TINY) / (guessed + BLEU_SMALL)
    scores = np.cumprod(precision, axis=0) ** (1 / np.array(ORDERS)[:, None])
    if brevity_penalty:
        ratio = (length + BLEU_TINY) / (reference_length + BLEU_SMALL)
        scores = scores * np.exp(np.minimum(0, 1 - 1 / ratio))
    return np.where(length > 0, scores, 0.0)


def _rouge_l(corpus: CaptionCorpus) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    scores = np.zeros(corpus.num_images)
    for image, (words, references) in enumerate(zip(corpus.predictions, corpus.references, strict=True)):
        common = _common_subsequences(words, references)
        precision = max(common) / max(1, len(words))
        recall = max(length / max(1, len(other)) for length, other in zip(common, references, strict=True))
        if precision > 0:
            scores[image] = (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)
    return {"rouge_l": float(scores.mean())}, {"rouge_l": scores}


def _common_subsequences(words: list[str], others: list[list[str]]) -> list[int]:
    """Lengths of the longest common subsequences, by the bit-parallel recurrence of Hyyro (2004)."""
    positions: dict[str, int] = {}
    for index, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << index
    every = (1 << len(words)) - 1
    lengths = []
    for other in others:
        unmatched = every
        for word in other:
            if word in positions:
                found = unmatched & positions[word]
                unmatched = (unmatched + found) | (unmatched - found)
        lengths.append(len(words) - (unmatched & every).bit_count())
    return lengths


def _cider(corpus: CaptionCorpus, df: DocumentFrequencies | None) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    if df is not None and not isinstance(df, DocumentFrequencies):
        raise TypeError(f"`df` is {type(df).__name__}; make it with `document_frequencies(references)`.")
    if df is None and corpus.num_images == 1:
        logger.warning(
            "CIDEr of a single image is 0, whatever its captions, since every n-gram is in every image: pass the "
            "document frequencies of a larger corpus as `df`."
        )
    log_images = np.log(float(df.num_images if df is not None else corpus.num_images))
    num_sentences = len(corpus.lengths)
    prediction = corpus.prediction[corpus.image]
    plain, clipped = np.zeros(num_sentences), np.zeros(num_sentences)
    for counts in corpus.counts:
        if df is None:
            frequency = counts.images_with()
        else:
            frequency = np.array([df.counts.get(ngram, 0) for ngram in counts.ngrams()])
        idf = (log_images - np.log(np.maximum(1.0, frequency)))[counts.ngram]
        weight = counts.count * idf
        norm = np.sqrt(np.bincount(counts.sentence, weights=weight**2, minlength=num_sentences))
        predicted = counts.predicted()[counts.group] * idf
        both = norm * norm[prediction]
        both[both == 0] = 1.0
        for total, product in ((plain, predicted * weight), (clipped, np.minimum(predicted, weight) * weight)):
            total += np.bincount(counts.sentence, weights=product, minlength=num_sentences) / both
    # The length CIDEr-D compares is the number of bigrams.
    bigrams = np.maximum(corpus.lengths - 1, 0)
    clipped *= np.exp(-((bigrams - bigrams[prediction]) ** 2) / (2 * CIDER_SIGMA**2))
    per_caption = {}
    for name, similarity in (("cider_d", clipped), ("cider", plain)):
        total = np.bincount(corpus.image[corpus.is_reference], weights=similarity[corpus.is_reference])
        per_caption[name] = 10.0 * total / len(ORDERS) / corpus.num_references
    return {name: float(scores.mean()) for name, scores in per_caption.items()}, per_caption


def _meteor(corpus: CaptionCorpus, prefer_java: bool) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    java = prefer_java and meteor_java_available()
    if prefer_java and not java:
        logger.warning_once(
            "METEOR 1.5 needs Java and `pip install pycocoevalcap`. Giving `meteor_python` in place of `meteor`: it "
            "leaves out paraphrases, and its scores are not comparable with published ones."
        )
    name, score = ("meteor", meteor_java) if java else ("meteor_python", meteor_python)
    total, per_caption = score(corpus.predictions, corpus.references)
    return {name: total}, {name: per_caption}


def _diversity(corpus: CaptionCorpus) -> dict[str, float]:
    results = {}
    for order in ORDERS:
        predicted = [ngram for words in corpus.predictions for ngram in ngrams(words, order)]
        results[f"distinct{order}"] = len(set(predicted)) / max(1, len(predicted))
    predicted = set(chain.from_iterable(corpus.predictions))
    written = set(chain.from_iterable(chain.from_iterable(corpus.references)))
    results["vocabulary"] = float(len(predicted))
    results["vocabulary_use"] = len(predicted & written) / max(1, len(written))
    results["length"] = float(corpus.lengths[corpus.prediction].mean())
    results["reference_length"] = float(corpus.lengths[corpus.is_reference].mean())
    return results


def _check_metrics(metrics: Iterable[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(metrics, str):
        metrics = (metrics,)
    metrics = tuple(metrics)
    for metric in metrics:
        if metric not in allowed:
            raise ValueError(f"unknown caption metric {metric!r}: choose from {', '.join(allowed)}.")
    return metrics


def _check_captions(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if isinstance(predictions, str):
        raise TypeError("`predictions` is one string; it must be a list with one caption per image.")
    if len(predictions) != len(references):
        raise ValueError(
            f"there are {len(predictions)} predictions but {len(references)} lists of references; "
            "each image needs one of both."
        )
    for index, caption in enumerate(predictions):
        if not isinstance(caption, str):
            raise TypeError(f"predictions[{index}] is {type(caption).__name__}, not str.")
    _check_references(references)


def _check_references(references: Sequence[Sequence[str]]) -> None:
    if len(references) == 0:
        raise ValueError("there are no captions to score: `references` is empty.")
    for index, captions in enumerate(references):
        if isinstance(captions, str):
            raise TypeError(f"references[{index}] is one string; it must be a list of captions.")
        if len(captions) == 0:
            raise ValueError(f"references[{index}] is empty; every image needs at least one reference caption.")
        for number, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise TypeError(f"references[{index}][{number}] is {type(caption).__name__}, not str.")
