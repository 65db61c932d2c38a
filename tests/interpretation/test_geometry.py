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
"""The place of an image token on the image, found by making one cell of the image brighter."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import LlavaConfig, LlavaForConditionalGeneration, SwinConfig

from hf_vg.data.images import seen_box
from hf_vg.interpretation import Layout, record_attention, recording, tiles_of, word_maps
from hf_vg.interpretation.families import deal, grid, runs_of, tiled
from hf_vg.interpretation.word_maps import fold, layout_of

from .any_models import IMAGE, tiny
from .any_processors import PROCESSORS


def grey(width: int, height: int) -> np.ndarray:
    return np.full((height, width, 3), 100, dtype=np.uint8)


def brightened(name: str, width: int, height: int, x: float, y: float, **options) -> tuple[int, ...]:
    """The cell that changes most in the finest grid of the second of two images in a prompt, and the grid's shape."""
    model, _ = tiny(name, torch.float64)
    processor = PROCESSORS[name]()
    placeholder = {"gemma3": "<start>", "internvl": "<IMG_CONTEXT>", "mllama": "<|image|>"}.get(name, "<image>")
    if name == "qwen2_5_vl":
        placeholder = "<|image_pad|>"
    prompt = f"two: {placeholder}and {placeholder} what" if name != "mllama" else f"{placeholder}{placeholder}what"
    first = Image.fromarray(grey(20, 20))
    keys, attention_of = [], recording.attention_of

    def spy(module, query, key, *args, **kwargs):
        keys.append(key)
        return attention_of(module, query, key, *args, **kwargs)

    def on_the_grid(pixels: np.ndarray) -> torch.Tensor:
        images = [first, Image.fromarray(pixels)]
        inputs = processor(images=[images], text=[prompt], return_tensors="pt").to(torch.float64)
        keys.clear()
        with pytest.MonkeyPatch.context() as patch, record_attention(model) as record, torch.no_grad():
            patch.setattr(recording, "attention_of", spy)
            model.generate(**inputs, max_new_tokens=1)
        if name == "internvl":
            options["tiles"] = [tiles_of(processor.image_processor, image.size) for image in images]
        values = keys[0][-1].transpose(0, 1).flatten(1)
        values = values if record._columns is None else values[record._columns[-1]]
        grids = layout_of(record, inputs, 0, image=1, **options)
        return values[max(grids, key=torch.numel)]

    before, pixels = grey(width, height), grey(width, height)
    pixels[int(y * height) : int(y * height) + 4, int(x * width) : int(x * width) + 4] = 255
    change = (on_the_grid(pixels) - on_the_grid(before)).norm(dim=-1)
    return (*divmod(int(change.argmax()), change.shape[1]), *change.shape)


@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("idefics3", (32, 16), (4, 8)),
        ("idefics3", (16, 32), (8, 4)),
        ("internvl", (48, 32), (8, 12)),
        ("llava_next", (32, 24), (6, 8)),
        ("mllama", (48, 16), (4, 12)),
        ("qwen2_5_vl", (24, 16), (4, 6)),
    ],
)
def test_tiles_lie_where_they_were_cut_from(name, size, shape, corner):
    """Of the second image of a prompt with text before it. Rows and columns of tiles differ in number."""
    row, column = min(corner[0] * shape[0] // 2 + 1, shape[0] - 1), corner[1] * shape[1] // 3 + 1
    found = brightened(name, *size, x=column / shape[1], y=row / shape[0])
    assert found == (row, column, *shape)


def test_tiles_that_are_not_known_are_an_error():
    model, _ = tiny("internvl")
    processor = PROCESSORS["internvl"]()
    image = Image.fromarray(grey(48, 32))
    inputs = processor(images=[image], text=["<IMG_CONTEXT>what"], return_tensors="pt")
    with record_attention(model) as record, torch.no_grad():
        outputs = model.generate(**inputs, max_new_tokens=2, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"cut into 7 tiles.*arrangement is not known.*tiles=\[\(2, 3\)\]"):
        word_maps(record, outputs, processor, inputs)
    with pytest.raises(ValueError, match="`tiles` says 2 x 2"):
        word_maps(record, outputs, processor, inputs, tiles=(2, 2))
    assert word_maps(record, outputs, processor, inputs, tiles=(2, 3))[0][0][1].shape == (8, 12)
    assert tiles_of(processor.image_processor, image.size) == (2, 3)


def test_tiles_by_hand_where_a_prompt_has_no_tags():
    model, inputs = tiny("idefics3")
    ids = torch.tensor([[1, *[IMAGE] * 48, 5]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 3, 16, 16)}
    with record_attention(model) as record, torch.no_grad():
        model.generate(**inputs, max_new_tokens=1)
    with pytest.raises(ValueError, match="cut into 3 tiles"):
        layout_of(record, inputs, 0)
    tiles, whole = layout_of(record, inputs, 0, tiles=(2, 1))
    assert torch.equal(tiles, torch.arange(32).view(8, 4)) and torch.equal(whole, torch.arange(32, 48).view(4, 4))


def test_images_that_do_not_fill_a_row_are_an_error():
    image = Layout(4, [grid(2, 2)])
    assert torch.equal(deal([image] * 3, [8, 4])[0][1][0], grid(2, 2, 4))
    assert deal([image], [0, 4])[0] == []
    with pytest.raises(ValueError, match="Row 0 has 6 image tokens.* 2 are left, and the next image has 4"):
        deal([image] * 3, [6, 4])
    with pytest.raises(ValueError, match=r"Row 1 has 4 .* no image is left.*grid=\(height, width\)"):
        deal([image], [4, 4])


def test_a_hierarchical_vision_tower_merges_patches():
    """Swin's 8 x 8 patches become 4 x 4 tokens, and the upper right token changes most with the upper right pixels."""
    model, inputs = tiny("llava")
    tower = SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2)
    config = LlavaConfig(
        vision_config=tower,
        text_config=model.config.text_config,
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = LlavaForConditionalGeneration(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model.generate(**inputs, max_new_tokens=1)
        (places,) = layout_of(record, inputs, 0)
        assert places.shape == (4, 4)
        pixels = inputs["pixel_values"][:1]
        changed = pixels.clone()
        changed[..., :4, -4:] += 3
        features, others = (model.get_image_features(these).pooler_output[0] for these in (pixels, changed))
    assert (others - features).norm(dim=-1)[places].argmax() == 3


@pytest.mark.parametrize("change", [{"vision_feature_select_strategy": "full"}, {"image_size": 20}])
def test_a_config_that_does_not_fit_the_tokens_is_an_error(change):
    model, inputs = tiny("llava")
    with record_attention(model) as record, torch.no_grad():
        outputs = model.generate(**inputs, max_new_tokens=2, return_dict_in_generate=True)
    for name, value in change.items():
        setattr(model.config if name.startswith("vision") else model.config.vision_config, name, value)
    with pytest.raises(ValueError, match="After its first images"):
        word_maps(record, outputs, PROCESSORS["llava"](), inputs)


def test_grids_of_tiles():
    expected = torch.cat([torch.cat([grid(2, 2, 1 + 5 * (3 * r + c)) for c in range(3)], dim=1) for r in range(2)])
    assert torch.equal(tiled(2, 2, 3, first=1, per_tile=5), expected)
    assert runs_of(torch.tensor([True, False, True, True])) == [(0, 1), (2, 4)] and runs_of(torch.zeros(3)) == []


def test_views_of_an_image_are_added_up_place_by_place():
    """The whole image in 2 x 2 cells and its tiles in 3 x 4: nothing is lost, and a cell stays where it is."""
    layout = [grid(2, 2), grid(3, 4, 4)]
    weights = torch.zeros(2, 16)
    weights[0, 1] = 1.0  # the upper right quarter of the whole image
    weights[1, 4 + 11] = 1.0
    maps = fold(weights, layout)
    assert maps.shape == (2, 3, 4) and torch.allclose(maps.sum(dim=(1, 2)), torch.ones(2))
    assert torch.allclose(maps[0], torch.tensor([[0, 0, 2, 2], [0, 0, 1, 1], [0, 0, 0, 0]]) / 6)
    assert maps[1, 2, 3] == 1


@pytest.mark.parametrize(
    ("name", "size", "seen"),
    [
        ("llava", (32, 16), (0.25, 0.0, 0.75, 1.0)),
        ("mllama", (48, 16), (0.0, 0.0, 1.0, 1.0)),
        ("mllama", (32, 24), (0.0, 0.0, 1.0, 4 / 3)),
        ("qwen2_5_vl", (32, 16), (0.0, 0.0, 1.0, 1.0)),
    ],
)
def test_the_part_of_the_image_that_maps_cover(name, size, seen):
    assert seen_box(PROCESSORS[name]().image_processor, size) == pytest.approx(seen)


def test_donut_puts_the_image_in_the_middle_of_its_canvas():
    from transformers import DonutImageProcessorPil

    processor = DonutImageProcessorPil(size={"height": 32, "width": 16}, do_normalize=False, do_rescale=False)
    for size in ((20, 10), (10, 20), (8, 40), (16, 16)):
        pixels = processor(Image.new("RGB", size, "white"), return_tensors="np")["pixel_values"][0, 0]
        rows, columns = np.nonzero(pixels)
        left, top, right, bottom = seen_box(processor, size)
        width, height = 16 / (right - left), 32 / (bottom - top)
        assert (columns.min(), rows.min()) == pytest.approx((-left * width, -top * height), abs=1)
        assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == pytest.approx((width, height), abs=1)
