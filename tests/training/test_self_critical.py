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
from datasets import Dataset

from hf_vg.data import CaptionCollator, train_word_tokenizer
from hf_vg.training import (
    CaptionerArguments,
    SelfCriticalTrainer,
    VgTrainingArguments,
    build_captioner,
    cider_reward,
)


CAPTIONS = [["a dog runs", "a brown dog"], ["a cat sleeps", "the cat"], ["a bird sings", "a small bird", "birds"]]
MODELS = {
    "show_attend_tell": {"embedding_size": 8, "hidden_size": 8, "attention_penalty": 0.0, "initializer_range": 0.3},
    "spatial_transformer_captioner": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8},
}


def captioner(model_type: str, **fields):
    torch.manual_seed(0)
    fields = {"backbone_config": None, "feature_size": 4, "dropout": 0.0, **MODELS[model_type], **fields}
    args = CaptionerArguments(model_type=model_type, model=fields, max_new_tokens=6, num_beams=3, length_penalty=0.5)
    return build_captioner(args, train_word_tokenizer(caption for group in CAPTIONS for caption in group))


def trainer(tmp_path, model_type: str, reward, num_candidates: int = 4, fields: dict | None = None, **settings):
    model, processor = captioner(model_type, **(fields or {}))
    features = torch.randn(len(CAPTIONS), 9, 4)
    rows = Dataset.from_dict({"captions": CAPTIONS, "image_features": features.tolist()}).with_format("torch")
    defaults = {"per_device_train_batch_size": 3, "disable_tqdm": True, "save_strategy": "no"}
    return SelfCriticalTrainer(
        model=model,
        args=VgTrainingArguments(str(tmp_path), remove_unused_columns=False, **{**defaults, **settings}),
        train_dataset=rows,
        data_collator=CaptionCollator(processor),
        processing_class=processor,
        reward=reward,
        num_candidates=num_candidates,
    )


def count_words(captions, references):
    return [float(len(set(caption.split()))) for caption in captions]


@pytest.mark.parametrize("model_type", MODELS)
def test_weighted_captions(model_type):
    model, processor = captioner(model_type)
    labels = processor(text=[caption for group in CAPTIONS for caption in group[:2]], return_tensors="pt")["labels"]
    weights = torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.25, 1.5]])
    inputs = {"image_features": torch.randn(3, 9, 4), "labels": labels}
    logits = model.eval()(**inputs).logits
    total, words, captions = 0.0, 0, len(labels)
    for number, caption in enumerate(labels):
        for position, word in enumerate(caption.tolist()):
            if word != -100:
                likelihood = logits[number, position].log_softmax(dim=-1)[word]
                total, words = total - weights.flatten()[number] * likelihood, words + 1
    expected = total / (captions if model_type == "show_attend_tell" else words)
    for mode in (model.eval(), model.train()):
        torch.testing.assert_close(mode(**inputs, caption_weights=weights).loss, expected)


def test_hard_attention_is_rewarded_by_the_weights_too():
    fields = {"attention_type": "hard", "semi_sampling_probability": 1.0, "entropy_weight": 0.0}
    model, processor = captioner("show_attend_tell", **fields)
    labels = processor(text=["a dog", "a cat", "a bird"], return_tensors="pt")["labels"]
    inputs = {"image_features": torch.randn(3, 9, 4), "labels": labels}
    model.train()
    reinforced = []
    for weights in ([1.0, 1.0, 1.0], [-2.0, -2.0, -2.0], [0.0, 0.0, 0.0]):
        torch.manual_seed(1)
        model.baseline.zero_()
        reinforced.append(model(**inputs, caption_weights=torch.tensor(weights)).loss_reinforce)
    assert reinforced[0] != 0 and reinforced[2] == 0
    torch.testing.assert_close(reinforced[1], -2 * reinforced[0])


class TestCiderReward:
    def test_is_high_for_what_people_wrote_and_counts_the_end(self):
        tokenizer = train_word_tokenizer(caption for group in CAPTIONS for caption in group)
        reward = cider_reward(tokenizer, CAPTIONS)
        references = [["a dog runs <eos>", "a brown dog <eos>"]] * 4
        same, broken_off, other, empty = reward(
            ["a dog runs <eos>", "a dog runs", "a cat sleeps <eos>", ""], references
        )
        assert same > broken_off > other >= empty == 0

    def test_words_of_all_images_weigh_nothing(self):
        captions = [["a dog"], ["a cat"], ["a bird"]]
        reward = cider_reward(train_word_tokenizer(caption for group in captions for caption in group), captions)
        article, noun = reward(["a", "dog"], [["a dog <eos>"]] * 2)
        assert article == 0 and noun > 0


class TestCandidates:
    @pytest.mark.parametrize("model_type", MODELS)
    def test_weights_are_scores_against_the_others_of_the_image(self, tmp_path, model_type):
        seen = {}

        def reward(captions, references):
            seen.update(captions=captions, references=references)
            return [float(number**2 % 7) for number in range(len(captions))]

        made = trainer(tmp_path, model_type, reward)
        batch = made.data_collator([made.train_dataset[index] for index in range(3)])
        made.model.train()
        inputs = made.with_candidates(made.model, batch)
        assert made.model.training
        assert inputs["labels"].shape[:2] == inputs["caption_weights"].shape == (3, 4)
        scores = [[float((4 * image + candidate) ** 2 % 7) for candidate in range(4)] for image in range(3)]
        for image in range(3):
            for candidate in range(4):
                others = [scores[image][other] for other in range(4) if other != candidate]
                weight = inputs["caption_weights"][image, candidate].item()
                assert weight == pytest.approx(scores[image][candidate] - sum(others) / 3)
        assert made._parts["reward"][0].item() == pytest.approx(sum(map(sum, scores)) / 12)
        # What was scored is what is trained on, the references are the image's own, and nothing follows an end.
        tokenizer = made.processing_class.tokenizer
        for number, ids in enumerate(inputs["labels"].flatten(0, 1)):
            words = ids[ids >= 0].tolist()
            text = " ".join(tokenizer.convert_ids_to_tokens(words))
            assert seen["captions"][number] == text.replace("<unk>", "<none>")
            assert tokenizer.eos_token_id not in words[:-1]
            assert seen["references"][number] == [f"{caption} <eos>" for caption in CAPTIONS[number // 4]]

    def test_are_found_with_dropout(self, tmp_path):
        made = trainer(tmp_path, "show_attend_tell", count_words, fields={"feature_dropout": 0.5})
        batch = made.data_collator([made.train_dataset[0]])

        def found():
            return {tuple(made.with_candidates(made.model, batch)["labels"].flatten().tolist()) for _ in range(5)}

        made.model.eval()
        assert len(found()) == 1
        made.model.train()
        assert len(found()) > 1

    def test_words_that_are_never_written_are_found_and_unlearnt(self, tmp_path):
        made = trainer(
            tmp_path, "show_attend_tell", lambda captions, _: [float("<none>" not in s) for s in captions], 32
        )
        unknown, model = made.processing_class.tokenizer.unk_token_id, made.model
        torch.nn.init.constant_(model.lm_head.bias[unknown], 0.3)
        batch = made.data_collator([made.train_dataset[0]])
        inputs = made.with_candidates(model, batch)
        said = (inputs["labels"] == unknown).any(dim=-1)
        assert said.any() and not said.all()
        assert inputs["caption_weights"][said].max() < 0 < inputs["caption_weights"][~said].min()

    def test_evaluation_is_of_what_people_wrote(self, tmp_path):
        made = trainer(tmp_path, "show_attend_tell", count_words)
        batch = made.data_collator([made.train_dataset[0]])
        made.model.eval()
        assert made.compute_loss(made.model, batch) == made.model(**batch).loss


@pytest.mark.parametrize("model_type", MODELS)
def test_training_is_for_the_reward(tmp_path, model_type):
    made = trainer(
        tmp_path,
        model_type,
        count_words,
        8,
        max_steps=40,
        learning_rate=0.003,
        logging_steps=5,
        lr_scheduler_type="constant",
    )
    made.train()
    rewards = [entry["reward"] for entry in made.state.log_history if "reward" in entry]
    assert rewards[-1] > rewards[0] + 0.1


def test_what_can_not_be_compared(tmp_path):
    with pytest.raises(ValueError, match="`num_candidates` is 1"):
        trainer(tmp_path, "show_attend_tell", count_words, 1)
    with pytest.raises(ValueError, match="max_length_difference"):
        trainer(tmp_path, "show_attend_tell", count_words, max_length_difference=0)
