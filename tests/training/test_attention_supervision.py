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
"""Supervised attention of any model: losses restated in loops on eager attention, and every way of training."""

import math
from itertools import product

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    VisualBertConfig,
    VisualBertForVisualReasoning,
)

from hf_vg.data import PhraseChatCollator
from hf_vg.interpretation import record_attention, targets_of_boxes
from hf_vg.models.attention_supervision import align_words, supervise_attention
from hf_vg.training import AttentionSupervisedTrainer, AttentionSupervisionMixin
from tests.interpretation import any_processors
from tests.interpretation.any_models import BUILDERS, IMAGE, tiny


EPSILON = 1e-6
BOXES = [[[0.0, 0.0, 0.5, 0.5], [0.6, 0.6, 0.62, 0.62]], [[0.5, 0.25, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]


def inputs_of(name: str, dtype: torch.dtype = torch.float32) -> tuple:
    """A model in training mode, and a batch in which the second row has one phrase less than the first."""
    model, inputs = tiny(name, dtype)
    for module in model.modules():  # eager attention is returned after dropout
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    if model.config.is_encoder_decoder:
        inputs["labels"] = torch.tensor([[5, 6, 7, 8, 2], [8, 9, 5, 2, -100]])
        spans = [[[0, 2], [3, 4]], [[1, 3], [0, 0]]]
    else:
        texts = torch.tensor([[5, 6, 7, 8, 2], [8, 9, 5, 6, 2]])
        before = inputs["input_ids"] if "input_ids" in inputs else torch.full((2, 1), 1)
        inputs["input_ids"] = torch.cat([before, texts], dim=1)
        mask = inputs.get("attention_mask", torch.ones_like(before))
        inputs["attention_mask"] = torch.cat([mask, torch.ones_like(texts)], dim=1)
        inputs["labels"] = torch.cat([torch.full_like(before, -100), texts], dim=1)
        first = before.shape[1]
        # The second phrase of the first row is in the prompt, where a model only reads.
        read = [first - 1, first]
        spans = [[[first, first + 2], read], [[first + 1, first + 4], [0, 0]]]
    inputs["phrase_spans"] = torch.tensor(spans)
    inputs["phrase_boxes"] = torch.tensor([[[1, 0], [1, 1]], [[1, 0], [0, 0]]]).float()
    inputs["boxes"] = torch.tensor(BOXES)
    return model.train(), inputs


def own(inputs: dict) -> dict:
    return {key: value for key, value in inputs.items() if key not in ("phrase_spans", "phrase_boxes", "boxes")}


def trainer_of(model, folder, trainer_class=AttentionSupervisedTrainer, **options):
    return trainer_class(model=model, args=TrainingArguments(folder, use_cpu=True), **options)


def supervised(model, inputs, folder, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the part of attention."""
    trainer = trainer_of(model, folder, **options)
    with trainer._recording:
        loss = trainer.compute_loss(model, dict(inputs))
        loss.backward()
    (part,) = trainer._parts["loss_grounding"]
    return loss.detach(), part


def cells_of(box: list[float], side: int = 4) -> set[tuple[int, int]]:
    left, top, right, bottom = box
    cells = {
        (row, column)
        for row, column in product(range(side), repeat=2)
        if left <= (column + 0.5) / side < right and top <= (row + 0.5) / side < bottom
    }
    return cells or {(int((top + bottom) / 2 * side), int((left + right) / 2 * side))}


def restated(name: str, model, inputs: dict, kind: str, layers=None, heads=None) -> torch.Tensor:
    """The loss of the paper, one word, layer, head and patch at a time, on eager attention with its gradient."""
    model.set_attn_implementation("eager")
    outputs = model(**own(inputs), output_attentions=True)
    is_cross = name == "vit_gpt2"
    attentions = list(outputs.cross_attentions if is_cross else outputs.attentions)
    attentions = attentions if heads is None else [a[:, heads] for a in attentions]
    offset = 17 if name == "git" else 0  # its image stands in front of its words
    maps = attentions
    if kind == "rollout":
        maps, before = [], None
        for attention in attentions:
            mean = attention.mean(dim=1)
            if is_cross:
                before = mean / 2 if before is None else (before + mean) / 2
            else:
                mixing = mean + torch.eye(mean.shape[-1])
                mixing = mixing / mixing.sum(dim=-1, keepdim=True)
                before = mixing if before is None else mixing @ before
            maps.append(before[:, None])
    maps = maps if layers is None else [maps[layer] for layer in layers]
    terms = []
    for row in range(2):
        if name == "llava":
            columns = (inputs["input_ids"][row] == IMAGE).nonzero().flatten().tolist()
        else:
            columns = list(range(1, 17))  # behind the class token
        looks: dict[int, set] = {}
        for (start, end), flags in zip(
            inputs["phrase_spans"][row].tolist(), inputs["phrase_boxes"][row].tolist(), strict=True
        ):
            for token in range(start, end):
                is_written = not is_cross and inputs["labels"][row, token] != -100
                query = token - 1 if is_written else token
                for number, flag in enumerate(flags):
                    if flag:
                        box = inputs["boxes"][row, number].tolist()
                        looks.setdefault(query, set()).update(4 * y + x for y, x in cells_of(box))
        for query, cells in looks.items():
            for layer in maps:
                for head in range(layer.shape[1]):
                    attention = layer[row, head, offset + query]
                    total = sum(attention[column] for column in columns) + EPSILON
                    logs = [torch.log(EPSILON + attention[columns[cell]] / total) for cell in cells]
                    terms.append((-sum(logs) / len(logs)) / (len(maps) * layer.shape[1]))
    words = sum(1 for _ in terms) / (len(maps) * maps[0].shape[1])
    return sum(terms) / words, outputs.loss


CHOICES = [(None, None), ([-1], None), ([1, 0], [0, 2])]


@pytest.mark.parametrize("layers, heads", CHOICES)
@pytest.mark.parametrize("kind", ["direct", "rollout"])
@pytest.mark.parametrize("name", ["llava", "vit_gpt2", "git"])
def test_losses_and_gradients_are_those_of_loops_on_eager_attention(name, kind, layers, heads, tmp_path):
    model, inputs = inputs_of(name)
    options = {"attention_supervision": kind, "attention_layers": layers, "attention_heads": heads}
    total, part = supervised(model, inputs, tmp_path, attention_weight=3.0, **options)
    gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    eager, _ = inputs_of(name)
    expected, words = restated(name, eager, inputs, kind, layers, heads)
    torch.testing.assert_close(part, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, (words + 3 * expected).detach(), rtol=1e-5, atol=1e-5)
    (words + 3 * expected).backward()
    for key, parameter in eager.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-4, atol=1e-5)
    assert model.config._attn_implementation == "sdpa" or name == "git"


@pytest.mark.parametrize("name", BUILDERS)
def test_every_family_learns_where_to_look(name, tmp_path):
    """A few steps make the attention to the boxes grow, by each kind of supervision."""
    for kind in ("direct", "rollout"):
        model, inputs = inputs_of(name)
        if name in ("mllama", "kosmos2", "paligemma", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
            more = inputs["input_ids"].shape[1]
            for key in ("token_type_ids", "mm_token_type_ids", "image_embeds_position_mask"):
                if key in inputs:
                    inputs[key] = torch.nn.functional.pad(inputs[key], (0, more - inputs[key].shape[1]))
            if "cross_attention_mask" in inputs:
                last = inputs["cross_attention_mask"][:, -1:]
                known = inputs["cross_attention_mask"]
                inputs["cross_attention_mask"] = torch.cat([known, last.expand(-1, more - known.shape[1], -1, -1)], 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            losses.append(supervised(model, inputs, tmp_path, attention_supervision=kind)[1].item())
            optimizer.step()
        assert losses[-1] < losses[0], (kind, losses)


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def rows_of(inputs: dict) -> list[dict]:
    """Four rows, of which the third has no phrase at all."""
    rows = [{key: value[row] for key, value in inputs.items()} for row in (0, 1, 1, 0)]
    rows[2]["phrase_boxes"] = torch.zeros_like(rows[2]["phrase_boxes"])
    return rows


def stack(rows: list[dict]) -> dict:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def one_step(model, inputs, folder, trainer_class=AttentionSupervisedTrainer, options=None, **arguments):
    keep = KeepGradients()
    arguments = {"per_device_train_batch_size": 4, "max_steps": 1, "optim": "sgd", "max_grad_norm": 0, **arguments}
    args = TrainingArguments(
        folder, use_cpu=True, logging_steps=1, save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
        **arguments,
    )  # fmt: skip
    trainer = trainer_class(
        model=model, args=args, train_dataset=rows_of(inputs), data_collator=stack, callbacks=[keep], **(options or {})
    )
    trainer.train()
    logs = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return logs, keep.gradients


WAYS = {
    "gradient checkpointing": {"gradient_checkpointing": True},
    "accumulation": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "accumulation one by one": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name, kind", [("llava", "direct"), ("llava", "rollout"), ("vit_gpt2", "direct")])
def test_ways_of_training_give_the_same_gradient(name, kind, way, tmp_path):
    options = {"attention_supervision": kind, "distillation_weight": 0.5}
    if name == "vit_gpt2" and "accumulation" in way:
        pytest.skip("transformers' VisionEncoderDecoder does not divide its loss by the number of accumulated batches")
    found = []
    for arguments in ({}, WAYS[way]):
        model, inputs = inputs_of(name)
        found.append(one_step(model, inputs, tmp_path, options=options, **arguments))
    (logs, gradients), (other_logs, others) = found
    for part in ("loss", "loss_grounding", "loss_distillation"):
        assert other_logs[part] == pytest.approx(logs[part], abs=2e-4)
    assert logs["loss_grounding"] > 0 and gradients.keys() == others.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(others[key], gradient, rtol=1e-4, atol=1e-5)


def test_reentrant_checkpointing_is_an_error_that_says_what_to_do(tmp_path):
    model, inputs = inputs_of("llava")
    arguments = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(ValueError, match="use_reentrant"):
        one_step(model, inputs, tmp_path, **arguments)


def test_lora_learns_where_to_look_and_is_its_own_teacher(tmp_path):
    model, inputs = inputs_of("llava")
    frozen = {key: value.clone() for key, value in model.state_dict().items()}
    adapted = get_peft_model(model, LoraConfig(target_modules=r".*language_model.*(q_proj|k_proj)"))
    options = {"distillation_weight": 1.0}
    first = trainer_of(adapted, tmp_path, **options)
    assert first.teacher is None
    logs, gradients = one_step(adapted, inputs, tmp_path, options=options, learning_rate=0.1)
    assert gradients and all("lora" in key for key in gradients)
    assert any(gradient.abs().sum() > 0 for gradient in gradients.values())
    assert logs["loss_distillation"] == pytest.approx(0, abs=1e-5)  # nothing was learned before the first step
    kept = {key.replace(".base_layer", ""): value for key, value in model.state_dict().items() if "lora" not in key}
    assert all(torch.equal(kept[key], value) for key, value in frozen.items())


def test_distillation_restated(tmp_path):
    model, inputs = inputs_of("llava")
    options = {"attention_supervision": "none", "distillation_weight": 1.0, "distillation_temperature": 3.0}
    trainer = trainer_of(model, tmp_path, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    loss = trainer.compute_loss(model, dict(inputs))
    with torch.no_grad():
        student, teacher = (m(**own(inputs)).logits.double() for m in (model, trainer.teacher))
        plain = model(**own(inputs)).loss
    total, count = 0.0, 0
    for row, place in product(range(2), range(inputs["labels"].shape[1] - 1)):
        if inputs["labels"][row, place + 1] != -100:
            p, q = ((logits[row, place] / 3).softmax(dim=-1).tolist() for logits in (teacher, student))
            total += 9 * sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))
            count += 1
    assert total > 0 and loss.item() == pytest.approx(plain.item() + total / count, rel=1e-4)


@pytest.mark.parametrize("name", ["llava", "git", "vit_gpt2"])
def test_bfloat16(name, tmp_path):
    model, inputs = inputs_of(name)
    _, expected = supervised(model, inputs, tmp_path)
    logs, gradients = one_step(inputs_of(name)[0], inputs, tmp_path, bf16=True)  # autocast
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    model, inputs = inputs_of(name, torch.bfloat16)
    _, part = supervised(model, inputs, tmp_path)
    assert part.item() == pytest.approx(expected.item(), rel=0.02)


def test_evaluations_report_the_loss_of_words_alone(tmp_path):
    model, inputs = inputs_of("vit_gpt2")
    args = Seq2SeqTrainingArguments(tmp_path, use_cpu=True, predict_with_generate=True, generation_max_length=4)

    class Supervised(AttentionSupervisionMixin, Seq2SeqTrainer):
        pass

    losses = []
    for trainer_class in (Supervised, Seq2SeqTrainer):
        rows = rows_of(inputs if trainer_class is Supervised else own(inputs) | {"phrase_boxes": inputs["boxes"]})
        rows = [row if trainer_class is Supervised else own(row) for row in rows]
        trainer = trainer_class(model=model, args=args, data_collator=stack)
        losses.append(trainer.evaluate(rows)["eval_loss"])
    assert losses[0] == pytest.approx(losses[1])


def test_a_batch_without_phrases_is_an_error(tmp_path):
    model, inputs = inputs_of("llava")
    with pytest.raises(ValueError, match="phrase_spans.*PhraseChatCollator"):
        trainer_of(model, tmp_path).compute_loss(model, own(inputs))
    with pytest.raises(ValueError, match="must be one of none, direct, rollout"):
        trainer_of(model, tmp_path, attention_supervision="indirect")


def test_targets_may_be_image_tokens(tmp_path):
    """What boxes become by the geometry of the model, given by hand. LLaVA has no image token but patches."""
    model, inputs = inputs_of("llava")
    _, expected = supervised(model, inputs, tmp_path)
    layout = [torch.arange(16).view(4, 4)]
    of_boxes = torch.stack([targets_of_boxes(layout, torch.tensor(boxes), 16) for boxes in BOXES])
    by_hand = {key: value for key, value in inputs.items() if key not in ("boxes", "phrase_boxes")}
    by_hand["phrase_targets"] = (inputs["phrase_boxes"] @ of_boxes).clamp(max=1)
    _, part = supervised(inputs_of("llava")[0], by_hand, tmp_path)
    torch.testing.assert_close(part, expected)


def test_boxes_on_a_grid():
    layout = [torch.tensor([[0, 1, 2], [3, -1, 4]])]
    boxes = torch.tensor([[0, 0, 1, 1], [0.4, 0.0, 1.0, 0.4], [0.9, 0.9, 0.91, 0.91], [0.3, 0.5, 0.7, 1.0]])
    expected = [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert targets_of_boxes(layout, boxes, 5).tolist() == expected


@pytest.mark.parametrize("kind", ["direct", "rollout"])
def test_one_stream_models_learn_both_directions(kind, tmp_path):
    """VisualBERT has the loss of GroundedVisualBert, on its attention before dropout."""
    torch.manual_seed(0)
    config = VisualBertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16,
        visual_embedding_dim=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    model = VisualBertForVisualReasoning(config).train()
    inputs = {
        "input_ids": torch.tensor([[1, 5, 6, 7], [1, 8, 9, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "visual_embeds": torch.randn(2, 3, 5),
        "visual_attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "labels": torch.tensor([0, 1]),
    }
    phrases = {
        "phrase_spans": torch.tensor([[[1, 3], [3, 4]], [[1, 2], [0, 0]]]),
        "phrase_targets": torch.tensor([[[0, 1, 0], [0, 1, 1]], [[0, 1, 0], [0, 0, 0]]]).float(),
    }
    options = {"attention_supervision": kind, "attention_layers": [-1, 0], "attention_heads": [1]}
    _, part = supervised(model, inputs | phrases, tmp_path, **options)
    attentions = model(**inputs, output_attentions=True).attentions
    masks = inputs["attention_mask"], inputs["visual_attention_mask"]
    losses = supervise_attention(
        attentions, align_words(*phrases.values(), 4), *masks, kind == "rollout", layers=[-1, 0], heads=[1]
    )
    assert losses.keys() == {"to_image", "to_text"}
    torch.testing.assert_close(part, sum(summed / count for summed, count in losses.values()).detach())


@torch.no_grad()
@pytest.mark.parametrize("name", ["llava", "gemma3", "pix2struct", "vit_gpt2", "git", "blip"])
def test_attention_of_chosen_queries_is_that_of_all(name):
    model, inputs = inputs_of(name)
    model, inputs = model.eval(), own(inputs)
    chosen = torch.tensor([[3, 1], [0, 4]])
    with record_attention(model, queries="all") as everything:
        model(**inputs)
    with record_attention(model, queries=chosen) as record:
        model(**inputs)
    length = (inputs["labels"] if model.config.is_encoder_decoder else inputs["input_ids"]).shape[1]
    for some, all_ in zip(record.calls[0].attention.values(), everything.calls[0].attention.values(), strict=True):
        of_tokens = all_[:, :, -length:]
        expected = torch.stack([of_tokens[row][:, places] for row, places in enumerate(chosen)])
        torch.testing.assert_close(some, expected, rtol=1e-5, atol=1e-6)


def conversations(count: int = 2) -> list[dict]:
    question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is a dog?"}]}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "A dog chases a cat"}]}
    phrases = [{"text": "a dog", "boxes": [[0, 0, 10, 10]]}, {"text": "a cat", "boxes": [[20, 20, 32, 32]]}]
    image = Image.new("RGB", (32, 32), "red")
    return [{"messages": [question, answer], "images": [image], "phrases": phrases} for _ in range(count)]


def test_sft_trainer_of_trl(tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature

    class Supervised(AttentionSupervisionMixin, trl.SFTTrainer):
        pass

    model, _ = tiny("llava")
    processor = any_processors.llava()
    rows = conversations(4)
    rows[1]["phrases"] = [{"text": "a fox", "boxes": [[0, 0, 10, 10]]}]
    part = {"type": Value("string"), "text": Value("string")}
    features = Features(
        messages=List({"role": Value("string"), "content": List(part)}),
        images=List(ImageFeature()),
        phrases=List({"text": Value("string"), "boxes": List(List(Value("float32")))}),
    )
    trainer = Supervised(
        model=model,
        args=trl.SFTConfig(
            str(tmp_path), use_cpu=True, bf16=False, max_steps=6, per_device_train_batch_size=2, logging_steps=1,
            gradient_accumulation_steps=2, learning_rate=1e-2, save_strategy="no", max_length=None,
            disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False,
        ),
        train_dataset=Dataset.from_list(rows, features=features),
        data_collator=PhraseChatCollator(processor),
        processing_class=processor,
        attention_layers=[-1],
    )  # fmt: skip
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss_grounding" in entry]
    assert logs[-1]["loss_grounding"] < logs[0]["loss_grounding"] and "mean_token_accuracy" in logs[0]
    assert [entry["missing_phrases"] for entry in logs] == [1, 2, 3, 4, 5, 6]


def test_a_plain_trainer_is_not_changed(tmp_path):
    model, inputs = inputs_of("llava")
    loss = trainer_of(model, tmp_path, attention_supervision="none").compute_loss(model, dict(inputs))
    expected = Trainer(model=model, args=TrainingArguments(tmp_path, use_cpu=True)).compute_loss(model, own(inputs))
    torch.testing.assert_close(loss, expected)
