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
"""
What a training costs: seconds per image to see it, and per caption to learn it, for each system at its paper's sizes,
measured on this machine; and what follows for COCO and for three million images on GPUs, which are estimates.

```bash
python benchmarks/cost.py
```
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import ResNetBackbone, ResNetConfig

from hf_vg import (
    GroundedVisualBertConfig,
    GroundedVisualBertForVGP,
    SelfAttnGroundedEncoderConfig,
    SelfAttnGroundedEncoderForPreTraining,
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    SpatialTransformerCaptionerConfig,
    SpatialTransformerCaptionerForConditionalGeneration,
    VggBackbone,
    VggConfig,
    VseScnlmConfig,
    VseScnlmModel,
)
from hf_vg.models.vgg.configuration_vgg import VGG_DEPTHS


WORDS = 12  # of a caption, with its end
COCO = (113_287, 566_435)  # images and captions to train on, by Karpathy's split
WEB = (3_000_000, 3_000_000)
# What is assumed of a GPU: floating point operations per second that it sustains on such networks in bfloat16, and
# what each of eight gives beside seven others.
GPU_FLOPS, GPU_FLOPS_RECURRENT, SHARE_OF_EIGHT = 40e12, 10e12, 0.9


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matrix_flops() -> float:
    """Floating point operations per second of a large product of matrices on this machine."""
    matrix = torch.randn(2048, 2048)
    return 2 * 2048**3 / median_seconds(lambda: matrix @ matrix, 5)


def training_step(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def systems(batch: int) -> dict[str, tuple[str, bool, Callable[[], tuple[torch.nn.Module, dict]]]]:
    """For each system its backbone, whether it is recurrent, and a model with a batch of captions."""
    ids = torch.randint(3, 9000, (batch, WORDS))
    mask = torch.ones_like(ids)
    image_map, vectors = torch.randn(batch, 14, 14, 512).relu(), torch.randn(batch, 4096).relu()

    def show_attend_tell():
        return ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(backbone_config=None)), {
            "image_features": image_map, "labels": ids,
        }  # fmt: skip

    def spatial_transformer():
        config = SpatialTransformerCaptionerConfig(backbone_config=None)
        return SpatialTransformerCaptionerForConditionalGeneration(config), {
            "image_features": image_map, "labels": ids,
        }  # fmt: skip

    def grounded_encoder():
        return SelfAttnGroundedEncoderForPreTraining(SelfAttnGroundedEncoderConfig()), {
            "input_ids": ids, "attention_mask": mask, "labels": ids, "image_features": vectors[:, :2048],
            "image_ids": torch.arange(batch),
        }  # fmt: skip

    def vse():
        return VseScnlmModel(VseScnlmConfig()), {
            "input_ids": ids, "attention_mask": mask, "image_features": vectors, "image_ids": torch.arange(batch),
            "return_loss": True,
        }  # fmt: skip

    def grounded_visual_bert():  # two captions, 20 regions, 4 phrases with a box each
        tokens, spans = (
            torch.randint(3, 9000, (batch, 2 * WORDS + 3)),
            torch.tensor([[1, 3], [5, 7], [9, 11], [13, 15]]),
        )
        model = GroundedVisualBertForVGP(GroundedVisualBertConfig(attention_supervision="direct"))
        return model, {
            "input_ids": tokens, "visual_embeds": torch.randn(batch, 20, 768), "labels": torch.zeros(batch).long(),
            "phrase_spans": spans.expand(batch, 4, 2), "phrase_boxes": torch.eye(4, 20).expand(batch, 4, 20),
        }  # fmt: skip

    return {
        "ShowAttendTell": ("VGG-19", True, show_attend_tell),
        "SpatialTransformerCaptioner": ("VGG-11", False, spatial_transformer),
        "SelfAttnGroundedEncoder": ("ResNet-101", True, grounded_encoder),
        "VseScnlm": ("VGG-19", True, vse),
        "GroundedVisualBert": ("ResNet-101", False, grounded_visual_bert),
    }


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of the trainings that are estimated")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    flops = matrix_flops()
    print(f"{torch.get_num_threads()} threads multiply matrices at {flops / 1e12:.2f} TFLOP/s in float32\n")

    seen = {}
    backbones = {
        "VGG-11": VggBackbone(VggConfig(depths=VGG_DEPTHS["vgg11"])),
        "VGG-19": VggBackbone(VggConfig()),
        "ResNet-101": ResNetBackbone(ResNetConfig(depths=[3, 4, 23, 3])),
    }
    pixels = torch.randn(8, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    for name, backbone in backbones.items():
        backbone = backbone.eval().to(memory_format=torch.channels_last)
        with torch.inference_mode():
            seen[name] = median_seconds(lambda backbone=backbone: backbone(pixels), arguments.repeats) / len(pixels)
        print(f"{name:12} sees an image in {1000 * seen[name]:6.1f} ms")
    print()

    rows = []
    for name, (backbone, recurrent, build) in systems(arguments.batch_size).items():
        model, inputs = build()
        step = training_step(model.train(), inputs)
        learnt = median_seconds(step, arguments.repeats) / arguments.batch_size
        cells = [f"`{name}`", f"{1000 * seen[backbone]:.0f} ms ({backbone})", f"{1000 * learnt:.1f} ms"]
        for images, captions in (COCO, WEB):
            see, learn = images * seen[backbone], arguments.epochs * captions * learnt
            cells.append(hours(see + learn))
            one = see * flops / GPU_FLOPS + learn * flops / (GPU_FLOPS_RECURRENT if recurrent else GPU_FLOPS)
            cells += [hours(one), hours(one / 8 / SHARE_OF_EIGHT)]
        rows.append(cells)
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
