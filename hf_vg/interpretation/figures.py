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
"""Figures of where a model looked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def plot_attention(
    image: Image.Image,
    words: Sequence[str],
    attention: np.ndarray,
    path: str | Path | None = None,
    columns: int = 6,
    title: str | None = None,
):
    r"""
    Draws the image, and for each word the image under the map of its attention.

    Args:
        image (`PIL.Image.Image`):
            The image that was captioned.
        words (`Sequence[str]`), attention (`np.ndarray` of shape `(words, height, width)`):
            As `pipeline("image-to-text")` returns them with `return_attention=True`.
        path (`str` or `Path`, *optional*):
            Where to save the figure; its ending names the format.
        columns (`int`, *optional*, defaults to 6):
            Panels a row.
        title (`str`, *optional*, defaults to the caption):
            Written above the panels.

    Returns:
        `matplotlib.figure.Figure`: Not shown on a screen, and not kept open by pyplot.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: `pip install hf-vg[demo]`.") from error
    if len(words) != len(attention):
        raise ValueError(f"There must be one map a word, got {len(words)} words and {len(attention)} maps.")

    panels = len(words) + 1
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(1.7 * columns, 1.95 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    figure.suptitle(" ".join(words) if title is None else title, fontsize=11)
    for axis in axes:
        axis.axis("off")
    axes[0].imshow(image, interpolation="nearest")
    axes[0].set_title("image", fontsize=9, color="0.4")
    grey = image.convert("L")
    for axis, word, weights in zip(axes[1:], words, attention, strict=False):
        # Each map is scaled by its own peak: what is compared is places, not words.
        scaled = Image.fromarray(np.asarray(weights / max(weights.max(), 1e-12), dtype=np.float32))
        heat = np.asarray(scaled.resize(image.size, Image.Resampling.BICUBIC)).clip(0, 1)
        axis.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.imshow(heat, cmap="inferno", alpha=0.25 + 0.6 * heat, vmin=0, vmax=1)
        axis.set_title(word, fontsize=10)
    if path is not None:
        figure.savefig(path, dpi=160)
    return figure
