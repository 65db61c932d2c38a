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
"""GroundedVisualBert and its trainers, made from a recipe's arguments."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from datasets import DatasetDict
from transformers import AutoImageProcessor, AutoTokenizer, CLIPImageProcessorPil, PreTrainedModel
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..data.feature_extraction import load_backbone
from ..data.region_collators import ImageGroupSampler, RegionCollator
from ..data.region_rows import RegionDataArguments
from ..data.tokenizers import train_wordpiece_tokenizer
from ..loading import load_checkpoint, load_part
from ..models.attention_supervision import means_over_ranks
from ..models.grounded_visual_bert import GroundedVisualBertConfig, GroundedVisualBertProcessor
from .arguments import ModelArguments, VgTrainingArguments
from .attention_supervision import distillation_loss
from .trainer import VgTrainer


DISTILLATIONS = ["states", "outputs"]
# What the loss is computed with, and the teacher does not need.
TARGETS = ("labels", "pair_labels", "phrase_boxes", "masked_input_ids", "masked_labels")
Sums = dict[str, tuple[torch.Tensor, torch.Tensor]]  # for each loss its sum, and the number of its terms
# Fields that shape the weights. A checkpoint keeps its own: a recipe's config would make new layers.
SIZES = (
    *("backbone_config", "region_feature_size", "geometry_frequencies", "visual_embedding_dim", "hidden_size"),
    *("num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings", "type_vocab_size"),
)


@dataclass
class GroundedVisualBertArguments(ModelArguments, RegionDataArguments):
    """
    Arguments that the recipes of GroundedVisualBert share: the model, and the data it is trained on.

    Example:

    ```python
    >>> from hf_vg.training import GroundedVisualBertArguments
    >>> GroundedVisualBertArguments().texts_together
    1
    ```
    """

    model_type: ClassVar[str] = "grounded_visual_bert"
    checkpoint: str | None = field(
        default=None,
        metadata={"help": "Checkpoint of GroundedVisualBert to start from. By default the model is new."},
    )
    text_model: str | None = field(
        default=None, metadata={"help": "BERT checkpoint that a new model takes its tokenizer and weights from."}
    )
    backbone: str | None = field(
        default=None,
        metadata={"help": "Pretrained vision backbone of a new model: a folder, or a model of the Hub."},
    )
    texts_together: int = field(
        default=1,
        metadata={"help": "Number of texts about an image that are batched together and share its encoding."},
    )


@dataclass
class VgpArguments(GroundedVisualBertArguments):
    """
    Arguments of `recipes/train_vgp.py`.

    Example:

    ```python
    >>> from hf_vg.training import VgpArguments
    >>> VgpArguments(pairs_per_image=4).pairs_per_image
    4
    ```
    """

    paraphrases_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of the VGP typology's `*_data.csv`. Each paraphrase is in the split of its image."},
    )
    pairs_per_image: int | None = field(
        default=None,
        metadata={
            "help": "Caption pairs per image, half of them true. Defaults to all 20. From published data, pairs with "
            "paraphrases are taken first."
        },
    )
    distillation_weight: float = field(
        default=0.0, metadata={"help": "Weight of staying near the model that training started from."}
    )
    distillation: str = field(
        default="states",
        metadata={
            "help": "What stays near: its `states`, by their squared distance, or the probabilities of its `outputs`, "
            "by their divergence (Hinton et al., 2015).",
            "choices": DISTILLATIONS,
        },
    )
    distillation_temperature: float = field(
        default=2.0, metadata={"help": "Temperature of the probabilities in `distillation outputs`."}
    )
    num_figures: int = field(
        default=4, metadata={"help": "Number of test captions to draw with the regions of each word."}
    )


@dataclass
class QuestionArguments(GroundedVisualBertArguments):
    """
    Arguments of `recipes/finetune_vqa.py`.

    Example:

    ```python
    >>> from hf_vg.training import QuestionArguments
    >>> QuestionArguments().num_answers
    3129
    ```
    """

    num_answers: int = field(default=3129, metadata={"help": "Maximum number of answers to choose from."})
    detector: str | None = field(
        default=None,
        metadata={"help": "Object detector that finds the regions of VQA's images. Without one they are a grid."},
    )
    detections: str | None = field(
        default=None,
        metadata={"help": "Published detections to take the regions from: a .json or .tsv file, or a folder of them."},
    )
    max_regions: int = field(default=36, metadata={"help": "Maximum number of detected regions per image."})


@dataclass
class ReferringArguments(GroundedVisualBertArguments):
    """
    Arguments of `recipes/finetune_referring.py`.

    Example:

    ```python
    >>> from hf_vg.training import ReferringArguments
    >>> ReferringArguments().test_split
    'testA'
    ```
    """

    split_by: str = field(default="unc", metadata={"help": "Whose splits to use: unc, google or umd."})
    test_split: str = field(default="testA", metadata={"help": "The split to test on."})
    detections: str | None = field(
        default=None,
        metadata={
            "help": "Published detections to choose from, such as MAttNet's: a .json or .tsv file, or a folder of "
            "them. By default the annotated objects."
        },
    )


def build_grounded_visual_bert(
    args: GroundedVisualBertArguments, model_class: type[PreTrainedModel], texts: Sequence[str], **fields: Any
) -> tuple[PreTrainedModel, GroundedVisualBertProcessor]:
    r"""
    Makes a model and its processor: those of `args.checkpoint`, or new ones.

    Args:
        args ([`GroundedVisualBertArguments`]):
            The checkpoint, or the text model and backbone of a new model.
        model_class (`type`):
            One of the heads of GroundedVisualBert.
        texts (`Sequence[str]`):
            Texts to train a new tokenizer on, if there is neither a checkpoint nor a text model.
        fields (`Any`):
            Fields of the config that the recipe sets. They override `args.model`.

    Returns:
        `tuple`: The model and its processor.

    Example:

    ```python
    >>> from hf_vg.models.grounded_visual_bert import GroundedVisualBertForVGP
    >>> from hf_vg.training import VgpArguments, build_grounded_visual_bert
    >>> model = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> args = VgpArguments(model={**model, "backbone_config": None, "region_feature_size": 4})
    >>> model, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, ["a dog runs"])
    >>> model.config.hidden_size
    8
    ```
    """
    fields = {**args.model, **fields}
    trust = args.trust_remote_code
    if args.checkpoint is not None:
        kept = {name: value for name, value in fields.items() if name not in SIZES}
        model = load_checkpoint(args.checkpoint, "regions", model_class, True, trust, **kept)
        return model, load_part(GroundedVisualBertProcessor, args.checkpoint, trust)
    if args.text_model is not None:
        tokenizer = load_part(AutoTokenizer, args.text_model, trust)
    else:
        tokenizer = train_wordpiece_tokenizer(texts)
    fields["mask_token_id"] = tokenizer.mask_token_id
    size = {"height": args.image_size, "width": args.image_size}
    backbone = load_backbone(args.backbone, args.trust_remote_code) if args.backbone is not None else None
    if args.backbone is not None:
        # The backbone's own normalization, without its crop: boxes are relative to the whole image.
        image_processor = load_part(AutoImageProcessor, args.backbone, trust, size=size, do_center_crop=False)
    else:
        image_processor = CLIPImageProcessorPil(
            size=size, do_center_crop=False, image_mean=IMAGENET_DEFAULT_MEAN, image_std=IMAGENET_DEFAULT_STD
        )
    if args.text_model is not None:
        model = model_class.from_text_pretrained(args.text_model, backbone, **fields)
    else:
        if backbone is not None:
            fields |= {"backbone_config": backbone.config, "region_feature_size": backbone.channels[-1]}
        model = model_class(
            GroundedVisualBertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **fields)
        )
        if backbone is not None:
            model.base_model.region_encoder.image_encoder.backbone.load_state_dict(backbone.state_dict())
    return model, GroundedVisualBertProcessor(image_processor, tokenizer)


def build_region_trainer(
    args: GroundedVisualBertArguments,
    training_args: VgTrainingArguments,
    model: PreTrainedModel,
    processor: GroundedVisualBertProcessor,
    rows: DatasetDict,
    collators: Mapping[str, RegionCollator],
    score: Callable[[PreTrainedModel], dict[str, float]],
) -> "RegionTrainer":
    r"""
    Makes the trainer of a recipe: a [`VgpTrainer`] for [`VgpArguments`], otherwise a [`RegionTrainer`].

    Args:
        args ([`GroundedVisualBertArguments`]):
            The recipe's own arguments.
        training_args ([`VgTrainingArguments`]):
            The recipe's training arguments.
        model ([`PreTrainedModel`]):
            The model to train.
        processor ([`GroundedVisualBertProcessor`]):
            The processor to save with the model.
        rows ([`~datasets.DatasetDict`]):
            The texts of each split.
        collators (`Mapping[str, RegionCollator]`):
            For each split, the collator that joins texts with their images.
        score (`Callable`):
            Metrics of the model, see [`VgTrainer`].

    Returns:
        [`RegionTrainer`]: The trainer.

    Example:

    ```python
    >>> trainer = build_region_trainer(args, training_args, model, processor, rows, collators, score)  # doctest: +SKIP
    ```
    """
    trainer_class = RegionTrainer
    if isinstance(args, VgpArguments):
        names = ("distillation_weight", "distillation", "distillation_temperature")
        trainer_class = partial(VgpTrainer, **{name: getattr(args, name) for name in names})
    return trainer_class(
        model=model,
        args=training_args,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=collators["train"],
        eval_data_collator=collators["validation"],
        score=score,
        processing_class=processor,
        dataset_name=args.dataset,
        texts_together=args.texts_together,
    )


class RegionTrainer(VgTrainer):
    r"""
    A [`VgTrainer`] for texts about images.

    Args:
        texts_together (`int`, *optional*, defaults to 1):
            Number of texts about an image that are drawn together. The collator encodes their image once.

    Example:

    ```python
    >>> trainer = RegionTrainer(model=model, args=args, texts_together=4, ...)  # doctest: +SKIP
    ```
    """

    def __init__(self, *args: Any, texts_together: int = 1, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.texts_together = texts_together

    def _get_train_sampler(self, train_dataset: Any | None = None) -> Any:
        if self.texts_together == 1:
            return super()._get_train_sampler(train_dataset)
        return ImageGroupSampler(self.train_dataset["row"][:], self.texts_together, self.args.seed)


class VgpTrainer(RegionTrainer):
    r"""
    A [`RegionTrainer`] for caption pairs. It can keep a model near what it knew, that is, near the model that training
    started from.

    Args:
        distillation_weight (`float`, *optional*, defaults to 0.0):
            Weight of that loss. With 0 it is not computed.
        distillation (`str`, *optional*, defaults to `"states"`):
            The loss. `"states"` is the mean squared distance of the last states of all words and regions. `"outputs"`
            is the divergence of the class probabilities of both tasks (Hinton et al., 2015), each a mean over its
            examples.
        distillation_temperature (`float`, *optional*, defaults to 2.0):
            Temperature that these probabilities are softened by.

    Example:

    ```python
    >>> trainer = VgpTrainer(model=model, args=args, distillation_weight=0.5, ...)  # doctest: +SKIP
    ```
    """

    def __init__(
        self,
        *args: Any,
        distillation_weight: float = 0.0,
        distillation: str = "states",
        distillation_temperature: float = 2.0,
        **kwargs: Any,
    ):
        if distillation not in DISTILLATIONS:
            raise ValueError(f"`distillation` must be one of {', '.join(DISTILLATIONS)}, got {distillation!r}.")
        super().__init__(*args, **kwargs)
        self.distillation_weight = distillation_weight
        self.distillation, self.distillation_temperature = distillation, distillation_temperature
        self.teacher: torch.nn.Module | None = None
        if distillation_weight:
            self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if self.teacher is not None and model.training:
            with torch.no_grad():
                taught = self.teacher(**{name: value for name, value in inputs.items() if name not in TARGETS})
            sums = (self.distance if self.distillation == "states" else self.divergence)(inputs, outputs, taught)
            distance = torch.stack([*means_over_ranks(sums, True).values()]).sum()
            self.log_part("loss_distillation", distance)
            loss = loss + self.distillation_weight * distance
        return (loss, outputs) if return_outputs else loss

    def distance(self, inputs: Mapping[str, torch.Tensor], outputs: Any, taught: Any) -> Sums:
        regions = inputs["visual_attention_mask"]
        regions = regions.repeat_interleave(len(inputs["input_ids"]) // len(regions), dim=0)
        is_real = torch.cat([inputs["attention_mask"], regions], dim=1) > 0
        states, kept = (output.last_hidden_state[is_real].float() for output in (outputs, taught))
        squares = torch.nn.functional.mse_loss(states, kept, reduction="none").mean(dim=1)
        return {"states": (squares.sum(), is_real.sum())}

    def divergence(self, inputs: Mapping[str, torch.Tensor], outputs: Any, taught: Any) -> Sums:
        temperature, is_pair = self.distillation_temperature, inputs["pair_labels"] != -100
        pairs = distillation_loss(outputs.paraphrase_logits[is_pair], taught.paraphrase_logits[is_pair], temperature)
        captions = distillation_loss(outputs.logits, taught.logits, temperature)
        return {"pairs": (pairs, is_pair.sum()), "captions": (captions, inputs["labels"].new_tensor(len(is_pair)))}
