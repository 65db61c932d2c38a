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
"""The grammar of scene captions: what they can say about colored shapes, and when they are true.

Captions follow a small grammar, for example:

    a small red circle
    two green triangles and a little blue square
    there is a red circle and a white object
    a red circle is to the left of a large blue square

Their meaning:

- "a X": the scene has at least one X. "two Xs", "three Xs", "four Xs": it has exactly that many. An "object" is any
  shape; "little" means "small" and "big" means "large".
- "P and Q and ...", optionally after "there is" or "there are" (which agrees with P): each phrase is true, and they
  denote different objects. "a circle and a circle" needs two circles. "two circles and a red circle" is false if the
  red circle is one of the two.
- "a X is above a Y": some X is above another object that is a Y. A is above B if the bottom of A's box is above the
  top of B's box, and the vertical distance of their centers is at least `DOMINANCE` times the horizontal distance.
  "below", "to the left of" and "to the right of" are defined in the same way.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple


# The colors are far apart in RGB. No name starts with a vowel, so the article is always "a".
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 165, 70),
    "blue": (40, 85, 235),
    "yellow": (240, 205, 30),
    "purple": (165, 55, 195),
    "white": (255, 255, 255),
}
SHAPES = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
SIZES = {"small": ("small", "little"), "large": ("large", "big")}
DETERMINERS = {1: "a", 2: "two", 3: "three", 4: "four"}
RELATIONS = ("above", "below", "to the left of", "to the right of")
PARAPHRASE_TYPES = ("alternation", "forward entailment", "reverse entailment", "equivalence", "independence")

DOMINANCE = 1.5  # see the module's docstring


class Attributes(NamedTuple):
    """The size, color and shape that a noun phrase mentions. `None` means that it does not mention it."""

    size: str | None
    color: str | None
    shape: str | None

    def fit(self, obj: Mapping[str, Any]) -> bool:
        """Returns whether an object of a scene has these attributes."""
        return (
            self.size in (None, obj["size"])
            and self.color in (None, obj["color"])
            and self.shape in (None, obj["shape"])
        )


def _nouns(attributes: Attributes, plural: bool) -> list[str]:
    size, color, shape = attributes
    noun = (SHAPES[shape] if plural else shape) if shape else ("objects" if plural else "object")
    adjectives = SIZES[size] if size else ("",)
    return [" ".join(word for word in (adjective, color, noun) if word) for adjective in adjectives]


# All nouns and noun phrases of the grammar with their meaning. The generator and the parser share these tables.
NOUNS = {
    (attributes, plural): _nouns(attributes, plural)
    for attributes in map(Attributes._make, product((None, *SIZES), (None, *COLORS), (None, *SHAPES)))
    if any(attributes)
    for plural in (False, True)
}
PHRASES = {
    f"{determiner} {noun}": (count, attributes)
    for (attributes, plural), nouns in NOUNS.items()
    for count, determiner in DETERMINERS.items()
    if plural == (count > 1)
    for noun in nouns
}
FORMS = ("list", "there", *RELATIONS)
_BETWEEN_PHRASES = re.compile(
    "|".join(["^there is ", "^there are ", " and ", *(f" is {name} " for name in RELATIONS)])
)


def render(form: str, phrases: Sequence[str]) -> str:
    """
    Joins noun phrases to a caption.

    Args:
        form (`str`):
            One of `FORMS`.
        phrases (`Sequence[str]`):
            The noun phrases.

    Returns:
        `str`: The caption.

    Example:

    ```python
    >>> from hf_vg.data.scene_grammar import render

    >>> render("there", ["two circles", "a red square"])
    'there are two circles and a red square'
    ```
    """
    # No commas: caption tokenizers often drop punctuation, and decoded captions must still be in the grammar.
    if form in RELATIONS:
        return f" is {form} ".join(phrases)
    listed = " and ".join(phrases)
    if form == "there":
        return f"there {'is' if listed.startswith('a ') else 'are'} {listed}"
    return listed


def relation_of(
    box1: Sequence[float], box2: Sequence[float], dominance: float = DOMINANCE, gap: float = 0
) -> str | None:
    """
    Determines the spatial relation of two boxes.

    Args:
        box1 (`Sequence[float]`):
            The first box (left, top, right, bottom).
        box2 (`Sequence[float]`):
            The second box.
        dominance (`float`, *optional*, defaults to 1.5):
            How many times larger the distance must be in the direction of the relation than in the other one.
        gap (`float`, *optional*, defaults to 0):
            Minimum gap between the boxes.

    Returns:
        `str` or `None`: One of `RELATIONS`, or `None` if the boxes are too close or too diagonal.

    Example:

    ```python
    >>> from hf_vg.data.scene_grammar import relation_of

    >>> relation_of([0, 0, 10, 10], [2, 20, 12, 30])
    'above'
    ```
    """
    across = abs(box1[0] + box1[2] - box2[0] - box2[2])
    down = abs(box1[1] + box1[3] - box2[1] - box2[3])
    if down >= dominance * across:
        if box2[1] - box1[3] >= gap:
            return "above"
        if box1[1] - box2[3] >= gap:
            return "below"
    elif across >= dominance * down:
        if box2[0] - box1[2] >= gap:
            return "to the left of"
        if box1[0] - box2[2] >= gap:
            return "to the right of"
    return None


def caption_is_true(scene: Mapping[str, Any] | Sequence[Mapping[str, Any]], caption: str) -> bool:
    """
    Checks whether a caption follows the grammar (see the module's docstring) and is true for a scene.

    Args:
        scene (`Mapping` or `Sequence[Mapping]`):
            A row of [`load_scenes`], or its `"objects"`.
        caption (`str`):
            Any text. Case, extra whitespace and one final period are ignored.

    Returns:
        `bool`: `True` if the caption is true for the scene, `False` if it is false or not in the grammar.

    Example:

    ```python
    >>> from hf_vg.data import caption_is_true

    >>> scene = [{"size": "small", "color": "red", "shape": "circle", "box": [4, 4, 14, 14]}]
    >>> caption_is_true(scene, "There is a red circle."), caption_is_true(scene, "two red circles")
    (True, False)
    ```
    """
    parsed = _parse(scene, caption)
    if parsed is None:
        return False
    form, meant = parsed
    if form in RELATIONS:
        return all(denoted for _, _, denoted in meant)
    # "two Xs" denotes all Xs of the scene. Each "a X" may denote any X that no counted phrase denotes.
    taken = [i for _, count, found in meant if count > 1 for i in found]
    if len(taken) > len(set(taken)) or any(count > 1 and count != len(found) for _, count, found in meant):
        return False
    return _can_choose_different([found.difference(taken) for _, count, found in meant if count == 1])


def caption_phrases(scene: Mapping[str, Any] | Sequence[Mapping[str, Any]], caption: str) -> list[dict[str, Any]]:
    """
    Finds the noun phrases of a caption and the objects that they may denote.

    Args:
        scene (`Mapping` or `Sequence[Mapping]`):
            A row of [`load_scenes`], or its `"objects"`.
        caption (`str`):
            Any text, as for [`caption_is_true`].

    Returns:
        `list[dict]`: For each phrase its `text`, its `start` and `end` in words, and the indices of the `objects` that
        fit. The list is empty for text that is not in the grammar.

    Example:

    ```python
    >>> from hf_vg.data import caption_phrases

    >>> scene = [{"size": "small", "color": "red", "shape": "circle", "box": [4, 4, 14, 14]}]
    >>> caption_phrases(scene, "there is a red circle")
    [{'text': 'a red circle', 'start': 2, 'end': 5, 'objects': [0]}]
    ```
    """
    parsed = _parse(scene, caption)
    if parsed is None:
        return []
    rows, start = [], 0
    words = caption.lower().rstrip(". \n\t").split()
    for text, _, denoted in parsed[1]:
        length = len(text.split())
        start = next(i for i in range(start, len(words)) if words[i : i + length] == text.split())
        rows.append({"text": text, "start": start, "end": start + length, "objects": sorted(denoted)})
        start += length
    return rows


def _parse(
    scene: Mapping[str, Any] | Sequence[Mapping[str, Any]], caption: str
) -> tuple[str, list[tuple[str, int, set[int]]]] | None:
    """Returns a caption's form and its phrases with their number and objects; `None` if it is not in the grammar."""
    if not isinstance(caption, str):
        raise TypeError(f"caption must be a str, got {type(caption).__name__}: {caption!r}")
    objects = scene["objects"] if isinstance(scene, Mapping) else scene
    text = " ".join(caption.lower().split()).removesuffix(".").rstrip()
    phrases = [part for part in _BETWEEN_PHRASES.split(text) if part]
    # A text is in the grammar if the generator would write it in exactly this way.
    form = next((form for form in FORMS if render(form, phrases) == text), None)
    if form is None or not phrases or not all(phrase in PHRASES for phrase in phrases):
        return None
    meant = []
    for phrase in phrases:
        count, said = PHRASES[phrase]
        meant.append((phrase, count, {i for i, obj in enumerate(objects) if said.fit(obj)}))
    if form in RELATIONS:
        if [count for _, count, _ in meant] != [1, 1]:
            return None
        # Only objects for which the relation is true.
        pairs = [
            (i, j)
            for i, j in product(*(found for _, _, found in meant))
            if relation_of(objects[i]["box"], objects[j]["box"]) == form
        ]
        meant = [(phrase, count, {pair[place] for pair in pairs}) for place, (phrase, count, _) in enumerate(meant)]
    return form, meant


def _can_choose_different(sets: list[set[int]]) -> bool:
    """Returns whether a different member can be chosen from each set."""
    if not sets:
        return True
    return any(_can_choose_different([others - {i} for others in sets[1:]]) for i in sets[0])


def paraphrase_type(phrase1: Mapping[str, Any], phrase2: Mapping[str, Any]) -> str | None:
    """
    Determines the relation of two phrases of a scene.

    Args:
        phrase1 (`Mapping`):
            A phrase with its `text` and `objects`.
        phrase2 (`Mapping`):
            Another phrase.

    Returns:
        `str` or `None`: One of `PARAPHRASE_TYPES`, or `None` if the texts are equal or the phrases share only some of
        their objects.

    Example:

    ```python
    >>> from hf_vg.data.scene_grammar import paraphrase_type

    >>> paraphrase_type({"text": "a red circle", "objects": [0]}, {"text": "a circle", "objects": [0]})
    'forward entailment'
    ```
    """
    objects1, objects2 = set(phrase1["objects"]), set(phrase2["objects"])
    if not objects1 & objects2:
        return "independence"
    if objects1 != objects2 or phrase1["text"] == phrase2["text"]:
        return None
    # Both phrases are true for the same objects, so they can differ only in what they do not mention.
    said1, said2 = ({value for value in PHRASES[phrase["text"]][1] if value} for phrase in (phrase1, phrase2))
    if said1 == said2:
        return "equivalence"
    return "forward entailment" if said1 > said2 else "reverse entailment" if said1 < said2 else "alternation"
