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
"""Arguments of the recipes: a YAML file, and flags that win over it."""

import itertools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..data.arguments import CaptionDataArguments, CaptionerDataArguments
from ..data.region_rows import RegionDataArguments
from ..data.spelling import did_you_mean


@dataclass
class DryRunArguments:
    """
    Arguments of every recipe.

    Example:

    ```python
    >>> from hf_vg.training import DryRunArguments
    >>> DryRunArguments().dry_run
    False
    ```
    """

    dry_run: bool = field(
        default=False,
        metadata={"help": "Run everything once at a tiny size, in a temporary folder that is deleted at the end."},
    )


@dataclass
class ModelArguments:
    """
    Arguments with fields of a model's config.

    Example:

    ```python
    >>> from hf_vg.training import ModelArguments
    >>> ModelArguments(model={"hidden_size": 8}).model
    {'hidden_size': 8}
    ```
    """

    model_type: ClassVar[str]
    model: dict = field(
        default_factory=dict,
        metadata={
            "help": "Fields of the model's config. On the command line: --model.FIELD VALUE. A checkpoint keeps its "
            "sizes."
        },
    )


@dataclass
class SentenceEncoderArguments(ModelArguments, CaptionDataArguments):
    """Arguments of recipes that train sentence encoders."""

    min_word_frequency: int = field(default=1, metadata={"help": "Words that are less frequent become unknown words."})
    glove: str | None = field(
        default=None, metadata={"help": "Word vectors in GloVe's text format to initialize embeddings with."}
    )


GROUNDED_DATASETS = ("scenes", "flickr30k_entities")  # which say what their phrases show


@dataclass
class CaptionerArguments(ModelArguments, CaptionerDataArguments):
    """
    Arguments of `recipes/train_captioner.py`.

    Example:

    ```python
    >>> from hf_vg.training import CaptionerArguments
    >>> args = CaptionerArguments(model_type="spatial_transformer_captioner")
    >>> args.dataset, args.image_size
    ('scenes', 64)
    ```
    """

    model_type: str = field(  # type: ignore[misc]  # other recipes have a fixed type
        default="show_attend_tell", metadata={"help": "Which captioner to train."}
    )
    checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "Trained captioner to fine-tune: a folder, or any captioner or chat model of the Hub. It keeps "
            "its words, backbone and sizes. By default a new captioner is trained."
        },
    )
    vocab_size: int = field(
        default=10000, metadata={"help": "Maximum number of words to keep, including special tokens."}
    )
    min_word_frequency: int = field(default=1, metadata={"help": "Words that are less frequent become unknown words."})
    num_beams: int | None = field(
        default=None,
        metadata={
            "help": "Number of beams for the captions that are scored, saved with the checkpoint. Defaults to that of "
            "`checkpoint`, or 1, which is greedy search."
        },
    )
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "A beam is ranked by its log probability divided by its length to this power. 1 ranks by the mean "
            "per word, 0 by the sum, which prefers shorter captions. Defaults to that of `checkpoint`, or 1."
        },
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Maximum length of a caption. Defaults to that of `checkpoint`, or 30."},
    )
    reward: str | None = field(
        default=None,
        metadata={
            "help": "Train for this score of generated captions, instead of the captions of people (self-critical "
            "training): `cider`. Start from a trained captioner, see `checkpoint`.",
            "choices": ["cider"],
        },
    )
    num_candidates: int = field(
        default=5, metadata={"help": "Number of captions to compare per image, with `reward`."}
    )
    attention_supervision: str = field(
        default="none",
        metadata={
            "help": "Teach words where to look by the boxes of their phrases, for `scenes` and `flickr30k_entities`: "
            "`direct` supervises attention, `rollout` attention rollout.",
            "choices": ["none", "direct", "rollout"],
        },
    )
    attention_weight: float = field(default=1.0, metadata={"help": "Weight of the loss of attention."})
    attention_layers: list[int] | None = field(
        default=None,
        metadata={"help": "Layers to supervise, of those that look at the image; -1 is the last. All by default."},
    )
    attention_heads: list[int] | None = field(default=None, metadata={"help": "Heads to supervise. All by default."})
    distillation_weight: float = field(
        default=0.0,
        metadata={"help": "Weight of staying near what the captioner said before training. For a `checkpoint`."},
    )
    distillation_temperature: float = field(
        default=2.0, metadata={"help": "Temperature of the words' probabilities in distillation."}
    )
    num_scored_images: int = field(
        default=500,
        metadata={
            "help": "Number of validation images to caption in every evaluation, for `eval_bleu4`, `eval_cider_d` and "
            "others. 0 captions none."
        },
    )
    num_figures: int = field(default=6, metadata={"help": "Number of test images to draw with a map for each word."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward is not None and (self.attention_supervision != "none" or self.distillation_weight):
            raise ValueError("`reward` is a training of its own: leave out `attention_supervision` and distillation.")
        if self.streaming and self.reward is not None:
            raise ValueError(
                "`reward` needs word counts of all training captions, which a stream does not have before it is read."
            )
        if self.attention_supervision != "none":
            if self.dataset not in GROUNDED_DATASETS:
                raise ValueError(
                    f"`attention_supervision` needs boxes: `dataset` must be {' or '.join(GROUNDED_DATASETS)}, got "
                    f"{self.dataset}."
                )
            for name, value in {"reward": self.reward, "streaming": self.streaming}.items():
                if value:
                    raise ValueError(f"`attention_supervision` does not go with `{name}`: leave one of them out.")

    def supervision(self) -> dict[str, Any]:
        """The arguments of [`AttentionSupervisionMixin`]."""
        names = ("attention_supervision", "attention_weight", "attention_layers", "attention_heads")
        return {name: getattr(self, name) for name in (*names, "distillation_weight", "distillation_temperature")}


@dataclass
class FeatureArguments(DryRunArguments, CaptionDataArguments):
    """
    Arguments of `recipes/extract_features.py`.

    Example:

    ```python
    >>> from hf_vg.training import FeatureArguments
    >>> FeatureArguments(dataset="scenes", pooling="mean").pooling
    'mean'
    ```
    """

    pooling: str = field(
        default="none",
        metadata={
            "help": "`none` keeps the feature map. `mean` averages it over locations; fc6 and fc7 need this.",
            "choices": ["none", "mean"],
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Number of images per forward pass."})
    num_workers: int | None = field(
        default=None,
        metadata={"help": "Number of processes that decode images. Defaults to one per free core, at most 8."},
    )


@dataclass
class VgTrainingArguments(DryRunArguments, TrainingArguments):
    """
    The training arguments of transformers, and those that [`VgTrainer`] adds.

    Example:

    ```python
    >>> from hf_vg.training import VgTrainingArguments
    >>> args = VgTrainingArguments("outputs", max_length_difference=0, backbone_learning_rate=1e-5)
    >>> args.max_length_difference
    0
    ```
    """

    max_length_difference: int | None = field(
        default=None,
        metadata={
            "help": "Maximum difference of lengths in a batch, by the column `length_column_name`. 0 puts only equal "
            "lengths in a batch. By default `train_sampling_strategy` decides."
        },
    )
    backbone_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the image network. It is trained with `--model.freeze_backbone false`."},
    )
    early_stopping_patience: int = field(
        default=0,
        metadata={
            "help": "Stop after this number of evaluations in a row without a better `metric_for_best_model`. 0 never "
            "stops early."
        },
    )
    restart: bool = field(
        default=False,
        metadata={"help": "Delete the checkpoints in `output_dir` and train from the beginning."},
    )
    # A parameter without gradient is a bug that should raise an error. Searching for it slows every step down.
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Whether DistributedDataParallel searches for parameters without gradient."}
    )
    # The settings of a recipe, saved with every checkpoint. See `parse_arguments`.
    recipe_settings: dict = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise `bf16` is refused, and several processes do not find each other
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                self.ddp_backend = self.ddp_backend or "gloo"  # type: ignore[has-type]  # of `TrainingArguments`
        super().__post_init__()
        if self.accelerator_config.dispatch_batches is None:
            # Each process reads its own rows of a stream: batches of different lengths cannot be joined and split.
            self.accelerator_config.dispatch_batches = False
        if self.early_stopping_patience and not self.load_best_model_at_end:
            raise ValueError(
                "`early_stopping_patience` needs the best checkpoint: set `load_best_model_at_end: true` too, and "
                "`metric_for_best_model` if it is not the loss."
            )


@dataclass
class CaptionReportArguments(DryRunArguments, CaptionDataArguments):
    """
    Arguments of `recipes/evaluate_captioner.py`.

    Example:

    ```python
    >>> from hf_vg.training import CaptionReportArguments
    >>> CaptionReportArguments(num_beams=5).split
    'test'
    ```
    """

    checkpoint: str = field(
        default="outputs/show_attend_tell_scenes",
        metadata={"help": "The captioner: a folder, or a model of the Hub."},
    )
    split: str = field(default="test", metadata={"help": "`train`, `validation` (or `dev`) or `test`."})
    model: dict = field(
        default_factory=dict,
        metadata={"help": "Fields of the checkpoint's config to change, such as --model.hard_decoding argmax."},
    )
    num_beams: int | None = field(
        default=None, metadata={"help": "Number of beams; 1 is greedy search. Defaults to that of the checkpoint."}
    )
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "Ranks beams by their mean per word (1), by their sum (0), or in between. Defaults to that of the "
            "checkpoint."
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Number of images to caption at a time."})
    metrics: list[str] = field(
        default_factory=lambda: ["bleu", "rouge", "cider", "diversity"],
        metadata={
            "help": "Any of bleu, bleu_no_bp, bleu_punctuation, rouge, cider, meteor, meteor_python and diversity."
        },
    )
    num_samples: int = field(
        default=1000, metadata={"help": "Number of bootstrap samples for the confidence intervals."}
    )
    num_examples: int = field(default=5, metadata={"help": "Number of best and of worst captions to show."})
    entities_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of Flickr30k Entities, whose boxes show where nouns should look. Scenes have boxes."
        },
    )
    num_deletion_images: int = field(
        default=0,
        metadata={
            "help": "Test whether maps can be believed on this many images: hide what they mark, and measure how far "
            "the probability of each word falls. About 80 more passes per image."
        },
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of the report. Defaults to `report` in the folder of the checkpoint."}
    )


@dataclass
class GroundingReportArguments(DryRunArguments, RegionDataArguments):
    """
    Arguments of `recipes/evaluate_grounding.py`.

    Example:

    ```python
    >>> from hf_vg.training import GroundingReportArguments
    >>> GroundingReportArguments().methods
    ['attention']
    ```
    """

    checkpoint: str = field(
        default="outputs/show_attend_tell_scenes",
        metadata={"help": "The captioner or chat model: a folder, or a model of the Hub."},
    )
    split: str = field(
        default="test",
        metadata={"help": "`train`, `validation` or `test`; for RefCOCO a name of its files, such as `testA`."},
    )
    split_by: str = field(
        default="unc", metadata={"help": "Whose splits of RefCOCO to use: `unc`, `google`, or `umd` for RefCOCOg."}
    )
    methods: list[str] = field(
        default_factory=lambda: ["attention"],
        metadata={"help": "Explainers to judge: any of attention, gradient, rollout and occlusion."},
    )
    prompt: str | None = field(
        default=None,
        metadata={"help": "What a chat model is asked. By default to describe the image."},
    )
    captions_per_image: int = field(default=1, metadata={"help": "Captions to read of each image, at most."})
    words: str | None = field(
        default=None,
        metadata={
            "help": "Map of a phrase: that of its `last` word, or the mean of `all`. By default `last`, and `all` for "
            "referring expressions.",
            "choices": ["last", "all"],
        },
    )
    deletion: bool = field(
        default=False, metadata={"help": "Also hide what the maps mark, and measure how far words become less likely."}
    )
    batch_size: int = field(default=32, metadata={"help": "Number of images with hidden parts per forward pass."})
    num_samples: int = field(
        default=1000, metadata={"help": "Number of bootstrap samples for the confidence intervals."}
    )
    metrics_file: str | None = field(default=None, metadata={"help": "JSON file to write the metrics to."})


def parse_arguments(
    dataclass_types: Sequence[type], default_config: str | Path | None = None, args: Sequence[str] | None = None
) -> tuple[Any, ...]:
    r"""
    Parses `--config FILE.yaml` and flags into dataclasses. Flags override the file, and the file overrides defaults.

    Args:
        dataclass_types (`Sequence[type]`):
            The dataclasses. No two of them have a field of the same name. Fields of type `dict` are a mapping in the
            file, and `--field.key value` on the command line. `--field null` removes a value of the file.
        default_config (`str` or `Path`, *optional*):
            The file that is read when there is no `--config`.
        args (`Sequence[str]`, *optional*, defaults to the command line):
            The arguments.

    Returns:
        `tuple`: An instance of each dataclass.

    Example:

    ```python
    >>> from hf_vg.training import CaptionerArguments, parse_arguments
    >>> flags = ["--dataset", "scenes", "--model.hidden_size", "8"]
    >>> (args,) = parse_arguments([CaptionerArguments], args=flags)
    >>> args.model
    {'hidden_size': 8}
    ```
    """
    config_parser = ArgumentParser(add_help=False)
    config_parser.add_argument("--config", default=default_config, help="YAML file with any of the arguments.")
    known, flags = config_parser.parse_known_args(sys.argv[1:] if args is None else args)
    flags = without_debug(flags)
    values = read_config(known.config) if known.config is not None else {}

    # Not `field.type`, which `HfArgumentParser` changes.
    hints = {name: hint for cls in dataclass_types for name, hint in get_type_hints(cls).items()}
    types_of = {f.name: hints[f.name] for cls in dataclass_types for f in fields(cls) if f.init}
    about_debug = "Errors are one line. Add --debug at the end to see where an error happened."
    parser = _Parser(dataclass_types, parents=[config_parser], allow_abbrev=False, epilog=about_debug)
    for name, value in values.items():
        if name not in types_of:
            parser.error(f"{known.config}: unknown argument {name}{did_you_mean(name, types_of)}")
        if types_of[name] is dict and not isinstance(value, dict):
            parser.error(f"{known.config}: {name} must be a mapping of fields to values, got {value!r}.")

    plain_flags = []
    while flags:
        flag = flags.pop(0)
        name, dot, key = flag.removeprefix("--").partition(".")
        if flag.startswith("--") and flags[:1] == ["null"] and type(None) in get_args(types_of.get(name)):
            values[name] = None
            del flags[0]
            continue
        if not (flag.startswith("--") and dot and types_of.get(name) is dict):
            plain_flags.append(flag)
            continue
        key, equals, text = key.partition("=")
        if not equals:
            if not flags:
                parser.error(f"{flag} needs a value.")
            text = flags.pop(0)
        try:
            values[name] = {**values.get(name, {}), key: yaml.safe_load(text)}
        except (yaml.YAMLError, RecursionError):
            parser.error(f"{flag} {text}: the value is not YAML.")

    # Scalars of the file are parsed like flags, which checks their types and choices.
    scalars = {name: value for name, value in values.items() if isinstance(value, str | int | float)}
    parser.set_defaults(**{name: value for name, value in values.items() if name not in scalars})
    of_file = [f"--{name}={value}" for name, value in scalars.items()]
    namespace, unknown = parser.parse_known_args([*of_file, *plain_flags])
    for flag in unknown:
        if flag.startswith("--"):
            name = flag.removeprefix("--").partition("=")[0]
            parser.error(f"unknown argument --{name}{did_you_mean(name, types_of, '--')}")
    if unknown:
        parser.error(f"{unknown[0]!r} does not belong to a flag.")
    try:
        instances = tuple(
            cls(**{f.name: getattr(namespace, f.name) for f in fields(cls) if f.init}) for cls in dataclass_types
        )
        for instance in instances:
            if isinstance(instance, VgTrainingArguments):
                instance.recipe_settings = _settings(dataclass_types, namespace)
            # Fields of a checkpoint's config are checked when its type is known, see `load_captioner`.
            of_checkpoint = isinstance(instance, CaptionerArguments) and instance.checkpoint is not None
            if isinstance(instance, ModelArguments) and not of_checkpoint:
                check_config_fields(instance.model_type, instance.model)
    except ValueError as error:  # arguments that contradict each other
        parser.error(str(error))
    return instances


class _Parser(HfArgumentParser):
    """Prints only the error, without the usage of all arguments."""

    def error(self, message: str) -> None:
        self.exit(2, f"error: {message}\n")


def without_debug(flags: Sequence[str]) -> list[str]:
    """The flags without a plain `--debug`. With a value it is an argument of [`TrainingArguments`]."""
    pairs = itertools.pairwise([*flags, "--"])
    return [flag for flag, after in pairs if not (flag == "--debug" and after.startswith("--"))]


def check_config_fields(model_type: str, values: Mapping[str, Any]) -> None:
    r"""
    Raises an error for fields that a config does not have. transformers would keep them and never read them.

    Args:
        model_type (`str`):
            The type of the model.
        values (`Mapping`):
            Fields of its config, and of nested configs.

    Example:

    ```python
    >>> from hf_vg.training import check_config_fields
    >>> check_config_fields("show_attend_tell", {"hidden": 512})
    Traceback (most recent call last):
        ...
    ValueError: unknown field hidden of ShowAttendTellConfig, did you mean hidden_size?
    ```
    """
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"unknown model type {model_type}{did_you_mean(model_type, CONFIG_MAPPING)}")
    config_class = CONFIG_MAPPING[model_type]
    known = {*(argument.name for argument in fields(config_class)), *config_class.attribute_map, "model_type"}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown field {name} of {config_class.__name__}{did_you_mean(name, known)}")
        if isinstance(value, Mapping) and "model_type" in value:
            check_config_fields(value["model_type"], value)


def _settings(dataclass_types: Sequence[type], namespace: Namespace) -> dict[str, Any]:
    """All values of a recipe's own arguments, and the values of transformers' arguments that are not defaults."""
    settings = {}
    for cls in dataclass_types:
        for argument in fields(cls):
            if argument.init and argument.name != "hub_token":  # settings are published with the model
                value = getattr(namespace, argument.name)
                theirs = issubclass(cls, TrainingArguments) and argument.name != "seed"
                if not (theirs and value == argument.default):
                    settings[argument.name] = value.value if isinstance(value, Enum) else value
    return settings


def read_config(path: str | Path) -> dict[str, Any]:
    """Reads a YAML mapping. An error names the file."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"error: the config {str(path)!r} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SystemExit(f"error: the config {str(path)!r} is not YAML: {error}") from None
    if not isinstance(values or {}, dict):
        raise SystemExit(f"error: the config {str(path)!r} must be a mapping of names to values.")
    return values or {}
