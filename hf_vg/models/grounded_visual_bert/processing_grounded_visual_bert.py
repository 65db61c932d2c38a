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
    """Returns the relative boxes of a grid over the image, row by row."""
    return [
        [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows]
        for row in range(rows)
        for column in range(columns)
    ]


class GroundedVisualBertProcessor(ImageAndTextProcessor):
    r"""
    Prepares images, boxes, captions and their phrases for GroundedVisualBert.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Turns images into `pixel_values`. It may resize images to a fixed height and width, or pad them with a
            `pixel_mask`. It must not crop them: boxes would no longer fit.
        tokenizer ([`PreTrainedTokenizerFast`]):
            A fast BERT tokenizer. Phrases are found with its offsets.
        max_boxes (`int`, *optional*, defaults to 1000):
            The largest number of boxes per image. Memory grows with the square of this number.

    Example:

    ```python
    >>> from PIL import Image
    >>> from transformers import BertTokenizer, ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertProcessor

    >>> words = "[PAD] [UNK] [CLS] [SEP] [MASK] a red circle".split()
    >>> tokenizer = BertTokenizer(vocab={word: id for id, word in enumerate(words)})
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(), tokenizer)
    >>> inputs = processor(
    ...     images=Image.new("RGB", (64, 48)),
    ...     text="a red circle",
    ...     boxes=[[0, 0, 32, 24], [32, 24, 64, 48]],
    ...     phrases=[{"text": "red circle", "boxes": [1]}],
    ...     return_tensors="pt",
    ... )
    >>> inputs["boxes"].shape  # the whole image comes first
    torch.Size([1, 3, 4])
    >>> inputs["phrase_spans"], inputs["phrase_boxes"]
    (tensor([[[2, 4]]]), tensor([[[0, 0, 1]]]))
    ```
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
            raise ValueError("The tokenizer must be a fast tokenizer: phrases are found with its offsets.")
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
        Turns images, boxes, captions and phrases into the inputs of the model. Each argument is for one example, or a
        list for several examples.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                The captions, with or without the mark-up of Flickr30k Entities. With K captions per image, put the K
                captions of an image in a row.
            text_pair (`str` or `list[str]`, *optional*):
                The second caption of each pair.
            boxes (`list`, *optional*, defaults to a grid):
                The boxes of each image. The whole image is added as the first region, so box `i` becomes region
                `i + 1`.
            box_format (`str`, *optional*, defaults to `"xyxy"`):
                `"xyxy"` or `"xywh"` in pixels of the original image, or `"relative"`: left, top, right and bottom as
                fractions of its width and height.
            phrases (`list`, *optional*):
                Phrases of `text` and the boxes that show them. Each phrase is a dict with `boxes`, a list of box
                indices, and either `start` and `end` (character positions) or `text` (a string in the caption).
                Phrases from mark-up are added.
            phrases_pair (`list`, *optional*):
                The same for `text_pair`.
            entity_boxes (`dict` or a list of them, *optional*):
                For captions with mark-up, the box indices of each entity, such as `{"20101": [0, 3]}`.
            phrase_pairs (`list`, *optional*):
                Phrases of `text` to compare with phrases of `text_pair`. Each pair is a dict with `start1`, `end1`,
                `start2` and `end2`, or with `text1` and `text2`, and with `label` if it is known.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `do_normalize`
                and `return_tensors`. You can also group them in `text_kwargs` and `images_kwargs`.

        Returns:
            [`BatchFeature`]: The outputs of the tokenizer and of the image processor, `boxes` (relative) and
            `visual_attention_mask`. With phrases also `phrase_spans` and `phrase_boxes`, and with phrase pairs
            `pair_spans` and `pair_labels`. Phrases that are truncated completely are left out.
        """
        text_kwargs, images_kwargs = self.split_kwargs(kwargs)
        if images is None and text is None:
            raise ValueError("Pass `images`, `text` or both.")
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
                raise ValueError(f'Without `images`, `box_format` must be "relative", got {box_format!r}.')
            boxes = _batched(boxes, depth=3)
            sizes = sizes if images is not None else [(1, 1)] * len(boxes)
            if len(boxes) != len(sizes):
                raise ValueError(f"There are {len(sizes)} images, but {len(boxes)} lists of boxes.")
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
        Proposes regions that you can pass as `boxes`.

        Args:
            images (`PIL.Image.Image` or a list of them):
                The images.
            detector (`Callable`, *optional*):
                A transformers `pipeline("object-detection")`. Without a detector, and for images where it finds
                nothing, the regions are a grid.
            max_regions (`int`, *optional*, defaults to 36):
                The largest number of regions per image. Those with the highest scores are kept.
            threshold (`float`, *optional*, defaults to 0.2):
                The lowest score of a region.
            grid (`tuple[int, int]`, *optional*, defaults to `(3, 3)`):
                Rows and columns of the grid.

        Returns:
            `list[list[list[float]]]`: The boxes of each image, as left, top, right and bottom in pixels.

        Example:

        ```python
        >>> from PIL import Image
        >>> from hf_vg import GroundedVisualBertProcessor

        >>> GroundedVisualBertProcessor.propose_regions(Image.new("RGB", (64, 48)), grid=(1, 2))
        [[[0.0, 0.0, 32.0, 48.0], [32.0, 0.0, 64.0, 48.0]]]
        ```
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
                "The number of texts must be a multiple of the number of images, and `text_pair` must have the same "
                f"number. Got {len(num_regions) if num_regions else 'no'} images, {count} texts and {len(texts[-1])} "
                "in the pair."
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
            """Returns the first token of a phrase and the first token after it, or `None` if it was truncated."""
            tokens = [
                token
                for token, (first, last) in enumerate(offsets[i])
                if sides[i][token] == side and max(first, start) < min(last, end)
            ]
            return [tokens[0], tokens[-1] + 1] if tokens else None

        if has_phrases:
            if num_regions is None:
                raise ValueError("Phrases need `boxes` that show them. Pass `images`, `boxes` or both.")
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
        """Names of the model inputs that this processor makes."""
        names = [*self.tokenizer.model_input_names, *self.image_processor.model_input_names]
        return [*names, "boxes", "visual_attention_mask"]


def _check_crop(do_center_crop: bool | None) -> None:
    if do_center_crop:
        raise ValueError(
            "The image processor crops images, so boxes would no longer fit. Set `do_center_crop=False` and a `size` "
            'with "height" and "width".'
        )


def _image_size(image: Any) -> tuple[int, int]:
    """Returns width and height."""
    if hasattr(image, "size") and isinstance(image.size, tuple):  # a PIL image
        return image.size
    height, width = get_image_size(np.asarray(image))
    return width, height


def _batched(values: Sequence, depth: int) -> list:
    """Wraps the value of a single example in a list. `depth` is the nesting of lists in a batch."""
    values = list(values) if isinstance(values, Sequence) else np.asarray(values).tolist()
    if depth == 3 and any(not isinstance(value, Sequence | np.ndarray) for value in values):
        raise ValueError(f"`boxes` must be one list per image, with lists of four numbers. Got {values!r:.80}.")
    inner = next((value for value in values if len(value)), None)
    if inner is None:
        return values
    is_one = not isinstance(inner[0], Sequence | np.ndarray) if depth == 3 else isinstance(inner, Mapping)
    return [values] if is_one else values


def _relative_boxes(boxes: np.ndarray, box_format: str, size: tuple[int, int], example: int) -> list[list[float]]:
    """Returns the whole image and the boxes, as fractions of the image's width and height."""
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
    """Returns the characters of a phrase in its caption."""
    if start in phrase:
        span = phrase[start], phrase[end]
        if not 0 <= span[0] < span[1] <= len(caption):
            raise ValueError(f"Characters {span} of example {example} are outside its caption {caption!r}.")
        return span
    match = re.search(rf"(?<!\w){re.escape(phrase[text])}(?!\w)", caption, flags=re.IGNORECASE)
    if match is None:
        raise ValueError(f"The phrase {phrase[text]!r} of example {example} is not in its caption {caption!r}.")
    return match.span()


def _indicator(boxes: Sequence[int], num_regions: int, length: int, example: int) -> list[int]:
    """Returns 1 for each region that shows a phrase, and 0 for the others."""
    for box in boxes:
        if not 0 <= box < num_regions - 1:
            raise ValueError(f"A phrase of example {example} has box {box}, but there are {num_regions - 1} boxes.")
    return [int(region - 1 in boxes) for region in range(length)]  # region 0 is the whole image


def _pad(rows: list[list[list]], width: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of vectors with zeros. Returns them and a mask that is 0 for padding."""
    longest = max((len(row) for row in rows), default=0)
    padded = np.zeros((len(rows), longest, width), dtype=np.float32 if dtype is float else np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for i, row in enumerate(rows):
        if row:
            padded[i, : len(row)] = row
            mask[i, : len(row)] = 1
    return padded, mask


__all__ = ["GroundedVisualBertProcessor"]
