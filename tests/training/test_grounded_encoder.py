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

import pytest
import torch
from transformers import AutoModel, TrainingArguments

from hf_vg.data import CaptionPairCollator, grounded_encoder_rows, load_scenes, train_word_tokenizer
from hf_vg.evaluation import retrieval_metrics
from hf_vg.training import (
    ClipGradientValues,
    GroundedEncoderArguments,
    VgTrainer,
    build_grounded_encoder,
    parse_arguments,
    retrieval_vectors,
)
from tests.common import ROOT


TINY = {
    "embedding_size": 8,
    "hidden_size": 8,
    "attention_size": 4,
    "num_attention_rows": 2,
    "image_head_size": 8,
    "feature_size": 6,
    "backbone_config": {"model_type": "vgg", "depths": [1, 1], "hidden_sizes": [4, 6]},
    "freeze_backbone": False,
}


@pytest.fixture(scope="module")
def scenes():
    return load_scenes(24, 8, 8, image_size=32)


def build(scenes, **kwargs):
    args = GroundedEncoderArguments(**{"model": TINY, "image_size": 32, **kwargs})
    tokenizer = train_word_tokenizer([caption for row in scenes["train"]["captions"] for caption in row])
    return args, *build_grounded_encoder(args, tokenizer)


@pytest.mark.parametrize("max_grad_value", [None, 1e-3])
def test_trains_with_gradients_clipped_by_value(scenes, tmp_path, max_grad_value):
    args, model, processor = build(scenes, max_grad_value=max_grad_value)
    largest = []

    class Trainer(VgTrainer):
        def create_optimizer(self, *arguments, **kwargs):
            optimizer = super().create_optimizer(*arguments, **kwargs)

            def remember(optimizer, arguments, kwargs):
                gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
                largest.append(max(gradient.abs().max().item() for gradient in gradients))

            optimizer.register_step_pre_hook(remember)
            return optimizer

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_train_epochs=1,
            max_grad_norm=0,
            use_cpu=True,
            remove_unused_columns=False,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=grounded_encoder_rows(args, scenes["train"], model, processor),
        eval_dataset=grounded_encoder_rows(args, scenes["validation"], model, processor, fixed=True),
        data_collator=CaptionPairCollator(processor),
        processing_class=processor,
        callbacks=[] if max_grad_value is None else [ClipGradientValues(max_grad_value)],
    )
    trainer.train()
    assert len(largest) == 3
    if max_grad_value is None:
        assert max(largest) > 1e-2
    else:
        assert largest == pytest.approx([max_grad_value] * 3)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(
        entry["loss"] == pytest.approx(entry["loss_caption"] + entry["loss_grounding"], abs=2e-3) for entry in logged
    )
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]
    trainer.save_model()
    assert AutoModel.from_pretrained(tmp_path).encode(["a red circle"]).shape == (1, 16)


def test_cached_features_serve_as_well_as_images(scenes, tmp_path):
    args, model, processor = build(scenes)
    model.config.freeze_backbone = model.image_encoder.frozen = True
    model.eval()
    collator = CaptionPairCollator(processor)
    images = grounded_encoder_rows(args, scenes["test"], model, processor, fixed=True)
    args.features = str(tmp_path)
    cached = grounded_encoder_rows(args, scenes["test"], model, processor, fixed=True)
    with_images, with_features = collator(list(images)), collator(list(cached))
    assert "pixel_values" in with_images and with_features["image_features"].shape == (8, 6)
    with torch.no_grad():
        losses = [model(**batch).loss for batch in (with_images, with_features)]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)  # features are kept in half precision
    metrics = [retrieval_metrics(*retrieval_vectors(model, [batch])) for batch in (with_images, with_features)]
    assert metrics[0]["text_to_image_mean_rank"] == pytest.approx(metrics[1]["text_to_image_mean_rank"], abs=0.5)
    drawn = collator(list(grounded_encoder_rows(args, scenes["train"], model, processor)))
    assert drawn["image_features"].shape == (24, 6)


def test_cap2cap_needs_no_images(scenes):
    args, model, processor = build(scenes, model={**TINY, "objective": "cap2cap"})
    batch = CaptionPairCollator(processor)(list(grounded_encoder_rows(args, scenes["test"], model, processor)))
    assert set(batch) == {"input_ids", "attention_mask", "labels", "image_ids"}
    assert torch.isfinite(model(**batch).loss)


def test_an_untrained_backbone_is_not_frozen(scenes):
    with pytest.raises(ValueError, match="would keep its random weights"):
        build(scenes, model={**TINY, "freeze_backbone": True})
    args, model, processor = build(scenes, features="somewhere")
    with pytest.raises(ValueError, match="freeze_backbone true"):
        grounded_encoder_rows(args, scenes["train"], model, processor)
    with pytest.raises(ValueError, match="greater than 0, got 0"):
        ClipGradientValues(0)


@pytest.mark.parametrize("name", ["grounded_encoder_scenes", "grounded_encoder_flickr8k"])
def test_configs_are_valid(name, tmp_path):
    from hf_vg.models.self_attn_grounded_encoder import SelfAttnGroundedEncoderConfig
    from hf_vg.training import VgTrainingArguments

    args, training_args = parse_arguments(
        (GroundedEncoderArguments, VgTrainingArguments),
        ROOT / "recipes" / "configs" / f"{name}.yaml",
        ["--output_dir", str(tmp_path)],
    )
    config = SelfAttnGroundedEncoderConfig(**args.model)
    assert config.objective == "cap2all" and args.max_grad_value == 5
    assert training_args.max_grad_norm == 0
    assert json.loads(config.to_json_string())["model_type"] == "self_attn_grounded_encoder"
