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

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoProcessor, PreTrainedModel, ProcessorMixin

from ..models import grounded_visual_bert
from .rollout import word_to_region_attention


def load_region_model(name_or_path: str, **kwargs) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Loads a GroundedVisualBert with the head its checkpoint was saved with, and its processor."""
    config = AutoConfig.from_pretrained(name_or_path, **kwargs)
    architecture = (config.architectures or ["GroundedVisualBertModel"])[0]
    if config.model_type != "grounded_visual_bert":
        raise ValueError(f"{name_or_path!r} is a {config.model_type!r}; regions need a 'grounded_visual_bert'.")
    model = getattr(grounded_visual_bert, architecture).from_pretrained(name_or_path, **kwargs)
    return model.eval(), AutoProcessor.from_pretrained(name_or_path, **kwargs)


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
    Where each word of a text looks among the regions of an image. To be drawn by [`plot_regions`] and [`save_html`].

    Args:
        model ([`PreTrainedModel`]), processor ([`ProcessorMixin`]):
            Any GroundedVisualBert, and its processor. See [`load_region_model`].
        image (`PIL.Image.Image`), text (`str`):
            What is looked at, and what looks.
        boxes (`Sequence` of `(left, top, right, bottom)`, *optional*, defaults to a grid):
            Regions in pixels.
        rollout (`bool`, *optional*, defaults to whether the model's rollout was supervised):
            Whether to roll attention out to the input, rather than take the mean of the last layer's heads.

    Returns:
        `dict`:

        - **image**, **words** -- the words of the text; what a word's pieces see is averaged.
        - **boxes** -- relative; the first is the whole image.
        - **attention** -- `np.ndarray` of shape `(words, boxes)`, whose rows sum to one.
        - **head_attention** -- `np.ndarray` of shape `(layers, heads, words, boxes)`, likewise.
        - **method** -- what `attention` is.
    """
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

    Args:
        model ([`PreTrainedModel`]), processor ([`ProcessorMixin`]), image (`PIL.Image.Image`), boxes, rollout:
            As for [`regions_of_words`]. A `GroundedVisualBertForReferringExpression` scores regions itself; of any
            other model, the attention of the phrase's words does.
        text (`str`):
            A caption, or the phrase alone.
        phrase (`str`, *optional*):
            The part of the caption to look for. The whole by default.

    Returns:
        `list[dict]`: `box`, in pixels, and `score` from 0 to 1, best first.
    """
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


def _look(model, processor, image, text, boxes) -> tuple[dict, tuple[torch.Tensor, ...], torch.Tensor | None]:
    if not text.strip():
        raise ValueError("The text is empty: there are no words to look for.")
    regions = {} if boxes is None else {"boxes": [boxes]}
    inputs = processor(images=[image], text=[text], return_tensors="pt", **regions)
    on_device = {name: value.to(model.device) for name, value in inputs.items()}
    outputs = model.eval()(**on_device, output_attentions=True)
    return inputs, outputs.attentions, getattr(outputs, "logits", None)


def _is_rollout(model: PreTrainedModel, rollout: bool | None) -> bool:
    return model.config.attention_supervision == "rollout" if rollout is None else rollout
