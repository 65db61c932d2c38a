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
"""Loaders, collators and samplers: from the files you have to the batches that a model takes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:  # repeated for type checkers and editors
    from .arguments import CaptionDataArguments as CaptionDataArguments
    from .arguments import CaptionerDataArguments as CaptionerDataArguments
    from .caption_pairs import CaptionPairCollator as CaptionPairCollator
    from .caption_rows import captioner_rows as captioner_rows
    from .caption_rows import grounded_encoder_rows as grounded_encoder_rows
    from .caption_rows import load_caption_data as load_caption_data
    from .caption_rows import load_caption_stream as load_caption_stream
    from .caption_rows import say_long_captions as say_long_captions
    from .caption_rows import split_name as split_name
    from .caption_rows import training_captions as training_captions
    from .caption_rows import unknown_words as unknown_words
    from .caption_rows import vse_rows as vse_rows
    from .captions import load_captions as load_captions
    from .captions import one_caption_a_row as one_caption_a_row
    from .collators import CaptionCollator as CaptionCollator
    from .collators import PairCollator as PairCollator
    from .detections import load_detections as load_detections
    from .entities import entities_of as entities_of
    from .entities import grounded_scenes as grounded_scenes
    from .entities import load_flickr30k_entities as load_flickr30k_entities
    from .feature_extraction import extract_features as extract_features
    from .feature_extraction import load_backbone as load_backbone
    from .features import FeatureCache as FeatureCache
    from .features import undecoded as undecoded
    from .formats import detect_format as detect_format
    from .glove import initialize_from_glove as initialize_from_glove
    from .images import open_image as open_image
    from .images import seen_box as seen_box
    from .loading_report import LoadingReport as LoadingReport
    from .paraphrases import load_paraphrases as load_paraphrases
    from .paraphrases import make_caption_pairs as make_caption_pairs
    from .phrases import PhraseChatCollator as PhraseChatCollator
    from .phrases import find_phrases as find_phrases
    from .phrases import grounded_captions as grounded_captions
    from .prompted_captions import PromptedCaptionCollator as PromptedCaptionCollator
    from .referring import load_referring as load_referring
    from .region_collators import CaptionPairCollatorForVGP as CaptionPairCollatorForVGP
    from .region_collators import QuestionCollator as QuestionCollator
    from .region_collators import ReferringCollator as ReferringCollator
    from .region_rows import RegionDataArguments as RegionDataArguments
    from .region_rows import load_grounded_images as load_grounded_images
    from .region_rows import phrase_rows as phrase_rows
    from .region_rows import question_rows as question_rows
    from .region_rows import referring_rows as referring_rows
    from .region_rows import region_images as region_images
    from .region_rows import rows_by_novelty as rows_by_novelty
    from .region_rows import rows_to_draw as rows_to_draw
    from .region_rows import training_texts as training_texts
    from .region_rows import vgp_rows as vgp_rows
    from .samplers import LengthBatchSampler as LengthBatchSampler
    from .scene_grammar import caption_is_true as caption_is_true
    from .scene_grammar import caption_phrases as caption_phrases
    from .scenes import load_scenes as load_scenes
    from .sentence_tasks import SENTENCE_TASKS as SENTENCE_TASKS
    from .sentence_tasks import SentenceSplit as SentenceSplit
    from .sentence_tasks import SentenceTask as SentenceTask
    from .sentence_tasks import load_sentence_task as load_sentence_task
    from .sentence_tasks import scene_phrase_task as scene_phrase_task
    from .streaming import stream_captions as stream_captions
    from .tagging import TaggedCaptionCollator as TaggedCaptionCollator
    from .tagging import tag_captions as tag_captions
    from .tagging import tag_inventory as tag_inventory
    from .tagging import tagged_rows as tagged_rows
    from .tokenizers import special_token_fields as special_token_fields
    from .tokenizers import train_word_tokenizer as train_word_tokenizer
    from .tokenizers import train_wordpiece_tokenizer as train_wordpiece_tokenizer
    from .vqa import answer_vocabulary as answer_vocabulary
    from .vqa import load_vqa as load_vqa


_MODULES = {
    "CaptionCollator": "collators",
    "PromptedCaptionCollator": "prompted_captions",
    "CaptionDataArguments": "arguments",
    "CaptionPairCollator": "caption_pairs",
    "CaptionPairCollatorForVGP": "region_collators",
    "CaptionerDataArguments": "arguments",
    "FeatureCache": "features",
    "LengthBatchSampler": "samplers",
    "LoadingReport": "loading_report",
    "PairCollator": "collators",
    "QuestionCollator": "region_collators",
    "ReferringCollator": "region_collators",
    "PhraseChatCollator": "phrases",
    "find_phrases": "phrases",
    "grounded_captions": "phrases",
    "RegionDataArguments": "region_rows",
    "SENTENCE_TASKS": "sentence_tasks",
    "SentenceSplit": "sentence_tasks",
    "SentenceTask": "sentence_tasks",
    "TaggedCaptionCollator": "tagging",
    "answer_vocabulary": "vqa",
    "caption_is_true": "scene_grammar",
    "caption_phrases": "scene_grammar",
    "captioner_rows": "caption_rows",
    "detect_format": "formats",
    "entities_of": "entities",
    "extract_features": "feature_extraction",
    "grounded_encoder_rows": "caption_rows",
    "grounded_scenes": "entities",
    "initialize_from_glove": "glove",
    "load_backbone": "feature_extraction",
    "load_caption_data": "caption_rows",
    "load_caption_stream": "caption_rows",
    "load_captions": "captions",
    "load_detections": "detections",
    "load_flickr30k_entities": "entities",
    "load_grounded_images": "region_rows",
    "load_paraphrases": "paraphrases",
    "load_referring": "referring",
    "load_scenes": "scenes",
    "load_sentence_task": "sentence_tasks",
    "load_vqa": "vqa",
    "make_caption_pairs": "paraphrases",
    "one_caption_a_row": "captions",
    "open_image": "images",
    "phrase_rows": "region_rows",
    "question_rows": "region_rows",
    "referring_rows": "region_rows",
    "region_images": "region_rows",
    "rows_by_novelty": "region_rows",
    "rows_to_draw": "region_rows",
    "say_long_captions": "caption_rows",
    "scene_phrase_task": "sentence_tasks",
    "seen_box": "images",
    "special_token_fields": "tokenizers",
    "split_name": "caption_rows",
    "stream_captions": "streaming",
    "tag_captions": "tagging",
    "tag_inventory": "tagging",
    "tagged_rows": "tagging",
    "train_word_tokenizer": "tokenizers",
    "train_wordpiece_tokenizer": "tokenizers",
    "training_captions": "caption_rows",
    "training_texts": "region_rows",
    "undecoded": "features",
    "unknown_words": "caption_rows",
    "vgp_rows": "region_rows",
    "vse_rows": "caption_rows",
}
__all__ = sorted(_MODULES)


# Importing `datasets` takes a second, so each name is imported on first use.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
