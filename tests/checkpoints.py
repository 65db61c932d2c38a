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
"""Tiny checkpoints on disk, with random weights."""

from pathlib import Path

import torch
from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

from hf_vg import GroundedVisualBertForVGP, ShowAttendTellForConditionalGeneration, VseScnlmModel
from tests.models import test_modeling_grounded_visual_bert as regions
from tests.models import test_modeling_self_attn_grounded_encoder as encoder
from tests.models import test_modeling_show_attend_tell as show_attend_tell
from tests.models import test_modeling_spatial_transformer as spatial
from tests.models import test_modeling_vse_scnlm as vse


def save_captioner(folder: Path) -> str:
    torch.manual_seed(0)
    model = ShowAttendTellForConditionalGeneration(show_attend_tell.tiny_config())
    model.lm_head.bias.data[model.config.eos_token_id] = -1.0  # so that captions have several words
    return _save(model, show_attend_tell.tiny_processor(), folder)


def save_spatial(folder: Path) -> str:
    model = spatial.tiny_model()
    model.generation_config.min_new_tokens = 4
    model.generation_config.max_new_tokens = 6
    return _save(model, spatial.tiny_processor(), folder)


def save_regions(folder: Path, model_class: type = GroundedVisualBertForVGP) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    model = regions.tiny_model(model_class, attention_supervision="rollout")
    return _save(model, regions.tiny_processor(folder), folder)


def save_space(folder: Path) -> str:
    torch.manual_seed(0)
    return _save(
        VseScnlmModel(vse.tiny_config(sentence_encoder="bow", embedding_size=8)), vse.tiny_processor(), folder
    )


def save_scnlm(folder: Path) -> str:
    """A structure-content language model that remembers 40 captions."""
    return _save(vse.tiny_captioner(sentence_encoder="bow", embedding_size=8), vse.tiny_processor(), folder)


def save_detector(folder: Path) -> str:
    """An object detector of transformers."""
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[16, 16],
        patch_size=8, num_detection_tokens=5, num_labels=3,
    )  # fmt: skip
    size = {"shortest_edge": 16, "longest_edge": 16}
    return _save(YolosForObjectDetection(config), YolosImageProcessorPil(size=size), folder)


def save_encoder(folder: Path) -> str:
    return _save(encoder.tiny_model(), encoder.tiny_processor(), folder)


def _save(model, processor, folder: Path) -> str:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
