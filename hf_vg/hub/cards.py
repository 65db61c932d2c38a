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
"""Model cards, written from the model and from what is known about its training."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..reports.caption_report import escape_markdown
from ..reports.metrics import METRICS, metric_name, metric_text
from .card_texts import DATASETS, MODELS, PAPERS, About, DatasetAbout


TEMPLATE = Path(__file__).with_name("card_template.md")


@dataclass
class Run:
    r"""
    Describes how a model was trained, for its card.

    Args:
        dataset (`str`, *optional*):
            The training data: a dataset name that recipes accept, or a dataset on the Hub.
        hyperparameters (`dict`, *optional*):
            Names and values, as they should appear in the card.
        metrics (`dict[str, float]`, *optional*):
            The scores of the model.
        split (`str`, *optional*, defaults to `"test"`):
            The split that the model was scored on.
        num_images (`int`, *optional*):
            The number of images that the model was scored on.
        figure (`str`, *optional*):
            A file in the folder of the checkpoint: a figure with the model's attention maps.
        example (`str`, *optional*):
            A file in the folder of the checkpoint: an image for the usage snippet.
        base_model (`str`, *optional*):
            The checkpoint that training started from.
        converted_from (`str`, *optional*):
            The published weights that the model was converted from.
        license (`str`, *optional*):
            The license of the weights, as the Hub names it. By default, the card uses the one that the dataset allows,
            if it is known.

    Example:

    ```python
    >>> from hf_vg.hub import Run

    >>> run = Run(dataset="scenes", metrics={"bleu_4": 0.25}, hyperparameters={"learning rate": 0.001})
    >>> run.split
    'test'
    ```
    """

    dataset: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    split: str = "test"
    num_images: int | None = None
    figure: str | None = None
    example: str | None = None
    base_model: str | None = None
    converted_from: str | None = None
    license: str | None = None


def model_card(model: Any, name: str, run: Run | None = None, tags: Sequence[str] | str | None = None) -> ModelCard:
    r"""
    Writes the card of a model.

    Args:
        model ([`PreTrainedModel`]):
            Any model of this package.
        name (`str`):
            The argument of `from_pretrained`: `user/name` on the Hub, or a folder.
        run ([`Run`], *optional*):
            How the model was trained.
        tags (`Sequence[str]` or `str`, *optional*):
            More tags.

    Returns:
        [`~huggingface_hub.ModelCard`]: The card. Save it with `card.save("README.md")`.

    Example:

    ```python
    >>> from hf_vg import VggBackbone, VggConfig
    >>> from hf_vg.hub import Run, model_card

    >>> model = VggBackbone(VggConfig(depths=[1], hidden_sizes=[8]))
    >>> card = model_card(model, "me/tiny-vgg", Run(dataset="scenes"))
    >>> card.data.license, card.data.pipeline_tag
    ('apache-2.0', 'image-feature-extraction')
    ```
    """
    from .. import __version__

    run = run or Run()
    class_name, config = type(model).__name__, model.config
    about = MODELS.get(class_name, About(auto_class="AutoModel"))
    dataset = _dataset_about(run.dataset)
    metrics = _readable_metrics(run.metrics)
    indexed = {key: value for key, value in metrics.items() if key not in METRICS or METRICS[key].kind is not None}
    title = Path(name).name
    data = ModelCardData(
        language="en" if about.speaks and run.dataset in DATASETS else None,
        license=run.license or (dataset.model_license if dataset is not None else None),
        library_name="transformers",
        pipeline_tag=about.pipeline_tag,
        tags=["hf_vg", config.model_type, *about.tags, *([tags] if isinstance(tags, str) else tags or [])],
        datasets=[run.dataset] if dataset is not None and dataset.on_hub else None,
        base_model=run.base_model,
        metrics=sorted({METRICS[key].kind or "" for key in indexed if key in METRICS}) or None,
        model_name=title,
        eval_results=[
            EvalResult(
                task_type=about.pipeline_tag,
                dataset_type=run.dataset or "unknown",
                dataset_name=dataset.name if dataset is not None else "not recorded",
                dataset_split=run.split,
                metric_type=METRICS[key].kind if key in METRICS else key,
                metric_name=metric_name(key),
                metric_value=round(value * (METRICS[key].scale if key in METRICS else 1), 4),
            )
            for key, value in indexed.items()
        ]
        or None,
    )
    if data.eval_results is None:
        data.model_name = None  # only used as the name of the entry in `model-index`
    is_folder = os.path.isdir(name) or "/" not in name
    has_backbone = getattr(config, "backbone_config", None) is not None
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=_in_quotes(name),
        title=escape_markdown(title),
        summary=about.summary or f"A model of the type {config.model_type}.",
        kind=about.kind,
        auto_class=about.auto_class,
        model_class=class_name,
        num_parameters=_rounded(model.num_parameters()),
        hf_vg_version=__version__,
        feature_size=None if has_backbone else getattr(config, "feature_size", None),
        sees_pixels=has_backbone,
        feature_shape=_feature_shape(config, about.kind),
        example=run.example,
        example_in_hub=run.example is not None and not is_folder,
        image_line=_image_line(name, run.example, is_folder),
        opened_image="Image.open(image)" if run.example else "image",
        figure=run.figure,
        figure_text=about.figure_text,
        dataset=dataset,
        dataset_name=escape_markdown(dataset.name) if dataset is not None else "its data",
        split=escape_markdown(run.split),
        num_images=f"{run.num_images:,} images of " if run.num_images is not None else "",
        converted_from=escape_markdown(run.converted_from) if run.converted_from else None,
        hyperparameters={
            escape_markdown(key): value if isinstance(value, int | float) else escape_markdown(value)
            for key, value in run.hyperparameters.items()
        },
        metrics={escape_markdown(metric_name(key)): metric_text(key, value) for key, value in metrics.items()},
        limits=about.limits + (f" {dataset.limits}" if dataset is not None and dataset.limits else ""),
        papers=[PAPERS[paper] for paper in about.papers],
    )
    card.text = card.text.strip() + "\n"
    return card


def _dataset_about(dataset: str | None) -> DatasetAbout | None:
    if dataset is None:
        return None
    if dataset in DATASETS:
        return DATASETS[dataset]
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", dataset) is not None
    shown = escape_markdown(dataset)
    text = f"[{shown}](https://huggingface.co/datasets/{quote(dataset)})" if on_hub else f"{shown}."
    return DatasetAbout(name=dataset, text=text, license="See the dataset's license.", on_hub=on_hub)


def _readable_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores in the order of `METRICS`, without times and counts, and without Trainer's prefix."""
    plain = {key.removeprefix("test_"): value for key, value in metrics.items()}
    without = ("runtime", "samples_per_second", "steps_per_second", "epoch", "words", "arithmetic_queries")
    order = {key: place for place, key in enumerate(METRICS)}
    return {
        key: float(value)
        for key, value in sorted(plain.items(), key=lambda item: order.get(item[0], len(order)))
        if isinstance(value, int | float) and math.isfinite(value) and key not in without
    }


def _rounded(number: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,}"


def _feature_shape(config: Any, kind: str | None) -> str:
    size = getattr(config, "feature_size", 0)
    return f"1, 196, {size}" if kind == "captioner" else f"1, {size}"


def _image_line(name: str, example: str | None, is_folder: bool) -> str:
    if example is None:
        return 'image = Image.new("RGB", (256, 256), "gray")  # put your image here'
    if is_folder:
        return f'image = "{_in_quotes(Path(name, example).as_posix())}"'
    return f'image = hf_hub_download("{_in_quotes(name)}", "{example}")  # or your own image'


def _in_quotes(text: str) -> str:
    """Escapes a text for a Python string in quotes. Backslashes of Windows paths become slashes."""
    return json.dumps(text.replace("\\", "/"))[1:-1]
