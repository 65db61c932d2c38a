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

"""METEOR 1.5 for English captions: its authors' Java program, and its formula in Python if there is no Java.

The Java program also matches paraphrases, from a table of five million. The Python version does not. Their scores have
different names, `meteor` and `meteor_python`, and you must not compare them with each other.
"""

import atexit
import contextlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
import threading
import zipfile
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, cast

import numpy as np
from transformers.utils import logging

from .stemming import stem


logger = logging.get_logger(__name__)

# The parameters of METEOR 1.5 for English.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
EXACT, STEM, SYNONYM = 0, 1, 2
STAGE_WEIGHTS = np.array([1.0, 0.6, 0.8])
BEAM_SIZE = 40

# Seconds that Java gets to exit by itself.
CLOSE_TIMEOUT = 5.0

# METEOR (Denkowski and Lavie, 2014) defines a function word as one with a relative frequency of more than 0.001 in a
# news corpus. These are the English ones. Scores depend on this list.
FUNCTION_WORDS = frozenset(
    """
    the , . to of and a in that for " is on 's it with was as said at he by be from have has are his but an this not i
    will they ) -rrb- ( -lrb- who their had we which were been more or s its would about new one after you : also up
    when there than $ all out her people she year two - can if last first over other into some what so -- no time years
    could ? 't '
    """.split()
)

# WordNet's detachment rules: an ending and its replacement.
DETACHMENTS = [
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"),
    ("est", "e"),
]  # fmt: skip


class MeteorJar:
    """
    METEOR 1.5 in a Java process. It takes about 20 seconds to start and then serves any number of calls. It needs Java
    and `pip install pycocoevalcap`.

    Example:

    ```python
    >>> from hf_vg.evaluation.meteor import MeteorJar

    >>> with MeteorJar() as meteor:  # doctest: +SKIP
    ...     score, per_caption = meteor.score([["a", "dog"]], [[["a", "dog"], ["the", "brown", "dog"]]])
    ```
    """

    def __init__(self) -> None:
        jar = _jar_path()
        if jar is None or not meteor_java_available():
            raise RuntimeError(
                "METEOR 1.5 needs `java` on the path and `pip install pycocoevalcap`, which contains its jar. Without "
                'them, use the metric "meteor_python", which has no paraphrases.'
            )
        # A file, because a full pipe that nobody reads would block Java.
        self._stderr = tempfile.TemporaryFile()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            ["java", "-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._stdin, self._stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether the Java process is running."""
        return self._process.poll() is None

    def score(self, predictions: list[list[str]], references: list[list[list[str]]]) -> tuple[float, np.ndarray]:
        """
        Computes METEOR of the set and of each caption.

        Args:
            predictions (`list[list[str]]`):
                The words of one caption per image.
            references (`list[list[list[str]]]`):
                The words of each reference of each image.

        Returns:
            `tuple[float, np.ndarray]`: The score of the set, and one score per caption.
        """
        with self._lock:
            try:
                statistics = [
                    self._ask("SCORE", *map(_as_field, (*others, words)))
                    for words, others in zip(predictions, references, strict=True)
                ]
                # One line per caption, followed by one for the set.
                scores = [float(self._ask("EVAL", *statistics))] + [float(self._answer()) for _ in predictions]
            except BaseException:
                # Unread answers would be mistaken for answers to the next call.
                self._process.kill()
                raise
        return scores[-1], np.array(scores[:-1])

    def close(self) -> None:
        """Stops the Java process."""
        with self._lock:
            # Java exits when its input is closed. It may have exited already.
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            try:
                self._process.wait(timeout=CLOSE_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._stdout.close()
            self._stderr.close()

    def __enter__(self) -> "MeteorJar":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, *fields: str) -> str:
        try:
            self._stdin.write(" ||| ".join(fields).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            pass  # Java has exited: `_answer` reports it.
        return self._answer()

    def _answer(self) -> str:
        # If Java has exited, this reads an end of file, so it cannot block forever.
        line = self._stdout.readline().decode().strip()
        if line[:1].isdigit():
            return line
        self._process.kill()
        code = self._process.wait()
        self._stderr.seek(0)
        message = self._stderr.read().decode(errors="replace").strip()[-2000:]
        raise RuntimeError(f"METEOR's Java process failed (exit code {code}): {line or message or 'no message'}")


_shared: MeteorJar | None = None


def meteor_java(predictions: list[list[str]], references: list[list[list[str]]]) -> tuple[float, np.ndarray]:
    """
    Computes METEOR 1.5 of the set and of each caption. The Java process is started once and stops with Python.

    Args:
        predictions (`list[list[str]]`):
            The words of one caption per image.
        references (`list[list[list[str]]]`):
            The words of each reference of each image.

    Returns:
        `tuple[float, np.ndarray]`: The score of the set, and one score per caption.
    """
    global _shared
    if _shared is None or not _shared.alive:
        if _shared is not None:
            _close_shared()
        _shared = MeteorJar()
        atexit.register(_close_shared)
    return _shared.score(predictions, references)


def _close_shared() -> None:
    global _shared
    atexit.unregister(_close_shared)
    if _shared is not None:
        _shared.close()
        _shared = None


def meteor_java_available() -> bool:
    """Returns whether METEOR 1.5 can run: it needs Java and the jar of `pycocoevalcap`."""
    return _jar_path() is not None and shutil.which("java") is not None


def meteor_python(predictions: list[list[str]], references: list[list[list[str]]]) -> tuple[float, np.ndarray]:
    """
    Computes METEOR 1.5 without paraphrases, of the set and of each caption. It matches words exactly, by stem, and by
    WordNet synonyms if `pycocoevalcap` is installed, whose METEOR contains the tables.

    Args:
        predictions (`list[list[str]]`):
            The words of one caption per image.
        references (`list[list[list[str]]]`):
            The words of each reference of each image.

    Returns:
        `tuple[float, np.ndarray]`: The score of the set, and one score per caption.

    Example:

    ```python
    >>> from hf_vg.evaluation.meteor import meteor_python

    >>> score, per_caption = meteor_python([["a", "dog", "runs"]], [[["a", "dog", "runs"]]])
    >>> score
    1.0
    ```
    """
    if not _synsets():
        logger.warning_once(
            "meteor_python finds no WordNet tables, so it matches no synonyms. Run `pip install pycocoevalcap`."
        )
    best = []
    for words, others in zip(predictions, references, strict=True):
        words = _normalize(words)
        candidates = [_statistics(words, _normalize(other)) for other in others]
        best.append(max(candidates, key=_score))
    return _score(np.sum(best, axis=0)), np.array([_score(statistics) for statistics in best])


def _score(statistics: np.ndarray) -> float:
    """Computes METEOR from the counts of one caption, or from their sums over the set."""
    lengths, function_words, chunks = statistics[0:2], statistics[2:4], statistics[4]
    # (stage, content or function word, prediction or reference)
    matches = statistics[5:].reshape(3, 2, 2)
    matched = STAGE_WEIGHTS @ (DELTA * matches[:, 0] + (1 - DELTA) * matches[:, 1])
    if not matched.all():
        return 0.0
    precision, recall = matched / (DELTA * (lengths - function_words) + (1 - DELTA) * function_words)
    f_mean = precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)
    fragmentation = chunks / (matches.sum() / 2)
    return float(f_mean * (1 - GAMMA * fragmentation**BETA))


def _statistics(words: list[str], reference: list[str]) -> np.ndarray:
    """Counts words, function words, chunks, and matches by stage, for the prediction and for the reference."""
    matches = np.zeros((3, 2, 2))
    chunks, expected = 0, None
    for position, other_position, stage in _align(words, reference):
        matches[stage, int(words[position] in FUNCTION_WORDS), 0] += 1
        matches[stage, int(reference[other_position] in FUNCTION_WORDS), 1] += 1
        chunks += (position, other_position) != expected
        expected = (position + 1, other_position + 1)
    # A single chunk that covers both captions is not fragmented.
    if chunks == 1 and matches.sum() == len(words) + len(reference):
        chunks = 0
    function_words = [sum(word in FUNCTION_WORDS for word in sentence) for sentence in (words, reference)]
    return np.array([len(words), len(reference), *function_words, chunks, *matches.ravel()])


def _align(words: list[str], reference: list[str]) -> list[tuple[int, int, int]]:
    """
    Finds one-to-one matches (position, position in the reference, stage) with a beam search along the reference.

    METEOR's papers want the most matches in the fewest chunks. Its program, which this function follows, differs. Two
    words that match only each other, and in only one way, are matched at once. In the search, only exact matches
    count: the program adds integers, and the weights of other matches are below 1.
    """
    options: list[list[tuple[int, int]]] = [[] for _ in reference]
    num_options = [0] * len(words)
    for position, word in enumerate(words):
        for other_position, other in enumerate(reference):
            for stage in _stages(word, other):
                options[other_position].append((position, stage))
                num_options[position] += 1

    # A state: quality (exact matches, minus finished chunks, minus distance), used words as bits, the word that would
    # continue the open chunk, matches.
    beam: list[tuple[tuple[int, int, int], int, int | None, tuple]] = [((0, 0, 0), 0, None, ())]
    for other_position, choices in enumerate(options):
        choices.sort(key=lambda choice: choice[1])
        certain = len(choices) == 1 and num_options[choices[0][0]] == 1
        successors: list[tuple[tuple[int, int, int], int, int | None, tuple]] = []
        for (exact, chunks, distance), taken, expected, matches in beam:
            for position, stage in choices:
                if not taken >> position & 1:
                    ends_chunk = expected is not None and position != expected
                    quality = (exact + (stage == EXACT), chunks - ends_chunk, distance)
                    match = (position, other_position, stage)
                    successors.append((quality, taken | 1 << position, position + 1, (*matches, match)))
                    # The program adds the distance to the states after this match, not to the match itself.
                    distance -= abs(position - other_position)
            if not certain:
                successors.append(((exact, chunks - (expected is not None), distance), taken, None, matches))
        beam = sorted(successors, key=lambda state: state[0], reverse=True)[:BEAM_SIZE]

    def with_last_chunk(state: tuple) -> tuple[int, int, int]:
        (exact, chunks, distance), _, expected, _ = state
        return exact, chunks - (expected is not None), distance

    return list(max(beam, key=with_last_chunk)[3])


@lru_cache(maxsize=1 << 18)
def _stages(word: str, other: str) -> tuple[int, ...]:
    """Returns the stages at which two words match."""
    if word == other:
        return (EXACT,)
    stages = []
    if stem(word) == stem(other):
        stages.append(STEM)
    if not _senses(word).isdisjoint(_senses(other)):
        stages.append(SYNONYM)
    return tuple(stages)


@lru_cache(maxsize=1 << 16)
def _senses(word: str) -> frozenset[str]:
    """Returns the WordNet synset ids of a word and of its base form."""
    synsets = _synsets()
    senses = set(synsets.get(word, ()))
    if word in _irregular_forms():
        for base in _irregular_forms()[word]:
            senses.update(synsets.get(base, ()))
    elif len(word) > 2 and not word.endswith("ss"):
        for ending, replacement in DETACHMENTS:
            base = word.removesuffix(ending) + replacement
            if word.endswith(ending) and base in synsets:
                senses.update(synsets[base])
                break
    return frozenset(senses)


@cache
def _synsets() -> dict[str, list[str]]:
    return {word: ids.split() for word, ids in _table_pairs("synonym/english.synsets")}


@cache
def _irregular_forms() -> dict[str, list[str]]:
    bases: dict[str, list[str]] = {}
    for base, forms in _table_pairs("synonym/english.exceptions"):
        for form in forms.split():
            bases.setdefault(form, []).append(base)
    return bases


def _table_pairs(name: str) -> list[tuple[str, str]]:
    """Reads a table of METEOR's jar, with two lines per entry. A jar is a zip file, so this needs no Java."""
    jar = _jar_path()
    if jar is None:
        return []
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(name).decode().splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


@cache
def _jar_path() -> Path | None:
    package = importlib.util.find_spec("pycocoevalcap")
    for folder in (package.submodule_search_locations if package else None) or ():
        jar = Path(folder) / "meteor" / "meteor-1.5.jar"
        if jar.is_file():
            return jar
    return None


def _as_field(words: list[str]) -> str:
    """Joins words to a field of METEOR's line protocol, in which ||| separates fields and a line is a command."""
    return " ".join(" ".join(words).replace("|||", " ").split())


def _normalize(words: list[str]) -> list[str]:
    """Applies METEOR's own tokenization to words that are already tokenized."""
    text = " ".join(words).lower()
    # u.s. -> us
    text = re.sub(r"(?<![\w.])((?:[a-z]\.)+[a-z])\.?(?![\w.])", lambda match: match[1].replace(".", ""), text)
    # n't -> n 't; other apostrophes and marks become separate words; t-shirt -> t shirt
    text = re.sub(r"(?<=[^\W\d_])'(?=[^\W\d_])|(?<=\d)'(?=s)", " \0", text)
    text = re.sub(r"([^\w\s.,\0-]|_)", r" \1 ", text).replace("\0", "'")
    text = re.sub(r"([\w.])-(\w)", r"\1 \2", text)
    text = re.sub(r"\.(?= [^a-z]|$)", " .", text)
    return text.split()
