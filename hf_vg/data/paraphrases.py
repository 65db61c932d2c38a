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
"""Visually grounded paraphrases: pairs of captions, true and false of an image, and how their phrases relate."""

import csv
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from tqdm.auto import tqdm

from .records import describe
from .scene_grammar import PARAPHRASE_TYPES


IDENTIFICATION_LABELS = ("both", "first", "second")
NUM_NEGATIVE_CAPTIONS = 2  # of the nearest image, each beside every caption of the image itself
LABELS = {str(number) for number in range(len(PARAPHRASE_TYPES))}
SWAPPED = {1: 2, 2: 1}  # forward entailment is reverse entailment the other way round

_INT, _STRING = Value("int32"), Value("string")
_PHRASES = List({"start": _INT, "end": _INT, "boxes": List(_INT)})
PAIR_FEATURES = Features(
    {
        "row": _INT,
        "caption1": _STRING,
        "caption2": _STRING,
        "phrases1": _PHRASES,
        "phrases2": _PHRASES,
        "pairs": List(
            {name: _INT for name in ("start1", "end1", "start2", "end2")}
            | {"label": ClassLabel(names=list(PARAPHRASE_TYPES))}
        ),
        "label": ClassLabel(names=list(IDENTIFICATION_LABELS)),
        "length": _INT,
    }
)


def load_paraphrases(path: str | PathLike) -> Dataset:
    r"""
    Reads the CSV files of the VGP typology.

    Args:
        path (`str` or `PathLike`):
            A file with the columns `image`, `original_phrase1`, `original_phrase2` and `type_label`; or the folder of
            `train_data.csv`, `val_data.csv` and others. All of them are read: a paraphrase belongs to the split of its
            image.

    Returns:
        `datasets.Dataset`: `image_id`, `phrase1`, `phrase2`, as they stand in captions, and `label`: alternation,
        forward entailment (the first entails the second), reverse entailment, equivalence or independence.
    """
    files = sorted(Path(path).glob("*_data.csv")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise FileNotFoundError(f"There is no train_data.csv, nor any other *_data.csv, in {str(path)!r}.")
    columns = {"image_id": "image", "phrase1": "original_phrase1", "phrase2": "original_phrase2"}
    rows = []
    for file in files:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            try:
                missing = {*columns.values(), "type_label"} - set(reader.fieldnames or ())
                if missing:
                    raise ValueError(f"{file} lacks the columns {sorted(missing)}; it has {reader.fieldnames}.")
                for row in reader:
                    rows.append(_paraphrase(row, columns, f"{file}:{reader.line_num}"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}:{reader.reader.line_num + 1}: not UTF-8: {error.reason}.") from None
            except csv.Error as error:
                raise ValueError(f"{file}:{reader.reader.line_num}: not CSV that can be read: {error}.") from None
    features = Features({name: _STRING for name in columns} | {"label": PAIR_FEATURES["label"]})
    features["label"] = ClassLabel(names=list(PARAPHRASE_TYPES))
    return Dataset.from_list(rows, features=features)


def _paraphrase(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    paraphrase = {}
    for name, column in columns.items():
        value = (row[column] or "").strip()
        if not value or "\n" in value or "\0" in value:
            # A quote that is never closed makes one value of many lines.
            raise ValueError(f"{where}: `{column}` must be some words on one line, got {describe(value)}.")
        paraphrase[name] = value
    label = row["type_label"]
    if label not in LABELS:
        raise ValueError(f"{where}: `type_label` must be 0 to 4, got {describe(label)}.")
    return paraphrase | {"label": int(label)}


def nearest_images(features: torch.Tensor | np.ndarray, neighbours: int = 20) -> np.ndarray:
    r"""
    The nearest other rows of each row by Euclidean distance. The search is exact.

    Args:
        features (`torch.Tensor` or `np.ndarray` of shape `(images, size)`):
            Pooled features of images.
        neighbours (`int`, *optional*, defaults to 20):
            How many; fewer if there are fewer other rows.

    Returns:
        `np.ndarray` of shape `(images, neighbours)`: Row numbers, the nearest first.
    """
    features = torch.as_tensor(features).float().flatten(1).contiguous()
    neighbours = min(neighbours, len(features) - 1)
    if neighbours < 1:
        raise ValueError(f"Neighbours need two images or more, got {len(features)}.")
    # Around their mean, rows are short, and little is lost in the differences of squares.
    features = features - features.mean(dim=0)
    squares = features.square().sum(dim=1)
    found = []
    for start in tqdm(range(0, len(features), 1024), desc="Finding nearest images", unit="batch"):
        chunk = slice(start, start + 1024)
        distances = squares - 2 * features[chunk] @ features.T
        distances[torch.arange(len(distances)), torch.arange(start, start + len(distances))] = torch.inf
        found.append(distances.topk(neighbours, largest=False).indices)
    return torch.cat(found).int().numpy()


def make_caption_pairs(
    images: Dataset,
    paraphrases: Mapping[str, Sequence[Mapping[str, Any]]],
    nearest: np.ndarray,
    seed: int = 0,
    pairs_per_image: int | None = None,
    is_true: Callable[[int, str], bool] | None = None,
    paraphrases_first: bool = False,
) -> Dataset:
    r"""
    Makes the pairs of captions that VGP models learn from: all pairs of an image's captions; and each of its captions
    with two captions of the nearest other image, on sides drawn at random.

    Args:
        images ([`~datasets.Dataset`]):
            Rows of [`load_flickr30k_entities`] or [`grounded_scenes`].
        paraphrases (`Mapping[str, Sequence[Mapping]]`):
            For identifiers of images, rows with `phrase1`, `phrase2` and `label`. See [`paraphrases_by_image`].
        nearest (`np.ndarray` of shape `(images, neighbours)`):
            From [`nearest_images`].
        seed (`int`, *optional*, defaults to 0):
            Of all that is drawn at random.
        pairs_per_image (`int`, *optional*):
            Keep as many pairs of each image, drawn at random, half of them true. All 20 by default.
        is_true (`Callable`, *optional*):
            Given the number of an image and a caption of another, whether it is true of the image all the same. Such
            captions are passed over; the paper has no means to know them.
        paraphrases_first (`bool`, *optional*, defaults to `False`):
            Whether true pairs are drawn from those with phrase pairs first. In the published data one in twelve has
            any, so that a few pairs of each image would have hardly a paraphrase among them.

    Returns:
        `datasets.Dataset`: `row`, the number of the image in `images`; `caption1` and `caption2`; `phrases1` and
        `phrases2`, spans in characters with the numbers of their boxes; `pairs` of phrases that stand in both
        captions; `label`: both captions are of the image, the first only, or the second only; and `length`, the words
        of both captions, by which Trainer can batch them.
    """
    rng = random.Random(seed)
    table = images.select_columns(["image_id", "captions", "phrases"])
    captions_of = [row["captions"] for row in table]
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(tqdm(table, desc="Pairing captions", unit="image")):
        phrases = defaultdict(list)
        for phrase in row["phrases"]:
            if phrase["boxes"]:
                phrases[phrase["caption"]].append({key: phrase[key] for key in ("start", "end", "boxes")})
        captions = row["captions"]
        positive = []
        for i, j in combinations(range(len(captions)), 2):
            first, second = captions[i], captions[j]
            pairs = find_phrase_pairs(first, second, paraphrases.get(row["image_id"], ()), rng)
            positive.append(_pair(number, first, second, phrases[i], phrases[j], pairs, 0))
        negative = []
        wrong = _false_captions(number, nearest[number], captions_of, is_true, rng)
        for i, caption in enumerate(captions):
            for other in wrong:
                if rng.random() < 0.5:
                    negative.append(_pair(number, caption, other, phrases[i], [], [], 1))
                else:
                    negative.append(_pair(number, other, caption, [], phrases[i], [], 2))
        if pairs_per_image is not None:
            count = min(len(positive), (pairs_per_image + 1) // 2)
            if paraphrases_first:
                rng.shuffle(positive)
                positive = sorted(positive, key=lambda pair: not pair["pairs"])[:count]
            else:
                positive = rng.sample(positive, count)
            negative = rng.sample(negative, min(len(negative), pairs_per_image // 2))
        rows += positive + negative
    return Dataset.from_list(rows, features=PAIR_FEATURES)


def paraphrases_by_image(paraphrases: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of [`load_paraphrases`] by the image they belong to."""
    of_image = defaultdict(list)
    for row in paraphrases:
        of_image[row["image_id"]].append(row)
    return dict(of_image)


def find_phrase_pairs(
    first: str, second: str, paraphrases: Iterable[Mapping[str, Any]], rng: random.Random
) -> list[dict[str, int]]:
    r"""
    The paraphrases whose phrases stand in two captions, one in each. Where a pair stands in them the other way round
    it is swapped, and its label with it. Of several with the same phrases one is drawn, and pairs that lie within
    another pair are left out.

    Args:
        first (`str`), second (`str`):
            The captions.
        paraphrases (`Iterable[Mapping]`):
            Rows with `phrase1`, `phrase2` and `label`.
        rng (`random.Random`):
            Draws among equals.
    """
    found: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = defaultdict(list)
    for row in paraphrases:
        label = row["label"]
        for one, other, swapped in (
            (row["phrase1"], row["phrase2"], label),
            (row["phrase2"], row["phrase1"], SWAPPED.get(label, label)),
        ):
            span1, span2 = _find(one, first), _find(other, second)
            if span1 is not None and span2 is not None:
                found[span1, span2].append(swapped)
    whole = [
        spans for spans in found if not any(other != spans and all(map(_within, spans, other)) for other in found)
    ]
    return [
        {"start1": a, "end1": b, "start2": c, "end2": d, "label": rng.choice(found[(a, b), (c, d)])}
        for (a, b), (c, d) in whole
    ]


@lru_cache(maxsize=4096)  # a phrase is looked for once in each caption of its image, and not once in each pair
def _find(phrase: str, caption: str) -> tuple[int, int] | None:
    match = re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", caption, flags=re.IGNORECASE)
    return match.span() if match else None


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _false_captions(
    number: int,
    neighbours: np.ndarray,
    captions_of: list[list[str]],
    is_true: Callable[[int, str], bool] | None,
    rng: random.Random,
) -> list[str]:
    """Two captions of the nearest image that has as many to offer."""
    own = set(captions_of[number])
    for neighbour in neighbours:
        offered = [
            caption
            for caption in captions_of[neighbour]
            if caption not in own and not (is_true is not None and is_true(number, caption))
        ]
        if len(offered) >= NUM_NEGATIVE_CAPTIONS:
            return rng.sample(offered, NUM_NEGATIVE_CAPTIONS)
    return []


def _pair(
    row: int, caption1: str, caption2: str, phrases1: list, phrases2: list, pairs: list, label: int
) -> dict[str, Any]:
    length = len(caption1.split()) + len(caption2.split())
    values = (row, caption1, caption2, phrases1, phrases2, pairs, label, length)
    return dict(zip(PAIR_FEATURES, values, strict=True))
