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
"""Captioners made from a recipe's arguments."""

from transformers import AutoConfig, AutoModelForImageTextToText, CLIPImageProcessor, PreTrainedModel, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from .arguments import CaptionerArguments


def build_captioner(args: CaptionerArguments, tokenizer) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Makes an untrained captioner and its processor.

    Args:
        args ([`CaptionerArguments`]):
            The captioner's type, the fields of its config, and the size of images.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Gives the size of the vocabulary and the special tokens.
    """
    config = AutoConfig.for_model(
        args.model_type,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        unk_token_id=tokenizer.unk_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        **args.model,
    )
    model = AutoModelForImageTextToText.from_config(config)
    model.generation_config.max_new_tokens = args.max_new_tokens
    image_processor = CLIPImageProcessor(
        size={"shortest_edge": args.image_size},
        crop_size={"height": args.image_size, "width": args.image_size},
        image_mean=IMAGENET_DEFAULT_MEAN,
        image_std=IMAGENET_DEFAULT_STD,
    )
    return model, PROCESSOR_MAPPING[type(config)](image_processor, tokenizer)
