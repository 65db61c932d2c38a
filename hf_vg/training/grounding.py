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
"""GroundedVisualBert, and the rows it is trained on, made from a recipe's arguments."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from PIL import Image
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, AutoTokenizer, CLIPImageProcessor, PreTrainedModel, pipeline
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..data.entities import GROUNDED_FEATURES, grounded_scenes, load_flickr30k_entities
from ..data.features import extract_features, load_backbone
from ..data.images import open_image
from ..data.paraphrases import load_paraphrases, make_caption_pairs, nearest_images, paraphrases_by_image
from ..data.referring import load_referring
from ..data.region_collators import ImageGroupSampler
from ..data.scenes import caption_is_true, load_scenes
from ..data.tokenizers import train_wordpiece_tokenizer
from ..data.vqa import load_vqa
from ..models.grounded_visual_bert import GroundedVisualBertConfig, GroundedVisualBertProcessor
from .trainer import VgTrainer


THUMBNAIL_SIZE = 8  # pixels a side, by which scenes are near each other
# What shapes the weights. A recipe's own config would otherwise change those of a checkpoint, and make new layers.
SIZES = (
    *("backbone_config", "region_feature_size", "geometry_frequencies", "visual_embedding_dim", "hidden_size"),
    *("num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings", "type_vocab_size"),
)


@dataclass
class GroundedVisualBertArguments:
    """What recipes of GroundedVisualBert share: what they see and read with, and on what they are trained."""

    model: dict = field(
        default_factory=dict,
        metadata={
            "help": "Fields of the model's config; as flags, --model.FIELD VALUE. A checkpoint keeps its sizes."
        },
    )
    checkpoint: str | None = field(
        default=None,
        metadata={"help": "A checkpoint of GroundedVisualBert to go on from. By default the model is new."},
    )
    text_model: str | None = field(
        default=None, metadata={"help": "A BERT checkpoint whose words and weights a new model begins with."}
    )
    backbone: str | None = field(
        default=None, metadata={"help": "Pretrained network a new model sees with: a folder, or a model of the Hub."}
    )
    dataset: str = field(
        default="scenes", metadata={"help": "`scenes`, the micro-world made on the spot, or the published files."}
    )
    data_dir: str | None = field(default=None, metadata={"help": "Where the dataset's files are."})
    images_dir: str | None = field(default=None, metadata={"help": "Where its images are."})
    num_train_images: int | None = field(
        default=None, metadata={"help": "Images to train on: the first, or as many scenes. All, or 4,000 scenes."}
    )
    num_eval_images: int | None = field(
        default=None, metadata={"help": "Images to validate on, and again to test on. All, or 500 scenes."}
    )
    image_size: int = field(default=64, metadata={"help": "Width and height that images are resized to."})
    features: str | None = field(
        default=None,
        metadata={
            "help": "Folder of cached feature maps of a frozen backbone, which are computed if they are missing."
        },
    )
    texts_together: int = field(
        default=1,
        metadata={"help": "Texts about an image that stand together in a batch, and share its encoding."},
    )


@dataclass
class VgpArguments(GroundedVisualBertArguments):
    """What `recipes/train_vgp.py` trains, and on what."""

    paraphrases_dir: str | None = field(
        default=None,
        metadata={
            "help": "Where the VGP typology's `*_data.csv` are. A paraphrase is of the split that its image is in."
        },
    )
    pairs_per_image: int | None = field(
        default=None,
        metadata={
            "help": "Caption pairs of each image, half of them true. All 20 by default. Of published data, pairs with "
            "paraphrases are taken first."
        },
    )
    distillation_weight: float = field(
        default=0.0,
        metadata={"help": "Weight of staying near the states of the model that training began with."},
    )
    num_figures: int = field(default=4, metadata={"help": "Test captions to draw with the regions of each word."})


@dataclass
class QuestionArguments(GroundedVisualBertArguments):
    """What `recipes/finetune_vqa.py` trains, and on what."""

    num_answers: int = field(default=3129, metadata={"help": "The most answers to choose from."})
    detector: str | None = field(
        default=None,
        metadata={"help": "Object detector that finds the regions of VQA's images. By default they are a grid."},
    )


@dataclass
class ReferringArguments(GroundedVisualBertArguments):
    """What `recipes/finetune_referring.py` trains, and on what."""

    split_by: str = field(default="unc", metadata={"help": "Whose splits to take: unc, google or umd."})
    test_split: str = field(default="testA", metadata={"help": "The split to score on."})


def load_grounded_images(args: GroundedVisualBertArguments) -> DatasetDict:
    """Images with boxes and captions: `train`, `validation` and `test`, which is validation where there is no test."""
    if args.dataset == "scenes":
        number = args.num_eval_images or 500
        scenes = load_scenes(args.num_train_images or 4000, number, number, args.image_size)
        return DatasetDict({split: grounded_scenes(rows) for split, rows in scenes.items()})
    if args.dataset != "flickr30k_entities":
        raise ValueError(f"`dataset` must be 'scenes' or 'flickr30k_entities', got {args.dataset!r}.")
    splits = load_flickr30k_entities(_given(args, "data_dir"), _given(args, "images_dir"))
    splits.setdefault("test", splits["validation"])
    for split, number in (
        ("train", args.num_train_images),
        ("validation", args.num_eval_images),
        ("test", args.num_eval_images),
    ):
        if number is not None:
            splits[split] = splits[split].select(range(min(number, len(splits[split]))))
    return splits


def training_texts(images: Dataset) -> list[str]:
    """The captions of images; and of scenes the questions and expressions, which a checkpoint may be given next."""
    texts = [caption for captions in images["captions"] for caption in captions]
    for column, key in (("questions", "question"), ("referring", "expression")):
        if column in images.column_names:
            texts += [row[key] for rows in images[column] for row in rows]
    return texts


def build_grounded_visual_bert(
    args: GroundedVisualBertArguments, model_class: type[PreTrainedModel], texts: Sequence[str], **fields
) -> tuple[PreTrainedModel, GroundedVisualBertProcessor]:
    r"""
    Makes a model and its processor: those of `args.checkpoint`, or new ones.

    Args:
        args ([`GroundedVisualBertArguments`]):
            What they begin with.
        model_class (`type`):
            One of the heads of GroundedVisualBert.
        texts (`Sequence[str]`):
            What a new tokenizer is trained on, where there is neither a checkpoint nor a text model.
        fields:
            Fields of the config that are not the user's choice.
    """
    fields = {**args.model, **fields}
    if args.checkpoint is not None:
        kept = {name: value for name, value in fields.items() if name not in SIZES}
        model = model_class.from_pretrained(args.checkpoint, **kept)
        return model, GroundedVisualBertProcessor.from_pretrained(args.checkpoint)
    if args.text_model is not None:
        tokenizer = AutoTokenizer.from_pretrained(args.text_model)
    else:
        tokenizer = train_wordpiece_tokenizer(texts)
    fields["mask_token_id"] = tokenizer.mask_token_id
    size = {"height": args.image_size, "width": args.image_size}
    backbone = load_backbone(args.backbone) if args.backbone is not None else None
    if backbone is not None:
        # The backbone's own means and scales, but of the whole image: boxes stay where they are.
        image_processor = AutoImageProcessor.from_pretrained(args.backbone, size=size, do_center_crop=False)
    else:
        image_processor = CLIPImageProcessor(
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
            model.base_model.region_encoder.backbone.load_state_dict(backbone.state_dict())
    return model, GroundedVisualBertProcessor(image_processor, tokenizer)


def region_images(
    args: GroundedVisualBertArguments,
    images: Dataset,
    model: PreTrainedModel,
    processor: GroundedVisualBertProcessor,
    keep_images: bool = False,
) -> Dataset:
    r"""
    What collators take images from: `image` and `boxes`, or cached `image_features` and relative `boxes`.

    Args:
        args ([`GroundedVisualBertArguments`]):
            Its `features` say where the cache is, if there is one.
        images ([`~datasets.Dataset`]):
            Rows with `image` and `boxes`.
        model ([`PreTrainedModel`]), processor ([`GroundedVisualBertProcessor`]):
            Whose backbone and image processor make the features.
        keep_images (`bool`, *optional*, defaults to `False`):
            Whether rows with features have their `image` too, for figures.
    """
    images = images.select_columns(["image", "boxes"])
    if args.features is None:
        return images
    if not model.config.freeze_backbone:
        raise ValueError("`features` are of a frozen backbone, but the model has `freeze_backbone: false`.")
    backbone = model.base_model.region_encoder.backbone
    cache = extract_features(images, backbone, processor.image_processor, args.features)
    boxes = []
    for row in images:
        width, height = row["image"].size
        corners = np.asarray(row["boxes"], dtype=np.float64).reshape(-1, 4) / [width, height, width, height]
        boxes.append(corners.clip(0, 1).tolist())
    relative = images.remove_columns("boxes").add_column("boxes", boxes, feature=images.features["boxes"])
    return cache.attach(relative, columns=("boxes", "image") if keep_images else ("boxes",))


def vgp_rows(
    args: VgpArguments, images: DatasetDict, model: PreTrainedModel, processor: GroundedVisualBertProcessor
) -> DatasetDict:
    """The caption pairs of every split, with hard negatives from the images that look most alike."""
    rows = {}
    if args.dataset != "scenes":  # each of which has its own
        paraphrases = paraphrases_by_image(load_paraphrases(_given(args, "paraphrases_dir")))
    for split, table in images.items():
        is_true = None
        if args.dataset == "scenes":
            paraphrases = dict(zip(table["image_id"], table["paraphrases"], strict=True))
            features = np.stack([_thumbnail(image) for image in table["image"]])
            objects = table["objects"][:]

            def is_true(number: int, caption: str, objects: Sequence = objects) -> bool:
                return caption_is_true(objects[number], caption)
        else:
            backbone = model.base_model.region_encoder.backbone
            directory = args.features or Path(_given(args, "data_dir")) / "features"
            # Where maps are cached, which training reads, the backbone need not see the images once more.
            pooling = "mean" if args.features is None else "none"
            cache = extract_features(table, backbone, processor.image_processor, directory, pooling)
            maps = (torch.as_tensor(row["image_features"]).float() for row in cache.attach(table, columns=()))
            features = torch.stack([features.reshape(-1, features.shape[-1]).mean(dim=0) for features in maps])
        seed = ("train", "validation", "test").index(split)
        rows[split] = make_caption_pairs(
            table,
            paraphrases,
            nearest_images(features),
            seed,
            args.pairs_per_image,
            is_true,
            paraphrases_first=args.dataset != "scenes",  # in which most pairs have some
        )
    return DatasetDict(rows)


def rows_by_novelty(rows: Dataset, images: Dataset) -> dict[str, Dataset]:
    """Rows about scenes like those of training (`seen`), and with a pair of colour and shape it had not (`unseen`)."""
    if "unseen" not in images.column_names:
        return {}
    is_new, parts = images["unseen"][:], {"seen": [], "unseen": []}
    for index, number in enumerate(rows["row"]):
        parts["unseen" if is_new[number] else "seen"].append(index)
    return {name: rows.select(indices) for name, indices in parts.items() if indices}


def question_rows(args: QuestionArguments) -> tuple[DatasetDict, DatasetDict]:
    """Images, and questions about them, of each split."""
    if args.dataset == "scenes":
        images = load_grounded_images(args)
        rows = {
            split: Dataset.from_list(
                [
                    # As if ten people had given the same answer.
                    {"row": number, "question": asked["question"], "answers": [asked["answer"]] * 10}
                    for number, questions in enumerate(table["questions"])
                    for asked in questions
                ]
            )
            for split, table in images.items()
        }
        return images, DatasetDict(rows)
    if args.dataset != "vqa":
        raise ValueError(f"`dataset` must be 'scenes' or 'vqa', got {args.dataset!r}.")
    folder, pictures = Path(_given(args, "data_dir")), Path(_given(args, "images_dir"))
    images, rows = {}, {}
    for split, name in (("train", "train2014"), ("validation", "val2014"), ("test", "val2014")):
        table = load_vqa(
            folder / f"v2_OpenEnded_mscoco_{name}_questions.json",
            folder / f"v2_mscoco_{name}_annotations.json",
            pictures / name,
        )
        number = args.num_train_images if split == "train" else args.num_eval_images
        images[split], rows[split] = _one_row_an_image(table, number, ("question", "answers"))
        images[split] = add_regions(images[split], args.detector)
    return DatasetDict(images), DatasetDict(rows)


def add_regions(images: Dataset, detector: str | None = None) -> Dataset:
    """Adds `boxes`, in pixels: those of an object detector, or a grid."""
    find = pipeline("object-detection", model=detector) if detector is not None else None
    propose = GroundedVisualBertProcessor.propose_regions
    pictures = (row["image"] for row in tqdm(images, desc="Finding regions", unit="image"))
    boxes = [propose(open_image(picture), find)[0] for picture in pictures]
    return images.add_column("boxes", boxes, feature=GROUNDED_FEATURES["boxes"])


def referring_rows(args: ReferringArguments) -> tuple[DatasetDict, DatasetDict]:
    """Images, and expressions that refer to one of their objects, whose `box` is relative, of each split."""
    if args.dataset == "scenes":
        images = load_grounded_images(args)
        rows = {
            split: Dataset.from_list(
                [
                    {"row": number, "expression": referred["expression"], "box": referred["box"]}
                    for number, expressions in enumerate(table["referring"])
                    for referred in expressions
                ]
            )
            for split, table in images.items()
        }
        return images, _with_relative_boxes(images, rows)
    if args.dataset not in ("refcoco", "refcoco+", "refcocog"):
        raise ValueError(f"`dataset` must be 'scenes', 'refcoco', 'refcoco+' or 'refcocog', got {args.dataset!r}.")
    splits = load_referring(Path(_given(args, "data_dir")) / args.dataset, _given(args, "images_dir"), args.split_by)
    if args.test_split not in splits:
        raise ValueError(f"`test_split` must be one of {list(splits)}, got {args.test_split!r}.")
    images, rows = {}, {}
    for split, name in (("train", "train"), ("validation", "val"), ("test", args.test_split)):
        number = args.num_train_images if split == "train" else args.num_eval_images
        images[split], rows[split] = _one_row_an_image(splits[name], number, ("expression", "box"))
    return DatasetDict(images), _with_relative_boxes(images, rows)


class RegionTrainer(VgTrainer):
    r"""
    A [`VgTrainer`] for texts about images.

    Args:
        texts_together (`int`, *optional*, defaults to 1):
            Texts about an image that are drawn together. The collator has such texts share their image.
    """

    def __init__(self, *args, texts_together: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.texts_together = texts_together

    def _get_train_sampler(self, train_dataset=None):
        if self.texts_together == 1:
            return super()._get_train_sampler(train_dataset)
        return ImageGroupSampler(self.train_dataset["row"][:], self.texts_together, self.args.seed)


class VgpTrainer(RegionTrainer):
    r"""
    A [`RegionTrainer`] for caption pairs, which can keep a model near what it knew: to the loss it adds the mean
    squared distance of its states from those of the model that training began with.

    Args:
        distillation_weight (`float`, *optional*, defaults to 0.0):
            Weight of that distance. At 0 nothing is computed.
    """

    def __init__(self, *args, distillation_weight: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.distillation_weight = distillation_weight
        self.teacher = None
        if distillation_weight:
            self.teacher = copy.deepcopy(self.model.base_model).eval().requires_grad_(False)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if self.teacher is not None and model.training:
            distance = self.distance(inputs, outputs)
            self._parts["loss_distillation"].append(distance.detach())
            loss = loss + self.distillation_weight * distance
        return (loss, outputs) if return_outputs else loss

    def distance(self, inputs: Mapping[str, torch.Tensor], outputs: Any) -> torch.Tensor:
        names = ("input_ids", "attention_mask", "token_type_ids", "boxes", "visual_attention_mask")
        names += ("pixel_values", "pixel_mask", "image_features", "visual_embeds")
        with torch.no_grad():
            states = self.teacher(**{name: inputs[name] for name in names if name in inputs}).last_hidden_state
        regions = inputs["visual_attention_mask"]
        regions = regions.repeat_interleave(len(inputs["input_ids"]) // len(regions), dim=0)
        is_real = torch.cat([inputs["attention_mask"], regions], dim=1) > 0
        return torch.nn.functional.mse_loss(outputs.last_hidden_state[is_real].float(), states[is_real].float())


def _given(args: GroundedVisualBertArguments, name: str) -> str:
    value = getattr(args, name)
    if value is None:
        raise ValueError(f"`dataset: {args.dataset}` needs `{name}`.")
    return value


def _thumbnail(image: Image.Image) -> np.ndarray:
    return np.asarray(open_image(image).resize((THUMBNAIL_SIZE, THUMBNAIL_SIZE), Image.Resampling.BOX)).ravel()


def _with_relative_boxes(images: Mapping[str, Dataset], rows: Mapping[str, Dataset]) -> DatasetDict:
    relative = {}
    for split, table in rows.items():
        sizes = [image.size * 2 for image in images[split]["image"]]  # width, height, width, height
        boxes = [np.divide(row["box"], sizes[row["row"]]).tolist() for row in table]
        relative[split] = table.remove_columns("box").add_column("box", boxes)
    return DatasetDict(relative)


def _one_row_an_image(table: Dataset, number: int | None, columns: tuple[str, ...]) -> tuple[Dataset, Dataset]:
    """The images of a table that has a row for each text, once each; and its texts with their image's row."""
    row_of: dict[str, int] = {}
    first, rows = [], []
    texts = table.select_columns(["image_id", *columns])
    for index, text in enumerate(texts):
        if text["image_id"] not in row_of:
            if number is not None and len(row_of) == number:
                continue
            row_of[text["image_id"]] = len(row_of)
            first.append(index)
        rows.append({"row": row_of[text["image_id"]], **{column: text[column] for column in columns}})
    return table.select(first), Dataset.from_list(rows)
