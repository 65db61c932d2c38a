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
"""The joint space of VseScnlm for people: encode, rank, and search with sums of images and words."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModel, AutoProcessor, PreTrainedModel, ProcessorMixin
from transformers.utils import logging

from ..data.images import open_image


if TYPE_CHECKING:
    from datasets import Dataset


# Scores that are in memory at a time.
_SCORES_AT_A_TIME = 1 << 24


class VseScnlmQuery:
    r"""
    A vector of the space that images and words are added to and taken from: `space.image(photo) - "blue" + "red"`.

    Args:
        space ([`VseScnlmSpace`]):
            Encodes what is added.
        vector (`torch.FloatTensor` of shape `(hidden_size,)`):
            The sum so far.
    """

    def __init__(self, space: "VseScnlmSpace", vector: torch.Tensor):
        self.space = space
        self.vector = vector

    def __add__(self, other: "str | torch.Tensor | VseScnlmQuery") -> "VseScnlmQuery":
        return VseScnlmQuery(self.space, self.vector + self.space.vector(other))

    def __sub__(self, other: "str | torch.Tensor | VseScnlmQuery") -> "VseScnlmQuery":
        return VseScnlmQuery(self.space, self.vector - self.space.vector(other))


class VseScnlmSpace:
    r"""
    A trained [`VseScnlmModel`] with its processor.

    ```python
    >>> space = VseScnlmSpace.from_pretrained("me/vse-flickr8k")
    >>> photos = space.encode_images(paths)
    >>> space.search("a dog runs through the grass", photos)
    [{'index': 31, 'score': 0.61}, ...]
    >>> space.search(space.image("car.jpg") - "blue" + "red", photos)
    ```

    Sums of vectors mean something with `sentence_encoder="bow"` only, where a sentence is a sum itself.

    Args:
        model ([`VseScnlmModel`]):
            The space.
        processor ([`VseScnlmProcessor`]):
            Makes the model's inputs from images and text.
    """

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin):
        self.model = model.eval()
        self.processor = processor

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, **kwargs: Any) -> "VseScnlmSpace":
        """Loads a checkpoint of the space or of the language model on it. `kwargs` are those of `AutoModel`."""
        return cls(AutoModel.from_pretrained(name_or_path, **kwargs), AutoProcessor.from_pretrained(name_or_path))

    @torch.no_grad()
    def encode_images(self, images: Sequence[Any] | torch.Tensor, batch_size: int = 32) -> torch.Tensor:
        r"""
        Encodes images to vectors of unit length.

        Args:
            images (`Sequence` or `torch.FloatTensor` of shape `(images, feature_size)`):
                Images, paths or addresses; a column of a dataset is decoded batch by batch. A matrix holds features
                that were computed before.
            batch_size (`int`, *optional*, defaults to 32):
                Images at a time.

        Returns:
            `torch.FloatTensor` of shape `(images, hidden_size)`, on CPU.
        """

        def encode(batch: Any) -> Any:
            if isinstance(batch, torch.Tensor):
                return self.model.get_image_features(image_features=batch.to(self.model.device))
            pixels = self.processor(images=[open_image(image) for image in batch], return_tensors="pt")
            return self.model.get_image_features(pixels["pixel_values"].to(self.model.device, self.model.dtype))

        if isinstance(images, (str, bytes)):
            raise TypeError(f"Give a list of images, not a single one: {images!r:.80}.")
        return self._encode(encode, images, batch_size, "images")

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> torch.Tensor:
        r"""
        Encodes sentences, or single words, to vectors of unit length.

        Args:
            texts (`Sequence[str]`):
                The sentences.
            batch_size (`int`, *optional*, defaults to 256):
                Number of sentences to encode at a time. Those of near lengths are encoded together.

        Returns:
            `torch.FloatTensor` of shape `(sentences, hidden_size)`, on CPU.
        """

        def encode(batch: Any) -> Any:
            return self.model.get_text_features(
                **self.processor(text=list(batch), return_tensors="pt").to(self.model.device)
            )

        if isinstance(texts, str):
            raise TypeError(f"Give a list of sentences, not a single one: {texts!r:.80}.")
        order = sorted(range(len(texts)), key=lambda index: len(texts[index].split()))
        vectors = self._encode(encode, [texts[index] for index in order], batch_size, "sentences")
        return vectors[torch.tensor(order, dtype=torch.long).argsort()]

    def _encode(
        self, encode: Callable[[Any], Any], items: Sequence[Any] | torch.Tensor, batch_size: int, what: str
    ) -> torch.Tensor:
        vectors = torch.empty(len(items), self.model.config.hidden_size)
        starts = range(0, len(items), batch_size)
        for start in logging.tqdm(starts, desc=f"Encoding {what}", disable=len(starts) < 10):
            vectors[start : start + batch_size] = encode(items[start : start + batch_size]).pooler_output
        return vectors

    def image(self, image: Any) -> VseScnlmQuery:
        """An image, a path or an address to search with, and to add words to."""
        return VseScnlmQuery(self, self.encode_images([image])[0])

    def text(self, text: str) -> VseScnlmQuery:
        """A sentence or a word to search with, and to add images and words to."""
        return VseScnlmQuery(self, self.encode_texts([text])[0])

    def vector(self, query: str | torch.Tensor | VseScnlmQuery) -> torch.Tensor:
        """The vector of a query, of a text, or a vector itself. Text is text, and never the path of an image."""
        if isinstance(query, VseScnlmQuery):
            return query.vector
        if isinstance(query, str):
            return self.text(query).vector
        if isinstance(query, torch.Tensor):
            return query.cpu().float()
        raise TypeError(
            f"A query is a text, a vector, or made with `image` or `text`, and not a {type(query).__name__}."
        )

    @torch.no_grad()
    def rank(
        self,
        query: str | torch.Tensor | VseScnlmQuery,
        candidates: "torch.Tensor | np.ndarray | Dataset",
        top_k: int = 10,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        r"""
        The best of any number of candidates for one query or for millions. All candidates are looked at, a part at a
        time, on the device of the model; the matrix of all scores is never in memory.

        Args:
            query (`str`, [`VseScnlmQuery`] or `torch.Tensor` of shape `(queries, hidden_size)` or `(hidden_size,)`):
                What to look for. It is scaled to unit length.
            candidates (`torch.Tensor` or `np.ndarray` of shape `(candidates, hidden_size)`, or `datasets.Dataset`):
                Encoded images or sentences. An array may be a `np.memmap`. For more than one machine holds,
                or when a good guess in less time is enough, give a dataset with a FAISS index of inner products
                (`dataset.add_faiss_index(column, metric_type=faiss.METRIC_INNER_PRODUCT)`).
            top_k (`int`, *optional*, defaults to 10):
                How many to return, at most all.

        Returns:
            `tuple(torch.FloatTensor, torch.LongTensor)`: Scores and places of the best, best first, of shape
            `(queries, top_k)`, or `(top_k,)` for a single query.
        """
        queries = self.vector(query)
        single = queries.dim() == 1
        queries = torch.nn.functional.normalize(queries.view(-1, queries.shape[-1]), dim=-1)
        top_k = min(top_k, len(candidates))
        if hasattr(candidates, "list_indexes"):
            scores, indices = self._ask_index(queries, candidates, top_k)
        else:
            if candidates.shape[1:] != queries.shape[1:]:
                raise ValueError(
                    f"`candidates` must be (candidates, {queries.shape[1]}), got {tuple(candidates.shape)}."
                )
            parts = [self._best(part, candidates, top_k) for part in queries.split(1024)]
            scores, indices = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return (scores[0], indices[0]) if single else (scores, indices)

    def _best(
        self, queries: torch.Tensor, candidates: torch.Tensor | np.ndarray, top_k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.model.device
        queries = queries.to(device)
        scores = torch.empty(len(queries), 0, device=device)
        indices = torch.empty(len(queries), 0, dtype=torch.long, device=device)
        step = max(1, _SCORES_AT_A_TIME // max(len(queries), queries.shape[1]))
        for start in range(0, len(candidates), step):
            part = torch.as_tensor(candidates[start : start + step]).to(device, torch.float32)
            best = (queries @ part.T).topk(min(top_k, len(part)), dim=1)
            scores, indices = torch.cat([scores, best.values], 1), torch.cat([indices, best.indices + start], 1)
            scores, kept = scores.topk(min(top_k, scores.shape[1]), dim=1)
            indices = indices.gather(1, kept)
        return scores.cpu(), indices.cpu()

    def _ask_index(self, queries: torch.Tensor, dataset: "Dataset", top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        names = dataset.list_indexes()
        if len(names) != 1:
            raise ValueError(f"The dataset must have one index, made with `add_faiss_index`, and has {names}.")
        found = dataset.search_batch(names[0], queries.numpy(), top_k)
        return torch.as_tensor(found.total_scores), torch.as_tensor(found.total_indices)

    def search(
        self,
        query: str | torch.Tensor | VseScnlmQuery,
        candidates: "torch.Tensor | np.ndarray | Dataset",
        top_k: int = 5,
    ) -> list[dict[str, Any]]:
        """Like [`rank`], for one query: a list of `{"index": ..., "score": ...}`, best first."""
        scores, indices = self.rank(query, candidates, top_k)
        if scores.dim() != 1:
            raise ValueError("`search` takes one query; `rank` takes several.")
        return [
            {"index": index, "score": score} for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
        ]


__all__ = ["VseScnlmQuery", "VseScnlmSpace"]
