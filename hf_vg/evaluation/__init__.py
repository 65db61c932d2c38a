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
"""Metrics of captions, grounding, retrieval, sentence vectors, questions and referring expressions."""

from ..resampling import bootstrap
from .captions import DocumentFrequencies, caption_metrics, caption_scores, document_frequencies, make_compute_metrics
from .grounding import grounding_metrics, phrase_box_accuracy
from .intervals import caption_intervals, grounding_intervals
from .model_grounding import evaluate_grounding
from .referring import referring_accuracy
from .regions import answer_questions, resolve_expressions, vgp_metrics
from .retrieval import photo_arithmetic, retrieval_metrics, scene_arithmetic_metrics
from .rewards import bleu_reward, cider_reward, meteor_reward, pointing_reward
from .scenes import scene_caption_metrics, scene_grounding_metrics
from .sentence_encoders import cache_vectors, concatenate_encoders, universal_encoder
from .sentence_grounding import sentence_grounding_metrics
from .sentences import evaluate_sentence_task, evaluate_sentences
from .tokenization import ptb_tokenize
from .vqa import vqa_accuracy


__all__ = [
    "DocumentFrequencies",
    "answer_questions",
    "bleu_reward",
    "bootstrap",
    "cache_vectors",
    "caption_intervals",
    "caption_metrics",
    "caption_scores",
    "cider_reward",
    "concatenate_encoders",
    "document_frequencies",
    "evaluate_grounding",
    "evaluate_sentence_task",
    "evaluate_sentences",
    "grounding_intervals",
    "grounding_metrics",
    "make_compute_metrics",
    "meteor_reward",
    "photo_arithmetic",
    "phrase_box_accuracy",
    "pointing_reward",
    "ptb_tokenize",
    "referring_accuracy",
    "resolve_expressions",
    "retrieval_metrics",
    "scene_arithmetic_metrics",
    "scene_caption_metrics",
    "scene_grounding_metrics",
    "sentence_grounding_metrics",
    "universal_encoder",
    "vgp_metrics",
    "vqa_accuracy",
]
