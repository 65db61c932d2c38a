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
"""How good captions of scenes are: by n-grams, and by whether they are true."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.scene_grammar import caption_is_true, caption_phrases
from .captions import caption_metrics
from .grounding import grounding_metrics


def scene_caption_metrics(scenes: Sequence[Mapping[str, Any]], captions: Sequence[str]) -> dict[str, float]:
    r"""
    Scores one caption a scene.

    Args:
        scenes (`Sequence[Mapping]`):
            Rows of [`load_scenes`]; of them `objects`, `captions` and `unseen` are read.
        captions (`Sequence[str]`):
            What a model wrote.

    Returns:
        `dict[str, float]`: `bleu1` to `bleu4`; `true`, the share of captions that are true of their scene; and the
        same for scenes with combinations of attributes that training showed (`true_seen`) and did not (`true_unseen`).
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
    Judges where a captioner looked while it wrote each noun, the last word of a phrase such as "two red circles".

    Args:
        scenes (`Sequence[Mapping]`):
            Rows of [`load_scenes`]; of them `image` and `objects` are read.
        captions (`Sequence[Mapping]`):
            For each the `generated_text` and the `attention` that `pipeline("image-to-text")` gives with
            `return_attention=True`. Phrases that fit nothing in their scene name no place, and are left out.

    Returns:
        `dict[str, float]`: As [`grounding_metrics`].
    """
    maps, boxes, image_sizes = [], [], []
    for scene, caption in zip(scenes, captions, strict=True):
        for phrase in caption_phrases(scene, caption["generated_text"]):
            if phrase["objects"]:
                maps.append(caption["attention"][phrase["end"] - 1])
                boxes.append([scene["objects"][index]["box"] for index in phrase["objects"]])
                image_sizes.append(scene["image"].size)
    return grounding_metrics(maps, boxes, image_sizes)
