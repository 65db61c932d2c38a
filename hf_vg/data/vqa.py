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
"""Loads VQA v2: questions about images, each answered by ten people."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike

from datasets import Dataset, Features, Image, List, Value

from .records import find_image, read_json, take, take_records


_STRING = Value("string")
VQA_FEATURES = Features(
    {
        "question_id": Value("int64"),
        "image_id": _STRING,
        "image": Image(),
        "question": _STRING,
        "answers": List(_STRING),
    }
)

# Answers are normalized as in the official evaluation.
_ARTICLES = {"a", "an", "the"}
_NUMBERS = {
    word: str(number) for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"none": "0"}
# The official evaluation restores one missing apostrophe in these words, and only in these.
_CONTRACTIONS = {
    contraction[:position] + contraction[position + 1 :]: contraction
    for contraction in """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
    """.split()
    for position, letter in enumerate(contraction)
    if letter == "'"
} | {"somebody'd": "somebodyd"}  # the wrong way around, also there
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")  # the official pattern, "(?!<=\d)(\.)(?!\d)", only looks ahead


def normalize_answer(answer: str) -> str:
    """
    Normalizes an answer as the official evaluation does: no punctuation, no articles, numbers as digits.

    Args:
        answer (`str`):
            The answer.

    Returns:
        `str`: The normalized answer.

    Example:

    ```python
    >>> from hf_vg.data.vqa import normalize_answer

    >>> normalize_answer("The two dogs!")
    '2 dogs'
    ```
    """
    given = answer = answer.replace("\n", " ").replace("\t", " ").strip()
    has_comma_in_number = _COMMA_IN_NUMBER.search(given) is not None
    for mark in _PUNCTUATION:
        # A mark next to a space is removed, and so are all marks of an answer like "1,000". Others become spaces.
        removed = f"{mark} " in given or f" {mark}" in given or has_comma_in_number
        answer = answer.replace(mark, "" if removed else " ")
    words = _FULL_STOP.sub("", answer).lower().split()
    words = [_NUMBERS.get(word, word) for word in words]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def answer_scores(answers: Sequence[str]) -> dict[str, float]:
    r"""
    Computes the VQA score of every answer: min(1, n / 3), where n is the number of people who gave it, averaged over
    all subsets that leave one person out.

    Args:
        answers (`Sequence[str]`):
            The answers of all people, ten in VQA v2.

    Returns:
        `dict[str, float]`: Maps a normalized answer to its score.

    Example:

    ```python
    >>> from hf_vg.data.vqa import answer_scores

    >>> {answer: round(score, 2) for answer, score in answer_scores(["red"] * 8 + ["orange"] * 2).items()}
    {'red': 1.0, 'orange': 0.6}
    ```
    """
    counts = Counter(map(normalize_answer, answers))
    people = len(answers)
    return {answer: (n * min(1, (n - 1) / 3) + (people - n) * min(1, n / 3)) / people for answer, n in counts.items()}


def answer_vocabulary(answers: Iterable[Sequence[str]], size: int = 3129) -> list[str]:
    r"""
    Chooses the answers of a model: those that score above 0 for the most questions.

    Args:
        answers (`Iterable[Sequence[str]]`):
            The answers to each training question.
        size (`int`, *optional*, defaults to 3129):
            Maximum number of answers.

    Returns:
        `list[str]`: The normalized answers, the most frequent first.

    Example:

    ```python
    >>> from hf_vg.data import answer_vocabulary

    >>> answer_vocabulary([["yes"] * 10, ["yes"] * 10, ["the red one"] * 10])
    ['yes', 'red 1']
    ```
    """
    counts = Counter(answer for given in answers for answer, score in answer_scores(given).items() if score > 0)
    return sorted(counts, key=lambda answer: (-counts[answer], answer))[:size]


def load_vqa(questions: str | PathLike, annotations: str | PathLike | None, images: str | PathLike) -> Dataset:
    r"""
    Reads the published files of VQA v2.

    Args:
        questions (`str` or `PathLike`):
            The file `v2_OpenEnded_mscoco_*_questions.json`.
        annotations (`str` or `PathLike`, *optional*):
            The file `v2_mscoco_*_annotations.json`, or `None` if the answers are not public.
        images (`str` or `PathLike`):
            The folder with the images, such as `COCO_val2014_000000000042.jpg`.

    Returns:
        [`~datasets.Dataset`]: Rows with `question_id`, `image_id`, `image`, `question` and `answers`.

    Example:

    ```python
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import load_vqa

    >>> tmp = tempfile.TemporaryDirectory()
    >>> folder = Path(tmp.name)
    >>> Image.new("RGB", (64, 64)).save(folder / "COCO_val2014_000000000042.jpg")
    >>> questions = {"questions": [{"question_id": 1, "image_id": 42, "question": "What color is the dog?"}]}
    >>> _ = (folder / "questions.json").write_text(json.dumps(questions))
    >>> load_vqa(folder / "questions.json", None, folder)[0]["question"]
    'What color is the dog?'
    ```
    """
    asked = read_json(questions)
    answers: dict[int, list[str]] = {}
    if annotations is not None:
        for where, row in take_records(read_json(annotations), "annotations", str(annotations)):
            given = take_records(row, "answers", where)
            answers[take(row, "question_id", int, where)] = [take(one, "answer", str, place) for place, one in given]
    rows = []
    for where, row in take_records(asked, "questions", str(questions)):
        question_id, image_id = take(row, "question_id", int, where), take(row, "image_id", int, where)
        if annotations is not None and question_id not in answers:
            raise ValueError(f"{annotations} has no answers to question {question_id} in {questions}.")
        try:
            image = find_image(images, f"COCO_{asked.get('data_subtype', 'val2014')}_{image_id:012d}.jpg")
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{where}: {error}.") from None
        rows.append(
            {
                "question_id": question_id,
                "image_id": str(image_id),
                "image": str(image),
                "question": take(row, "question", str, where),
                "answers": answers.get(question_id, []),
            }
        )
    if not rows:
        raise ValueError(f"{questions} has no questions.")
    return Dataset.from_list(rows, features=VQA_FEATURES)
