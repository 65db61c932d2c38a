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
"""VGG model configuration"""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin


VGG_DEPTHS = {
    "vgg11": [1, 1, 2, 2, 2],
    "vgg13": [2, 2, 2, 2, 2],
    "vgg16": [2, 2, 3, 3, 3],
    "vgg19": [2, 2, 4, 4, 4],
}


@strict
class VggConfig(BackboneConfigMixin, PreTrainedConfig):
    r"""
    Configuration of a [`VggBackbone`], the convolutions of [VGG](https://huggingface.co/papers/1409.1556). The
    defaults are VGG-19; `VGG_DEPTHS` holds the `depths` of the four published networks.

    Args:
        num_channels (`int`, *optional*, defaults to 3):
            Number of channels of the image.
        depths (`list[int]`, *optional*, defaults to `[2, 2, 4, 4, 4]`):
            Number of 3x3 convolutions in each stage. A 2x2 max-pool stands between one stage and the next.
        hidden_sizes (`list[int]`, *optional*, defaults to `[64, 128, 256, 512, 512]`):
            Number of channels of each stage.
        use_batch_norm (`bool`, *optional*, defaults to `False`):
            Whether each convolution is followed by batch normalization (torchvision's `vgg*_bn`).
        out_features (`list[str]`, *optional*, defaults to the last stage):
            Stages to return, among `"stage1"`, `"stage2"`, ... in that order. The map of a stage is taken after its
            last ReLU and before the pool that follows: at 224 pixels `"stage5"` of VGG-19 is 512x14x14.
        out_indices (`list[int]`, *optional*, defaults to the last stage):
            The same choice by position. VGG has no stem, so index 0 is `"stage1"` and -1 is the last stage.

    Example:

    ```python
    >>> from hf_vg import VggBackbone, VggConfig
    >>> from hf_vg.models.vgg import VGG_DEPTHS

    >>> backbone = VggBackbone(VggConfig(depths=VGG_DEPTHS["vgg16"], out_features=["stage4", "stage5"]))
    >>> backbone.channels
    [512, 512]
    ```
    """

    model_type = "vgg"

    num_channels: int = 3
    depths: list[int] | tuple[int, ...] = (2, 2, 4, 4, 4)
    hidden_sizes: list[int] | tuple[int, ...] = (64, 128, 256, 512, 512)
    use_batch_norm: bool = False

    def __post_init__(self, **kwargs):
        self.depths = list(self.depths)
        self.hidden_sizes = list(self.hidden_sizes)
        self.stage_names = [f"stage{idx}" for idx in range(1, len(self.depths) + 1)]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop("out_indices", None), out_features=kwargs.pop("out_features", None)
        )
        super().__post_init__(**kwargs)

    def validate_stages(self):
        """Part of `@strict`-powered validation: every stage has a depth and a width, both positive."""
        if len(self.depths) != len(self.hidden_sizes):
            raise ValueError(
                f"`depths` and `hidden_sizes` must have one value a stage, got depths={self.depths} and "
                f"hidden_sizes={self.hidden_sizes}"
            )
        if min(self.depths + self.hidden_sizes) < 1:
            raise ValueError(
                f"every stage needs at least one convolution and one channel, got depths={self.depths} and "
                f"hidden_sizes={self.hidden_sizes}"
            )


__all__ = ["VGG_DEPTHS", "VggConfig"]
