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
"""Grounded sentence encoders, and the rows they are trained on, made from a recipe's arguments."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.caption_pairs import fixed_caption_pairs
from ..data.features import extract_features, load_backbone
from ..models.self_attn_grounded_encoder import (
    SelfAttnGroundedEncoderConfig,
    SelfAttnGroundedEncoderForPreTraining,
    SelfAttnGroundedEncoderProcessor,
)
from .arguments import SentenceEncoderArguments
from .images import build_image_processor


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
    fields = dict(args.model)
    if args.backbone is not None:
        backbone = load_backbone(args.backbone)
        fields |= {"backbone_config": backbone.config, "feature_size": backbone.channels[-1]}
    config = SelfAttnGroundedEncoderConfig(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        unk_token_id=tokenizer.unk_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        **fields,
    )
    model = SelfAttnGroundedEncoderForPreTraining(config)
    if model.predicts_image and model.image_encoder.backbone is not None:
        if args.backbone is not None:
            model.image_encoder.backbone.load_state_dict(backbone.state_dict())
        elif config.freeze_backbone:
            raise ValueError(
                "the backbone would stay as it was drawn at random: give a pretrained one with `--backbone`, or train "
                "it with `--model.freeze_backbone false`."
            )
    return model, SelfAttnGroundedEncoderProcessor(build_image_processor(args), tokenizer)


def grounded_encoder_rows(
    args: GroundedEncoderArguments,
    dataset: Dataset,
    model: SelfAttnGroundedEncoderForPreTraining,
    processor: SelfAttnGroundedEncoderProcessor,
    fixed: bool = False,
) -> Dataset:
    r"""
    Makes of a dataset the rows that [`CaptionPairCollator`] takes.

    Args:
        args ([`GroundedEncoderArguments`]):
            Whether features are cached.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image_id`, an `image` and its `captions`.
        model ([`SelfAttnGroundedEncoderForPreTraining`]):
            The encoder, whose backbone makes the features.
        processor ([`SelfAttnGroundedEncoderProcessor`]):
            The encoder's.
        fixed (`bool`, *optional*, defaults to `False`):
            Whether a row always gives the same two captions.
    """
    backbone = model.image_encoder.backbone if model.predicts_image else None
    columns = ["image_id", "captions", *(["image"] if backbone is not None else [])]
    rows = dataset.select_columns(columns)
    cache = None
    if args.features is not None and backbone is not None:
        if not model.config.freeze_backbone:
            raise ValueError("`features` are of a backbone that stays as it is: set `--model.freeze_backbone true`.")
        cache = extract_features(rows, backbone, processor.image_processor, args.features, pooling="mean")
    captions = ["captions"]
    if fixed:
        rows, captions = fixed_caption_pairs(rows), ["caption", "target_caption"]
    return rows if cache is None else cache.attach(rows, columns=["image_id", *captions])


@torch.no_grad()
def retrieval_vectors(model: PreTrainedModel, batches) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of images, and of what the model predicts them to be from a caption, for batches of a collator."""
    images, predicted = [], []
    for batch in batches:
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        images.append(model.image_encoder(batch.get("pixel_values"), batch.get("image_features")).cpu())
        predicted.append(model(batch["input_ids"], batch["attention_mask"]).image_embeds.cpu())
    return tuple(torch.nn.functional.normalize(torch.cat(rows).float(), dim=-1) for rows in (images, predicted))
