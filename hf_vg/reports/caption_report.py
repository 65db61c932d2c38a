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
"""The report of a captioner: scores with confidence intervals, and its best and worst captions with their maps."""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..data.files import atomic_write
from ..interpretation.figures import plot_attention, plot_candidates, plot_deletion
from ..interpretation.html import explanation_html
from .metrics import metric_name, metric_text


def write_report(
    output_dir: str | PathLike,
    title: str,
    facts: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, float]],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    ranked_by: str = "cider_d",
    deletion: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    r"""
    Writes a report of a captioner: `report.json`, `report.md` with figures, and an interactive `report.html`, which
    shows the map of each word.

    Args:
        output_dir (`str` or `PathLike`):
            The folder to write to.
        title (`str`):
            The title of the report.
        facts (`Mapping`):
            Facts to list below the title, for example the model and the dataset.
        metrics (`Mapping`):
            The results of [`caption_intervals`] and [`grounding_intervals`].
        examples (`Mapping`):
            For each heading, captions of [`caption_examples`] or [`candidate_examples`], each with its `references`,
            `score` and `id`.
        ranked_by (`str`, *optional*, defaults to `"cider_d"`):
            The metric of `score`.
        deletion (`Mapping[str, Any]`, *optional*):
            The result of [`deletion_summary`] for the maps. The report shows its curves.

    Returns:
        `dict[str, Path]`: The files, under `"json"`, `"md"` and `"html"`.

    Example:

    ```python
    >>> import tempfile
    >>> from hf_vg.reports import write_report

    >>> folder = tempfile.TemporaryDirectory()
    >>> metrics = {"bleu4": {"value": 0.251, "low": 0.2, "high": 0.3}}
    >>> files = write_report(folder.name, "My captioner", {"dataset": "scenes"}, metrics, examples={})
    >>> print(files["md"].read_text())
    # My captioner
    <BLANKLINE>
    - dataset: scenes
    <BLANKLINE>
    | metric | value | 95% interval |
    | --- | ---: | --- |
    | BLEU-4 | 25.1 | 20.0 to 30.0 |
    <BLANKLINE>
    ```
    """
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    table = [(metric_name(name), *_shown(name, metric)) for name, metric in metrics.items()]
    facts_shown = {name.replace("_", " "): str(value) for name, value in facts.items()}
    record = {
        "title": title,
        **facts,
        "metrics": metrics,
        "examples": {
            heading: [{key: row[key] for key in ("id", "generated_text", "references", "score")} for row in rows]
            for heading, rows in examples.items()
        },
    }
    lines = [f"# {escape_markdown(title)}", ""]
    lines += [f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in facts_shown.items()]
    lines += ["", "| metric | value | 95% interval |", "| --- | ---: | --- |"]
    lines += [f"| {escape_markdown(name)} | {value} | {interval} |" for name, value, interval in table]
    deletion_html = ""
    if deletion is not None:
        record["deletion"] = {name: deletion[name] for name in ("score", "score_center", "shares", "probability")}
        plot_deletion({"regions that the word's map marks": deletion}, output_dir / "deletion.png")
        question, answer = "Can you trust the maps?", _deletion_text(deletion)
        lines += ["", f"## {question}", "", answer, "", "![Probability of words as more is hidden](deletion.png)"]
        picture = base64.b64encode((output_dir / "deletion.png").read_bytes()).decode()
        deletion_html = (
            f"<h2>{question}</h2><p>{answer}</p><img style='max-width: 100%' "
            f"alt='Probability of words as more is hidden' src='data:image/png;base64,{picture}'>"
        )
    shown = []
    for heading, rows in examples.items():
        if not rows:
            continue
        figure = re.sub(r"\W+", "_", heading.lower()) + ".png"
        plot = plot_candidates if "candidates" in rows[0] else plot_attention
        plot(rows, output_dir / figure)
        lines += ["", f"## {escape_markdown(heading)}", "", f"![Where the model looked]({figure})", ""]
        for row in rows:
            score = f"{metric_name(ranked_by)} {metric_text(ranked_by, row['score'])}"
            caption, name = escape_markdown(row["generated_text"]), escape_markdown(row["id"])
            lines.append(f"- **{caption}** ({escape_markdown(score)}, {name})")
            lines += [f"  - {escape_markdown(text)}" for text in row["references"]]
            references = "\n".join(f"· {text}" for text in row["references"])
            shown.append({**row, "name": f"{heading}: {row['id']}, {score}\n{references}"})
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td class=number>{value}</td><td class=number>{interval}</td></tr>"
        for name, value, interval in table
    )
    facts_html = "; ".join(f"{html.escape(name)}: {html.escape(value)}" for name, value in facts_shown.items())
    before = (
        f"<p>{facts_html}</p><table><tr><th>metric</th><th class=number>value</th>"
        f"<th class=number>95% interval</th></tr>{cells}</table>{deletion_html}<h2>Captions</h2>"
    )
    files = {kind: output_dir / f"report.{kind}" for kind in ("json", "md", "html")}
    texts = {
        "json": json.dumps(record, indent=2, ensure_ascii=True) + "\n",
        "md": "\n".join(lines) + "\n",
        "html": explanation_html(shown, title, before=before),
    }
    for kind, text in texts.items():
        with atomic_write(files[kind]) as file:
            file.write_text(text, encoding="utf-8")
    return files


def escape_markdown(text: str) -> str:
    """
    Escapes text from others for Markdown. The result is one line of plain text, without markup, links, formulas or
    mentions.

    Args:
        text (`str`):
            The text.

    Returns:
        `str`: The escaped text.

    Example:

    ```python
    >>> from hf_vg.reports import escape_markdown

    >>> print(escape_markdown("a *dog* at www.example.org"))
    a \\*dog\\* at www\\.example.org
    ```
    """
    text = " ".join(str(text).split())
    text = re.sub(r"([\\`*_{}\[\]<>|#&~$@]|(?<=www)\.|:(?=//)|^[-+=]|(?<=^\d)[.)])", r"\\\1", text)
    return text.encode(errors="replace").decode()  # a lone surrogate cannot be written to a file


def _deletion_text(deletion: Mapping[str, Any]) -> str:
    score, interval = _shown("deletion", deletion["score"])
    center, center_interval = _shown("deletion_center", deletion["score_center"])
    words, images = len(deletion["words"]), len({word["image"] for word in deletion["words"]})
    return (
        f"This test hides the regions that a word's map marks most, and the model reads its caption again. The "
        f"probability of the word falls by {score} ({interval}) more than if random regions of the same size are "
        f"hidden, and by {center} ({center_interval}) more than if the center is hidden. These are means over "
        f"{words:,} words of {images:,} images."
    )


def _shown(name: str, metric: Mapping[str, float]) -> tuple[str, str]:
    value = metric_text(name, metric["value"])
    if "low" not in metric:
        return value, ""
    return value, f"{metric_text(name, metric['low'])} to {metric_text(name, metric['high'])}"
