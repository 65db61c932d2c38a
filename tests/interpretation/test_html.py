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
"""The page, read as a browser reads it. `tests/test_app.py` opens it in one."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil

from hf_vg.data import seen_box
from hf_vg.interpretation import explanation_html, save_html
from tests.common import random_images


class Page(HTMLParser):
    """The data of a page, and everything that it would load from elsewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.inside, self.scripts, self.loads, self.data = None, 0, [], ""
        self.feed(text)
        self.examples = json.loads(self.data)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.inside = attributes.get("id") if tag == "script" else None
        self.scripts += tag == "script"
        self.loads += [value for name, value in attributes.items() if name in ("src", "href")]

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside == "data":
            self.data += text


def vectors(example: dict) -> np.ndarray:
    """What the page shows, of shape (views and words, weights)."""
    scaled = np.frombuffer(base64.b64decode(example["bytes"]), dtype=np.uint8).reshape(-1, example["size"])
    return scaled / 255 * np.array(example["peaks"])[:, None]


RNG = np.random.default_rng(0)
HEADS = RNG.dirichlet(np.ones(12), size=(2, 4, 3)).reshape(2, 4, 3, 3, 4)
CAPTION = {
    "image": random_images(1, size=200)[0],
    "words": ["a", "red", "dog"],
    "attention": HEADS.mean(axis=(0, 1)),
    "head_attention": HEADS,
    "seen": (0.1, 0.0, 0.9, 1.0),
}


def test_maps_of_all_layers_and_heads_are_in_it():
    (example,) = Page(explanation_html(CAPTION)).examples
    assert (example["layers"], example["heads"], example["grid"]) == (2, 4, [3, 4])
    assert example["seen"] == [0.1, 0, 0.9, 1]
    by_layer = np.concatenate([HEADS.mean(axis=1, keepdims=True), HEADS], axis=1)
    expected = np.concatenate([CAPTION["attention"][None], by_layer.reshape(-1, 3, 3, 4)]).reshape(-1, 12)
    shown = vectors(example)
    np.testing.assert_allclose(shown, expected, atol=expected.max() / 255)
    assert (shown.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert example["image"].startswith("data:image/jpeg;base64,")


def test_a_caption_may_have_no_words():
    nothing = {**CAPTION, "words": [], "attention": HEADS.mean(axis=(0, 1))[:0], "head_attention": HEADS[:, :, :0]}
    (example,) = Page(explanation_html(nothing)).examples
    assert (example["layers"], example["heads"], example["words"]) == (2, 4, [])
    assert example["peaks"] == [] and example["bytes"] == ""


def test_one_head_gives_no_choice():
    (example,) = Page(explanation_html({**CAPTION, "head_attention": HEADS[:1, :1]})).examples
    assert "layers" not in example and len(example["peaks"]) == 3


def test_a_deletion_test_stands_beside_the_maps():
    curve = {"map": [0.9, 0.2], "random": [0.9, 0.7], "center": [0.9, 0.5]}
    result = {
        "score": {"value": 0.5, "low": 0.4, "high": 0.61234},
        "score_center": {"value": 0.3, "low": 0.2, "high": 0.4},
        "shares": [0.0, 0.5],
        "probability": curve,
        "words": [{"word": word, **curve, "map": [0.9, 0.1]} for word in CAPTION["words"]],
    }
    (example,) = Page(explanation_html({**CAPTION, "deletion": result})).examples
    assert example["deletion"]["score"] == [0.5, 0.4, 0.6123] and example["deletion"]["shares"] == [0, 0.5]
    assert example["deletion"]["score_center"] == [0.3, 0.2, 0.4]
    assert example["deletion"]["curves"][0] == [[0.9, 0.2], [0.9, 0.7], [0.9, 0.5]]
    assert example["deletion"]["curves"][3][0] == [0.9, 0.1] and len(example["deletion"]["curves"]) == 4
    with pytest.raises(ValueError, match=r"must have its words.*got \['a', 'red'\]"):
        explanation_html({**CAPTION, "deletion": {**result, "words": result["words"][:2]}})


def test_regions_and_sentences():
    shares = RNG.dirichlet(np.ones(2), size=3)
    boxes = [[0, 0, 1, 1], [0.25, 0.5, 0.75, 1]]
    regions = {"image": CAPTION["image"], "words": list("abc"), "boxes": boxes, "attention": shares}
    rows = RNG.dirichlet(np.ones(3), size=4)
    page = Page(explanation_html([{**regions, "right": [[], [1], []]}, {"words": list("abc"), "attention": rows}]))
    assert page.examples[0]["boxes"] == boxes and page.examples[0]["right"] == [[], [1], []]
    np.testing.assert_allclose(vectors(page.examples[0]), shares, atol=1 / 255)
    assert "image" not in page.examples[1]
    np.testing.assert_allclose(vectors(page.examples[1]), np.concatenate([rows.mean(0)[None], rows]), atol=1 / 255)


def test_text_stays_text():
    evil = "</script><script>alert(1)</script><!-- &amp; \u2028 \"'"
    text = explanation_html({**CAPTION, "words": [evil, "b", "c"], "name": evil}, title=evil)
    page = Page(text)
    assert page.scripts == 2 and "alert(1)</script>" not in text
    assert page.examples[0]["words"][0] == page.examples[0]["name"] == evil
    assert "<title>&lt;/script&gt;" in text


def test_nothing_comes_from_the_network():
    text = explanation_html([CAPTION, {"words": ["a"], "attention": [[1.0]]}])
    assert Page(text).loads == []
    assert not re.findall(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text


def test_file_is_small_and_written_whole(tmp_path):
    path = save_html(CAPTION, tmp_path / "new" / "page.html", title="Dogs & cats")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    text = path.read_text(encoding="utf-8")
    assert "<h1>Dogs &amp; cats</h1>" in text
    small = {**CAPTION, "image": Image.new("RGB", (64, 64), "red")}
    assert len(explanation_html(small)) < 18_000  # a byte a weight, before base64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": HEADS[0, 0, :2]}, r"example 0 must be finite and of shape \(3, height, width\)"),
        ({"attention": HEADS.mean((0, 1)) * np.nan}, "must be finite"),
        ({"head_attention": HEADS[..., :2]}, r"`head_attention` of example 0 must be of shape \(layers, heads"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        explanation_html({**CAPTION, **change})


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (50, 50)])
@pytest.mark.parametrize(
    "options",
    [
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 24}},
        {"size": {"height": 40, "width": 48}, "crop_size": {"height": 30, "width": 36}},
        {"do_center_crop": False, "size": {"height": 32, "width": 32}},
    ],
)
def test_seen_box_is_what_the_processor_keeps(size, options):
    """Of an image whose colors are its coordinates, what is left tells where it was."""
    ys, xs = np.mgrid[: size[1], : size[0]]
    ramp = np.stack([(xs + 0.5) / size[0], (ys + 0.5) / size[1], 0 * xs], axis=-1)
    processor = CLIPImageProcessorPil(do_normalize=False, **options)
    image = Image.fromarray(np.rint(255 * ramp).astype(np.uint8))
    pixels = processor(image, return_tensors="pt")["pixel_values"][0].double()
    left, top, right, bottom = seen_box(processor, size)
    height, width = pixels.shape[1:]
    middle = torch.linspace(0, 1, 2 * width + 1)[1::2], torch.linspace(0, 1, 2 * height + 1)[1::2]
    expected_x, expected_y = left + (right - left) * middle[0], top + (bottom - top) * middle[1]
    # Pixels at the edge are mixed with fewer neighbors.
    inside = slice(2, -2)
    assert (pixels[0].mean(0) - expected_x)[inside].abs().max() < 0.02
    assert (pixels[1].mean(1) - expected_y)[inside].abs().max() < 0.02
