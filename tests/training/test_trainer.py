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

from hf_vg import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration, VggConfig
from hf_vg.training import VgTrainer, VgTrainingArguments


def tiny_captioner(**kwargs) -> ShowAttendTellForConditionalGeneration:
    config = {
        "backbone_config": VggConfig(depths=[1], hidden_sizes=[6]),
        "feature_size": 6,
        "vocab_size": 12,
        "embedding_size": 5,
        "hidden_size": 7,
    }
    return ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(**{**config, **kwargs}))


def trainer_of(model, output_dir, **kwargs) -> VgTrainer:
    args = VgTrainingArguments(output_dir=output_dir, use_cpu=True, learning_rate=1e-2, weight_decay=0.1, **kwargs)
    return VgTrainer(model=model, args=args)


class TestBackboneLearningRate:
    def test_backbone_has_its_own_and_everything_else_the_usual(self, tmp_path):
        model = tiny_captioner(freeze_backbone=False)
        trainer = trainer_of(model, tmp_path, backbone_learning_rate=1e-4, lr_scheduler_type="linear", warmup_steps=0)
        trainer.create_optimizer_and_scheduler(10)
        names = {parameter: name for name, parameter in model.named_parameters()}
        rates, decays = {}, {}
        for group in trainer.optimizer.param_groups:
            for parameter in group["params"]:
                assert names[parameter] not in rates
                rates[names[parameter]], decays[names[parameter]] = group["lr"], group["weight_decay"]
        assert set(rates) == set(names.values())
        assert all(rate == (1e-4 if "backbone" in name else 1e-2) for name, rate in rates.items())
        assert {decays[name] for name in rates if "backbone" in name and name.endswith("bias")} == {0.0}
        assert {decays[name] for name in rates if "backbone" in name and name.endswith("weight")} == {0.1}
        for _ in range(5):  # the schedule scales both
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
        assert {round(group["lr"], 8) for group in trainer.optimizer.param_groups} == {5e-3, 5e-5}

    @pytest.mark.parametrize("kwargs", [{"freeze_backbone": True}, {"backbone_config": None}])
    def test_a_model_without_a_backbone_to_train_is_refused(self, tmp_path, kwargs):
        trainer = trainer_of(tiny_captioner(**kwargs), tmp_path, backbone_learning_rate=1e-4)
        with pytest.raises(ValueError, match="no backbone to train"):
            trainer.create_optimizer()


def test_a_frozen_backbone_is_thawed_when_loaded_so(tmp_path):
    tiny_captioner().save_pretrained(tmp_path)
    model = ShowAttendTellForConditionalGeneration.from_pretrained(tmp_path, freeze_backbone=False).train()
    model(pixel_values=torch.randn(2, 3, 8, 8), labels=torch.tensor([[3, 0], [4, 0]])).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.model.encoder.image_encoder.backbone.parameters())


class TestSavingIntoOutputDir:
    def saved(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def test_an_interruption_leaves_the_model_that_was_there(self, tmp_path, monkeypatch):
        trainer = trainer_of(tiny_captioner(), tmp_path)
        trainer.save_model()
        before = self.saved(tmp_path)
        assert {"config.json", "model.safetensors"} <= {*before} and not (tmp_path / "_saving").exists()

        def killed(*args, **kwargs):
            raise KeyboardInterrupt

        torch.nn.init.ones_(trainer.model.lm_head.weight)
        with monkeypatch.context() as patch:
            patch.setattr("hf_vg.training.trainer.os.replace", killed)
            with pytest.raises(KeyboardInterrupt):
                trainer.save_model()
        assert self.saved(tmp_path) == before
        trainer.save_model()
        after = self.saved(tmp_path)
        assert after["model.safetensors"] != before["model.safetensors"] and not (tmp_path / "_saving").exists()

    def test_shards_of_an_earlier_model_go(self, tmp_path):
        (tmp_path / "model-00001-of-00002.safetensors").touch()
        (tmp_path / "notes.txt").touch()
        trainer_of(tiny_captioner(), tmp_path).save_model()
        assert not [*tmp_path.glob("model-*")] and (tmp_path / "notes.txt").exists()
