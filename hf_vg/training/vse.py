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
"""Joint spaces of images and sentences, made from a recipe's arguments."""

from dataclasses import dataclass, field
from os import PathLike
from typing import ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.arguments import CaptionDataArguments
from ..data.feature_extraction import extract_features
from ..data.features import undecoded
from ..data.glove import GloveReport, initialize_from_glove
from ..data.processes import process_state
from ..data.tokenizers import special_token_fields
from ..evaluation.retrieval import retrieval_metrics
from ..models.vse_scnlm import VseScnlmConfig, VseScnlmForConditionalGeneration, VseScnlmModel, VseScnlmProcessor
from ..pipelines import EmbeddingSpace
from .arguments import DryRunArguments, ModelArguments, SentenceEncoderArguments
from .images import build_image_processor, config_fields, fill_backbone


@dataclass
class VseArguments(SentenceEncoderArguments):
    """What `recipes/train_vse.py` trains, and on what."""

    model_type: ClassVar[str] = "vse_scnlm"
    vocab_size: int = field(default=100000, metadata={"help": "The most words to keep, special tokens included."})
    captions_per_image: int = field(
        default=1,
        metadata={
            "help": "Captions of an image that are drawn each time it is seen. With `max_length_difference` an image "
            "is seen once with each of its captions in every epoch."
        },
    )
    hardest_negatives_after: float | None = field(
        default=None,
        metadata={
            "help": "Share of the training after which only the hardest negatives count, as `model.max_violation` "
            "would have it from the start."
        },
    )


@dataclass
class ScnlmArguments(ModelArguments, CaptionDataArguments):
    """What `recipes/train_scnlm.py` trains, and on what."""

    model_type: ClassVar[str] = "vse_scnlm"
    space: str = field(
        default="outputs/vse_scenes", metadata={"help": "Checkpoint of the joint space, of recipes/train_vse.py."}
    )
    tagger: str = field(
        default="scenes",
        metadata={"help": "`scenes` for captions of scenes, or the name of any spaCy pipeline with a tagger."},
    )
    glove: str | None = field(
        default=None,
        metadata={
            "help": "Word vectors in GloVe's text format, of `model.word_size` numbers: start from their factors, and "
            "all else as the authors' code for the nearest model does."
        },
    )
    max_caption_words: int | None = field(default=None, metadata={"help": "Captions of more words are left out."})
    num_sentences: int = field(default=5000, metadata={"help": "Training sentences whose vectors are kept."})
    num_candidates: int = field(default=1000, metadata={"help": "Templates that are filled for an image."})
    similarity_weight: float = field(default=1.0, metadata={"help": "Of a caption's cosine with the image."})
    language_model_weight: float = field(default=0.2, metadata={"help": "Of a caption's log probability a token."})
    content_weights: list[float] = field(
        default_factory=lambda: [1.0, 1.0, 1.0],
        metadata={
            "help": "How often captions are decoded from the image's vector, the mean of its nearest words and that "
            "of its nearest sentences, in proportion."
        },
    )
    num_examples: int = field(default=10, metadata={"help": "Test images whose candidates are shown."})


@dataclass
class RetrievalArguments(DryRunArguments, CaptionDataArguments):
    """What `recipes/evaluate_retrieval.py` scores, and on what."""

    space: str = field(default="outputs/vse_scenes", metadata={"help": "Checkpoint of the joint space."})
    split: str = field(default="test", metadata={"help": "`train`, `validation` or `test`."})
    folds: int = field(default=1, metadata={"help": "5 for the 1K figures of COCO's 5,000 test images."})
    batch_size: int = field(default=64, metadata={"help": "Images, or sentences, that are encoded at a time."})
    metrics_file: str | None = field(default=None, metadata={"help": "JSON file to write the metrics to."})


def build_vse(args: VseArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[VseScnlmModel, VseScnlmProcessor]:
    r"""
    Makes an untrained space, but for its backbone and GloVe vectors if `args` name any, and its processor.

    Args:
        args ([`VseArguments`]):
            The fields of the config, and the backbone or the size of images.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Gives the size of the vocabulary and the special tokens.
    """
    fields, backbone = config_fields(args)
    config = VseScnlmConfig(**special_token_fields(tokenizer), **fields)
    model = VseScnlmModel(config)
    fill_backbone(model, backbone)
    if args.glove is not None:
        process_state().print(initialize_from_glove(model.get_input_embeddings(), tokenizer, args.glove))
    return model, VseScnlmProcessor(build_image_processor(args), tokenizer)


@torch.no_grad()
def initialize_scnlm(
    model: VseScnlmForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, glove: str | PathLike
) -> GloveReport:
    r"""
    Starts the SC-NLM as the authors' code starts the nearest model, the multiplicative log-bilinear one: W_fk and W_fv
    are the truncated singular value decomposition of word vectors, C and W_fd are drawn from N(0, 0.01), T^(j) and T_u
    are Xavier, and biases are zero.

    Args:
        model ([`VseScnlmForConditionalGeneration`]):
            Its decoder is changed, and its space is not.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Says which row belongs to which word.
        glove (`str` or `PathLike`):
            A file in GloVe's text format, with vectors of `config.word_size` numbers.

    Returns:
        [`GloveReport`]: The words found and missing.
    """
    decoder, config = model.decoder, model.config
    rank = min(config.word_size, config.vocab_size)
    if config.num_factors > rank:
        raise ValueError(
            f"{config.vocab_size:,} word vectors of {config.word_size} numbers have {rank} factors: set `num_factors` "
            f"to at most {rank}, got {config.num_factors}."
        )
    words = torch.nn.Embedding(config.vocab_size, config.word_size)
    report = initialize_from_glove(words, tokenizer, glove)
    left, values, right = torch.linalg.svd(words.weight, full_matrices=False)  # E is (W_fk)^T W_fv, transposed
    roots = values[: config.num_factors].sqrt()
    decoder.lm_head.weight.copy_(left[:, : config.num_factors] * roots)
    decoder.factor_context.weight.copy_(right[: config.num_factors] * roots[:, None])
    for layer in (decoder.context, decoder.factor_attribute):
        torch.nn.init.normal_(layer.weight, std=0.01)
    for transform in (*decoder.structure.weight.split(config.hidden_size), decoder.content.weight):
        torch.nn.init.xavier_uniform_(transform)
    for bias in (decoder.lm_head.bias, decoder.content.bias):
        torch.nn.init.zeros_(bias)
    return report


def encode_rows(args: CaptionDataArguments, dataset: Dataset, space: EmbeddingSpace, batch_size: int) -> torch.Tensor:
    r"""
    The vectors of a dataset's images, by way of cached features if the arguments name a cache.

    Args:
        args ([`CaptionDataArguments`]):
            Whether features are cached.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`.
        space ([`EmbeddingSpace`]):
            Encodes them.
        batch_size (`int`):
            Images that are encoded at a time.
    """
    images = undecoded(dataset)["image"]
    if args.features is not None:
        if not isinstance(space.model, VseScnlmModel):
            raise ValueError("--features are those of a vse_scnlm's backbone. Leave it out for other models.")
        cache = extract_features(
            dataset,
            space.model.image_encoder.backbone,
            space.processor.image_processor,
            args.features,
            pooling="mean",
            dtype=getattr(torch, args.features_dtype),
        )
        images = torch.stack([row["image_features"].float() for row in cache.attach(dataset, columns=())])
    return space.encode_images(images, batch_size)


def vse_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """What [`Trainer`] calls on the vectors of all pairs; an image that has several sentences is one candidate."""
    image_embeds, text_embeds = (torch.from_numpy(array) for array in prediction.predictions)
    _, first, image_of_text = np.unique(prediction.label_ids, return_index=True, return_inverse=True)
    return retrieval_metrics(image_embeds[torch.from_numpy(first)], text_embeds, image_of_text)
