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
"""The image processor of a model that a recipe makes."""

from transformers import AutoImageProcessor, BaseImageProcessor, CLIPImageProcessor
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..data.arguments import CaptionDataArguments


def build_image_processor(args: CaptionDataArguments) -> BaseImageProcessor:
    r"""
    Makes the image processor of `args.backbone`, or one for images of `args.image_size`. Either cuts the middle out of
    an image, unless `args.squeeze_images` says that all of it shall be seen.

    Args:
        args ([`CaptionDataArguments`]):
            The backbone and the size of images.
    """
    whole = {}
    if args.squeeze_images is not None:
        size = {"height": args.squeeze_images, "width": args.squeeze_images}
        whole = {"size": size, "do_center_crop": False}
    if args.backbone is not None:
        return AutoImageProcessor.from_pretrained(args.backbone, **whole)
    fields = {
        "size": {"shortest_edge": args.image_size},
        "crop_size": {"height": args.image_size, "width": args.image_size},
        "image_mean": IMAGENET_DEFAULT_MEAN,
        "image_std": IMAGENET_DEFAULT_STD,
    }
    return CLIPImageProcessor(**fields | whole)
