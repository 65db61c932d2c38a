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
import numpy as np
import pytest
import torch
from torch import nn

from hf_vg.data import initialize_from_glove, train_word_tokenizer
from hf_vg.data.glove import load_glove
from tests.common import SHARED, needs_shared


TEXT = """the 0.1 0.2 -0.3
dog 1.0 2.0 3.0
. . . 9 9 9
naïve 4e-1 5 6
other nothing that is read 7
"""


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_reads_the_words_wanted_and_no_other(glove):
    vectors = load_glove(glove, ["dog", "naïve", "cat"])
    assert set(vectors) == {"dog", "naïve"}
    assert vectors["dog"].tolist() == [1, 2, 3] and vectors["dog"].dtype == np.float32
    assert vectors["naïve"] == pytest.approx([0.4, 5, 6])


def test_words_may_hold_spaces(glove):
    assert load_glove(glove, [". . ."])[". . ."].tolist() == [9, 9, 9]


def test_a_wrong_line_is_named(glove):
    with pytest.raises(ValueError, match="glove.txt, line 5: .*3 numbers.*other nothing"):
        load_glove(glove, ["other nothing that"])
    glove.write_text("dog 1 2 3\ncat nan 1 2\n")
    with pytest.raises(ValueError, match="glove.txt, line 2"):
        load_glove(glove, ["cat"])
    glove.write_text("just words\n")
    with pytest.raises(ValueError, match="glove.txt, line 1: .*numbers"):
        load_glove(glove, ["just"])


def test_fills_embeddings_and_reports(glove):
    tokenizer = train_word_tokenizer(["the dog", "a naïve dog"])
    vocabulary = tokenizer.get_vocab()
    embeddings = nn.Embedding(len(tokenizer), 3)
    torch.manual_seed(0)
    report = initialize_from_glove(embeddings, tokenizer, glove)
    assert sorted(report.found) == ["dog", "naïve", "the"] and report.missing == ["a"]
    assert "3 of 4 words" in str(report) and str(report).endswith(": a.")
    assert embeddings.weight[vocabulary["dog"]].tolist() == [1, 2, 3]
    assert embeddings.weight[vocabulary["the"]].tolist() == pytest.approx([0.1, 0.2, -0.3])
    drawn = embeddings.weight[vocabulary["a"]].detach()
    assert torch.isfinite(drawn).all() and drawn.tolist() not in ([1, 2, 3], [0, 0, 0])
    assert embeddings.weight.requires_grad
    torch.manual_seed(0)
    again = nn.Embedding(len(tokenizer), 3)
    torch.manual_seed(0)
    initialize_from_glove(again, tokenizer, glove)
    assert torch.equal(again.weight, embeddings.weight)


def test_another_width_or_vocabulary_is_named(glove):
    tokenizer = train_word_tokenizer(["the dog"])
    with pytest.raises(ValueError, match="3 numbers.* 4.*`embedding_size=3`"):
        initialize_from_glove(nn.Embedding(5, 4), tokenizer, glove)
    with pytest.raises(ValueError, match="glove.txt .*any of the 1 words"):
        initialize_from_glove(nn.Embedding(4, 3), train_word_tokenizer(["xyzzy"]), glove)


@needs_shared("weights", "glove.subset.100d.txt")
def test_reads_the_real_format():
    vectors = load_glove(SHARED / "weights" / "glove.subset.100d.txt", ["dog", "cat", "running", "xyzzyx"])
    assert set(vectors) == {"dog", "cat", "running"}
    unit = {word: vector / np.linalg.norm(vector) for word, vector in vectors.items()}
    assert unit["dog"].shape == (100,) and unit["dog"] @ unit["cat"] > 0.7 > unit["dog"] @ unit["running"]
