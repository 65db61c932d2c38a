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
"""Where words look among regions: attention rollout, and figures of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.images import open_image
from ..models.attention_supervision import align_words, attention_rollout
from .figures import axes_grid, drawable


if TYPE_CHECKING:
    from matplotlib.figure import Figure


def word_to_region_attention(
    attentions: tuple[torch.Tensor, ...], num_tokens: int, rollout: bool = False
) -> torch.Tensor:
    r"""
    Computes how the attention of each word is shared among the regions of the image.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.interpretation import word_to_region_attention

    >>> attentions = tuple(torch.rand(1, 4, 5, 5).softmax(dim=-1) for _ in range(2))  # 2 layers with 4 heads
    >>> word_to_region_attention(attentions, num_tokens=3).shape  # 3 tokens and 2 regions
    torch.Size([1, 3, 2])
    ```

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities of a model whose sequence is tokens and then regions: one tensor of shape
            `(batch, heads, length, length)` per layer.
        num_tokens (`int`):
            How many of the positions are tokens, padding included.
        rollout (`bool`, *optional*, defaults to `False`):
            Whether to use attention rollout from the last layer to the input. Otherwise the result is the mean over
            the heads of the last layer.

    Returns:
        `torch.Tensor` of shape `(batch, tokens, regions)`: Rows sum to one over the regions.
    """
    if rollout:
        (attention,) = attention_rollout(attentions, layers=[-1])
    else:
        attention = attentions[-1].mean(dim=1)
    to_regions = attention[:, :num_tokens, num_tokens:]
    return to_regions / to_regions.sum(dim=-1, keepdim=True).clamp(min=1e-12)


@torch.no_grad()
def region_examples(
    model: PreTrainedModel, rows: Sequence[Mapping[str, Any]], collator: Any, rollout: bool = False
) -> list[dict[str, Any]]:
    r"""
    Collects where the words of captions look. [`plot_regions`] draws it. For pairs, it uses the first caption.

    Example:

    ```python
    >>> from hf_vg.interpretation import plot_regions, region_examples

    >>> examples = region_examples(trainer.model, pairs.select(range(4)), collator)  # doctest: +SKIP
    >>> plot_regions(examples, "regions.png")  # doctest: +SKIP
    ```

    Args:
        model ([`PreTrainedModel`]):
            A [`GroundedVisualBertForVGP`].
        rows (`Sequence[Mapping]`):
            Rows of [`make_caption_pairs`].
        collator (`CaptionPairCollatorForVGP`):
            The collator that makes batches of the rows.
        rollout (`bool`, *optional*, defaults to `False`):
            Whether to use attention rollout. See [`word_to_region_attention`].

    Returns:
        `list[dict]`: For each row its `image`, `words`, `boxes`, `attention`, and as `right` the boxes that each
        word truly names. [`plot_regions`] takes them.
    """
    model.eval()
    tokenizer = collator.processor.tokenizer
    examples = []
    for row in rows:
        batch = {name: value.to(model.device) for name, value in collator([row]).items()}
        for name in ("labels", "pair_labels", "masked_input_ids", "masked_labels"):
            batch.pop(name, None)
        ids = batch["input_ids"][0]
        attentions = model(**batch, output_attentions=True).attentions
        attention = word_to_region_attention(attentions, len(ids), rollout)[0].cpu()
        shown = align_words(batch["phrase_spans"], batch["phrase_boxes"], len(ids))[0]
        is_special = torch.isin(ids.cpu(), torch.tensor(tokenizer.all_special_ids))
        words = [i for i in range(len(ids)) if not is_special[i] and batch["token_type_ids"][0, i] == 0]
        examples.append(
            {
                "image": open_image(collator.images[row["row"]]["image"]),
                "boxes": batch["boxes"][0].tolist(),
                "words": tokenizer.convert_ids_to_tokens(ids[words]),
                "attention": attention[words].numpy(),
                "right": [shown[i].nonzero().flatten().tolist() for i in words],
            }
        )
    return examples


def plot_regions(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | Path | None = None, columns: int = 8
) -> "Figure":
    r"""
    Draws each image, and beside it one copy per word, which is bright where the word looks: a region is as bright as
    its share of the word's attention.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.interpretation import plot_regions
    >>> from PIL import Image

    >>> boxes = [[0, 0, 0.5, 1], [0.5, 0, 1, 1]]
    >>> example = {"image": Image.new("RGB", (64, 64)), "words": ["a", "dog"], "boxes": boxes, "attention": np.eye(2)}
    >>> figure = plot_regions(example, "regions.png", columns=2)
    >>> [axis.get_title() for axis in figure.axes]
    ['', 'a', 'dog']
    ```

    Args:
        examples (`Mapping` or a sequence of them):
            Each has an `image` (`PIL.Image.Image`), `boxes` of relative (left, top, right, bottom), `words`, and
            `attention` of shape `(words, boxes)`. `right` is optional: for each word, the numbers of the boxes that
            it names. They get an outline, which is green if the word looks most at one of them, and otherwise red.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.
        columns (`int`, *optional*, defaults to 8):
            The largest number of words in a row of the figure.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
    """
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    lines = []
    for number, example in enumerate(examples):
        words = len(example["words"])
        if words != len(example["attention"]):
            raise ValueError(
                f"Example {number} must have one row of attention per word, got {words} words and "
                f"{len(example['attention'])} rows."
            )
        lines += [(example, range(start, min(start + columns, words))) for start in range(0, words, columns)]

    figure, axes = axes_grid(len(lines), columns + 1, figsize=(1.5 * (columns + 1), 1.75 * max(len(lines), 1)))
    from matplotlib.patches import Rectangle

    for row, (example, words) in zip(axes, lines, strict=False):
        pixels = np.asarray(example["image"].convert("RGB"))
        size = (pixels.shape[1], pixels.shape[0])
        if words.start == 0:
            row[0].imshow(pixels)
        for axis, word in zip(row[1:], words, strict=False):
            attention, right = np.asarray(example["attention"][word]), example.get("right", {word: []})[word]
            light = np.zeros(pixels.shape[:2])
            for box, share in zip(example["boxes"], attention / max(attention.max(), 1e-12), strict=True):
                left, top, width, height = (max(0, round(side)) for side in _rectangle(box, size))
                region = light[top : top + height, left : left + width]
                np.maximum(region, share, out=region)
            axis.imshow((pixels * (0.2 + 0.8 * light[..., None])).astype(np.uint8))
            color = "black" if not right else "green" if attention.argmax() in right else "red"
            for box in right:
                left, top, width, height = _rectangle(example["boxes"][box], size)
                outline = (left - 0.5, top - 0.5)  # pixel 0 is drawn from -0.5 to 0.5
                axis.add_patch(Rectangle(outline, width, height, fill=False, edgecolor=color, lw=1.5))
            axis.set_title(drawable(example["words"][word]), fontsize=10, color=color, parse_math=False)
    if any(any(example.get("right", ())) for example in examples):
        figure.supxlabel(
            "Lit: where the word looks. Outlined: what it names, green if it looks there most, red if not.", fontsize=9
        )
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _rectangle(box: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(side) * size[i % 2] for i, side in enumerate(box))
    return left, top, right - left, bottom - top


__all__ = ["attention_rollout", "plot_regions", "region_examples", "word_to_region_attention"]
