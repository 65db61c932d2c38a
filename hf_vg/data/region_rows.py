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
"""Images with boxes, and the rows about them that GroundedVisualBert is trained on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from PIL import Image
from tqdm.auto import tqdm
from transformers import PreTrainedModel, pipeline

from ..models.grounded_visual_bert import GroundedVisualBertProcessor
from ..models.grounded_visual_bert.inputs_grounded_visual_bert import check_boxes
from .detections import load_detections
from .entities import GROUNDED_FEATURES, grounded_scenes, load_flickr30k_entities
from .feature_extraction import backbone_of, extract_features
from .features import undecoded
from .images import image_problem, open_image
from .loading_report import LoadingReport
from .paraphrases import load_paraphrases, make_caption_pairs, nearest_images, paraphrases_by_image
from .referring import load_referring
from .scene_grammar import caption_is_true
from .scenes import load_scenes
from .vqa import load_vqa


REFERRING_DATASETS = ("refcoco", "refcoco+", "refcocog")
SPLITS = ("train", "validation", "test")
THUMBNAIL_SIZE = 8  # pixels per side; scenes with near thumbnails look alike


@dataclass
class RegionDataArguments:
    """Images with boxes, and texts about them."""

    dataset: str = field(
        default="scenes",
        metadata={"help": "`scenes`, which are generated, or the published files: see the recipe's docstring."},
    )
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the dataset's files."})
    images_dir: str | None = field(default=None, metadata={"help": "Folder of its images."})
    strict: bool = field(default=False, metadata={"help": "Treat each image that must be skipped as an error."})
    num_train_images: int | None = field(
        default=None, metadata={"help": "Number of images to train on. Defaults to all, or to 4,000 scenes."}
    )
    num_eval_images: int | None = field(
        default=None,
        metadata={"help": "Number of images to validate on, and to test on. Defaults to all, or to 500 scenes."},
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with a checkpoint, if you trust its author."}
    )
    image_size: int = field(default=64, metadata={"help": "Width and height that images are resized to."})
    features: str | None = field(
        default=None,
        metadata={"help": "Folder to cache the frozen backbone's feature maps in. Missing ones are computed."},
    )


def load_grounded_images(args: RegionDataArguments) -> DatasetDict:
    """
    Images with boxes and captions: `train`, `validation` and `test`. Without a test split, validation is used as such.
    """
    folders = _folders(args, ("flickr30k_entities",))
    if folders is None:
        number = args.num_eval_images or 500
        scenes = load_scenes(args.num_train_images or 4000, number, number, args.image_size)
        return DatasetDict({split: grounded_scenes(rows) for split, rows in scenes.items()})
    splits = load_flickr30k_entities(*folders, args.strict)
    splits.setdefault("test", splits["validation"])
    for split in SPLITS:
        number = _num_images(args, split)
        if number is not None:
            splits[split] = splits[split].select(range(min(number, len(splits[split]))))
    return splits


def training_texts(images: Dataset) -> list[str]:
    """Captions of images. Scenes also have questions and expressions, which the next recipe may ask."""
    texts = [caption for captions in images["captions"] for caption in captions]
    for column, key in (("questions", "question"), ("referring", "expression")):
        if column in images.column_names:
            texts += [row[key] for rows in images[column] for row in rows]
    return texts


def vgp_rows(
    args: RegionDataArguments,
    images: DatasetDict,
    model: PreTrainedModel,
    processor: GroundedVisualBertProcessor,
    paraphrases_dir: str | None = None,
    pairs_per_image: int | None = None,
) -> DatasetDict:
    r"""
    The caption pairs of every split, with hard negatives from the images that look most alike.

    Args:
        args ([`RegionDataArguments`]):
            The dataset, and the folder of cached features if there is one.
        images ([`~datasets.DatasetDict`]):
            What [`load_grounded_images`] returned.
        model ([`PreTrainedModel`]), processor ([`GroundedVisualBertProcessor`]):
            Their backbone and image processor decide which published images look alike.
        paraphrases_dir (`str`, *optional*):
            Folder of the VGP typology's `*_data.csv`. Scenes have their own paraphrases.
        pairs_per_image (`int`, *optional*):
            See [`make_caption_pairs`].
    """
    is_scenes = args.dataset == "scenes"
    if not is_scenes:
        if paraphrases_dir is None:
            raise ValueError(f"`dataset: {args.dataset}` needs `paraphrases_dir`.")
        paraphrases = paraphrases_by_image(load_paraphrases(paraphrases_dir))
    rows = {}
    for split, table in images.items():
        is_true: Callable[[int, str], bool] | None = None
        if is_scenes:
            paraphrases = dict(zip(table["image_id"], table["paraphrases"], strict=True))
            features = np.stack([_thumbnail(image) for image in table["image"]])
            is_true = partial(_is_true, table["objects"][:])
        else:
            features = _pooled_features(args, table, model, processor)
        rows[split] = make_caption_pairs(
            table,
            paraphrases,
            nearest_images(features),
            seed=SPLITS.index(split),
            pairs_per_image=pairs_per_image,
            is_true=is_true,
            paraphrases_first=not is_scenes,  # most pairs of scenes have some
        )
    return DatasetDict(rows)


def _is_true(objects: Sequence, number: int, caption: str) -> bool:
    return caption_is_true(objects[number], caption)


def rows_by_novelty(rows: Dataset, images: Dataset) -> dict[str, Dataset]:
    """Splits rows about scenes by whether training had each pair of colour and shape: `seen` and `unseen`."""
    if "unseen" not in images.column_names:
        return {}
    is_new, parts = images["unseen"][:], {"seen": [], "unseen": []}
    for index, number in enumerate(rows["row"]):
        parts["unseen" if is_new[number] else "seen"].append(index)
    return {name: rows.select(indices) for name, indices in parts.items() if indices}


def rows_to_draw(rows: Dataset, number: int) -> list[dict[str, Any]]:
    r"""
    Caption pairs for figures, spread over the dataset: of each part, the first true pair whose first caption names two
    things with boxes, or the one that names most.

    Args:
        rows ([`~datasets.Dataset`]):
            Rows of [`make_caption_pairs`].
        number (`int`):
            The most rows to return.
    """
    if number < 1:
        return []
    true = [row for row in rows if row["label"] == 0]
    step = max(1, -(-len(true) // number))
    parts = [true[start : start + step] for start in range(0, len(true), step)]
    return [max(part, key=lambda row: min(len(row["phrases1"]), 2)) for part in parts]


def question_rows(
    args: RegionDataArguments, detector: str | None = None, detections: str | None = None, max_regions: int = 36
) -> tuple[DatasetDict, DatasetDict]:
    r"""
    Images, and questions about them, for each split.

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes` or `vqa`.
        detector (`str`, *optional*):
            Object detector that finds the regions of VQA's images.
        detections (`str`, *optional*):
            File or folder of published detections, see [`load_detections`]. With neither, regions are a grid.
        max_regions (`int`, *optional*, defaults to 36):
            The most regions of an image; those of the highest scores are kept.
    """
    if detector is not None and detections is not None:
        raise ValueError("`detector` finds regions and `detections` has them: give one of the two.")
    folders = _folders(args, ("vqa",), detections)
    if folders is None:
        return _scene_rows(
            args,
            "questions",
            # As if ten people had given the same answer.
            lambda asked: {"question": asked["question"], "answers": [asked["answer"]] * 10},
        )
    data_dir, images_dir = folders
    images, rows = {}, {}
    found = load_detections(detections, max_regions) if detections is not None else None
    for split, name in zip(SPLITS, ("train2014", "val2014", "val2014"), strict=True):
        table = load_vqa(
            data_dir / f"v2_OpenEnded_mscoco_{name}_questions.json",
            data_dir / f"v2_mscoco_{name}_annotations.json",
            images_dir / name,
        )
        images[split], rows[split] = _one_row_per_image(args, split, table, ("question", "answers"))
        if found is not None:
            boxes = _boxes_of(images[split], found, detections)
            images[split] = images[split].add_column("boxes", boxes, feature=GROUNDED_FEATURES["boxes"])
        else:
            images[split] = _add_regions(images[split], detector, max_regions)
    return DatasetDict(images), DatasetDict(rows)


def referring_rows(
    args: RegionDataArguments, split_by: str = "unc", test_split: str = "testA", detections: str | None = None
) -> tuple[DatasetDict, DatasetDict]:
    r"""
    Images, and expressions that refer to one of their objects, for each split. The `box` of an expression is relative.

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes`, `refcoco`, `refcoco+` or `refcocog`.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Whose splits to use. See [`load_referring`].
        test_split (`str`, *optional*, defaults to `"testA"`):
            The split to test on.
        detections (`str`, *optional*):
            File or folder of published detections, see [`load_detections`]: regions to choose from in validation and
            test, and in training beside the annotated objects. Without it regions are the annotated objects.
    """
    folders = _folders(args, REFERRING_DATASETS, detections)
    if folders is None:
        images, rows = _scene_rows(
            args, "referring", lambda referred: {"expression": referred["expression"], "box": referred["box"]}
        )
        return images, _with_relative_boxes(images, rows)
    data_dir, images_dir = folders
    splits = load_referring(data_dir / args.dataset, images_dir, split_by)
    images, rows = {}, {}
    found = load_detections(detections) if detections is not None else None
    for split, name in zip(SPLITS, ("train", "val", test_split), strict=True):
        if name not in splits:
            raise ValueError(f"{args.dataset} by {split_by} has the splits {list(splits)}, and no {name!r}.")
        images[split], rows[split] = _one_row_per_image(args, split, splits[name], ("expression", "box"))
        if found is not None:
            boxes = _boxes_of(images[split], found, detections)
            if split == "train":
                boxes = [mine + annotated for mine, annotated in zip(boxes, images[split]["boxes"], strict=True)]
            feature = images[split].features["boxes"]
            images[split] = images[split].remove_columns("boxes").add_column("boxes", boxes, feature=feature)
    return DatasetDict(images), _with_relative_boxes(images, rows)


def phrase_rows(args: RegionDataArguments, split: str = "test", split_by: str = "unc") -> Dataset:
    r"""
    Images, and phrases with boxes, of one split: for [`evaluate_grounding`].

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes`, `flickr30k_entities`, `refcoco`, `refcoco+` or `refcocog`.
        split (`str`, *optional*, defaults to `"test"`):
            `train`, `validation` or `test`; for referring expressions the names that the files have, such as `testA`.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Whose splits of referring expressions to use. See [`load_referring`].
    """
    folders = _folders(args, ("flickr30k_entities", *REFERRING_DATASETS))
    if folders is not None and args.dataset in REFERRING_DATASETS:
        splits = load_referring(folders[0] / args.dataset, folders[1], split_by)
    else:
        splits = load_grounded_images(args)
    if split not in splits:
        raise ValueError(f"{args.dataset} has the splits {', '.join(map(repr, splits))}, and no {split!r}.")
    rows = splits[split]
    return rows if args.num_eval_images is None else rows.select(range(min(args.num_eval_images, len(rows))))


def region_images(
    args: RegionDataArguments,
    images: Dataset,
    model: PreTrainedModel,
    processor: GroundedVisualBertProcessor,
    keep_images: bool = False,
) -> Dataset:
    r"""
    The images that collators read: `image` and `boxes`, or cached `image_features` and relative `boxes`.

    Args:
        args ([`RegionDataArguments`]):
            `features` is the folder of the cache, if there is one.
        images ([`~datasets.Dataset`]):
            Rows with `image` and `boxes`.
        model ([`PreTrainedModel`]), processor ([`GroundedVisualBertProcessor`]):
            Their backbone and image processor compute the features.
        keep_images (`bool`, *optional*, defaults to `False`):
            Whether rows with features also keep their `image`, for figures.
    """
    for row, boxes in enumerate(images["boxes"]):
        check_boxes(boxes, f"image {row}", processor.max_boxes)
    # Not decoded: an image that turns out to be broken must not end a training of hours.
    images = undecoded(images.select_columns(["image", "boxes"]))
    if args.features is None:
        return images
    if not model.config.freeze_backbone:
        raise ValueError("`features` are of a frozen backbone, but the model has `freeze_backbone: false`.")
    cache = extract_features(images, _backbone(model), processor.image_processor, args.features)
    boxes = []
    for row in images:
        width, height = open_image(row["image"]).size
        corners = np.asarray(row["boxes"], dtype=np.float64).reshape(-1, 4) / [width, height, width, height]
        boxes.append(corners.clip(0, 1).tolist())
    relative = images.remove_columns("boxes").add_column("boxes", boxes, feature=images.features["boxes"])
    return cache.attach(relative, columns=("boxes", "image") if keep_images else ("boxes",))


def _folders(
    args: RegionDataArguments, published: tuple[str, ...], detections: str | None = None
) -> tuple[Path, Path] | None:
    """The folders of the data and of its images; `None` for scenes, for which no files may be given."""
    files = {"data_dir": args.data_dir, "images_dir": args.images_dir, "detections": detections}
    given = [name for name, path in files.items() if path is not None]
    if args.dataset == "scenes":
        if given:
            raise ValueError(
                f"`dataset: scenes` is generated and reads no files, but `{given[0]}` is given. For your files, set "
                f"`dataset` to {' or '.join(map(repr, published))}."
            )
        return None
    if args.dataset not in published:
        names = ", ".join(map(repr, ("scenes", *published)))
        raise ValueError(f"`dataset` must be one of {names}, got {args.dataset!r}.")
    folders = []
    for name, folder in (("data_dir", args.data_dir), ("images_dir", args.images_dir)):
        if folder is None:
            raise ValueError(f"`dataset: {args.dataset}` needs `{name}`.")
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"`{name}` is not a folder: {folder!r}.")
        folders.append(Path(folder))
    return folders[0], folders[1]


def _num_images(args: RegionDataArguments, split: str) -> int | None:
    return args.num_train_images if split == "train" else args.num_eval_images


def _scene_rows(
    args: RegionDataArguments, column: str, make_row: Callable[..., dict[str, Any]]
) -> tuple[DatasetDict, DatasetDict]:
    """Scenes, and a row for each item of one of their columns."""
    images = load_grounded_images(args)
    rows = {
        split: Dataset.from_list(
            [{"row": number, **make_row(item)} for number, items in enumerate(table[column]) for item in items]
        )
        for split, table in images.items()
    }
    return images, DatasetDict(rows)


def _one_row_per_image(
    args: RegionDataArguments, split: str, table: Dataset, columns: tuple[str, ...]
) -> tuple[Dataset, Dataset]:
    """
    From a table with one row per text: each image once, and the texts with the row of their image. An image that
    cannot be opened is skipped with its texts, named and counted.
    """
    number, report = _num_images(args, split), LoadingReport(f"{args.dataset}, {split}")
    sources = undecoded(table)
    row_of: dict[str, int | None] = {}
    first, rows = [], []
    for index, text in enumerate(table.select_columns(["image_id", *columns])):
        image_id = text["image_id"]
        if image_id not in row_of:
            if number is not None and len(first) == number:
                continue
            problem = image_problem(sources[index]["image"])
            row_of[image_id] = len(first) if problem is None else None
            if problem is None:
                first.append(index)
            else:
                report.skip(args.dataset, None, problem)
        if row_of[image_id] is not None:
            rows.append({"row": row_of[image_id], **{column: text[column] for column in columns}})
    report.finish(args.strict)
    if not rows:
        raise ValueError(f"None of the images of {args.dataset} can be used:\n{report}")
    return table.select(first), Dataset.from_list(rows)


def _boxes_of(images: Dataset, found: Mapping[str, list], source: str | None) -> list[list]:
    missing = [image_id for image_id in images["image_id"] if image_id not in found]
    if missing:
        raise ValueError(
            f"{source} has no boxes for {len(missing):,} of {len(images):,} images, the first is {missing[0]}."
        )
    return [found[image_id] for image_id in images["image_id"]]


def _add_regions(images: Dataset, detector: str | None, max_regions: int) -> Dataset:
    """Adds `boxes` in pixels: those of an object detector, or a grid."""
    find = pipeline("object-detection", model=detector) if detector is not None else None
    propose = GroundedVisualBertProcessor.propose_regions
    pictures = (row["image"] for row in tqdm(undecoded(images), desc="Finding regions", unit="image"))
    boxes = [propose(open_image(picture), find, max_regions)[0] for picture in pictures]
    return images.add_column("boxes", boxes, feature=GROUNDED_FEATURES["boxes"])


def _with_relative_boxes(images: Mapping[str, Dataset], rows: Mapping[str, Dataset]) -> DatasetDict:
    relative = {}
    for split, table in rows.items():
        pictures = undecoded(images[split].select_columns("image"))
        sizes = [open_image(row["image"]).size * 2 for row in pictures]  # width, height, width, height
        boxes = [np.divide(row["box"], sizes[row["row"]]).tolist() for row in table]
        relative[split] = table.remove_columns("box").add_column("box", boxes)
    return DatasetDict(relative)


def _backbone(model: PreTrainedModel) -> PreTrainedModel:
    backbone = backbone_of(model)
    if backbone is None:
        raise ValueError("Features of images need a backbone, and the model has none (`backbone_config=None`).")
    return backbone


def _pooled_features(
    args: RegionDataArguments, table: Dataset, model: PreTrainedModel, processor: GroundedVisualBertProcessor
) -> torch.Tensor:
    """The mean of each image's feature map."""
    # If training caches maps, their means are computed from those: the backbone sees each image once.
    pooling = "mean" if args.features is None else "none"
    assert args.data_dir is not None  # the images were loaded from there
    directory = args.features or Path(args.data_dir, "features")
    cache = extract_features(table, _backbone(model), processor.image_processor, directory, pooling)
    maps = (torch.as_tensor(row["image_features"]).float() for row in cache.attach(table, columns=()))
    return torch.stack([features.reshape(-1, features.shape[-1]).mean(dim=0) for features in maps])


def _thumbnail(image: Image.Image) -> np.ndarray:
    return np.asarray(open_image(image).resize((THUMBNAIL_SIZE, THUMBNAIL_SIZE), Image.Resampling.BOX)).ravel()
