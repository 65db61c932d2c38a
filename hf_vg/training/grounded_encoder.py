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
"""Grounded sentence encoders, made from a recipe's arguments."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.tokenizers import special_token_fields
from ..models.self_attn_grounded_encoder import (
    SelfAttnGroundedEncoderConfig,
    SelfAttnGroundedEncoderForPreTraining,
    SelfAttnGroundedEncoderProcessor,
)
from .arguments import SentenceEncoderArguments
from .images import build_image_processor, config_fields, fill_backbone


@dataclass
class GroundedEncoderArguments(SentenceEncoderArguments):
    """What `recipes/train_grounded_encoder.py` trains, and on what."""

    model_type: ClassVar[str] = "self_attn_grounded_encoder"
    vocab_size: int = field(default=10000, metadata={"help": "The most words to keep, special tokens included."})
    max_caption_length: int = field(default=30, metadata={"help": "Tokens that a caption is cut to."})
    max_grad_value: float | None = field(
        default=None, metadata={"help": "Limits each number of the gradient. The paper's limit is 5."}
    )
    entities_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of Flickr30k Entities: judge by its boxes which words attention lies on."},
    )
    num_figures: int = field(default=6, metadata={"help": "Test captions to draw with the attention to each word."})


def build_grounded_encoder(
    args: GroundedEncoderArguments, tokenizer: PreTrainedTokenizerFast
) -> tuple[SelfAttnGroundedEncoderForPreTraining, SelfAttnGroundedEncoderProcessor]:
    r"""
    Makes an untrained encoder, but for its backbone if `args` name one, and its processor.

    Args:
        args ([`GroundedEncoderArguments`]):
            The fields of its config, and its backbone or the size of images.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Gives the size of the vocabulary and the special tokens.
    """
    fields, backbone = config_fields(args)
    config = SelfAttnGroundedEncoderConfig(**special_token_fields(tokenizer), **fields)
    model = SelfAttnGroundedEncoderForPreTraining(config)
    fill_backbone(model, backbone)
    return model, SelfAttnGroundedEncoderProcessor(build_image_processor(args), tokenizer)


@torch.no_grad()
def retrieval_vectors(model: PreTrainedModel, batches: Iterable[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of images, and of what the model predicts them to be from a caption, for batches of a collator."""
    images, predicted = [], []
    for batch in batches:
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        images.append(model.image_encoder(batch.get("pixel_values"), batch.get("image_features")).cpu())
        predicted.append(model(batch["input_ids"], batch["attention_mask"]).image_embeds.cpu())
    normalize = partial(torch.nn.functional.normalize, dim=-1)
    return normalize(torch.cat(images).float()), normalize(torch.cat(predicted).float())
