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
"""Joint spaces are trained on each caption once an epoch, among others of about its length."""

from collections import Counter

import pytest
import torch

from hf_vg import VseScnlmForConditionalGeneration
from hf_vg.data import PairCollator, initialize_from_glove, load_scenes, train_word_tokenizer, vse_rows
from hf_vg.training import (
    VgTrainer,
    VgTrainingArguments,
    VseArguments,
    build_vse,
    initialize_scnlm,
    parse_arguments,
)
from tests.common import ROOT
from tests.models.test_modeling_vse_scnlm import VseScnlmModel, tiny_config, tiny_inputs


BACKBONE = {"model_type": "vgg", "depths": [1], "hidden_sizes": [4]}


def test_each_caption_is_seen_once_an_epoch_among_others_of_its_length(tmp_path):
    scenes = load_scenes(num_train=10, num_validation=0, num_test=0, image_size=32)["train"]
    captions = [caption for group in scenes["captions"] for caption in group]
    tokenizer = train_word_tokenizer(captions)
    glove = tmp_path / "glove.txt"
    glove.write_text("red 1 2 3 4 5 6\nblue 6 5 4 3 2 1\n")
    model_fields = {"backbone_config": BACKBONE, "freeze_backbone": False, "feature_size": 4, "hidden_size": 8}
    args = VseArguments(image_size=32, glove=str(glove), model=model_fields | {"embedding_size": 6})
    model, processor = build_vse(args, tokenizer)
    red = model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("red")]
    assert torch.equal(red, torch.arange(1.0, 7.0))

    batches = []
    collator = PairCollator(processor, args.captions_per_image)

    def remember(rows):
        batches.append(rows)
        return collator(rows)

    training_args = VgTrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        max_length_difference=2,
        remove_unused_columns=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = vse_rows(args, scenes, model, processor, one_a_caption=True)
    VgTrainer(model=model, args=training_args, train_dataset=rows, data_collator=remember).train()
    seen = Counter((row["image_id"], *row["captions"]) for batch in batches for row in batch)
    expected = Counter((row["image_id"], caption) for row in scenes for caption in row["captions"])
    assert seen == {pair: 2 * number for pair, number in expected.items()}
    assert all(max(lengths) - min(lengths) <= 2 for lengths in ([row["length"] for row in rows] for rows in batches))


def test_a_mean_over_pairs_trains_as_the_sum_did(tmp_path):
    """Clipping and Adam's epsilon are scaled with the loss, so that the weights after a few steps are the same."""
    pairs, inputs = 4, tiny_inputs(4)
    rows = [{name: value[row] for name, value in inputs.items()} for row in range(4)]
    weights, losses = {}, {}
    for reduction, scale in (("sum", 1), ("mean", pairs)):
        torch.manual_seed(0)
        trainer = VgTrainer(
            model=VseScnlmModel(tiny_config(loss_reduction=reduction)),
            args=VgTrainingArguments(
                str(tmp_path / reduction),
                use_cpu=True,
                max_steps=6,
                per_device_train_batch_size=pairs,
                learning_rate=1e-2,
                max_grad_norm=2.0 / scale,
                adam_epsilon=1e-8 / scale,
                logging_steps=1,
                save_strategy="no",
                remove_unused_columns=False,
                disable_tqdm=True,
            ),
            train_dataset=rows,
        )
        trainer.train()
        weights[reduction] = dict(trainer.model.state_dict())
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        losses[reduction] = [(entry["loss"], entry["grad_norm"]) for entry in logged]
    for summed, mean in zip(losses["sum"], losses["mean"], strict=True):
        assert [value / pairs for value in summed] == pytest.approx(mean, rel=1e-3, abs=1e-4)
    assert losses["sum"][0][1] > 2  # so that the gradient is clipped
    for name, weight in weights["sum"].items():
        torch.testing.assert_close(weights["mean"][name], weight, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["vse_scenes", "vse_flickr8k"])
def test_configs_scale_with_the_loss(name, tmp_path):
    args, training_args = parse_arguments(
        (VseArguments, VgTrainingArguments),
        ROOT / "recipes" / "configs" / f"{name}.yaml",
        ["--output_dir", str(tmp_path)],
    )
    pairs = training_args.per_device_train_batch_size * args.captions_per_image
    assert training_args.max_grad_norm * pairs == pytest.approx(2.0)
    assert training_args.adam_epsilon * pairs == pytest.approx(1e-8)


class TestStartOfTheScnlm:
    words = "a red blue green circle square above".split()

    def start(self, folder, **sizes):
        tokenizer = train_word_tokenizer([" ".join(self.words)])
        vectors = torch.randn(len(self.words), 6, generator=torch.Generator().manual_seed(0)).tolist()
        lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in zip(self.words, vectors, strict=True)]
        (folder / "glove.txt").write_text("\n".join(lines) + "\n")
        config = tiny_config(vocab_size=len(tokenizer), word_size=6, **{"num_factors": 4, **sizes})
        model = VseScnlmForConditionalGeneration(config)
        torch.manual_seed(1)
        return model, tokenizer, initialize_scnlm(model, tokenizer, folder / "glove.txt")

    def test_words_are_the_nearest_product_of_factors(self, tmp_path):
        model, tokenizer, report = self.start(tmp_path)
        assert sorted(report.found) == sorted(self.words)
        torch.manual_seed(1)
        words = torch.nn.Embedding(len(tokenizer), 6)
        initialize_from_glove(words, tokenizer, tmp_path / "glove.txt")
        left, values, right = torch.linalg.svd(words.weight.detach(), full_matrices=False)
        nearest = left[:, :4] @ torch.diag(values[:4]) @ right[:4]
        decoder = model.decoder
        torch.testing.assert_close(decoder.lm_head.weight @ decoder.factor_context.weight, nearest)

    def test_the_rest_is_that_of_the_authors_code(self, tmp_path):
        decoder = self.start(tmp_path)[0].decoder
        assert decoder.context.weight.std().item() == pytest.approx(0.01, rel=0.3)
        assert decoder.factor_attribute.weight.std().item() == pytest.approx(0.01, rel=0.5)
        size = decoder.content.weight.shape[0]
        for weight in (*decoder.structure.weight.split(size), decoder.content.weight):
            assert 0.5 * (3 / size) ** 0.5 < weight.abs().max() <= (3 / size) ** 0.5  # Xavier, of a square matrix
        assert not decoder.lm_head.bias.any() and not decoder.content.bias.any()

    def test_there_must_be_as_many_factors(self, tmp_path):
        with pytest.raises(ValueError, match="vectors of 6 numbers have 6 factors: set `num_factors` to at most 6"):
            self.start(tmp_path, num_factors=7)
