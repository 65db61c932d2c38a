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
"""Scenes: a synthetic dataset of colored shapes, with labels for every task of the package. It needs no download.

`scene_grammar.py` defines what captions can say and when they are true.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import combinations, product
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from datasets.utils import tqdm
from PIL import Image as PILImage
from PIL import ImageDraw

from .scene_grammar import (
    COLORS,
    DETERMINERS,
    NOUNS,
    PARAPHRASE_TYPES,
    RELATIONS,
    SHAPES,
    SIZES,
    Attributes,
    paraphrase_type,
    relation_of,
    render,
)


# Training scenes have every color and every shape, but never these combinations.
HELD_OUT = (("red", "cross"), ("green", "circle"), ("blue", "triangle"), ("yellow", "square"))
SEEN = tuple(pair for pair in product(COLORS, SHAPES) if pair not in HELD_OUT)

# Scenes are laid out on a grid of 1/256 of the image side, so `image_size` changes only the resolution.
GRID = 256
SIDES = {"small": (38, 46), "large": (72, 84)}  # every large shape has at least 2.4 times the area of a small one
BORDER = 4
SUPERSAMPLING = 4
MIN_IMAGE_SIZE = 32
BACKGROUND = (200, 200, 200)
OUTLINE = (40, 40, 40)  # the same for all shapes, so that the shape is visible in every color

CORNERS = {
    "square": ((0, 0), (1, 0), (1, 1), (0, 1)),
    "triangle": ((0.5, 0), (1, 1), (0, 1)),
    "cross": (
        *((0.3, 0), (0.7, 0), (0.7, 0.3), (1, 0.3), (1, 0.7), (0.7, 0.7)),
        *((0.7, 1), (0.3, 1), (0.3, 0.7), (0, 0.7), (0, 0.3), (0.3, 0.3)),
    ),
}

# Shapes are placed farther apart than relations require. Every pair has a relation, and rounding does not change it.
PLACED_DOMINANCE, PLACED_GAP = 1.7, 8

PAIRS_PER_PARAPHRASE_TYPE = 2  # maximum per scene; without a limit, two thirds of all pairs would be independent

# The attributes that noun phrases mention, with the weight of each choice.
MENTIONS = {
    ("color", "shape"): 10,
    ("size", "color", "shape"): 5,
    ("size", "shape"): 1,
    ("shape",): 1,
    ("size", "color"): 1,
    ("color",): 1,
    ("size",): 1,
}


def _sample_objects(rng: random.Random, unseen: bool, image_size: int) -> list[dict[str, Any]]:
    number = rng.choices((1, 2, 3, 4), weights=(1, 4, 3, 2))[0]
    kinds: list[tuple[str, ...]] = []
    # At least one object must be unique, so that every scene has something to refer to.
    while not any(kinds.count(kind) == 1 for kind in kinds):
        pairs = [rng.choice(HELD_OUT if unseen and i == 0 else SEEN) for i in range(number)]
        for i in range(1, number):
            if rng.random() < 0.25:  # repeat an object: independent draws would rarely give something to count
                pairs[i] = pairs[rng.randrange(i)]
        kinds = [(rng.choice(tuple(SIZES)), *pair) for pair in pairs]
    rng.shuffle(kinds)

    sides = [rng.randint(*SIDES[size]) for size, _, _ in kinds]
    boxes: list[tuple[int, int, int, int]] = []
    tries = 0
    while len(boxes) < number:
        if tries % 40 == 0:  # start again: the boxes placed so far may leave no room for the next
            boxes = []
        tries += 1
        side = sides[len(boxes)]
        left, top = (rng.randint(BORDER, GRID - BORDER - side) for _ in "xy")
        box = (left, top, left + side, top + side)
        if all(relation_of(box, other, PLACED_DOMINANCE, PLACED_GAP) for other in boxes):
            boxes.append(box)
    # Captions name objects in this order, and the first objects more often. People also start with what stands out and
    # go from left to right. In random order, no model could know where to look before it chooses a word.
    placed = sorted(zip(kinds, boxes, strict=True), key=lambda item: (item[0][0] != "large", item[1][0]))
    # Coordinates are quarters of a pixel, which float32 represents exactly.
    scale = image_size * SUPERSAMPLING / GRID
    return [
        {"shape": shape, "color": color, "size": size, "box": [round(x * scale) / SUPERSAMPLING for x in box]}
        for (size, color, shape), box in placed
    ]


def _draw(objects: Sequence[Mapping[str, Any]], image_size: int) -> bytes:
    image = PILImage.new("RGB", (image_size * SUPERSAMPLING,) * 2, BACKGROUND)
    draw = ImageDraw.Draw(image)
    for obj in objects:
        left, top, right, bottom = (int(x * SUPERSAMPLING) for x in obj["box"])
        width, height = right - left - 1, bottom - top - 1  # PIL includes the last coordinate
        style: dict[str, Any] = {
            "fill": COLORS[obj["color"]],
            "outline": OUTLINE,
            "width": image_size * SUPERSAMPLING // 64,
        }
        if obj["shape"] == "circle":
            draw.ellipse((left, top, left + width, top + height), **style)
        else:
            corners = [(left + round(x * width), top + round(y * height)) for x, y in CORNERS[obj["shape"]]]
            draw.polygon(corners, **style)
    buffer = BytesIO()
    image.reduce(SUPERSAMPLING).save(buffer, "PNG")
    return buffer.getvalue()


class _Scene:
    """The objects of one scene, and the random choices of its texts."""

    def __init__(self, rng: random.Random, unseen: bool, image_size: int):
        self.rng = rng
        self.turns = defaultdict(lambda: rng.randrange(2))
        # Texts of training scenes never mention a held-out combination, not even in a question with the answer no.
        self.pairs = SEEN + HELD_OUT if unseen else SEEN
        self.objects = _sample_objects(rng, unseen, image_size)
        self.descriptions = [
            [
                Attributes(*(obj[key] if key in mentioned else None for key in Attributes._fields))
                for mentioned in MENTIONS
            ]
            for obj in self.objects
        ]
        self.denotations = {
            said: [i for i, obj in enumerate(self.objects) if said.fit(obj)]
            for descriptions in self.descriptions
            for said in descriptions
        }
        self.identifiable = [i for i, said in enumerate(self.descriptions) if any(map(self.is_unique, said))]

    def is_unique(self, said: Attributes) -> bool:
        return len(self.denotations[said]) == 1

    def describe(self, index: int, unique: bool) -> Attributes:
        descriptions = self.descriptions[index]
        weights = [
            0 if unique and not self.is_unique(said) else weight
            for said, weight in zip(descriptions, MENTIONS.values(), strict=True)
        ]
        return self.rng.choices(descriptions, weights)[0]

    def noun(self, said: Attributes, plural: bool = False) -> str:
        # Synonyms alternate: random choices would leave few equivalent pairs with different words.
        self.turns[said] += 1
        return NOUNS[said, plural][self.turns[said] % len(NOUNS[said, plural])]

    def phrase(self, index: int, unique: bool) -> tuple[str, list[int]]:
        said = self.describe(index, unique)
        denoted = self.denotations[said]
        return f"{DETERMINERS[len(denoted)]} {self.noun(said, len(denoted) > 1)}", denoted

    def relation(self, index1: int, index2: int) -> str | None:
        return relation_of(self.objects[index1]["box"], self.objects[index2]["box"])

    def by_salience(self, indices: Sequence[int]) -> list[int]:
        """Returns a random order in which each object comes first three times as often as the next one."""
        return sorted(indices, key=lambda index: self.rng.random() ** 3**index, reverse=True)

    def caption(self, form: str) -> tuple[str, list[tuple[str, list[int]]]]:
        phrases = []
        if form == "relation":
            pair = sorted(self.by_salience(self.identifiable)[:2])
            phrases = [self.phrase(index, unique=True) for index in pair]
            form = self.relation(*pair) or form
        else:
            number = len(self.objects)
            wanted = self.rng.randint(1, 2) if form == "there" else 2
            taken: set[int] = set()
            for index in self.by_salience(range(number)):
                text, denoted = self.phrase(index, unique=False)
                if len(phrases) < wanted and taken.isdisjoint(denoted):
                    phrases.append((text, denoted))
                    taken.update(denoted)
            phrases.sort(key=lambda phrase: phrase[1])
        return render(form, [text for text, _ in phrases]), phrases

    def captions(self) -> tuple[list[str], list[dict[str, Any]]]:
        forms = ["list", "there", "list", "relation" if len(self.identifiable) > 1 else "list", "list"]
        captions: dict[str, list[tuple[str, list[int]]]] = {}
        while len(captions) < 5:
            for form in forms[: 5 - len(captions)]:
                captions.setdefault(*self.caption(form))
        texts = self.rng.sample(list(captions), 5)
        rows = []
        for index, caption in enumerate(texts):
            for text, denoted in captions[caption]:
                start = caption.index(text)
                end = start + len(text)
                rows.append({"caption": index, "start": start, "end": end, "text": text, "objects": denoted})
        return texts, rows

    def paraphrases(self, phrases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pairs: dict[str, list[dict[str, Any]]] = {name: [] for name in PARAPHRASE_TYPES}
        for phrase1, phrase2 in combinations(phrases, 2):
            label = paraphrase_type(phrase1, phrase2)
            if label and phrase1["caption"] != phrase2["caption"]:
                pair = {"label": PARAPHRASE_TYPES.index(label), "phrase1": phrase1["text"], "phrase2": phrase2["text"]}
                for key in ("caption", "start", "end"):
                    pair |= {f"{key}1": phrase1[key], f"{key}2": phrase2[key]}
                pairs[label].append(pair)
        return [
            pair
            for found in pairs.values()
            for pair in self.rng.sample(found, min(len(found), PAIRS_PER_PARAPHRASE_TYPE))
        ]

    def present_and_absent(self) -> tuple[Attributes, Attributes]:
        """Returns a description that fits an object, and one with a single word changed that fits no object."""
        values: dict[str, dict] = {"size": SIZES, "color": COLORS, "shape": SHAPES}
        while True:
            present = self.rng.choice(list(self.denotations))
            key = self.rng.choice([key for key in values if getattr(present, key)])
            absent = present._replace(**{key: self.rng.choice(list(values[key]))})
            named = (absent.color, absent.shape)
            if absent not in self.denotations and (None in named or named in self.pairs):
                return present, absent

    def questions(self) -> list[dict[str, str]]:
        rng, asked = self.rng, []
        for key in ("color", "shape"):
            telling = [said for said in self.denotations if getattr(said, key) is None and self.is_unique(said)]
            if telling:
                said = rng.choice(telling)
                asked.append((f"what {key} is the {self.noun(said)}?", self.objects[self.denotations[said][0]][key]))

        # Descriptions for yes and no are made in the same way, so that the words do not give the answer away.
        answer, said = rng.choice(list(zip(("yes", "no"), self.present_and_absent(), strict=True)))
        asked.append((f"is there a {self.noun(said)}?", answer))

        count = rng.choice(sorted({0, *map(len, self.denotations.values())}))
        counted = [said for said, denoted in self.denotations.items() if len(denoted) == count]
        said = rng.choice(counted) if count else self.present_and_absent()[1]
        asked.append((f"how many {self.noun(said, plural=True)} are there?", str(count)))

        if len(self.identifiable) > 1:
            pair = rng.sample(self.identifiable, 2)
            truth = self.relation(*pair)
            answer = rng.choice(("yes", "no"))
            relation = truth if answer == "yes" else rng.choice([name for name in RELATIONS if name != truth])
            first, second = (self.noun(self.describe(index, unique=True)) for index in pair)
            asked.append((f"is the {first} {relation} the {second}?", answer))
        return [{"question": question, "answer": answer} for question, answer in asked]

    def referring(self) -> list[dict[str, Any]]:
        expressions = [(f"the {self.noun(self.describe(index, unique=True))}", index) for index in self.identifiable]
        # "the red circle above the white cross", for scenes with several red circles.
        for index, descriptions in enumerate(self.descriptions):
            options = []
            for anchor in self.identifiable:
                relation = self.relation(index, anchor)
                rivals = {i for i in range(len(self.objects)) if i != anchor and self.relation(i, anchor) == relation}
                options += [
                    (said, relation, anchor)
                    for said in descriptions
                    if index != anchor
                    and not self.is_unique(said)
                    and rivals.intersection(self.denotations[said]) == {index}
                ]
            if options:
                said, relation, anchor = self.rng.choice(options)
                landmark = self.noun(self.describe(anchor, unique=True))
                expressions.append((f"the {self.noun(said)} {relation} the {landmark}", index))
        return [{"expression": text, "object": i, "box": self.objects[i]["box"]} for text, i in expressions]


_STRING, _INT, _BOX = Value("string"), Value("int32"), List(Value("float32"), length=4)
FEATURES = Features(
    {
        "image_id": _STRING,
        "image": Image(),
        "objects": List({"shape": _STRING, "color": _STRING, "size": _STRING, "box": _BOX}),
        "captions": List(_STRING),
        "phrases": List({"caption": _INT, "start": _INT, "end": _INT, "text": _STRING, "objects": List(_INT)}),
        "paraphrases": List(
            {name: _INT for name in ("caption1", "caption2", "start1", "end1", "start2", "end2")}
            | {"phrase1": _STRING, "phrase2": _STRING, "label": ClassLabel(names=list(PARAPHRASE_TYPES))}
        ),
        "questions": List({"question": _STRING, "answer": _STRING}),
        "referring": List({"expression": _STRING, "object": _INT, "box": _BOX}),
        "unseen": Value("bool"),
    }
)


def _row(split: str, index: int, image_size: int, seed: int) -> dict[str, Any]:
    # Each row has its own generator, so a row does not depend on the number of rows.
    rng = random.Random(f"hf_vg scenes, seed {seed}, {split} {index}")
    unseen = split != "train" and index % 2 == 1
    scene = _Scene(rng, unseen, image_size)
    captions, phrases = scene.captions()
    return {
        "image_id": f"{split}-{index:06d}",
        "image": {"bytes": _draw(scene.objects, image_size), "path": None},
        "objects": scene.objects,
        "captions": captions,
        "phrases": phrases,
        "paraphrases": scene.paraphrases(phrases),
        "questions": scene.questions(),
        "referring": scene.referring(),
        "unseen": unseen,
    }


def load_scenes(
    num_train: int = 4000, num_validation: int = 500, num_test: int = 500, image_size: int = 64, seed: int = 0
) -> DatasetDict:
    """
    Generates scenes of one to four colored shapes, with true captions and with labels for every task.

    The data is in memory: it needs no files and no network. A row depends only on its split, its index, `seed` and
    `image_size`, and `image_size` changes only the resolution. Texts and boxes are the same on every platform. The
    bytes of the images are the same for the same build of Pillow.

    Args:
        num_train (`int`, *optional*, defaults to 4000):
            Number of training scenes.
        num_validation (`int`, *optional*, defaults to 500):
            Number of validation scenes.
        num_test (`int`, *optional*, defaults to 500):
            Number of test scenes.
        image_size (`int`, *optional*, defaults to 64):
            Side of the square images in pixels, at least 32.
        seed (`int`, *optional*, defaults to 0):
            Seed of the scenes.

    Returns:
        [`~datasets.DatasetDict`]: The splits `"train"`, `"validation"` and `"test"`, with these columns:

        - **image_id**, **image** and **objects** -- boxes are (left, top, right, bottom) in pixels. Any two objects
          have exactly one of the four spatial relations. Large objects come first, then objects further left.
        - **captions** -- five different captions, all true by [`caption_is_true`]. Each phrase fits exactly as many
          objects as it names, so it is clear which objects it denotes. Captions name the objects in order.
        - **phrases** -- every noun phrase of every caption, with its span in characters and the objects it denotes.
        - **paraphrases** -- pairs of phrases from two captions, and their relation. With `independence`, they denote
          different objects. All other pairs denote the same objects, but may mention different attributes.
          `equivalence`: the same attributes in other words ("a small cross", "a little cross"). `forward entailment`:
          the first mentions more than the second ("a small red circle", "a circle"). `reverse entailment`: the second
          mentions more than the first. `alternation`: each mentions something that the other does not ("a small
          circle", "a red circle"). Equal texts, and pairs that share only some of their objects, are left out.
        - **questions** -- about color, shape, number, existence and relation, with their answers.
        - **referring** -- expressions that are true for exactly one object, with the object and its box.
        - **unseen** -- whether the scene has a combination of color and shape that no training row has (`HELD_OUT`).
          It is true for every second row of validation and test.

    Example:

    ```python
    >>> from hf_vg.data import load_scenes

    >>> scenes = load_scenes(num_train=10, num_validation=2, num_test=2)
    >>> scenes["train"][0]["captions"][0]
    'a large yellow triangle and a small yellow triangle'
    >>> scenes["train"][0]["questions"][0]
    {'question': 'what color is the cross?', 'answer': 'green'}
    ```
    """
    numbers = {"train": num_train, "validation": num_validation, "test": num_test}
    for split, number in numbers.items():
        if number < 0:
            raise ValueError(f"num_{split} must be 0 or more, got {number}")
    if image_size < MIN_IMAGE_SIZE:
        raise ValueError(
            f"image_size must be at least {MIN_IMAGE_SIZE} pixels to tell the shapes apart, got {image_size}"
        )
    splits = {}
    for split, number in numbers.items():
        rows = [_row(split, i, image_size, seed) for i in tqdm(range(number), desc=f"Drawing {split} scenes")]
        splits[split] = Dataset(pa.Table.from_pylist(rows, schema=FEATURES.arrow_schema))
    return DatasetDict(splits)
