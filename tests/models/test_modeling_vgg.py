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
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoBackbone, AutoConfig, AutoImageProcessor, AutoModelForImageClassification, pipeline

from hf_vg import VggBackbone, VggConfig, VggForImageClassification
from hf_vg.data import load_backbone
from hf_vg.hub import convert_vgg
from hf_vg.hub.convert_vgg import convert_torchvision_state_dict, main
from hf_vg.models.vgg import VGG_DEPTHS


WEIGHTS = Path(__file__).resolve().parents[2] / "../shared/weights/vgg16_features_torchvision_fp16.safetensors"
WIDTHS = [64, 128, 256, 512, 512]
# Published numbers of parameters without the three linear layers: VGG-19 has 143,667,240 with them.
NUM_PARAMETERS = {"vgg11": 9_220_480, "vgg13": 9_404_992, "vgg16": 14_714_688, "vgg19": 20_024_384}


def tiny_config(**kwargs) -> VggConfig:
    return VggConfig(depths=[1, 2, 1], hidden_sizes=[4, 6, 8], **kwargs)


def plain_vgg(depths: list[int], use_batch_norm: bool) -> nn.Sequential:
    """torchvision's `features`, with weights that keep activations near 1, so that a comparison is meaningful."""
    layers, in_channels = [], 3
    for depth, out_channels in zip(depths, WIDTHS, strict=True):
        for _ in range(depth):
            convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers.append(convolution)
            if use_batch_norm:
                norm = nn.BatchNorm2d(out_channels)
                nn.init.uniform_(norm.weight, 0.8, 1.2)
                nn.init.normal_(norm.bias, std=0.1)
                nn.init.normal_(norm.running_mean, std=0.1)
                nn.init.uniform_(norm.running_var, 0.8, 1.2)
                layers.append(norm)
            layers.append(nn.ReLU())
            in_channels = out_channels
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers).eval()


def torchvision_tensors(network: nn.Sequential) -> dict[str, torch.Tensor]:
    return {f"features.{name}": tensor for name, tensor in network.state_dict().items()}


def plain_classifier(size: int, num_labels: int) -> nn.Sequential:
    """torchvision's `classifier`."""
    linear = [nn.Linear(512 * 7 * 7, size), nn.Linear(size, size), nn.Linear(size, num_labels)]
    for layer in linear:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.normal_(layer.bias, std=0.1)
    layers = [linear[0], nn.ReLU(), nn.Dropout(), linear[1], nn.ReLU(), nn.Dropout(), linear[2]]
    return nn.Sequential(*layers).eval()


def without_data(variant: str = "vgg11", use_batch_norm: bool = False) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        return torchvision_tensors(plain_vgg(VGG_DEPTHS[variant], use_batch_norm))


@pytest.fixture(scope="module")
def vgg11_file(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("torchvision") / "vgg11.safetensors"
    save_file(torchvision_tensors(plain_vgg(VGG_DEPTHS["vgg11"], use_batch_norm=False)), path)
    return path


@pytest.fixture(scope="module")
def converted_dir(vgg11_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "vgg11"
    main(["--checkpoint", str(vgg11_file), "--output_dir", str(folder)])
    return folder


# Architecture


@pytest.mark.parametrize("use_batch_norm", [False, True])
@pytest.mark.parametrize("variant", VGG_DEPTHS)
def test_shapes_and_size_of_every_variant(variant, use_batch_norm):
    names = [f"stage{k}" for k in range(1, 6)]
    config = VggConfig(depths=VGG_DEPTHS[variant], use_batch_norm=use_batch_norm, out_features=names)
    with torch.device("meta"):
        backbone = VggBackbone(config)
        feature_maps = backbone(torch.empty(2, 3, 224, 224)).feature_maps

    assert [tuple(map_.shape) for map_ in feature_maps] == [
        (2, width, side, side) for width, side in zip(WIDTHS, [224, 112, 56, 28, 14], strict=True)
    ]
    assert backbone.channels == WIDTHS
    batch_norm_parameters = 2 * sum(n * width for n, width in zip(config.depths, WIDTHS, strict=True))
    assert backbone.num_parameters() == NUM_PARAMETERS[variant] + batch_norm_parameters * use_batch_norm


def test_defaults_are_vgg19_and_its_last_stage():
    config = VggConfig()
    assert (config.depths, config.hidden_sizes) == (VGG_DEPTHS["vgg19"], WIDTHS)
    assert (config.out_features, config.out_indices, config.use_batch_norm) == (["stage5"], [4], False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depths": [1, 1]}, "one value per stage, got depths=.1, 1. "),
        ({"depths": [1, 0, 1]}, "'depths'(.|\n)*from 1 to 1,024, got 0"),
        ({"depths": [], "hidden_sizes": []}, "'depths'(.|\n)*from 1 to 1,024 numbers, got 0"),
        ({"depths": [1] * 2000}, "'depths'(.|\n)*from 1 to 1,024 numbers, got 2,000"),
        ({"hidden_sizes": [4, 10**12, 8]}, "'hidden_sizes'(.|\n)*from 1 to 65,536, got 1000000000000"),
        ({"num_channels": -3}, "'num_channels'(.|\n)*from 1 to 65,536, got -3"),
        ({"num_channels": math.nan}, "'num_channels' expected int"),
    ],
)
def test_config_refuses_stages_that_cannot_be(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        VggConfig(**{"depths": [1, 2, 1], "hidden_sizes": [4, 6, 8], **fields})


@pytest.mark.parametrize("num_labels", [20_000_000, -1, 1.5, math.nan, "many"])
def test_number_of_labels_is_checked_before_they_are_named(num_labels):
    with pytest.raises(ValueError, match="`num_labels` must be an integer from 0 to 65,536"):
        tiny_config(num_labels=num_labels)
    assert tiny_config(num_labels=3).num_labels == 3


def test_initialization_is_he_normal_over_fan_out():
    torch.manual_seed(0)
    backbone = VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[64, 128], use_batch_norm=True))
    layer = backbone.stages[1].layers[0]
    assert layer.convolution.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)
    assert layer.convolution.bias.eq(0).all()
    assert layer.normalization.weight.eq(1).all() and layer.normalization.bias.eq(0).all()


@pytest.mark.parametrize("use_batch_norm", [False, True])
@pytest.mark.parametrize("variant", VGG_DEPTHS)
def test_equals_plain_sequential(variant, use_batch_norm):
    torch.manual_seed(0)
    network = plain_vgg(VGG_DEPTHS[variant], use_batch_norm)
    config, state_dict = convert_torchvision_state_dict(torchvision_tensors(network))
    backbone = VggBackbone(config).eval()
    backbone.load_state_dict(state_dict)
    images = torch.randn(2, 3, 48, 32)

    with torch.no_grad():
        expected = network[:-1](images)
        (feature_map,) = backbone(images).feature_maps
    assert expected.std() > 0.1
    torch.testing.assert_close(feature_map, expected, atol=1e-4, rtol=0)


@pytest.mark.skipif(not WEIGHTS.is_file(), reason=f"torchvision's VGG-16 weights are not at {WEIGHTS}")
def test_equals_plain_sequential_with_torchvision_weights(tmp_path):
    main(["--checkpoint", str(WEIGHTS), "--output_dir", str(tmp_path / "vgg16")])
    assert json.loads((tmp_path / "vgg16/config.json").read_text())["dtype"] == "float16"
    backbone = VggBackbone.from_pretrained(
        tmp_path / "vgg16", dtype=torch.float32, out_features=["stage3", "stage4", "stage5"]
    )
    assert backbone.config.depths == VGG_DEPTHS["vgg16"]

    network = plain_vgg(VGG_DEPTHS["vgg16"], use_batch_norm=False)
    network.load_state_dict({name.removeprefix("features."): t.float() for name, t in load_file(WEIGHTS).items()})
    torch.manual_seed(0)
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        feature_maps = backbone(images).feature_maps
        # conv3_3, conv4_3 and conv5_3 after their ReLU, in torchvision's numbering.
        for feature_map, end in zip(feature_maps, [16, 23, 30], strict=True):
            expected = network[:end](images)
            assert expected.std() > 0.1
            torch.testing.assert_close(feature_map, expected, atol=1e-4, rtol=0)


# Classifier


@pytest.fixture(scope="module")
def classifier_dir(tmp_path_factory) -> Path:
    """A converted torchvision VGG-11 with fully connected layers of six units and five classes."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("classifier")
    tensors = torchvision_tensors(plain_vgg(VGG_DEPTHS["vgg11"], use_batch_norm=False))
    tensors |= {f"classifier.{name}": tensor for name, tensor in plain_classifier(6, 5).state_dict().items()}
    torch.save(tensors, folder / "vgg11.pth")
    main(["--checkpoint", str(folder / "vgg11.pth"), "--output_dir", str(folder / "vgg11")])
    return folder


@pytest.mark.parametrize("size", [224, 64])
def test_classifier_equals_torchvisions(classifier_dir, size):
    tensors = torch.load(classifier_dir / "vgg11.pth")
    features, classifier = plain_vgg(VGG_DEPTHS["vgg11"], use_batch_norm=False), plain_classifier(6, 5)
    for network, name in ((features, "features."), (classifier, "classifier.")):
        network.load_state_dict({k.removeprefix(name): t for k, t in tensors.items() if k.startswith(name)})
    model = AutoModelForImageClassification.from_pretrained(classifier_dir / "vgg11")
    assert type(model) is VggForImageClassification and model.config.num_labels == 5
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        pooled = nn.functional.adaptive_avg_pool2d(features(images), 7).flatten(1)
        torch.testing.assert_close(model(images).logits, classifier(pooled), atol=1e-4, rtol=1e-4)
        for stage, end in (("fc6", 2), ("fc7", 5)):  # after their ReLU
            backbone = load_backbone(classifier_dir / "vgg11", stage=stage)
            (feature_map,) = backbone(images).feature_maps
            assert feature_map.shape == (2, 6, 1, 1) and backbone.channels == [6]
            torch.testing.assert_close(feature_map.flatten(1), classifier[:end](pooled), atol=1e-4, rtol=1e-4)
    assert classifier[:5](pooled).std() > 0.1


def test_backbone_of_a_classifier_has_convolutions_alone(classifier_dir, caplog):
    backbone = load_backbone(classifier_dir / "vgg11")
    assert backbone.out_features == ["stage5"] and backbone.channels == [512]
    assert not [name for name, _ in backbone.named_parameters() if "fc" in name]
    assert "fc6" not in caplog.text and "classifier" not in caplog.text  # no warning about unused weights
    assert load_backbone(classifier_dir / "vgg11", stage="stage4")(torch.randn(1, 3, 32, 32)).feature_maps[
        0
    ].shape == ((1, 512, 4, 4))
    with pytest.raises(ValueError, match="has no stage 'fc8'; its stages are stage1, .*, fc6, fc7"):
        load_backbone(classifier_dir / "vgg11", stage="fc8")


def test_convolutions_alone_have_no_fc7(converted_dir):
    with pytest.raises(ValueError, match="has no stage 'fc7'; its stages are stage1, .*stage5"):
        load_backbone(converted_dir, stage="fc7")
    with pytest.raises(ValueError, match="`fc_size` is `None`"):
        VggForImageClassification(tiny_config())
    # Version 0.1 did not have this field in its files and in the names of its feature caches.
    assert "fc_size" not in tiny_config().to_dict() and tiny_config(fc_size=4).to_dict()["fc_size"] == 4


def test_classifier_in_the_pipeline_and_its_loss(classifier_dir):
    classify = pipeline("image-classification", model=str(classifier_dir / "vgg11"))
    (best, *_) = classify(Image.new("RGB", (40, 30), "red"))
    assert best["label"].startswith("LABEL_") and 0.2 <= best["score"] <= 1
    torch.manual_seed(0)
    model = VggForImageClassification(tiny_config(fc_size=6, num_labels=3))
    labels = torch.tensor([2, 0])
    output = model.eval()(torch.randn(2, 3, 32, 32), labels=labels)
    assert output.loss.item() == pytest.approx(nn.functional.cross_entropy(output.logits, labels).item())
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_paper_sizes_of_the_classifier():
    with torch.device("meta"):
        model = VggForImageClassification(VggConfig(fc_size=4096, num_labels=1000))
        fc7 = model.vgg(torch.empty(1, 3, 224, 224)).feature_maps[-1]
    assert model.num_parameters() == 143_667_240  # torchvision's vgg19
    assert fc7.shape == (1, 4096, 1, 1)


def test_incomplete_classifier_is_named():
    tensors = without_data("vgg11") | {"classifier.0.weight": torch.empty(8, 512 * 49, device="meta")}
    with pytest.raises(ValueError, match=r"Missing: \['classifier.0.bias', 'classifier.3.bias'"):
        convert_torchvision_state_dict(tensors)


# Backbone behavior


def test_out_features_and_out_indices_choose_stages():
    torch.manual_seed(0)
    images = torch.randn(1, 3, 16, 16)
    backbone = VggBackbone(tiny_config(out_features=["stage1", "stage2", "stage3"])).eval()
    everything = backbone(images).feature_maps

    backbone.out_features = ["stage1", "stage3"]
    assert backbone.out_indices == [0, 2] and backbone.channels == [4, 8]
    for feature_map, expected in zip(backbone(images).feature_maps, [everything[0], everything[2]], strict=True):
        assert torch.equal(feature_map, expected)

    assert tiny_config(out_indices=[1]).out_features == ["stage2"]
    assert tiny_config(out_indices=(-1,)).out_features == ["stage3"]
    with pytest.raises(ValueError, match="stage4"):
        tiny_config(out_features=["stage4"])


def test_nothing_is_computed_beyond_the_last_stage_asked_for():
    backbone = VggBackbone(tiny_config(out_features=["stage1", "stage2"]))
    calls = []
    for name, module in backbone.named_modules():
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))

    backbone(torch.randn(1, 3, 16, 16))
    assert calls == [
        "stages.0.layers.0.convolution",
        "stages.1.pool",
        "stages.1.layers.0.convolution",
        "stages.1.layers.1.convolution",
    ]


def test_hidden_states_are_the_stages_computed():
    backbone = VggBackbone(tiny_config(out_features=["stage2"]))
    images = torch.randn(1, 3, 16, 16)
    assert backbone(images).hidden_states is None

    output = backbone(images, output_hidden_states=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(1, 4, 16, 16), (1, 6, 8, 8)]
    assert output.hidden_states[1] is output.feature_maps[0]

    as_tuple = backbone(images, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0][0], output.feature_maps[0])


@pytest.mark.parametrize("use_batch_norm", [False, True])
def test_gradient_reaches_every_parameter(use_batch_norm):
    torch.manual_seed(0)
    # In training mode, batch normalization removes the bias, so the bias has no gradient.
    backbone = VggBackbone(tiny_config(use_batch_norm=use_batch_norm)).eval()
    backbone(torch.randn(2, 3, 16, 16)).feature_maps[0].square().sum().backward()
    assert [name for name, p in backbone.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("use_batch_norm", [False, True])
def test_batch_equals_single_images(use_batch_norm):
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config(use_batch_norm=use_batch_norm)).eval()
    images = torch.randn(3, 3, 20, 16)
    (together,) = backbone(images).feature_maps
    alone = torch.cat([backbone(image[None]).feature_maps[0] for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_channels_last_gives_the_same_maps():
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config()).eval()
    images = torch.randn(2, 3, 16, 16)
    (expected,) = backbone(images).feature_maps
    (feature_map,) = backbone.to(memory_format=torch.channels_last)(
        images.to(memory_format=torch.channels_last)
    ).feature_maps
    assert feature_map.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(feature_map, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("use_batch_norm", [False, True])
def test_half_precision_takes_float32_images(dtype, use_batch_norm):
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config(use_batch_norm=use_batch_norm)).eval()
    images = torch.randn(2, 3, 16, 16)
    (expected,) = backbone(images).feature_maps
    (feature_map,) = backbone.to(dtype)(images).feature_maps
    assert feature_map.dtype == dtype
    torch.testing.assert_close(feature_map.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_recomputes_and_changes_nothing(use_reentrant):
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config()).train()
    images = torch.randn(2, 3, 16, 16)
    convolution_calls = []
    backbone.stages[0].layers[0].convolution.register_forward_hook(lambda *_: convolution_calls.append(1))

    def gradients():
        convolution_calls.clear()
        backbone.zero_grad()
        backbone(images).feature_maps[0].square().sum().backward()
        return [p.grad.clone() for p in backbone.parameters()], len(convolution_calls)

    expected, calls_without = gradients()
    backbone.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    actual, calls_with = gradients()
    assert (calls_without, calls_with) == (1, 2) and not images.requires_grad
    for gradient, expected_gradient in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)

    images.requires_grad_()
    gradients()
    assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_any_attention_implementation_may_surround_it(implementation, tmp_path):
    backbone = VggBackbone(tiny_config())
    backbone.set_attn_implementation(implementation)
    assert backbone.config._attn_implementation == implementation
    backbone.save_pretrained(tmp_path)
    loaded = VggBackbone.from_pretrained(tmp_path, attn_implementation=implementation)
    assert loaded.config._attn_implementation == implementation


def test_batch_norm_is_never_checkpointed():
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config(use_batch_norm=True)).train()
    with pytest.raises(ValueError, match="does not support gradient checkpointing"):
        backbone.gradient_checkpointing_enable()
    # A parent model with gradient checkpointing does this to its backbone.
    backbone._set_gradient_checkpointing(enable=True)
    backbone(torch.randn(2, 3, 16, 16)).feature_maps[0].sum().backward()
    assert backbone.stages[0].layers[0].normalization.num_batches_tracked == 1


# Saving and loading


@pytest.fixture
def hub_knows_every_name(monkeypatch):
    # In transformers 5.22, `AutoBackbone.from_pretrained` asks the Hub for the repository even for a folder.
    answer = SimpleNamespace(repo_exists=lambda *_: True)
    monkeypatch.setattr("transformers.models.auto.auto_factory.hf_api", lambda: answer)


@pytest.mark.parametrize("use_batch_norm", [False, True])
def test_auto_classes_round_trip(use_batch_norm, tmp_path, hub_knows_every_name):
    torch.manual_seed(0)
    backbone = VggBackbone(tiny_config(use_batch_norm=use_batch_norm, out_features=["stage2", "stage3"]))
    images = torch.randn(4, 3, 16, 16)
    backbone.train()(images)  # changes the running statistics
    backbone.eval().save_pretrained(tmp_path)

    loaded = AutoBackbone.from_pretrained(tmp_path)
    assert type(loaded) is VggBackbone and not loaded.training
    assert loaded.config.to_diff_dict() == AutoConfig.from_pretrained(tmp_path).to_diff_dict()
    assert loaded.out_features == ["stage2", "stage3"]
    expected = backbone.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    for feature_map, expected_map in zip(loaded(images).feature_maps, backbone(images).feature_maps, strict=True):
        torch.testing.assert_close(feature_map, expected_map)
    assert AutoBackbone.from_pretrained(tmp_path, out_features=["stage1"]).channels == [4]


def test_auto_backbone_from_config():
    assert type(AutoBackbone.from_config(tiny_config())) is VggBackbone
    assert type(AutoBackbone.from_config(AutoConfig.for_model("vgg", depths=[1], hidden_sizes=[4]))) is VggBackbone


def test_statistics_absent_from_a_checkpoint_are_initialized(tmp_path):
    torch.manual_seed(0)
    VggBackbone(tiny_config(use_batch_norm=True)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if "running_" not in name and "num_batches" not in name}
    assert len(kept) == len(tensors) - 3 * 4
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})

    buffers = dict(VggBackbone.from_pretrained(tmp_path).named_buffers())
    assert len(buffers) == 3 * 4
    for name, buffer in buffers.items():
        assert buffer.eq(1 if name.endswith("running_var") else 0).all(), name


def test_checkpoint_loads_without_this_package(converted_dir, tmp_path):
    script = f"""
import sys
sys.modules["hf_vg"] = None  # an import of it now raises
import torch
from transformers import AutoBackbone, AutoConfig
folder = {str(converted_dir)!r}
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
backbone_class = type(AutoBackbone.from_config(config, trust_remote_code=True))
backbone = backbone_class.from_pretrained(folder)
print(backbone_class.__module__.split(".")[0], backbone(torch.ones(1, 3, 32, 32)).feature_maps[0].sum().item())
"""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    module, total = run.stdout.split()
    assert module == "transformers_modules"
    expected = VggBackbone.from_pretrained(converted_dir)(torch.ones(1, 3, 32, 32)).feature_maps[0].sum().item()
    assert float(total) == pytest.approx(expected, rel=1e-4)


# Conversion of torchvision's files


def test_converted_folder(converted_dir, vgg11_file):
    assert {path.name for path in converted_dir.parent.iterdir()} == {"vgg11"}
    assert {"config.json", "model.safetensors", "preprocessor_config.json"} <= {
        p.name for p in converted_dir.iterdir()
    }
    source = load_file(vgg11_file)
    backbone = VggBackbone.from_pretrained(converted_dir)
    assert backbone.config.depths == VGG_DEPTHS["vgg11"] and backbone.dtype == torch.float32
    assert torch.equal(backbone.stages[0].layers[0].convolution.weight, source["features.0.weight"])
    assert torch.equal(backbone.stages[4].layers[1].convolution.bias, source["features.18.bias"])


def test_pth_with_batch_norm_and_classifier(tmp_path):
    torch.manual_seed(0)
    tensors = torchvision_tensors(plain_vgg(VGG_DEPTHS["vgg11"], use_batch_norm=True))
    # Like torchvision's files from before this counter existed.
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
    tensors |= {f"classifier.{name}": tensor for name, tensor in plain_classifier(6, 5).state_dict().items()}
    torch.save(tensors, tmp_path / "vgg11_bn.pth")
    output_dir = tmp_path / "new" / "vgg11_bn"
    main(["--checkpoint", str(tmp_path / "vgg11_bn.pth"), "--output_dir", str(output_dir), "--dtype", "bfloat16"])

    backbone = VggBackbone.from_pretrained(output_dir)
    assert backbone.config.use_batch_norm and backbone.dtype == torch.bfloat16
    normalization = backbone.stages[4].layers[1].normalization
    assert torch.equal(normalization.running_var, tensors["features.26.running_var"].bfloat16())
    assert normalization.num_batches_tracked == 0


@pytest.mark.parametrize("use_batch_norm", [False, True])
@pytest.mark.parametrize("variant", VGG_DEPTHS)
def test_variant_is_read_off_the_tensors(variant, use_batch_norm):
    config, _ = convert_torchvision_state_dict(without_data(variant, use_batch_norm))
    assert (config.depths, config.use_batch_norm) == (VGG_DEPTHS[variant], use_batch_norm)


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_pickle_with_code_is_refused(tmp_path):
    torch.save({"features.0.weight": RunsCode(tmp_path / "ran")}, tmp_path / "vgg.pth")
    with pytest.raises(SystemExit, match=r"vgg\.pth cannot be read as weights: it would run"):
        main(["--checkpoint", str(tmp_path / "vgg.pth"), "--output_dir", str(tmp_path / "out")])
    assert [path.name for path in tmp_path.iterdir()] == ["vgg.pth"]


def test_errors_name_the_tensors():
    state_dict = without_data("vgg11")
    state_dict["features.1.gamma"] = state_dict.pop("features.0.bias")
    state_dict["features.3.weight"] = torch.empty(128, 32, 3, 3, device="meta")
    with pytest.raises(ValueError) as error:
        convert_torchvision_state_dict(state_dict)
    message = str(error.value)
    assert "not a torchvision vgg11," in message
    assert "Missing: ['features.0.bias']" in message
    assert "Unexpected: ['features.1.gamma']" in message
    assert "features.3.weight is [128, 32, 3, 3], not [128, 64, 3, 3]" in message

    with pytest.raises(ValueError, match=r"has 0 convolutions .* expected 8 \(vgg11\).*\['conv1.weight', 'fc.bias'\]"):
        convert_torchvision_state_dict({"conv1.weight": torch.empty(64, 3, 7, 7), "fc.bias": torch.empty(10)})


def test_failure_half_way_leaves_nothing_behind(vgg11_file, tmp_path, monkeypatch):
    written = []

    def fail(self, folder):
        written.extend(path.name for path in Path(folder).iterdir())
        raise OSError("disk full")

    monkeypatch.setattr(convert_vgg.CLIPImageProcessorPil, "save_pretrained", fail)
    with pytest.raises(SystemExit, match="error: disk full"):
        main(["--checkpoint", str(vgg11_file), "--output_dir", str(tmp_path / "out")])
    assert "model.safetensors" in written
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_not_overwritten(vgg11_file, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match="is not empty"):
        main(["--checkpoint", str(vgg11_file), "--output_dir", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_push_to_hub_uploads_the_folder(vgg11_file, tmp_path, monkeypatch):
    """The upload itself is tested in tests/hub/test_hub.py."""
    calls = []
    monkeypatch.setattr(convert_vgg, "upload_folder", lambda folder, repo_id, **_: calls.append((folder, repo_id)))
    output_dir = tmp_path / "out"
    main(["--checkpoint", str(vgg11_file), "--output_dir", str(output_dir), "--push_to_hub", "me/vgg11"])
    assert calls == [(output_dir, "me/vgg11")]
    card = (output_dir / "README.md").read_text()
    assert 'AutoModel.from_pretrained("me/vgg11"' in card and f"torchvision's {vgg11_file.name}" in card


@pytest.mark.parametrize(("mode", "width", "height"), [("RGB", 300, 256), ("RGB", 120, 400), ("L", 500, 333)])
def test_image_processor_against_numpy(mode, width, height, converted_dir):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)[: 3 if mode == "RGB" else 2], dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert image.mode == mode
    actual = AutoImageProcessor.from_pretrained(converted_dir)(image, return_tensors="np")["pixel_values"]

    short = min(width, height)
    resized = image.convert("RGB").resize((256 * width // short, 256 * height // short), Image.Resampling.BILINEAR)
    left, top = (resized.width - 224) // 2, (resized.height - 224) // 2
    cropped = np.asarray(resized)[top : top + 224, left : left + 224] / 255
    expected = (cropped - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(actual[0], expected.transpose(2, 0, 1), atol=1e-5)
