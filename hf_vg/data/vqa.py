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
"""VQA v2: questions about images, answered by ten people each."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value


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

# Answers are compared after the same clean-up as in the official evaluation.
_ARTICLES = {"a", "an", "the"}
_NUMBERS = {
    word: str(number) for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"none": "0"}
_CONTRACTIONS = {
    contraction.replace("'", ""): contraction
    for contraction in """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's i'd've i'm i've isn't it'd it'd've it'll let's ma'am might've mightn't mightn't've must've
    mustn't needn't not've o'clock oughtn't shan't she'd've should've shouldn't shouldn't've somebody'd somebody'll
    somebody's someone'd someone'll someone's something'd something'll that'd that'd've that's there'd there'd've
    there're there's they'd they'd've they'll they're they've wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all you'd you'd've you'll you're you've
    """.split()
}
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"(?<!\d)\.(?!\d)")


def normalize_answer(answer: str) -> str:
    """An answer as the official evaluation compares it: no punctuation or articles, numbers as digits."""
    answer = answer.replace("\n", " ").replace("\t", " ").strip()
    for mark in _PUNCTUATION:
        # A mark beside a space, and all of them in an answer like "1,000", vanish; others separate words.
        beside_space = f"{mark} " in answer or f" {mark}" in answer
        answer = answer.replace(mark, "" if beside_space or _COMMA_IN_NUMBER.search(answer) else " ")
    words = _FULL_STOP.sub("", answer).lower().split()
    words = [_NUMBERS.get(word, word) for word in words]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def answer_scores(answers: Sequence[str]) -> dict[str, float]:
    r"""
    The score of every answer that people gave: min(1, n / 3), n being how many gave it, averaged over the ways to
    leave one person out.

    Args:
        answers (`Sequence[str]`):
            What people answered; ten of them in VQA v2.
    """
    counts = Counter(map(normalize_answer, answers))
    people = len(answers)
    return {answer: (n * min(1, (n - 1) / 3) + (people - n) * min(1, n / 3)) / people for answer, n in counts.items()}


def answer_vocabulary(answers: Iterable[Sequence[str]], size: int = 3129) -> list[str]:
    r"""
    The answers to choose from: those that score for the most questions, in order of how many.

    Args:
        answers (`Iterable[Sequence[str]]`):
            The answers to each question of the training data.
        size (`int`, *optional*, defaults to 3129):
            The most answers to keep.
    """
    counts = Counter(answer for given in answers for answer, score in answer_scores(given).items() if score > 0)
    return sorted(counts, key=lambda answer: (-counts[answer], answer))[:size]


def load_vqa(
    questions: str | PathLike,
    annotations: str | PathLike | None,
    images: str | PathLike,
    file_name: str | None = None,
) -> Dataset:
    r"""
    Reads VQA v2 as it is published.

    Args:
        questions (`str` or `PathLike`):
            `v2_OpenEnded_mscoco_*_questions.json`.
        annotations (`str` or `PathLike`, *optional*):
            `v2_mscoco_*_annotations.json`; `None` for questions whose answers are secret.
        images (`str` or `PathLike`):
            The folder of the images.
        file_name (`str`, *optional*):
            How an image's file is named after its number, for example `"COCO_train2014_{:012d}.jpg"`, which is the
            default with the `data_subtype` of the questions.

    Returns:
        `datasets.Dataset`: `question_id`, `image_id`, `image`, `question` and `answers`.
    """
    asked = _read(questions, "questions")
    file_name = file_name or f"COCO_{asked.get('data_subtype', 'val2014')}_{{:012d}}.jpg"
    answers: dict[int, list[str]] = {}
    if annotations is not None:
        for row in _read(annotations, "annotations")["annotations"]:
            answers[row["question_id"]] = [answer["answer"] for answer in row["answers"]]
    rows, folder = [], Path(images)
    for row in asked["questions"]:
        image = folder / file_name.format(row["image_id"])
        if annotations is not None and row["question_id"] not in answers:
            raise ValueError(f"{annotations} has no answers to question {row['question_id']} of {questions}.")
        if not image.is_file():
            raise FileNotFoundError(
                f"Question {row['question_id']} of {questions} is about {image.name!r}, which is not in "
                f"{str(folder)!r}."
            )
        rows.append(
            {
                "question_id": row["question_id"],
                "image_id": str(row["image_id"]),
                "image": str(image),
                "question": row["question"],
                "answers": answers.get(row["question_id"], []),
            }
        )
    return Dataset.from_list(rows, features=VQA_FEATURES)


def _read(file: str | PathLike, key: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict) or key not in content:
        raise ValueError(f"{file} must be an object with {key!r}.")
    return content
