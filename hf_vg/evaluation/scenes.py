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
"""Caption and grounding metrics of scenes, where it is known whether a caption is true."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.scene_grammar import caption_is_true, caption_phrases
from .captions import caption_metrics
from .grounding import grounding_metrics


def scene_caption_metrics(scenes: Sequence[Mapping[str, Any]], captions: Sequence[str]) -> dict[str, float]:
    r"""
    Scores the captions of scenes, one per scene.

    Args:
        scenes (`Sequence[Mapping]`):
            Rows of [`load_scenes`] with `objects`, `captions` and `unseen`.
        captions (`Sequence[str]`):
            The predicted captions.

    Returns:
        `dict[str, float]`: `bleu1` to `bleu4`; `true`, the share of true captions; and the same share for scenes whose
        combinations of color and shape appear in training (`true_seen`) or do not (`true_unseen`).

    Example:

    ```python
    >>> from hf_vg.data import load_scenes
    >>> from hf_vg.evaluation import scene_caption_metrics

    >>> scenes = load_scenes(2, 1, 1)["train"]
    >>> captions = [scenes[0]["captions"][0], "four white crosses"]
    >>> scene_caption_metrics(scenes, captions)["true"]
    0.5
    ```
    """
    metrics = caption_metrics(list(captions), [scene["captions"] for scene in scenes], metrics=("bleu",))
    truth = [caption_is_true(scene, caption) for scene, caption in zip(scenes, captions, strict=True)]
    groups = {
        "true": truth,
        "true_seen": [true for true, scene in zip(truth, scenes, strict=True) if not scene["unseen"]],
        "true_unseen": [true for true, scene in zip(truth, scenes, strict=True) if scene["unseen"]],
    }
    metrics.update({name: sum(group) / len(group) for name, group in groups.items() if group})
    return metrics


def scene_grounding_metrics(
    scenes: Sequence[Mapping[str, Any]], captions: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    r"""
    Scores where a captioner looks while it writes each noun, the last word of a phrase such as "two red circles".

    Args:
        scenes (`Sequence[Mapping]`):
            Rows of [`load_scenes`] with `image` and `objects`.
        captions (`Sequence[Mapping]`):
            The output of `pipeline("image-to-text")` with `return_attention=True`, one caption per scene. Phrases that
            fit no object of the scene are left out.

    Returns:
        `dict[str, float]`: The metrics of [`grounding_metrics`].

    Example:

    ```python
    >>> import numpy as np
    >>> from PIL import Image
    >>> from hf_vg.evaluation import scene_grounding_metrics

    >>> scene = {
    ...     "image": Image.new("RGB", (64, 64)),
    ...     "objects": [{"size": "small", "color": "red", "shape": "circle", "box": [0, 0, 32, 32]}],
    ... }
    >>> attention = np.array([[0.7, 0.1], [0.1, 0.1]])
    >>> caption = {"generated_text": "a red circle", "words": ["a", "red", "circle"], "attention": [attention] * 3}
    >>> metrics = scene_grounding_metrics([scene], [caption])
    >>> metrics["pointing"], round(metrics["mass"], 3)
    (1.0, 0.7)
    ```
    """
    maps, boxes, image_sizes = [], [], []
    for scene, caption in zip(scenes, captions, strict=True):
        for phrase in caption_phrases(scene, caption["generated_text"]):
            if phrase["objects"]:
                maps.append(caption["attention"][phrase["end"] - 1])
                boxes.append([scene["objects"][index]["box"] for index in phrase["objects"]])
                image_sizes.append(scene["image"].size)
    return grounding_metrics(maps, boxes, image_sizes)
