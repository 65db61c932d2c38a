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
"""Ready-made use of models: captions for images, search with images and sentences, and loaders for any checkpoint."""

from .embedding_space import EmbeddingSpace, SentenceTransformerSpace
from .image_to_text import ImageToTextPipeline
from .loaders import (
    attention_problem,
    caption_settings,
    load_captioner,
    load_detector,
    load_sentence_encoder,
    load_space,
)
from .vector_databases import QdrantVectors, faiss_nearest
from .vector_store import VectorStore, store_folder


__all__ = [
    "ImageToTextPipeline",
    "EmbeddingSpace",
    "SentenceTransformerSpace",
    "QdrantVectors",
    "VectorStore",
    "faiss_nearest",
    "store_folder",
    "attention_problem",
    "caption_settings",
    "load_captioner",
    "load_detector",
    "load_sentence_encoder",
    "load_space",
]
