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
from typing import Any

import torch
from transformers import PreTrainedModel

from ..models.grounded_visual_bert.functional_grounded_visual_bert import align_words, attention_rollout


def word_to_region_attention(
    attentions: tuple[torch.Tensor, ...], num_tokens: int, rollout: bool = False
) -> torch.Tensor:
    r"""
    The share of each region in what words look at in the image.

    Args:
        attentions (`tuple[torch.Tensor]`):
            Attention probabilities of a model whose sequence is tokens and then regions, one tensor of shape
            `(batch, heads, length, length)` a layer.
        num_tokens (`int`):
            How many of the positions are tokens, padding included.
        rollout (`bool`, *optional*, defaults to `False`):
            Whether to roll attention out from the last layer to the input, rather than take the mean of the last
            layer's heads.

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
    Where the words of first captions look, ready to be drawn by [`plot_regions`].

    Args:
        model ([`PreTrainedModel`]):
            A [`GroundedVisualBertForVGP`].
        rows (`Sequence[Mapping]`), collator (`CaptionPairCollatorForVGP`):
            Rows of [`make_caption_pairs`], and what makes batches of them.
        rollout (`bool`, *optional*, defaults to `False`):
            As for [`word_to_region_attention`].
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
                "image": collator.images[row["row"]]["image"],
                "boxes": batch["boxes"][0].tolist(),
                "words": tokenizer.convert_ids_to_tokens(ids[words]),
                "attention": attention[words].numpy(),
                "right": [shown[i].nonzero().flatten().tolist() for i in words],
            }
        )
    return examples


def plot_regions(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | Path | None = None, columns: int = 8
):
    r"""
    Draws, for each word, the image with its regions, each as bright as its share of the word's attention.

    Args:
        examples (`Mapping` or a sequence of them):
            Each with an `image` (`PIL.Image.Image`); its `boxes`, relative (left, top, right, bottom); its `words`;
            their `attention`, of shape `(words, boxes)`; and, optionally, `right`: for each word the numbers of the
            boxes that it names, which are outlined in green.
        path (`str` or `Path`, *optional*):
            Where to save the figure; its ending names the format.
        columns (`int`, *optional*, defaults to 8):
            The most words of a row of the figure.

    Returns:
        `matplotlib.figure.Figure`: Not shown on a screen, and not kept open by pyplot.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError("Figures need matplotlib: `pip install hf-vg[demo]`.") from error
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    panels = []
    for number, example in enumerate(examples):
        if len(example["words"]) != len(example["attention"]):
            raise ValueError(
                f"Example {number} must have a row of attention a word, got {len(example['words'])} words and "
                f"{len(example['attention'])} rows."
            )
        words = list(zip(example["words"], example["attention"], strict=True))
        right = example.get("right", [[]] * len(words))
        rows = [list(range(start, min(start + columns, len(words)))) for start in range(0, len(words), columns)]
        panels += [[(example, *words[i], right[i]) for i in row] for row in rows]

    figure = Figure(figsize=(1.5 * columns, 1.75 * max(len(panels), 1)), layout="constrained")
    axes = figure.subplots(max(len(panels), 1), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, panel in zip(axes, panels, strict=False):
        for axis, (example, word, attention, right) in zip(row, panel, strict=False):
            image = example["image"].convert("RGB")
            axis.imshow(image.convert("L"), cmap="gray", vmin=0, vmax=255)
            peak = max(float(max(attention)), 1e-12)
            # Large regions first, so that what lies within them can be seen.
            by_area = sorted(range(len(example["boxes"])), key=lambda i: -_area(example["boxes"][i]))
            for i in by_area:
                left, top, width, height = _rectangle(example["boxes"][i], image.size)
                share = float(attention[i]) / peak
                axis.add_patch(Rectangle((left, top), width, height, color="orangered", alpha=0.6 * share, lw=0))
            for i in right:
                left, top, width, height = _rectangle(example["boxes"][i], image.size)
                axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="lime", lw=1.2))
            axis.set_title(word, fontsize=10, color="green" if right else "black")
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _area(box: Sequence[float]) -> float:
    return float((box[2] - box[0]) * (box[3] - box[1]))


def _rectangle(box: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(side) * size[i % 2] for i, side in enumerate(box))
    return left - 0.5, top - 0.5, right - left, bottom - top


__all__ = ["attention_rollout", "plot_regions", "region_examples", "word_to_region_attention"]
