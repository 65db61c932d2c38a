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
    """
    Arguments of `recipes/train_grounded_encoder.py`.

    Example:

    ```python
    >>> from hf_vg.training import GroundedEncoderArguments
    >>> GroundedEncoderArguments().dataset
    'scenes'
    ```
    """

    model_type: ClassVar[str] = "self_attn_grounded_encoder"
    vocab_size: int = field(
        default=10000, metadata={"help": "Maximum number of words to keep, including special tokens."}
    )
    max_caption_length: int = field(default=30, metadata={"help": "Captions are cut to this number of tokens."})
    max_grad_value: float | None = field(
        default=None, metadata={"help": "Clip each number of the gradient to this value. The paper clips at 5."}
    )
    entities_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of Flickr30k Entities, whose boxes show which words attention should lie on."},
    )
    num_figures: int = field(
        default=6, metadata={"help": "Number of test captions to draw with the attention to each word."}
    )


def build_grounded_encoder(
    args: GroundedEncoderArguments, tokenizer: PreTrainedTokenizerFast
) -> tuple[SelfAttnGroundedEncoderForPreTraining, SelfAttnGroundedEncoderProcessor]:
    r"""
    Makes a new encoder and its processor. If `args` name a backbone, that part is pretrained.

    Args:
        args ([`GroundedEncoderArguments`]):
            The fields of the config, and the backbone or the image size.
        tokenizer ([`PreTrainedTokenizerFast`]):
            The tokenizer, which sets the vocabulary size and the special tokens.

    Returns:
        `tuple`: The model and its processor.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer
    >>> from hf_vg.training import GroundedEncoderArguments, build_grounded_encoder
    >>> backbone = {"model_type": "vgg", "depths": [1], "hidden_sizes": [4]}
    >>> fields = {"backbone_config": backbone, "freeze_backbone": False, "feature_size": 4, "hidden_size": 8}
    >>> args = GroundedEncoderArguments(model={**fields, "embedding_size": 8})
    >>> model, processor = build_grounded_encoder(args, train_word_tokenizer(["a dog runs"]))
    >>> model.config.hidden_size
    8
    ```
    """
    fields, backbone = config_fields(args)
    config = SelfAttnGroundedEncoderConfig(**special_token_fields(tokenizer), **fields)
    model = SelfAttnGroundedEncoderForPreTraining(config)
    fill_backbone(model, backbone)
    return model, SelfAttnGroundedEncoderProcessor(build_image_processor(args), tokenizer)


@torch.no_grad()
def retrieval_vectors(model: PreTrainedModel, batches: Iterable[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Encodes images, and predicts their vectors from captions.

    Args:
        model ([`PreTrainedModel`]):
            A [`SelfAttnGroundedEncoderForPreTraining`] that predicts images.
        batches (`Iterable`):
            Batches of a collator.

    Returns:
        `tuple(torch.FloatTensor, torch.FloatTensor)`: Unit vectors of the images, and those predicted from captions.

    Example:

    ```python
    >>> images, predicted = retrieval_vectors(model, dataloader)  # doctest: +SKIP
    ```
    """
    images, predicted = [], []
    for batch in batches:
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        images.append(model.image_encoder(batch.get("pixel_values"), batch.get("image_features")).cpu())
        predicted.append(model(batch["input_ids"], batch["attention_mask"]).image_embeds.cpu())
    normalize = partial(torch.nn.functional.normalize, dim=-1)
    return normalize(torch.cat(images).float()), normalize(torch.cat(predicted).float())
