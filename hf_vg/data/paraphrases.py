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
"""Visually grounded paraphrases: pairs of captions, matching an image or not, and relations between their phrases."""

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
NUM_NEGATIVE_CAPTIONS = 2  # from the nearest image; each is paired with every caption of the image itself
LABELS = {str(number) for number in range(len(PARAPHRASE_TYPES))}
SWAPPED = {1: 2, 2: 1}  # swapping the phrases turns forward into reverse entailment

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
    Reads the CSV files of the typology of visually grounded paraphrases (VGP).

    Args:
        path (`str` or `PathLike`):
            A file with the columns `image`, `original_phrase1`, `original_phrase2` and `type_label`, or the folder
            with `train_data.csv`, `val_data.csv` and others. All files of a folder are read, because a paraphrase
            belongs to the split of its image.

    Returns:
        [`~datasets.Dataset`]: Rows with `image_id`, `phrase1` and `phrase2` as written in the captions, and `label`:
        alternation, forward entailment (the first phrase entails the second), reverse entailment, equivalence or
        independence.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data import load_paraphrases

    >>> folder = tempfile.TemporaryDirectory()
    >>> header = "image,original_phrase1,original_phrase2,type_label"
    >>> _ = Path(folder.name, "train_data.csv").write_text(f"{header}\n1.jpg,a dog,an animal,1\n")
    >>> load_paraphrases(folder.name)[0]
    {'image_id': '1.jpg', 'phrase1': 'a dog', 'phrase2': 'an animal', 'label': 1}
    ```
    """
    files = sorted(Path(path).glob("*_data.csv")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise FileNotFoundError(f"There is no train_data.csv or other *_data.csv in {str(path)!r}.")
    columns = {"image_id": "image", "phrase1": "original_phrase1", "phrase2": "original_phrase2"}
    rows = []
    for file in files:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            try:
                missing = {*columns.values(), "type_label"} - set(reader.fieldnames or ())
                if missing:
                    raise ValueError(f"{file} has no columns {sorted(missing)}; it has {reader.fieldnames}.")
                for row in reader:
                    rows.append(_paraphrase(row, columns, f"{file}:{reader.line_num}"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}:{reader.reader.line_num + 1}: not UTF-8: {error.reason}.") from None
            except csv.Error as error:
                raise ValueError(f"{file}:{reader.reader.line_num}: not CSV: {error}.") from None
    features = Features({name: _STRING for name in columns} | {"label": PAIR_FEATURES["label"]})
    features["label"] = ClassLabel(names=list(PARAPHRASE_TYPES))
    return Dataset.from_list(rows, features=features)


def _paraphrase(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    paraphrase = {}
    for name, column in columns.items():
        value = (row[column] or "").strip()
        if not value or "\n" in value or "\0" in value:
            # A missing closing quote joins many lines into one value.
            raise ValueError(f"{where}: `{column}` must be text on one line, got {describe(value)}.")
        paraphrase[name] = value
    label = row["type_label"]
    if label not in LABELS:
        raise ValueError(f"{where}: `type_label` must be 0 to 4, got {describe(label)}.")
    return paraphrase | {"label": int(label)}


def nearest_images(features: torch.Tensor | np.ndarray, neighbors: int = 20) -> np.ndarray:
    r"""
    Finds the nearest other images of each image by Euclidean distance. The search is exact.

    Args:
        features (`torch.Tensor` or `np.ndarray` of shape `(images, size)`):
            Pooled features of the images.
        neighbors (`int`, *optional*, defaults to 20):
            Number of neighbors per image. It is reduced if there are fewer other images.

    Returns:
        `np.ndarray` of shape `(images, neighbors)`: Indices of the neighbors, nearest first.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data.paraphrases import nearest_images

    >>> nearest_images(np.array([[0.0], [1.0], [5.0]]), neighbors=2).tolist()
    [[1, 2], [0, 2], [1, 0]]
    ```
    """
    features = torch.as_tensor(features).float().flatten(1).contiguous()
    neighbors = min(neighbors, len(features) - 1)
    if neighbors < 1:
        raise ValueError(f"Nearest images need at least two images, got {len(features)}.")
    # Centered features have small norms, so the difference of squares loses little precision.
    features = features - features.mean(dim=0)
    squares = features.square().sum(dim=1)
    found = []
    for start in tqdm(range(0, len(features), 1024), desc="Finding nearest images", unit="batch"):
        chunk = slice(start, start + 1024)
        distances = squares - 2 * features[chunk] @ features.T
        distances[torch.arange(len(distances)), torch.arange(start, start + len(distances))] = torch.inf
        found.append(distances.topk(neighbors, largest=False).indices)
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
    Makes the pairs of captions that VGP models learn from. Positive pairs are all pairs of an image's captions.
    Negative pairs combine each caption of the image with two captions of the nearest other image, in random order.

    Args:
        images ([`~datasets.Dataset`]):
            Rows of [`load_flickr30k_entities`] or [`grounded_scenes`].
        paraphrases (`Mapping[str, Sequence[Mapping]]`):
            Maps an image id to rows with `phrase1`, `phrase2` and `label`. See [`paraphrases_by_image`].
        nearest (`np.ndarray` of shape `(images, neighbors)`):
            The result of [`nearest_images`].
        seed (`int`, *optional*, defaults to 0):
            Seed of all random choices.
        pairs_per_image (`int`, *optional*):
            Number of pairs to draw per image, half of them positive. By default all are kept: 20 for five captions.
        is_true (`Callable`, *optional*):
            Called with the index of an image and a caption of another image. Returns whether the caption also matches
            the image; such captions are not used as negatives. The paper cannot check this.
        paraphrases_first (`bool`, *optional*, defaults to `False`):
            Whether to prefer positive pairs that contain phrase pairs. In the published data only one pair in twelve
            has any, so a small random sample would contain few paraphrases.

    Returns:
        [`~datasets.Dataset`]: One row per pair, with these columns:

        - **row** -- the index of the image in `images`.
        - **caption1** and **caption2**.
        - **phrases1** and **phrases2** -- spans in characters, with the indices of their boxes.
        - **pairs** -- phrase pairs with one phrase in each caption, and their relation.
        - **label** -- which captions match the image: `both`, `first` or `second`.
        - **length** -- the number of words of both captions, so that Trainer can group batches by length.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import grounded_scenes, load_scenes, make_caption_pairs

    >>> scenes = grounded_scenes(load_scenes(2, 1, 1)["train"])
    >>> pairs = make_caption_pairs(scenes, {}, nearest=np.array([[1], [0]]), pairs_per_image=4)
    >>> [pairs.features["label"].int2str(label) for label in pairs["label"][:4]]  # of the first scene
    ['both', 'both', 'first', 'second']
    ```
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
    """
    Groups the rows of [`load_paraphrases`] by image.

    Args:
        paraphrases (`Iterable[Mapping]`):
            Rows with an `image_id`.

    Returns:
        `dict[str, list[Mapping]]`: Maps an image id to its rows.
    """
    of_image = defaultdict(list)
    for row in paraphrases:
        of_image[row["image_id"]].append(row)
    return dict(of_image)


def find_phrase_pairs(
    first: str, second: str, paraphrases: Iterable[Mapping[str, Any]], rng: random.Random
) -> list[dict[str, int]]:
    r"""
    Finds the paraphrases with one phrase in each of two captions. If they appear in the opposite order, the pair and
    its label are swapped. If several rows have the same phrases, one is drawn. A pair inside another pair is left out.

    Args:
        first (`str`):
            The first caption.
        second (`str`):
            The second caption.
        paraphrases (`Iterable[Mapping]`):
            Rows with `phrase1`, `phrase2` and `label`.
        rng (`random.Random`):
            Draws among rows with the same phrases.

    Returns:
        `list[dict[str, int]]`: The spans in characters (`start1`, `end1`, `start2`, `end2`) and the `label`.

    Example:

    ```python
    >>> import random
    >>> from hf_vg.data.paraphrases import find_phrase_pairs

    >>> paraphrases = [{"phrase1": "a dog", "phrase2": "an animal", "label": 1}]
    >>> find_phrase_pairs("an animal runs", "there is a dog", paraphrases, random.Random(0))
    [{'start1': 0, 'end1': 9, 'start2': 9, 'end2': 14, 'label': 2}]
    ```
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


@lru_cache(maxsize=4096)  # each phrase is searched once per caption instead of once per pair
def _find(phrase: str, caption: str) -> tuple[int, int] | None:
    match = re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", caption, flags=re.IGNORECASE)
    return match.span() if match else None


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _false_captions(
    number: int,
    neighbors: np.ndarray,
    captions_of: list[list[str]],
    is_true: Callable[[int, str], bool] | None,
    rng: random.Random,
) -> list[str]:
    """Draws two captions from the nearest image that has two captions that do not match the image."""
    own = set(captions_of[number])
    for neighbor in neighbors:
        offered = [
            caption
            for caption in captions_of[neighbor]
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
