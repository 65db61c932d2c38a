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
"""Training: arguments, trainers, rewards and checkpoints of the recipes."""

from .arguments import (
    CaptionerArguments,
    CaptionReportArguments,
    DryRunArguments,
    FeatureArguments,
    GroundingReportArguments,
    ModelArguments,
    VgTrainingArguments,
    check_config_fields,
    parse_arguments,
)
from .attention_supervision import AttentionSupervisedTrainer, AttentionSupervisionMixin, SupervisedCaptionerTrainer
from .callbacks import ClipGradientValues, HardestNegatives
from .captioner import (
    build_captioner,
    caption_collator,
    caption_scorer,
    load_captioner,
)
from .dry_run import tiny_backbone, tiny_captioner, tiny_encoder, tiny_space
from .grounded_encoder import (
    GroundedEncoderArguments,
    build_grounded_encoder,
    retrieval_vectors,
)
from .grounding import (
    GroundedVisualBertArguments,
    QuestionArguments,
    ReferringArguments,
    RegionTrainer,
    VgpArguments,
    VgpTrainer,
    build_grounded_visual_bert,
    build_region_trainer,
)
from .images import build_image_processor
from .running import print_next_steps, run_recipe, run_training, start_recipe
from .self_critical import SelfCriticalTrainer, self_critical_reward
from .trainer import VgTrainer, use_all_cores
from .vse import (
    RetrievalArguments,
    ScnlmArguments,
    VseArguments,
    build_vse,
    encode_rows,
    initialize_scnlm,
    vse_metrics,
)


__all__ = [
    "AttentionSupervisedTrainer",
    "AttentionSupervisionMixin",
    "CaptionReportArguments",
    "CaptionerArguments",
    "ClipGradientValues",
    "DryRunArguments",
    "VgpTrainer",
    "FeatureArguments",
    "GroundedEncoderArguments",
    "GroundedVisualBertArguments",
    "GroundingReportArguments",
    "QuestionArguments",
    "ReferringArguments",
    "RegionTrainer",
    "HardestNegatives",
    "ModelArguments",
    "RetrievalArguments",
    "ScnlmArguments",
    "SelfCriticalTrainer",
    "SupervisedCaptionerTrainer",
    "VgTrainer",
    "VgTrainingArguments",
    "VgpArguments",
    "VseArguments",
    "build_captioner",
    "build_grounded_encoder",
    "build_grounded_visual_bert",
    "build_image_processor",
    "build_region_trainer",
    "build_vse",
    "caption_collator",
    "caption_scorer",
    "check_config_fields",
    "encode_rows",
    "initialize_scnlm",
    "load_captioner",
    "parse_arguments",
    "retrieval_vectors",
    "print_next_steps",
    "run_recipe",
    "run_training",
    "self_critical_reward",
    "start_recipe",
    "tiny_backbone",
    "tiny_captioner",
    "tiny_encoder",
    "tiny_space",
    "use_all_cores",
    "vse_metrics",
]
