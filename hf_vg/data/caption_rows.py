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
"""Loads the caption data of a recipe and prepares the rows that each model is trained on."""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Features, Image, List, Value, get_dataset_split_names
from PIL.ImageOps import mirror
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from .arguments import CaptionDataArguments, CaptionerDataArguments
from .caption_pairs import fixed_caption_pairs
from .captions import load_captions, one_caption_a_row
from .draws import toss
from .entities import grounded_scenes
from .feature_extraction import backbone_of, extract_features
from .features import FeatureCache, undecoded
from .images import mirror_boxes, open_or_report
from .loading_report import LoadingReport
from .processes import process_state
from .scenes import load_scenes
from .streaming import CaptionStream, stream_captions


def load_caption_data(args: CaptionDataArguments, phrases: bool = False) -> DatasetDict:
    r"""
    Loads the caption data that a recipe's arguments describe. If there is no validation split, 5% of the training
    images are held out. If there is no test split, the validation split is used for testing too.

    Args:
        args ([`CaptionDataArguments`]):
            The dataset, and how many of its images to use.
        phrases (`bool`, *optional*, defaults to `False`):
            Whether to add the columns `phrases` and `boxes` of [`load_flickr30k_entities`] to the training rows.

    Returns:
        [`~datasets.DatasetDict`]: The splits `train`, `validation` and `test`, with the columns `image_id`, `image`
        and `captions`. Scenes have more columns, see [`load_scenes`].

    Example:

    ```python
    >>> from hf_vg.data import CaptionDataArguments, load_caption_data

    >>> data = load_caption_data(CaptionDataArguments(num_train_images=4, num_eval_images=2))
    >>> {split: len(rows) for split, rows in data.items()}
    {'train': 4, 'validation': 2, 'test': 2}
    ```
    """
    data = _load_scenes(args) if args.dataset == "scenes" else _load_files(args, phrases)
    if phrases and args.dataset == "scenes":
        data["train"] = grounded_scenes(data["train"])
    if args.train_share is not None:
        if not 0 < args.train_share <= 1:
            raise ValueError(f"`train_share` must be greater than 0 and at most 1, got {args.train_share}.")
        number = max(1, round(args.train_share * len(data["train"])))
        drawn = np.random.default_rng(0).permutation(len(data["train"]))[:number]
        data["train"] = data["train"].select(np.sort(drawn))
        process_state().print(f"Training on {number:,} images, a share of {args.train_share:g}.")
    return data


def _load_scenes(args: CaptionDataArguments) -> DatasetDict:
    num_eval_images = args.num_eval_images or 500
    assert args.image_size is not None  # set by `__post_init__`
    return load_scenes(args.num_train_images or 4000, num_eval_images, num_eval_images, args.image_size)


def _load_files(args: CaptionDataArguments, phrases: bool) -> DatasetDict:
    say = process_state().print
    assert args.dataset is not None  # set by `__post_init__`
    report = LoadingReport(args.dataset)
    data = load_captions(args.dataset, args.data_dir, args.images_dir, args.strict, args.check_images, report, phrases)
    say(f"Found {args.dataset}: {args.data_dir or 'on the Hub'}")
    if not report.kinds:  # otherwise the summary is already in the log
        say(report.summary())
    if "train" not in data:
        raise ValueError(f"{report.name}: there is no training split, only {', '.join(data)}.")
    if "validation" not in data:
        if len(data["train"]) < 2:
            raise ValueError(f"{report.name}: one image is not enough, because some are held out for validation.")
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.05, seed=0).values()
        say(f"There is no validation split: {len(data['validation']):,} training images are held out for it.")
    limits = {"train": args.num_train_images, "validation": args.num_eval_images, "test": args.num_eval_images}
    splits = DatasetDict()
    for split, limit in limits.items():
        if split in data:
            number = min(limit or len(data[split]), len(data[split]))
            if number < len(data[split]):
                say(f"Using the first {number:,} of {len(data[split]):,} images of the {split} split.")
            splits[split] = data[split].select(range(number))
    if "test" not in splits:
        splits["test"] = splits["validation"]
        say("There is no test split: the model is tested on the validation split.")
    return splits


def split_name(data: Mapping[str, Any], split: str = "test") -> str:
    """
    Returns the name under which to report scores on a split: `"validation"` for a test split that is the validation
    split, because the data has no test split.

    Args:
        data (`Mapping[str, Dataset]`):
            The splits, of [`load_caption_data`], [`load_caption_stream`] or [`load_grounded_images`].
        split (`str`, *optional*, defaults to `"test"`):
            The split that was scored.

    Returns:
        `str`: The name.

    Example:

    ```python
    >>> from hf_vg.data import CaptionDataArguments, load_caption_data, split_name

    >>> split_name(load_caption_data(CaptionDataArguments(num_train_images=4, num_eval_images=2)))
    'test'
    ```
    """
    return "validation" if data[split] is data["validation"] else split


def load_caption_stream(args: CaptionerDataArguments, seed: int = 0) -> dict[str, CaptionStream | Dataset]:
    r"""
    Opens the training data as a stream. Only the shuffle buffer is in memory. The validation split is loaded: it is
    the first rows of `eval_data_dir`, or of the validation or test split of a dataset on the Hub.

    Args:
        args ([`CaptionerDataArguments`]):
            The source, and the number of validation images (500 by default).
        seed (`int`, *optional*, defaults to 0):
            Seed of the row order.

    Returns:
        `dict[str, CaptionStream | Dataset]`: The stream `train`, and the dataset `validation`, which is also `test`.

    Example:

    ```python
    >>> import tarfile, tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from hf_vg.data import CaptionerDataArguments, load_caption_stream

    >>> tmp = tempfile.TemporaryDirectory()
    >>> folder = Path(tmp.name)
    >>> Image.new("RGB", (64, 64)).save(folder / "dog.jpg")
    >>> _ = (folder / "dog.txt").write_text("a dog runs")
    >>> with tarfile.open(folder / "0.tar", "w") as tar:
    ...     for name in ("dog.jpg", "dog.txt"):
    ...         tar.add(folder / name, arcname=name)
    >>> args = CaptionerDataArguments("webdataset", tmp.name, streaming=True, eval_data_dir=tmp.name)
    >>> data = load_caption_stream(args)  # doctest: +ELLIPSIS
    Streaming ...; validating on 1 images.
    >>> next(iter(data["train"]))["captions"]
    ['a dog runs']
    ```
    """
    assert args.dataset is not None  # set by `__post_init__`
    is_format = args.dataset in ("webdataset", "parquet")
    for name in ("data_dir", "eval_data_dir"):
        if is_format and getattr(args, name) is None:
            raise ValueError(f"`dataset: {args.dataset}` needs `{name}`, a file pattern such as 'train-*.tar'.")
    if args.train_share is not None:
        raise ValueError("`train_share` does not work with `streaming`: the number of images in a stream is unknown.")
    open_stream = partial(stream_captions, args.dataset, strict=args.strict)
    train = open_stream(_pattern(args.dataset, args.data_dir), shuffle_buffer=args.shuffle_buffer, seed=seed)
    splits = ["train"] if is_format else get_dataset_split_names(args.dataset)
    split = next((name for name in ("validation", "val", "dev", "test") if name in splits), splits[0])
    if split == "train" and not is_format:
        raise ValueError(f"{args.dataset} has the splits {splits}: there is no split for validation.")
    held_out = open_stream(_pattern(args.dataset, args.eval_data_dir), split=split, shuffle_buffer=1).one_pass()
    features = Features(image=Image(), captions=List(Value("string")))
    validation = Dataset.from_list(list(islice(held_out, args.num_eval_images or 500)), features=features)
    process_state().print(f"Streaming {args.data_dir or args.dataset}; validating on {len(validation):,} images.")
    return {"train": train, "validation": validation, "test": validation}


def _pattern(dataset: str, files: str | None) -> str | None:
    """Returns the file pattern of a stream. A folder stands for all its files."""
    suffix = {"webdataset": "tar", "parquet": "parquet"}.get(dataset)
    return f"{files}/*.{suffix}" if files is not None and suffix and os.path.isdir(files) else files


def training_captions(args: CaptionerDataArguments, train: Dataset | CaptionStream) -> Iterator[str]:
    """
    Iterates over the captions to build a vocabulary from.

    Args:
        args ([`CaptionerDataArguments`]):
            `vocabulary_rows` limits how many rows of a stream are read.
        train ([`~datasets.Dataset`] or `CaptionStream`):
            The training data.

    Returns:
        `Iterator[str]`: All captions of a dataset, or the captions of a stream's first rows.

    Example:

    ```python
    >>> from hf_vg.data import CaptionerDataArguments, load_caption_data, training_captions

    >>> args = CaptionerDataArguments(num_train_images=2, num_eval_images=1)
    >>> next(training_captions(args, load_caption_data(args)["train"]))
    'a large yellow triangle and a small yellow triangle'
    ```
    """
    if isinstance(train, Dataset):
        groups = train["captions"]
    else:
        rows = islice(train.one_pass(), args.vocabulary_rows)
        groups = (row["captions"] for row in tqdm(rows, desc="Reading words", unit="row", leave=False))
    return (caption for captions in groups for caption in captions)


def unknown_words(tokenizer: PreTrainedTokenizerBase, captions: Iterable[str]) -> float:
    """
    Computes the share of words that a tokenizer does not know.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]):
            A tokenizer with an unknown token.
        captions (`Iterable[str]`):
            The captions to tokenize.

    Returns:
        `float`: The share of tokens that are the unknown token.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer, unknown_words

    >>> tokenizer = train_word_tokenizer(["a dog runs"], min_frequency=1)
    >>> float(unknown_words(tokenizer, ["a dog", "a cat"]))
    0.25
    ```
    """
    texts = tokenizer(list(captions), add_special_tokens=False)["input_ids"]
    return np.mean([token == tokenizer.unk_token_id for text in texts for token in text])


def captioner_rows(
    args: CaptionerDataArguments,
    dataset: Dataset | CaptionStream,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    by_length: bool = False,
    mirror_images: bool = False,
) -> Dataset | CaptionStream:
    r"""
    Prepares the rows for [`CaptionCollator`]: captions with images or cached features.

    Args:
        args ([`CaptionerDataArguments`]):
            Whether to cache features, and the longest caption to keep.
        dataset ([`~datasets.Dataset`] or `CaptionStream`):
            Rows with an `image` and its `captions`. A stream is returned unchanged.
        model ([`PreTrainedModel`]):
            The captioner. Its backbone computes the features.
        processor ([`ProcessorMixin`]):
            The captioner's processor.
        by_length (`bool`, *optional*, defaults to `False`):
            Whether to make one row per caption with its `length`, as [`LengthBatchSampler`] needs.
        mirror_images (`bool`, *optional*, defaults to `False`):
            Whether to flip images left to right at random, each time a row is read.

    Returns:
        [`~datasets.Dataset`] or `CaptionStream`: Rows with `captions` and `image` or `image_features`.

    Example:

    ```python
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor
    >>> from hf_vg.data import CaptionerDataArguments, captioner_rows, load_caption_data
    >>> from hf_vg.examples import checkpoint

    >>> model = AutoModelForImageTextToText.from_pretrained(checkpoint("spatial_transformer"))
    >>> processor = AutoProcessor.from_pretrained(checkpoint("spatial_transformer"))
    >>> args = CaptionerDataArguments(num_train_images=2, num_eval_images=1)
    >>> rows = captioner_rows(args, load_caption_data(args)["train"], model, processor, by_length=True)
    >>> len(rows), sorted(rows[0])
    (10, ['captions', 'image', 'length'])
    ```
    """
    if isinstance(dataset, CaptionStream):
        if by_length or args.features is not None:
            raise ValueError("`max_length_difference` and `features` do not work with `streaming`.")
        if mirror_images:
            raise ValueError("`mirror_images` does not work with `streaming`.")
        return dataset
    grounding = ["phrases", "boxes"] if "boxes" in dataset.column_names else []
    if grounding and by_length:
        raise ValueError("`max_length_difference` makes one row per caption, but phrases need one row per image.")
    rows = undecoded(dataset.select_columns(["image", "captions", *grounding]))
    say_long_captions(chain.from_iterable(rows["captions"]), processor.tokenizer, args.max_caption_words)
    cache = mirrored = None
    if args.features is not None:
        cache = _features_of(args, rows, model, processor)
        mirrored = _features_of(args, rows, model, processor, mirrored=True) if mirror_images else None
    if by_length:
        rows = one_caption_a_row(rows, processor.tokenizer, args.max_caption_words)
    if cache is not None:
        sizes = ["image_size"] if grounding else []  # boxes are in pixels, and the images are not opened again
        return cache.attach(rows, columns=["captions", *grounding, *sizes], mirrored=mirrored)
    if mirror_images:
        return rows.with_transform(_mirror_at_random, columns=["image", "captions", *grounding])
    return rows


def say_long_captions(
    captions: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_words: int | None = None
) -> None:
    """
    Prints how many captions are left out or cut because they are too long.

    Args:
        captions (`Iterable[str]`):
            The training captions.
        tokenizer ([`PreTrainedTokenizerBase`]):
            Captions longer than its `model_max_length` are cut.
        max_words (`int`, *optional*):
            Captions with more words are left out.

    Example:

    ```python
    >>> from hf_vg.data import say_long_captions, train_word_tokenizer

    >>> captions = ["a dog", "a dog runs on the grass"]
    >>> say_long_captions(captions, train_word_tokenizer(captions), max_words=4)
    1 of 2 captions have more than 4 words and are left out.
    ```
    """
    captions = list(captions)
    words = [len(ids) for ids in tokenizer(captions, add_special_tokens=False)["input_ids"]] if captions else []
    longest = tokenizer.model_max_length - 1  # one position is for the end token
    say, total = process_state().print, f"{len(captions):,}"
    if max_words is not None and (number := sum(n > max_words for n in words)):
        say(f"{number:,} of {total} captions have more than {max_words} words and are left out.")
    if number := sum(longest < n <= (max_words or n) for n in words):
        say(f"{number:,} of {total} captions are cut to {longest} words.")


def _mirror_at_random(batch: dict[str, list]) -> dict[str, list]:
    images = []
    for row, (source, coin) in enumerate(zip(batch["image"], toss(batch["captions"]), strict=True)):
        image = open_or_report(source) if coin else None
        # The collator opens the other images and replaces the unreadable ones.
        images.append(source if image is None else mirror(image))
        if image is not None and "boxes" in batch:
            batch["boxes"][row] = mirror_boxes(batch["boxes"][row], image.width)
    return {**batch, "image": images}


def vse_rows(
    args: CaptionDataArguments,
    dataset: Dataset,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    one_a_caption: bool,
) -> Dataset:
    r"""
    Prepares the rows for [`PairCollator`]: captions with images or cached features.

    Args:
        args ([`CaptionDataArguments`]):
            Whether to cache features.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`, its `captions` and its `image_id`.
        model ([`PreTrainedModel`]):
            The model. Its backbone computes the features.
        processor ([`ProcessorMixin`]):
            The model's processor.
        one_a_caption (`bool`):
            Whether to make one row per caption, with its `length`, instead of one row per image. Evaluation and
            [`LengthBatchSampler`] need it.

    Returns:
        [`~datasets.Dataset`]: Rows with `image_id`, `captions` and `image` or `image_features`.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import VseScnlmConfig, VseScnlmModel, VseScnlmProcessor
    >>> from hf_vg.data import CaptionDataArguments, load_caption_data, train_word_tokenizer, vse_rows

    >>> args = CaptionDataArguments(num_train_images=2, num_eval_images=1)
    >>> train = load_caption_data(args)["train"]
    >>> tokenizer = train_word_tokenizer(caption for captions in train["captions"] for caption in captions)
    >>> model = VseScnlmModel(VseScnlmConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16))
    >>> processor = VseScnlmProcessor(ViTImageProcessorPil(), tokenizer)
    >>> len(vse_rows(args, train, model, processor, one_a_caption=True))
    10
    ```
    """
    rows = undecoded(dataset.select_columns(["image_id", "image", "captions"]))
    say_long_captions(chain.from_iterable(rows["captions"]), processor.tokenizer)
    cache = None
    if args.features is not None:
        cache = _features_of(args, rows, model, processor, pooling="mean")
    if one_a_caption:
        rows = one_caption_a_row(rows, processor.tokenizer)
    return rows if cache is None else cache.attach(rows, columns=("image_id", "captions"))


def grounded_encoder_rows(
    args: CaptionDataArguments,
    dataset: Dataset,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    fixed: bool = False,
) -> Dataset:
    r"""
    Prepares the rows for [`CaptionPairCollator`]: captions with images or cached features.

    Args:
        args ([`CaptionDataArguments`]):
            Whether to cache features.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image_id`, an `image` and its `captions`.
        model ([`PreTrainedModel`]):
            The encoder. Its backbone, if it has one, computes the features.
        processor ([`ProcessorMixin`]):
            The encoder's processor.
        fixed (`bool`, *optional*, defaults to `False`):
            Whether each row always gives the same two captions, see [`fixed_caption_pairs`].

    Returns:
        [`~datasets.Dataset`]: Rows with `image_id`, captions, and `image` or `image_features` if the model has a
        backbone.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import (
    ...     SelfAttnGroundedEncoderConfig,
    ...     SelfAttnGroundedEncoderModel,
    ...     SelfAttnGroundedEncoderProcessor,
    ... )
    >>> from hf_vg.data import CaptionDataArguments, grounded_encoder_rows, load_caption_data, train_word_tokenizer

    >>> args = CaptionDataArguments(num_train_images=2, num_eval_images=1)
    >>> train = load_caption_data(args)["train"]
    >>> tokenizer = train_word_tokenizer(caption for captions in train["captions"] for caption in captions)
    >>> config = SelfAttnGroundedEncoderConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16)
    >>> processor = SelfAttnGroundedEncoderProcessor(ViTImageProcessorPil(), tokenizer)
    >>> rows = grounded_encoder_rows(args, train, SelfAttnGroundedEncoderModel(config), processor, fixed=True)
    >>> sorted(rows[0])  # this model has no backbone, so it needs no images
    ['caption', 'image_id', 'target_caption']
    ```
    """
    sees_images = backbone_of(model) is not None
    rows = dataset.select_columns(["image_id", "captions", *(["image"] if sees_images else [])])
    rows = undecoded(rows) if sees_images else rows
    say_long_captions(chain.from_iterable(rows["captions"]), processor.tokenizer)
    cache = None
    if args.features is not None and sees_images:
        cache = _features_of(args, rows, model, processor, pooling="mean")
    captions = ["captions"]
    if fixed:
        rows, captions = fixed_caption_pairs(rows), ["caption", "target_caption"]
    return rows if cache is None else cache.attach(rows, columns=["image_id", *captions])


def _features_of(
    args: CaptionDataArguments, rows: Dataset, model: PreTrainedModel, processor: ProcessorMixin, **options: Any
) -> FeatureCache:
    assert args.features is not None
    if not model.config.freeze_backbone:
        raise ValueError("`features` need a frozen backbone: set `--model.freeze_backbone true`.")
    return extract_features(
        rows,
        backbone_of(model),
        processor.image_processor,
        args.features,
        strict=args.strict,
        dtype=getattr(torch, args.features_dtype),
        **options,
    )
