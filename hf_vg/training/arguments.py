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

import difflib
import itertools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass
class DryRunArguments:
    """What every recipe takes."""

    dry_run: bool = field(
        default=False,
        metadata={"help": "Do everything once at a tiny size, in a temporary folder that is deleted at the end."},
    )


@dataclass
class ModelArguments:
    """The fields of a model's config."""

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
    """What recipes that train encoders of sentences take."""

    min_word_frequency: int = field(default=1, metadata={"help": "Words seen less often are unknown words."})
    glove: str | None = field(
        default=None, metadata={"help": "Word vectors in GloVe's text format that embeddings begin with."}
    )


GROUNDED_DATASETS = ("scenes", "flickr30k_entities")  # which say what their phrases show


@dataclass
class CaptionerArguments(ModelArguments, CaptionerDataArguments):
    """What `recipes/train_captioner.py` trains, and on what."""

    model_type: str = field(  # type: ignore[misc]  # of every other recipe it is fixed
        default="show_attend_tell", metadata={"help": "Which captioner to train."}
    )
    checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "A trained captioner to go on from, with its words, backbone and sizes: a folder, or a model of "
            "the Hub. By default the captioner is new."
        },
    )
    vocab_size: int = field(default=10000, metadata={"help": "The most words to keep, special tokens included."})
    min_word_frequency: int = field(default=1, metadata={"help": "Words seen less often are unknown words."})
    num_beams: int | None = field(
        default=None,
        metadata={
            "help": "Beams of the captions that are scored, and of the checkpoint. By default as many as `checkpoint` "
            "has, and else 1, which is greedy."
        },
    )
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "A beam is ranked by its log probability over its length to this power: by its mean a word (1), "
            "or by the sum (0), which is for shorter captions. By default that of `checkpoint`, and else 1."
        },
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "The longest caption to write. By default that of `checkpoint`, and else 30."},
    )
    reward: str | None = field(
        default=None,
        metadata={
            "help": "Score that captions are found, compared and trained for, in place of what people wrote "
            "(self-critical training): `cider`. For a captioner that can already speak, see `checkpoint`.",
            "choices": ["cider"],
        },
    )
    num_candidates: int = field(default=5, metadata={"help": "Captions to compare of each image, with `reward`."})
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
            "help": "Validation images that captions are written for in every evaluation, for `eval_bleu4`, "
            "`eval_cider_d` and others; 0 for none."
        },
    )
    num_figures: int = field(default=6, metadata={"help": "Test images to draw with a map for each word."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streaming and self.reward is not None:
            raise ValueError(
                "`reward` weighs words by how rare they are in the training data, and a stream cannot be counted "
                "before it is read."
            )
        if self.attention_supervision != "none":
            if self.dataset not in GROUNDED_DATASETS:
                raise ValueError(
                    f"`attention_supervision` needs boxes: `dataset` must be {' or '.join(GROUNDED_DATASETS)}, got "
                    f"{self.dataset}."
                )
            others = {"reward": self.reward, "streaming": self.streaming, "features": self.features}
            others |= {"mirror_images": self.mirror_images}
            for name, value in others.items():
                if value:
                    raise ValueError(f"`attention_supervision` does not go with `{name}`: leave one of them out.")

    def supervision(self) -> dict[str, Any]:
        """The arguments of [`AttentionSupervisionMixin`]."""
        names = ("attention_supervision", "attention_weight", "attention_layers", "attention_heads")
        return {name: getattr(self, name) for name in (*names, "distillation_weight", "distillation_temperature")}


@dataclass
class FeatureArguments(DryRunArguments, CaptionDataArguments):
    """What `recipes/extract_features.py` computes."""

    pooling: str = field(
        default="none",
        metadata={
            "help": "`none` keeps the feature map, `mean` its mean over locations, which is what fc6 and fc7 need.",
            "choices": ["none", "mean"],
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Images that the network is given at once."})
    num_workers: int | None = field(
        default=None, metadata={"help": "Processes that decode images. By default one a free core, and at most 8."}
    )


@dataclass
class VgTrainingArguments(DryRunArguments, TrainingArguments):
    """transformers' own, and what [`VgTrainer`] adds to them."""

    max_length_difference: int | None = field(
        default=None,
        metadata={
            "help": "Draw batches of rows whose lengths, in the column `length_column_name`, differ by no more than "
            "this; 0 is one length a batch. By default rows are drawn as `train_sampling_strategy` says."
        },
    )
    backbone_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the image network, which `--model.freeze_backbone false` thaws."},
    )
    early_stopping_patience: int = field(
        default=0,
        metadata={
            "help": "Stop after so many evaluations in a row without a better `metric_for_best_model`. 0 is never."
        },
    )
    restart: bool = field(
        default=False,
        metadata={"help": "Train from the beginning, and delete the checkpoints in `output_dir`."},
    )
    # A head that no loss reaches is an error to be seen, not one to be searched for in every step.
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Whether DistributedDataParallel looks for parameters without gradient."}
    )
    # What a recipe was called with, which is saved with every checkpoint. See `parse_arguments`.
    recipe_settings: dict = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # else `bf16` is refused, and each of several processes believes to be alone
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                self.ddp_backend = self.ddp_backend or "gloo"  # type: ignore[has-type]  # of `TrainingArguments`
        super().__post_init__()
        if self.accelerator_config.dispatch_batches is None:
            # Of a stream each process reads its own rows: batches of different lengths cannot be made one and split.
            self.accelerator_config.dispatch_batches = False
        if self.early_stopping_patience and not self.load_best_model_at_end:
            raise ValueError(
                "`early_stopping_patience` compares evaluations, and the best checkpoint is what is kept: set "
                "`load_best_model_at_end: true` too, and `metric_for_best_model` if that is not the loss."
            )


@dataclass
class CaptionReportArguments(DryRunArguments, CaptionDataArguments):
    """What `recipes/evaluate_captioner.py` judges, and on what."""

    checkpoint: str = field(
        default="outputs/show_attend_tell_scenes",
        metadata={"help": "The captioner: a folder, or a model of the Hub."},
    )
    split: str = field(default="test", metadata={"help": "`train`, `validation` (or `dev`) or `test`."})
    num_beams: int | None = field(
        default=None, metadata={"help": "Beams of the captions; 1 is greedy. By default as the checkpoint says."}
    )
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "Beams are ranked by their mean a word (1), by their sum (0), or between. By default as the "
            "checkpoint says."
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Images that are captioned at a time."})
    metrics: list[str] = field(
        default_factory=lambda: ["bleu", "rouge", "cider", "diversity"],
        metadata={
            "help": "Any of bleu, bleu_no_bp, bleu_punctuation, rouge, cider, meteor, meteor_python and diversity."
        },
    )
    num_samples: int = field(default=1000, metadata={"help": "Sets that are drawn for the confidence intervals."})
    num_examples: int = field(default=5, metadata={"help": "Captions to show of the best, and of the worst."})
    entities_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of Flickr30k Entities: judge where nouns look by its boxes. Scenes have their own."},
    )
    num_deletion_images: int = field(
        default=0,
        metadata={
            "help": "Test whether maps can be believed on this many images: hide what they mark, and measure how far "
            "the probability of each word falls. About 80 more passes per image."
        },
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Where the report is written. By default `report` in the checkpoint."}
    )


@dataclass
class GroundingReportArguments(DryRunArguments, RegionDataArguments):
    """What `recipes/evaluate_grounding.py` judges, and on what."""

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
    batch_size: int = field(default=32, metadata={"help": "Images with hidden parts that are read at a time."})
    num_samples: int = field(default=1000, metadata={"help": "Sets that are drawn for the confidence intervals."})
    metrics_file: str | None = field(default=None, metadata={"help": "JSON file to write the metrics to."})


def parse_arguments(
    dataclass_types: Sequence[type], default_config: str | Path | None = None, args: Sequence[str] | None = None
) -> tuple[Any, ...]:
    r"""
    Parses `--config FILE.yaml` and flags into dataclasses. Flags win over the file, the file over the defaults.

    Args:
        dataclass_types (`Sequence[type]`):
            The dataclasses, which share one flat set of names. Fields of type `dict` are given in the file as a
            mapping, and on the command line as `--field.key value`. `--field null` takes back what the file sets.
        default_config (`str` or `Path`, *optional*):
            The file that is read when there is no `--config`.
        args (`Sequence[str]`, *optional*, defaults to the command line):
            The arguments.

    Returns:
        `tuple`: An instance of each dataclass.
    """
    config_parser = ArgumentParser(add_help=False)
    config_parser.add_argument("--config", default=default_config, help="YAML file with any of the arguments.")
    known, flags = config_parser.parse_known_args(sys.argv[1:] if args is None else args)
    flags = without_debug(flags)
    values = read_config(known.config) if known.config is not None else {}

    # Not `field.type`, which `HfArgumentParser` changes.
    hints = {name: hint for cls in dataclass_types for name, hint in get_type_hints(cls).items()}
    types_of = {f.name: hints[f.name] for cls in dataclass_types for f in fields(cls) if f.init}
    about_debug = "An error is one line. With --debug, and nothing after it, you see where it happened."
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

    # Scalars of the file are read like flags, so that their types and choices are checked too.
    scalars = {name: value for name, value in values.items() if isinstance(value, str | int | float)}
    parser.set_defaults(**{name: value for name, value in values.items() if name not in scalars})
    of_file = [f"--{name}={value}" for name, value in scalars.items()]
    namespace, unknown = parser.parse_known_args([*of_file, *plain_flags])
    for flag in unknown:
        if flag.startswith("--"):
            name = flag.removeprefix("--").partition("=")[0]
            parser.error(f"unknown argument --{name}{did_you_mean(name, types_of, '--')}")
    if unknown:
        parser.error(f"{unknown[0]!r} belongs to no flag.")
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
    except ValueError as error:  # of arguments that do not go together
        parser.error(str(error))
    return instances


class _Parser(HfArgumentParser):
    """Prints an error, and not how every other argument is used."""

    def error(self, message: str) -> None:
        self.exit(2, f"error: {message}\n")


def without_debug(flags: Sequence[str]) -> list[str]:
    """The flags without a plain `--debug`. With a value it is an argument of [`TrainingArguments`]."""
    pairs = itertools.pairwise([*flags, "--"])
    return [flag for flag, after in pairs if not (flag == "--debug" and after.startswith("--"))]


def check_config_fields(model_type: str, values: Mapping[str, Any]) -> None:
    r"""
    Refuses fields that a config does not have, which transformers would keep and nobody would read.

    Args:
        model_type (`str`):
            The type of the model.
        values (`Mapping`):
            Fields of its config, and of the configs within.
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
    """All values of a recipe's own arguments, and those of transformers' that are not its defaults."""
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


def did_you_mean(name: str, known_names: Iterable[str], prefix: str = "") -> str:
    r"""
    The end of a sentence that names something unknown: ", did you mean X?" where something known is alike.

    Args:
        name (`str`):
            What is unknown.
        known_names (`Iterable[str]`):
            What it could be: spelt nearly so, with these initials (`lr`), or with this part (`epochs`).
        prefix (`str`, *optional*, defaults to `""`):
            Comes before the name that is proposed.
    """
    known_names = sorted(known_names)
    near = difflib.get_close_matches(name, known_names, n=1)
    near += [known for known in known_names if "".join(part[:1] for part in known.split("_")) == name]
    near += [known for known in known_names if name in known.split("_") or known.endswith(f"_{name}")]
    return f", did you mean {prefix}{near[0]}?" if near else "."
