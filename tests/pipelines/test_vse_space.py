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
"""The joint space for people: encode, rank, and search with sums of images and words."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForZeroShotImageClassification, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES

from hf_vg import VseScnlmSpace
from hf_vg.models.vse_scnlm import VseScnlmModel
from hf_vg.pipelines import vse_space
from tests.common import random_images
from tests.models.test_modeling_vse_scnlm import tiny_captioner, tiny_config, tiny_processor


class TestSpace:
    def space(self) -> VseScnlmSpace:
        torch.manual_seed(0)
        return VseScnlmSpace(VseScnlmModel(tiny_config(sentence_encoder="bow", embedding_size=8)), tiny_processor())

    def test_encodes_in_batches_of_any_size(self):
        space, images, texts = self.space(), random_images(5), ["a red circle", "two words", "a", "circle", "blue"]
        with torch.no_grad():
            outputs = space.model(**space.processor(images=images, text=texts, return_tensors="pt"))
        for size in (1, 2, 100):
            torch.testing.assert_close(space.encode_images(images, size), outputs.image_embeds)
            torch.testing.assert_close(space.encode_texts(texts, size), outputs.text_embeds)
        features = torch.randn(5, 6)
        expected = space.model.get_image_features(image_features=features).pooler_output
        torch.testing.assert_close(space.encode_images(features, 2), expected)
        assert space.encode_texts([]).shape == (0, 8)
        with pytest.raises(TypeError, match="list of sentences.*'a dog'"):
            space.encode_texts("a dog")

    def test_opens_files(self, tmp_path):
        space, (image,) = self.space(), random_images(1)
        image.save(tmp_path / "image.png")
        expected = space.encode_images([image])
        for path in (tmp_path / "image.png", str(tmp_path / "image.png")):
            torch.testing.assert_close(space.encode_images([path]), expected)

    @pytest.mark.parametrize("scores_at_a_time", [1, 64, 1 << 20])
    def test_rank_looks_at_every_candidate(self, scores_at_a_time, monkeypatch, tmp_path):
        monkeypatch.setattr(vse_space, "_SCORES_AT_A_TIME", scores_at_a_time)
        space, queries, candidates = self.space(), torch.randn(7, 8), torch.randn(53, 8)
        scores = torch.nn.functional.normalize(queries) @ candidates.T
        expected = scores.sort(dim=1, descending=True)
        mapped = np.memmap(tmp_path / "vectors", dtype="float32", mode="w+", shape=(53, 8))
        mapped[:] = candidates.numpy()
        for given in (candidates, candidates.numpy(), mapped):
            best, places = space.rank(queries, given, top_k=11)
            assert places.tolist() == expected.indices[:, :11].tolist()
            torch.testing.assert_close(best, expected.values[:, :11])
        best, places = space.rank(queries[2], candidates, top_k=100)
        assert places.tolist() == expected.indices[2].tolist()
        with pytest.raises(ValueError, match=r"must be \(candidates, 8\), got \(53, 7\)"):
            space.rank(queries, candidates[:, :7])

    def test_rank_asks_a_faiss_index(self):
        faiss = pytest.importorskip("faiss", reason="needs faiss, of hf-vg[faiss]")
        space, queries, candidates = self.space(), torch.randn(7, 8), torch.randn(53, 8)
        dataset = Dataset.from_dict({"vector": candidates.numpy()})
        with pytest.raises(ValueError, match=r"must have one index.*has \[\]"):
            space.rank(queries, dataset)
        dataset = dataset.add_faiss_index("vector", metric_type=faiss.METRIC_INNER_PRODUCT)
        for actual, expected in zip(space.rank(queries, dataset, 4), space.rank(queries, candidates, 4), strict=True):
            torch.testing.assert_close(actual, expected)

    def test_searches_with_sums(self):
        space, images = self.space(), random_images(6)
        candidates = space.encode_images(images)
        query = space.image(images[2]) - "blue" + "red"
        vector = candidates[2] - space.encode_texts(["blue"])[0] + space.encode_texts(["red"])[0]
        scores = candidates @ (vector / vector.norm())
        found = space.search(query, candidates, top_k=6)
        assert [row["index"] for row in found] == scores.argsort(descending=True).tolist()
        assert [row["score"] for row in found] == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-5)
        torch.testing.assert_close((query - space.text("red") + "blue").vector, candidates[2])
        words = space.search("a red circle", candidates, 1)
        assert words == space.search(space.encode_texts(["a red circle"])[0], candidates, 1)
        assert words == space.search(space.text("a red circle"), candidates, 1)
        with pytest.raises(TypeError, match="query .*text, a vector.*int"):
            space.search(3, candidates)
        with pytest.raises(ValueError, match="`search` takes one query"):
            space.search(candidates, candidates)

    def test_loads_either_checkpoint(self, tmp_path):
        model, processor = tiny_captioner(), tiny_processor()
        processor.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        space = VseScnlmSpace.from_pretrained(tmp_path)
        for name, weight in model.model.state_dict().items():
            assert torch.equal(space.model.state_dict()[name], weight), name
        expected = VseScnlmSpace(model.model, processor).encode_texts(["a red circle"])
        torch.testing.assert_close(space.encode_texts(["a red circle"]), expected)


def test_zero_shot_image_classification(tmp_path):
    torch.manual_seed(0)
    model, processor = VseScnlmModel(tiny_config()).eval(), tiny_processor()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    classifier = pipeline("zero-shot-image-classification", model=str(tmp_path))
    assert type(classifier.model) is VseScnlmModel
    assert type(AutoModelForZeroShotImageClassification.from_pretrained(tmp_path)) is VseScnlmModel
    images, labels = random_images(2), ["red circle", "blue squares", "words"]
    results = classifier(images, candidate_labels=labels, hypothesis_template="{}", batch_size=1)
    with torch.no_grad():
        expected = model(**processor(images=images, text=labels, return_tensors="pt")).logits_per_image.softmax(dim=-1)
    for result, scores in zip(results, expected, strict=True):
        actual = {label["label"]: label["score"] for label in result}
        assert [actual[label] for label in labels] == pytest.approx(scores.tolist(), abs=1e-5)
    # Else the pipeline says that the model is not supported.
    assert MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES["vse_scnlm"] == "VseScnlmModel"
