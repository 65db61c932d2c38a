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
    Draws each image, and beside it one copy per word of its caption, under the map of the word.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import plot_attention
    >>> from PIL import Image
    >>> from transformers import pipeline

    >>> captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> (caption,) = captioner(image, return_attention=True)
    >>> figure = plot_attention({"image": image, **caption}, "attention.png")
    >>> len(figure.axes) == 1 + len(caption["words"])
    True
    ```

    Args:
        examples (`Mapping` or a sequence of them):
            Each has an `image` (`PIL.Image.Image`), `words` (`list[str]`) and `attention` (`np.ndarray` of shape
            `(words, height, width)`), as `pipeline("image-to-text")` returns them with `return_attention=True`. If the
            maps cover only a part of the image, `seen` says which part (see [`seen_box`]), and that part is drawn.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
    """
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    for index, example in enumerate(examples):
        if len(example["words"]) != len(example["attention"]):
            raise ValueError(
                f"Example {index} must have one map per word, got {len(example['words'])} words and "
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
            # Each map is scaled by its own peak: places are compared, not words.
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

    Example:

    ```python
    >>> from hf_vg.interpretation import plot_candidates
    >>> from PIL import Image

    >>> candidate = {"words": ["a", "dog"], "tags": ["DT", "NN"], "score": 0.9}
    >>> example = {"image": Image.new("RGB", (64, 64)), "candidates": [candidate], "title": "a dog"}
    >>> figure = plot_candidates([example], "candidates.png")
    >>> figure.axes[1].texts[0].get_text()
    ' 0.900  a  dog'
    ```

    Args:
        examples (`Sequence[Mapping]`):
            Each has an `image` (`PIL.Image.Image`) and `candidates`, best first. A candidate has `words`
            (`list[str]`), their `tags` (`list[str]`) and a `score`. A `title` is optional and stands above them.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
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


def plot_search(examples: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> "Figure":
    r"""
    Draws one row per search: the image that is searched with, the sum, and the images that are found, best first.

    Example:

    ```python
    >>> from hf_vg.interpretation import plot_search
    >>> from PIL import Image

    >>> photo = Image.new("RGB", (64, 64))
    >>> figure = plot_search([{"image": photo, "title": "- black + white", "found": [photo, photo]}], "search.png")
    >>> len(figure.axes)
    3
    ```

    Args:
        examples (`Sequence[Mapping]`):
            Each has an `image`, the images that are `found` (all `PIL.Image.Image`), and a `title` that says what was
            searched for.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
    """
    columns = 1 + max((len(example["found"]) for example in examples), default=0)
    figure, axes = axes_grid(len(examples), columns, figsize=(1.7 * columns, 1.6 * max(len(examples), 1)))
    for row, example in zip(axes, examples, strict=False):
        row[0].set_title(drawable(example["title"]), fontsize=9, parse_math=False)
        for axis, image in zip(row, [example["image"], *example["found"]], strict=False):
            axis.imshow(image.convert("RGB"))
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def plot_deletion(results: Mapping[str, Mapping[str, Any]], path: str | Path | None = None) -> "Figure":
    r"""
    Draws how the probability of words falls as more of the image is hidden: what the maps of each explainer mark,
    cells at random, or the center.

    Example:

    ```python
    >>> from hf_vg.interpretation import deletion_summary, plot_deletion

    >>> curves = {"map": [0.9, 0.4, 0.1], "random": [0.9, 0.7, 0.5], "center": [0.9, 0.8, 0.4]}
    >>> word = {"word": "dog", "image": 0, "score": 0.35, "score_center": 0.35, **curves}
    >>> figure = plot_deletion({"attention": deletion_summary([word], shares=[0.1, 0.5])}, "deletion.png")
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['attention: 0.350 (0.350 to 0.350)', 'at random', 'the center']
    ```

    Args:
        results (`Mapping[str, Mapping]`):
            What [`deletion_test`] returned, by the name of the explainer.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
    """
    figure, axes = axes_grid(1, 1, figsize=(5.5, 3.8))
    axis = axes[0, 0]
    axis.axis("on")
    for name, result in results.items():
        score = result["score"]
        label = f"{drawable(name)}: {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})"
        axis.plot(100 * np.asarray(result["shares"]), result["probability"]["map"], marker="o", ms=3, label=label)
    first = next(iter(results.values()))
    for name, label, style in (("random", "at random", "--"), ("center", "the center", ":")):
        shares, curve = 100 * np.asarray(first["shares"]), first["probability"][name]
        axis.plot(shares, curve, linestyle=style, color="gray", label=label)
    axis.set(xlabel="hidden, % of the image", ylabel="probability of the word", ylim=(0, None))
    axis.legend(fontsize=8, title="hidden first: score with interval", title_fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def drawable(text: str) -> str:
    """Text that a figure can show: on one line, and without lone surrogates, which no font has."""
    return str(text).replace("\n", " ").encode(errors="replace").decode()


def axes_grid(rows: int, columns: int, figsize: tuple[float, float], **kwargs: Any) -> tuple[Any, Any]:
    """A figure with a grid of invisible axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: `pip install hf-vg[demo]`.") from error
    figure = Figure(figsize=figsize, layout="constrained")
    axes = figure.subplots(max(rows, 1), columns, squeeze=False, **kwargs)
    for axis in axes.flat:
        axis.axis("off")
    return figure, axes
