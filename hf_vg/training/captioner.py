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
"""Captioners, and the data they are trained on, made from a recipe's arguments."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Features, Image, List, Value, get_dataset_split_names
from PIL.ImageOps import mirror
from tqdm.auto import tqdm, trange
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.backbone_utils import BackboneMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ..data.caption_pairs import toss
from ..data.captions import load_captions, one_caption_a_row
from ..data.collators import CaptionCollator
from ..data.features import extract_features, load_backbone, process_state
from ..data.images import open_image
from ..data.reports import Report
from ..data.scenes import load_scenes
from ..data.streaming import CaptionStream, stream_captions
from ..evaluation.captions import caption_metrics
from .arguments import CaptionDataArguments, CaptionerArguments
from .images import build_image_processor


# What shapes the weights. A recipe's own config would otherwise change those of a checkpoint, and make new layers.
SHAPES = (
    *("backbone_config", "feature_size", "vocab_size", "embedding_size", "hidden_size", "attention_size"),
    *("num_attention_layers", "num_init_layers", "context_gate", "output_from_embedding", "output_from_context"),
    *("num_attention_heads", "intermediate_size", "encoder_layers", "decoder_layers"),
)


def load_caption_data(args: CaptionDataArguments) -> DatasetDict:
    r"""
    Loads what the arguments name, with the splits `train`, `validation` and `test`: without a validation split, one
    image in twenty is held out of the training data, and without a test split, validation is that as well.

    Args:
        args ([`CaptionDataArguments`]):
            The dataset, and how many of its images to use.
    """
    data = _load_scenes(args) if args.dataset == "scenes" else _load_files(args)
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
    return load_scenes(args.num_train_images or 4000, num_eval_images, num_eval_images, args.image_size)


def _load_files(args: CaptionDataArguments) -> DatasetDict:
    report = Report(args.dataset)
    data = load_captions(args.dataset, args.data_dir, args.images_dir, args.strict, args.check_images, report)
    say = process_state().print
    say(report.summary())
    if "validation" not in data:
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.05, seed=0).values()
        say(f"There is no validation split: {len(data['validation']):,} images are held out of the training data.")
    if "test" not in data:
        data["test"] = data["validation"]
        say("There is no test split: the model is judged on the validation split.")
    limits = {"train": args.num_train_images, "validation": args.num_eval_images, "test": args.num_eval_images}
    return DatasetDict(
        {
            split: data[split].select(range(min(limit or len(data[split]), len(data[split]))))
            for split, limit in limits.items()
        }
    )


def load_caption_stream(args: CaptionerArguments, seed: int = 0) -> dict[str, CaptionStream | Dataset]:
    r"""
    Opens `train` as a stream, of which no more than a buffer is ever in memory. `validation`, which is `test` as well,
    is as many rows as the arguments say of `eval_data_dir`, or of the other split of a dataset of the Hub.

    Args:
        args ([`CaptionerArguments`]):
            The source, and how many images to validate on: 500 by default.
        seed (`int`, *optional*, defaults to 0):
            Of the order of rows.
    """
    is_format = args.dataset in ("webdataset", "parquet")
    for name in ("data_dir", "eval_data_dir"):
        if is_format and getattr(args, name) is None:
            raise ValueError(f"`dataset: {args.dataset}` needs `{name}`, a pattern of files such as 'train-*.tar'.")
    if args.train_share is not None:
        raise ValueError("how many images a stream has is not known before: `train_share` is of data that are loaded.")
    if args.reward is not None:
        raise ValueError(
            "`reward` weighs words by how rare they are in the training data, which a stream does not tell."
        )
    open_stream = partial(stream_captions, args.dataset, strict=args.strict)
    train = open_stream(args.data_dir, shuffle_buffer=args.shuffle_buffer, seed=seed)
    splits = ["train"] if is_format else get_dataset_split_names(args.dataset)
    split = next((name for name in ("validation", "val", "dev", "test") if name in splits), splits[0])
    if split == "train" and not is_format:
        raise ValueError(f"{args.dataset} has the splits {splits}: none of them is there to validate on.")
    held_out = open_stream(args.eval_data_dir, split=split, shuffle_buffer=1).one_pass()
    features = Features(image=Image(), captions=List(Value("string")))
    validation = Dataset.from_list(list(islice(held_out, args.num_eval_images or 500)), features=features)
    process_state().print(f"Streaming {args.data_dir or args.dataset}; validating on {len(validation):,} images.")
    return {"train": train, "validation": validation, "test": validation}


def training_captions(args: CaptionerArguments, train: Dataset | CaptionStream) -> Iterator[str]:
    """The captions that a vocabulary is made of: all, or those of the first rows of a stream."""
    if isinstance(train, Dataset):
        groups = train["captions"]
    else:
        rows = islice(train.one_pass(), args.vocabulary_rows)
        groups = (row["captions"] for row in tqdm(rows, desc="Reading words", unit="row", leave=False))
    return (caption for captions in groups for caption in captions)


def unknown_words(tokenizer: PreTrainedTokenizerBase, captions: Iterable[str]) -> float:
    """The share of words that a tokenizer does not know."""
    texts = tokenizer(list(captions), add_special_tokens=False)["input_ids"]
    return np.mean([token == tokenizer.unk_token_id for text in texts for token in text])


def captioner_rows(
    args: CaptionerArguments,
    dataset: Dataset | CaptionStream,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    by_length: bool = False,
    mirror_images: bool = False,
) -> Dataset | CaptionStream:
    r"""
    Makes of a dataset the rows that [`CaptionCollator`] takes: images, or their cached features, and captions.

    Args:
        args ([`CaptionerArguments`]):
            Whether features are cached, and how long a caption may be.
        dataset ([`~datasets.Dataset`]):
            Rows with an `image` and its `captions`. A stream is given back as it is.
        model ([`PreTrainedModel`]):
            The captioner, whose backbone makes the features.
        processor ([`ProcessorMixin`]):
            The captioner's.
        by_length (`bool`, *optional*, defaults to `False`):
            Whether each caption becomes a row with its `length`, to draw batches of one length from.
        mirror_images (`bool`, *optional*, defaults to `False`):
            Whether a coin decides, in every batch that is read, if a row has the image or its mirror image.
    """
    if isinstance(dataset, CaptionStream):
        if by_length or args.features is not None:
            raise ValueError("rows of a stream are not known before: `max_length_difference` and `features` need all.")
        if mirror_images:
            raise ValueError("`mirror_images` is for data that are loaded, not for a stream.")
        return dataset
    rows = dataset.select_columns(["image", "captions"])
    cache = mirrored = None
    if args.features is not None:
        if not model.config.freeze_backbone:
            raise ValueError("`features` are of a backbone that stays as it is: set `--model.freeze_backbone true`.")
        extract = partial(extract_features, rows, _backbone_of(model), processor.image_processor, args.features)
        cache = extract()
        mirrored = extract(mirrored=True) if mirror_images else None
    if by_length:
        rows = one_caption_a_row(rows, processor.tokenizer, args.max_caption_words)
    if cache is not None:
        return cache.attach(rows, mirrored=mirrored)
    return rows.with_transform(_mirror_at_random, columns=["image", "captions"]) if mirror_images else rows


def _mirror_at_random(batch: dict[str, list]) -> dict[str, list]:
    images = [open_image(image) for image in batch["image"]]
    coins = toss(batch["captions"])
    return {**batch, "image": [mirror(image) if coin else image for image, coin in zip(images, coins, strict=True)]}


def caption_scorer(
    args: CaptionerArguments, rows: Dataset, processor: ProcessorMixin, batch_size: int
) -> Callable[[PreTrainedModel], dict[str, float]] | None:
    r"""
    What [`VgTrainer`] scores a captioner with while it is trained: captions of the first `args.num_scored_images`.

    Args:
        args ([`CaptionerArguments`]):
            How many images, and how captions are decoded.
        rows ([`~datasets.Dataset`]):
            Of [`captioner_rows`], one an image.
        processor ([`ProcessorMixin`]):
            The captioner's.
        batch_size (`int`):
            Images that are captioned together.
    """
    rows = rows.select(range(min(args.num_scored_images, len(rows))))
    if not len(rows):
        return None
    collator = CaptionCollator(processor)

    def score(model: PreTrainedModel) -> dict[str, float]:
        texts, references = [], []
        for start in trange(0, len(rows), batch_size, desc="Captioning", unit="batch", leave=False):
            batch = [rows[index] for index in range(start, min(start + batch_size, len(rows)))]
            inputs = {name: tensor.to(model.device) for name, tensor in collator(batch).items() if name != "labels"}
            sequences = model.generate(**inputs, do_sample=False)
            texts += processor.batch_decode(sequences, skip_special_tokens=True)
            references += [row["captions"] for row in batch]
        return caption_metrics(texts, references)

    return score


def build_captioner(args: CaptionerArguments, tokenizer) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Makes an untrained captioner, but for its backbone if `args` name one, and its processor.

    Args:
        args ([`CaptionerArguments`]):
            The captioner's type, the fields of its config, and its backbone or the size of images.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Gives the size of the vocabulary and the special tokens.
    """
    fields = dict(args.model)
    if args.backbone is not None:
        backbone = load_backbone(args.backbone)
        fields |= {"backbone_config": backbone.config, "feature_size": backbone.channels[-1]}
    config = AutoConfig.for_model(
        args.model_type,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        unk_token_id=tokenizer.unk_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        **fields,
    )
    if args.backbone is None and config.backbone_config is not None and config.freeze_backbone:
        raise ValueError(
            "the backbone would stay as it was drawn at random: give a pretrained one with `--backbone`, or train it "
            "with `--model.freeze_backbone false`."
        )
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    _set_decoding(args, model)
    if args.backbone is not None:
        _backbone_of(model).load_state_dict(backbone.state_dict())
    return model, PROCESSOR_MAPPING[type(config)](build_image_processor(args), tokenizer)


def load_captioner(args: CaptionerArguments) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Loads the captioner of `args.checkpoint` and its processor, to go on from: with its own words, image processor and
    sizes, and with the other fields of `args.model`. It decodes as before, unless the arguments say how.

    Args:
        args ([`CaptionerArguments`]):
            The checkpoint, and the fields of its config to change.
    """
    if args.backbone is not None:
        raise ValueError(
            f"`backbone` is for a new captioner: the checkpoint {args.checkpoint} has one of its own. Leave it out, "
            "or take it back with `--backbone null`."
        )
    kept = {name: value for name, value in args.model.items() if name not in SHAPES}
    model = AutoModelForImageTextToText.from_pretrained(args.checkpoint, dtype=torch.float32, **kept)
    _set_decoding(args, model)
    return model, AutoProcessor.from_pretrained(args.checkpoint)


def _set_decoding(args: CaptionerArguments, model: PreTrainedModel):
    # Who loads the checkpoint gets captions as they were scored.
    settings = model.generation_config
    settings.max_new_tokens = args.max_new_tokens or settings.max_new_tokens or 30
    settings.num_beams = args.num_beams or settings.num_beams or 1
    if args.length_penalty is not None:
        settings.length_penalty = args.length_penalty
    if settings.num_beams == 1:
        settings.length_penalty = None  # else transformers warns of it whenever the checkpoint is loaded


def _backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    return next(module for module in model.modules() if isinstance(module, BackboneMixin))
