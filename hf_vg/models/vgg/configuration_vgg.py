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

from collections.abc import Callable
from typing import Any

from huggingface_hub.dataclasses import as_validated_field, strict
from transformers import PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin


VGG_DEPTHS = {
    "vgg11": [1, 1, 2, 2, 2],
    "vgg13": [2, 2, 2, 2, 2],
    "vgg16": [2, 2, 3, 3, 3],
    "vgg19": [2, 2, 4, 4, 4],
}


def bounded_field(low: float, high: float) -> Callable:
    r"""
    Makes a config field that accepts numbers from `low` to `high`, or lists of 1 to 1,024 such numbers. `None` is
    accepted, NaN is not.

    `config.json` may be damaged or hostile. Without limits, a huge size would make the model hang or run out of
    memory.

    Args:
        low (`float`):
            The smallest number.
        high (`float`):
            The largest number.

    Returns:
        `Callable`: Makes the field: `hidden_size: int = bounded_field(1, 65_536)(default=512)`.
    """

    @as_validated_field
    def check(value: Any) -> None:
        is_list = isinstance(value, (list, tuple))
        if is_list and not 1 <= len(value) <= 1024:
            raise ValueError(f"must hold from 1 to 1,024 numbers, got {len(value):,}")
        for number in value if is_list else [value]:
            if number is not None and not low <= number <= high:
                raise ValueError(f"must be from {low:,} to {high:,}, got {number}")

    return check


width_field = bounded_field(1, 65_536)  # channels, hidden sizes and other tensor widths
layers_field = bounded_field(1, 1024)
vocabulary_field = bounded_field(1, 16_777_216)
probability_field = bounded_field(0, 1)
weight_field = bounded_field(0, 1_000_000)  # loss weights and margins
scale_field = bounded_field(1e-6, 1_000_000)  # temperatures and other factors that must not be zero


def check_num_labels(fields: dict[str, Any]) -> None:
    """
    Raises a `ValueError` if `num_labels` is not an integer from 0 to 65,536. transformers makes a name for each label,
    which would take minutes for millions of labels.
    """
    num_labels = fields.get("num_labels")
    if num_labels is not None and not (type(num_labels) is int and 0 <= num_labels <= 65_536):
        raise ValueError(f"`num_labels` must be an integer from 0 to 65,536, got {num_labels!r}.")


@strict
class VggConfig(BackboneConfigMixin, PreTrainedConfig):
    r"""
    Configuration of [`VggBackbone`] and [`VggForImageClassification`]: [VGG](https://huggingface.co/papers/1409.1556).
    The defaults are the convolutions of VGG-19. `VGG_DEPTHS` holds the `depths` of the four published networks.

    Args:
        num_channels (`int`, *optional*, defaults to 3):
            Number of channels of the image.
        depths (`list[int]`, *optional*, defaults to `[2, 2, 4, 4, 4]`):
            Number of 3x3 convolutions in each stage. There is a 2x2 max-pool between two stages.
        hidden_sizes (`list[int]`, *optional*, defaults to `[64, 128, 256, 512, 512]`):
            Number of channels of each stage.
        use_batch_norm (`bool`, *optional*, defaults to `False`):
            Whether each convolution is followed by batch normalization, as in torchvision's `vgg*_bn`.
        fc_size (`int`, *optional*):
            Width of the fully connected layers fc6 and fc7, which is 4,096 in the published networks. With `None` the
            network has convolutions only.
        out_features (`list[str]`, *optional*, defaults to the last stage):
            The stages to return: `"stage1"`, `"stage2"`, ..., in this order. A stage's feature map is taken after its
            last ReLU and before the next pool: `"stage5"` of VGG-19 is 512x14x14 for an image of 224x224. If `fc_size`
            is set, you can also choose `"fc6"` and `"fc7"`, after their ReLU. They are maps with one location:
            4096x1x1.
        out_indices (`list[int]`, *optional*, defaults to the last stage):
            The same choice by position. VGG has no stem, so index 0 is `"stage1"`, and -1 is the last stage.

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

    num_channels: int = width_field(default=3)
    depths: list[int] | tuple[int, ...] = layers_field(default=(2, 2, 4, 4, 4))
    hidden_sizes: list[int] | tuple[int, ...] = width_field(default=(64, 128, 256, 512, 512))
    use_batch_norm: bool = False
    fc_size: int | None = width_field(default=None)

    def __post_init__(self, **kwargs: Any) -> None:
        check_num_labels(kwargs)
        self.depths = list(self.depths)
        self.hidden_sizes = list(self.hidden_sizes)
        convolutions = [f"stage{idx}" for idx in range(1, len(self.depths) + 1)]
        self.stage_names = convolutions + (["fc6", "fc7"] if self.fc_size is not None else [])
        out_indices, out_features = kwargs.pop("out_indices", None), kwargs.pop("out_features", None)
        if out_indices is None and out_features is None:
            out_features = convolutions[-1:]
        self.set_output_features_output_indices(out_indices=out_indices, out_features=out_features)
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """
        Returns the config as a `dict`, without `fc_size` if it is `None`. Version 0.1 wrote it this way, and the names
        of feature caches depend on it.
        """
        fields = super().to_dict()
        if fields.get("fc_size", 0) is None:
            del fields["fc_size"]
        return fields

    def validate_stages(self) -> None:
        """Part of `@strict`-powered validation: every stage needs a depth and a width."""
        if len(self.depths) != len(self.hidden_sizes):
            raise ValueError(
                f"`depths` and `hidden_sizes` must have one value per stage, got depths={self.depths} and "
                f"hidden_sizes={self.hidden_sizes}."
            )


__all__ = ["VGG_DEPTHS", "VggConfig"]
