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

from hf_vg.evaluation import photo_arithmetic, retrieval, retrieval_metrics, scene_arithmetic_metrics
from hf_vg.evaluation.retrieval import retrieval_ranks


def restated(images: torch.Tensor, texts: torch.Tensor, image_of_text: list[int]) -> dict[str, float]:
    """Ranks with a loop over queries and candidates."""
    images, texts = images.double().numpy(), texts.double().numpy()

    def score(image, text):
        return float((images[image] * texts[text]).sum())

    i2t, t2i = [], []
    for image in range(len(images)):
        best = max(score(image, text) for text in range(len(texts)) if image_of_text[text] == image)
        wrong = [score(image, text) for text in range(len(texts)) if image_of_text[text] != image]
        i2t.append(sum(value >= best for value in wrong))
    for text in range(len(texts)):
        right = score(image_of_text[text], text)
        wrong = [score(image, text) for image in range(len(images)) if image != image_of_text[text]]
        t2i.append(sum(value >= right for value in wrong))
    metrics = {}
    for name, ranks in (("image_to_text", i2t), ("text_to_image", t2i)):
        for k in (1, 5, 10):
            metrics[f"{name}_r{k}"] = 100 * sum(rank < k for rank in ranks) / len(ranks)
        metrics[f"{name}_median_rank"] = np.floor(np.median(ranks)) + 1
        metrics[f"{name}_mean_rank"] = sum(ranks) / len(ranks) + 1
    metrics["rsum"] = sum(value for name, value in metrics.items() if name[-2:] in ("r1", "r5") or name[-3:] == "r10")
    return metrics


def related(num_images: int, image_of_text: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 16, generator=generator)
    texts = images[image_of_text] + 1.5 * torch.randn(len(image_of_text), 16, generator=generator)
    return torch.nn.functional.normalize(images), torch.nn.functional.normalize(texts)


@pytest.mark.parametrize("scores_at_a_time", [1, 300, 1 << 20])
@pytest.mark.parametrize("kind", ["five captions", "any number"])
def test_equals_the_definition_restated(kind, scores_at_a_time, monkeypatch):
    monkeypatch.setattr(retrieval, "_SCORES_AT_A_TIME", scores_at_a_time)
    if kind == "five captions":
        owners = [image for image in range(24) for _ in range(5)]
    else:
        owners = [*range(23), *np.random.default_rng(0).integers(0, 23, 40).tolist()]
    images, texts = related(max(owners) + 1, owners)
    expected = restated(images, texts, owners)
    assert 0 < expected["image_to_text_r1"] < 100 and 0 < expected["text_to_image_r1"] < 100
    assert retrieval_metrics(images, texts, owners) == pytest.approx(expected, abs=1e-9)
    if kind == "five captions":
        assert retrieval_metrics(images, texts) == pytest.approx(expected, abs=1e-9)


def test_what_ties_with_the_right_answer_stands_before_it():
    images, texts = related(7, [0, 1, 2, 3, 4, 5, 6])
    images[3], texts[5] = images[2], texts[4]
    owners = list(range(7))
    assert retrieval_metrics(images, texts) == pytest.approx(restated(images, texts, owners), abs=1e-9)
    same = torch.ones(6, 8)
    of_images, of_texts = retrieval_ranks(same[:3], same, [0, 0, 1, 1, 2, 2])
    assert of_images.tolist() == [4, 4, 4]  # two sentences of the same image do not lower each other's rank
    assert of_texts.tolist() == [2] * 6


@pytest.mark.parametrize("size", [7, 1024])
def test_ties_are_exact_whatever_the_shape_of_the_panels(size, monkeypatch):
    """Candidates include copies of the correct answer, and near copies that differ in the last bit."""
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(9, size, generator=generator))
    images = images[[0, 1, 2, 3, 4, 5, 6, 7, 8] * 11]
    images[50, 0] = torch.nextafter(images[50, 0], torch.tensor(2.0))
    texts = torch.nn.functional.normalize(images + 0.01 * torch.randn(99, size, generator=generator))
    expected = restated(images, texts, list(range(99)))
    assert expected["text_to_image_mean_rank"] > 9
    for scores_at_a_time in (1, 1000, 1 << 20):
        monkeypatch.setattr(retrieval, "_SCORES_AT_A_TIME", scores_at_a_time)
        assert retrieval_metrics(images, texts) == pytest.approx(expected, abs=1e-9)


def test_vectors_need_not_be_of_unit_length():
    owners = [0, 0, 1, 2, 3, 3]
    images, texts = related(4, owners)
    images, texts = 300 * images * torch.tensor([[1.0], [2.0], [3.0], [4.0]]), 0.01 * texts
    assert retrieval_metrics(images, texts, owners) == pytest.approx(restated(images, texts, owners), abs=1e-9)


def test_folds_are_averaged():
    owners = [image for image in range(20) for _ in range(2)]
    images, texts = related(20, owners)
    parts = [retrieval_metrics(images[i : i + 4], texts[2 * i : 2 * i + 8]) for i in range(0, 20, 4)]
    expected = {name: sum(part[name] for part in parts) / 5 for name in parts[0]}
    assert retrieval_metrics(images, texts, folds=5) == pytest.approx(expected, abs=1e-9)
    # The order of the sentences does not matter.
    order = torch.randperm(40)
    shuffled = retrieval_metrics(images, texts[order], torch.tensor(owners)[order], folds=5)
    assert shuffled == pytest.approx(expected, abs=1e-9)
    assert retrieval_metrics(images, texts)["text_to_image_mean_rank"] > expected["text_to_image_mean_rank"]


def test_median_is_rounded_down():
    images = torch.eye(4)
    texts = torch.tensor([[1.0, 0, 0, 0], [1, 0.5, 0.7, 0.6], [0, 1, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4]])
    _, ranks = retrieval_ranks(images, texts)
    assert ranks.tolist() == [0, 3, 2, 0]
    assert retrieval_metrics(images, texts)["text_to_image_median_rank"] == 2  # the median rank is 1, counted from 0


def test_wrong_inputs_are_named():
    images, texts = torch.eye(3), torch.eye(3)
    with pytest.raises(ValueError, match="5 sentences .*3 images"):
        retrieval_metrics(images, torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"\(images, size\).*\(3, 3\) and \(3, 2\)"):
        retrieval_metrics(images, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"`image_of_text\[2\]` .*3.* 0 to 2"):
        retrieval_metrics(images, texts, [0, 1, 3])
    with pytest.raises(ValueError, match="Image 1 has no sentence"):
        retrieval_metrics(images, texts, [0, 2, 2])
    with pytest.raises(ValueError, match="each of the 3 sentences"):
        retrieval_metrics(images, texts, [0, 1])
    with pytest.raises(ValueError, match="3 images .*2 folds"):
        retrieval_metrics(images, texts, folds=2)
    with pytest.raises(ValueError, match="`text_embeds` contains numbers that are not finite"):
        retrieval_metrics(images, texts * float("nan"))


def test_arithmetic_of_scenes():
    """Vectors are sums of a color and a shape. The last image has no shape."""
    kinds = [("red", "circle"), ("blue", "circle"), ("blue", "cross"), ("red", "cross"), ("green", "cross")]
    directions = dict(zip(("red", "blue", "green", "circle", "cross"), torch.eye(5), strict=True))
    images = torch.stack([directions[color] + directions[shape] for color, shape in kinds])
    objects = [[{"color": color, "shape": shape}] for color, shape in kinds]
    objects.insert(2, [objects[0][0], objects[2][0]])  # two objects: never used as query or result
    embeds = torch.cat([images[:2], 10 * torch.ones(1, 5), images[2:]])

    def encode(words):
        return torch.stack([directions[word] for word in words])

    # Each of two circles has one other color, each of three crosses two.
    assert scene_arithmetic_metrics(objects, embeds, encode) == {"arithmetic_r1": 100.0, "arithmetic_queries": 8}
    embeds[-1] = directions["green"] + directions["circle"]
    metrics = scene_arithmetic_metrics(objects, embeds, encode)
    # Its own two queries find circles. "a cross, but green" fails twice, because no green image is nearest.
    assert metrics["arithmetic_r1"] == pytest.approx(100 * 4 / 8)
    with pytest.raises(ValueError, match="1 scenes"):
        scene_arithmetic_metrics(objects[:1], embeds[:1], encode)


def test_arithmetic_of_photos():
    """Vectors are sums of the words of captions, so that the sum finds what it should and the parts do not."""
    texts = [
        "black dog",
        "white dog",
        "white dog runs",
        "white cat runs",
        "black cat runs",
        "Black dog, white dog, cat.",
    ]
    texts.append("a bird")
    names = ["black", "white", "dog", "cat", "runs", "bird"]
    directions = dict(zip(names, torch.eye(len(names)), strict=True))
    images = torch.stack([sum(directions[name] for name in names if name in text.lower()) for text in texts])
    images[6] += directions["white"] * 1.5  # the nearest to the word alone
    images = torch.nn.functional.normalize(images)

    def encode(words):
        return torch.stack([directions[word] for word in words])

    (row,) = photo_arithmetic([[text] for text in texts], images, encode, ["dog - black + white"], top_k=2)
    # The only photo with a black dog and nothing white. Photos 1 and 2 fit; 5 does not, since it has a black dog, too.
    assert row["queries"] == [0] and sorted(row["found"][0]) == [1, 2]
    assert row["fit"] == 100.0
    assert row["fit_chance"] == pytest.approx(100 * 2 / 6)
    assert row["fit_image"] == 50.0  # finds 5, which is as black, and then 1
    assert row["fit_word"] == 50.0  # finds the bird, and then 1
    with pytest.raises(ValueError, match="like 'dog - black \\+ white'"):
        photo_arithmetic([[text] for text in texts], images, encode, ["dog - black"])
    with pytest.raises(ValueError, match="'dog - black \\+ green' cannot be scored on these 7 photos: 2 .* and 0 can"):
        photo_arithmetic([[text] for text in texts], images, encode, ["dog - black + green"])
