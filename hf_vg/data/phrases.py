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
"""Phrases with boxes: finds them in texts and makes the inputs of supervised attention."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import ProcessorMixin
from transformers.utils import logging

from ..models.grounded_visual_bert.inputs_grounded_visual_bert import parse_entities
from .images import boxes_in_view, open_image, seen_box


logger = logging.get_logger(__name__)

Box = Sequence[float]
MAX_WARNINGS = 5  # number of missing phrases to log; all are counted


def find_phrases(text: str, phrases: Sequence[Any], start: int = 0) -> tuple[list[dict[str, Any]], list[str]]:
    r"""
    Finds phrases in a text. Only whole words match, and case is ignored. If you list a phrase twice, it is searched
    for at two places.

    Args:
        text (`str`):
            The text.
        phrases (`Sequence`):
            Pairs of a phrase and its box or list of boxes. Or dictionaries with `text` and `boxes`.
        start (`int`, *optional*, defaults to 0):
            The character at which the search starts. If a phrase is not found after it, the text before it is
            searched.

    Returns:
        `tuple[list[dict], list[str]]`: The phrases that were found, with `start` and `end` in characters, `text` and
        `boxes`; and the phrases that were not found.

    Example:

    ```python
    >>> from hf_vg.data import find_phrases

    >>> find_phrases("A dog chases a cat.", [("a dog", [0, 0, 9, 9]), ("a fox", [5, 0, 9, 9])])
    ([{'start': 0, 'end': 5, 'text': 'A dog', 'boxes': [[0, 0, 9, 9]]}], ['a fox'])
    ```
    """
    found, missing, used = [], [], set()
    for phrase in phrases:
        words, boxes = (phrase["text"], phrase["boxes"]) if isinstance(phrase, Mapping) else phrase
        boxes = [boxes] if len(boxes) and not isinstance(boxes[0], Sequence) else list(boxes)
        pattern = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)", re.IGNORECASE)
        places = [match.span() for match in pattern.finditer(text)]
        places = [place for place in places if place not in used]
        place = next((place for place in places if place[0] >= start), places[0] if places else None)
        if place is None or not words:
            missing.append(words)
            continue
        used.add(place)
        found.append({"start": place[0], "end": place[1], "text": text[slice(*place)], "boxes": boxes})
    return found, missing


def grounded_captions(
    captions: Sequence[str], phrases: Sequence[Any] | Mapping[str, Sequence[Box]], strict: bool = True
) -> dict[str, list]:
    r"""
    Converts captions of your own data to the schema of [`load_flickr30k_entities`].

    Args:
        captions (`Sequence[str]`):
            The captions of an image.
        phrases (`Sequence` or `Mapping`):
            Pairs of a phrase and its box or boxes. Each phrase is searched for in every caption. Or, for captions with
            the markup of Flickr30k Entities, a mapping from the number of an entity to its boxes.
        strict (`bool`, *optional*, defaults to `True`):
            Whether to raise an error for a phrase that is in no caption. Otherwise a warning is logged.

    Returns:
        `dict[str, list]`: `captions` without markup, `phrases` and `boxes`.

    Example:

    ```python
    >>> from hf_vg.data import grounded_captions

    >>> row = grounded_captions(["A dog chases a cat."], [("a dog", [0, 0, 9, 9]), ("a cat", [5, 0, 9, 9])])
    >>> row = grounded_captions(["[/EN#1/animals A dog] chases [/EN#2/animals a cat]."], {"1": [[0, 0, 9, 9]]})
    >>> row["captions"], row["phrases"][0]
    (['A dog chases a cat.'], {'caption': 0, 'start': 0, 'end': 5, 'text': 'A dog', 'boxes': [0]})
    ```
    """
    boxes: list[list[float]] = []
    rows: list[dict[str, Any]] = []
    texts = []

    def add(number: int, phrase: Mapping[str, Any], of_phrase: Sequence[Box]) -> None:
        numbers = []
        for box in map(list, of_phrase):
            if box not in boxes:
                boxes.append(box)
            numbers.append(boxes.index(box))
        place = {key: phrase[key] for key in ("start", "end", "text")}
        rows.append({"caption": number, **place, "boxes": numbers})

    missing = [set(range(len(phrases)))]
    for number, caption in enumerate(captions):
        if isinstance(phrases, Mapping):
            text, marked = parse_entities(caption)
            for phrase in marked:
                add(number, phrase, phrases.get(phrase["entity"], []))
            texts.append(text)
            continue
        texts.append(caption)
        found, lost = find_phrases(caption, phrases)
        for phrase in found:
            add(number, phrase, phrase["boxes"])
        missing.append({i for i, phrase in enumerate(phrases) if _words(phrase) in lost})
    if not isinstance(phrases, Mapping) and (nowhere := set.intersection(*missing)):
        message = f"No caption contains the phrase {_words(phrases[min(nowhere)])!r}: {captions[0]!r}."
        if strict:
            raise ValueError(message)
        logger.warning(message)
    return {"captions": texts, "phrases": rows, "boxes": boxes}


def _words(phrase: Any) -> str:
    return phrase["text"] if isinstance(phrase, Mapping) else phrase[0]


def token_span(offsets: Sequence[Sequence[int]], start: int, end: int) -> tuple[int, int] | None:
    """
    Finds the tokens of a span of characters.

    Args:
        offsets (`Sequence[Sequence[int]]`):
            The start and end of each token in characters, see [`token_offsets`].
        start (`int`):
            The first character of the span.
        end (`int`):
            The end of the span.

    Returns:
        `tuple[int, int]` or `None`: The first token and the end of the tokens, or `None` if no token overlaps the
        span.

    Example:

    ```python
    >>> from hf_vg.data.phrases import token_span

    >>> token_span([(0, 1), (2, 5), (6, 10)], start=2, end=10)
    (1, 3)
    ```
    """
    inside = [place for place, (first, after) in enumerate(offsets) if first < end and after > start and first < after]
    return (inside[0], inside[-1] + 1) if inside else None


def token_offsets(tokenizer: Any, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """
    Returns the start and end of each token in characters, without special tokens.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]):
            A fast tokenizer.
        texts (`Sequence[str]`):
            The texts.

    Returns:
        `list[list[tuple[int, int]]]`: One list of offsets per text.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} gives no positions of its tokens: use a fast tokenizer.")
    return tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]


def phrase_inputs(
    spans: Sequence[Sequence[Sequence[tuple[int, int, Sequence[Box]]]]],
    sizes: Sequence[tuple[int, int]],
    image_processor: Any,
    missing: Sequence[int] | None = None,
) -> dict[str, torch.Tensor]:
    r"""
    Makes the inputs of [`AttentionSupervisionMixin`].

    Args:
        spans (nested `Sequence`):
            For each image and each of its texts, the phrases: the first token, the end of the tokens, and boxes in
            pixels.
        sizes (`Sequence[tuple[int, int]]`):
            Width and height of each image.
        image_processor ([`BaseImageProcessor`]):
            The image processor, which may crop or pad the images. A phrase whose boxes are all cropped away counts as
            missing.
        missing (`Sequence[int]`, *optional*):
            The number of phrases of each image that were not found.

    Returns:
        `dict[str, torch.Tensor]`: `phrase_spans` of shape `(images, texts, phrases, 2)`, `phrase_boxes`
        `(images, texts, phrases, boxes)`, `boxes` `(images, boxes, 4)` and `missing_phrases` `(images,)`.
    """
    lost = list(missing or [0] * len(sizes))
    all_boxes: list[list[list[float]]] = []
    placed: list[list[list[tuple[int, int, list[int]]]]] = []
    for number, (texts, size) in enumerate(zip(spans, sizes, strict=True)):
        seen = seen_box(image_processor, size)
        boxes: list[list[float]] = []
        placed.append([])
        for phrases in texts:
            placed[-1].append([])
            for first, after, of_phrase in phrases:
                numbers = []
                for box in of_phrase:
                    in_view, (width, height) = boxes_in_view([box], size, seen)
                    for left, top, right, bottom in in_view:
                        share = [left / width, top / height, right / width, bottom / height]
                        share = [min(max(side, 0.0), 1.0) for side in share]
                        if share not in boxes:
                            boxes.append(share)
                        numbers.append(boxes.index(share))
                if numbers:
                    placed[-1][-1].append((first, after, numbers))
                elif of_phrase:
                    lost[number] += 1
        all_boxes.append(boxes)
    most = [max((len(boxes) for boxes in all_boxes), default=0), max(map(len, placed), default=0)]
    most.append(max((len(phrases) for texts in placed for phrases in texts), default=0))
    most = [max(number, 1) for number in most]
    batch = {
        "phrase_spans": torch.zeros(len(sizes), most[1], most[2], 2, dtype=torch.long),
        "phrase_boxes": torch.zeros(len(sizes), most[1], most[2], most[0]),
        "boxes": torch.zeros(len(sizes), most[0], 4),
        "missing_phrases": torch.tensor(lost),
    }
    for i, texts in enumerate(placed):
        if all_boxes[i]:
            batch["boxes"][i, : len(all_boxes[i])] = torch.tensor(all_boxes[i])
        for j, phrases in enumerate(texts):
            for k, (first, after, numbers) in enumerate(phrases):
                batch["phrase_spans"][i, j, k] = torch.tensor([first, after])
                batch["phrase_boxes"][i, j, k, numbers] = 1
    return batch


def phrases_of(row: Mapping[str, Any], caption: int) -> list[tuple[int, int, list[Box]]]:
    """Returns the phrases of a caption that have boxes: start and end in characters, and boxes in pixels."""
    return [
        (phrase["start"], phrase["end"], [row["boxes"][number] for number in phrase["boxes"]])
        for phrase in row["phrases"]
        if phrase["caption"] == caption and phrase["boxes"]
    ]


class PhraseChatCollator:
    r"""
    Batches conversations about images, and the boxes that phrases should look at. It works with any processor that has
    a chat template, and with [`Trainer`] and TRL's `SFTTrainer`. Only the last message has labels. See
    [`AttentionSupervisionMixin`].

    A phrase is searched for in the last message first, and then in the messages before it. If it is not found, a
    warning is logged, and `missing_phrases` counts it, which the trainer logs.

    Args:
        processor ([`ProcessorMixin`]):
            The model's processor, with a chat template and a fast tokenizer.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for a phrase that is not found.

    Example:

    ```python
    >>> from hf_vg.data import PhraseChatCollator

    >>> row = {
    ...     "messages": [
    ...         {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    ...         {"role": "assistant", "content": [{"type": "text", "text": "A dog chases a cat."}]},
    ...     ],
    ...     "images": ["dog.jpg"],
    ...     "phrases": [{"text": "a dog", "boxes": [[10, 20, 200, 180]]}],  # left, top, right, bottom in pixels
    ... }
    >>> batch = PhraseChatCollator(processor)([row])  # doctest: +SKIP
    ```
    """

    def __init__(self, processor: ProcessorMixin, strict: bool = False):
        if getattr(processor, "chat_template", None) is None:
            raise ValueError(f"This {type(processor).__name__} has no chat template. Use `PromptedCaptionCollator`.")
        self.processor, self.strict = processor, strict
        self.warnings = 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Args:
            rows (`list[dict]`):
                Each row has `messages`, one image in `images`, and `phrases`, see [`find_phrases`].

        Returns:
            `dict[str, torch.Tensor]`: The inputs of the model, `labels`, and the inputs of
            [`AttentionSupervisionMixin`].
        """
        images = [[open_image(image) for image in row["images"]] for row in rows]
        render = self.processor.apply_chat_template
        texts = [render(row["messages"], tokenize=False) for row in rows]
        prompts = [render(row["messages"][:-1], tokenize=False, add_generation_prompt=True) for row in rows]
        batch = dict(
            self.processor(
                images=images,
                text=texts,
                padding=True,
                padding_side="right",
                add_special_tokens=False,
                return_tensors="pt",
                return_offsets_mapping=True,
                return_text_replacement_offsets=True,
            )
        )
        offsets = batch.pop("offset_mapping").tolist()
        replaced = batch.pop("text_replacement_offsets", None) or [[]] * len(rows)
        batch["labels"] = torch.full_like(batch["input_ids"], -100)
        spans, missing = [], []
        for number, (row, text, prompt) in enumerate(zip(rows, texts, prompts, strict=True)):
            if not text.startswith(prompt):
                raise ValueError(
                    "This chat template does not put the last message after the messages before it, so the labels "
                    f"cannot be found: {prompt[-60:]!r} does not precede it."
                )
            learned = _expanded(len(prompt), replaced[number])
            is_learned = torch.tensor([first >= learned and first < after for first, after in offsets[number]])
            batch["labels"][number, is_learned] = batch["input_ids"][number, is_learned]
            found, lost = find_phrases(text, row["phrases"], len(prompt))
            placed = []
            for phrase in found:
                start, end = (_expanded(phrase[key], replaced[number]) for key in ("start", "end"))
                span = token_span(offsets[number], start, end)
                if span is None:
                    lost.append(phrase["text"])
                else:
                    placed.append((*span, phrase["boxes"]))
            self._report(lost, text)
            spans.append([placed])
            missing.append(len(lost))
        batch |= phrase_inputs(spans, [of_row[0].size for of_row in images], self.processor.image_processor, missing)
        return batch | {name: batch[name].squeeze(1) for name in ("phrase_spans", "phrase_boxes")}

    def _report(self, lost: Sequence[str], text: str) -> None:
        for phrase in lost:
            message = f"The phrase {phrase!r} is not in the conversation {text[:200]!r}."
            if self.strict:
                raise ValueError(message)
            self.warnings += 1
            if self.warnings <= MAX_WARNINGS:
                logger.warning(f"{message} `missing_phrases` in the logs counts the phrases that are not found.")


def _expanded(place: int, replaced: Sequence[Mapping[str, Any]]) -> int:
    """Returns the position of a character after the images in the text are replaced by image tokens."""
    gained = [image["new_span"][1] - image["span"][1] for image in replaced if image["span"][1] <= place]
    return place + (gained[-1] if gained else 0)


__all__ = [
    "PhraseChatCollator",
    "find_phrases",
    "grounded_captions",
    "phrase_inputs",
    "phrases_of",
    "token_offsets",
    "token_span",
]
