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
"""Datasets for every task, each with one schema."""

from importlib import import_module
from typing import Any


_MODULES = {
    "CaptionCollator": "collators",
    "CaptionDataArguments": "arguments",
    "CaptionPairCollator": "caption_pairs",
    "CaptionPairCollatorForVGP": "region_collators",
    "CaptionerDataArguments": "arguments",
    "FeatureCache": "features",
    "GloveReport": "glove",
    "ImageGroupSampler": "region_collators",
    "LengthBatchSampler": "samplers",
    "LoadingReport": "loading_report",
    "PairCollator": "pairs",
    "QuestionCollator": "region_collators",
    "ReferringCollator": "region_collators",
    "RegionCollator": "region_collators",
    "RegionDataArguments": "region_rows",
    "TaggedCaptionCollator": "tagging",
    "answer_scores": "vqa",
    "answer_vocabulary": "vqa",
    "atomic_write": "files",
    "box_iou": "referring",
    "caption_is_true": "scenes",
    "caption_phrases": "scenes",
    "captioner_rows": "caption_rows",
    "detect_format": "formats",
    "entities_of": "entities",
    "extract_features": "features",
    "fixed_caption_pairs": "caption_pairs",
    "grounded_encoder_rows": "caption_rows",
    "grounded_scenes": "entities",
    "image_problem": "images",
    "initialize_from_glove": "glove",
    "load_backbone": "features",
    "load_caption_data": "caption_rows",
    "load_caption_stream": "caption_rows",
    "load_caption_table": "captions",
    "load_captions": "captions",
    "load_coco_captions": "captions",
    "load_flickr": "captions",
    "load_flickr30k_entities": "entities",
    "load_glove": "glove",
    "load_grounded_images": "region_rows",
    "load_karpathy": "captions",
    "load_paraphrases": "paraphrases",
    "load_referring": "referring",
    "load_scenes": "scenes",
    "load_vqa": "vqa",
    "load_webdataset": "streaming",
    "make_caption_pairs": "paraphrases",
    "nearest_images": "paraphrases",
    "normalize_answer": "vqa",
    "one_caption_a_row": "captions",
    "open_image": "images",
    "paraphrases_by_image": "paraphrases",
    "question_rows": "region_rows",
    "readable_rows": "images",
    "referring_rows": "region_rows",
    "region_images": "region_rows",
    "rows_by_novelty": "region_rows",
    "rows_to_draw": "region_rows",
    "seen_box": "images",
    "special_token_fields": "tokenizers",
    "stream_captions": "streaming",
    "tag_captions": "tagging",
    "tag_inventory": "tagging",
    "tagged_rows": "tagging",
    "train_word_tokenizer": "tokenizers",
    "train_wordpiece_tokenizer": "tokenizers",
    "training_captions": "caption_rows",
    "training_texts": "region_rows",
    "unknown_words": "caption_rows",
    "vgp_rows": "region_rows",
    "vse_rows": "caption_rows",
}
__all__ = sorted(_MODULES)


# `datasets` takes a second to import: only who asks for a name pays for it.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
