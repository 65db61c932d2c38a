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
"""Processor class for GroundedVisualBert."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import ImageInput, get_image_size
from transformers.processing_utils import Unpack

from ..processing import ImageAndTextProcessor, PaddedPairKwargs, batched_text
from .inputs_grounded_visual_bert import MAX_BOXES, check_boxes, parse_entities


_BOX_FORMATS = ("xyxy", "xywh", "relative")


def propose_grid(rows: int = 3, columns: int = 3) -> list[list[float]]:
    """Relative boxes that divide an image evenly, row by row."""
    return [
        [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows]
        for row in range(rows)
        for column in range(columns)
    ]


class GroundedVisualBertProcessor(ImageAndTextProcessor):
    r"""
    Wraps an image processor and a BERT tokenizer: from images, boxes, captions and their phrases to what
    GroundedVisualBert is called with.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`. It must keep the whole image, so that boxes stay where they are: resized to one
            height and width, or padded with a `pixel_mask`, but not cropped.
        tokenizer ([`PreTrainedTokenizerFast`]):
            A fast tokenizer, as phrases are found by its offsets.
        max_boxes (`int`, *optional*, defaults to 1000):
            The most boxes of an image. Memory grows with their square.
    """

    valid_processor_kwargs = PaddedPairKwargs

    def __init__(
        self,
        image_processor: Any | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_boxes: int = MAX_BOXES,
        **kwargs: Any,
    ):
        _check_crop(getattr(image_processor, "do_center_crop", False))
        if tokenizer is not None and not tokenizer.is_fast:
            raise ValueError("The tokenizer must be a fast one: phrases are found by its offsets.")
        self.max_boxes = max_boxes
        super().__init__(image_processor, tokenizer, **kwargs)

    def __call__(
        self,
        images: ImageInput | None = None,
        text: str | Sequence[str] | None = None,
        text_pair: str | Sequence[str] | None = None,
        boxes: Sequence | None = None,
        box_format: str = "xyxy",
        phrases: Sequence | None = None,
        phrases_pair: Sequence | None = None,
        entity_boxes: Sequence[Mapping[str, Sequence[int]]] | Mapping[str, Sequence[int]] | None = None,
        phrase_pairs: Sequence | None = None,
        **kwargs: Unpack[PaddedPairKwargs],
    ) -> BatchFeature:
        r"""
        Every argument is one example's, or a list of them.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*), text_pair (`str` or `list[str]`, *optional*):
                One caption, or a pair. They may have the mark-up of Flickr30k Entities. Texts may be K times as many
                as images, which K texts in a row then share.
            boxes (`list`, *optional*, defaults to a grid):
                Boxes of each image. The whole image is put before them, so that box `i` becomes region `i + 1`.
            box_format (`str`, *optional*, defaults to `"xyxy"`):
                `"xyxy"` or `"xywh"` in pixels of the image as given, or `"relative"`: left, top, right and bottom as
                shares of its width and height.
            phrases (`list`, *optional*), phrases_pair (`list`, *optional*):
                Phrases of `text` and of `text_pair`, and the boxes that show them: dicts of `start` and `end`
                (characters), or of `text` (a string found in the caption), and of `boxes`, numbers of boxes. Phrases
                in mark-up are added to them.
            entity_boxes (`dict` or a list of them, *optional*):
                For captions with mark-up: the numbers of boxes of each entity, as `{"20101": [0, 3]}`.
            phrase_pairs (`list`, *optional*):
                Phrases of `text` to compare with phrases of `text_pair`: dicts of `start1`, `end1`, `start2` and
                `end2`, or of `text1` and `text2`, and of `label` if it is known.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `do_normalize`
                and `return_tensors`; or `text_kwargs` and `images_kwargs` that hold them.

        Returns:
            [`BatchFeature`]: What the tokenizer and the image processor return; `boxes` (relative) and
            `visual_attention_mask`; and, where there are phrases or pairs, `phrase_spans`, `phrase_boxes`,
            `pair_spans` and `pair_labels`. Phrases of which truncation leaves no token are left out.
        """
        text_kwargs, images_kwargs = self.split_kwargs(kwargs)
        if images is None and text is None:
            raise ValueError("Give `images`, `text` or both.")
        _check_crop(images_kwargs.get("do_center_crop"))
        features: dict[str, Any] = {}
        num_regions = None
        if images is not None:
            images = list(images) if isinstance(images, (list, tuple)) else [images]
            sizes = [_image_size(image) for image in images]
            features.update(self.image_processor(images, **images_kwargs))
            if boxes is None:
                boxes, box_format = [propose_grid()] * len(images), "relative"
        if boxes is not None:
            if images is None and box_format != "relative":
                raise ValueError(f'`boxes` in pixels need `images`, or `box_format="relative"`; got {box_format!r}.')
            boxes = _batched(boxes, depth=3)
            sizes = sizes if images is not None else [(1, 1)] * len(boxes)
            if len(boxes) != len(sizes):
                raise ValueError(f"There are {len(sizes)} images, but lists of boxes for {len(boxes)}.")
            regions = [
                _relative_boxes(check_boxes(b, f"example {i}", self.max_boxes), box_format, size, i)
                for i, (b, size) in enumerate(zip(boxes, sizes, strict=True))
            ]
            num_regions = [len(region) for region in regions]
            features["boxes"], features["visual_attention_mask"] = _pad(regions, 4, float)
        if text is not None:
            features.update(
                self._encode_text(
                    text, text_pair, phrases, phrases_pair, entity_boxes, phrase_pairs, num_regions, text_kwargs
                )
            )
        return BatchFeature(features, tensor_type=text_kwargs.get("return_tensors"))

    @staticmethod
    def propose_regions(
        images: ImageInput,
        detector: Callable | None = None,
        max_regions: int = 36,
        threshold: float = 0.2,
        grid: tuple[int, int] = (3, 3),
    ) -> list[list[list[float]]]:
        r"""
        Finds regions to give as `boxes`.

        Args:
            images (`PIL.Image.Image` or a list of them):
                The images.
            detector (`Callable`, *optional*):
                A transformers `pipeline("object-detection")`. Without one, and in images where it finds nothing, the
                regions are a grid.
            max_regions (`int`, *optional*, defaults to 36):
                The most regions of an image; those of the highest scores are kept.
            threshold (`float`, *optional*, defaults to 0.2):
                The lowest score of a region.
            grid (`tuple[int, int]`, *optional*, defaults to `(3, 3)`):
                Rows and columns of the grid.

        Returns:
            `list[list[list[float]]]`: Boxes of each image, (left, top, right, bottom) in pixels.
        """
        images = list(images) if isinstance(images, (list, tuple)) else [images]
        found = detector(images, threshold=threshold) if detector is not None else [[] for _ in images]
        regions = []
        for image, detections in zip(images, found, strict=True):
            width, height = _image_size(image)
            detections = sorted(detections, key=lambda detection: -detection["score"])[:max_regions]
            boxes = [[float(d["box"][side]) for side in ("xmin", "ymin", "xmax", "ymax")] for d in detections]
            regions.append(
                boxes or [[x1 * width, y1 * height, x2 * width, y2 * height] for x1, y1, x2, y2 in propose_grid(*grid)]
            )
        return regions

    def _encode_text(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None,
        phrases: Sequence | None,
        phrases_pair: Sequence | None,
        entity_boxes: Any,
        phrase_pairs: Sequence | None,
        num_regions: list[int] | None,
        text_kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        texts = [batched_text("text", text)]
        if text_pair is not None:
            texts.append(batched_text("text_pair", text_pair))
        count = len(texts[0])
        if any(len(side) != count for side in texts) or (num_regions is not None and count % len(num_regions)):
            raise ValueError(
                "There must be as many texts as images, or K times as many, and as many in `text_pair`: got "
                f"{len(num_regions) if num_regions else 'no'} images, {count} texts and {len(texts[-1])} in the pair."
            )
        if num_regions is not None:
            num_regions = [number for number in num_regions for _ in range(count // len(num_regions))]
        given = [_batched(p, depth=2) if p is not None else [[]] * count for p in (phrases, phrases_pair)]
        entity_boxes = [entity_boxes] if isinstance(entity_boxes, Mapping) else entity_boxes
        found: list[list[tuple[int, int, int, list[int]]]] = [[] for _ in range(count)]
        has_phrases = phrases is not None or phrases_pair is not None
        for side, captions in enumerate(texts):
            for i, caption in enumerate(captions):
                captions[i], marked = parse_entities(caption)
                has_phrases |= bool(marked)
                for phrase in marked:
                    boxes = entity_boxes[i].get(phrase["entity"], []) if entity_boxes is not None else []
                    found[i].append((side, phrase["start"], phrase["end"], list(boxes)))
                for phrase in given[side][i]:
                    start, end = _locate(phrase, captions[i], "start", "end", "text", i)
                    found[i].append((side, start, end, list(phrase["boxes"])))

        text_kwargs = {**text_kwargs, "return_offsets_mapping": True, "return_tensors": None}
        encoded = self.tokenizer(*texts, **text_kwargs)
        features = {name: encoded[name] for name in encoded if name != "offset_mapping"}
        offsets = encoded["offset_mapping"]
        sides = [encoded.sequence_ids(i) for i in range(count)]

        def span(i: int, side: int, start: int, end: int) -> list[int] | None:
            """Tokens that hold a character of the phrase."""
            tokens = [
                token
                for token, (first, last) in enumerate(offsets[i])
                if sides[i][token] == side and max(first, start) < min(last, end)
            ]
            return [tokens[0], tokens[-1] + 1] if tokens else None

        if has_phrases:
            if num_regions is None:
                raise ValueError("Phrases need `boxes` that show them, but there are none.")
            spans, shown = [], []
            for i in range(count):
                kept = [(span(i, *phrase[:3]), phrase[3]) for phrase in found[i]]
                kept = [(tokens, boxes) for tokens, boxes in kept if tokens is not None]
                spans.append([tokens for tokens, _ in kept])
                shown.append([_indicator(boxes, num_regions[i], max(num_regions), i) for _, boxes in kept])
            features["phrase_spans"], _ = _pad(spans, 2, int)
            features["phrase_boxes"], _ = _pad(shown, max(num_regions), int)
        if phrase_pairs is not None:
            if text_pair is None:
                raise ValueError("`phrase_pairs` need a `text_pair`.")
            spans, labels = [], []
            for i, pairs in enumerate(_batched(phrase_pairs, depth=2)):
                found_pairs = []
                for pair in pairs:
                    first, second = (
                        span(i, side, *_locate(pair, texts[side][i], f"start{n}", f"end{n}", f"text{n}", i))
                        for side, n in ((0, 1), (1, 2))
                    )
                    if first is not None and second is not None:
                        found_pairs.append((first + second, [pair.get("label", -100)]))
                spans.append([places for places, _ in found_pairs])
                labels.append([label for _, label in found_pairs])
            padded, mask = _pad(spans, 4, int)
            features["pair_spans"] = padded.reshape(*padded.shape[:2], 2, 2)
            features["pair_labels"] = np.where(mask == 1, _pad(labels, 1, int)[0][..., 0], -100)
        return features

    @property
    def model_input_names(self) -> list[str]:
        names = [*self.tokenizer.model_input_names, *self.image_processor.model_input_names]
        return [*names, "boxes", "visual_attention_mask"]


def _check_crop(do_center_crop: bool | None) -> None:
    if do_center_crop:
        raise ValueError(
            "The image processor crops, and boxes would no longer be where they were: set `do_center_crop=False` and "
            'a `size` of "height" and "width".'
        )


def _image_size(image: Any) -> tuple[int, int]:
    """Width and height."""
    if hasattr(image, "size") and isinstance(image.size, tuple):  # of PIL
        return image.size
    height, width = get_image_size(np.asarray(image))
    return width, height


def _batched(values: Sequence, depth: int) -> list:
    """Makes a list of one of what is one example's; `depth` is how deeply lists of a batch are nested."""
    values = list(values) if isinstance(values, Sequence) else np.asarray(values).tolist()
    if depth == 3 and any(not isinstance(value, Sequence | np.ndarray) for value in values):
        raise ValueError(f"Boxes are lists of four numbers, in a list per image; got {values!r:.80}.")
    inner = next((value for value in values if len(value)), None)
    if inner is None:
        return values
    is_one = not isinstance(inner[0], Sequence | np.ndarray) if depth == 3 else isinstance(inner, Mapping)
    return [values] if is_one else values


def _relative_boxes(boxes: np.ndarray, box_format: str, size: tuple[int, int], example: int) -> list[list[float]]:
    """The whole image, and boxes as shares of its width and height."""
    if box_format not in _BOX_FORMATS:
        raise ValueError(f"`box_format` must be one of {_BOX_FORMATS}, got {box_format!r}.")
    if box_format == "xywh":
        boxes[:, 2:] += boxes[:, :2]
    width, height = (1, 1) if box_format == "relative" else size
    relative = np.clip(boxes / [width, height, width, height], 0, 1)
    for index in np.flatnonzero((relative[:, 2:] <= relative[:, :2]).any(axis=1)):
        raise ValueError(
            f"Box {index} of example {example} has no area inside its image of {size[0]} x {size[1]}: "
            f"{boxes[index].tolist()} (left, top, right, bottom)."
        )
    return [[0.0, 0.0, 1.0, 1.0], *relative.tolist()]


def _locate(phrase: Mapping[str, Any], caption: str, start: str, end: str, text: str, example: int) -> tuple[int, int]:
    if start in phrase:
        span = phrase[start], phrase[end]
        if not 0 <= span[0] < span[1] <= len(caption):
            raise ValueError(f"Characters {span} of example {example} are outside of its caption {caption!r}.")
        return span
    match = re.search(rf"(?<!\w){re.escape(phrase[text])}(?!\w)", caption, flags=re.IGNORECASE)
    if match is None:
        raise ValueError(f"The phrase {phrase[text]!r} of example {example} is not in its caption {caption!r}.")
    return match.span()


def _indicator(boxes: Sequence[int], num_regions: int, length: int, example: int) -> list[int]:
    for box in boxes:
        if not 0 <= box < num_regions - 1:
            raise ValueError(f"A phrase of example {example} has box {box}, but there are {num_regions - 1} boxes.")
    return [int(region - 1 in boxes) for region in range(length)]  # region 0 is the whole image


def _pad(rows: list[list[list]], width: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Rows of vectors padded with zeros, and a mask of which vectors were there."""
    longest = max((len(row) for row in rows), default=0)
    padded = np.zeros((len(rows), longest, width), dtype=np.float32 if dtype is float else np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for i, row in enumerate(rows):
        if row:
            padded[i, : len(row)] = row
            mask[i, : len(row)] = 1
    return padded, mask


__all__ = ["GroundedVisualBertProcessor"]
