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
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from hf_vg.data import open_image
from hf_vg.data.images import image_size


def encoded(image: Image.Image, format: str = "PNG", **kwargs) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format, **kwargs)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def test_every_mode_becomes_rgb():
    red = (200, 20, 20)
    frames = [Image.new("RGB", (6, 4), color) for color in ("red", "blue")]
    files = {
        "palette": encoded(Image.new("RGB", (6, 4), red).convert("P", palette=Image.Palette.ADAPTIVE)),
        "cmyk": encoded(Image.new("RGB", (6, 4), red).convert("CMYK"), "TIFF"),
        "grey": encoded(Image.new("L", (6, 4), 80)),
        "bilevel": encoded(Image.new("1", (6, 4), 1)),
        "animated": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "one pixel": encoded(Image.new("RGB", (1, 1), red)),
    }
    for name, data in files.items():
        image = open_image(data)
        assert image.mode == "RGB" and image.size == ((1, 1) if name == "one pixel" else (6, 4)), name
    assert np.abs(np.subtract(open_image(files["cmyk"]).getpixel((0, 0)), red)).max() <= 2
    assert open_image(files["animated"]).getpixel((0, 0)) == (255, 0, 0)
    assert open_image(files["grey"]).getpixel((0, 0)) == (80, 80, 80)


def test_sixteen_bit_greys_are_scaled_and_not_clipped():
    values = np.linspace(0, 65535, 24).reshape(4, 6).astype(np.uint16)
    image = np.asarray(open_image(encoded(Image.fromarray(values))))[..., 0]
    np.testing.assert_allclose(image, values / 257, atol=0.51)


def test_transparency_lies_on_white():
    image = Image.new("RGBA", (2, 1), (0, 0, 255, 255))
    image.putpixel((1, 0), (0, 0, 255, 0))
    opened = open_image(encoded(image))
    assert [opened.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 255), (255, 255, 255)]


def test_orientation_of_the_camera_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    turned = encoded(Image.new("RGB", (6, 4)), "JPEG", exif=exif)
    assert open_image(turned).size == image_size(turned) == (4, 6)


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "truncated": encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")[:600],
        "truncated_png": encoded(Image.effect_noise((64, 64), 50))[:600],
        "text": b"this is not an image",
        "empty": b"",
        "bomb": png_header(20_000, 20_000),
        "broken_palette": encoded(Image.new("P", (4, 4)))[:45],
    }.items(),
)
def test_bad_files_are_named(tmp_path, name, data):
    path = tmp_path / f"{name}.img"
    path.write_bytes(data)
    for source in (path, str(path)):
        with pytest.raises(ValueError, match=f"{name}.img.*cannot be opened as an image: ."):
            open_image(source)
    with pytest.raises(ValueError, match=f"{len(data)} bytes cannot be opened"):
        open_image(data)


def test_what_is_no_image_is_named(tmp_path):
    for missing in (tmp_path / "none.png", str(tmp_path / "none.png")):
        with pytest.raises(ValueError, match="none.png.*cannot be opened"):
            open_image(missing)
    for value, name in ((7, "int"), (None, "NoneType"), ({"image": 1}, "dict")):
        with pytest.raises(TypeError, match=f"type {name} cannot be opened.*expected a path"):
            open_image(value)
    with pytest.raises((TypeError, ValueError), match="ndarray"):
        open_image(np.zeros((2, 2, 9)))
