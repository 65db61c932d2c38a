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
import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil

from hf_vg.data import CaptionDataArguments
from hf_vg.training.images import build_image_processor


@pytest.mark.parametrize("with_backbone", [False, True])
def test_squeezed_images_show_their_edges(tmp_path, with_backbone):
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    args = CaptionDataArguments(image_size=32, backbone=str(tmp_path) if with_backbone else None)
    image = Image.new("RGB", (96, 32), "black")
    image.paste("white", (0, 0, 24, 32))  # left of the middle

    cut = build_image_processor(args)(image, return_tensors="pt")["pixel_values"]
    args.squeeze_images = 48
    squeezed = build_image_processor(args)(image, return_tensors="pt")["pixel_values"]

    assert cut.shape == (1, 3, 32, 32) and squeezed.shape == (1, 3, 48, 48)
    assert (cut == cut[..., :1, :1]).all()
    assert squeezed[..., :8].min() > 1.5 and squeezed[..., 16:].max() < 0
