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

"""Where the words of a model look: recording attention, maps, explainers, figures and tests of maps."""

from .bertviz import bertviz_arguments, location_names
from .candidates import candidate_examples, caption_candidates
from .deletion import deletion_summary, deletion_test
from .explainers import EXPLAINERS, explain_words
from .families import Family, Layout, family_of, tiles_of
from .figures import plot_attention, plot_candidates, plot_deletion, plot_search
from .html import explanation_html, save_html
from .recording import AttentionRecord, record_attention
from .regions import draw_regions, find_regions, ground_phrase, load_region_model, regions_of_words
from .rollout import attention_rollout, plot_regions, region_examples, word_to_region_attention
from .sentence_attention import attention_of_sentences, plot_sentence_attention
from .targets import targets_of_boxes
from .word_maps import caption_examples, word_maps


__all__ = [
    "AttentionRecord",
    "EXPLAINERS",
    "Family",
    "Layout",
    "attention_of_sentences",
    "attention_rollout",
    "bertviz_arguments",
    "candidate_examples",
    "caption_candidates",
    "caption_examples",
    "deletion_summary",
    "deletion_test",
    "draw_regions",
    "explain_words",
    "explanation_html",
    "family_of",
    "find_regions",
    "ground_phrase",
    "load_region_model",
    "location_names",
    "plot_attention",
    "plot_candidates",
    "plot_deletion",
    "plot_regions",
    "plot_search",
    "plot_sentence_attention",
    "record_attention",
    "region_examples",
    "regions_of_words",
    "save_html",
    "targets_of_boxes",
    "tiles_of",
    "word_maps",
    "word_to_region_attention",
]
