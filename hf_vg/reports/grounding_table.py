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
"""A text table of grounding results."""

from collections.abc import Mapping, Sequence
from typing import Any

from .metrics import metric_text


_COLUMNS = {
    "pointing": "pointing",
    "mass": "in the box",
    "average_precision": "precision",
    "deletion": "deletion, beyond chance",
    "deletion_center": "beyond the center",
}


def grounding_table(metrics: Mapping[str, Any]) -> str:
    r"""
    Formats the results of [`evaluate_grounding`] as text: explainers with confidence intervals, baselines, layers and
    heads.

    Args:
        metrics (`Mapping[str, Any]`):
            The results of [`evaluate_grounding`].

    Returns:
        `str`: The table.

    Example:

    ```python
    >>> from hf_vg.reports import grounding_table

    >>> found = {"value": 0.5, "low": 0.4, "high": 0.6}
    >>> names = ("pointing", "mass", "average_precision", "pointing_center", "pointing_random")
    >>> metrics = {"methods": {"attention": dict.fromkeys(names, found)}, "best_head": None, "words": 10, "images": 5}
    >>> print(grounding_table({**metrics, "layers": [{"pointing": 0.5}], "heads": [[{"pointing": 0.5}]]}))
    10 phrases of 5 images
    <BLANKLINE>
                                pointing              in the box               precision
    attention     50.0% (40.0% to 60.0%)  50.0% (40.0% to 60.0%)  50.0% (40.0% to 60.0%)
    image center  50.0% (40.0% to 60.0%)
    random        50.0% (40.0% to 60.0%)
    ```
    """
    first = next(iter(metrics["methods"].values()))
    columns = [name for name in _COLUMNS if name in first]
    rows = [["", *(_COLUMNS[name] for name in columns)]]
    rows += [
        [method, *(_with_interval(name, found[name]) for name in columns)]
        for method, found in metrics["methods"].items()
    ]
    for name, baseline in (("center", "image center"), ("random", "random")):
        rows.append([baseline, _with_interval("pointing", first[f"pointing_{name}"]), *[""] * (len(columns) - 1)])
    best = metrics["best_head"]
    if best is not None:
        name = f"best head: {best['layer']}.{best['head']}"
        rows.append([name, *(_with_interval(name, best[name]) if name in best else "" for name in columns)])
    text = f"{metrics['words']:,} phrases of {metrics['images']:,} images\n\n{_table(rows)}"
    if best is not None:
        text += "\n\nThe best head (layer.head) is chosen on every second image and scored on the others."
    heads = max(len(layer) for layer in metrics["heads"])
    if heads * len(metrics["heads"]) > 1:
        rows = [["pointing", "all heads", *(f"head {head}" for head in range(heads))]]
        for number, (layer, of_heads) in enumerate(zip(metrics["layers"], metrics["heads"], strict=True)):
            shares = [metric_text("pointing", found["pointing"]) for found in (layer, *of_heads)]
            rows.append([f"layer {number}", *shares])
        text += f"\n\n{_table(rows)}"
    return text


def _with_interval(name: str, metric: Mapping[str, float]) -> str:
    value, low, high = (metric_text(name, metric[end]) for end in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
