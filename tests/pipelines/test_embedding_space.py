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

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForZeroShotImageClassification, BertConfig, BertModel, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES

from hf_vg import EmbeddingSpace
from hf_vg.evaluation import retrieval_metrics
from hf_vg.models.vse_scnlm import VseScnlmModel
from hf_vg.pipelines import SentenceTransformerSpace, embedding_space, load_space
from tests.common import random_images
from tests.interpretation.any_processors import save
from tests.models.test_modeling_vse_scnlm import tiny_captioner, tiny_config, tiny_processor
from tests.pipelines.dual_encoders import DUAL_ENCODERS, dual_encoder


class TestSpace:
    def space(self) -> EmbeddingSpace:
        torch.manual_seed(0)
        return EmbeddingSpace(VseScnlmModel(tiny_config(sentence_encoder="bow", embedding_size=8)), tiny_processor())

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
        assert len(space.encode_texts([])) == 0
        with pytest.raises(TypeError, match="list of sentences.*'a dog'"):
            space.encode_texts("a dog")
        with pytest.raises(TypeError, match="Sentence 1 must be a string, got NoneType"):
            space.encode_texts(["a dog", None])

    def test_opens_files(self, tmp_path):
        space, (image,) = self.space(), random_images(1)
        image.save(tmp_path / "image.png")
        expected = space.encode_images([image])
        for path in (tmp_path / "image.png", str(tmp_path / "image.png")):
            torch.testing.assert_close(space.encode_images([path]), expected)

    @pytest.mark.parametrize("numbers_at_a_time", [1, 64, 1 << 20])
    def test_rank_looks_at_every_candidate(self, numbers_at_a_time, monkeypatch, tmp_path):
        monkeypatch.setattr(embedding_space, "_NUMBERS_AT_A_TIME", numbers_at_a_time)
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
        space = EmbeddingSpace.from_pretrained(tmp_path)
        for name, weight in model.model.state_dict().items():
            assert torch.equal(space.model.state_dict()[name], weight), name
        expected = EmbeddingSpace(model.model, processor).encode_texts(["a red circle"])
        torch.testing.assert_close(space.encode_texts(["a red circle"]), expected)


class TestAnyModel:
    @pytest.mark.parametrize("name", DUAL_ENCODERS)
    def test_vectors_are_those_that_the_model_compares(self, name, tmp_path):
        model, processor = dual_encoder(name)
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        space, images, texts = load_space(str(tmp_path)), random_images(3, 40), ["a red circle", "a dog"]
        assert type(space) is EmbeddingSpace
        # SigLIP and ALIGN learn from sentences that are padded to the full length, CLIP does not.
        padding = {"padding": True} if name in ("clip", "flava") else {"padding": "max_length", "max_length": 64}
        # The processor that was loaded: SigLIP 2 has no mask of texts then, as in its training.
        inputs = space.processor(images=images, text=texts, return_tensors="pt", **padding)
        with torch.no_grad():
            if name == "flava":  # whose own forward pass needs as many texts as images
                outputs = SimpleNamespace(
                    image_embeds=model.image_projection(model.image_model(inputs["pixel_values"])[0])[:, 0],
                    text_embeds=model.text_projection(
                        model.text_model(inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
                    )[:, 0],
                )
            else:
                outputs = model(**inputs)
        for actual, expected in (
            (space.encode_images(images, 2), outputs.image_embeds),
            (space.encode_texts(texts, 1), outputs.text_embeds),
        ):
            torch.testing.assert_close(actual, torch.nn.functional.normalize(expected), rtol=1e-4, atol=1e-5)

    def test_a_long_sentence_is_cut(self):
        space = EmbeddingSpace(*dual_encoder("clip"))
        assert space.encode_texts(["a red circle " * 100, "a dog"]).isfinite().all()

    def test_half_precision(self):
        model, processor = dual_encoder("clip")
        expected = EmbeddingSpace(model, processor).encode_images(random_images(2))
        actual = EmbeddingSpace(model.bfloat16(), processor).encode_images(random_images(2))
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=0, atol=0.05)

    def test_a_model_without_a_common_space_is_refused(self, tmp_path):
        BertModel(BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
            tmp_path
        )
        with pytest.raises(ValueError, match="is a bert .* does not put images and sentences in one space"):
            load_space(str(tmp_path))
        with pytest.raises(ValueError, match="is a blip-2 .* does not put images and sentences in one space"):
            load_space(save("blip2", tmp_path / "blip2"))

    @pytest.mark.parametrize("name", DUAL_ENCODERS)
    def test_search_arithmetic_and_retrieval_metrics(self, name):
        space, images = EmbeddingSpace(*dual_encoder(name)), random_images(4, 40)
        vectors, texts = space.encode_images(images), space.encode_texts(["a dog", "a red circle", "two", "blue"])
        assert space.search(space.image(images[2]) - "a dog" + "a dog", vectors, 1)[0]["index"] == 2
        scores = vectors @ texts.T
        ranks = [(scores[:, text] >= scores[text, text]).sum().item() for text in range(4)]
        metrics = retrieval_metrics(vectors, texts)
        assert metrics["text_to_image_mean_rank"] == pytest.approx(sum(ranks) / 4)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_vectors_of_any_precision_are_compared(self, dtype):
        space, queries, candidates = EmbeddingSpace(*dual_encoder("clip")), torch.randn(3, 8), torch.randn(20, 8)
        expected = (torch.nn.functional.normalize(queries) @ candidates.to(dtype).float().T).argmax(dim=1)
        assert (
            space.rank(queries.to(torch.float64), candidates.to(dtype), 1)[1].squeeze(1).tolist() == expected.tolist()
        )
        given = queries.double(), lambda: [candidates.to(dtype)[:7], candidates.to(dtype)[7:]]
        assert embedding_space.nearest(*given, top_k=1)[1].squeeze(1).tolist() == expected.tolist()

    @pytest.mark.parametrize("top_k", [1, 5, 40])
    @pytest.mark.parametrize("sizes", [(10,), (64,), (640, 64), (1000,), (30, 3, 900, 129)])
    def test_the_nearest_are_those_of_all_scores(self, sizes, top_k, monkeypatch):
        monkeypatch.setattr(embedding_space, "_NUMBERS_AT_A_TIME", 8 * 700)  # some parts take several slices
        queries, parts = torch.randn(7, 8, requires_grad=True), [torch.randn(size, 8) for size in sizes]
        values, numbers = embedding_space.nearest(queries, lambda: parts, top_k)
        expected = (queries.detach() @ torch.cat(parts).T).topk(min(top_k, sum(sizes)), dim=1)
        assert numbers.tolist() == expected.indices.tolist()
        torch.testing.assert_close(values, expected.values)

    @pytest.mark.parametrize("number", [0, 1, 100, 1030])
    def test_any_number_of_queries_finds_the_same(self, number):
        queries, candidates = torch.randn(number, 16), torch.randn(6000, 16)
        values, numbers = embedding_space.nearest(queries, lambda: candidates.split(4500), 10)
        if not number:
            assert len(values) == len(numbers) == 0
            return
        expected = (queries @ candidates.T).topk(10, dim=1)
        torch.testing.assert_close(values, expected.values)
        torch.testing.assert_close((queries[:, None] * candidates[numbers]).sum(dim=-1), expected.values)

    @pytest.mark.parametrize("number", [30, 6000])
    def test_a_vector_with_a_nan_hides_no_other(self, number):
        queries, candidates = torch.randn(3, 16), torch.randn(number, 16)
        scores = queries @ candidates.T
        best = scores.topk(5, dim=1).indices
        broken = best[:, 0].clone()
        candidates[broken] = torch.nan
        scores[:, broken] = -torch.inf
        values, numbers = embedding_space.nearest(queries, lambda: candidates.split(4500), 10)
        expected = scores.topk(10, dim=1)
        torch.testing.assert_close(values, expected.values)
        assert numbers.tolist() == expected.indices.tolist()

    def test_equal_scores_are_all_found(self):
        values, numbers = embedding_space.nearest(torch.ones(1, 1), lambda: [torch.ones(1000, 1)], 20)
        assert values.tolist() == [[1.0] * 20] and len(set(numbers[0].tolist())) == 20


class TestSentenceTransformers:
    def test_a_model_that_embeds_images(self, tmp_path):
        sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs hf-vg[sentences]")
        for part in dual_encoder("clip"):
            part.save_pretrained(tmp_path / "clip")
        saved = tmp_path / "saved"
        sentence_transformers.SentenceTransformer(str(tmp_path / "clip")).save_pretrained(str(saved))
        space = SentenceTransformerSpace.from_pretrained(saved)
        expected = EmbeddingSpace(*dual_encoder("clip"))
        images, texts = random_images(3), ["a red circle", "a dog"]
        torch.testing.assert_close(space.encode_images(images, 2), expected.encode_images(images))
        torch.testing.assert_close(space.encode_texts(texts), expected.encode_texts(texts))
        assert (
            space.search(space.image(images[1]) - "a dog" + "a dog", space.encode_images(images), 1)[0]["index"] == 1
        )

    def test_a_model_of_text_alone_is_refused(self):
        model = SimpleNamespace(supports=lambda modality: modality == "text")
        with pytest.raises(ValueError, match="embeds text only"):
            SentenceTransformerSpace(model)


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
