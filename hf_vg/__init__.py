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
"""
Visually grounded language for Hugging Face transformers.

`import hf_vg` registers the models of this package with the Auto classes and with `pipeline("image-to-text")`:

```python
>>> import hf_vg
>>> from transformers import pipeline

>>> captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
>>> scene = hf_vg.examples.scenes()[0]
>>> hf_vg.caption_is_true(scene, captioner(scene["image"])[0]["generated_text"])
True

```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import examples
from .auto import register
from .interpretation import plot_attention, record_attention, save_html, word_maps
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
from .models.vgg import VggBackbone, VggConfig, VggForImageClassification
from .models.vse_scnlm import (
    VseScnlmConfig,
    VseScnlmForConditionalGeneration,
    VseScnlmModel,
    VseScnlmProcessor,
)
from .pipelines import EmbeddingSpace, ImageToTextPipeline


if TYPE_CHECKING:
    from .data import caption_is_true, load_captions, load_scenes, train_word_tokenizer
    from .evaluation import caption_metrics, evaluate_sentences, retrieval_metrics


__version__ = "0.2.0"

# Imported on first use: these import `datasets`, which takes a second, and loading a model does not need it.
_LAZY = {
    "caption_is_true": "data",
    "caption_metrics": "evaluation",
    "evaluate_sentences": "evaluation",
    "load_captions": "data",
    "load_scenes": "data",
    "retrieval_metrics": "evaluation",
    "train_word_tokenizer": "data",
}

__all__ = [
    "GroundedVisualBertConfig",
    "GroundedVisualBertForQuestionAnswering",
    "GroundedVisualBertForReferringExpression",
    "GroundedVisualBertForVGP",
    "GroundedVisualBertModel",
    "GroundedVisualBertProcessor",
    "ImageToTextPipeline",
    "SelfAttnGroundedEncoderConfig",
    "SelfAttnGroundedEncoderForPreTraining",
    "SelfAttnGroundedEncoderModel",
    "SelfAttnGroundedEncoderProcessor",
    "ShowAttendTellConfig",
    "ShowAttendTellForConditionalGeneration",
    "ShowAttendTellModel",
    "ShowAttendTellProcessor",
    "SpatialTransformerCaptionerConfig",
    "SpatialTransformerCaptionerForConditionalGeneration",
    "SpatialTransformerCaptionerModel",
    "SpatialTransformerCaptionerProcessor",
    "VggBackbone",
    "VggConfig",
    "VggForImageClassification",
    "VseScnlmConfig",
    "VseScnlmForConditionalGeneration",
    "VseScnlmModel",
    "VseScnlmProcessor",
    "EmbeddingSpace",
    "caption_is_true",
    "caption_metrics",
    "evaluate_sentences",
    "examples",
    "load_captions",
    "load_scenes",
    "plot_attention",
    "record_attention",
    "retrieval_metrics",
    "save_html",
    "train_word_tokenizer",
    "word_maps",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
