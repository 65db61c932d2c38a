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
"""How any captioner or chat model is asked to write about images."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import BatchFeature, PreTrainedConfig, ProcessorMixin


QUESTION = "Describe this image."
# What models without a chat template were trained to be asked for a caption.
PROMPTS = {"florence2": "<CAPTION>", "kosmos-2": "An image of", "paligemma": "caption en"}
# Models whose processors put the image into the prompt by themselves.
PLACES_IMAGES = {"blip-2", "florence2", "instructblip", "kosmos-2"}


def is_asked(config: PreTrainedConfig, processor: Any) -> bool:
    """Whether the model is asked about the image, rather than given the first words of a caption."""
    return (
        getattr(processor, "chat_template", None) is not None
        or hasattr(processor, "image_token")
        or (processor is not None and config.model_type in PROMPTS)
    )


def caption_inputs(
    config: PreTrainedConfig,
    processor: Any,
    images: Sequence[Image.Image],
    prompt: str | None = None,
    tokenizer: Any = None,
    image_processor: Any = None,
) -> BatchFeature:
    r"""
    The inputs of a model that is about to write about images.

    Args:
        config ([`PreTrainedConfig`]):
            The model's config.
        processor ([`ProcessorMixin`], *optional*):
            The model's processor. `None` if it has a tokenizer and an image processor instead.
        images (`Sequence[PIL.Image.Image]`):
            The images, one per row of the batch.
        prompt (`str`, *optional*):
            What the model is asked, by default to describe the image. Captioners that take no question continue it.
        tokenizer, image_processor (*optional*, default to those of the processor):
            For checkpoints without a processor.
    """
    tokenizer = tokenizer or processor.tokenizer
    image_processor = image_processor or processor.image_processor
    asked = is_asked(config, processor)
    padded = {"padding": True, "return_tensors": "pt"}
    if not config.is_encoder_decoder:
        padded["padding_side"] = "left"
    if asked and processor.chat_template is not None:
        text = {"type": "text", "text": prompt or QUESTION}
        chats = [[{"role": "user", "content": [{"type": "image", "image": image}, text]}] for image in images]
        return processor.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=True, return_dict=True, processor_kwargs=padded
        )
    if asked and config.model_type not in PLACES_IMAGES:
        prompt = prompt or PROMPTS.get(config.model_type, QUESTION)
        token = processor.image_token
        prompt = prompt if token in prompt else f"{token}{prompt}"
    elif prompt is None:
        prompt = PROMPTS.get(config.model_type)
    if prompt is not None and isinstance(processor, ProcessorMixin):
        inputs = processor(images=list(images), text=[prompt] * len(images), **padded)
        inputs.pop("labels", None)  # PaliGemma's processor makes some from a prompt too
        return inputs
    inputs = image_processor(images=list(images), return_tensors="pt")
    if prompt is not None:
        tokens = tokenizer([prompt] * len(images), add_special_tokens=False, return_tensors="pt")
        inputs["decoder_input_ids"] = tokens["input_ids"]
    elif config.model_type == "blip-2":  # what its `generate` begins with
        ids = [config.image_token_index] * config.num_query_tokens + [config.text_config.bos_token_id]
        inputs["input_ids"] = torch.tensor([ids] * len(images))
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs


__all__ = ["caption_inputs", "is_asked"]
