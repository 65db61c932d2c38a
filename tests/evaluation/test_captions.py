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

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import EvalPrediction, PreTrainedTokenizerFast

import hf_vg.evaluation
from hf_vg.evaluation import caption_metrics, caption_scores, document_frequencies, make_compute_metrics


def random_captions(num_images: int, seed: int, vocabulary: int = 5) -> tuple[list[str], list[list[str]]]:
    """Makes captions of 0 to 9 words from a small vocabulary, so that n-grams repeat within and across captions."""
    generator = random.Random(seed)

    def caption():
        return " ".join(f"w{generator.randrange(vocabulary)}" for _ in range(generator.randrange(10)))

    return (
        [caption() for _ in range(num_images)],
        [[caption() or "w0" for _ in range(generator.randrange(1, 6))] for _ in range(num_images)],
    )


def count_ngrams(words: list[str], order: int) -> Counter:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def restated_bleu(predictions, references, brevity_penalty) -> list[float]:
    correct, guessed, length, reference_length = [0] * 5, [0] * 5, 0, 0
    for prediction, captions in zip(predictions, references, strict=True):
        words, others = prediction.split(), [caption.split() for caption in captions]
        length += len(words)
        reference_length += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for order in range(1, 5):
            for ngram, count in count_ngrams(words, order).items():
                guessed[order] += count
                correct[order] += min(count, max(count_ngrams(other, order)[ngram] for other in others))
    penalty = math.exp(min(0, 1 - reference_length / length)) if brevity_penalty else 1
    scores = []
    for highest in range(1, 5):
        precisions = [correct[order] / guessed[order] for order in range(1, highest + 1)]
        scores.append(penalty * math.prod(precisions) ** (1 / highest))
    return scores


def restated_rouge_l(prediction, captions) -> float:
    def longest(a, b):
        if not a or not b:
            return 0
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a, 1):
            for j, y in enumerate(b, 1):
                table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
        return table[-1][-1]

    words, others = prediction.split(), [caption.split() for caption in captions]
    if not words:
        return 0.0
    precision = max(longest(words, other) / len(words) for other in others)
    recall = max(longest(words, other) / len(other) for other in others)
    return 0.0 if precision == 0 else (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)


def restated_cider(predictions, references, clip_and_penalise, corpus=None) -> list[float]:
    corpus = corpus or references
    frequency = Counter()
    for captions in corpus:
        ngrams = {
            ngram for caption in captions for order in range(1, 5) for ngram in count_ngrams(caption.split(), order)
        }
        frequency.update(ngrams)

    def vector(caption, order):
        return {
            ngram: count * math.log(len(corpus) / max(1, frequency[ngram]))
            for ngram, count in count_ngrams(caption.split(), order).items()
        }

    def norm(weights):
        return math.sqrt(sum(weight**2 for weight in weights.values()))

    scores = []
    for prediction, captions in zip(predictions, references, strict=True):
        total = 0.0
        for caption in captions:
            for order in range(1, 5):
                ours, theirs = vector(prediction, order), vector(caption, order)
                product = 0.0
                for ngram, weight in ours.items():
                    other = theirs.get(ngram, 0.0)
                    product += (min(weight, other) if clip_and_penalise else weight) * other
                if product:
                    product /= norm(ours) * norm(theirs)
                if clip_and_penalise:
                    bigrams = [max(0, len(text.split()) - 1) for text in (prediction, caption)]
                    product *= math.exp(-((bigrams[0] - bigrams[1]) ** 2) / (2 * 6**2))
                total += product
        scores.append(10 * total / 4 / len(captions))
    return scores


@pytest.mark.parametrize("seed", range(4))
def test_bleu_equals_restatement(seed):
    predictions, references = random_captions(100, seed)
    for metric, penalty, name in (("bleu", True, "bleu{}"), ("bleu_no_bp", False, "bleu{}_no_bp")):
        scores = caption_metrics(predictions, references, metric, tokenize=str.split)
        expected = restated_bleu(predictions, references, penalty)
        assert list(scores) == [name.format(order) for order in range(1, 5)]
        assert list(scores.values()) == pytest.approx(expected, abs=1e-9)
        assert expected[3] > 0.01


def test_brevity_penalty_only_for_short_captions():
    short = caption_metrics(["a dog"], [["a dog runs fast"]], ("bleu", "bleu_no_bp"))
    assert short["bleu1"] == pytest.approx(math.exp(1 - 4 / 2)) and short["bleu1_no_bp"] == pytest.approx(1)
    long = caption_metrics(["a dog runs fast now"], [["a dog runs fast"]], ("bleu", "bleu_no_bp"))
    assert long["bleu1"] == long["bleu1_no_bp"] == pytest.approx(4 / 5)


class TestBleuWithPunctuation:
    def score(self, predictions, references):
        scores = caption_metrics(predictions, references, ["bleu_punctuation"])
        return [scores[f"bleu{order}_punctuation"] for order in range(1, 5)]

    def test_counts_marks_as_words(self):
        references = [["A dog , wet , runs .", "The dog runs fast"]]
        bleu1, bleu2, *_ = self.score(["a cat runs"], references)
        # Matches of "a cat runs .": a, runs and the period; of the bigrams only "runs .".
        assert (bleu1, bleu2) == (pytest.approx(3 / 4), pytest.approx(math.sqrt(3 / 4 * 1 / 3)))
        with pytest.raises(ValueError, match="unknown caption metric"):
            caption_scores(["a cat runs"], references, ["bleu_punctuation"])

    @pytest.mark.parametrize("reference", ["A Dog , wet , runs .", "a dog runs fast", "A dog runs to D.C.", "Go !"])
    def test_captions_that_equal_a_reference_score_1(self, reference):
        others = ["The dog runs fast ."]
        for caption in (reference, reference.lower(), reference.upper(), f"{reference}  "):
            bleu = self.score([caption, "The dog"], [[*others, reference], ["the dog"]])
            assert bleu[:2] == pytest.approx([1, 1]), caption

    @pytest.mark.parametrize(
        "caption", ["a dog runs fast", "a dog runs fast .", "A dog runs fast.", "a dog runs fast . "]
    )
    @pytest.mark.parametrize("reference", ["A dog runs fast .", "A dog runs fast", "a dog runs fast."])
    def test_a_full_stop_is_added_on_either_side_only_where_none_stands(self, caption, reference):
        assert self.score([caption], [[reference]]) == pytest.approx([1] * 4)

    def test_an_empty_caption_scores_0(self):
        assert self.score(["", " "], [["a dog ."], ["a cat"]]) == [0] * 4


@pytest.mark.parametrize("seed", range(4))
def test_rouge_l_equals_restatement(seed):
    predictions, references = random_captions(40, seed)
    expected = [restated_rouge_l(*pair) for pair in zip(predictions, references, strict=True)]
    scores = caption_scores(predictions, references, "rouge", tokenize=str.split)["rouge_l"]
    assert scores == pytest.approx(expected, abs=1e-12)
    total = caption_metrics(predictions, references, "rouge", tokenize=str.split)
    assert total == {"rouge_l": pytest.approx(np.mean(expected))}


def test_rouge_l_of_captions_longer_than_a_machine_word():
    generator = random.Random(1)
    long = [" ".join(generator.choice("abc") for _ in range(150)) for _ in range(3)]
    scores = caption_scores([long[0]], [long[1:]], "rouge", tokenize=str.split)["rouge_l"]
    assert scores == pytest.approx([restated_rouge_l(long[0], long[1:])], abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_cider_equals_restatement(seed):
    predictions, references = random_captions(40, seed)
    scores = caption_scores(predictions, references, "cider", tokenize=str.split)
    for name, clip_and_penalise in (("cider_d", True), ("cider", False)):
        expected = restated_cider(predictions, references, clip_and_penalise)
        assert scores[name] == pytest.approx(expected, abs=1e-9)
        assert max(expected) > 1
    totals = caption_metrics(predictions, references, "cider", tokenize=str.split)
    assert totals == {name: pytest.approx(values.mean()) for name, values in scores.items()}


def test_cider_with_the_statistics_of_another_corpus():
    predictions, references = random_captions(5, seed=0)
    _, corpus = random_captions(60, seed=1)
    df = document_frequencies(corpus, tokenize=str.split)
    scores = caption_scores(predictions, references, "cider", df=df, tokenize=str.split)
    assert scores["cider_d"] == pytest.approx(restated_cider(predictions, references, True, corpus), abs=1e-9)
    own = caption_scores(predictions, references, "cider", tokenize=str.split)
    assert not np.allclose(scores["cider_d"], own["cider_d"])
    same = document_frequencies(references, tokenize=str.split)
    again = caption_scores(predictions, references, "cider", df=same, tokenize=str.split)
    assert again["cider_d"] == pytest.approx(own["cider_d"], abs=1e-12)


def test_cider_of_one_image_needs_df(monkeypatch):
    import hf_vg.evaluation.captions as module

    warnings = []
    monkeypatch.setattr(module.logger, "warning", warnings.append)
    assert caption_metrics(["a dog"], [["a dog"]], "cider") == {"cider_d": 0.0, "cider": 0.0}
    assert len(warnings) == 1 and "`df`" in warnings[0]
    df = document_frequencies([["a dog"], ["a cat"], ["the sea"]])
    scores = caption_metrics(["a dog"], [["a dog"]], "cider", df)
    assert scores == {"cider_d": pytest.approx(5), "cider": pytest.approx(5)}
    assert len(warnings) == 1


def test_equals_pycocoevalcap():
    pytest.importorskip("pycocoevalcap", reason="pycocoevalcap, the reference implementation, is not installed")
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    for seed, vocabulary in ((0, 5), (1, 300)):
        predictions, references = random_captions(200, seed, vocabulary)
        assert "" in predictions
        theirs_predictions = {image: [caption] for image, caption in enumerate(predictions)}
        theirs_references = dict(enumerate(references))
        bleus, bleus_each = Bleu(4).compute_score(theirs_references, theirs_predictions, verbose=0)
        rouge, rouge_each = Rouge().compute_score(theirs_references, theirs_predictions)
        cider_d, cider_d_each = Cider().compute_score(theirs_references, theirs_predictions)

        totals = caption_metrics(predictions, references, tokenize=str.split)
        each = caption_scores(predictions, references, tokenize=str.split)
        assert totals["rouge_l"] == pytest.approx(rouge, abs=1e-9)
        assert totals["cider_d"] == pytest.approx(cider_d, abs=1e-9)
        assert each["rouge_l"] == pytest.approx(rouge_each, abs=1e-9)
        assert each["cider_d"] == pytest.approx(cider_d_each, abs=1e-9)
        for order in range(1, 5):
            assert totals[f"bleu{order}"] == pytest.approx(bleus[order - 1], abs=1e-9)
            assert each[f"bleu{order}"] == pytest.approx(bleus_each[order - 1], abs=1e-9)


def test_diversity():
    references = [["a dog"], ["one dog sits"], ["the sea"]]
    scores = caption_metrics(["a dog runs", "a dog sits", ""], references, "diversity")
    assert scores == pytest.approx(
        {
            "distinct1": 4 / 6,
            "distinct2": 3 / 4,
            "distinct3": 1.0,
            "distinct4": 0.0,
            "vocabulary": 4,
            "vocabulary_use": 3 / 6,
            "length": 2.0,
            "reference_length": 7 / 3,
        }
    )


ALL_METRICS = ("bleu", "bleu_no_bp", "rouge", "cider", "meteor_python", "diversity")


@pytest.mark.parametrize("prediction", ["", ".", "  \n"])
def test_empty_prediction_scores_zero(prediction):
    each = caption_scores([prediction, "a cat"], [["a dog runs"], ["the cat", "a cat"]], ALL_METRICS[:-1])
    assert {name: float(scores[0]) for name, scores in each.items()} == dict.fromkeys(each, 0.0)
    assert all(each[name][1] > 0.5 for name in ("bleu1", "rouge_l", "cider_d", "meteor_python"))
    nothing = caption_metrics([prediction], [["."]], ALL_METRICS)
    assert set(nothing.values()) == {0.0}


def test_tokenizes_by_default():
    assert caption_metrics(["A Dog's ball."], [['"a dog \'s ball"']])["bleu3"] == pytest.approx(1)
    assert caption_metrics(["A Dog's ball."], [["a dog 's ball"]], tokenize=str.split)["bleu1"] < 1e-6


def test_scores_do_not_depend_on_order():
    predictions, references = random_captions(30, seed=5)
    forward = caption_scores(predictions, references, tokenize=str.split)
    backward = caption_scores(predictions[::-1], [captions[::-1] for captions in references[::-1]], tokenize=str.split)
    for name, scores in forward.items():
        assert backward[name][::-1] == pytest.approx(scores, abs=1e-12)


@pytest.mark.parametrize(
    ("predictions", "references", "error", "message"),
    [
        (["a"], [["a"], ["b"]], ValueError, "1 predictions but 2 lists of references"),
        ([], [], ValueError, "`references` is empty"),
        (["a", "b"], [["a"], []], ValueError, r"references\[1\] is empty"),
        (["a", None], [["a"], ["b"]], TypeError, r"predictions\[1\] is NoneType, not str"),
        (["a"], [["a", 3]], TypeError, r"references\[0\]\[1\] is int, not str"),
        (["a"], ["a"], TypeError, r"references\[0\] is a string"),
        ("a", [["a"]], TypeError, "`predictions` is a string"),
    ],
)
def test_bad_input_is_named(predictions, references, error, message):
    with pytest.raises(error, match=message):
        caption_metrics(predictions, references)


def test_df_must_be_document_frequencies():
    with pytest.raises(TypeError, match=r"`df` is list: make it with `document_frequencies\(references\)`"):
        caption_metrics(["a"], [["a"]], "cider", df=[["a"]])


def test_unknown_metric_is_named():
    with pytest.raises(ValueError, match="unknown caption metric 'spice': choose from bleu"):
        caption_metrics(["a"], [["a"]], ("bleu", "spice"))
    with pytest.raises(ValueError, match="unknown caption metric 'diversity'"):
        caption_scores(["a"], [["a"]], "diversity")


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", "a", "dog", "cat", "runs"])}
    word_level = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=word_level, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<pad>"
    )


def test_compute_metrics_of_generated_ids(tokenizer):
    references = [["a dog runs"], ["a cat", "the cat"]]
    compute_metrics = make_compute_metrics(tokenizer, references, ("bleu", "cider"))
    ids = np.array([[1, 3, 4, 6, 2, -100], [1, 3, 5, 2, 0, -100]])
    scores = compute_metrics(EvalPrediction(predictions=ids, label_ids=np.zeros((2, 3))))
    assert scores == caption_metrics(["a dog runs", "a cat"], references, ("bleu", "cider"))
    assert scores["bleu1"] == pytest.approx(1)


def test_compute_metrics_refuses_logits_and_wrong_number(tokenizer):
    compute_metrics = make_compute_metrics(tokenizer, [["a dog"]])
    with pytest.raises(ValueError, match="predict_with_generate=True"):
        compute_metrics(EvalPrediction(predictions=np.zeros((1, 4, 7)), label_ids=None))
    with pytest.raises(ValueError, match="2 predictions but 1 lists of references"):
        compute_metrics(EvalPrediction(predictions=np.array([[3], [4]]), label_ids=None))


def test_compute_metrics_is_checked_when_made(tokenizer):
    with pytest.raises(ValueError, match="unknown caption metric 'blue'"):
        make_compute_metrics(tokenizer, [["a dog"]], ("blue",))
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="no padding token"):
        make_compute_metrics(tokenizer, [["a dog"]])


def test_evaluate_module(tmp_path):
    import evaluate

    folder = str(Path(hf_vg.evaluation.__file__).parent / "modules" / "captions")
    predictions, references = ["A dog runs.", "a cat"], [["a dog runs fast"], ["the cat", "a cat"]]
    default = evaluate.load(folder, cache_dir=str(tmp_path)).compute(predictions=predictions, references=references)
    assert default == caption_metrics(predictions, references)

    metric = evaluate.load(folder, "cider", cache_dir=str(tmp_path))
    df = document_frequencies([["a dog"], ["a cat"], ["the sea"]])
    metric.add_batch(predictions=predictions, references=references)
    assert metric.compute(df=df) == caption_metrics(predictions, references, "cider", df)
    with pytest.raises(ValueError, match="unknown configuration 'spice'"):
        evaluate.load(folder, "spice", cache_dir=str(tmp_path))
