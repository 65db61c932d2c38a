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
"""Checkpoints of version 0.1 still load and give the outputs that version 0.1 computed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hf_vg


FOLDERS = sorted((Path(__file__).parents[1] / "fixtures" / "checkpoints_0_1").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_checkpoint_of_version_0_1_gives_the_same_outputs(folder):
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, report = getattr(hf_vg, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tensors = load_file(folder / "expected.safetensors")
    inputs = {key.removeprefix("inputs."): tensor for key, tensor in tensors.items() if key.startswith("inputs.")}
    expected = {key.removeprefix("outputs."): tensor for key, tensor in tensors.items() if key.startswith("outputs.")}
    sequences = expected.pop("sequences", None)
    with torch.no_grad():
        outputs = model(**inputs, **({"output_attentions": True} if "attentions" in expected else {}))
    for key, tensor in expected.items():
        value = outputs.feature_maps[-1] if key == "feature_map" else outputs[key]
        value = value[0] if isinstance(value, tuple) else value
        torch.testing.assert_close(value, tensor, rtol=1e-5, atol=1e-6, msg=key)
    if sequences is not None:
        images = {"pixel_values": inputs["pixel_values"]}
        assert torch.equal(model.generate(**images, num_beams=3, max_new_tokens=8, do_sample=False), sequences)
