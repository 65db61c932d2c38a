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
"""The table of all models and processors that this package registers with transformers."""

from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForPreTraining,
    AutoModelForTokenClassification,
    AutoModelForVisualQuestionAnswering,
    AutoModelForZeroShotImageClassification,
    AutoProcessor,
)
from transformers.pipelines import PIPELINE_REGISTRY

from ._compat import let_image_to_text_through, let_pipelines_know
from .models import (
    grounded_visual_bert,
    self_attn_grounded_encoder,
    show_attend_tell,
    spatial_transformer,
    vgg,
    vse_scnlm,
)
from .pipelines.image_to_text import ImageToTextPipeline


# Config, processor, and the models that each Auto class loads.
FAMILIES = (
    (
        vgg.VggConfig,
        None,
        (
            (AutoBackbone, vgg.VggBackbone),
            (AutoModel, vgg.VggBackbone),  # because `AutoBackbone` contacts the Hub even for a local folder
            (AutoModelForImageClassification, vgg.VggForImageClassification),
        ),
    ),
    (
        show_attend_tell.ShowAttendTellConfig,
        show_attend_tell.ShowAttendTellProcessor,
        (
            (AutoModel, show_attend_tell.ShowAttendTellModel),
            (AutoModelForImageTextToText, show_attend_tell.ShowAttendTellForConditionalGeneration),
        ),
    ),
    (
        spatial_transformer.SpatialTransformerCaptionerConfig,
        spatial_transformer.SpatialTransformerCaptionerProcessor,
        (
            (AutoModel, spatial_transformer.SpatialTransformerCaptionerModel),
            (AutoModelForImageTextToText, spatial_transformer.SpatialTransformerCaptionerForConditionalGeneration),
        ),
    ),
    (
        self_attn_grounded_encoder.SelfAttnGroundedEncoderConfig,
        self_attn_grounded_encoder.SelfAttnGroundedEncoderProcessor,
        (
            (AutoModel, self_attn_grounded_encoder.SelfAttnGroundedEncoderModel),
            (AutoModelForPreTraining, self_attn_grounded_encoder.SelfAttnGroundedEncoderForPreTraining),
        ),
    ),
    (
        vse_scnlm.VseScnlmConfig,
        vse_scnlm.VseScnlmProcessor,
        (
            (AutoModel, vse_scnlm.VseScnlmModel),
            (AutoModelForZeroShotImageClassification, vse_scnlm.VseScnlmModel),
            (AutoModelForImageTextToText, vse_scnlm.VseScnlmForConditionalGeneration),
        ),
    ),
    (
        grounded_visual_bert.GroundedVisualBertConfig,
        grounded_visual_bert.GroundedVisualBertProcessor,
        (
            (AutoModel, grounded_visual_bert.GroundedVisualBertModel),
            (AutoModelForPreTraining, grounded_visual_bert.GroundedVisualBertForVGP),
            (AutoModelForVisualQuestionAnswering, grounded_visual_bert.GroundedVisualBertForQuestionAnswering),
            # transformers has no Auto class for this task. Each region is a token that gets a score.
            (AutoModelForTokenClassification, grounded_visual_bert.GroundedVisualBertForReferringExpression),
        ),
    ),
)
PIPELINES = (("image-to-text", ImageToTextPipeline, AutoModelForImageTextToText, "multimodal"),)


def register() -> None:
    """Registers the models of this package with the Auto classes and `pipeline`. `import hf_vg` calls it."""
    for config_class, processor_class, models in FAMILIES:
        AutoConfig.register(config_class.model_type, config_class)
        for auto_class, model_class in models:
            auto_class.register(config_class, model_class)
            let_pipelines_know(auto_class, model_class)
        if processor_class is not None:
            AutoProcessor.register(config_class, processor_class)
    for task, pipeline_class, auto_class, modality in PIPELINES:
        PIPELINE_REGISTRY.register_pipeline(task, pipeline_class, pt_model=auto_class, type=modality)
    let_image_to_text_through()
