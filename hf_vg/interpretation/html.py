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
"""One HTML file in which words show where a model looked. It needs no network to open."""

import base64
import html
import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from ..data.files import atomic_write
from .deletion import CURVES
from .word_maps import shares


_TEMPLATE = Path(__file__).parent / "templates" / "explanation.html"
_MAX_SIDE = 640  # pixels of an embedded image
_MAX_HEAD_BYTES = 6_000_000  # of the maps of all heads of an example


def explanation_html(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    title: str = "Where the model looked",
    before: str = "",
    after: str = "",
) -> str:
    r"""
    Makes one HTML page. Point at a word, tap it, or move to it by keyboard, and see where it looked. If the examples
    have layers and heads, the page lets you choose them.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.interpretation import explanation_html
    >>> from PIL import Image

    >>> example = {"image": Image.new("RGB", (64, 64)), "words": ["a", "dog"], "attention": np.ones((2, 8, 8))}
    >>> page = explanation_html({**example, "name": "dog.jpg"}, title="Where it looked")
    >>> "<title>Where it looked</title>" in page
    True
    ```

    Args:
        examples (`Mapping` or a sequence of them):
            Each is one of these:

            - A caption with maps: `image`, `words` and `attention` of shape `(words, height, width)`, as
              `pipeline("image-to-text")` returns them with `return_attention=True`. With `return_attention="heads"` it
              also has `head_attention`. `seen` is the part of the image that the maps cover (see [`seen_box`]), by
              default the whole image. `deletion` is the result of [`deletion_test`]. It shows beside the maps whether
              you can believe them.
            - A text and regions: `image`, `words`, relative `boxes` and `attention` of shape `(words, boxes)`, as
              [`regions_of_words`] and [`region_examples`] return them. `head_attention` and `right` are optional.
            - Captions that a model considered: `image` and `candidates`, as [`caption_candidates`] returns them.
            - A sentence: `words` and `attention` of shape `(rows, words)`, as [`attention_of_sentences`] returns them.

            Each may have a `name`, which stands above it.
        title (`str`, *optional*):
            The title of the page.
        before (`str`, *optional*):
            HTML above the examples. It is not escaped: escape what others wrote.
        after (`str`, *optional*):
            HTML below the examples, not escaped either.

    Returns:
        `str`: The page. It needs no network.
    """
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    data = json.dumps([_pack(example, index) for index, example in enumerate(examples)], separators=(",", ":"))
    # Only these characters could end the script element, or count as mark-up in it.
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.substitute(title=html.escape(title), before=before, after=after, data=data)
    return page.encode(errors="replace").decode()  # a lone surrogate cannot be written to a file


def save_html(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | os.PathLike, title: str | None = None
) -> Path:
    r"""
    Writes the page of [`explanation_html`] to a file. If writing fails, an older file stays as it was.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.interpretation import save_html
    >>> from PIL import Image

    >>> example = {"image": Image.new("RGB", (64, 64)), "words": ["a", "dog"], "attention": np.ones((2, 8, 8))}
    >>> save_html(example, "dog.html").name
    'dog.html'
    ```

    Args:
        examples (`Mapping` or a sequence of them):
            What to show, as for [`explanation_html`].
        path (`str` or `PathLike`):
            The file.
        title (`str`, *optional*):
            The title of the page.

    Returns:
        `Path`: The path of the file.
    """
    path = Path(path)
    text = explanation_html(examples) if title is None else explanation_html(examples, title)
    with atomic_write(path) as file:
        file.write_text(text, encoding="utf-8")
    return path


def _pack(example: Mapping[str, Any], index: int) -> dict[str, Any]:
    if "candidates" in example:
        candidates = [
            {"words": [*map(str, c["words"])], "tags": [*map(str, c["tags"])], "score": round(float(c["score"]), 3)}
            for c in example["candidates"]
        ]
        words = candidates[0]["words"] if candidates else []
        return {
            "words": words, "name": str(example.get("name", "")), "image": _data_uri(example["image"]), "bytes": "",
            "candidates": candidates,
        }  # fmt: skip
    words = [str(word) for word in example["words"]]
    attention = np.asarray(example["attention"], dtype=np.float64)
    packed: dict[str, Any] = {"words": words, "name": str(example.get("name", "")), "right": []}
    if "image" not in example:
        _check(attention, ("rows", len(words)), index)
        views = np.concatenate([attention.mean(axis=0, keepdims=True), attention])
        return packed | _quantize(views[:, None])
    packed["image"] = _data_uri(example["image"])
    if "boxes" in example:
        _check(attention, (len(words), len(example["boxes"])), index)
        packed["boxes"] = np.round(np.asarray(example["boxes"], dtype=np.float64), 4).tolist()
        packed["right"] = [list(map(int, boxes)) for boxes in example.get("right", [])]
    else:
        _check(attention, (len(words), "height", "width"), index)
        packed["grid"] = attention.shape[1:]
        packed["seen"] = np.round(example.get("seen", (0.0, 0.0, 1.0, 1.0)), 4).tolist()
        if "deletion" in example:
            packed["deletion"] = _pack_deletion(example["deletion"], words, index)
    views = attention[None]
    heads = example.get("head_attention")
    # With one head of one layer there is nothing to choose.
    if heads is None or np.shape(heads)[0] * np.shape(heads)[1] == 1:
        return packed | _quantize(views)
    heads = np.asarray(heads, dtype=np.float64)
    if heads.shape[2:] != attention.shape:
        raise ValueError(
            f"`head_attention` of example {index} must be of shape (layers, heads, *{attention.shape}), got "
            f"{heads.shape}."
        )
    packed |= {"layers": heads.shape[0], "heads": heads.shape[1], "method": example.get("method", "mean of all")}
    if "grid" in packed:
        heads = _coarser(heads)
        packed["head_grid"] = heads.shape[3:]
    heads = np.concatenate([heads.mean(axis=1, keepdims=True), heads], axis=1)
    # A head may hardly look at the image. The map shows where it looks when it does.
    heads = heads / np.maximum(heads.sum(axis=tuple(range(3, heads.ndim)), keepdims=True), 1e-12)
    return packed | _quantize(views, heads.reshape(heads.shape[0] * heads.shape[1], *heads.shape[2:]))


def _pack_deletion(result: Mapping[str, Any], words: Sequence[str], index: int) -> dict[str, Any]:
    """The score of a deletion test, and the curves: first of all words together, then of each word."""
    tested = [word["word"] for word in result["words"]]
    if tested != list(words):
        raise ValueError(f"`deletion` of example {index} must have its words, {list(words)}, got {tested}.")
    curves = [[np.round(of[name], 4).tolist() for name in CURVES] for of in (result["probability"], *result["words"])]
    scores = {
        name: [round(float(result[name][end]), 4) for end in ("value", "low", "high")]
        for name in ("score", "score_center")
    }
    return {**scores, "shares": np.round(result["shares"], 4).tolist(), "curves": curves}


def _coarser(heads: np.ndarray) -> np.ndarray:
    """Makes the maps of all heads coarser if there are so many that the page would open slowly."""
    height, width = heads.shape[-2:]
    scale = min(1.0, (_MAX_HEAD_BYTES / max(heads.size, 1)) ** 0.5)
    if scale == 1.0:
        return heads
    rows, columns = (shares(side, max(1, int(side * scale))).numpy() for side in (height, width))
    return rows @ heads @ columns.T


def _quantize(*views: np.ndarray) -> dict[str, Any]:
    """
    Packs each weight into a byte. Each vector is scaled by its own peak: places are compared, not words. Views have
    the shape `(views, words, ...)`. Vectors of the second views may have another size.
    """
    peaks, scaled = [], b""
    for view in views:
        vectors = view.reshape(view.shape[0] * view.shape[1], int(np.prod(view.shape[2:])))
        peak = vectors.max(axis=1, initial=0.0)
        peaks += [float(f"{value:.4g}") for value in peak]
        scaled += (
            np.rint(255 * np.clip(vectors, 0, None) / np.maximum(peak, 1e-12)[:, None]).astype(np.uint8).tobytes()
        )
    sizes = [int(np.prod(view.shape[2:])) for view in views]
    return {
        "size": sizes[0],
        "head_size": sizes[-1],
        "peaks": peaks,
        "bytes": base64.b64encode(scaled).decode(),
    }


def _data_uri(image: Image.Image) -> str:
    image = image.convert("RGB")
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    buffer = BytesIO()
    # Small pictures are drawings more often than photos, and JPEG would blur their edges.
    kind = "PNG" if max(image.size) <= 128 else "JPEG"
    image.save(buffer, kind, **({} if kind == "PNG" else {"quality": 85}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _check(attention: np.ndarray, shape: tuple, index: int) -> None:
    right = attention.ndim == len(shape) and all(
        isinstance(side, str) or side == actual for side, actual in zip(shape, attention.shape, strict=True)
    )
    if not right or not np.isfinite(attention).all():
        wanted = ", ".join(map(str, shape))
        raise ValueError(
            f"`attention` of example {index} must be finite and of shape ({wanted}), got shape {attention.shape}."
        )
