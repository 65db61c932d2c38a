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
"""Retrieval metrics of images and sentences: recall at k, median and mean rank, and sums of images and words."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .tokenization import ptb_tokenize


# Maximum number of scores in memory, and of vector elements for near ties.
_SCORES_AT_A_TIME = 8 << 20
_NUMBERS_AT_A_TIME = 1 << 20


RECALLS = (1, 5, 10)


def retrieval_metrics(
    image_embeds: torch.Tensor,
    text_embeds: torch.Tensor,
    image_of_text: Sequence[int] | torch.Tensor | np.ndarray | None = None,
    folds: int = 1,
) -> dict[str, float]:
    r"""
    Evaluates retrieval in both directions by the inner products of vectors. See [`retrieval_ranks`] for ties.

    Args:
        image_embeds (`torch.Tensor` of shape `(images, size)`):
            Image vectors. Normalize them to unit length to rank by cosine.
        text_embeds (`torch.Tensor` of shape `(sentences, size)`):
            Sentence vectors.
        image_of_text (`Sequence[int]`, `torch.Tensor` or `np.ndarray` of shape `(sentences,)`, *optional*):
            The image of each sentence. By default all images have the same number of sentences, in order.
        folds (`int`, *optional*, defaults to 1):
            Split the images into this many consecutive parts of equal size, and average the metrics of the parts. Use
            5 for the 1K scores of COCO's 5,000 test images.

    Returns:
        `dict[str, float]`: `image_to_text_r1`, ..., `image_to_text_median_rank`, `image_to_text_mean_rank`, the same
        for `text_to_image`, and `rsum`, the sum of all recalls. Recalls are in percent, and ranks start at 1. For an
        image with several sentences, the best one counts. The median of an even number of ranks is rounded down.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.evaluation import retrieval_metrics

    >>> images = torch.eye(3)
    >>> sentences = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.7, 0.0, 0.6]])
    >>> metrics = retrieval_metrics(images, sentences)
    >>> round(metrics["text_to_image_r1"], 1), metrics["text_to_image_median_rank"]
    (66.7, 1.0)
    ```
    """
    if len(image_embeds) % folds:
        raise ValueError(f"{len(image_embeds)} images cannot be split into {folds} folds of equal size.")
    image_of_text = _image_of_text(image_embeds, text_embeds, image_of_text)
    size = len(image_embeds) // folds
    totals: dict[str, float] = {}
    for fold in range(folds):
        in_fold = slice(None)
        if folds > 1:
            in_fold = torch.nonzero(image_of_text // size == fold).squeeze(1)
        ranks = retrieval_ranks(
            image_embeds[fold * size : (fold + 1) * size],
            text_embeds[in_fold],
            image_of_text[in_fold] - fold * size,
        )
        for direction, of_queries in zip(("image_to_text", "text_to_image"), ranks, strict=True):
            metrics = {f"r{k}": 100.0 * (of_queries < k).double().mean().item() for k in RECALLS}
            metrics["median_rank"] = torch.quantile(of_queries.double(), 0.5).floor().item() + 1
            metrics["mean_rank"] = of_queries.double().mean().item() + 1
            for name, value in metrics.items():
                totals[f"{direction}_{name}"] = totals.get(f"{direction}_{name}", 0.0) + value / folds
    totals["rsum"] = sum(totals[f"{d}_r{k}"] for d in ("image_to_text", "text_to_image") for k in RECALLS)
    return totals


@torch.no_grad()
def retrieval_ranks(
    image_embeds: torch.Tensor,
    text_embeds: torch.Tensor,
    image_of_text: Sequence[int] | torch.Tensor | np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Computes the ranks of the correct answers, starting at 0, without the matrix of all scores in memory.

    The rank is the number of wrong answers with the same or a higher score than the correct one. Ties count against
    the model: a model that gives everything the same vector finds nothing. Scores are computed in single precision.
    Where two scores are so close that rounding could decide, they are computed again in double precision. The result
    does not depend on the device or on the batch size.

    Args:
        image_embeds (`torch.Tensor` of shape `(images, size)`):
            Image vectors.
        text_embeds (`torch.Tensor` of shape `(sentences, size)`):
            Sentence vectors.
        image_of_text (`Sequence[int]`, `torch.Tensor` or `np.ndarray` of shape `(sentences,)`, *optional*):
            The image of each sentence. By default all images have the same number of sentences, in order.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The rank of each image's best sentence, and the rank of each sentence's
        image.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.evaluation.retrieval import retrieval_ranks

    >>> images = torch.eye(2)
    >>> sentences = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    >>> [ranks.tolist() for ranks in retrieval_ranks(images, sentences)]
    [[0, 0], [0, 1]]
    ```
    """
    image_of_text = _image_of_text(image_embeds, text_embeds, image_of_text)
    device = image_embeds.device
    images, texts = image_embeds.float(), text_embeds.to(device).float()
    num_images, num_texts = len(images), len(texts)
    for name, embeds in (("image_embeds", images), ("text_embeds", texts)):
        if not torch.isfinite(embeds.sum()):
            raise ValueError(f"`{name}` contains numbers that are not finite and cannot be ranked.")

    right = _exact_scores(images, texts, image_of_text, torch.arange(num_texts, device=device))
    best = torch.full((num_images,), -torch.inf, dtype=torch.double, device=device)
    best.scatter_reduce_(0, image_of_text, right, "amax")
    # The largest error of a score in single precision.
    error = images.shape[1] * 2**-23 * images.norm(dim=1).max() * texts.norm(dim=1).max()
    bounds = [
        (best.unsqueeze(1).float() - error, best.unsqueeze(1).float() + error),
        (right.unsqueeze(0).float() - error, right.unsqueeze(0).float() + error),
    ]
    ranks_of_images = torch.zeros(num_images, dtype=torch.long, device=device)
    ranks_of_texts = torch.zeros(num_texts, dtype=torch.long, device=device)

    rows_at_a_time = max(1, min(num_images, _SCORES_AT_A_TIME // num_texts))
    scores = torch.empty(rows_at_a_time, num_texts, device=device)
    for start in range(0, num_images, rows_at_a_time):
        rows = slice(start, min(start + rows_at_a_time, num_images))
        panel = torch.matmul(images[rows], texts.T, out=scores[: rows.stop - start])
        for of_images, (low, high) in zip((True, False), bounds, strict=True):
            part = rows if of_images else slice(None)
            above = panel > (high[part] if of_images else high)
            near = (panel >= (low[part] if of_images else low)).logical_xor_(above)
            if of_images:
                ranks_of_images[rows] += _count(above, dim=1)
            else:
                ranks_of_texts += _count(above, dim=0)
            image, text = near.nonzero(as_tuple=True)
            image = image + start
            wrong = image_of_text[text] != image
            image, text = image[wrong], text[wrong]
            exact = _exact_scores(images, texts, image, text)
            if of_images:
                ranks_of_images.index_add_(0, image, (exact >= best[image]).long())
            else:
                ranks_of_texts.index_add_(0, text, (exact >= right[text]).long())
    return ranks_of_images, ranks_of_texts


def scene_arithmetic_metrics(
    objects: Sequence[Sequence[Mapping[str, str]]],
    image_embeds: torch.Tensor,
    encode_texts: Callable[[list[str]], torch.Tensor],
) -> dict[str, float]:
    r"""
    Evaluates image arithmetic on scenes: "this scene, but blue". The query is the image vector minus the word for its
    color plus the word for another color. It is asked for every scene with a single object and every other color. The
    nearest of the other single-object scenes must have the new color and the old shape.

    Args:
        objects (`Sequence[Sequence[Mapping]]`):
            The column `objects` of [`load_scenes`].
        image_embeds (`torch.Tensor` of shape `(scenes, size)`):
            Vectors of the scenes.
        encode_texts (`Callable`):
            A function from a list of words to vectors.

    Returns:
        `dict[str, float]`: `arithmetic_r1` in percent, and the number of queries as `arithmetic_queries`.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.evaluation import scene_arithmetic_metrics

    >>> vectors = dict(zip(("red", "blue", "circle"), torch.eye(3)))
    >>> objects = [[{"color": color, "shape": "circle"}] for color in ("red", "blue")]
    >>> images = torch.stack([vectors["red"] + vectors["circle"], vectors["blue"] + vectors["circle"]])
    >>> scene_arithmetic_metrics(objects, images, lambda words: torch.stack([vectors[word] for word in words]))
    {'arithmetic_r1': 100.0, 'arithmetic_queries': 2}
    ```
    """
    single = [index for index, seen in enumerate(objects) if len(seen) == 1]
    kinds = [(objects[index][0]["color"], objects[index][0]["shape"]) for index in single]
    colors = sorted({color for color, _ in kinds})
    images = image_embeds[single]
    words = dict(zip(colors, encode_texts(colors), strict=True))
    right = queries = 0
    for index, (color, shape) in enumerate(kinds):
        for wanted in colors:
            if wanted == color or (wanted, shape) not in kinds:
                continue
            scores = images @ (images[index] - words[color] + words[wanted])
            scores[index] = -torch.inf
            right += kinds[int(scores.argmax())] == (wanted, shape)
            queries += 1
    if not queries:
        raise ValueError(
            f"None of the {len(objects)} scenes can be used: two scenes with a single object, of the same shape and "
            "different colors, are needed."
        )
    return {"arithmetic_r1": 100.0 * right / queries, "arithmetic_queries": queries}


def photo_arithmetic(
    captions: Sequence[Sequence[str]],
    image_embeds: torch.Tensor,
    encode_texts: Callable[[list[str]], torch.Tensor],
    swaps: Sequence[str],
    top_k: int = 4,
) -> list[dict[str, Any]]:
    r"""
    Evaluates image arithmetic on photos, by the words of their captions: "this dog, but white instead of black".

    A swap is written `"dog - black + white"`. Its queries are the photos whose captions have the words "dog" and
    "black" and not "white". Each is searched for with the vector of the photo minus "black" plus "white" among all
    other photos. A photo that is found fits if its captions have "dog" and "white" and not "black".

    Args:
        captions (`Sequence[Sequence[str]]`):
            The captions of each photo.
        image_embeds (`torch.Tensor` of shape `(photos, size)`):
            Vectors of the photos.
        encode_texts (`Callable`):
            A function from a list of words to vectors.
        swaps (`Sequence[str]`):
            What to keep, subtract and add, each as `"keep - minus + plus"`, in single words.
        top_k (`int`, *optional*, defaults to 4):
            The number of photos to find per query.

    Returns:
        `list[dict]`: For each swap:

        - **swap** (`str`) -- as given.
        - **queries** (`list[int]`) -- the photos that are searched with.
        - **found** (`list[list[int]]`) -- the `top_k` photos that each query finds, best first.
        - **fit** (`float`) -- percentage of the found photos that fit.
        - **fit_image**, **fit_word** (`float`) -- the same for the photo alone, and for the new word alone.
        - **fit_chance** (`float`) -- percentage of all other photos that fit.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.evaluation import photo_arithmetic

    >>> vectors = dict(zip(("black", "white", "dog"), torch.eye(3)))
    >>> captions = [["a black dog"], ["a white dog"], ["a white cat"]]
    >>> photos = torch.tensor([[1.0, 0, 1], [0, 1.0, 1], [0, 1.0, 0]])
    >>> (row,) = photo_arithmetic(
    ...     captions, photos, lambda words: torch.stack([vectors[w] for w in words]), ["dog - black + white"], top_k=1
    ... )
    >>> row["queries"], row["found"], row["fit"], row["fit_chance"]
    ([0], [[1]], 100.0, 50.0)
    ```
    """
    words = [{word for caption in group for word in ptb_tokenize(caption)} for group in captions]
    results = []
    for swap in swaps:
        match = re.fullmatch(r"\s*(\S+)\s+-\s+(\S+)\s+\+\s+(\S+)\s*", swap)
        if match is None:
            raise ValueError(f"A swap must be written like 'dog - black + white', in single words, got {swap!r}.")
        keep, minus, plus = match.groups()
        queries = torch.tensor([i for i, w in enumerate(words) if {keep, minus} <= w and plus not in w])
        fits = torch.tensor([{keep, plus} <= w and minus not in w for w in words])
        if not len(queries) or not fits.any() or len(words) <= top_k:
            raise ValueError(
                f"{swap!r} cannot be scored on these {len(words)} photos: {len(queries)} can be searched with, and "
                f"{int(fits.sum())} can be found."
            )
        old, new = encode_texts([minus, plus])
        images = image_embeds[queries]
        row: dict[str, Any] = {"swap": swap, "queries": queries.tolist()}
        for name, vectors in (("image", images), ("word", new.expand_as(images)), ("", images - old + new)):
            scores = vectors @ image_embeds.T
            scores[torch.arange(len(queries)), queries] = -torch.inf
            found = scores.topk(top_k, dim=1).indices
            row[f"fit_{name}" if name else "fit"] = 100.0 * fits[found].double().mean().item()
        results.append(row | {"found": found.tolist(), "fit_chance": 100.0 * int(fits.sum()) / (len(words) - 1)})
    return results


def _count(mask: torch.Tensor, dim: int) -> torch.Tensor:
    """Computes `mask.sum(dim)`, which is slow on the CPU because it first converts each element to eight bytes."""
    if mask.device.type == "cpu":
        return torch.from_numpy(mask.numpy().sum(axis=dim, dtype="int32")).long()
    return mask.sum(dim=dim)


def _exact_scores(images: torch.Tensor, texts: torch.Tensor, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Computes inner products of pairs in double precision, always summed in the same order."""
    scores = torch.empty(len(image), dtype=torch.double, device=images.device)
    pairs_at_a_time = max(1, _NUMBERS_AT_A_TIME // images.shape[1])
    for start in range(0, len(image), pairs_at_a_time):
        part = slice(start, start + pairs_at_a_time)
        products = images[image[part]].double().mul_(texts[text[part]])
        torch.sum(products, dim=1, out=scores[part])
    return scores


def _image_of_text(
    image_embeds: torch.Tensor,
    text_embeds: torch.Tensor,
    image_of_text: Sequence[int] | torch.Tensor | np.ndarray | None,
) -> torch.Tensor:
    num_images, num_texts = len(image_embeds), len(text_embeds)
    if image_embeds.dim() != 2 or text_embeds.dim() != 2 or image_embeds.shape[1] != text_embeds.shape[1]:
        raise ValueError(
            "`image_embeds` and `text_embeds` must be (images, size) and (sentences, size), got "
            f"{tuple(image_embeds.shape)} and {tuple(text_embeds.shape)}."
        )
    if image_of_text is None:
        if not num_images or num_texts % num_images:
            raise ValueError(
                f"{num_texts} sentences cannot be divided evenly among {num_images} images: pass the image of each "
                "sentence as `image_of_text`."
            )
        return torch.arange(num_images, device=image_embeds.device).repeat_interleave(num_texts // num_images)
    image_of_text = torch.as_tensor(image_of_text, dtype=torch.long, device=image_embeds.device)
    if image_of_text.shape != (num_texts,):
        raise ValueError(
            f"`image_of_text` must have one image for each of the {num_texts} sentences, got shape "
            f"{tuple(image_of_text.shape)}."
        )
    outside = torch.nonzero((image_of_text < 0) | (image_of_text >= num_images))
    if len(outside):
        raise ValueError(
            f"`image_of_text[{outside[0].item()}]` is {image_of_text[outside[0]].item()}, but images are numbered 0 "
            f"to {num_images - 1}."
        )
    without = torch.nonzero(torch.bincount(image_of_text, minlength=num_images) == 0)
    if len(without):
        raise ValueError(f"Image {without[0].item()} has no sentence in `image_of_text`: remove it or add one.")
    return image_of_text
