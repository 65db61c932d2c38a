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

"""The Porter2 stemmer for English words (https://snowballstem.org/algorithms/english/stemmer.html)."""

import re
from functools import lru_cache


_EXCEPTIONS = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl", "gently": "gentl",
    "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
} | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}  # fmt: skip
_UNCHANGED_AFTER_STEP_1A = {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}

_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys("al ance ence er ic able ible ant ement ment ent ism ate iti ous ive ize ion".split(), "")

# A short syllable at the end: a vowel and a consonant after a consonant, or as the whole word.
_SHORT_SYLLABLE = re.compile("(?:^|.*[^aeiouy])[aeiouy][^aeiouywxY]$|^[aeiouy][^aeiouy]$")
_REGION = re.compile("[aeiouy][^aeiouy]")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """
    Stems a lower-case English word.

    Args:
        word (`str`):
            The word.

    Returns:
        `str`: The stem.

    Example:

    ```python
    >>> from hf_vg.evaluation.stemming import stem

    >>> [stem(word) for word in ("running", "dogs", "happily")]
    ['run', 'dog', 'happili']
    ```
    """
    if len(word) <= 2:
        return word
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    # A consonant y is written Y.
    word = re.sub("(^|[aeiouy])y", r"\1Y", word.removeprefix("'"))
    r1, r2 = _regions(word)

    word = re.sub("'s'$|'s$|'$", "", word)
    word = _step_1a(word)
    if word in _UNCHANGED_AFTER_STEP_1A:
        return word
    word = _step_1b(word, r1)
    word = re.sub("(?<=.[^aeiouy])[yY]$", "i", word)

    suffix = _longest_suffix(word, _STEP_2)
    if suffix and len(word) - len(suffix) >= r1:
        before = word[: -len(suffix)]
        if not (suffix == "ogi" and before[-1:] != "l" or suffix == "li" and before[-1:] not in tuple("cdeghkmnrt")):
            word = before + _STEP_2[suffix]

    suffix = _longest_suffix(word, _STEP_3)
    if suffix and len(word) - len(suffix) >= (r2 if suffix == "ative" else r1):
        word = word[: -len(suffix)] + _STEP_3[suffix]

    suffix = _longest_suffix(word, _STEP_4)
    if suffix and len(word) - len(suffix) >= r2:
        before = word[: -len(suffix)]
        if suffix != "ion" or before[-1:] in ("s", "t"):
            word = before

    last = len(word) - 1
    if word.endswith("e") and (last >= r2 or last >= r1 and not _SHORT_SYLLABLE.match(word[:-1])):
        word = word[:-1]
    elif word.endswith("ll") and last >= r2:
        word = word[:-1]
    return word.lower()


def _regions(word: str) -> tuple[int, int]:
    """Returns the starts of R1 and R2: each starts after the first consonant that follows a vowel."""
    special = re.match("gener|commun|arsen", word)
    first = special or _REGION.search(word)
    r1 = first.end() if first else len(word)
    second = _REGION.search(word, r1)
    return r1, second.end() if second else len(word)


def _step_1a(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and re.search("[aeiouy].+s$", word):
        return word[:-1]
    return word


def _step_1b(word: str, r1: int) -> str:
    if match := re.search("eed(?:ly)?$", word):
        return word[: match.start()] + "ee" if match.start() >= r1 else word
    match = re.search("(?:ed|ing)(?:ly)?$", word)
    if not match or not re.search("[aeiouy]", word[: match.start()]):
        return word
    word = word[: match.start()]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if re.search("(bb|dd|ff|gg|mm|nn|pp|rr|tt)$", word):
        return word[:-1]
    if len(word) <= r1 and _SHORT_SYLLABLE.match(word):
        return word + "e"
    return word


def _longest_suffix(word: str, suffixes: dict[str, str]) -> str:
    return max((suffix for suffix in suffixes if word.endswith(suffix)), key=len, default="")
