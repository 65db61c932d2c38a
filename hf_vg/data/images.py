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
"""Opens images from files, URLs, bytes and arrays as RGB, with limits and clear errors."""

import base64
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from io import BytesIO
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import numpy as np
from huggingface_hub.utils import httpx
from PIL import ExifTags, Image, ImageOps, features


logger = logging.getLogger(__name__)

# PIL supports about fifty more formats. One of them runs Ghostscript.
IMAGE_FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"),
    *(("AVIF",) if features.check("avif") else ()),
)
MAX_PIXELS = 100_000_000  # 400 MB in memory
MAX_ASPECT_RATIO = 100  # at 224 pixels on the shorter side, such an image still has 5 million pixels
MAX_BYTES = 100 * 2**20
TIMEOUT = 10.0
MIN_BASE64_LENGTH = 64  # no image is smaller, while a mistyped path is often shorter

# Names of the images that this process has already reported as unreadable.
_reported: set[str] = set()


def open_image(
    source: "str | PathLike | bytes | dict[str, Any] | Image.Image | np.ndarray",
    timeout: float = TIMEOUT,
    max_pixels: int = MAX_PIXELS,
    max_aspect_ratio: float = MAX_ASPECT_RATIO,
    max_bytes: int = MAX_BYTES,
) -> Image.Image:
    r"""
    Opens an image and converts it to RGB. The first frame of an animation is used, transparent pixels are put on
    white, 16-bit grays are scaled to 8 bits, and the EXIF orientation is applied. The file format must be one of
    `IMAGE_FORMATS`. If the image cannot be opened, the error names it.

    Args:
        source (`str`, `PathLike`, `bytes`, `dict`, `PIL.Image.Image` or `np.ndarray`):
            A path, an http(s) URL, the file's bytes, base64 text, an image, or a `uint8` array of shape
            `(height, width)` or `(height, width, channels)`. Or a dictionary with the `bytes` or the `path` of an
            image, as `datasets` returns without decoding. Its path must be a file, not a URL.
        timeout (`float`, *optional*, defaults to 10.0):
            Maximum number of seconds for a download.
        max_pixels (`int`, *optional*, defaults to 100,000,000):
            Maximum number of pixels. PIL itself refuses more than twice `PIL.Image.MAX_IMAGE_PIXELS`.
        max_aspect_ratio (`float`, *optional*, defaults to 100):
            Maximum ratio of the longer to the shorter side. Image processors resize the shorter side, so an extremely
            long image would stay huge.
        max_bytes (`int`, *optional*, defaults to 100 MiB):
            Maximum size of a download.

    Returns:
        `PIL.Image.Image`: The image in RGB mode.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import open_image

    >>> image = open_image(np.zeros((48, 64), dtype=np.uint8))
    >>> image.mode, image.size
    ('RGB', (64, 48))
    ```
    """
    try:
        if isinstance(source, str) and source.startswith(("http://", "https://")):
            source_or_bytes = _download(source, timeout, max_bytes)
        else:
            source_or_bytes = source
        with _opened(source_or_bytes, max_pixels, max_aspect_ratio) as image:
            image.seek(0)
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    # PIL raises errors of many types for a broken file, also SyntaxError and struct.error. A MemoryError may concern
    # this file only.
    except Exception as error:
        error_class = TypeError if isinstance(error, TypeError) else ValueError
        raise error_class(f"{_describe(source)} cannot be opened as an image: {_first_line(error)}") from error


def image_problem(source: "str | PathLike | bytes | dict[str, Any]", decode: bool = False) -> str | None:
    r"""
    Checks whether an image file can be used. By default it reads the header, the checksums of a PNG and the end of the
    file, which is several times faster than decoding. A file that seems to be truncated is decoded.

    Args:
        source (`str`, `PathLike`, `bytes` or `dict`):
            A path, the file's bytes, or a dictionary with one of them, see [`open_image`].
        decode (`bool`, *optional*, defaults to `False`):
            Whether to decode every image.

    Returns:
        `str` or `None`: What is wrong with the image, or `None` if it can be used.
    """
    try:
        with _opened(source, MAX_PIXELS, MAX_ASPECT_RATIO) as image:
            if not decode and _seems_whole(image):
                return None
        open_image(source)
    except Exception as error:
        if str(error).startswith(_describe(source)):
            return str(error)
        return f"{_describe(source)} cannot be opened as an image: {_first_line(error)}"
    return None


def image_size(source: "str | PathLike | bytes | dict[str, Any] | Image.Image") -> tuple[int, int]:
    r"""
    Reads the width and height that [`open_image`] would return. Only the header of the file is read.

    Args:
        source (`str`, `PathLike`, `bytes`, `dict` or `PIL.Image.Image`):
            The image, see [`open_image`].

    Returns:
        `tuple[int, int]`: Width and height in pixels.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.data.images import image_size

    >>> image_size(hf_vg.examples.scenes()[0]["image"])
    (128, 128)
    ```
    """
    with _opened(source, MAX_PIXELS, MAX_ASPECT_RATIO) as image:
        is_turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        return image.size[::-1] if is_turned else image.size


def mirror_boxes(boxes: Sequence[Sequence[float]], width: float) -> list[list[float]]:
    """
    Returns the boxes of a mirrored image.

    Args:
        boxes (`Sequence` of `(left, top, right, bottom)`):
            Boxes in pixels.
        width (`float`):
            Width of the image.
    """
    return [[width - right, top, width - left, bottom] for left, top, right, bottom in boxes]


def readable_rows(rows: list[dict[str, Any]], strict: bool = False) -> list[dict[str, Any]]:
    r"""
    Opens the images of a batch. If an image cannot be opened, the next readable row of the batch takes its place, and
    the name of the image is logged once. A broken file does not stop a training run, the batch keeps its size, and its
    contents depend only on its rows. If all images of the batch are broken, gray images are used.

    Args:
        rows (`list[dict]`):
            Each row has an `image`, see [`open_image`]. A string is a path here, never a URL.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error for an image that cannot be opened.

    Returns:
        `list[dict]`: As many rows, with opened images.
    """
    images = [open_or_report(row["image"], strict) for row in rows]
    readable = [index for index, image in enumerate(images) if image is not None]
    if not readable:
        return [{**row, "image": Image.new("RGB", (64, 64), "grey")} for row in rows]
    chosen = [min(readable, key=lambda other: (other - index) % len(rows)) for index in range(len(rows))]
    return [{**rows[index], "image": images[index]} for index in chosen]


def open_or_report(source: Any, strict: bool = False) -> Image.Image | None:
    """
    Opens an image of a dataset. If it cannot be opened, logs its name once.

    Args:
        source (`Any`):
            The image, see [`open_image`]. A string is a path here, never a URL.
        strict (`bool`, *optional*, defaults to `False`):
            Whether to raise an error instead.

    Returns:
        `PIL.Image.Image` or `None`: The image, or `None` if it cannot be opened.
    """
    try:
        return open_image(Path(source) if isinstance(source, str) else source)
    except (TypeError, ValueError) as error:
        if strict:
            raise
        name = _describe(source)
        if name not in _reported:
            _reported.add(name)
            logger.warning(f"Skipped: {error} ({len(_reported):,} unreadable images so far)")
        return None


@contextmanager
def _opened(source: Any, max_pixels: int, max_aspect_ratio: float) -> Iterator[Image.Image]:
    """Opens an image and checks its size. Only the header has been read."""
    if isinstance(source, dict) and source.keys() & {"bytes", "path"}:
        source = source.get("bytes") or Path(source.get("path") or "")
    if isinstance(source, str):
        source = _path_or_bytes(source)
    if isinstance(source, (Image.Image, np.ndarray)):
        image = source if isinstance(source, Image.Image) else Image.fromarray(source)
        _check_size(image, max_pixels, max_aspect_ratio)
        yield image
        return
    if isinstance(source, (bytes, bytearray)):
        file = BytesIO(source)
    elif isinstance(source, PathLike):
        file = _open_regular_file(source)
    else:
        raise TypeError("expected a path, a URL, bytes, base64 text, a PIL image or an array")
    with file, Image.open(file, formats=IMAGE_FORMATS) as image:
        _check_size(image, max_pixels, max_aspect_ratio)
        yield image


def _check_size(image: Image.Image, max_pixels: int, max_aspect_ratio: float) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"it has {width:,} x {height:,} pixels, but `max_pixels` is {max_pixels:,}")
    if max(width, height) > max_aspect_ratio * min(width, height):
        raise ValueError(
            f"it has {width:,} x {height:,} pixels, but `max_aspect_ratio` allows {max_aspect_ratio:g} to 1"
        )


def _open_regular_file(path: PathLike) -> BinaryIO:
    # Reading a named pipe or a device might block forever.
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    return open(path, "rb")


def _path_or_bytes(text: str) -> Path | bytes:
    if text.startswith("data:image/"):
        return base64.b64decode(text.partition(",")[2])
    if len(text) >= MIN_BASE64_LENGTH and not os.path.lexists(text):
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except ValueError:
            pass
    return Path(text)


def _download(address: str, timeout: float, max_bytes: int) -> bytes:
    """Downloads a URL within the limits, however slow the server is and whatever length it announces."""
    content: Future[bytes] = Future()

    def run() -> None:
        try:
            content.set_result(_fetch(address, timeout, max_bytes))
        except Exception as error:
            content.set_exception(error)

    # httpx limits each read, not the total: a server may send its headers byte by byte or redirect often. In that case
    # the thread is abandoned. It ends with the process at the latest.
    Thread(target=run, daemon=True).start()
    try:
        return content.result(timeout)
    except TimeoutError as error:
        raise TimeoutError(f"the download takes longer than {timeout:g} seconds") from error


def _fetch(address: str, timeout: float, max_bytes: int) -> bytes:
    start, content = time.monotonic(), bytearray()
    # No compression: a small response could unpack to any size.
    headers = {"Accept-Encoding": "identity"}
    with httpx.stream("GET", address, timeout=timeout, follow_redirects=True, headers=headers) as response:
        response.raise_for_status()
        for chunk in response.iter_raw():
            content += chunk
            if len(content) > max_bytes:
                raise ValueError(f"the download is larger than `max_bytes`, {max_bytes:,}")
            if time.monotonic() - start > timeout:  # the caller has given up
                raise TimeoutError
    return bytes(content)


def _seems_whole(image: Image.Image) -> bool:
    """Returns whether the file ends as its format requires. For a PNG, the checksums are verified too."""
    file = image.fp  # type: ignore[attr-defined]  # it is an `ImageFile`
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 12))
    end = file.read()
    if image.format in ("JPEG", "MPO"):
        return end.endswith(b"\xff\xd9")
    if image.format == "PNG":
        file.seek(0)
        try:
            Image.open(file, formats=["PNG"]).verify()
        except Exception:
            return False
        return end[4:8] == b"IEND"
    if image.format == "WEBP":
        file.seek(4)
        return int.from_bytes(file.read(4), "little") + 8 <= size
    return False


def seen_box(image_processor: Any, image_size: tuple[int, int]) -> tuple[float, float, float, float]:
    r"""
    Computes which part of an image the model sees. Image processors that crop cut off the margins; image processors
    that pad add margins.

    Args:
        image_processor ([`BaseImageProcessor`]):
            One of transformers' image processors.
        image_size (`tuple[int, int]`):
            Width and height of the image.

    Returns:
        `tuple[float, float, float, float]`: Left, top, right and bottom as fractions of the image's width and height.
        With padding, the box is larger than the image.

    Example:

    ```python
    >>> from transformers import CLIPImageProcessorPil
    >>> from hf_vg.data import seen_box

    >>> seen_box(CLIPImageProcessorPil(), (640, 320))  # the center square
    (0.25, 0.0, 0.75, 1.0)
    ```
    """
    width, height = image_size
    kind = type(image_processor).__name__
    if kind.startswith("MllamaImageProcessor"):
        return _seen_on_tiles(image_processor, width, height)
    size = dict(image_processor.size) if getattr(image_processor, "do_resize", False) else {}
    if kind.startswith("DonutImageProcessor") and size and image_processor.do_pad:
        # The image is resized to the shorter side of the canvas, and then shrunk further if it does not fit.
        scale = min(min(size.values()) / min(image_size), size["width"] / width, size["height"] / height)
        x, y = size["width"] / (width * scale) / 2, size["height"] / (height * scale) / 2
        return 0.5 - x, 0.5 - y, 0.5 + x, 0.5 + y
    if not getattr(image_processor, "do_center_crop", False):
        return 0.0, 0.0, 1.0, 1.0
    if size.get("shortest_edge"):
        scale = size["shortest_edge"] / min(image_size)
        width, height = width * scale, height * scale
    elif size:
        width, height = size["width"], size["height"]
    crop = dict(image_processor.crop_size)
    x, y = crop["width"] / width / 2, crop["height"] / height / 2
    return 0.5 - x, 0.5 - y, 0.5 + x, 0.5 + y


def boxes_in_view(
    boxes: Sequence[Sequence[float]], image_size: tuple[float, float], seen: Sequence[float]
) -> tuple[list[list[float]], tuple[float, float]]:
    r"""
    Moves boxes to the coordinates of the part of the image that the model sees. Boxes outside of it are left out.

    Args:
        boxes (`Sequence` of `(left, top, right, bottom)`):
            Boxes in pixels.
        image_size (`tuple[float, float]`):
            Width and height of the image.
        seen (`Sequence[float]`):
            The part that the model sees, from [`seen_box`].

    Returns:
        `tuple[list[list[float]], tuple[float, float]]`: The boxes, and the width and height of the part.

    Example:

    ```python
    >>> from hf_vg.data.images import boxes_in_view

    >>> boxes_in_view([[300, 0, 400, 100], [0, 0, 100, 100]], (640, 320), seen=(0.25, 0.0, 0.75, 1.0))
    ([[140.0, 0.0, 240.0, 100.0]], (320.0, 320.0))
    ```
    """
    width, height = image_size
    left, top, right, bottom = seen[0] * width, seen[1] * height, seen[2] * width, seen[3] * height
    size = (right - left, bottom - top)
    moved = [[b[0] - left, b[1] - top, b[2] - left, b[3] - top] for b in boxes]
    return [b for b in moved if b[0] < size[0] and b[1] < size[1] and b[2] > 0 and b[3] > 0], size


def _seen_on_tiles(image_processor: Any, width: int, height: int) -> tuple[float, float, float, float]:
    """Mllama puts the image in the upper left corner of a canvas of tiles."""
    from transformers.models.mllama.image_processing_pil_mllama import (
        get_image_size_fit_to_canvas,
        get_optimal_tiled_canvas,
    )

    side = image_processor.size["height"]
    canvas = get_optimal_tiled_canvas(height, width, image_processor.max_image_tiles, side)
    new_height, new_width = get_image_size_fit_to_canvas(height, width, *canvas, side)
    return 0.0, 0.0, float(canvas[1] / new_width), float(canvas[0] / new_height)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # PIL would clip 16-bit grays at 255, so that most of them become white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _describe(source: Any) -> str:
    if isinstance(source, dict) and source.keys() & {"bytes", "path"}:
        source = source.get("path") or source.get("bytes")
    if isinstance(source, (str, PathLike)):
        text = os.fspath(source)
        return repr(text if len(text) <= 200 else text[:100] + "...")
    if isinstance(source, bytes):
        return f"An image of {len(source)} bytes"
    return f"A value of type {type(source).__name__}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
