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
"""Visually grounded language for Hugging Face transformers.

`import hf_vg` makes the Auto classes and `pipeline("image-to-text")` know the models of this package. It imports
neither torch nor transformers: what it registers is registered at the moment transformers is asked for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .auto import register


__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "data": ["caption_is_true", "load_captions", "load_scenes", "train_word_tokenizer"],
    "evaluation": ["caption_metrics", "evaluate_sentences", "retrieval_metrics"],
    "interpretation": ["attention_maps", "attention_of_generated", "plot_attention", "save_html"],
    "models.grounded_visual_bert": [
        "GroundedVisualBertConfig",
        "GroundedVisualBertForQuestionAnswering",
        "GroundedVisualBertForReferringExpression",
        "GroundedVisualBertForVGP",
        "GroundedVisualBertModel",
        "GroundedVisualBertProcessor",
    ],
    "models.self_attn_grounded_encoder": [
        "SelfAttnGroundedEncoderConfig",
        "SelfAttnGroundedEncoderForPreTraining",
        "SelfAttnGroundedEncoderModel",
        "SelfAttnGroundedEncoderProcessor",
    ],
    "models.show_attend_tell": [
        "ShowAttendTellConfig",
        "ShowAttendTellForConditionalGeneration",
        "ShowAttendTellModel",
        "ShowAttendTellProcessor",
    ],
    "models.spatial_transformer": [
        "SpatialTransformerCaptionerConfig",
        "SpatialTransformerCaptionerForConditionalGeneration",
        "SpatialTransformerCaptionerModel",
        "SpatialTransformerCaptionerProcessor",
    ],
    "models.vgg": ["VggBackbone", "VggConfig"],
    "models.vse_scnlm": [
        "VseScnlmConfig",
        "VseScnlmForConditionalGeneration",
        "VseScnlmModel",
        "VseScnlmProcessor",
        "VseScnlmSpace",
    ],
    "pipelines": ["ImageToTextPipeline"],
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

if TYPE_CHECKING:
    from .data import caption_is_true, load_captions, load_scenes, train_word_tokenizer
    from .evaluation import caption_metrics, evaluate_sentences, retrieval_metrics
    from .interpretation import attention_maps, attention_of_generated, plot_attention, save_html
    from .models.grounded_visual_bert import (
        GroundedVisualBertConfig,
        GroundedVisualBertForQuestionAnswering,
        GroundedVisualBertForReferringExpression,
        GroundedVisualBertForVGP,
        GroundedVisualBertModel,
        GroundedVisualBertProcessor,
    )
    from .models.self_attn_grounded_encoder import (
        SelfAttnGroundedEncoderConfig,
        SelfAttnGroundedEncoderForPreTraining,
        SelfAttnGroundedEncoderModel,
        SelfAttnGroundedEncoderProcessor,
    )
    from .models.show_attend_tell import (
        ShowAttendTellConfig,
        ShowAttendTellForConditionalGeneration,
        ShowAttendTellModel,
        ShowAttendTellProcessor,
    )
    from .models.spatial_transformer import (
        SpatialTransformerCaptionerConfig,
        SpatialTransformerCaptionerForConditionalGeneration,
        SpatialTransformerCaptionerModel,
        SpatialTransformerCaptionerProcessor,
    )
    from .models.vgg import VggBackbone, VggConfig
    from .models.vse_scnlm import (
        VseScnlmConfig,
        VseScnlmForConditionalGeneration,
        VseScnlmModel,
        VseScnlmProcessor,
        VseScnlmSpace,
    )
    from .pipelines import ImageToTextPipeline


def __getattr__(name: str):
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])


register()
