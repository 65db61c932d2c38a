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
from datasets import Dataset, Features, Image, List, Value

from hf_vg.data import CaptionCollator, train_word_tokenizer
from hf_vg.training import (
    CaptionerArguments,
    SelfCriticalTrainer,
    VgTrainingArguments,
    build_captioner,
    caption_collator,
    load_captioner,
    self_critical_reward,
)
from hf_vg.training.self_critical import caption_words
from tests.common import random_images
from tests.interpretation.any_processors import save
from tests.interpretation.any_processors import tokenizer as letters


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


def count_words(completions, references):
    return [float(len(set(caption.split()))) for caption in completions]


def weights_of(scores):
    """Each score against the mean of the others of its image."""
    return [[s - (sum(row) - s) / (len(row) - 1) for s in row] for row in scores]


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model_type", MODELS)
def test_the_loss_weighs_log_likelihoods(model_type, tmp_path, monkeypatch):
    fields = {"attention_penalty": 0.3} if model_type == "show_attend_tell" else {}
    scores = [[3.0, 0.0, 1.0], [0.0, 5.0, 2.0], [1.0, 1.0, 1.0]]
    made = trainer(tmp_path, model_type, lambda completions, references: sum(scores, []), 3, fields)
    batch = made.data_collator([made.train_dataset[index] for index in range(3)])
    candidates = made.find_candidates(made.model, {"image_features": batch["image_features"]})
    monkeypatch.setattr(made, "find_candidates", lambda *_: candidates)
    model = made.model.train()
    made.compute_loss(model, batch).backward()
    actual = gradients(model)
    actual_loss = made.compute_loss(model, batch).detach()

    model.zero_grad()
    total, words, captions, penalty = 0.0, 0, 0, 0.0
    for image, (group, weights) in enumerate(zip(candidates, weights_of(scores), strict=True)):
        for ids, weight in zip(group, weights, strict=True):
            # One caption, without padding or other captions in the batch.
            inputs = {"image_features": batch["image_features"][image : image + 1], "labels": torch.tensor([ids])}
            outputs = model.eval()(**inputs)
            for position, word in enumerate(ids):
                total = total - weight * outputs.logits[0, position].log_softmax(dim=-1)[word]
                words += 1
            captions += 1
            penalty = penalty + (outputs.loss_attention if fields else 0.0)
    expected = total / words
    if model_type == "show_attend_tell":
        expected = total / captions + 0.3 * penalty / captions
    expected.backward()
    torch.testing.assert_close(actual_loss, expected.detach())
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model_type", MODELS)
def test_losses_of_captions_are_shares_of_the_loss(model_type):
    model, processor = captioner(model_type)
    labels = processor(text=[caption for group in CAPTIONS for caption in group[:2]], return_tensors="pt")["labels"]
    inputs = {"image_features": torch.randn(3, 9, 4), "labels": labels}
    logits = model.eval()(**inputs).logits
    number = len(labels) if model_type == "show_attend_tell" else int((labels != -100).sum())
    expected = []
    for caption, scores in zip(labels, logits, strict=True):
        log_likelihoods = [scores[place].log_softmax(dim=-1)[word] for place, word in enumerate(caption) if word >= 0]
        expected.append(-sum(log_likelihoods) / number)
    for mode in (model.eval(), model.train()):
        outputs = mode(**inputs)
        torch.testing.assert_close(outputs.caption_losses, torch.stack(expected))
        torch.testing.assert_close(outputs.caption_losses.sum(), outputs.loss)
        torch.testing.assert_close(
            mode(**inputs, num_items_in_batch=2 * number).caption_losses, outputs.caption_losses / 2
        )


def test_hard_attention_is_rewarded_by_the_weights_too():
    fields = {"attention_type": "hard", "semi_sampling_probability": 1.0, "entropy_weight": 0.0}
    model, processor = captioner("show_attend_tell", **fields)
    labels = processor(text=["a dog", "a cat", "a bird"], return_tensors="pt")["labels"]
    outputs = model.train()(image_features=torch.randn(3, 9, 4), labels=labels)
    assert outputs.loss_reinforce != 0
    torch.testing.assert_close(outputs.caption_losses.sum(), outputs.loss_caption + outputs.loss_reinforce)


class TestReward:
    def test_is_high_for_what_people_wrote_and_counts_the_end(self):
        tokenizer = train_word_tokenizer(caption for group in CAPTIONS for caption in group)
        reward = self_critical_reward(tokenizer, CAPTIONS)
        references = [["a dog runs <eos>", "a brown dog <eos>"]] * 4
        same, broken_off, other, empty = reward(
            ["a dog runs <eos>", "a dog runs", "a cat sleeps <eos>", ""], references=references
        )
        assert same > broken_off > other >= empty == 0

    def test_words_of_all_images_weigh_nothing(self):
        captions = [["a dog"], ["a cat"], ["a bird"]]
        tokenizer = train_word_tokenizer(caption for group in captions for caption in group)
        article, noun = self_critical_reward(tokenizer, captions)(["a", "dog"], references=[["a dog <eos>"]] * 2)
        assert article == 0 and noun > 0

    def test_a_tokenizer_of_pieces_is_scored_by_words(self):
        assert caption_words(letters(), ["A dog, running."]) == ["a dog running <eos>"]


class TestCandidates:
    @pytest.mark.parametrize("model_type", MODELS)
    def test_weights_are_scores_against_the_others_of_the_image(self, tmp_path, model_type):
        seen = {}

        def reward(completions, references):
            seen.update(completions=completions, references=references)
            return [float(number**2 % 7) for number in range(len(completions))]

        made = trainer(tmp_path, model_type, reward)
        batch = made.data_collator([made.train_dataset[index] for index in range(3)])
        made.model.train()
        candidates = made.find_candidates(made.model, {"image_features": batch["image_features"]})
        weights = made.weigh(candidates, batch["references"])
        assert made.model.training
        assert [len(group) for group in candidates] == [4, 4, 4]
        scores = [[float((4 * image + candidate) ** 2 % 7) for candidate in range(4)] for image in range(3)]
        torch.testing.assert_close(weights, torch.tensor(weights_of(scores)))
        assert made._parts["reward"][0].item() == pytest.approx(sum(map(sum, scores)) / 12)
        # What was scored is what is trained on, the references are the image's own, and nothing follows an end.
        tokenizer = made.processing_class.tokenizer
        for number, ids in enumerate(ids for group in candidates for ids in group):
            text = " ".join(tokenizer.convert_ids_to_tokens(ids))
            assert seen["completions"][number] == text.replace("<unk>", "<none>")
            assert tokenizer.eos_token_id not in ids[:-1]
            assert seen["references"][number] == [f"{caption} <eos>" for caption in CAPTIONS[number // 4]]

    def test_are_found_with_dropout(self, tmp_path):
        made = trainer(tmp_path, "show_attend_tell", count_words, fields={"feature_dropout": 0.5})
        images = {"image_features": made.train_dataset[0]["image_features"][None]}

        def found():
            return {str(made.find_candidates(made.model, images)) for _ in range(5)}

        made.model.eval()
        assert len(found()) == 1
        made.model.train()
        assert len(found()) > 1

    def test_words_that_are_never_written_are_found_and_unlearnt(self, tmp_path):
        made = trainer(
            tmp_path,
            "show_attend_tell",
            lambda completions, references: [float("<none>" not in caption) for caption in completions],
            32,
        )
        unknown, model = made.processing_class.tokenizer.unk_token_id, made.model
        torch.nn.init.constant_(model.lm_head.bias[unknown], 0.3)
        batch = made.data_collator([made.train_dataset[0]])
        candidates = made.find_candidates(model, {"image_features": batch["image_features"]})
        weights = made.weigh(candidates, batch["references"])[0]
        said = torch.tensor([unknown in ids for ids in candidates[0]])
        assert said.any() and not said.all()
        assert weights[said].max() < 0 < weights[~said].min()

    def test_evaluation_is_of_what_people_wrote(self, tmp_path):
        made = trainer(tmp_path, "show_attend_tell", count_words)
        batch = made.eval_data_collator([made.train_dataset[0]])
        made.model.eval()
        assert made.compute_loss(made.model, batch) == made.model(**batch).loss


NATIVE = ("blip", "florence2", "git", "llava", "mllama", "paligemma", "qwen2_5_vl", "vit_gpt2")


def native_trainer(tmp_path, name, reward, **settings):
    checkpoint = save(name, tmp_path / "checkpoint")
    args = CaptionerArguments(checkpoint=checkpoint, max_new_tokens=4, num_beams=2, reward="cider")
    model, processor = load_captioner(args)
    # Captions end sooner or later.
    model.generation_config.suppress_tokens = [0, 1]
    images = [random_images(1, size=48)[0].resize((48, 32)), *random_images(2, size=16)]
    rows = Dataset.from_dict(
        {"image": images, "captions": CAPTIONS}, features=Features(image=Image(), captions=List(Value("string")))
    )
    defaults = {"per_device_train_batch_size": 3, "disable_tqdm": True, "save_strategy": "no"}
    return SelfCriticalTrainer(
        model=model,
        args=VgTrainingArguments(str(tmp_path), remove_unused_columns=False, **{**defaults, **settings}),
        train_dataset=rows,
        data_collator=caption_collator(args, model, processor),
        processing_class=processor,
        reward=reward,
        num_candidates=3,
    )


@pytest.mark.parametrize("name", NATIVE)
def test_captioners_of_transformers_are_weighed_by_the_trainer(name, tmp_path, monkeypatch):
    seen = {}
    scores = [[3.0, 0.0, 1.0], [0.0, 5.0, 2.0], [1.0, 1.0, 4.0]]

    def reward(completions, references):
        seen.update(completions=completions, references=references)
        return sum(scores, [])

    made = native_trainer(tmp_path, name, reward)
    model, collator = made.model, made.captions
    batch = made.data_collator([made.train_dataset[index] for index in range(3)])
    prompts = {key: value for key, value in batch.items() if key != "references"}
    candidates = made.find_candidates(model, prompts)
    assert all(1 <= len(ids) <= 4 for group in candidates for ids in group)
    monkeypatch.setattr(made, "find_candidates", lambda *_: candidates)
    actual = made.compute_loss(model.train(False), batch)
    actual.backward()
    actual_gradients = gradients(model)
    assert seen["references"][3] == ["a cat sleeps <eos>", "the cat <eos>"]
    ended = [ids[-1] == collator.end for group in candidates for ids in group]
    assert [text.endswith("<eos>") for text in seen["completions"]] == ended

    model.zero_grad()
    total, words = 0.0, 0
    for row, group, weights in zip(made.train_dataset, candidates, weights_of(scores), strict=True):
        for ids, weight in zip(group, weights, strict=True):
            # The loss of one caption by the model itself, on what `generate` is given for this image alone.
            loss = model(**collator.batch(collator.prompts([row]), [[ids]])).loss
            total, words = total + weight * loss * len(ids), words + len(ids)
    (total / words).backward()
    torch.testing.assert_close(actual, total / words, rtol=1e-4, atol=1e-5)
    for key, gradient in gradients(model).items():
        torch.testing.assert_close(actual_gradients[key], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["git", "llava", "vit_gpt2"])
def test_captioners_of_transformers_are_trained_for_the_reward(name, tmp_path):
    def count_letters(completions, references):
        return [float(len({*caption})) for caption in completions]

    settings = {"max_steps": 30, "learning_rate": 0.01, "logging_steps": 5, "lr_scheduler_type": "constant"}
    made = native_trainer(tmp_path, name, count_letters, **settings)
    made.train()
    rewards = [entry["reward"] for entry in made.state.log_history if "reward" in entry]
    assert rewards[-1] > rewards[0] + 0.1


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
