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
"""The image side of a model that a recipe makes: its image processor and its backbone."""

from typing import Any

from torch import nn
from transformers import AutoImageProcessor, BaseImageProcessor, CLIPImageProcessorPil, PreTrainedModel
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..data.arguments import CaptionDataArguments
from ..data.feature_extraction import backbone_of, load_backbone
from ..loading import load_part
from .arguments import CaptionerArguments, SentenceEncoderArguments


def build_image_processor(args: CaptionDataArguments) -> BaseImageProcessor:
    r"""
    Makes the image processor of `args.backbone`, or one for images of `args.image_size`. It crops the center of an
    image, unless `args.squeeze_images` resizes the whole image to a square.

    Args:
        args ([`CaptionDataArguments`]):
            The backbone and the image size.

    Returns:
        [`BaseImageProcessor`]: The image processor.

    Example:

    ```python
    >>> from hf_vg.data.arguments import CaptionDataArguments
    >>> from hf_vg.training import build_image_processor
    >>> build_image_processor(CaptionDataArguments(image_size=32)).crop_size["height"]
    32
    ```
    """
    whole = {}
    if args.squeeze_images is not None:
        size = {"height": args.squeeze_images, "width": args.squeeze_images}
        whole = {"size": size, "do_center_crop": False}
    if args.backbone is not None:
        return load_part(AutoImageProcessor, args.backbone, args.trust_remote_code, **whole)
    fields = {
        "size": {"shortest_edge": args.image_size},
        "crop_size": {"height": args.image_size, "width": args.image_size},
        "image_mean": IMAGENET_DEFAULT_MEAN,
        "image_std": IMAGENET_DEFAULT_STD,
    }
    # `CLIPImageProcessor` would warn if torchvision is not installed. The saved files are the same, and
    # `AutoImageProcessor` loads them with torchvision if it can.
    return CLIPImageProcessorPil(**fields | whole)


def config_fields(args: SentenceEncoderArguments | CaptionerArguments) -> tuple[dict[str, Any], nn.Module | None]:
    """Returns the config fields of `args.model` and of the backbone `args.backbone`, and that backbone or `None`."""
    if args.backbone is None:
        return dict(args.model), None
    backbone = load_backbone(args.backbone, args.trust_remote_code, args.backbone_stage)
    return {**args.model, "backbone_config": backbone.config, "feature_size": backbone.channels[-1]}, backbone


def fill_backbone(model: PreTrainedModel, pretrained: nn.Module | None) -> None:
    """Loads pretrained weights into the backbone of a new model. A frozen backbone must have them."""
    backbone = backbone_of(model)
    if backbone is None:
        return
    if pretrained is not None:
        backbone.load_state_dict(pretrained.state_dict())
    elif model.config.freeze_backbone:
        raise ValueError(
            "the backbone would keep its random weights: give a pretrained one with `--backbone`, or train it with "
            "`--model.freeze_backbone false`."
        )
