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
"""Everything this package tells transformers about itself, in one place.

transformers imports its Auto classes and pipelines lazily, and torch with them. Registering at import time would make
`import hf_vg` as slow as all of it, so each group below is registered right after transformers has imported the module
that the group belongs to.
"""

import importlib.abc
import importlib.util
import sys


def _register_configs():
    from transformers import AutoConfig

    from .models.grounded_visual_bert.configuration_grounded_visual_bert import GroundedVisualBertConfig
    from .models.self_attn_grounded_encoder.configuration_self_attn_grounded_encoder import (
        SelfAttnGroundedEncoderConfig,
    )
    from .models.show_attend_tell.configuration_show_attend_tell import ShowAttendTellConfig
    from .models.spatial_transformer.configuration_spatial_transformer import SpatialTransformerCaptionerConfig
    from .models.vgg.configuration_vgg import VggConfig
    from .models.vse_scnlm.configuration_vse_scnlm import VseScnlmConfig

    for config_class in (
        GroundedVisualBertConfig,
        SelfAttnGroundedEncoderConfig,
        ShowAttendTellConfig,
        SpatialTransformerCaptionerConfig,
        VggConfig,
        VseScnlmConfig,
    ):
        AutoConfig.register(config_class.model_type, config_class)


def _register_models():
    from transformers import (
        AutoBackbone,
        AutoModel,
        AutoModelForImageTextToText,
        AutoModelForPreTraining,
        AutoModelForTokenClassification,
        AutoModelForVisualQuestionAnswering,
        AutoModelForZeroShotImageClassification,
    )
    from transformers.models.auto import modeling_auto

    from .hub.publishing import publish_model
    from .hub.remote_code import register_code
    from .models import grounded_visual_bert
    from .models.self_attn_grounded_encoder import modeling_self_attn_grounded_encoder as self_attn_grounded_encoder
    from .models.show_attend_tell import modeling_show_attend_tell as show_attend_tell
    from .models.spatial_transformer import modeling_spatial_transformer as spatial_transformer
    from .models.vgg import modeling_vgg as vgg
    from .models.vse_scnlm import modeling_scnlm as scnlm
    from .models.vse_scnlm import modeling_vse_scnlm as vse_scnlm

    for auto_class, model_class in (
        (AutoBackbone, vgg.VggBackbone),
        (AutoModel, vgg.VggBackbone),  # as AutoBackbone asks the Hub, even for a folder
        (AutoModel, grounded_visual_bert.GroundedVisualBertModel),
        (AutoModelForPreTraining, grounded_visual_bert.GroundedVisualBertForVGP),
        (AutoModelForVisualQuestionAnswering, grounded_visual_bert.GroundedVisualBertForQuestionAnswering),
        # transformers has no task for it; a region is a token of the image, and each gets a score.
        (AutoModelForTokenClassification, grounded_visual_bert.GroundedVisualBertForReferringExpression),
        (AutoModel, self_attn_grounded_encoder.SelfAttnGroundedEncoderModel),
        (AutoModelForPreTraining, self_attn_grounded_encoder.SelfAttnGroundedEncoderForPreTraining),
        (AutoModel, show_attend_tell.ShowAttendTellModel),
        (AutoModelForImageTextToText, show_attend_tell.ShowAttendTellForConditionalGeneration),
        (AutoModel, spatial_transformer.SpatialTransformerCaptionerModel),
        (AutoModelForImageTextToText, spatial_transformer.SpatialTransformerCaptionerForConditionalGeneration),
        (AutoModel, vse_scnlm.VseScnlmModel),
        (AutoModelForZeroShotImageClassification, vse_scnlm.VseScnlmModel),
        (AutoModelForImageTextToText, scnlm.VseScnlmForConditionalGeneration),
    ):
        auto_class.register(model_class.config_class, model_class)
        register_code(model_class, auto_class.__name__)
        publish_model(model_class)
    # The zero-shot pipeline looks here for the models it supports, and logs an error about any other.
    modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES["vse_scnlm"] = "VseScnlmModel"


def _register_processors():
    from transformers import AutoProcessor

    from .hub.publishing import publish_processor
    from .models.grounded_visual_bert.configuration_grounded_visual_bert import GroundedVisualBertConfig
    from .models.grounded_visual_bert.processing_grounded_visual_bert import GroundedVisualBertProcessor
    from .models.self_attn_grounded_encoder.configuration_self_attn_grounded_encoder import (
        SelfAttnGroundedEncoderConfig,
    )
    from .models.self_attn_grounded_encoder.processing_self_attn_grounded_encoder import (
        SelfAttnGroundedEncoderProcessor,
    )
    from .models.show_attend_tell.configuration_show_attend_tell import ShowAttendTellConfig
    from .models.show_attend_tell.processing_show_attend_tell import ShowAttendTellProcessor
    from .models.spatial_transformer.configuration_spatial_transformer import SpatialTransformerCaptionerConfig
    from .models.spatial_transformer.processing_spatial_transformer import SpatialTransformerCaptionerProcessor
    from .models.vse_scnlm.configuration_vse_scnlm import VseScnlmConfig
    from .models.vse_scnlm.processing_vse_scnlm import VseScnlmProcessor

    for config_class, processor_class in (
        (GroundedVisualBertConfig, GroundedVisualBertProcessor),
        (SelfAttnGroundedEncoderConfig, SelfAttnGroundedEncoderProcessor),
        (ShowAttendTellConfig, ShowAttendTellProcessor),
        (SpatialTransformerCaptionerConfig, SpatialTransformerCaptionerProcessor),
        (VseScnlmConfig, VseScnlmProcessor),
    ):
        AutoProcessor.register(config_class, processor_class)
        processor_class.register_for_auto_class("AutoProcessor")
        publish_processor(processor_class)


def _register_pipelines():
    from transformers import AutoModelForImageTextToText, pipelines

    from .pipelines.image_to_text import ImageToTextPipeline

    pipelines.PIPELINE_REGISTRY.register_pipeline(
        "image-to-text", ImageToTextPipeline, pt_model=AutoModelForImageTextToText, type="multimodal"
    )
    # transformers 5 rewrites "image-to-text" to "image-text-to-text" before it asks the registry. This one name is let
    # through to the pipeline registered above; every other task takes the path it took before.
    resolve = pipelines._resolve_deprecated_task
    pipelines._resolve_deprecated_task = lambda task: task if task == "image-to-text" else resolve(task)


_AFTER_IMPORT_OF = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_models,
    "transformers.models.auto.processing_auto": _register_processors,
    "transformers.pipelines": _register_pipelines,
}


class _RegisterAfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules above as Python would, and has them call their registration once they are loaded."""

    def find_spec(self, name, path=None, target=None):
        registration = _AFTER_IMPORT_OF.pop(name, None)
        if registration is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_register(module):
            execute(module)
            registration()

        spec.loader.exec_module = execute_and_register
        return spec


def register():
    """Registers what transformers has already imported, and prepares to register the rest. Later calls do nothing."""
    for module in [name for name in _AFTER_IMPORT_OF if name in sys.modules]:
        _AFTER_IMPORT_OF.pop(module)()
    if not any(isinstance(finder, _RegisterAfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegisterAfterImport())
