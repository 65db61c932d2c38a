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

"""How good captions are, and how well images and sentences find each other."""

from .captions import (
    DocumentFrequencies,
    caption_metrics,
    caption_scores,
    document_frequencies,
    make_compute_metrics,
)
from .grounding import grounding_metrics, phrase_box_accuracy
from .retrieval import retrieval_metrics, retrieval_ranks
from .scenes import scene_caption_metrics, scene_grounding_metrics
from .tokenization import ptb_tokenize


__all__ = [
    "DocumentFrequencies",
    "caption_metrics",
    "caption_scores",
    "document_frequencies",
    "grounding_metrics",
    "make_compute_metrics",
    "phrase_box_accuracy",
    "ptb_tokenize",
    "retrieval_metrics",
    "retrieval_ranks",
    "scene_caption_metrics",
    "scene_grounding_metrics",
]
