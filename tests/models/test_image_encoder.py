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
"""The vision front end, alone and inside the models."""

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel, ResNetConfig

from hf_vg import VseScnlmConfig, VseScnlmModel
from hf_vg.models.image_encoder import ImageEncoder
from hf_vg.models.vgg import VggConfig


def vgg(**kwargs) -> VggConfig:
    return VggConfig(depths=[1, 1], hidden_sizes=[4, 6], **kwargs)


def resnet() -> ResNetConfig:
    return ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 6], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )


class TinyConfig(PreTrainedConfig):
    model_type = "tiny_image_encoder"
    backbone_config: PreTrainedConfig | dict | None = None
    freeze_backbone: bool = True
    feature_size: int = 6

    def __post_init__(self, **kwargs):
        if isinstance(self.backbone_config, dict):
            backbone_class = {"vgg": VggConfig, "resnet": ResNetConfig}[self.backbone_config["model_type"]]
            self.backbone_config = backbone_class.from_dict(self.backbone_config)
        super().__post_init__(**kwargs)


class TinyModel(PreTrainedModel):
    config_class = TinyConfig
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True

    def __init__(self, config: TinyConfig):
        super().__init__(config)
        self.image_encoder = ImageEncoder(config)
        self.classifier = torch.nn.Linear(config.feature_size, 2)
        self.post_init()

    def forward(self, pixel_values):
        return self.classifier(self.image_encoder(pixel_values)).sum()


def encoder(pooled: bool = False, **fields) -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(TinyConfig(**{"backbone_config": vgg(), **fields}), pooled=pooled)


def trainable(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_fc7_is_a_vector_of_an_image_and_is_saved_with_the_model(tmp_path):
    torch.manual_seed(0)
    backbone = vgg(fc_size=7, out_features=["fc7"])
    model = VseScnlmModel(VseScnlmConfig(backbone_config=backbone, feature_size=7, hidden_size=8, vocab_size=9)).eval()
    model.save_pretrained(tmp_path)
    loaded = VseScnlmModel.from_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = model.image_encoder(images)
        assert features.shape == (2, 7) and features.any()
        assert torch.equal(features, model.image_encoder.backbone(images).feature_maps[-1].flatten(1))
        torch.testing.assert_close(loaded.image_encoder(images), features)


@pytest.mark.parametrize("backbone", [vgg, resnet])
@pytest.mark.parametrize("kwargs", [{}, {"dtype": torch.bfloat16}, {"device_map": "cpu"}], ids=str)
def test_frozen_backbone_stays_frozen_after_loading(backbone, kwargs, tmp_path):
    model = TinyModel(TinyConfig(backbone_config=backbone()))
    assert trainable(model) == {"classifier.weight", "classifier.bias"}
    model.save_pretrained(tmp_path)
    loaded = TinyModel.from_pretrained(tmp_path, **kwargs)
    assert trainable(loaded) == {"classifier.weight", "classifier.bias"}
    loaded.train()
    assert trainable(loaded) == {"classifier.weight", "classifier.bias"}
    assert not any(module.training for module in loaded.image_encoder.backbone.modules())
    loaded.float()(torch.randn(2, 3, 32, 32)).backward()
    assert all(parameter.grad is None for parameter in loaded.image_encoder.parameters())
    with torch.device("meta"):
        assert trainable(TinyModel(model.config)) == {"classifier.weight", "classifier.bias"}


def test_trained_backbone_stays_trained(tmp_path):
    TinyModel(TinyConfig(backbone_config=vgg(), freeze_backbone=False)).save_pretrained(tmp_path)
    loaded = TinyModel.from_pretrained(tmp_path).train()
    assert trainable(loaded) == {name for name, _ in loaded.named_parameters()}
    assert loaded.image_encoder.backbone.training


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(use_reentrant):
    torch.manual_seed(0)
    model = TinyModel(TinyConfig(backbone_config=vgg(), freeze_backbone=False)).train()
    images = torch.randn(2, 3, 8, 8)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(images).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    for gradient, plain in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(gradient, plain)
    assert expected[0].abs().sum() > 0


def test_a_map_or_a_vector():
    images = torch.randn(2, 3, 8, 8)
    feature_map = encoder()(images)
    (expected,) = encoder().backbone(images).feature_maps
    torch.testing.assert_close(feature_map, expected.permute(0, 2, 3, 1))
    vector = encoder(pooled=True)(images)
    torch.testing.assert_close(vector, feature_map.mean(dim=(1, 2)))


def test_features_computed_before_pass_through():
    for features in (torch.randn(2, 16, 6), torch.randn(2, 4, 4, 6)):
        assert encoder()(image_features=features) is features
    assert encoder(pooled=True)(image_features=torch.zeros(2, 6)).shape == (2, 6)


def test_wrong_input_is_named():
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
        encoder()(images, torch.zeros(2, 16, 6))
    with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
        encoder()()
    with pytest.raises(ValueError, match="has no backbone.*`image_features`"):
        encoder(backbone_config=None)(images)
    with pytest.raises(ValueError, match=r"must be \(batch, channels, height, width\), got \(3, 8, 8\)"):
        encoder()(images[0])
    with pytest.raises(ValueError, match=r"must be \(batch, locations, 6\).*got \(2, 16, 5\)"):
        encoder()(image_features=torch.zeros(2, 16, 5))
    with pytest.raises(ValueError, match=r"must be \(batch, 6\), got \(2, 16, 6\)"):
        encoder(pooled=True)(image_features=torch.zeros(2, 16, 6))
    with pytest.raises(ValueError, match="Set `feature_size=6`"):
        encoder(feature_size=8)
