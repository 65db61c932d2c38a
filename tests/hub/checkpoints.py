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
"""A tiny checkpoint of every model, with its processor."""

import functools
import tempfile
from pathlib import Path
from typing import NamedTuple

from transformers import CLIPImageProcessorPil, PreTrainedModel, set_seed

from hf_vg import (
    GroundedVisualBertForQuestionAnswering,
    GroundedVisualBertForReferringExpression,
    GroundedVisualBertForVGP,
    GroundedVisualBertModel,
    ShowAttendTellForConditionalGeneration,
    VggBackbone,
    VggConfig,
    VseScnlmModel,
)
from tests.models import test_modeling_grounded_visual_bert as grounded_visual_bert
from tests.models import test_modeling_self_attn_grounded_encoder as grounded_encoder
from tests.models import test_modeling_show_attend_tell as show_attend_tell
from tests.models import test_modeling_spatial_transformer as spatial_transformer
from tests.models import test_modeling_vse_scnlm as vse_scnlm


class Checkpoint(NamedTuple):
    model: PreTrainedModel
    processor: object
    auto_class: str

    @property
    def generates(self) -> bool:
        return self.auto_class == "AutoModelForImageTextToText"

    def save(self, folder: Path):
        self.model.save_pretrained(folder)
        self.processor.save_pretrained(folder)


@functools.cache
def checkpoints() -> dict[str, Checkpoint]:
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        bert_processor = grounded_visual_bert.tiny_processor(Path(folder))
    answers = {0: "yes", 1: "no"}
    captioner = ShowAttendTellForConditionalGeneration(show_attend_tell.tiny_config())
    captioner.lm_head.bias.data[captioner.config.eos_token_id] = -1.0  # so that captions have several words
    return {
        "show-attend-tell": Checkpoint(captioner, show_attend_tell.tiny_processor(), "AutoModelForImageTextToText"),
        "spatial-transformer": Checkpoint(
            spatial_transformer.tiny_model(), spatial_transformer.tiny_processor(), "AutoModelForImageTextToText"
        ),
        "scnlm": Checkpoint(vse_scnlm.tiny_captioner(), vse_scnlm.tiny_processor(), "AutoModelForImageTextToText"),
        "vse": Checkpoint(VseScnlmModel(vse_scnlm.tiny_config()), vse_scnlm.tiny_processor(), "AutoModel"),
        "grounded-encoder": Checkpoint(
            grounded_encoder.tiny_model(), grounded_encoder.tiny_processor(), "AutoModelForPreTraining"
        ),
        "vgp": Checkpoint(
            grounded_visual_bert.tiny_model(GroundedVisualBertForVGP), bert_processor, "AutoModelForPreTraining"
        ),
        "vqa": Checkpoint(
            grounded_visual_bert.tiny_model(GroundedVisualBertForQuestionAnswering, id2label=answers),
            bert_processor,
            "AutoModelForVisualQuestionAnswering",
        ),
        "referring": Checkpoint(
            grounded_visual_bert.tiny_model(GroundedVisualBertForReferringExpression),
            bert_processor,
            "AutoModelForTokenClassification",
        ),
        "visual-bert": Checkpoint(
            grounded_visual_bert.tiny_model(GroundedVisualBertModel), bert_processor, "AutoModel"
        ),
        "vgg": Checkpoint(
            VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[4, 6])), CLIPImageProcessorPil(), "AutoModel"
        ),
    }
