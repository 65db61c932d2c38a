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
"""Arguments and builders of the recipes for spaces of images and sentences."""

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
    """
    Arguments of `recipes/train_vse.py`.

    Example:

    ```python
    >>> from hf_vg.training import VseArguments
    >>> VseArguments(captions_per_image=2).captions_per_image
    2
    ```
    """

    model_type: ClassVar[str] = "vse_scnlm"
    vocab_size: int = field(
        default=100000, metadata={"help": "Maximum number of words to keep, including special tokens."}
    )
    captions_per_image: int = field(
        default=1,
        metadata={
            "help": "Number of captions that are drawn per image and batch. With `max_length_difference`, every epoch "
            "uses each caption once."
        },
    )
    hardest_negatives_after: float | None = field(
        default=None,
        metadata={
            "help": "Share of the training after which only the hardest negatives count. `model.max_violation` does "
            "this from the start."
        },
    )


@dataclass
class ScnlmArguments(ModelArguments, CaptionDataArguments):
    """
    Arguments of `recipes/train_scnlm.py`.

    Example:

    ```python
    >>> from hf_vg.training import ScnlmArguments
    >>> ScnlmArguments().tagger
    'scenes'
    ```
    """

    model_type: ClassVar[str] = "vse_scnlm"
    space: str = field(
        default="outputs/vse_scenes", metadata={"help": "Checkpoint of the space, from recipes/train_vse.py."}
    )
    tagger: str = field(
        default="scenes",
        metadata={"help": "`scenes` for captions of scenes, or the name of any spaCy pipeline with a tagger."},
    )
    glove: str | None = field(
        default=None,
        metadata={
            "help": "File of word vectors in GloVe's text format, with `model.word_size` numbers per word. The model "
            "starts from their factors, and its other weights as in the authors' code for the most similar model."
        },
    )
    max_caption_words: int | None = field(default=None, metadata={"help": "Captions with more words are left out."})
    num_sentences: int = field(default=5000, metadata={"help": "Number of training sentences whose vectors are kept."})
    num_candidates: int = field(default=1000, metadata={"help": "Number of templates to fill per image."})
    similarity_weight: float = field(default=1.0, metadata={"help": "Weight of the cosine between caption and image."})
    language_model_weight: float = field(
        default=0.2, metadata={"help": "Weight of the mean log probability of a caption's tokens."}
    )
    content_weights: list[float] = field(
        default_factory=lambda: [1.0, 1.0, 1.0],
        metadata={
            "help": "Shares of captions that are decoded from the image vector, from the mean of its nearest words, "
            "and from the mean of its nearest sentences."
        },
    )
    num_examples: int = field(default=10, metadata={"help": "Number of test images whose candidates are shown."})


@dataclass
class RetrievalArguments(DryRunArguments, CaptionDataArguments):
    """
    Arguments of `recipes/evaluate_retrieval.py`.

    Example:

    ```python
    >>> from hf_vg.training import RetrievalArguments
    >>> RetrievalArguments(space="openai/clip-vit-base-patch32", dataset="scenes").folds
    1
    ```
    """

    space: str = field(
        default="outputs/vse_scenes",
        metadata={
            "help": "The model: a `vse_scnlm`, CLIP, SigLIP or another model that encodes images and sentences."
        },
    )
    split: str = field(default="test", metadata={"help": "`train`, `validation` or `test`."})
    folds: int = field(
        default=1, metadata={"help": "Number of parts of the data to evaluate and average. Use 5 for COCO 1K results."}
    )
    batch_size: int = field(default=64, metadata={"help": "Number of images or sentences to encode at a time."})
    arithmetic: list[str] | None = field(
        default=None,
        metadata={
            "help": "Sums to score on photos, such as 'dog - black + white': photos with a black dog must find white "
            "ones. Captions say what a photo shows.",
            "nargs": "+",
        },
    )
    arithmetic_figure: str | None = field(
        default=None, metadata={"help": "Image file to draw one search per sum of `arithmetic` to."}
    )
    metrics_file: str | None = field(default=None, metadata={"help": "JSON file to write the metrics to."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arithmetic_figure is not None and not self.arithmetic:
            raise ValueError("`arithmetic_figure` draws the sums of `arithmetic`: name some.")


def build_vse(args: VseArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[VseScnlmModel, VseScnlmProcessor]:
    r"""
    Makes a new space and its processor. If `args` name a backbone or GloVe vectors, those parts are pretrained.

    Args:
        args ([`VseArguments`]):
            The fields of the config, and the backbone or the image size.
        tokenizer ([`PreTrainedTokenizerFast`]):
            The tokenizer, which sets the vocabulary size and the special tokens.

    Returns:
        `tuple`: The model and its processor.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer
    >>> from hf_vg.training import VseArguments, build_vse
    >>> backbone = {"model_type": "vgg", "depths": [1], "hidden_sizes": [4]}
    >>> fields = {"backbone_config": backbone, "freeze_backbone": False, "feature_size": 4, "hidden_size": 8}
    >>> args = VseArguments(model={**fields, "embedding_size": 8})
    >>> model, processor = build_vse(args, train_word_tokenizer(["a dog runs"]))
    >>> model.config.hidden_size
    8
    ```
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
    Initializes the SC-NLM as the authors' code initializes its most similar model, the multiplicative log-bilinear
    one: W_fk and W_fv are the truncated singular value decomposition of word vectors, C and W_fd are drawn from
    N(0, 0.01), T^(j) and T_u are Xavier, and biases are zero.

    Args:
        model ([`VseScnlmForConditionalGeneration`]):
            The model. Only its decoder changes.
        tokenizer ([`PreTrainedTokenizerFast`]):
            The tokenizer, which maps words to rows.
        glove (`str` or `PathLike`):
            A file in GloVe's text format, with `config.word_size` numbers per word.

    Returns:
        [`GloveReport`]: The words that were found and those that are missing.

    Example:

    ```python
    >>> report = initialize_scnlm(model, tokenizer, "glove.6B.300d.txt")  # doctest: +SKIP
    ```
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
    Encodes the images of a dataset. If the arguments name a feature cache, features are read from it.

    Args:
        args ([`CaptionDataArguments`]):
            The arguments, which may name a feature cache.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`.
        space ([`EmbeddingSpace`]):
            The model.
        batch_size (`int`):
            Number of images to encode at a time.

    Returns:
        `torch.FloatTensor` of shape `(images, size)`: Unit vectors.

    Example:

    ```python
    >>> from pathlib import Path
    >>> import hf_vg
    >>> from datasets import Dataset
    >>> from hf_vg.pipelines import load_space
    >>> from hf_vg.training import RetrievalArguments, encode_rows, tiny_space
    >>> rows = Dataset.from_list([{"image": scene["image"]} for scene in hf_vg.examples.scenes()[:2]])
    >>> space = load_space(tiny_space(Path("tiny_space")))
    >>> len(encode_rows(RetrievalArguments(), rows, space, batch_size=2))
    2
    ```
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
    r"""
    Computes retrieval metrics from the vectors of all pairs, as the `compute_metrics` of a [`Trainer`]. An image with
    several sentences is one candidate.

    Args:
        prediction ([`EvalPrediction`]):
            Vectors of images and of sentences, and the number of the image of each pair.

    Returns:
        `dict[str, float]`: The metrics of [`retrieval_metrics`].

    Example:

    ```python
    >>> import numpy as np
    >>> from transformers import EvalPrediction
    >>> from hf_vg.training import vse_metrics
    >>> vectors = np.eye(2, dtype="float32")
    >>> vse_metrics(EvalPrediction((vectors, vectors), np.array([7, 9])))["text_to_image_r1"]
    100.0
    ```
    """
    image_embeds, text_embeds = (torch.from_numpy(array) for array in prediction.predictions)
    _, first, image_of_text = np.unique(prediction.label_ids, return_index=True, return_inverse=True)
    return retrieval_metrics(image_embeds[torch.from_numpy(first)], text_embeds, image_of_text)
