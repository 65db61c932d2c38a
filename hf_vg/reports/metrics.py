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
"""The names, scales and formats of all metrics, for the terminal, cards, reports and `hf-vg evaluate`."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    r"""
    The name and the format of a metric.

    Args:
        name (`str`):
            The name in tables and reports.
        kind (`str`, *optional*):
            The type of the metric in the Hub's index of results. `None` for numbers that are not results, such as
            baselines and counts: they are shown but not indexed.
        form (`str`, *optional*, defaults to `"{:.1%}"`):
            The format of the value.
        scale (`float`, *optional*, defaults to 1.0):
            The factor of the value. BLEU is computed from 0 to 1 and shown from 0 to 100.

    Example:

    ```python
    >>> from hf_vg.reports import Metric

    >>> Metric("BLEU-4", "bleu", "{:.1f}", 100).text(0.2512)
    '25.1'
    ```
    """

    name: str
    kind: str | None = None
    form: str = "{:.1%}"
    scale: float = 1.0

    def text(self, value: float) -> str:
        """Formats a value."""
        return self.form.format(self.scale * value)


_NUMBER, _COUNT = "{:.1f}", "{:,.0f}"
_PERCENT = "{:.1f}%"  # for values from 0 to 100
_DIRECTIONS = (("image_to_text", "caption of an image"), ("text_to_image", "image of a caption"))

METRICS = {
    **{f"bleu{n}": Metric(f"BLEU-{n}", "bleu", _NUMBER, 100) for n in (1, 2, 3, 4)},
    **{f"bleu{n}_no_bp": Metric(f"BLEU-{n}, no brevity penalty", "bleu", _NUMBER, 100) for n in (1, 2, 3, 4)},
    **{
        f"bleu{n}_punctuation": Metric(f"BLEU-{n}, no brevity penalty, with punctuation", "bleu", _NUMBER, 100)
        for n in (1, 2, 3, 4)
    },
    "rouge_l": Metric("ROUGE-L", "rouge", _NUMBER, 100),
    "meteor": Metric("METEOR 1.5", "meteor", _NUMBER, 100),
    "meteor_python": Metric("METEOR without paraphrases", "meteor", _NUMBER, 100),
    "cider": Metric("CIDEr", "cider", "{:.3f}"),
    "cider_d": Metric("CIDEr-D", "cider", "{:.3f}"),
    "true": Metric("captions that are true of their scene", "accuracy"),
    "true_seen": Metric("true captions, combinations seen in training", "accuracy"),
    "true_unseen": Metric("true captions, combinations never seen", "accuracy"),
    **{
        f"distinct{n}": Metric(f"distinct {words} in all captions")
        for n, words in enumerate(("words", "pairs of words", "triples of words", "quadruples of words"), 1)
    },
    "vocabulary": Metric("different words used", None, _COUNT),
    "vocabulary_use": Metric("share of the human captions' vocabulary"),
    "length": Metric("words per caption", None, _NUMBER),
    "reference_length": Metric("words per human caption", None, _NUMBER),
    "pointing": Metric("peak of a noun's map in the box of its object", "accuracy"),
    "pointing_center": Metric("the same, always pointing at the center"),
    "pointing_random": Metric("the same, pointing at random"),
    "mass": Metric("share of a noun's attention in the box of its object", "accuracy"),
    "average_precision": Metric("average precision of nouns' maps", "mean_average_precision"),
    "deletion": Metric("drop in a word's probability if its regions are hidden, beyond random regions"),
    "deletion_center": Metric("the same, beyond hiding the center"),
    "words": Metric("nouns with boxes", None, _COUNT),
    "identification": Metric("caption-image matching accuracy", "accuracy"),
    "paraphrase": Metric("types of paraphrases", "accuracy"),
    "word_attention": Metric("words that look at the right box, by the last layer's attention", "accuracy"),
    "word_rollout": Metric("words that look at the right box, by rollout", "accuracy"),
    "phrase_attention": Metric("phrases found among the boxes, by the last layer's attention", "accuracy"),
    "phrase_rollout": Metric("phrases found among the boxes, by rollout", "accuracy"),
    "phrase_classifier": Metric("phrases found among the boxes, by the classifier", "accuracy"),
    "vqa_accuracy": Metric("VQA accuracy", "accuracy"),
    "referring_accuracy": Metric("expressions resolved to the right box (IoU of at least 0.5)", "accuracy"),
    **{
        f"{direction}_r{k}": Metric(f"{name}, recall at {k}", "recall", _PERCENT)
        for direction, name in _DIRECTIONS
        for k in (1, 5, 10)
    },
    **{
        f"{direction}_{kind}_rank": Metric(f"{name}, {kind} rank", f"{kind}_rank", _NUMBER)
        for direction, name in _DIRECTIONS
        for kind in ("median", "mean")
    },
    "rsum": Metric("sum of the six recalls", "rsum", _NUMBER),
    "arithmetic_r1": Metric("image minus one color plus another finds that color first", "recall", _PERCENT),
    "arithmetic_queries": Metric("arithmetic queries", None, _COUNT),
    "arithmetic_fit": Metric("photos found by image minus word plus word that fit", "precision", _PERCENT),
    "arithmetic_fit_image": Metric("the same, by the image alone", None, _PERCENT),
    "arithmetic_fit_word": Metric("the same, by the word alone", None, _PERCENT),
    "arithmetic_fit_chance": Metric("the same, by chance", None, _PERCENT),
    "grounding_pointing": Metric("captions whose most-attended word names an object with a box", "accuracy"),
    "grounding_random": Metric("the same, at random"),
    "grounding_mass": Metric("share of a caption's attention on words that name an object with a box", "accuracy"),
    "grounding_average_precision": Metric("average precision of attention to such words", "mean_average_precision"),
    "grounding_sentences": Metric("captions evaluated", None, _COUNT),
}

# The SC-NLM is scored twice: on captions from image vectors and on captions from caption vectors.
METRICS |= {
    f"{source}_{key}": metric._replace(name=f"from the vector of the {source}: {metric.name}")
    for source in ("image", "caption")
    for key, metric in list(METRICS.items())
    if key.startswith(("bleu", "rouge", "cider", "meteor", "true"))
}


def metric_name(key: str) -> str:
    """
    Returns the readable name of a metric. The prefixes of Trainer, `eval_` and `test_`, are removed.

    Args:
        key (`str`):
            The key of the metric, such as `"eval_bleu4"`.

    Returns:
        `str`: The name.

    Example:

    ```python
    >>> from hf_vg.reports import metric_name

    >>> metric_name("eval_bleu4")
    'BLEU-4'
    ```
    """
    key = _plain(key)
    return METRICS[key].name if key in METRICS else key.replace("_", " ")


def metric_text(key: str, value: float) -> str:
    """
    Formats the value of a metric on its usual scale.

    Args:
        key (`str`):
            The key of the metric, such as `"bleu4"`.
        value (`float`):
            The value.

    Returns:
        `str`: The formatted value.

    Example:

    ```python
    >>> from hf_vg.reports import metric_text

    >>> metric_text("bleu4", 0.2512), metric_text("pointing", 0.75)
    ('25.1', '75.0%')
    ```
    """
    if value != value:
        return "not measured"
    key = _plain(key)
    return METRICS[key].text(value) if key in METRICS else f"{value:.3f}".rstrip("0").rstrip(".")


def metric_lines(metrics: Mapping[str, float], keys: Iterable[str]) -> str:
    """
    Formats metrics as lines with name and value. Missing metrics are skipped.

    Args:
        metrics (`Mapping[str, float]`):
            The values.
        keys (`Iterable[str]`):
            The metrics to show, in order.

    Returns:
        `str`: One line per metric.

    Example:

    ```python
    >>> from hf_vg.reports import metric_lines

    >>> print(metric_lines({"bleu4": 0.2512, "rouge_l": 0.5}, ["bleu4", "rouge_l", "cider"]))
      BLEU-4   25.1
      ROUGE-L  50.0
    ```
    """
    keys = [key for key in keys if key in metrics]
    width = max((len(metric_name(key)) for key in keys), default=0)
    return "\n".join(f"  {metric_name(key):{width}}  {metric_text(key, metrics[key])}" for key in keys)


def _plain(key: str) -> str:
    return key.removeprefix("test_").removeprefix("eval_")
