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
import pytest
import torch
from PIL import Image

from hf_vg.interpretation import attention_of_sentences, plot_sentence_attention
from tests.models.test_modeling_self_attn_grounded_encoder import tiny_model, tiny_tokenizer


def test_attention_belongs_to_its_words():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    examples = attention_of_sentences(model, tokenizer, ["a red circle", "words"])
    assert [example["words"] for example in examples] == [["a", "red", "circle", "<eos>"], ["words", "<eos>"]]
    for example, text in zip(examples, ["a red circle", "words"], strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        expected = model(ids, output_attentions=True).attentions[0][0].detach()
        torch.testing.assert_close(torch.tensor(example["attention"]), expected)
    (alone,) = attention_of_sentences(model, tokenizer, "words")
    assert alone["words"] == ["words", "<eos>"]


def test_figure_has_a_row_for_each_distribution_and_the_mean(tmp_path):
    model, tokenizer = tiny_model(), tiny_tokenizer()
    examples = attention_of_sentences(model, tokenizer, ["a red circle", "words"])
    figure = plot_sentence_attention(examples, tmp_path / "figure.png")
    assert len(figure.axes) == 4
    rows, mean = (axis.images[0].get_array() for axis in figure.axes[:2])
    assert rows.shape == (3, 4) and mean.shape == (1, 4)
    torch.testing.assert_close(torch.tensor(mean[0]), torch.tensor(examples[0]["attention"]).mean(dim=0))
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == examples[0]["words"]
    assert min(Image.open(tmp_path / "figure.png").size) > 100


def test_what_can_not_be_drawn_is_named():
    with pytest.raises(ValueError, match="`output_attentions` needs self-attention"):
        attention_of_sentences(tiny_model(use_attention=False), tiny_tokenizer(), "words")
    with pytest.raises(ValueError, match=r"`sentences\[0\]` holds half of a surrogate pair"):
        attention_of_sentences(tiny_model(), tiny_tokenizer(), "\udced")
    with pytest.raises(ValueError, match=r"Example 0 must have attention of shape \(rows, 2\).*got \(3, 4\)"):
        plot_sentence_attention({"words": ["a", "b"], "attention": torch.ones(3, 4).numpy()})
    with pytest.raises(ValueError, match="`examples` is empty"):
        plot_sentence_attention([])
