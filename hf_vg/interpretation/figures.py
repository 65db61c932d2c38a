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
"""Figures of where a model looked, and of what it considered."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image


if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_attention(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | Path | None = None
) -> "Figure":
    r"""
    Draws each image, and beside it the image under the map of each word of its caption.

    Args:
        examples (`Mapping` or a sequence of them):
            Each with an `image` (`PIL.Image.Image`), its `words` (`list[str]`) and their `attention` (`np.ndarray` of
            shape `(words, height, width)`), the last two as `pipeline("image-to-text")` returns them with
            `return_attention=True`. Where the maps cover a part of the image only, `seen` says which (see
            [`seen_box`]), and that part is drawn.
        path (`str` or `Path`, *optional*):
            Where to save the figure; its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: Not shown on a screen, and not kept open by pyplot.
    """
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    for index, example in enumerate(examples):
        if len(example["words"]) != len(example["attention"]):
            raise ValueError(
                f"Example {index} must have one map a word, got {len(example['words'])} words and "
                f"{len(example['attention'])} maps."
            )

    columns = 1 + max((len(example["words"]) for example in examples), default=0)
    figure, axes = axes_grid(len(examples), columns, figsize=(1.3 * columns, 1.55 * max(len(examples), 1)))
    for row, example in zip(axes, examples, strict=False):
        image = example["image"].convert("RGB")
        if "seen" in example:
            sides = np.array(example["seen"]) * (image.size * 2)
            image = image.crop(np.rint(sides).astype(int).tolist())
        row[0].imshow(image)
        for axis, word, weights in zip(row[1:], example["words"], example["attention"], strict=False):
            # Each map is scaled by its own peak: what is compared is places, not words.
            weights = Image.fromarray(np.asarray(weights / max(weights.max(), 1e-12), dtype=np.float32))
            heat = np.asarray(weights.resize(image.size, Image.Resampling.BICUBIC)).clip(0, 1)
            axis.imshow(image.convert("L"), cmap="gray", vmin=0, vmax=255)
            axis.imshow(heat, cmap="inferno", alpha=0.2 + 0.65 * heat, vmin=0, vmax=1)
            axis.set_title(drawable(word), fontsize=10, parse_math=False)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def plot_candidates(examples: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> "Figure":
    r"""
    Draws each image, and beside it the captions that a model considered for it, with the tag below each word.

    Args:
        examples (sequence of `Mapping`):
            Each with an `image` (`PIL.Image.Image`) and its `candidates`, best first: mappings with `words`
            (`list[str]`), their `tags` (`list[str]`) and a `score`. A `title` is written above them.
        path (`str` or `Path`, *optional*):
            Where to save the figure; its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: Not shown on a screen, and not kept open by pyplot.
    """
    height = 0.5 + 0.5 * max((len(example["candidates"]) for example in examples), default=1)
    figure, axes = axes_grid(
        len(examples), 2, figsize=(11, height * max(len(examples), 1)), gridspec_kw={"width_ratios": [1, 4]}
    )
    for (picture, text), example in zip(axes, examples, strict=False):
        picture.imshow(example["image"].convert("RGB"))
        text.set_title(drawable(example.get("title", "")), fontsize=10, loc="left", style="italic", parse_math=False)
        rows = len(example["candidates"])
        for row, candidate in enumerate(example["candidates"]):
            # Letters of one width, so that a tag stands below its word.
            widths = [max(map(len, pair)) for pair in zip(candidate["words"], candidate["tags"], strict=True)]
            for down, color, names in ((0.3, "black", candidate["words"]), (0.7, "tab:blue", candidate["tags"])):
                line = " ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))
                line = (f"{candidate['score']:6.3f}  " if color == "black" else " " * 8) + line
                text.text(
                    0, 1 - (row + down) / rows, drawable(line), color=color, family="monospace", fontsize=8,
                    va="center", transform=text.transAxes, parse_math=False,
                )  # fmt: skip
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def plot_deletion(results: Mapping[str, Mapping[str, Any]], path: str | Path | None = None) -> "Figure":
    r"""
    Draws how the probability of words falls as more of the image is hidden: by the maps of each explainer, at random,
    and from the centre.

    Args:
        results (`Mapping[str, Mapping]`):
            For the name of each explainer what [`deletion_test`] returned.
        path (`str` or `Path`, *optional*):
            Where to save the figure; its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: Not shown on a screen, and not kept open by pyplot.
    """
    figure, axes = axes_grid(1, 1, figsize=(5.5, 3.8))
    axis = axes[0, 0]
    axis.axis("on")
    for name, result in results.items():
        score = result["score"]
        label = f"{drawable(name)}: {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})"
        axis.plot(100 * np.asarray(result["shares"]), result["probability"]["map"], marker="o", ms=3, label=label)
    first = next(iter(results.values()))
    for name, label, style in (("random", "at random", "--"), ("center", "the centre", ":")):
        shares, curve = 100 * np.asarray(first["shares"]), first["probability"][name]
        axis.plot(shares, curve, linestyle=style, color="gray", label=label)
    axis.set(xlabel="hidden, % of the image", ylabel="probability of the word", ylim=(0, None))
    axis.legend(fontsize=8, title="hidden first: score with interval", title_fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def drawable(text: str) -> str:
    """Text that a figure can show as it is: on one line, without lone surrogates, which no font has."""
    return str(text).replace("\n", " ").encode(errors="replace").decode()


def axes_grid(rows: int, columns: int, figsize: tuple[float, float], **kwargs: Any) -> tuple[Any, Any]:
    """A figure of axes that are not drawn themselves."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: `pip install hf-vg[demo]`.") from error
    figure = Figure(figsize=figsize, layout="constrained")
    axes = figure.subplots(max(rows, 1), columns, squeeze=False, **kwargs)
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes
