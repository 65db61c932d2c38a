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
"""Which part of the image made the model write a word: four explainers with one return format."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import ModelOutput

from ..models.attention_supervision import attention_rollout, cross_attention_rollout
from .families import Family, Tiles
from .hiding import HiddenCells
from .reading import Reading, readings
from .recording import AttentionRecord, record_attention
from .word_maps import fold, grid_by_hand, layout_of


EXPLAINERS = ("attention", "gradient", "rollout", "occlusion")


def explain_words(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
    outputs: ModelOutput | torch.Tensor | Sequence[str],
    method: str = "attention",
    image: int = 0,
    grid: tuple[int, int] | None = None,
    tiles: Tiles | None = None,
    family: Family | None = None,
    batch_size: int = 16,
) -> list[list[tuple[str, torch.Tensor]]]:
    r"""
    Makes a map of the image for each word that a model wrote, by one of four explainers.

    The model reads each sequence once more, in one pass (teacher forcing). A is the attention to image tokens of the
    query that predicts a token of the word, for each layer that looks at the image and each head:

    - `"attention"`: A, the mean over layers and heads. It equals [`word_maps`] of a record of `generate`.
    - `"gradient"`: the positive part of A times the gradient of the word's log-probability with respect to A, the mean
      over layers and heads. It shows which attention made the word more likely.
    - `"rollout"`: attention rollout (Abnar and Zuidema, 2020), if image tokens are in the sequence of the text model:
      the product, over layers, of (A' + I) / 2, where A' is the mean over heads of the attention among all positions.
      In models with cross-attention, a layer with attention A turns C, what the layers below have gathered, into
      (C + A) / 2: the last layer counts 1/2, the one before 1/4, and so on. What words gather from earlier words is
      left out.
    - `"occlusion"`: how far the word's log-probability falls if a cell of the image is hidden. A rise counts as 0. It
      needs no attention, and takes one pass per cell. [`HiddenCells`] says how cells are hidden.

    The log-probability of a word is the sum over its tokens. The maps of attention and rollout are means over its
    tokens.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor
    >>> from hf_vg.interpretation import explain_words

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model = AutoModelForImageTextToText.from_pretrained(folder)
    >>> processor = AutoProcessor.from_pretrained(folder)
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> inputs = processor(images=image, return_tensors="pt")
    >>> outputs = model.generate(**inputs)
    >>> (words,) = explain_words(model, processor, inputs, outputs, "gradient")
    >>> words[0][1].shape  # the map of the first word
    torch.Size([8, 8])
    >>> (words,) = explain_words(model, processor, inputs, ["a purple cross"], "occlusion")  # a text of your own
    >>> [word for word, _ in words]
    ['a', 'purple', 'cross']
    ```

    Args:
        model ([`PreTrainedModel`]):
            The model.
        processor ([`ProcessorMixin`] or [`PreTrainedTokenizerBase`]):
            Its processor or tokenizer.
        inputs (`Mapping[str, Any]`):
            The inputs of `generate`.
        outputs ([`ModelOutput`], `torch.Tensor` or `Sequence[str]`):
            The output of `generate`. Or texts of your own, with an equal number for each row of the inputs: the model
            reads them as if it had written them.
        method (`str`, *optional*, defaults to `"attention"`):
            `"attention"`, `"gradient"`, `"rollout"` or `"occlusion"`.
        image (`int`, *optional*, defaults to 0):
            The number of the image, if there are several images in a row of the inputs.
        grid (`tuple[int, int]`, *optional*):
            Height and width of the grid of image tokens, if hf_vg does not know the model's grid. For `"occlusion"`
            you can choose any grid. A coarser one is faster.
        tiles (`tuple[int, int]` or a sequence of them, *optional*):
            The rows and columns of tiles that an image was cut into. See [`word_maps`].
        family ([`Family`], *optional*):
            Where the image tokens are, for a model that hf_vg does not know. See [`record_attention`].
        batch_size (`int`, *optional*, defaults to 16):
            Hidden cells per forward pass of `"occlusion"`.

    Returns:
        `list[list[tuple[str, torch.Tensor]]]`: For each sequence its words, each with a map of shape `(height, width)`
        that has no negative values and sums to 1. If nothing in the image supports a word, its map is zero.
    """
    if method not in EXPLAINERS:
        raise ValueError(f"`method` must be one of {', '.join(map(repr, EXPLAINERS))}, got {method!r}.")
    found = []
    with evaluation_mode(model):
        for reading in readings(model, processor, inputs, outputs, family, tiles):
            maps = maps_of(reading, method, image, grid, batch_size)
            found.append([(word, word_map) for (word, _), word_map in zip(reading.words, maps, strict=True)])
    return found


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Switches dropout off inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def maps_of(
    reading: Reading,
    method: str,
    image: int = 0,
    grid: tuple[int, int] | None = None,
    batch_size: int = 16,
) -> torch.Tensor:
    """The maps of the words of a reading, of shape `(words, height, width)`."""
    if not reading.words:
        return torch.zeros(0, 1, 1)
    if method == "occlusion":
        maps = _occlusion(hidden_cells(reading, grid, image), batch_size)
    else:
        weights, record = {"attention": _attention, "gradient": _gradient, "rollout": _rollout}[method](reading)
        maps = _folded(reading, weights, record, image, grid)
    return (maps / maps.sum(dim=(-2, -1), keepdim=True).clamp(min=1e-12)).cpu()


def head_maps_of(reading: Reading, image: int = 0, grid: tuple[int, int] | None = None) -> torch.Tensor:
    """What the maps of `"attention"` are the mean of: `(layers, heads, words, height, width)`."""
    attention, record = attention_of_reading(reading)
    return _folded(reading, of_words(reading, attention), record, image, grid).cpu()


def _folded(
    reading: Reading, weights: torch.Tensor, record: AttentionRecord, image: int, grid: tuple[int, int] | None
) -> torch.Tensor:
    """Weights of patches, `(..., patches)`, as maps of the image, `(..., height, width)`."""
    layout = [grid_by_hand(grid, weights)] if grid else layout_of(record, reading.inputs, 0, image, reading.tiles)
    return fold(weights.float(), layout)


def hidden_cells(reading: Reading, grid: tuple[int, int] | None = None, image: int = 0) -> HiddenCells:
    """The image of a reading in cells: by default those of its maps."""
    attention, record = attention_of_reading(reading)
    layout = layout_of(record, reading.inputs, 0, image, reading.tiles)
    if grid is None:
        height, width = max((places.shape for places in layout), key=lambda shape: shape[0] * shape[1])
        grid = (height, width)
    return HiddenCells(reading, grid, layout, attention.shape[-1], image)


@torch.no_grad()
def attention_of_reading(reading: Reading) -> tuple[torch.Tensor, AttentionRecord]:
    """The attention behind each token after the prompt, of shape `(layers, heads, tokens, patches)`."""
    with record_attention(reading.model, queries="all", family=reading.family) as record:
        reading.log_probabilities(reading.arguments())
    attention = torch.stack([a[0] for a in record.calls[-1].attention.values()])
    return through_patches(record, _predicting(reading, attention)), record


def through_patches(record: AttentionRecord, weights: torch.Tensor) -> torch.Tensor:
    """From weights of image tokens, `(..., words, image tokens)`, to those of patches, if tokens are none."""
    return record.to_patches(weights.reshape(1, 1, -1, weights.shape[-1])).reshape(*weights.shape[:-1], -1)


def _predicting(reading: Reading, rows: torch.Tensor) -> torch.Tensor:
    """Of rows `(..., queries, keys)`, those of the queries that predict the tokens after the prompt."""
    return rows[..., -reading.ids.shape[1] :, :][..., reading.prompt_length - 1 : -1, :]


def of_words(reading: Reading, tokens: torch.Tensor) -> torch.Tensor:
    """From weights of tokens, `(..., tokens, columns)`, to those of words: the means over their pieces."""
    return torch.stack([tokens[..., pieces, :].mean(dim=-2) for _, pieces in reading.words], dim=-2)


# Each explainer returns weights of shape (words, patches), and the record that tells how patches lie on the image.


def _attention(reading: Reading) -> tuple[torch.Tensor, AttentionRecord]:
    attention, record = attention_of_reading(reading)
    return of_words(reading, attention.mean(dim=(0, 1))), record


def _gradient(reading: Reading) -> tuple[torch.Tensor, AttentionRecord]:
    frozen = [p for p in reading.model.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:  # attention has a gradient only if something below it has one
        parameter.requires_grad_(True)
    try:
        with (
            torch.enable_grad(),
            record_attention(reading.model, family=reading.family, keep=lambda attention: attention) as record,
        ):
            arguments = reading.arguments()
            if reading.family.returned is not None:
                # Show, Attend and Tell computes its words from the weights that it returns only with this flag.
                arguments["output_attentions"] = True
            words = reading.of_words(reading.log_probabilities(arguments))[0]
            layers = list(record.calls[-1].attention.values())
            found = []
            for word, (_, pieces) in zip(words, reading.words, strict=True):
                gradients = torch.autograd.grad(word, layers, retain_graph=True, allow_unused=True)
                if all(gradient is None for gradient in gradients):
                    raise ValueError(
                        f"The words of this {type(reading.model).__name__} have no gradient with respect to its "
                        'attention, as with hard attention. Use `method="occlusion"`.'
                    )
                products = [
                    torch.zeros_like(a) if g is None else (g * a.detach()).clamp(min=0)
                    for g, a in zip(gradients, layers, strict=True)
                ]
                relevance = torch.stack([record.to_image(product)[0].mean(dim=0) for product in products]).mean(dim=0)
                found.append(_predicting(reading, relevance)[pieces].mean(dim=0))
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    return through_patches(record, torch.stack(found)).detach(), record


@torch.no_grad()
def _rollout(reading: Reading) -> tuple[torch.Tensor, AttentionRecord]:
    if reading.family.columns is None:
        attention, record = attention_of_reading(reading)
        (gathered,) = cross_attention_rollout(tuple(attention[:, None]), layers=[-1])  # (1, tokens, patches)
        return of_words(reading, gathered[0]), record
    # All positions look at all positions, so only the mean over heads is kept of each layer.
    with record_attention(
        reading.model, family=reading.family, keep=lambda attention: attention.mean(dim=1, keepdim=True)
    ) as record:
        reading.log_probabilities(reading.arguments())
    (rolled,) = attention_rollout(tuple(record.calls[-1].attention.values()), layers=[-1])  # (1, length, length)
    rows = _predicting(reading, record.to_image(rolled[:, None])[0, 0])
    return of_words(reading, through_patches(record, rows)), record


def _occlusion(cells: HiddenCells, batch_size: int) -> torch.Tensor:
    height, width = cells.grid
    hidden = torch.eye(1 + height * width, height * width, dtype=torch.bool).roll(1, dims=0)  # at first nothing
    words = cells.log_probabilities(hidden, batch_size)
    falls = (words[0] - words[1:]).clamp(min=0)  # (cells, words)
    return falls.T.unflatten(1, (height, width))


__all__ = ["EXPLAINERS", "explain_words"]
