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
"""Which words a sentence encoder attends to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..models.processing import batched_text
from .figures import drawable


if TYPE_CHECKING:
    from matplotlib.figure import Figure


@torch.no_grad()
def attention_of_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sentences: str | Sequence[str]
) -> list[dict[str, Any]]:
    r"""
    Splits sentences into words, and shows how much each attention row looks at each word.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import attention_of_sentences
    >>> from hf_vg.pipelines import load_sentence_encoder

    >>> model, tokenizer = load_sentence_encoder(hf_vg.examples.checkpoint("self_attn_grounded_encoder"))
    >>> (example,) = attention_of_sentences(model, tokenizer, "a red circle above a blue square")
    >>> example["attention"].shape[1] == len(example["words"])
    True
    ```

    Args:
        model ([`PreTrainedModel`]):
            A sentence encoder with one layer of `attentions`, of shape `(sentences, rows, words)`, such as
            [`SelfAttnGroundedEncoderModel`].
        tokenizer ([`PreTrainedTokenizerFast`]):
            Its tokenizer.
        sentences (`str` or `Sequence[str]`):
            One sentence or several.

    Returns:
        `list[dict]`: For each sentence its `words`, as the tokenizer knows them; the `spans` of the words, as (first
        character, character after the last); and their `attention`, a `np.ndarray` of shape `(rows, words)`.
    """
    sentences = batched_text("sentences", sentences)
    encoded = tokenizer(sentences, truncation=True, padding=True, return_offsets_mapping=True, return_tensors="pt")
    spans = encoded.pop("offset_mapping").tolist()
    encoded = encoded.to(model.device)
    (attentions,) = model(
        **{name: encoded[name] for name in ("input_ids", "attention_mask")}, output_attentions=True
    ).attentions
    examples = []
    for number, (ids, mask) in enumerate(zip(encoded["input_ids"], encoded["attention_mask"], strict=True)):
        length = int(mask.sum())
        examples.append(
            {
                "words": tokenizer.convert_ids_to_tokens(ids[:length].tolist()),
                "spans": [tuple(span) for span in spans[number][:length]],
                "attention": attentions[number, :, :length].float().cpu().numpy(),
            }
        )
    return examples


def plot_sentence_attention(
    examples: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | Path | None = None
) -> "Figure":
    r"""
    Draws the words of a sentence as columns, the attention rows as rows, and their mean below.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.interpretation import plot_sentence_attention

    >>> example = {"words": ["two", "dogs", "play"], "attention": np.full((4, 3), 1 / 3)}
    >>> figure = plot_sentence_attention(example, "sentence.png")
    >>> len(figure.axes)
    2
    ```

    Args:
        examples (`Mapping` or a sequence of them):
            What [`attention_of_sentences`] returned.
        path (`str` or `Path`, *optional*):
            The file to save the figure to. Its ending names the format.

    Returns:
        `matplotlib.figure.Figure`: The figure. It is not shown on a screen, and pyplot does not keep it open.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: `pip install hf-vg[demo]`.") from error
    examples = [examples] if isinstance(examples, Mapping) else list(examples)
    if not examples:
        raise ValueError("There is nothing to draw: `examples` is empty.")
    for index, example in enumerate(examples):
        if np.ndim(example["attention"]) != 2 or np.shape(example["attention"])[1] != len(example["words"]):
            raise ValueError(
                f"Example {index} must have attention of shape (rows, {len(example['words'])}), one column per word, "
                f"got {np.shape(example['attention'])}."
            )

    rows = max(len(example["attention"]) for example in examples)
    longest = max(len(example["words"]) for example in examples)
    height = 0.09 * rows + 0.9
    figure = Figure(figsize=(0.55 * longest + 1.5, height * len(examples)), layout="constrained")
    axes = figure.subplots(2 * len(examples), 1, squeeze=False, height_ratios=[rows, max(rows / 8, 1)] * len(examples))
    for example, upper, lower in zip(examples, axes[::2, 0], axes[1::2, 0], strict=True):
        attention = np.asarray(example["attention"], dtype=np.float32)
        mean = attention.mean(axis=0, keepdims=True)
        upper.imshow(attention, cmap="Blues", aspect="auto", vmin=0, vmax=max(attention.max(), 1e-12))
        # On a scale of its own: rows that look at different words have a mean that is small everywhere.
        lower.imshow(mean, cmap="Blues", aspect="auto", vmin=0, vmax=max(mean.max(), 1e-12))
        upper.set(xticks=[], yticks=[], ylabel="rows")
        lower.set(yticks=[0], yticklabels=["mean"])
        words = [drawable(word) for word in example["words"]]
        lower.set_xticks(range(len(words)), words, rotation=40, ha="right", fontsize=9, parse_math=False)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
