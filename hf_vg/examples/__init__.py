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
"""
Tiny checkpoints and a few scenes that come with the package: try everything offline and without training.

The checkpoints know only **scenes**: pictures of colored shapes, as [`~hf_vg.load_scenes`] draws them. Photos mean
nothing to them.

    >>> import hf_vg
    >>> from transformers import pipeline
    >>> captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> scene = hf_vg.examples.scenes()[0]
    >>> caption = captioner(scene["image"])[0]["generated_text"]
    >>> hf_vg.caption_is_true(scene, caption)
    True
"""

import difflib
import json
from pathlib import Path
from typing import Any


# One per system, and what it does.
CHECKPOINTS = {
    "show_attend_tell": "writes captions, and shows where each word looks",
    "spatial_transformer": "writes captions, and shows where each word looks",
    "vse_scnlm": "searches scenes by sentences and by sums of images and words, and writes captions",
    "grounded_visual_bert": "finds the region that a phrase names",
    "self_attn_grounded_encoder": "turns sentences into vectors, and shows which words it looks at",
}
_FOLDER = Path(__file__).parent


def checkpoint(name: str) -> str:
    r"""
    Returns the folder of an example checkpoint, for `from_pretrained` and `pipeline`.

    The weights are stored in half precision and loaded in float32, which is faster and more exact on a CPU.

    Args:
        name (`str`):
            One of `hf_vg.examples.CHECKPOINTS`.

    Returns:
        `str`: The folder.

    Example:

        >>> import hf_vg
        >>> from transformers import AutoModelForImageTextToText, AutoProcessor
        >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
        >>> model = AutoModelForImageTextToText.from_pretrained(folder)
        >>> processor = AutoProcessor.from_pretrained(folder)
        >>> model.dtype
        torch.float32
    """
    if name not in CHECKPOINTS:
        nearest = difflib.get_close_matches(str(name), CHECKPOINTS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"there is no example checkpoint {name!r}.{hint} There are: {', '.join(CHECKPOINTS)}.")
    return str(_FOLDER / "checkpoints" / name)


def scenes() -> list[dict[str, Any]]:
    r"""
    Returns the example scenes. No checkpoint was trained on them.

    Returns:
        `list[dict]`: Rows like those of [`~hf_vg.load_scenes`]. **image** is the path of a PNG. **objects** have a
        `size`, a `color`, a `shape` and a `box` of (left, top, right, bottom) in pixels. **captions** are five true
        captions. **phrases** are the noun phrases of the captions: `text`, the number of its `caption`, its `start`
        and `end` in characters, and the `objects` that it names.

    Example:

        >>> import hf_vg
        >>> scene = hf_vg.examples.scenes()[0]
        >>> phrase = scene["phrases"][0]
        >>> caption = scene["captions"][phrase["caption"]]
        >>> caption[phrase["start"] : phrase["end"]] == phrase["text"]
        True
    """
    folder = _FOLDER / "scenes"
    rows = json.loads((folder / "scenes.json").read_text(encoding="utf-8"))
    return [{**row, "image": str(folder / row["image"])} for row in rows]
