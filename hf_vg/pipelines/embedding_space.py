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
"""One space for images and sentences, of any model: encode, rank, and search with sums of images and words."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import normalize
from transformers import AutoModel, AutoProcessor, PreTrainedModel, ProcessorMixin
from transformers.utils import logging

from ..data.images import open_image


if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer


# The most numbers in memory at a time: scores, or candidates that are converted to single precision.
_NUMBERS_AT_A_TIME = 1 << 24
_QUERIES_AT_A_TIME = 1024
_GROUP = 64  # candidates whose best score is compared first
# These models were trained with sentences that are all padded to 64 tokens.
_PADDED_TO_64 = ("siglip", "siglip2", "align")


class EmbeddingQuery:
    r"""
    A vector to which you can add images and words, and from which you can subtract them, as in
    `space.image(photo) - "blue" + "red"`.

    Args:
        space ([`EmbeddingSpace`]):
            Encodes what is added.
        vector (`torch.FloatTensor` of shape `(size,)`):
            The sum so far.

    Example:

    ```python
    >>> from pathlib import Path
    >>> import hf_vg
    >>> from hf_vg.pipelines import load_space
    >>> from hf_vg.training import tiny_space
    >>> space = load_space(tiny_space(Path("tiny_space")))
    >>> query = space.image(hf_vg.examples.scenes()[0]["image"]) - "blue" + "red"
    >>> query.vector.dim()
    1
    ```
    """

    def __init__(self, space: "EmbeddingSpace", vector: torch.Tensor):
        self.space = space
        self.vector = vector

    def __add__(self, other: "str | torch.Tensor | EmbeddingQuery") -> "EmbeddingQuery":
        return EmbeddingQuery(self.space, self.vector + self.space.vector(other))

    def __sub__(self, other: "str | torch.Tensor | EmbeddingQuery") -> "EmbeddingQuery":
        return EmbeddingQuery(self.space, self.vector - self.space.vector(other))


class EmbeddingSpace:
    r"""
    One space for images and sentences: that of [`VseScnlmModel`], CLIP, SigLIP, ALIGN, or any other model of
    transformers that has `get_image_features` and `get_text_features`.

    Sums of vectors of a [`VseScnlmModel`] are meaningful only with `sentence_encoder="bow"`, where the vector of a
    sentence is itself a sum over its words.

    Args:
        model ([`PreTrainedModel`]):
            The model.
        processor ([`ProcessorMixin`]):
            The model's processor.

    Example:

    ```python
    >>> from pathlib import Path
    >>> import hf_vg
    >>> from hf_vg.training import tiny_space
    >>> space = hf_vg.EmbeddingSpace.from_pretrained(tiny_space(Path("tiny_space")))
    >>> scenes = [scene["image"] for scene in hf_vg.examples.scenes()]
    >>> vectors = space.encode_images(scenes)
    >>> len(space.search("a red circle", vectors, top_k=2))
    2
    >>> space.search(space.image(scenes[1]) - "blue" + "blue", vectors, top_k=1)[0]["index"]
    1
    ```
    """

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin):
        self.model = model.eval()
        self.processor = processor
        self.device = model.device

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, **kwargs: Any) -> "EmbeddingSpace":
        """Loads a model and its processor. `kwargs` are those of `AutoModel.from_pretrained`."""
        trust_remote_code = kwargs.pop("trust_remote_code", False)
        model = AutoModel.from_pretrained(name_or_path, trust_remote_code=trust_remote_code, **kwargs)
        return cls(model, AutoProcessor.from_pretrained(name_or_path, trust_remote_code=trust_remote_code))

    def encode_images(self, images: Sequence[Any] | torch.Tensor, batch_size: int = 32) -> torch.Tensor:
        r"""
        Encodes images to vectors of unit length.

        Args:
            images (`Sequence` or `torch.FloatTensor` of shape `(images, feature_size)`):
                Images, paths or addresses. A column of a dataset is decoded batch by batch. A matrix holds the
                features that a [`VseScnlmModel`] would compute from the images.
            batch_size (`int`, *optional*, defaults to 32):
                Number of images to encode at a time.

        Returns:
            `torch.FloatTensor` of shape `(images, size)`, on CPU.
        """
        if isinstance(images, (str, bytes)):
            raise TypeError(f"Give a list of images, not a single one: {images!r:.80}.")
        return _in_batches(self._image_vectors, images, batch_size, "images")

    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> torch.Tensor:
        r"""
        Encodes sentences, or single words, to vectors of unit length.

        Args:
            texts (`Sequence[str]`):
                The sentences.
            batch_size (`int`, *optional*, defaults to 256):
                Number of sentences to encode at a time. Those of similar lengths are encoded together.

        Returns:
            `torch.FloatTensor` of shape `(sentences, size)`, on CPU.
        """
        if isinstance(texts, str):
            raise TypeError(f"Give a list of sentences, not a single one: {texts!r:.80}.")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"Sentence {index} must be a string, got {type(text).__name__}: {text!r:.80}.")
        order = sorted(range(len(texts)), key=lambda index: len(texts[index].split()))
        vectors = _in_batches(self._text_vectors, [texts[index] for index in order], batch_size, "sentences")
        return vectors[torch.tensor(order, dtype=torch.long).argsort()]

    def _image_vectors(self, batch: Sequence[Any] | torch.Tensor) -> torch.Tensor:
        if isinstance(batch, torch.Tensor):
            return self.model.get_image_features(image_features=batch.to(self.device)).pooler_output
        inputs = self.processor(images=[open_image(image) for image in batch], return_tensors="pt")
        return _pooled(self.model.get_image_features(**inputs.to(self.device, self.model.dtype)))

    def _text_vectors(self, batch: Sequence[str]) -> torch.Tensor:
        padding: dict[str, Any] = {"padding": True}
        if self.model.config.model_type in _PADDED_TO_64:
            padding = {"padding": "max_length", "max_length": 64}
        inputs = self.processor(text=list(batch), truncation=True, return_tensors="pt", **padding)
        return _pooled(self.model.get_text_features(**inputs.to(self.device)))

    def settings(self) -> str:
        """The settings of the image processor, as text."""
        return self.processor.image_processor.to_json_string()

    def image(self, image: Any) -> EmbeddingQuery:
        """Makes a query from an image, a path or an address. You can add words to it."""
        return EmbeddingQuery(self, self.encode_images([image])[0])

    def text(self, text: str) -> EmbeddingQuery:
        """Makes a query from a sentence or a word. You can add images and words to it."""
        return EmbeddingQuery(self, self.encode_texts([text])[0])

    def vector(self, query: str | torch.Tensor | EmbeddingQuery) -> torch.Tensor:
        """Returns the vector of a query or a text, or the vector itself. A string is always text, never a path."""
        if isinstance(query, EmbeddingQuery):
            return query.vector
        if isinstance(query, str):
            return self.text(query).vector
        if isinstance(query, torch.Tensor):
            return query.cpu().float()
        raise TypeError(
            f"A query must be a text, a vector, or a result of `image` or `text`, got a {type(query).__name__}."
        )

    def rank(
        self,
        query: str | torch.Tensor | EmbeddingQuery,
        candidates: "torch.Tensor | np.ndarray | Dataset",
        top_k: int = 10,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        r"""
        Finds the best candidates for one query or for millions. All candidates are compared, in chunks, on the device
        of the model. The matrix of all scores is never in memory.

        Args:
            query (`str`, [`EmbeddingQuery`] or `torch.Tensor` of shape `(queries, size)` or `(size,)`):
                What to search for. Vectors are scaled to unit length.
            candidates (`torch.Tensor` or `np.ndarray` of shape `(candidates, size)`, or `datasets.Dataset`):
                Encoded images or sentences. An array can be a `np.memmap`. For more data than fits one machine, or
                for a faster approximate search, give a dataset with a FAISS index of inner products
                (`dataset.add_faiss_index(column, metric_type=faiss.METRIC_INNER_PRODUCT)`).
            top_k (`int`, *optional*, defaults to 10):
                The number of candidates to return.

        Returns:
            `tuple(torch.FloatTensor, torch.LongTensor)`: Scores and indices of the best candidates, best first, of
            shape `(queries, top_k)`, or `(top_k,)` for a single query.
        """
        queries = self.vector(query)
        single = queries.dim() == 1
        queries = normalize(queries.view(-1, queries.shape[-1]), dim=-1)
        top_k = min(top_k, len(candidates))
        if hasattr(candidates, "list_indexes"):
            scores, indices = _ask_index(queries, candidates, top_k)
        else:
            if candidates.shape[1:] != queries.shape[1:]:
                raise ValueError(
                    f"`candidates` must be (candidates, {queries.shape[1]}), got {tuple(candidates.shape)}."
                )
            scores, indices = nearest(queries, lambda: [candidates], top_k, self.device)
        return (scores[0], indices[0]) if single else (scores, indices)

    def search(
        self,
        query: str | torch.Tensor | EmbeddingQuery,
        candidates: "torch.Tensor | np.ndarray | Dataset",
        top_k: int = 5,
    ) -> list[dict[str, Any]]:
        """Searches like [`rank`] for one query. Returns a list of `{"index": ..., "score": ...}`, best first."""
        scores, indices = self.rank(query, candidates, top_k)
        if scores.dim() != 1:
            raise ValueError("`search` takes one query; `rank` takes several.")
        return [
            {"index": index, "score": score} for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
        ]


class SentenceTransformerSpace(EmbeddingSpace):
    r"""
    The space of a model of sentence-transformers that embeds images as well as text.

    Args:
        model ([`~sentence_transformers.SentenceTransformer`]):
            The model.

    Example:

    ```python
    >>> from hf_vg.pipelines import SentenceTransformerSpace
    >>> space = SentenceTransformerSpace.from_pretrained("sentence-transformers/clip-ViT-B-32")  # doctest: +SKIP
    >>> space.search("a dog", space.encode_images(paths), top_k=1)  # doctest: +SKIP
    [{'index': 31, 'score': 0.31}]
    ```
    """

    def __init__(self, model: "SentenceTransformer"):
        if not model.supports("image"):
            raise ValueError("this model of sentence-transformers embeds text only, not images.")
        self.model = model.eval()
        self.device = model.device

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, **kwargs: Any) -> "SentenceTransformerSpace":
        """Loads a model. `kwargs` are those of `SentenceTransformer`."""
        from sentence_transformers import SentenceTransformer

        return cls(SentenceTransformer(str(name_or_path), **kwargs))

    def settings(self) -> str:
        """The modules of the model, as text."""
        return repr(self.model)

    def _image_vectors(self, batch: Sequence[Any] | torch.Tensor) -> torch.Tensor:
        return self._encode([open_image(image) for image in batch])

    def _text_vectors(self, batch: Sequence[str]) -> torch.Tensor:
        return self._encode(list(batch))

    def _encode(self, batch: list) -> torch.Tensor:
        return self.model.encode(batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False)


def _pooled(outputs: Any) -> torch.Tensor:
    vectors = outputs.pooler_output
    return vectors[:, 0] if vectors.dim() == 3 else vectors  # FLAVA has all tokens here, and compares the first


@torch.no_grad()
def _in_batches(
    encode: Callable[[Any], torch.Tensor], items: Sequence[Any] | torch.Tensor, batch_size: int, what: str
) -> torch.Tensor:
    vectors = []
    starts = range(0, len(items), batch_size)
    for start in logging.tqdm(starts, desc=f"Encoding {what}", disable=len(starts) < 10):
        vectors.append(normalize(encode(items[start : start + batch_size]).float(), dim=-1).cpu())
    return torch.cat(vectors) if vectors else torch.empty(0, 0)


@torch.no_grad()
def nearest(
    queries: torch.Tensor,
    parts: Callable[[], Iterable[torch.Tensor | np.ndarray]],
    top_k: int,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Finds the candidates with the highest inner products. Every candidate is compared. One with a NaN is found last.

    Args:
        queries (`torch.FloatTensor` of shape `(queries, size)`):
            The vectors to search for.
        parts (`Callable`):
            Returns the candidates in parts of shape `(candidates, size)`. It is called once per 1,024 queries.
        top_k (`int`):
            The number of candidates to find per query. If there are fewer candidates, all are returned.
        device (`torch.device`, *optional*, defaults to `"cpu"`):
            The device to compute on.

    Returns:
        `tuple(torch.FloatTensor, torch.LongTensor)`: Scores and numbers of the best candidates, best first, of shape
        `(queries, top_k)`. Numbers count on from one part to the next.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.pipelines.embedding_space import nearest
    >>> scores, numbers = nearest(torch.eye(2), lambda: [torch.eye(2)[:1], torch.eye(2)[1:]], top_k=1)
    >>> numbers.tolist()
    [[0], [1]]
    ```
    """
    queries = queries.float()
    found = [_nearest(some.to(device), parts(), top_k) for some in queries.split(_QUERIES_AT_A_TIME)]
    scores, numbers = zip(*found, strict=True)
    return torch.cat(scores).cpu(), torch.cat(numbers).cpu()


@torch.no_grad()
def _nearest(
    queries: torch.Tensor, parts: Iterable[torch.Tensor | np.ndarray], top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    best = queries.new_empty(len(queries), 0)
    numbers = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    if not len(queries):
        return best, numbers
    size = max(1, _NUMBERS_AT_A_TIME // max(queries.shape))
    rows_at_a_time = size
    if queries.device.type == "cpu":  # a processor multiplies fastest what its cache holds
        rows_at_a_time = max(4 * len(queries), (1 << 18) // len(queries))
    columns = queries.T.contiguous()
    scores = queries.new_empty(0, len(queries))  # one piece of memory for all slices
    for start, candidates in _slices(parts, size):
        groups = -(-len(candidates) // _GROUP)
        scores.resize_(groups * _GROUP, len(queries))[len(candidates) :] = -torch.inf
        for first in range(0, len(candidates), rows_at_a_time):
            some = candidates[first : first + rows_at_a_time].to(queries)
            torch.mm(some, columns, out=scores[first : first + len(some)])
        if groups > top_k:
            values, rows = _highest(scores, top_k, best[:, -1] if best.shape[1] == top_k else None)
        else:
            few = scores[: len(candidates)].nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            values, rows = few.T.topk(min(top_k, len(candidates)), dim=1)
        best, numbers = torch.cat([best, values], dim=1), torch.cat([numbers, rows + start], dim=1)
        best, kept = best.topk(min(top_k, best.shape[1]), dim=1)
        numbers = numbers.gather(1, kept)
    return best, numbers


def _highest(scores: torch.Tensor, top_k: int, beaten: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The highest scores of each column and their rows, `(columns, most found)`, filled up with minus infinity. Scores
    that are not above `beaten`, one number per column, may be left out. Groups of rows are searched only if their
    maximum can be one of the highest scores, or is hidden by a NaN.
    """
    maxima = scores.unflatten(0, (-1, _GROUP)).amax(dim=1)
    if beaten is None:  # every maximum is a score, so that the highest ones are a bound
        bounds = maxima.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        beaten = bounds.topk(top_k, dim=0).values[-1].nextafter(maxima.new_tensor(-torch.inf))
    group, columns = (~(maxima <= beaten)).T.nonzero(as_tuple=True)[::-1]  # in the order of columns
    rows = group[:, None] * _GROUP + torch.arange(_GROUP, device=scores.device)
    values = scores[rows, columns[:, None]]  # (groups that are searched, rows of a group)
    is_high = values > beaten[columns, None]
    columns = columns.repeat_interleave(is_high.sum(dim=1))
    counts = columns.bincount(minlength=len(beaten))
    places = torch.arange(len(columns), device=scores.device) - (counts.cumsum(0) - counts)[columns]
    shape = (len(beaten), int(counts.max()))
    best, best_rows = scores.new_full(shape, -torch.inf), rows.new_zeros(shape)
    best[columns, places], best_rows[columns, places] = values[is_high], rows[is_high]
    return best, best_rows


def _slices(parts: Iterable[torch.Tensor | np.ndarray], size: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Slices of at most `size` candidates, each with the number of its first one."""
    start = 0
    for part in parts:
        for first in range(0, len(part), size):
            yield start + first, torch.as_tensor(part[first : first + size])
        start += len(part)


def _ask_index(queries: torch.Tensor, dataset: "Dataset", top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    names = dataset.list_indexes()
    if len(names) != 1:
        raise ValueError(f"The dataset must have one index, made with `add_faiss_index`, and has {names}.")
    found = dataset.search_batch(names[0], queries.numpy(), top_k)
    return torch.as_tensor(found.total_scores), torch.as_tensor(found.total_indices)


__all__ = ["EmbeddingQuery", "EmbeddingSpace", "SentenceTransformerSpace", "nearest"]
