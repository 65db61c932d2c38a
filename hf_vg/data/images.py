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
"""Images from wherever people have them, as RGB, or one clear error."""

import os
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.image_utils import load_image


def open_image(source: "str | Path | bytes | Image.Image | np.ndarray", timeout: float | None = None) -> Image.Image:
    r"""
    Opens an image and makes it RGB. Of an animation the first frame is taken, transparency is laid on white, 16-bit
    greys are scaled to 8 bits, and the camera's orientation is applied.

    Args:
        source (`str`, `Path`, `bytes`, `PIL.Image.Image` or `np.ndarray`):
            A path, an http(s) address, the file's bytes, base64 text, an image, or an array `(height, width)` or
            `(height, width, channels)` of bytes.
        timeout (`float`, *optional*):
            Seconds to wait for an address.

    Returns:
        `PIL.Image.Image`: In mode RGB.
    """
    try:
        if isinstance(source, Image.Image):
            image = source
        elif isinstance(source, np.ndarray):
            image = Image.fromarray(source)
        elif isinstance(source, bytes):
            image = Image.open(BytesIO(source))
        elif isinstance(source, Path) or (isinstance(source, str) and os.path.isfile(source)):
            image = Image.open(source)
        elif isinstance(source, str):
            image = load_image(source, timeout=timeout)
        else:
            raise TypeError("it is none of a path, an address, bytes, base64 text, a PIL image or an array")
        image.seek(0)
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    # PIL reports a broken file in many ways, SyntaxError and struct.error among them.
    except Exception as error:
        error_class = TypeError if isinstance(error, TypeError) else ValueError
        raise error_class(f"{_describe(source)} can not be opened as an image: {_first_line(error)}") from error


def seen_box(image_processor, image_size: tuple[int, int]) -> tuple[float, float, float, float]:
    r"""
    The part of an image that a model is given: image processors that crop leave the margins out.

    Args:
        image_processor ([`BaseImageProcessor`]):
            One of transformers' image processors.
        image_size (`tuple[int, int]`):
            Width and height of the image.

    Returns:
        `tuple[float, float, float, float]`: Left, top, right and bottom as shares of the image's width and height. A
        processor that pads a small image gives it a part that is larger than the image.
    """
    if not getattr(image_processor, "do_center_crop", False):
        return 0.0, 0.0, 1.0, 1.0
    width, height = image_size
    if getattr(image_processor, "do_resize", False):
        size = dict(image_processor.size)
        if size.get("shortest_edge"):
            scale = size["shortest_edge"] / min(image_size)
            width, height = width * scale, height * scale
        else:
            width, height = size["width"], size["height"]
    crop = dict(image_processor.crop_size)
    x, y = crop["width"] / width / 2, crop["height"] / height / 2
    return 0.5 - x, 0.5 - y, 0.5 + x, 0.5 + y


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # PIL would clip 16-bit greys at 255, which makes most of them white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _describe(source) -> str:
    if isinstance(source, (str, Path)):
        text = str(source)
        return repr(text if len(text) <= 200 else text[:100] + "...")
    if isinstance(source, bytes):
        return f"An image of {len(source)} bytes"
    return f"A value of type {type(source).__name__}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
