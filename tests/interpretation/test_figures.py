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
import numpy as np
import pytest
from PIL import Image

from hf_vg.interpretation import plot_attention, plot_candidates, plot_search


def test_figure_shows_each_word_where_it_was_looked_for(tmp_path):
    image = Image.new("RGB", (64, 64), "white")
    attention = np.full((2, 4, 4), 1e-3)
    attention[0, 0, 0] = attention[1, 3, 3] = 1.0  # top left, then bottom right
    example = {"image": image, "words": ["first", "second"], "attention": attention}
    figure = plot_attention([example, {**example, "words": ["only"], "attention": attention[:1]}], tmp_path / "f.png")
    assert [axis.get_title() for axis in figure.axes] == ["", "first", "second", "", "only", ""]
    heats = [axis.images[1].get_array() for axis in figure.axes[1:3]]
    assert heats[0][:16, :16].mean() > 10 * heats[0][-16:, -16:].mean()
    assert heats[1][-16:, -16:].mean() > 10 * heats[1][:16, :16].mean()
    saved = Image.open(tmp_path / "f.png")
    assert saved.size[0] > saved.size[1] > 100
    with pytest.raises(ValueError, match="Example 0 must have one map per word, got 3 words and 2 maps"):
        plot_attention({**example, "words": ["a", "b", "c"]})


def test_figure_shows_the_part_that_the_model_saw():
    image = Image.new("RGB", (60, 30), "white")
    image.paste("black", (0, 0, 15, 30))  # left of what is seen
    example = {"image": image, "words": ["a"], "attention": np.ones((1, 2, 2)), "seen": (0.25, 0.0, 0.75, 1.0)}
    shown = plot_attention(example).axes[0].images[0].get_array()
    assert shown.shape == (30, 30, 3) and (shown == 255).all()


def test_figure_shows_candidates_with_a_tag_below_each_word(tmp_path):
    candidates = [
        {"words": ["a", "running", "dog"], "tags": ["DT", "VBG", "NN"], "score": 0.5},
        {"words": ["dogs"], "tags": ["NNS"], "score": -0.25},
    ]
    examples = [
        {"image": Image.new("RGB", (8, 8)), "title": "a dog runs", "candidates": candidates},
        {"image": Image.new("L", (8, 6)), "candidates": candidates[:1]},
    ]
    figure = plot_candidates(examples, tmp_path / "f.png")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["", "a dog runs", "", ""]
    lines = [text.get_text().rstrip() for text in figure.axes[1].texts]
    assert lines == [" 0.500  a  running dog", "        DT VBG     NN", "-0.250  dogs", "        NNS"]
    heights = [text.get_position()[1] for text in figure.axes[1].texts]
    assert heights == sorted(heights, reverse=True) and 0 < min(heights) < max(heights) < 1
    assert len(figure.axes[3].texts) == 2
    assert Image.open(tmp_path / "f.png").size[0] > 1000


def test_figure_of_a_search_shows_what_was_found_in_order(tmp_path):
    red, blue, green = (Image.new("RGB", (8, 6), color) for color in ("red", "blue", "green"))
    examples = [
        {"title": "cat - red + $blue$", "image": red, "found": [blue, green]},
        {"title": "dog", "image": green.convert("L"), "found": [red]},
    ]
    figure = plot_search(examples, tmp_path / "f.png")
    assert [axis.get_title() for axis in figure.axes] == ["cat - red + $blue$", "", "", "dog", "", ""]
    colors = [tuple(axis.images[0].get_array()[0, 0]) if axis.images else None for axis in figure.axes]
    assert colors[:3] == [(255, 0, 0), (0, 0, 255), (0, 128, 0)] and colors[4:] == [(255, 0, 0), None]
    assert (tmp_path / "f.png").stat().st_size > 1000
