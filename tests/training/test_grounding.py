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
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, set_seed

from hf_vg import (
    GroundedVisualBertForQuestionAnswering,
    GroundedVisualBertForReferringExpression,
    GroundedVisualBertForVGP,
)
from hf_vg.data import (
    CaptionPairCollatorForVGP,
    QuestionCollator,
    ReferringCollator,
    answer_vocabulary,
    load_grounded_images,
    open_image,
    question_rows,
    referring_rows,
    region_images,
    rows_by_novelty,
    rows_to_draw,
    training_texts,
    vgp_rows,
)
from hf_vg.data.features import undecoded
from hf_vg.evaluation import answer_questions, resolve_expressions, vgp_metrics
from hf_vg.interpretation import attention_rollout, plot_regions, region_examples, word_to_region_attention
from hf_vg.training import (
    QuestionArguments,
    ReferringArguments,
    VgpArguments,
    VgpTrainer,
    VgTrainingArguments,
    build_grounded_visual_bert,
    parse_arguments,
)
from tests.common import ROOT
from tests.data.test_regions import write_entities


TINY = {
    "backbone_config": {"model_type": "vgg", "depths": [1, 1], "hidden_sizes": [4, 6]},
    "freeze_backbone": False,
    "region_feature_size": 6,
    "visual_embedding_dim": 8,
    "region_samples": 2,
    "geometry_frequencies": 2,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
SIZES = {"num_train_images": 6, "num_eval_images": 4, "image_size": 32}


@pytest.fixture(scope="module")
def vgp():
    """A small VGP model with all that the recipe makes for it."""
    set_seed(0)
    args = VgpArguments(model={**TINY, "attention_supervision": "rollout"}, pairs_per_image=4, **SIZES)
    images = load_grounded_images(args)
    texts = [caption for captions in images["train"]["captions"] for caption in captions]
    model, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, texts)
    rows = vgp_rows(args, images, model, processor, args.paraphrases_dir, args.pairs_per_image)
    collators = {
        split: CaptionPairCollatorForVGP(processor, region_images(args, table, model, processor))
        for split, table in images.items()
    }
    return model, rows, collators


class TestVgp:
    def test_rows(self, vgp):
        _, rows, _ = vgp
        assert {split: len(table) for split, table in rows.items()} == {"train": 24, "validation": 16, "test": 16}
        assert sorted(label == 0 for label in rows["train"]["label"]) == [False] * 12 + [True] * 12

    def test_rows_by_novelty(self, vgp):
        _, rows, _ = vgp
        images = load_grounded_images(VgpArguments(**SIZES))["test"]
        parts = rows_by_novelty(rows["test"], images)
        assert {name: set(table["row"]) for name, table in parts.items()} == {"seen": {0, 2}, "unseen": {1, 3}}
        assert len(parts["seen"]) == len(parts["unseen"]) == 8
        assert rows_by_novelty(rows["test"], images.remove_columns("unseen")) == {}

    def test_metrics_restated(self, vgp):
        model, rows, collators = vgp
        metrics = vgp_metrics(model, rows["test"], collators["test"], batch_size=5)
        right = {name: [] for name in metrics}
        for row in rows["test"]:  # one at a time, without padding
            batch = collators["test"]([row])
            with torch.no_grad():
                outputs = model(**batch, output_attentions=True)
            right["identification"].append(outputs.logits[0].argmax().item() == row["label"])
            for scores, label in zip(outputs.paraphrase_logits[0], batch["pair_labels"][0], strict=True):
                if label != -100:
                    right["paraphrase"].append((scores.argmax() == label).item())
            tokens = batch["input_ids"].shape[1]
            maps = {
                "attention": outputs.attentions[-1][0].mean(dim=0)[:tokens, tokens:],
                "rollout": attention_rollout(outputs.attentions)[-1][0, :tokens, tokens:],
            }
            for name, attention in maps.items():
                shown = {}
                for (start, end), flags in zip(batch["phrase_spans"][0], batch["phrase_boxes"][0], strict=True):
                    boxes = flags.nonzero().flatten().tolist()
                    if not boxes:
                        continue
                    for token in range(start, end):
                        shown.setdefault(token, set()).update(boxes)
                    total = attention[start:end].sum(dim=0)
                    total[0] = -1
                    right[f"phrase_{name}"].append(total.argmax().item() in boxes)
                right[f"word_{name}"] += [attention[t].argmax().item() in boxes for t, boxes in shown.items()]
        for name, values in right.items():
            assert metrics[name] == pytest.approx(np.mean(values)), name
        assert len(right["word_rollout"]) > len(right["phrase_rollout"]) > 10

    def test_classifier_is_scored_where_there_is_one(self, vgp):
        model, rows, collators = vgp
        model.config.attention_supervision = "indirect"
        try:
            indirect = GroundedVisualBertForVGP(model.config)
        finally:
            model.config.attention_supervision = "rollout"
        metrics = vgp_metrics(indirect, rows["test"], collators["test"])
        assert 0 <= metrics["phrase_classifier"] <= 1
        assert "phrase_classifier" not in vgp_metrics(model, rows["test"].select(range(4)), collators["test"])

    def test_word_to_region_attention(self):
        attentions = tuple(torch.rand(1, 2, 5, 5).softmax(dim=-1) for _ in range(3))
        last = word_to_region_attention(attentions, 3)
        expected = attentions[-1].mean(dim=1)[:, :3, 3:]
        torch.testing.assert_close(last, expected / expected.sum(dim=-1, keepdim=True))
        rolled = word_to_region_attention(attentions, 3, rollout=True)
        torch.testing.assert_close(rolled.sum(dim=-1), torch.ones(1, 3))
        assert not torch.allclose(rolled, last)

    def test_figure(self, vgp, tmp_path):
        pytest.importorskip("matplotlib")
        model, rows, collators = vgp
        shown = [row for row in rows["test"] if row["label"] == 0][:2]
        examples = region_examples(model, shown, collators["test"], rollout=True)
        for row, example in zip(shown, examples, strict=True):
            assert " ".join(example["words"]) == row["caption1"]
            assert example["attention"].shape == (len(example["words"]), len(example["boxes"]))
            named = [word for word, right in zip(example["words"], example["right"], strict=True) if right]
            phrases = [row["caption1"][p["start"] : p["end"]] for p in row["phrases1"]]
            assert named == " ".join(phrases).split()
        figure = plot_regions(examples, tmp_path / "regions.png", columns=4)
        assert (tmp_path / "regions.png").stat().st_size > 1000
        titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
        assert titles == [word for example in examples for word in example["words"]]
        with pytest.raises(ValueError, match="Example 0 .*attention"):
            plot_regions({**examples[0], "words": ["one"]})

    @pytest.mark.parametrize("kind", ["states", "outputs"])
    def test_distillation_keeps_a_model_near_where_it_was(self, vgp, tmp_path, kind):
        import copy

        original, rows, collators = vgp
        distances = {}
        for weight in (0.0, 100.0):
            model = copy.deepcopy(original)
            arguments = VgTrainingArguments(
                output_dir=str(tmp_path),
                max_steps=6,
                per_device_train_batch_size=8,
                learning_rate=1e-2,
                remove_unused_columns=False,
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=2,
                use_cpu=True,
            )
            trainer = VgpTrainer(
                model=model,
                args=arguments,
                train_dataset=rows["train"],
                data_collator=collators["train"],
                texts_together=4,
                distillation_weight=weight,
                distillation=kind,
            )
            trainer.train()
            logged = {name for entry in trainer.state.log_history for name in entry}
            assert ("loss_distillation" in logged) == bool(weight) and "loss_attention" in logged
            batch = collators["train"](list(rows["train"]))
            with torch.no_grad():
                before, after = (m.eval()(**batch) for m in (original, model))
            name = {"states": "last_hidden_state", "outputs": "logits"}[kind]
            distances[weight] = (before[name] - after[name]).square().mean().item()
        assert 0 < distances[100.0] < 0.5 * distances[0.0]

    def test_distillation_of_outputs_restated(self, vgp, tmp_path):
        """Hinton's loss in loops: T^2 times the divergence, a mean over pairs of phrases plus one over captions."""
        import copy

        teacher, rows, collators = vgp
        student = copy.deepcopy(teacher)
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        trainer = VgpTrainer(
            model=teacher,
            args=VgTrainingArguments(output_dir=str(tmp_path), use_cpu=True),
            distillation_weight=2.0,
            distillation="outputs",
            distillation_temperature=3.0,
        )
        batch = collators["train"](list(rows["train"]))
        student.train()
        loss, outputs = trainer.compute_loss(student, batch, return_outputs=True)
        with torch.no_grad():
            taught = teacher.eval()(**batch)

        def divergence(scores, taught_scores):
            now, then = (torch.softmax(s.detach().float() / 3, dim=-1) for s in (scores, taught_scores))
            return 9 * sum(float(p * (p / q).log()) for p, q in zip(then, now, strict=True))

        captions = [divergence(*pair) for pair in zip(outputs.logits, taught.logits, strict=True)]
        pairs = [
            divergence(outputs.paraphrase_logits[row, pair], taught.paraphrase_logits[row, pair])
            for row, labels in enumerate(batch["pair_labels"].tolist())
            for pair, label in enumerate(labels)
            if label != -100
        ]
        assert 0 < len(pairs) < batch["pair_labels"].numel()  # some are padding
        expected = sum(captions) / len(captions) + sum(pairs) / len(pairs)
        assert expected > 0.01
        assert (loss - outputs.loss).item() == pytest.approx(2 * expected, rel=1e-4)
        with pytest.raises(ValueError, match="`distillation` must be one of states, outputs, got 'logits'"):
            VgpTrainer(model=teacher, args=trainer.args, distillation="logits")

    def test_masked_words_are_mixed_in(self, vgp):
        args = VgpArguments(model={**TINY, "masked_lm_weight": 0.5}, pairs_per_image=2, **SIZES)
        _, rows, collators = vgp
        texts = [row["caption1"] for row in rows["train"]]
        model, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, texts)
        collator = CaptionPairCollatorForVGP(processor, collators["train"].images, mask_words=True)
        outputs = model(**collator(list(rows["train"])))
        expected = outputs.loss_identification + outputs.loss_paraphrase + 0.5 * outputs.loss_masked_lm
        torch.testing.assert_close(outputs.loss, expected)


class TestBuilding:
    def test_from_text_weights_backbone_and_cached_features(self, tmp_path):
        """As on real images: BERT's weights, a pretrained backbone, and its features computed once."""
        from transformers import CLIPImageProcessorPil

        from hf_vg import VggBackbone, VggConfig
        from hf_vg.data import train_wordpiece_tokenizer

        tokenizer = train_wordpiece_tokenizer(["a red circle and two blue squares"])
        sizes = {name: TINY[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        BertModel(BertConfig(vocab_size=len(tokenizer), intermediate_size=8, **sizes)).save_pretrained(
            tmp_path / "bert"
        )
        tokenizer.save_pretrained(tmp_path / "bert")
        backbone = VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[4, 6]))
        backbone.save_pretrained(tmp_path / "vgg")
        CLIPImageProcessorPil().save_pretrained(tmp_path / "vgg")
        args = VgpArguments(
            text_model=str(tmp_path / "bert"),
            backbone=str(tmp_path / "vgg"),
            features=str(tmp_path / "features"),
            model={"attention_supervision": "direct"},
            **SIZES,
        )
        images = load_grounded_images(args)["test"]
        model, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, [])
        assert model.config.freeze_backbone and model.config.region_feature_size == 6
        assert processor.image_processor.size == {"height": 32, "width": 32}
        with_features = region_images(args, images, model, processor)
        with_cache, args = args, dataclasses.replace(args, features=None)
        with_pixels = region_images(args, images, model, processor)
        rows = [{"row": 1, "expression": "a red circle", "box": [0.1, 0.1, 0.5, 0.5]}]
        batches = [ReferringCollator(processor, table)(rows) for table in (with_features, with_pixels)]
        assert "image_features" in batches[0] and "pixel_values" in batches[1]
        with_both = region_images(with_cache, images, model, processor, keep_images=True)
        assert open_image(with_both[1]["image"]).size == (32, 32) and torch.equal(
            torch.as_tensor(with_both[1]["image_features"]), torch.as_tensor(with_features[1]["image_features"])
        )
        torch.testing.assert_close(batches[0]["boxes"], batches[1]["boxes"])
        outputs = []
        for batch in batches:
            batch.pop("labels")
            with torch.no_grad():
                outputs.append(model.visual_bert(**batch).last_hidden_state)
        torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-2, atol=1e-2)  # features are in half precision

    def test_published_data_with_and_without_cached_features(self, tmp_path):
        """The caption pairs, negatives among them, and the loss are the same."""
        folder, pictures = write_entities(tmp_path, ("100", "200", "300", "400"))
        header = "image,original_phrase1,original_phrase2,type_label"
        (tmp_path / "train_data.csv").write_text(f"{header}\n300,a dog,The brown dog,2\n")
        set_seed(0)
        args = VgpArguments(
            dataset="flickr30k_entities",
            data_dir=str(folder),
            images_dir=str(pictures),
            paraphrases_dir=str(tmp_path),
            pairs_per_image=4,
            model={**TINY, "freeze_backbone": True, "attention_supervision": "direct"},
            image_size=32,
        )
        images = load_grounded_images(args)
        model, processor = build_grounded_visual_bert(
            args, GroundedVisualBertForVGP, training_texts(images["validation"])
        )
        losses, pairs = [], []
        for features in (None, str(tmp_path / "cache")):
            args.features = features
            rows = vgp_rows(args, images, model, processor, args.paraphrases_dir, args.pairs_per_image)["validation"]
            pairs.append(rows.to_list())
            table = region_images(args, images["validation"], model, processor)
            with torch.no_grad():
                losses.append(model.eval()(**CaptionPairCollatorForVGP(processor, table)(list(rows))).loss)
        assert pairs[0] == pairs[1] and len(pairs[0]) == 8
        # The paraphrase is of a validation image, though it stands in the file of training.
        assert sum(len(row["pairs"]) for row in pairs[0]) == 1
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-3)  # features are in half precision
        assert len(list((tmp_path / "cache").iterdir())) == 1  # of maps, which are pooled for negatives too

    def test_from_a_checkpoint(self, vgp, tmp_path):
        model, _, collators = vgp
        model.save_pretrained(tmp_path)
        collators["train"].processor.save_pretrained(tmp_path)
        fields = {"num_hidden_layers": 3, "hidden_size": 16, "hidden_dropout_prob": 0.3}
        args = ReferringArguments(checkpoint=str(tmp_path), model=fields)
        loaded, processor = build_grounded_visual_bert(args, GroundedVisualBertForReferringExpression, [])
        # Its sizes are its own, whatever those of a recipe's new models; the rest is the user's.
        assert (len(loaded.visual_bert.encoder.layer), loaded.config.hidden_size) == (2, 8)
        assert loaded.config.hidden_dropout_prob == 0.3
        assert torch.equal(
            loaded.visual_bert.embeddings.word_embeddings.weight, model.visual_bert.embeddings.word_embeddings.weight
        )
        assert processor.tokenizer.get_vocab() == collators["train"].processor.tokenizer.get_vocab()

    def test_a_new_tokenizer_knows_what_is_asked_after_training(self):
        args = VgpArguments(model=TINY, **SIZES)
        scenes = load_grounded_images(args)["train"]
        texts = training_texts(scenes)
        assert scenes[0]["captions"][0] in texts and scenes[0]["questions"][0]["question"] in texts
        _, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, texts)
        words = processor.tokenizer.tokenize("how many circles are there? what color is the square above the cross?")
        assert len(words) == 15 and "[UNK]" not in words
        assert training_texts(scenes.select_columns("captions")) == [c for row in scenes["captions"] for c in row]

    def test_missing_arguments_are_named(self):
        with pytest.raises(ValueError, match="`dataset: flickr30k_entities` needs `data_dir`"):
            load_grounded_images(VgpArguments(dataset="flickr30k_entities"))
        with pytest.raises(ValueError, match="`dataset` .*'scenes', 'flickr30k_entities'.*'coco'"):
            load_grounded_images(VgpArguments(dataset="coco"))

    def test_files_are_never_ignored_for_scenes(self, tmp_path):
        for load in (load_grounded_images, question_rows, referring_rows):
            with pytest.raises(ValueError, match="`dataset: scenes` .*`data_dir`"):
                load(VgpArguments(data_dir=str(tmp_path)))
        with pytest.raises(FileNotFoundError, match="`images_dir` is not a folder: '.*nowhere'"):
            question_rows(
                QuestionArguments(dataset="vqa", data_dir=str(tmp_path), images_dir=str(tmp_path / "nowhere"))
            )

    def test_too_many_boxes_are_refused_before_training(self, vgp):
        _, _, collators = vgp
        processor, images = collators["test"].processor, collators["test"].images
        processor.max_boxes = 1
        try:
            with pytest.raises(ValueError, match="image . .*boxes.* 1"):
                region_images(VgpArguments(), images, None, processor)
        finally:
            processor.max_boxes = 1000

    def test_rows_to_draw(self, vgp):
        _, rows, _ = vgp
        drawn = rows_to_draw(rows["test"], 3)
        assert len(drawn) == 3 and all(row["label"] == 0 for row in drawn)
        assert rows_to_draw(rows["test"], 0) == []
        assert len(rows_to_draw(rows["test"], 99)) == 8

    @pytest.mark.parametrize("config", sorted(Path(ROOT / "recipes" / "configs").glob("v[gq][pa]_*.yaml")), ids=str)
    def test_configs_are_read(self, config):
        kind = QuestionArguments if config.name.startswith("vqa") else VgpArguments
        args, _ = parse_arguments((kind, VgTrainingArguments), config, [])
        method = config.name.split("_")[1]
        if kind is VgpArguments:
            assert args.model["attention_supervision"] == method


class TestBrokenImages:
    def test_are_skipped_with_their_questions(self, tmp_path):
        from tests.data.test_regions import TestVqa

        (tmp_path / "val2014").mkdir()
        TestVqa().write(tmp_path / "val2014", ["yes"] * 10)
        questions = json.loads((tmp_path / "val2014" / "q.json").read_text())
        annotations = json.loads((tmp_path / "val2014" / "a.json").read_text())
        questions["questions"].append({"question_id": 11, "image_id": 8, "question": "Why?"})
        annotations["annotations"].append({**annotations["annotations"][0], "question_id": 11})
        (tmp_path / "val2014" / "COCO_val2014_000000000008.jpg").write_bytes(b"no image")
        (tmp_path / "train2014").symlink_to(tmp_path / "val2014")
        for name in ("train2014", "val2014"):
            (tmp_path / f"v2_OpenEnded_mscoco_{name}_questions.json").write_text(json.dumps(questions))
            (tmp_path / f"v2_mscoco_{name}_annotations.json").write_text(json.dumps(annotations))
        args = QuestionArguments(dataset="vqa", data_dir=str(tmp_path), images_dir=str(tmp_path))
        images, rows = question_rows(args)
        assert rows["train"]["question"][:] == ["What is it?"] and len(images["train"]) == 1
        assert len(images["train"][0]["boxes"]) == 9
        args.strict = True
        with pytest.raises(ValueError, match="COCO_val2014_000000000008.jpg"):
            question_rows(args)

    def test_do_not_end_a_training(self, vgp, tmp_path):
        """What no header shows: an image that is broken in its middle becomes grey, and its text stays."""
        _, rows, collators = vgp
        images = undecoded(collators["test"].images).to_list()
        images[0]["image"] = {"bytes": None, "path": str(tmp_path / "gone.png")}
        broken = CaptionPairCollatorForVGP(collators["test"].processor, images)
        batch, expected = (collator(list(rows["test"])) for collator in (broken, collators["test"]))
        assert set(batch) == set(expected) and torch.equal(batch["labels"], expected["labels"])
        differs = [
            not torch.equal(*pixels) for pixels in zip(batch["pixel_values"], expected["pixel_values"], strict=True)
        ]
        assert differs == [True] + [False] * 3


class TestDownstream:
    def test_questions(self):
        set_seed(0)
        args = QuestionArguments(model=TINY, **SIZES)
        images, rows = question_rows(args)
        answers = answer_vocabulary(rows["train"]["answers"])
        assert {"yes", "no"} <= set(answers)
        model, processor = build_grounded_visual_bert(
            args, GroundedVisualBertForQuestionAnswering, rows["train"]["question"], id2label=dict(enumerate(answers))
        )
        collator = QuestionCollator(processor, region_images(args, images["test"], model, processor), answers)
        batch = collator(list(rows["test"]))
        assert torch.isfinite(model(**batch).loss)
        labels = batch.pop("labels")
        predicted = answer_questions(model, rows["test"], collator, batch_size=3)
        with torch.no_grad():
            assert predicted == [answers[i] for i in model.eval()(**batch).logits.argmax(dim=1)]
        for row, label in zip(rows["test"], labels, strict=True):
            if row["answers"][0] in answers:
                assert answers[label.argmax()] == row["answers"][0] and label.sum() == 1

    def test_referring(self):
        set_seed(0)
        args = ReferringArguments(model=TINY, **SIZES)
        images, rows = referring_rows(args)
        model, processor = build_grounded_visual_bert(
            args, GroundedVisualBertForReferringExpression, rows["train"]["expression"]
        )
        collator = ReferringCollator(processor, region_images(args, images["test"], model, processor))
        batch = collator(list(rows["test"]))
        assert torch.isfinite(model(**batch).loss)
        assert (batch["labels"].sum(dim=1) == 1).all()
        regions = batch["boxes"].repeat_interleave(len(rows["test"]) // len(batch["boxes"]), dim=0)
        right = regions[torch.arange(len(rows["test"])), batch["labels"].argmax(dim=1)]
        np.testing.assert_allclose(right.numpy(), rows["test"]["box"][:], atol=1e-6)
        chosen = resolve_expressions(model, rows["test"], collator, batch_size=3)
        assert len(chosen) == len(rows["test"])
        for row, box in zip(rows["test"], chosen, strict=True):
            regions = [[0, 0, 1, 1], *(np.divide(b, 32).tolist() for b in images["test"][row["row"]]["boxes"])]
            assert box in regions
