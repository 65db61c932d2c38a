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
import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from tests.common import run_without_hf_vg
from tests.models.test_modeling_self_attn_grounded_encoder import tiny_model, tiny_processor


sentence_transformers = pytest.importorskip("sentence_transformers")
SENTENCES = ["a red circle", "words", "", "a red circle above two blue squares and more"]


@pytest.fixture
def folder(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_processor().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": True}], ids=["imported", "trusted"])
def test_loads_and_saves_the_encoder(folder, tmp_path, trust):
    encoder = AutoModel.from_pretrained(folder)
    expected = encoder.encode(SENTENCES)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", **trust)
    np.testing.assert_allclose(model.encode(SENTENCES, batch_size=2), expected, atol=1e-6)
    assert model.get_embedding_dimension() == 16 and model.max_seq_length == 5
    # `encode` of the encoder itself takes the same arguments.
    options = {"batch_size": 3, "normalize_embeddings": True, "convert_to_tensor": True, "device": "cpu"}
    options["show_progress_bar"] = False
    torch.testing.assert_close(model.encode(SENTENCES, **options), encoder.encode(SENTENCES, **options))
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu", **trust)
    np.testing.assert_allclose(loaded.encode(SENTENCES), expected, atol=1e-6)
    # What it saved is a checkpoint of the encoder, too.
    np.testing.assert_allclose(AutoModel.from_pretrained(tmp_path / "saved").encode(SENTENCES), expected, atol=1e-6)


def test_loads_without_this_package(folder):
    expected = AutoModel.from_pretrained(folder).encode(SENTENCES)
    printed = run_without_hf_vg(
        f"""
        import json
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer({str(folder)!r}, trust_remote_code=True, device="cpu")
        print(json.dumps(model.encode({SENTENCES!r}).tolist()))
        """,
        folder,
    )
    np.testing.assert_allclose(json.loads(printed.splitlines()[-1]), expected, atol=1e-6)


def test_mteb_drives_the_encoder(folder):
    mteb = pytest.importorskip("mteb", reason="needs mteb")
    from datasets import Dataset
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    pairs = {
        "sentence1": ["a red circle", "words", "a red", "a circle"],
        "sentence2": ["a red circle", "a red circle above two", "circle", "squares and more"],
        "score": [5.0, 1.0, 2.0, 0.0],
    }
    unknown = ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")

    class Pairs(AbsTaskSTS):
        metadata = TaskMetadata(
            name="Pairs",
            description="Pairs of captions",
            type="STS",
            category="t2t",
            modalities=["text"],
            dataset={"path": "made/here", "revision": "1"},
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_pearson",
            sample_creation=None,
            bibtex_citation=None,
            **dict.fromkeys(unknown),
        )

        def load_data(self, **kwargs):
            self.dataset, self.data_loaded = {"test": Dataset.from_dict(pairs)}, True

    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    scores = mteb.evaluate(model, Pairs(), cache=None, encode_kwargs={"batch_size": 2}).task_results[0].scores

    encoder = AutoModel.from_pretrained(folder)
    left, right = (encoder.encode(pairs[column], normalize_embeddings=True) for column in ("sentence1", "sentence2"))
    expected = np.corrcoef((left * right).sum(axis=1), pairs["score"])[0, 1]
    assert scores["test"][0]["cosine_pearson"] == pytest.approx(expected, abs=1e-5)
