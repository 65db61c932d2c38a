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
"""What words of a text see in the regions of an image, for GroundedVisualBert."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from transformers import AutoProcessor, PreTrainedModel, ProcessorMixin

from ..loading import load_checkpoint, load_config, load_part
from ..models import grounded_visual_bert
from ..models.grounded_visual_bert.inputs_grounded_visual_bert import check_boxes, parse_entities
from .figures import drawable
from .rollout import word_to_region_attention


_DRAWN_SIDE = 640  # pixels; smaller images are enlarged before boxes are drawn


def load_region_model(name_or_path: str, trust_remote_code: bool = False) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Loads a GroundedVisualBert with the head that its checkpoint was saved with, and its processor.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import load_region_model

    >>> model, processor = load_region_model(hf_vg.examples.checkpoint("grounded_visual_bert"))
    >>> model.config.model_type
    'grounded_visual_bert'
    ```

    Args:
        name_or_path (`str`):
            A folder, or the name of a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.

    Returns:
        `tuple(PreTrainedModel, ProcessorMixin)`: The model and its processor.
    """
    config = load_config(name_or_path, "regions", trust_remote_code)
    if config.model_type != "grounded_visual_bert":
        raise ValueError(f"{name_or_path} is a {config.model_type}; regions need a grounded_visual_bert.")
    architecture = (config.architectures or ["GroundedVisualBertModel"])[0]
    model_class = getattr(grounded_visual_bert, architecture, None)
    if model_class is None:
        raise ValueError(f"{name_or_path} is a {architecture}, and this package has no such class.")
    model = load_checkpoint(name_or_path, "regions", model_class, trust_remote_code=trust_remote_code)
    return model, load_part(AutoProcessor, name_or_path, trust_remote_code)


def find_regions(
    processor: ProcessorMixin,
    image: Image.Image,
    boxes: Sequence[Sequence[float]] | None = None,
    detector: Callable | None = None,
    threshold: float = 0.2,
) -> tuple[list[list[float]], str]:
    r"""
    Finds the regions of an image: boxes of your own, those of a detector, or a grid.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import find_regions, load_region_model
    >>> from PIL import Image

    >>> model, processor = load_region_model(hf_vg.examples.checkpoint("grounded_visual_bert"))
    >>> scene = hf_vg.examples.scenes()[0]
    >>> image = Image.open(scene["image"])
    >>> boxes = [thing["box"] for thing in scene["objects"]]
    >>> find_regions(processor, image, boxes)[1]
    'the given boxes'
    >>> regions, source = find_regions(processor, image)
    >>> len(regions), source
    (9, 'a 3 x 3 grid')
    ```

    Args:
        processor ([`ProcessorMixin`]):
            The processor of a GroundedVisualBert.
        image (`PIL.Image.Image`):
            The image.
        boxes (`Sequence` of `(left, top, right, bottom)`, *optional*):
            Regions in pixels. They are checked and used unchanged.
        detector (`Callable`, *optional*):
            A `pipeline("object-detection")` of transformers. Without boxes and a detector, or if the detector finds
            nothing, the regions are a grid.
        threshold (`float`, *optional*, defaults to 0.2):
            The lowest score of a detection.

    Returns:
        `tuple[list, str]`: Boxes in pixels, and a text that says where they come from.
    """
    if boxes is not None:
        if not isinstance(boxes, list | tuple) or not boxes:
            raise ValueError("boxes must be a list of [left, top, right, bottom] in pixels, such as [[0, 0, 50, 80]].")
        return check_boxes(boxes, "the list", processor.max_boxes).tolist(), "the given boxes"
    detections = [] if detector is None else detector(image, threshold=threshold)
    (regions,) = processor.propose_regions(image, lambda images, threshold: [detections])
    if detections:
        return regions, f"{len(regions)} detected objects"
    return regions, "a 3 x 3 grid" + (", as the detector found nothing" if detector is not None else "")


def draw_regions(image: Image.Image, found: Sequence[Mapping[str, Any]], phrase: str) -> Image.Image:
    r"""
    Draws the region that a phrase names on the image, with the phrase above it.

    Example:

    ```python
    >>> from hf_vg.interpretation import draw_regions
    >>> from PIL import Image

    >>> found = [{"box": [8, 8, 30, 30], "score": 0.9}, {"box": [32, 40, 60, 60], "score": 0.1}]
    >>> draw_regions(Image.new("RGB", (64, 64), "white"), found, "a red circle").size  # small images are enlarged
    (640, 640)
    ```

    Args:
        image (`PIL.Image.Image`):
            The image.
        found (`Sequence[Mapping]`):
            What [`ground_phrase`] returned, best first. The first region has a bold outline, the others a thin one.
        phrase (`str`):
            The text at the first region.

    Returns:
        `PIL.Image.Image`: A copy of the image with the regions drawn on it. Small images are enlarged.
    """
    # A line of some pixels would hide what a small image shows.
    scale = max(1, round(_DRAWN_SIDE / max(image.size)))
    drawn = image.convert("RGB").resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    canvas = ImageDraw.Draw(drawn)
    width = max(2, max(drawn.size) // 200)
    font = ImageFont.load_default(max(12, max(drawn.size) // 30))
    for record in [*found[1:], *found[:1]]:
        is_best = record is found[0]
        sides = [
            min(max(side * scale, 0), limit - 1) for side, limit in zip(record["box"], drawn.size * 2, strict=True)
        ]
        if sides[0] >= sides[2] or sides[1] >= sides[3]:
            continue
        canvas.rectangle(sides, outline="#ff5a1f" if is_best else "#bbbbbb", width=2 * width if is_best else 1)
        if is_best:
            text = f"{drawable(phrase)[:60]} {record['score']:.0%}"
            box = canvas.textbbox((sides[0], max(sides[1], 0)), text, font=font)
            canvas.rectangle((box[0] - 2, box[1] - 2, box[2] + 4, box[3] + 4), fill="#ff5a1f")
            canvas.text((sides[0], max(sides[1], 0)), text, fill="black", font=font)
    return drawn


@torch.no_grad()
def regions_of_words(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    image: Image.Image,
    text: str,
    boxes: Sequence[Sequence[float]] | None = None,
    rollout: bool | None = None,
) -> dict[str, Any]:
    r"""
    Shows where each word of a text looks among the regions of an image. [`plot_regions`] and [`save_html`] draw it.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import load_region_model, regions_of_words
    >>> from PIL import Image

    >>> model, processor = load_region_model(hf_vg.examples.checkpoint("grounded_visual_bert"))
    >>> scene = hf_vg.examples.scenes()[0]
    >>> image = Image.open(scene["image"])
    >>> boxes = [thing["box"] for thing in scene["objects"]]
    >>> found = regions_of_words(model, processor, image, scene["captions"][0], boxes)
    >>> found["attention"].shape == (len(found["words"]), 1 + len(boxes))  # the first region is the whole image
    True
    ```

    Args:
        model ([`PreTrainedModel`]):
            Any GroundedVisualBert. See [`load_region_model`].
        processor ([`ProcessorMixin`]):
            Its processor.
        image (`PIL.Image.Image`):
            The image.
        text (`str`):
            The text whose words look at the image.
        boxes (`Sequence` of `(left, top, right, bottom)`, *optional*, defaults to a grid):
            Regions in pixels.
        rollout (`bool`, *optional*, defaults to whether the model's rollout was supervised):
            Whether to use attention rollout. Otherwise `attention` is the mean over the heads of the last layer.

    Returns:
        `dict`:

        - **image**, **words** -- The words of the text. The attention of a word is the mean over its pieces.
        - **boxes** -- Relative boxes. The first is the whole image.
        - **attention** -- `np.ndarray` of shape `(words, boxes)`. Rows sum to one.
        - **head_attention** -- `np.ndarray` of shape `(layers, heads, words, boxes)`. Rows sum to one.
        - **method** -- How `attention` was computed.
    """
    text = _plain(text)
    inputs, attentions, _ = _look(model, processor, image, text, boxes)
    num_tokens = inputs["input_ids"].shape[1]
    mean = word_to_region_attention(attentions, num_tokens, _is_rollout(model, rollout))
    by_head = torch.cat([layer[:, :, :num_tokens, num_tokens:] for layer in attentions])
    by_head = by_head / by_head.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    encoding = processor.tokenizer(text, truncation=True)
    pieces: dict[int, list[int]] = {}
    for token, word in enumerate(encoding.word_ids()):
        if word is not None:
            pieces.setdefault(word, []).append(token)
    spans = [encoding.word_to_chars(word) for word in pieces]

    def of_words(attention: torch.Tensor) -> np.ndarray:
        words = [attention[..., tokens, :].mean(dim=-2) for tokens in pieces.values()]
        return torch.stack(words, dim=-2).float().cpu().numpy()

    return {
        "image": image,
        "words": [text[start:end] for start, end in spans],
        "boxes": inputs["boxes"][0].tolist(),
        "attention": of_words(mean[0]),
        "head_attention": of_words(by_head),
        "method": "rollout" if _is_rollout(model, rollout) else "last, all heads",
    }


@torch.no_grad()
def ground_phrase(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    image: Image.Image,
    text: str,
    boxes: Sequence[Sequence[float]] | None = None,
    phrase: str | None = None,
    rollout: bool | None = None,
) -> list[dict[str, Any]]:
    r"""
    Ranks the boxes of an image by how well they show a phrase.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import ground_phrase, load_region_model
    >>> from PIL import Image

    >>> model, processor = load_region_model(hf_vg.examples.checkpoint("grounded_visual_bert"))
    >>> scene = hf_vg.examples.scenes()[0]
    >>> image = Image.open(scene["image"])
    >>> boxes = [thing["box"] for thing in scene["objects"]]
    >>> found = ground_phrase(model, processor, image, scene["phrases"][0]["text"], boxes)
    >>> len(found) == len(boxes), sorted(found[0])
    (True, ['box', 'score'])
    ```

    Args:
        model ([`PreTrainedModel`]):
            Any GroundedVisualBert. A `GroundedVisualBertForReferringExpression` scores regions itself. For other
            models, the score is the attention of the phrase's words.
        processor ([`ProcessorMixin`]):
            Its processor.
        image (`PIL.Image.Image`):
            The image.
        text (`str`):
            A caption, or the phrase alone.
        boxes (`Sequence` of `(left, top, right, bottom)`, *optional*, defaults to a grid):
            Regions in pixels.
        phrase (`str`, *optional*):
            The part of the caption to look for. By default the whole caption.
        rollout (`bool`, *optional*, defaults to whether the model's rollout was supervised):
            Whether the score is attention rollout. Otherwise it is the mean over the heads of the last layer.

    Returns:
        `list[dict]`: `box`, in pixels, and `score` from 0 to 1, best first.
    """
    text = _plain(text)
    start = 0 if phrase is None else text.find(phrase)
    if start < 0:
        raise ValueError(f"The phrase {phrase!r} is not in the text {text!r}.")
    end = len(text) if phrase is None else start + len(phrase)
    inputs, attentions, logits = _look(model, processor, image, text, boxes)
    if isinstance(model, grounded_visual_bert.GroundedVisualBertForReferringExpression):
        scores = logits[0, 1:].sigmoid()
    else:
        num_tokens = inputs["input_ids"].shape[1]
        offsets = processor.tokenizer(text, truncation=True, return_offsets_mapping=True)["offset_mapping"]
        tokens = [i for i, (first, last) in enumerate(offsets) if max(first, start) < min(last, end)]
        if not tokens:
            raise ValueError(f"The phrase {phrase or text!r} has no words that the tokenizer keeps.")
        # Without the whole image, which every word may look at.
        attention = word_to_region_attention(attentions, num_tokens, _is_rollout(model, rollout))[0, tokens, 1:]
        scores = attention.sum(dim=0) / attention.sum().clamp(min=1e-12)
    width, height = image.size
    in_pixels = inputs["boxes"][0, 1:] * torch.tensor([width, height, width, height])
    order = scores.argsort(descending=True, stable=True)
    return [{"box": in_pixels[i].tolist(), "score": float(scores[i])} for i in order]


def _plain(text: str) -> str:
    """The text without the mark-up of Flickr30k Entities, as the processor reads it."""
    if not isinstance(text, str):
        raise TypeError(f"`text` must be a string, got {type(text).__name__}: {text!r:.80}.")
    return parse_entities(text)[0]


def _look(
    model: PreTrainedModel, processor: ProcessorMixin, image: Any, text: str, boxes: Any
) -> tuple[dict, tuple[torch.Tensor, ...], Any]:
    if not text.strip():
        raise ValueError("The text is empty: there are no words to look for.")
    regions = {} if boxes is None else {"boxes": [boxes]}
    inputs = processor(images=[image], text=[text], return_tensors="pt", **regions)
    on_device = {name: value.to(model.device) for name, value in inputs.items()}
    outputs = model.eval()(**on_device, output_attentions=True)
    return inputs, outputs.attentions, getattr(outputs, "logits", None)


def _is_rollout(model: PreTrainedModel, rollout: bool | None) -> bool:
    return model.config.attention_supervision == "rollout" if rollout is None else rollout
