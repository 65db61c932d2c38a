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
"""Loads the SentEval tasks that sentence vectors are evaluated on."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .scenes import load_scenes


SENTENCE_TASKS = ("MR", "CR", "SUBJ", "MPQA", "MRPC", "SST2", "SICK-E", "SICK-R")
_CROSS_VALIDATED = {"MR": "rt-polarity.all", "CR": "custrev.all", "SUBJ": "subj.all", "MPQA": "mpqa.all"}
_ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}


@dataclass
class SentenceSplit:
    """
    Sentences or sentence pairs with their labels, in SentEval's order.

    - **sentences** (`list[tuple[str, ...]]`) -- One sentence, or two for pairs, per row.
    - **labels** (`np.ndarray`) -- One label per row.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import SentenceSplit

    >>> SentenceSplit([("a lovely film",), ("dull",)], np.array([1, 0])).sentences[0]
    ('a lovely film',)
    ```
    """

    sentences: list[tuple[str, ...]]
    labels: np.ndarray


@dataclass
class SentenceTask:
    r"""
    A task of the SentEval protocol.

    Args:
        name (`str`):
            One of `SENTENCE_TASKS`.
        splits (`dict[str, SentenceSplit]`):
            `"train"`, and `"dev"` and `"test"` if the task has them.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import SentenceSplit, SentenceTask

    >>> task = SentenceTask("MR", {"train": SentenceSplit([("a lovely film",), ("dull",)], np.array([1, 0]))})
    >>> task.splits["train"].labels
    array([1, 0])
    ```
    """

    name: str
    splits: dict[str, SentenceSplit]


def load_sentence_task(name: str, folder: str | os.PathLike) -> SentenceTask:
    r"""
    Reads a task from its published files.

    Args:
        name (`str`):
            `"MR"` (`rt-polarity.all`), `"CR"` (`custrev.all`), `"SUBJ"` (`subj.all`), `"MPQA"` (`mpqa.all`), `"SST2"`
            (`stsa.binary.train`, `.dev` and, if it exists, `.test`), `"MRPC"` (`msr-para-train.tsv`, `-val.tsv`,
            `-test.tsv`), `"SICK-E"` or `"SICK-R"` (`SICK_train.txt`, `SICK_trial.txt`, `SICK_test_annotated.txt`).
        folder (`str` or `os.PathLike`):
            The folder with the files.

    Returns:
        [`SentenceTask`]: The sentences and labels of each split.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data import load_sentence_task

    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "rt-polarity.all").write_text("1 a lovely film\n0 dull\n")
    >>> load_sentence_task("MR", folder.name).splits["train"].sentences
    [('dull',), ('a lovely film',)]
    ```
    """
    folder = Path(folder)
    if name in _CROSS_VALIDATED:
        return SentenceTask(name, {"train": _read_labelled(folder / _CROSS_VALIDATED[name])})
    if name == "SST2":
        splits = {
            "train": _read_labelled(folder / "stsa.binary.train"),
            "dev": _read_labelled(folder / "stsa.binary.dev"),
        }
        if (folder / "stsa.binary.test").exists():
            splits["test"] = _read_labelled(folder / "stsa.binary.test")
        return SentenceTask(name, splits)
    if name == "MRPC":
        columns, labels = ("#1 String", "#2 String", "Quality"), {"0": 0, "1": 1}
        train, val, test = (folder / f"msr-para-{split}.tsv" for split in ("train", "val", "test"))
        if test.exists():  # the official training split is train and val together
            files = {"train": [train, val] if val.exists() else [train], "test": [test]}
        else:
            files = {"train": [train], "test": [val]}
        return SentenceTask(
            name, {split: _read_pairs(paths, columns, labels.__getitem__) for split, paths in files.items()}
        )
    if name in ("SICK-E", "SICK-R"):
        converters: dict[str, tuple[str, Callable]] = {
            "SICK-E": ("entailment_judgment", _ENTAILMENT.__getitem__),
            "SICK-R": ("relatedness_score", float),
        }
        label, convert = converters[name]
        columns = ("sentence_A", "sentence_B", label)
        splits = {
            "train": _read_pairs([folder / "SICK_train.txt"], columns, convert),
            "dev": _read_pairs([folder / "SICK_trial.txt"], columns, convert),
        }
        if (folder / "SICK_test_annotated.txt").exists():
            splits["test"] = _read_pairs([folder / "SICK_test_annotated.txt"], columns, convert)
        return SentenceTask(name, splits)
    raise ValueError(f"Unknown task {name!r}: the tasks are {', '.join(SENTENCE_TASKS)}.")


def scene_phrase_task(num_train: int = 2000, num_eval: int = 500) -> SentenceTask:
    r"""
    Makes a sentence-pair task from scenes: classify the relation of two phrases into the five types that the column
    `paraphrases` of [`load_scenes`] has. Half of the test scenes have combinations of color and shape that no training
    scene has.

    Args:
        num_train (`int`, *optional*, defaults to 2000):
            Number of training scenes.
        num_eval (`int`, *optional*, defaults to 500):
            Number of scenes in the dev split, and in the test split.

    Returns:
        [`SentenceTask`]: The phrase pairs and their types.

    Example:

    ```python
    >>> from hf_vg.data import scene_phrase_task

    >>> task = scene_phrase_task(num_train=2, num_eval=1)
    >>> sorted(task.splits)
    ['dev', 'test', 'train']
    ```
    """
    splits = {}
    for split, scenes in load_scenes(num_train, num_eval, num_eval, seed=1).items():
        pairs = [pair for pairs in scenes["paraphrases"] for pair in pairs]
        sentences = [(pair["phrase1"], pair["phrase2"]) for pair in pairs]
        splits["dev" if split == "validation" else split] = _sorted(sentences, [pair["label"] for pair in pairs])
    return SentenceTask("scene phrases", splits)


def _read_lines(path: Path) -> list[tuple[int, str]]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. `load_sentence_task` lists the files that each task needs.")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    # `str.splitlines` would also split at special characters inside sentences.
    lines = text.replace("\r\n", "\n").split("\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _words(text: str) -> str:
    return " ".join(text.split()) or "."  # SentEval's examples replace empty sentences in the same way


def _read_labelled(path: Path) -> SentenceSplit:
    sentences, labels = [], []
    for number, line in _read_lines(path):
        label, _, sentence = line.partition(" ")
        if label not in ("0", "1"):
            raise ValueError(f"{path}, line {number}: a line must be `0 sentence` or `1 sentence`, got {line[:50]!r}.")
        sentences.append((_words(sentence),))
        labels.append(int(label))
    return _sorted(sentences, labels)


def _read_pairs(paths: Sequence[Path], columns: Sequence[str], convert: Callable) -> SentenceSplit:
    sentences, labels = [], []
    for path in paths:
        (_, header), *rows = _read_lines(path)
        names = header.split("\t")
        for column in columns:
            if column not in names:
                raise ValueError(f"{path} has no column {column!r}: its columns are {', '.join(names)}.")
        for number, line in rows:
            values = dict(zip(names, line.split("\t"), strict=False))
            try:
                first, second, label = (values[column] for column in columns)
                labels.append(convert(label))
            except (KeyError, ValueError):
                raise ValueError(
                    f"{path}, line {number}: there must be {len(names)} columns with a valid {columns[-1]!r}, got "
                    f"{line[:80]!r}."
                ) from None
            sentences.append((_words(first), _words(second)))
    return _sorted(sentences, labels)


def _sorted(sentences: Sequence[tuple[str, ...]], labels: Sequence[float]) -> SentenceSplit:
    """Sorts by number of words, then by label, as SentEval does to reduce padding. The folds depend on this order."""

    def key(row: tuple[tuple[str, ...], float]) -> tuple[float, ...]:
        return *(len(sentence.split()) for sentence in row[0]), row[1]

    rows = sorted(zip(sentences, labels, strict=True), key=key)
    return SentenceSplit([sentences for sentences, _ in rows], np.array([label for _, label in rows]))
