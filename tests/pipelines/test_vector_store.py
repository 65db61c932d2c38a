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
"""Vectors of image files on disk, and the databases that may hold them."""

import importlib.util
import os

import pytest
import torch
from torch.nn.functional import normalize

from hf_vg.pipelines import (
    EmbeddingSpace,
    QdrantVectors,
    VectorStore,
    faiss_nearest,
    store_folder,
    vector_databases,
    vector_store,
)
from tests.common import random_images
from tests.pipelines.dual_encoders import dual_encoder


def make_files(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"{number}.png") for number in range(count)]
    for path in paths:
        with open(path, "w") as file:
            file.write(path)
    return paths


def fill(store, paths, size=8, seed=0):
    vectors = normalize(torch.randn(len(paths), size, generator=torch.Generator().manual_seed(seed)))
    for path, vector in zip(paths, vectors, strict=True):
        store.add(path, vector)
    store.save()
    return vectors


def expected_hits(paths, vectors, query, top_k):
    scores = vectors @ normalize(query, dim=0)
    best = scores.argsort(descending=True)[:top_k].tolist()
    return [(paths[place], pytest.approx(scores[place].item(), abs=1e-5)) for place in best]


class TestVectorStore:
    def test_finds_what_another_program_wrote(self, tmp_path, monkeypatch):
        monkeypatch.setattr(vector_store, "VECTORS_PER_FILE", 3)
        paths = make_files(tmp_path / "a", 7) + make_files(tmp_path / "b", 4)
        store = VectorStore(tmp_path / "store")
        assert store.missing(paths) == paths
        vectors = fill(store, paths)
        query = torch.randn(8)
        for reader in (store, VectorStore(tmp_path / "store")):
            assert reader.missing(paths) == []
            assert reader.nearest(query, paths, 5) == expected_hits(paths, vectors, query, 5)
            some = paths[5:9]  # of two folders
            assert reader.nearest(query, some, 10) == expected_hits(some, vectors[5:9], query, 10)

    def test_a_changed_file_is_encoded_again(self, tmp_path):
        paths = make_files(tmp_path / "photos", 5)
        store = VectorStore(tmp_path / "store")
        vectors = fill(store, paths)
        with open(paths[2], "a") as file:
            file.write("changed")
        os.utime(paths[3], ns=(1, 1))
        for reader in (store, VectorStore(tmp_path / "store")):
            assert reader.missing(paths) == paths[2:4]
        assert [path for some, _ in store.parts(paths) for path in some] == [*paths[:2], paths[4]]
        vectors[2:4] = fill(store, paths[2:4], seed=1)
        query = torch.randn(8)
        for reader in (store, VectorStore(tmp_path / "store")):
            assert reader.nearest(query, paths, 5) == expected_hits(paths, vectors, query, 5)

    def test_a_deleted_file_has_no_vector(self, tmp_path):
        paths = make_files(tmp_path / "photos", 3)
        store = VectorStore(tmp_path / "store")
        vectors = fill(store, paths)
        os.unlink(paths[1])
        assert [path for path, _ in store.nearest(vectors[1], paths, 3)].count(paths[1]) == 0

    def test_a_file_that_changes_while_it_is_encoded_is_encoded_again(self, tmp_path):
        paths = make_files(tmp_path / "photos", 2)
        store = VectorStore(tmp_path / "store")
        assert store.missing(paths) == paths
        with open(paths[0], "a") as file:
            file.write("changed")
        fill(store, paths)
        assert store.missing(paths) == VectorStore(tmp_path / "store").missing(paths) == paths[:1]

    def test_a_file_that_vanishes_while_it_is_encoded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(vector_databases, "FEW", 1)
        paths = make_files(tmp_path / "photos", 3)
        store = VectorStore(tmp_path / "store")
        assert store.missing(paths) == paths
        os.unlink(paths[1])
        vectors = fill(store, paths)
        assert [path for path, _ in store.nearest(vectors[1], paths, 3)].count(paths[1]) == 0
        assert store.missing(paths) == []
        assert store.fingerprint(paths) == store.fingerprint([paths[0], paths[2]])
        if importlib.util.find_spec("faiss") is not None:
            assert {path for path, _ in faiss_nearest(store, vectors[1], paths, 3)} == {paths[0], paths[2]}

    def test_a_damaged_file_is_reported_and_encoded_again(self, tmp_path, caplog):
        paths = make_files(tmp_path / "photos", 3)
        fill(VectorStore(tmp_path / "store"), paths)
        (file,) = (tmp_path / "store").rglob("*.safetensors")
        file.write_bytes(file.read_bytes()[:20])
        store = VectorStore(tmp_path / "store")
        assert store.missing(paths) == paths
        vectors = fill(store, paths, seed=1)
        assert store.nearest(vectors[2], paths, 1) == [(paths[2], pytest.approx(1, abs=1e-5))]

    def test_each_model_has_its_folder(self, tmp_path):
        spaces = [EmbeddingSpace(*dual_encoder("clip")) for _ in range(3)]
        spaces[1].model.text_projection.weight.data.mul_(2)
        spaces[2].processor.image_processor.do_normalize = False
        folders = [store_folder(space, tmp_path) for space in spaces]
        assert len({*folders}) == 3 and folders[0] == store_folder(EmbeddingSpace(*dual_encoder("clip")), tmp_path)


def test_faiss(tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="needs faiss, of hf-vg[faiss]")
    monkeypatch.setattr(vector_databases, "FEW", 100)
    paths = make_files(tmp_path / "photos", 200)
    store = VectorStore(tmp_path / "store")
    vectors = fill(store, paths, size=32)
    query = torch.randn(32)
    exact = [path for path, _ in store.nearest(query, paths, 10)]
    for _ in range(2):  # built, and then read
        found = [path for path, _ in faiss_nearest(store, query, paths, 10, lists_to_search=100)]
        assert len({*found} & {*exact}) >= 9  # vectors are rounded to eight bits
    assert len([*(tmp_path / "store" / "faiss").glob("*.faiss")]) == 1
    some = paths[:20]
    hits = faiss_nearest(store, vectors[7], some, 50)
    assert hits[0] == (paths[7], pytest.approx(1, abs=0.02)) and {path for path, _ in hits} <= {*some}


def test_qdrant(tmp_path):
    pytest.importorskip("qdrant_client", reason="needs qdrant-client, of hf-vg[qdrant]")
    paths = make_files(tmp_path / "photos", 30)
    others = make_files(tmp_path / "others", 5)
    store = VectorStore(tmp_path / "store")
    vectors, query = fill(store, paths), torch.randn(8)
    fill(store, others, seed=2)
    database = QdrantVectors(str(tmp_path / "qdrant"), store)
    assert database.update(others) == 5
    assert database.nearest(query, paths, 4) == expected_hits(paths, vectors, query, 4)
    assert database.nearest(query, paths[:10], 20) == expected_hits(paths[:10], vectors[:10], query, 20)
    with open(paths[3], "a") as file:
        file.write("changed")
    vectors[3:4] = fill(store, paths[3:4], seed=3)
    assert database.update(paths) == 1 and database.update(paths) == 0
    assert database.nearest(vectors[3], paths, 1) == [(paths[3], pytest.approx(1, abs=1e-5))]
    database.client.close()
    again = QdrantVectors(str(tmp_path / "qdrant"), store)
    assert again.nearest(query, paths, 4) == expected_hits(paths, vectors, query, 4)
    again.client.close()


def test_images_of_a_folder(tmp_path):
    space, paths = EmbeddingSpace(*dual_encoder("clip")), [str(tmp_path / f"{number}.png") for number in range(4)]
    for path, image in zip(paths, random_images(4), strict=True):
        image.save(path)
    store = VectorStore(store_folder(space, tmp_path / "store"))
    for path in store.missing(paths):
        store.add(path, space.encode_images([path])[0])
    store.save()
    assert store.nearest(space.image(paths[2]).vector, paths, 1) == [(paths[2], pytest.approx(1, abs=1e-5))]
