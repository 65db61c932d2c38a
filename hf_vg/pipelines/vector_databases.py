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
"""Vectors of more images than one likes to look at one by one: in a FAISS index, or in a Qdrant database."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from uuid import NAMESPACE_URL, uuid5

import torch
from torch.nn.functional import normalize

from ..data.files import atomic_write
from .vector_store import VectorStore


# FAISS asks for so many vectors for each list that it is to learn.
VECTORS_PER_LIST = 39
FEW = 1000
POINTS_AT_A_TIME = 256


def faiss_nearest(
    store: VectorStore, query: torch.Tensor, paths: Sequence[str], top_k: int, lists_to_search: int = 32
) -> list[tuple[str, float]]:
    r"""
    Searches like [`VectorStore.nearest`], with a FAISS index that is built once, kept in the store and mapped from
    disk. The index takes a quarter of the space, and compares only some of the vectors, so that a near image may be
    missed. Fewer than 1,000 images are searched exactly.

    Args:
        store ([`VectorStore`]):
            The store with the vectors.
        query (`torch.FloatTensor` of shape `(size,)`):
            The vector to search for.
        paths (`Sequence[str]`):
            The files to search. When they change, the index is built again.
        top_k (`int`):
            The number of files to find.
        lists_to_search (`int`, *optional*, defaults to 32):
            The index keeps similar vectors in lists. This many lists are searched. More lists take longer and miss
            fewer images.

    Returns:
        `list[tuple[str, float]]`: Files and their cosines, best first.

    Example:

    ```python
    >>> from hf_vg.pipelines import faiss_nearest
    >>> faiss_nearest(store, space.text("a dog").vector, paths, top_k=3)  # doctest: +SKIP
    [('photos/31.jpg', 0.31), ('photos/7.jpg', 0.3), ('photos/12.jpg', 0.28)]
    ```
    """
    try:
        import faiss
    except ImportError as error:
        raise ValueError("A FAISS index needs faiss: pip install hf-vg[faiss].") from error
    if len(paths) < FEW:
        return store.nearest(query, paths, top_k)
    file = store.folder / "faiss" / f"{store.fingerprint(paths)}.faiss"
    names = file.with_suffix(".json")
    if not names.exists():
        _build_faiss(store, paths, file, names)
    index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP)
    lists = faiss.extract_index_ivf(index)
    lists.nprobe = min(lists_to_search, lists.nlist)
    scores, numbers = index.search(normalize(query[None], dim=-1).numpy(), top_k)
    of_number = json.loads(names.read_text())
    return [(of_number[n], float(score)) for n, score in zip(numbers[0], scores[0], strict=True) if n >= 0]


def _build_faiss(store: VectorStore, paths: Sequence[str], file: os.PathLike, names: os.PathLike) -> None:
    import faiss

    of_number = [path for some, _ in store.parts(paths) for path in some]
    lists = max(1, min(int(4 * math.sqrt(len(of_number))), len(of_number) // VECTORS_PER_LIST))
    # A share of every part, so that the lists fit all of them.
    share = max(1, len(of_number) // (2 * VECTORS_PER_LIST * lists))
    sample = torch.cat([vectors[::share] for _, vectors in store.parts(paths)])
    index = faiss.index_factory(sample.shape[1], f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(sample.numpy())
    for _, vectors in store.parts(paths):
        index.add(vectors.numpy())
    with atomic_write(file) as temporary:
        faiss.write_index(index, str(temporary))
    with atomic_write(names) as temporary:  # last: when it is there, the index is
        temporary.write_text(json.dumps(of_number))


class QdrantVectors:
    r"""
    The vectors of a [`VectorStore`] in a Qdrant database, which can run on other machines.

    Args:
        location (`str`):
            The address of a server, such as `http://localhost:6333`, or a folder for Qdrant's embedded mode.
        store ([`VectorStore`]):
            The store with the vectors. The collection has the name of its folder, which differs between models.

    Example:

    ```python
    >>> from hf_vg.pipelines import QdrantVectors
    >>> database = QdrantVectors("http://localhost:6333", store)  # doctest: +SKIP
    >>> database.nearest(space.text("a dog").vector, paths, top_k=1)  # doctest: +SKIP
    [('photos/31.jpg', 0.31)]
    ```
    """

    def __init__(self, location: str, store: VectorStore):
        try:
            from qdrant_client import QdrantClient
        except ImportError as error:
            raise ValueError("A Qdrant database needs its client: pip install hf-vg[qdrant].") from error
        is_server = location.startswith(("http://", "https://"))
        self.client = QdrantClient(url=location) if is_server else QdrantClient(path=location)
        self.store = store
        self.collection = store.folder.name

    def update(self, paths: Iterable[str]) -> int:
        """Sends the vectors that are new, or whose files changed. Returns how many were sent."""
        from qdrant_client.models import Distance, PointStruct, VectorParams

        sent = 0
        for names, vectors in _batches(self.store.parts(paths)):
            if not self.client.collection_exists(self.collection):
                params = VectorParams(size=vectors.shape[1], distance=Distance.COSINE)
                self.client.create_collection(self.collection, vectors_config=params)
            points = {}
            for name, vector in zip(names, vectors, strict=True):
                path, stamp = os.path.abspath(name), self.store.stamp(name)
                payload = {"path": path, "folder": os.path.dirname(path), "stamp": stamp}
                points[_point_id(path)] = PointStruct(id=_point_id(path), vector=vector.tolist(), payload=payload)
            there = self.client.retrieve(self.collection, list(points), with_payload=["stamp"])
            for record in there:
                if (record.payload or {}).get("stamp") == (points[str(record.id)].payload or {})["stamp"]:
                    del points[str(record.id)]
            if points:
                self.client.upsert(self.collection, list(points.values()))
                sent += len(points)
        return sent

    def nearest(self, query: torch.Tensor, paths: Sequence[str], top_k: int) -> list[tuple[str, float]]:
        """Searches like [`VectorStore.nearest`], in the database. New vectors are sent first."""
        from qdrant_client.models import FieldCondition, Filter, MatchAny

        self.update(paths)
        of_path = {os.path.abspath(path): path for path in paths}
        folders = sorted({os.path.dirname(path) for path in of_path})
        among = Filter(must=[FieldCondition(key="folder", match=MatchAny(any=folders))])
        hits: list[tuple[str, float]] = []
        offset = 0
        while len(hits) < top_k:
            found = self.client.query_points(
                self.collection,
                query=query.tolist(),
                query_filter=among,
                limit=max(top_k, POINTS_AT_A_TIME),
                offset=offset,
                with_payload=["path"],
            ).points
            # The database may hold files of these folders that were deleted, or that are not in `paths`.
            hits += [(of_path[hit.payload["path"]], hit.score) for hit in found if hit.payload["path"] in of_path]
            offset += len(found)
            if len(found) < max(top_k, POINTS_AT_A_TIME):
                break
        return hits[:top_k]


def _point_id(path: str) -> str:
    return str(uuid5(NAMESPACE_URL, path))


def _batches(parts: Iterable[tuple[list[str], torch.Tensor]]) -> Iterator[tuple[list[str], torch.Tensor]]:
    for names, vectors in parts:
        for start in range(0, len(names), POINTS_AT_A_TIME):
            yield names[start : start + POINTS_AT_A_TIME], vectors[start : start + POINTS_AT_A_TIME]
