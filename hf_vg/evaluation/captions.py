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

"""Caption metrics of the COCO caption evaluation, in Python and numpy.

On the same tokens, BLEU, ROUGE-L and CIDEr-D equal `pycocoevalcap`. [`ptb_tokenize`] replaces its Java tokenizer.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers.utils import logging

from ..data.files import atomic_write
from .meteor import meteor_java, meteor_java_available, meteor_python
from .ngrams import ORDERS, CaptionCorpus, Ngram, NgramCounts, ngrams
from .tokenization import ptb_tokenize


if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerBase

logger = logging.get_logger(__name__)

METRICS = ("bleu", "bleu_no_bp", "bleu_punctuation", "rouge", "cider", "meteor", "meteor_python", "diversity")
OF_A_SET = ("bleu_punctuation", "diversity")  # not defined for a single caption

# The COCO evaluation uses these constants to keep BLEU finite. Equal scores need equal constants.
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
    Scores the captions of a set of images: one predicted caption per image, against the image's references.

    Args:
        predictions (`list[str]`):
            One caption per image. An empty caption scores 0.
        references (`list[list[str]]`):
            The human captions, at least one per image.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider")`):
            Any of these:

            - `"bleu"`: corpus BLEU-1 to BLEU-4 with the closest reference length, `bleu1` to `bleu4`.
            - `"bleu_no_bp"`: BLEU without the brevity penalty, as many papers before about 2015 report it,
              `bleu1_no_bp` to `bleu4_no_bp`.
            - `"bleu_punctuation"`: BLEU with punctuation as words, see [`bleu_punctuation`].
            - `"rouge"`: `rouge_l`, the F-measure (beta 1.2) of the best recall and the best precision over the
              references.
            - `"cider"`: `cider_d` is the score that `pycocoevalcap` and nearly all papers call CIDEr. It clips counts
              at the reference's counts and penalizes differences in length (sigma 6). `cider` is the plain variant
              without either: the mean cosine of the TF-IDF vectors of the 1- to 4-grams. Both are multiplied by 10, as
              in the authors' code, and do not stem words.
            - `"meteor"`: METEOR 1.5 with its authors' Java program. It needs Java and `pycocoevalcap`; without them,
              you get `"meteor_python"`.
            - `"meteor_python"`: the same formula without paraphrases. Do not compare its scores with `meteor`.
            - `"diversity"`: `distinct1` to `distinct4` (distinct n-grams divided by all predicted n-grams),
              `vocabulary` (number of distinct predicted words), `vocabulary_use` (share of the references' distinct
              words that are predicted), `length` and `reference_length` (mean number of words).
        df (`DocumentFrequencies`, *optional*):
            Corpus statistics for CIDEr, from [`document_frequencies`]. By default they are counted on `references`.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words. Pass `str.split` for captions that are already tokenized.

    Returns:
        `dict[str, float]`: Scores from 0 to 1 (CIDEr: 0 to 10), as in `pycocoevalcap`.

    Example:

    ```python
    >>> from hf_vg.evaluation import caption_metrics

    >>> predictions = ["a dog runs on the grass", "a red car"]
    >>> references = [["a dog runs on grass", "a brown dog on the grass"], ["a red car", "the car is red"]]
    >>> {name: round(score, 3) for name, score in caption_metrics(predictions, references).items()}
    {'bleu1': 1.0, 'bleu2': 1.0, 'bleu3': 0.928, 'bleu4': 0.719, 'rouge_l': 0.962, 'cider_d': 4.891, 'cider': 4.921}
    ```
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
    Scores each caption separately, for example to sort captions from best to worst or to test a difference for
    significance.

    Args:
        predictions (`list[str]`):
            One caption per image.
        references (`list[list[str]]`):
            The human captions, at least one per image.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider")`):
            Metrics of [`caption_metrics`], except `"diversity"` and `"bleu_punctuation"`, which are not defined for a
            single caption.
        df (`DocumentFrequencies`, *optional*):
            Corpus statistics for CIDEr, see [`caption_metrics`].
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words.

    Returns:
        `dict[str, np.ndarray]`: One score per image, under the names of [`caption_metrics`].

    Example:

    ```python
    >>> from hf_vg.evaluation import caption_scores

    >>> scores = caption_scores(["a red car", "a dog"], [["a red car"], ["the cat", "a cat"]], metrics=["bleu"])
    >>> scores["bleu1"].round(3).tolist()
    [1.0, 0.5]
    ```
    """
    metrics = _check_metrics(metrics, tuple(name for name in METRICS if name not in OF_A_SET))
    corpus = make_corpus(predictions, references, tokenize)
    results: dict[str, np.ndarray] = {}
    for metric in metrics:
        results |= _score(corpus, metric, df)[1]
    return results


def bleu_punctuation(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """
    Computes BLEU with punctuation as words and without brevity penalty. Captions and references are made lower case,
    split at spaces, and get a final period if they have none. This is close to the evaluation of the authors of Show,
    Attend and Tell, whose reference files keep periods and commas, but it is not equal: their files also keep
    capitals, and one caption in ten has no period. Do not compare these scores with those of the usual tokenization,
    which are several points lower for the same captions.

    Args:
        predictions (`list[str]`):
            One caption per image.
        references (`list[list[str]]`):
            The human captions, at least one per image.

    Returns:
        `dict[str, float]`: `bleu1_punctuation` to `bleu4_punctuation`.
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
    """Makes a caption lower case and separates or adds its final period. An empty caption stays empty."""
    caption = caption.lower().rstrip()
    if not caption:
        return caption
    last = caption[-1] if caption[-1] in ".!?" else ""
    return f"{caption.removesuffix(last)} {last or '.'}"


@dataclass(frozen=True)
class DocumentFrequencies:
    """
    The document frequencies of n-grams, with which CIDEr weights n-grams. Make them with [`document_frequencies`].

    Args:
        counts (`dict[tuple[str, ...], int]`):
            Number of images with the n-gram in at least one reference.
        num_images (`int`):
            Number of images in the corpus.

    Example:

    ```python
    >>> from hf_vg.evaluation import DocumentFrequencies, caption_metrics

    >>> df = DocumentFrequencies({("a",): 90, ("dog",): 5}, num_images=100)
    >>> round(caption_metrics(["a dog"], [["a dog"]], metrics=["cider"], df=df)["cider_d"], 2)
    5.0
    ```
    """

    counts: dict[Ngram, int]
    num_images: int

    def save(self, path: str | PathLike) -> None:
        r"""
        Writes a JSON file. If this fails, an older file of this name stays as it was.

        Args:
            path (`str` or `PathLike`):
                The file.

        Example:

        ```python
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hf_vg.evaluation import DocumentFrequencies, document_frequencies
        >>> frequencies = document_frequencies([["a dog runs"], ["a cat"]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frequencies.save(Path(folder, "frequencies.json"))
        ...     loaded = DocumentFrequencies.load(Path(folder, "frequencies.json"))
        >>> loaded.counts["a",], loaded.num_images
        (2, 2)

        ```
        """
        counts = {" ".join(ngram): count for ngram, count in self.counts.items()}
        if len(counts) != len(self.counts) or any(" " in word for ngram in self.counts for word in ngram):
            raise ValueError("words with spaces in them cannot be saved: split captions at their spaces.")
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"num_images": self.num_images, "counts": counts}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike) -> "DocumentFrequencies":
        r"""
        Reads a file of [`save`].

        Args:
            path (`str` or `PathLike`):
                The file.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a JSON file of document frequencies: {error}") from None
        counts = data.get("counts") if isinstance(data, dict) else None
        num_images = data.get("num_images") if isinstance(data, dict) else None
        if not isinstance(counts, dict) or type(num_images) is not int or num_images < 1:
            raise ValueError(
                f'{path} has no document frequencies: it must be {{"num_images": N, "counts": {{"a dog": n, ...}}}}.'
            )
        for ngram, count in counts.items():
            if type(count) is not int or not 1 <= count <= num_images:
                raise ValueError(
                    f"{path}: the count of {ngram!r:.80} must be from 1 to {num_images}, got {count!r:.80}."
                )
        return cls({tuple(ngram.split(" ")): count for ngram, count in counts.items()}, num_images)


def document_frequencies(
    references: Sequence[Sequence[str]], tokenize: Tokenize = ptb_tokenize
) -> DocumentFrequencies:
    """
    Counts the n-grams of a corpus, so that you can score small sets of captions with its statistics.

    Args:
        references (`list[list[str]]`):
            The captions of each image of the corpus.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words. Use the same function to score captions.

    Returns:
        [`DocumentFrequencies`]: The statistics, for the argument `df` of [`caption_metrics`].

    Example:

    ```python
    >>> from hf_vg.evaluation import document_frequencies

    >>> df = document_frequencies([["a dog", "the dog"], ["a cat"]])
    >>> df.counts[("a",)], df.counts[("a", "dog")], df.num_images
    (2, 1, 2)
    ```
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
    Makes the `compute_metrics` function of a `Seq2SeqTrainer` with `predict_with_generate=True`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            Decodes the generated ids.
        references (`list[list[str]]`):
            The captions of each row of the evaluation dataset, in the same order.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider")`):
            The metrics, see [`caption_metrics`].
        df (`DocumentFrequencies`, *optional*):
            Corpus statistics for CIDEr, see [`caption_metrics`].

    Returns:
        `Callable[[EvalPrediction], dict[str, float]]`: The function.

    Example:

    ```python
    >>> import numpy as np
    >>> from transformers import EvalPrediction
    >>> from hf_vg.data import train_word_tokenizer
    >>> from hf_vg.evaluation import make_compute_metrics

    >>> tokenizer = train_word_tokenizer(["a dog runs"])
    >>> compute_metrics = make_compute_metrics(tokenizer, [["a dog runs"]], metrics=["bleu"])
    >>> ids = np.array(tokenizer(["a dog runs"])["input_ids"])
    >>> round(compute_metrics(EvalPrediction(ids, None))["bleu1"], 3)
    1.0
    ```
    """
    metrics = _check_metrics(metrics, METRICS)
    _check_references(references)
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no padding token: set `tokenizer.pad_token`.")

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        ids = np.asarray(prediction.predictions)
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"caption metrics need generated token ids of shape (captions, length), got {ids.dtype} of shape "
                f"{ids.shape}: set `predict_with_generate=True`."
            )
        # Trainer pads batches of different lengths with -100, which cannot be decoded.
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)
        captions = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return caption_metrics(captions, references, metrics, df)

    return compute_metrics


def make_corpus(predictions: Sequence[str], references: Sequence[Sequence[str]], tokenize: Tokenize) -> CaptionCorpus:
    """Checks the captions and splits them into words, once for all metrics."""
    _check_captions(predictions, references)
    return CaptionCorpus(
        [tokenize(caption) for caption in predictions],
        [[tokenize(caption) for caption in captions] for captions in references],
    )


def _score(
    corpus: CaptionCorpus, metric: str, df: DocumentFrequencies | None
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns the metric for the set and for each caption."""
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
    Computes the statistics of BLEU for each image. Summed over a set of images, they give the BLEU of the set.

    Args:
        corpus ([`CaptionCorpus`]):
            The captions.

    Returns:
        `np.ndarray` of shape `(10, images)`: Matching n-grams for n = 1 to 4, predicted n-grams for n = 1 to 4,
        predicted words, and words of the reference with the closest length.
    """
    length = corpus.lengths[corpus.prediction]
    # The reference with the smallest difference in length, and of these the shorter one.
    big = corpus.lengths.max() + 1
    difference = np.abs(corpus.lengths - length[corpus.image])
    key = np.where(corpus.is_reference, difference * big + corpus.lengths, big * big)
    reference_length = np.minimum.reduceat(key, corpus.prediction) % big
    correct = np.stack([_clipped_matches(counts, corpus.num_images) for counts in corpus.counts])
    guessed = np.maximum(length - np.array(ORDERS)[:, None] + 1, 0)
    return np.concatenate([correct, guessed, length[None], reference_length[None]])


def _clipped_matches(counts: NgramCounts, num_images: int) -> np.ndarray:
    """Counts the n-grams of each prediction that are in a reference, clipped at the largest count in a reference."""
    matches = np.minimum(counts.predicted(), counts.most_in_a_reference())
    return np.bincount(counts.group_image, weights=matches, minlength=num_images)


def bleu_from_statistics(statistics: np.ndarray, brevity_penalty: bool = True) -> np.ndarray:
    """
    Computes BLEU-1 to BLEU-4 from sums of [`bleu_statistics`].

    Args:
        statistics (`np.ndarray` of shape `(10, sets)`):
            The summed statistics of each set.
        brevity_penalty (`bool`, *optional*, defaults to `True`):
            Whether to apply the brevity penalty.

    Returns:
        `np.ndarray` of shape `(4, sets)`: The scores.
    """
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
    """Computes lengths of longest common subsequences with the bit-parallel recurrence of Hyyro (2004)."""
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
        raise TypeError(f"`df` is {type(df).__name__}: make it with `document_frequencies(references)`.")
    if df is None and corpus.num_images == 1:
        logger.warning(
            "CIDEr of a single image is always 0, because every n-gram is in every image: pass the document "
            "frequencies of a larger corpus as `df`."
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
    # CIDEr-D uses the number of bigrams as the length.
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
            "METEOR 1.5 needs Java and `pip install pycocoevalcap`. Computing `meteor_python` instead of `meteor`: it "
            "has no paraphrases, so its scores are not comparable with published ones."
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
        raise TypeError("`predictions` is a string: it must be a list with one caption per image.")
    if len(predictions) != len(references):
        raise ValueError(
            f"there are {len(predictions)} predictions but {len(references)} lists of references: "
            "each image needs one of each."
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
            raise TypeError(f"references[{index}] is a string: it must be a list of captions.")
        if len(captions) == 0:
            raise ValueError(f"references[{index}] is empty: every image needs at least one reference caption.")
        for number, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise TypeError(f"references[{index}][{number}] is {type(caption).__name__}, not str.")
