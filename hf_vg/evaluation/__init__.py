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
"""How good captions are, how well images and sentences find each other, and where models look."""

from importlib import import_module
from typing import Any


_MODULES = {
    "DocumentFrequencies": "captions",
    "SENTENCE_TASKS": "sentences",
    "SentenceSplit": "sentences",
    "SentenceTask": "sentences",
    "answer_questions": "vgp",
    "bootstrap": "intervals",
    "cache_vectors": "sentence_encoders",
    "caption_intervals": "intervals",
    "caption_metrics": "captions",
    "caption_scores": "captions",
    "concatenate_encoders": "sentence_encoders",
    "document_frequencies": "captions",
    "evaluate_sentence_task": "sentences",
    "evaluate_sentences": "sentences",
    "grounding_intervals": "intervals",
    "grounding_metrics": "grounding",
    "load_sentence_task": "sentences",
    "make_compute_metrics": "captions",
    "phrase_box_accuracy": "grounding",
    "ptb_tokenize": "tokenization",
    "referring_accuracy": "referring",
    "resolve_expressions": "vgp",
    "retrieval_metrics": "retrieval",
    "retrieval_ranks": "retrieval",
    "scene_arithmetic_metrics": "retrieval",
    "scene_caption_metrics": "scenes",
    "scene_grounding_metrics": "scenes",
    "scene_phrase_task": "sentences",
    "sentence_grounding_metrics": "sentence_grounding",
    "universal_encoder": "sentence_encoders",
    "vgp_metrics": "vgp",
    "vqa_accuracy": "vqa",
    "words_with_boxes": "intervals",
}
__all__ = sorted(_MODULES)


# What one metric imports, the user of another need not wait for.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
