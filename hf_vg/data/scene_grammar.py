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
"""The grammar of the captions of scenes: what can be said of coloured shapes, and what is true.

Captions follow a small grammar, for example:

    a small red circle
    two green triangles and a little blue square
    there is a red circle and a white object
    a red circle is to the left of a large blue square

What they mean:

- "a X": at least one X is in the scene. "two Xs", "three Xs", "four Xs": exactly that many are. An "object" is any
  shape; "little" means "small" and "big" means "large".
- "P and Q and ...", with or without "there is" or "there are" (which agrees with P) in front: each phrase holds, and
  they stand for different objects. "a circle and a circle" needs two circles; "two circles and a red circle" is false
  where the red circle is one of the two.
- "a X is above a Y": some X is above some other object that is a Y. A is above B when, going down, the box of A ends
  before that of B begins, and their centres are at least `DOMINANCE` times as far apart vertically as horizontally.
  "below", "to the left of" and "to the right of" are the same turned round.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple


# Far apart in RGB, and none begins with a vowel, so that the article is always "a".
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

DOMINANCE = 1.5  # see the docstring of the module


class Attributes(NamedTuple):
    """What a noun phrase says of an object; `None` is what it leaves unsaid."""

    size: str | None
    color: str | None
    shape: str | None

    def fit(self, obj: Mapping[str, Any]) -> bool:
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


# Every noun and noun phrase of the grammar with its meaning: the generator and the parser read the same tables.
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
    """A caption of a form, one of `FORMS`, that joins noun phrases."""
    # No commas: caption tokenizers often drop punctuation, and what comes back must still be in the grammar.
    if form in RELATIONS:
        return f" is {form} ".join(phrases)
    listed = " and ".join(phrases)
    if form == "there":
        return f"there {'is' if listed.startswith('a ') else 'are'} {listed}"
    return listed


def relation_of(
    box1: Sequence[float], box2: Sequence[float], dominance: float = DOMINANCE, gap: float = 0
) -> str | None:
    """How the first box lies to the second, one of `RELATIONS`; `None` if they are too close or lie askew."""
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
    Whether a caption is in the grammar (see the docstring of the module) and true of a scene.

    Args:
        scene (`Mapping` or `Sequence[Mapping]`):
            A row of [`load_scenes`], or its `"objects"`.
        caption (`str`):
            Any text. Case, surplus whitespace and one final full stop do not matter; text outside the grammar is not
            true.

    Returns:
        `bool`: `True` if the caption is true of the scene.
    """
    parsed = _parse(scene, caption)
    if parsed is None:
        return False
    form, meant = parsed
    if form in RELATIONS:
        return all(denoted for _, _, denoted in meant)
    # "two Xs" stands for all the Xs there are; each "a X" may choose among what the counted phrases leave.
    taken = [i for _, count, found in meant if count > 1 for i in found]
    if len(taken) > len(set(taken)) or any(count > 1 and count != len(found) for _, count, found in meant):
        return False
    return _can_choose_different([found.difference(taken) for _, count, found in meant if count == 1])


def caption_phrases(scene: Mapping[str, Any] | Sequence[Mapping[str, Any]], caption: str) -> list[dict[str, Any]]:
    """
    The noun phrases of any caption of the grammar, and what they may denote in a scene.

    Args:
        scene (`Mapping` or `Sequence[Mapping]`):
            A row of [`load_scenes`], or its `"objects"`.
        caption (`str`):
            Any text, as for [`caption_is_true`].

    Returns:
        `list[dict]`: For each phrase its `text`, the `start` and `end` of its words among the caption's words, and
        the `objects` that fit it. Empty for text outside the grammar.
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
    """The form of a caption, and the text, number and fitting objects of its phrases; `None` outside the grammar."""
    if not isinstance(caption, str):
        raise TypeError(f"caption must be a str, got {type(caption).__name__}: {caption!r}")
    objects = scene["objects"] if isinstance(scene, Mapping) else scene
    text = " ".join(caption.lower().split()).removesuffix(".").rstrip()
    phrases = [part for part in _BETWEEN_PHRASES.split(text) if part]
    # Reading is writing the other way round: what the generator would not write so is outside the grammar.
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
        # Only those of which the relation holds.
        pairs = [
            (i, j)
            for i, j in product(*(found for _, _, found in meant))
            if relation_of(objects[i]["box"], objects[j]["box"]) == form
        ]
        meant = [(phrase, count, {pair[place] for pair in pairs}) for place, (phrase, count, _) in enumerate(meant)]
    return form, meant


def _can_choose_different(sets: list[set[int]]) -> bool:
    """Whether one member can be chosen of each set, no two the same."""
    if not sets:
        return True
    return any(_can_choose_different([others - {i} for others in sets[1:]]) for i in sets[0])


def paraphrase_type(phrase1: Mapping[str, Any], phrase2: Mapping[str, Any]) -> str | None:
    """How two phrases of a scene relate, one of `PARAPHRASE_TYPES`, or `None` if they overlap or are equal texts."""
    objects1, objects2 = set(phrase1["objects"]), set(phrase2["objects"])
    if not objects1 & objects2:
        return "independence"
    if objects1 != objects2 or phrase1["text"] == phrase2["text"]:
        return None
    # Both are true of the same objects, so whatever both mention is the same: only what is left unsaid can differ.
    said1, said2 = ({value for value in PHRASES[phrase["text"]][1] if value} for phrase in (phrase1, phrase2))
    if said1 == said2:
        return "equivalence"
    return "forward entailment" if said1 > said2 else "reverse entailment" if said1 < said2 else "alternation"
