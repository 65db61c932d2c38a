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
"""Loads images with boxes and prepares the rows that GroundedVisualBert is trained on."""

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
from .images import image_problem, image_size, open_image
from .loading_report import LoadingReport
from .paraphrases import load_paraphrases, make_caption_pairs, nearest_images, paraphrases_by_image
from .referring import load_referring
from .scene_grammar import caption_is_true
from .scenes import load_scenes
from .vqa import load_vqa


REFERRING_DATASETS = ("refcoco", "refcoco+", "refcocog")
SPLITS = ("train", "validation", "test")
THUMBNAIL_SIZE = 8  # pixels per side; scenes that look alike have similar thumbnails


@dataclass
class RegionDataArguments:
    """
    Arguments that choose images with boxes and texts about them. Each field's help text explains it: run a recipe with
    `--help` to see them all.

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments

    >>> RegionDataArguments(num_train_images=100).dataset
    'scenes'
    ```
    """

    dataset: str = field(
        default="scenes",
        metadata={"help": "`scenes`, the synthetic dataset, or published files: see the recipe's docstring."},
    )
    data_dir: str | None = field(default=None, metadata={"help": "Folder with the dataset's files."})
    images_dir: str | None = field(default=None, metadata={"help": "Folder with the images."})
    strict: bool = field(default=False, metadata={"help": "Raise an error for a bad image instead of skipping it."})
    num_train_images: int | None = field(
        default=None, metadata={"help": "Number of training images. Defaults to all images, or 4,000 scenes."}
    )
    num_eval_images: int | None = field(
        default=None,
        metadata={
            "help": "Number of images in the validation split, and in the test split. Defaults to all images, or 500 "
            "scenes."
        },
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Run the code that comes with a checkpoint. Use it only if you trust the author."},
    )
    image_size: int = field(default=64, metadata={"help": "Width and height to which images are resized."})
    features: str | None = field(
        default=None,
        metadata={"help": "Folder of the feature cache. Missing features are computed once and then read from it."},
    )


def load_grounded_images(args: RegionDataArguments) -> DatasetDict:
    """
    Loads images with boxes and captions. If there is no test split, the validation split is used for testing too.

    Args:
        args ([`RegionDataArguments`]):
            The dataset, `scenes` or `flickr30k_entities`, and how many of its images to use.

    Returns:
        [`~datasets.DatasetDict`]: The splits `train`, `validation` and `test`, see [`load_flickr30k_entities`].

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, load_grounded_images

    >>> images = load_grounded_images(RegionDataArguments(num_train_images=2, num_eval_images=1))
    >>> len(images["train"]), images["train"][0]["boxes"][0]
    (2, [34.25, 39.75, 52.25, 57.75])
    ```
    """
    folders = _folders(args, ("flickr30k_entities",))
    if folders is None:
        number = args.num_eval_images or 500
        scenes = load_scenes(args.num_train_images or 4000, number, number, args.image_size)
        return DatasetDict({split: grounded_scenes(rows) for split, rows in scenes.items()})
    splits = load_flickr30k_entities(*folders, args.strict)
    for split in splits:
        number = _num_images(args, split)
        if number is not None:
            splits[split] = splits[split].select(range(min(number, len(splits[split]))))
    splits.setdefault("test", splits["validation"])
    return splits


def training_texts(images: Dataset) -> list[str]:
    """
    Lists the texts to train a tokenizer on: the captions, and for scenes also questions and referring expressions, so
    that the tokenizer fits all recipes.

    Args:
        images ([`~datasets.Dataset`]):
            A split of [`load_grounded_images`].

    Returns:
        `list[str]`: The texts.

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, load_grounded_images, training_texts

    >>> images = load_grounded_images(RegionDataArguments(num_train_images=1, num_eval_images=1))
    >>> training_texts(images["train"])[-1]
    'the yellow triangle above the big yellow triangle'
    ```
    """
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
    Makes the caption pairs of every split. Negatives come from the images that look most alike.

    Args:
        args ([`RegionDataArguments`]):
            The dataset, and the folder of the feature cache if there is one.
        images ([`~datasets.DatasetDict`]):
            The result of [`load_grounded_images`].
        model ([`PreTrainedModel`]):
            Its backbone computes which photos look alike. Scenes are compared by thumbnails.
        processor ([`GroundedVisualBertProcessor`]):
            The model's processor.
        paraphrases_dir (`str`, *optional*):
            Folder with the VGP typology's `*_data.csv`. Scenes have their own paraphrases.
        pairs_per_image (`int`, *optional*):
            Number of pairs to draw per image, see [`make_caption_pairs`].

    Returns:
        [`~datasets.DatasetDict`]: Rows of [`make_caption_pairs`] for each split.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForVGP, GroundedVisualBertProcessor, VggConfig
    >>> from hf_vg.data import (
    ...     RegionDataArguments,
    ...     load_grounded_images,
    ...     train_wordpiece_tokenizer,
    ...     training_texts,
    ...     vgp_rows,
    ... )

    >>> args = RegionDataArguments(num_train_images=2, num_eval_images=2)
    >>> images = load_grounded_images(args)
    >>> tokenizer = train_wordpiece_tokenizer(training_texts(images["train"]))
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> config = GroundedVisualBertConfig(
    ...     vocab_size=len(tokenizer),
    ...     hidden_size=32,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]),
    ...     region_feature_size=16,
    ... )
    >>> model = GroundedVisualBertForVGP(config)
    >>> rows = vgp_rows(args, images, model, processor, pairs_per_image=2)
    >>> len(rows["train"]), rows["train"][0]["caption2"]
    (4, 'two yellow triangles and a small green cross')
    ```
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
            paraphrases_first=not is_scenes,  # most caption pairs of scenes have paraphrases
        )
    return DatasetDict(rows)


def _is_true(objects: Sequence, number: int, caption: str) -> bool:
    return caption_is_true(objects[number], caption)


def rows_by_novelty(rows: Dataset, images: Dataset) -> dict[str, Dataset]:
    """
    Splits rows about scenes into those with color-shape combinations seen in training, and those without.

    Args:
        rows ([`~datasets.Dataset`]):
            Rows with the index of their image as `row`.
        images ([`~datasets.Dataset`]):
            The images. Scenes have a column `unseen`.

    Returns:
        `dict[str, Dataset]`: `seen` and `unseen`, or an empty dictionary if the images are not scenes.

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, question_rows, rows_by_novelty

    >>> images, questions = question_rows(RegionDataArguments(num_train_images=1, num_eval_images=2))
    >>> sorted(rows_by_novelty(questions["test"], images["test"]))
    ['seen', 'unseen']
    ```
    """
    if "unseen" not in images.column_names:
        return {}
    is_new, parts = images["unseen"][:], {"seen": [], "unseen": []}
    for index, number in enumerate(rows["row"]):
        parts["unseen" if is_new[number] else "seen"].append(index)
    return {name: rows.select(indices) for name, indices in parts.items() if indices}


def rows_to_draw(rows: Dataset, number: int) -> list[dict[str, Any]]:
    r"""
    Chooses caption pairs for figures, spread over the dataset. From each part of the dataset it takes the first
    positive pair whose first caption has at least two phrases with boxes, or the pair with the most such phrases.

    Args:
        rows ([`~datasets.Dataset`]):
            Rows of [`make_caption_pairs`].
        number (`int`):
            Maximum number of rows to return.

    Returns:
        `list[dict]`: The chosen rows.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.data import grounded_scenes, load_scenes, make_caption_pairs, rows_to_draw

    >>> scenes = grounded_scenes(load_scenes(2, 1, 1)["train"])
    >>> pairs = make_caption_pairs(scenes, {}, nearest=np.array([[1], [0]]))
    >>> [row["row"] for row in rows_to_draw(pairs, 2)]  # one pair of each scene
    [0, 1]
    ```
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
    Loads images and questions about them.

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes` or `vqa`.
        detector (`str`, *optional*):
            Object detector that finds the regions of VQA's images.
        detections (`str`, *optional*):
            File or folder of published detections, see [`load_detections`]. Without `detector` and `detections`, the
            regions are a grid.
        max_regions (`int`, *optional*, defaults to 36):
            Maximum number of regions per image. The regions with the highest scores are kept.

    Returns:
        `tuple[DatasetDict, DatasetDict]`: The images and the questions of each split. A question has the index of its
        image as `row`.

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, question_rows

    >>> images, questions = question_rows(RegionDataArguments(num_train_images=2, num_eval_images=1))
    >>> questions["train"][0]["question"], questions["train"][0]["answers"][0]
    ('what color is the cross?', 'green')
    ```
    """
    if detector is not None and detections is not None:
        raise ValueError("`detector` and `detections` exclude each other: pass one of the two.")
    folders = _folders(args, ("vqa",), detections)
    if folders is None:
        return _scene_rows(
            args,
            "questions",
            # VQA has ten answers per question: scenes repeat the true one.
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
    Loads images and expressions that refer to one of their objects.

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes`, `refcoco`, `refcoco+` or `refcocog`.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Which splits to use, see [`load_referring`].
        test_split (`str`, *optional*, defaults to `"testA"`):
            The split to test on.
        detections (`str`, *optional*):
            File or folder of published detections, see [`load_detections`]. They are the regions of the validation and
            test images. Training images have the annotated objects as well. Without it, the regions are the annotated
            objects.

    Returns:
        `tuple[DatasetDict, DatasetDict]`: The images and the expressions of each split. An expression has the index of
        its image as `row`, and a `box` relative to the image.

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, referring_rows

    >>> images, expressions = referring_rows(RegionDataArguments(num_train_images=2, num_eval_images=1))
    >>> expressions["train"][0]["expression"]
    'the big object'
    ```
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
            raise ValueError(f"{args.dataset} ({split_by}) has no split {name!r}; its splits are {list(splits)}.")
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
    Loads the images, phrases and boxes of one split, for [`evaluate_grounding`].

    Args:
        args ([`RegionDataArguments`]):
            The dataset: `scenes`, `flickr30k_entities`, `refcoco`, `refcoco+` or `refcocog`.
        split (`str`, *optional*, defaults to `"test"`):
            `train`, `validation` or `test`. For referring expressions, the name in the files, such as `testA`.
        split_by (`str`, *optional*, defaults to `"unc"`):
            Which splits of referring expressions to use, see [`load_referring`].

    Returns:
        [`~datasets.Dataset`]: Rows of [`load_flickr30k_entities`] or [`load_referring`].

    Example:

    ```python
    >>> from hf_vg.data import RegionDataArguments, phrase_rows

    >>> rows = phrase_rows(RegionDataArguments(num_train_images=1, num_eval_images=2))
    >>> len(rows), sorted(rows[0]["phrases"][0])
    (2, ['boxes', 'caption', 'end', 'start', 'text'])
    ```
    """
    folders = _folders(args, ("flickr30k_entities", *REFERRING_DATASETS))
    if folders is not None and args.dataset in REFERRING_DATASETS:
        splits = load_referring(folders[0] / args.dataset, folders[1], split_by)
    else:
        splits = load_grounded_images(args)
    if split not in splits:
        raise ValueError(f"{args.dataset} has no split {split!r}; its splits are {', '.join(map(repr, splits))}.")
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
    Prepares the images for the collators: `image` and `boxes`, or cached `image_features` and relative `boxes`.

    Args:
        args ([`RegionDataArguments`]):
            `features` is the folder of the feature cache, if there is one.
        images ([`~datasets.Dataset`]):
            Rows with `image` and `boxes`.
        model ([`PreTrainedModel`]):
            Its backbone computes the features.
        processor ([`GroundedVisualBertProcessor`]):
            The model's processor.
        keep_images (`bool`, *optional*, defaults to `False`):
            Whether rows with features also keep their `image`, for figures.

    Returns:
        [`~datasets.Dataset`]: The rows for `images` of [`RegionCollator`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForVGP, GroundedVisualBertProcessor, VggConfig
    >>> from hf_vg.data import (
    ...     RegionDataArguments,
    ...     load_grounded_images,
    ...     region_images,
    ...     train_wordpiece_tokenizer,
    ...     training_texts,
    ... )

    >>> args = RegionDataArguments(num_train_images=2, num_eval_images=2)
    >>> images = load_grounded_images(args)
    >>> tokenizer = train_wordpiece_tokenizer(training_texts(images["train"]))
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> config = GroundedVisualBertConfig(
    ...     vocab_size=len(tokenizer),
    ...     hidden_size=32,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]),
    ...     region_feature_size=16,
    ... )
    >>> model = GroundedVisualBertForVGP(config)
    >>> sorted(region_images(args, images["train"], model, processor)[0])
    ['boxes', 'image']
    ```
    """
    for row, boxes in enumerate(images["boxes"]):
        check_boxes(boxes, f"image {row}", processor.max_boxes)
    # Images are decoded by the collator, which replaces the unreadable ones: they must not stop a training run.
    images = undecoded(images.select_columns(["image", "boxes"]))
    if args.features is None:
        return images
    if not model.config.freeze_backbone:
        raise ValueError("`features` needs a frozen backbone, but the model has `freeze_backbone: false`.")
    cache = extract_features(images, _backbone(model), processor.image_processor, args.features)
    boxes = []
    for row in images:
        width, height = image_size(row["image"])
        corners = np.asarray(row["boxes"], dtype=np.float64).reshape(-1, 4) / [width, height, width, height]
        boxes.append(corners.clip(0, 1).tolist())
    relative = images.remove_columns("boxes").add_column("boxes", boxes, feature=images.features["boxes"])
    return cache.attach(relative, columns=("boxes", "image") if keep_images else ("boxes",))


def _folders(
    args: RegionDataArguments, published: tuple[str, ...], detections: str | None = None
) -> tuple[Path, Path] | None:
    """Returns the folders of the data and of the images, or `None` for scenes, which take no files."""
    files = {"data_dir": args.data_dir, "images_dir": args.images_dir, "detections": detections}
    given = [name for name, path in files.items() if path is not None]
    if args.dataset == "scenes":
        if given:
            raise ValueError(
                f"`dataset: scenes` is generated and reads no files, but you set `{given[0]}`. To use your files, set "
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
    """Loads scenes, and makes a row of each item in one of their columns."""
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
    Splits a table with one row per text into the images, each once, and the texts with the index of their image.
    Unreadable images are skipped with their texts and reported.
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
        raise ValueError(f"None of the images in {args.dataset} can be used:\n{report}")
    return table.select(first), Dataset.from_list(rows)


def _boxes_of(images: Dataset, found: Mapping[str, list], source: str | None) -> list[list]:
    missing = [image_id for image_id in images["image_id"] if image_id not in found]
    if missing:
        raise ValueError(
            f"{source} has no boxes for {len(missing):,} of {len(images):,} images. The first is {missing[0]}."
        )
    return [found[image_id] for image_id in images["image_id"]]


def _add_regions(images: Dataset, detector: str | None, max_regions: int) -> Dataset:
    """Adds `boxes` in pixels, from an object detector or from a grid."""
    find = pipeline("object-detection", model=detector) if detector is not None else None
    propose = GroundedVisualBertProcessor.propose_regions
    pictures = (row["image"] for row in tqdm(undecoded(images), desc="Finding regions", unit="image"))
    boxes = [propose(open_image(picture), find, max_regions)[0] for picture in pictures]
    return images.add_column("boxes", boxes, feature=GROUNDED_FEATURES["boxes"])


def _with_relative_boxes(images: Mapping[str, Dataset], rows: Mapping[str, Dataset]) -> DatasetDict:
    relative = {}
    for split, table in rows.items():
        pictures = undecoded(images[split].select_columns("image"))
        sizes = [image_size(row["image"]) * 2 for row in pictures]  # width, height, width, height
        boxes = [np.divide(row["box"], sizes[row["row"]]).tolist() for row in table]
        relative[split] = table.remove_columns("box").add_column("box", boxes)
    return DatasetDict(relative)


def _backbone(model: PreTrainedModel) -> PreTrainedModel:
    backbone = backbone_of(model)
    if backbone is None:
        raise ValueError("Image features need a backbone, but the model has none (`backbone_config=None`).")
    return backbone


def _pooled_features(
    args: RegionDataArguments, table: Dataset, model: PreTrainedModel, processor: GroundedVisualBertProcessor
) -> torch.Tensor:
    """Computes the mean of each image's feature map."""
    # If training caches feature maps, they are used here too, so that each image is encoded once.
    pooling = "mean" if args.features is None else "none"
    assert args.data_dir is not None  # checked when the images were loaded
    directory = args.features or Path(args.data_dir, "features")
    cache = extract_features(table, _backbone(model), processor.image_processor, directory, pooling)
    maps = (torch.as_tensor(row["image_features"]).float() for row in cache.attach(table, columns=()))
    return torch.stack([features.reshape(-1, features.shape[-1]).mean(dim=0) for features in maps])


def _thumbnail(image: Image.Image) -> np.ndarray:
    return np.asarray(open_image(image).resize((THUMBNAIL_SIZE, THUMBNAIL_SIZE), Image.Resampling.BOX)).ravel()
