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
"""The example checkpoints: what they say is true, they look at what they name, and they find what is asked for."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModel, pipeline

from hf_vg import caption_is_true, examples
from hf_vg.evaluation import scene_grounding_metrics


SCENES = examples.scenes()


def test_scenes_are_rows_with_files():
    assert len(SCENES) == 12
    for row in SCENES:
        with Image.open(row["image"]) as image:
            assert image.size == (128, 128)
        assert len(row["captions"]) == 5 and all(caption_is_true(row, caption) for caption in row["captions"])
        for phrase in row["phrases"]:
            assert row["captions"][phrase["caption"]][phrase["start"] : phrase["end"]] == phrase["text"]
            assert all(0 <= side <= 128 for index in phrase["objects"] for side in row["objects"][index]["box"])


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'show_attend_tell'?"):
        examples.checkpoint("show_attend_and_tell")
    with pytest.raises(ValueError, match="There are: show_attend_tell, spatial_transformer"):
        examples.checkpoint("bert")


def test_all_of_it_is_small():
    files = [file for file in Path(examples.__file__).parent.rglob("*") if file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 6_000_000


@pytest.mark.parametrize("name", ["spatial_transformer"])
def test_stored_in_half_precision_and_loaded_in_float32(name):
    folder = Path(examples.checkpoint(name))
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert model.dtype == torch.float32 and not info["missing_keys"]
    size = sum(tensor.numel() for tensor in model.state_dict().values())
    assert (folder / "model.safetensors").stat().st_size < 3 * size
    # The installed code is used, and so it needs no code beside the weights.
    assert not {*folder.glob("*.py")} and "auto_map" not in json.loads((folder / "config.json").read_text())
    assert "accelerate launch" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["spatial_transformer"])
def test_captions_are_true_and_nouns_look_at_their_objects(name):
    captioner = pipeline("image-to-text", model=examples.checkpoint(name))
    captions = [records[0] for records in captioner([row["image"] for row in SCENES], return_attention=True)]
    rows = [{**row, "unseen": False, "image": Image.open(row["image"])} for row in SCENES]
    true = [caption_is_true(row, c["generated_text"]) for row, c in zip(rows, captions, strict=True)]
    assert sum(true) >= 11
    pointing = scene_grounding_metrics(rows, captions)
    assert pointing["pointing"] > 0.85
