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
"""Records where the words of any transformers model look, while it runs."""

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .families import Family, family_of


@dataclass(eq=False)
class AttentionCall:
    r"""
    One forward pass of the recorded model: a step of `generate`, or a call of the model itself.

    Attributes:
        attention (`dict[str, torch.Tensor]`):
            The attention of each module by its name, of shape `(rows, heads, queries, image tokens)`.
        queries (`torch.LongTensor` of shape `(queries,)`):
            The positions of the queries in this pass.
    """

    attention: dict[str, torch.Tensor] = field(default_factory=dict)
    queries: torch.Tensor | None = None


class AttentionRecord:
    r"""
    The record that [`record_attention`] fills while the model runs. A new `generate`, or a new call of the model,
    starts it again from empty.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model = AutoModelForImageTextToText.from_pretrained(folder)
    >>> processor = AutoProcessor.from_pretrained(folder)
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> inputs = processor(images=image, return_tensors="pt")
    >>> with hf_vg.record_attention(model) as record:
    ...     outputs = model.generate(**inputs, return_dict_in_generate=True)
    >>> len(record.calls) == outputs.sequences.shape[1] - 1  # one per generated token
    True
    >>> {name: tuple(a.shape) for name, a in record.calls[0].attention.items()}  # (rows, heads, queries, image tokens)
    {'model.decoder.layers.0.cross_attention': (1, 4, 1, 64), 'model.decoder.layers.1.cross_attention': (1, 4, 1, 64)}
    ```

    Attributes:
        calls (`list[AttentionCall]`):
            The forward passes: one per generated token, or a single one.
        prompt_length (`int`):
            The number of tokens of the first pass.
        patches (`dict[str, torch.Tensor]`):
            If image tokens are not patches: where they look, by the name of the module, of shape `(rows, heads,
            tokens, patches)`.
        feature_map (`tuple[int, int]`, *optional*):
            Height and width of the map that words look at, if the model computes one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        queries: str | torch.Tensor = "auto",
        keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
        replaces_output: bool = True,
    ):
        self.config, self.family, self.keep, self.replaces_output = model.config, family, keep, replaces_output
        self.modules = _matching(model, family.attention, layers)
        self.patch_modules = _matching(model, family.patches) if family.patches else {}
        self.calls: list[AttentionCall] = []
        self.prompt_length = 0
        self.patches: dict[str, torch.Tensor] = {}
        self.feature_map: tuple[int, int] | None = None
        self._embedded_patches: dict[str, torch.Tensor] = {}  # seen before the first pass
        self._heads = None if heads is None else list(heads)
        self._wanted = queries
        self._owner = threading.get_ident()
        self._embedded: torch.Tensor | None = None  # ids that were embedded since the last pass
        self._columns: torch.Tensor | None = None  # (rows, image tokens), -1 where a row has fewer
        self._is_padded = False  # whether some row has fewer
        self._ids: torch.Tensor | None = None  # of the last pass
        self._keys = 0  # of all passes that a cache has kept
        self._is_open = self._has_cache = False

    def is_for_this_thread(self) -> bool:
        # Gradient checkpointing recomputes in a thread of autograd's, which Python did not start.
        return threading.get_ident() == self._owner or isinstance(threading.current_thread(), threading._DummyThread)

    def hook(self, function: Callable[..., None]) -> Callable[..., None]:
        """A hook of torch that calls the function, and changes nothing. It is deaf to other threads."""

        def hook(*args: Any) -> None:
            if self.is_for_this_thread():
                function(*args)

        return hook

    def begin(self, arguments: dict[str, Any]) -> None:
        """A forward pass begins: of a new run, or of the next token of a generation."""
        cache, ids = arguments.get("past_key_values"), arguments.get("decoder_input_ids")
        if ids is None:
            ids = self._embedded if arguments.get("input_ids") is None else arguments["input_ids"]
        if ids is None and arguments.get("labels") is not None:  # encoder-decoders make their ids from labels
            ids = arguments["labels"].flatten(0, -2)
        if ids is None:
            raise ValueError(
                "Attention is recorded only where a model is called with token ids, and not with `inputs_embeds`."
            )
        is_next = bool(cache.get_seq_length() > 0) if cache is not None else self._is_longer(ids)
        if not (self.calls and is_next):
            self.calls, self.patches, self._embedded_patches, self._keys = [], self._embedded_patches, {}, 0
            columns = self.family.columns
            self._columns = None if columns is None else _places(columns(self.config, {**arguments, "input_ids": ids}))
            self._is_padded = self._columns is not None and bool((self._columns < 0).any())
            self.prompt_length = ids.shape[1]
        elif cache is not None and ids.shape[1] > 1:
            raise ValueError(
                "Attention is recorded if the prompt is read in one pass, and then one token is written per pass. "
                "Leave out assisted generation, `prefill_chunk_size` and caches of an earlier run."
            )
        elif cache is None and self._wanted == "auto":  # a generation after all
            call = self.calls[-1]
            call.attention = {name: attention[:, :, -1:].clone() for name, attention in call.attention.items()}
            call.queries = None if call.queries is None else call.queries[-1:]
        self._keys = ids.shape[1] if cache is None else self._keys + ids.shape[1]
        self._ids, self._embedded, self._is_open, self._has_cache = ids, None, True, cache is not None
        self.calls.append(AttentionCall())

    def embed(self, ids: torch.Tensor) -> None:
        """For writers that are called with embeddings: the ids that were embedded before."""
        self._embedded = ids

    def see(self, feature_map: torch.Tensor) -> None:
        """The image was encoded. Features that were computed before may not say how they lie on it."""
        self.feature_map = (feature_map.shape[1], feature_map.shape[2]) if feature_map.dim() == 4 else None

    def _is_longer(self, ids: torch.Tensor | None) -> bool:
        """Whether these are the ids of the last pass with a token more. Beams may have changed places."""
        if ids is None or self._ids is None or ids.shape[1] != self._ids.shape[1] + 1:
            return False
        before = set(map(tuple, self._ids.tolist()))
        return all(tuple(row[:-1]) in before for row in ids.tolist())

    def end(self) -> None:
        """The forward pass has ended. Its layers are put in the order in which they were asked for."""
        self._is_open = False
        call = self.calls[-1]
        call.attention = {name: call.attention[name] for name in self.modules.values() if name in call.attention}

    @property
    def rows(self) -> int:
        """The rows that were decoded: one for each beam, or each sequence to sample, of each input."""
        return len(next(iter(self.calls[0].attention.values())))

    def image_tokens(self) -> list[int]:
        """The number of image tokens, or of what they stand for, in each row."""
        if self.patches:
            return [next(iter(self.patches.values())).shape[-1]] * self.rows
        if self._columns is None:
            return [next(iter(self.calls[0].attention.values())).shape[-1]] * self.rows
        counts = (self._columns >= 0).sum(dim=1)
        return counts.repeat_interleave(self.rows // len(counts)).tolist()

    def queries(self, length: int, device: torch.device) -> torch.Tensor:
        """The positions of a pass that are kept: in a generation the last, whose token is about to be chosen."""
        if self.keep is None and not isinstance(self._wanted, str):
            # Some models have queries of the image in front of those of the tokens.
            return (self._wanted.to(device) + length - self._ids.shape[1]).clamp(min=0)  # type: ignore[union-attr]
        only_last = self.keep is None and (self._wanted == "last" or (self._wanted == "auto" and self._has_cache))
        return torch.arange(length - 1 if only_last else 0, length, device=device)

    def take(self, module: nn.Module, attention: torch.Tensor) -> None:
        """Takes the attention of all queries of a module that returns it."""
        queries = self.queries(attention.shape[2], attention.device)
        self.store(module, attention if self.keep is not None else _rows_of(attention, queries), queries)

    def compute(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Computes the attention of a module that calls the attention interface, for the queries that are kept."""
        is_patch, captions = module in self.patch_modules, 1
        rows = 0 if self._ids is None else len(self._ids)
        if not is_patch and rows > len(query):  # captions of one image share its keys, as one row of queries
            captions = rows // len(query)
            query = query.unflatten(2, (captions, -1)).transpose(1, 2).flatten(0, 1)
            key = key.repeat_interleave(captions, dim=0)
        length = query.shape[2]
        queries = torch.arange(length, device=query.device) if is_patch else self.queries(length, query.device)
        if self.keep is not None and not self.replaces_output and not is_patch:
            # Computed once more in the backward pass, for which the attention of all heads would else be kept.
            def kept(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                return self.keep(attention_of(module, query, key, attention_mask, queries, **kwargs))  # type: ignore[misc]

            attention = checkpoint(kept, query, key, use_reentrant=False)
            self.put(module, attention, queries)
            return attention
        attention = attention_of(module, query, key, attention_mask, queries, **kwargs)
        if is_patch:
            (self.patches if self._is_open else self._embedded_patches)[self.patch_modules[module]] = attention
        else:
            self.store(module, attention, queries)
        return attention

    def store(self, module: nn.Module, attention: torch.Tensor, queries: torch.Tensor) -> None:
        """Takes the attention of the kept queries to all keys, and keeps that to the image."""
        if self.keep is not None:
            attention = self.keep(attention)
        else:
            if self._heads is not None:
                count = attention.shape[1]
                if not all(-count <= head < count for head in self._heads):
                    raise ValueError(f"`heads` must be from 0 to {count - 1}, got {self._heads}.")
                attention = attention[:, self._heads]
            attention = self.to_image(attention)
        self.put(module, attention, queries)

    def put(self, module: nn.Module, attention: torch.Tensor, queries: torch.Tensor) -> None:
        """Puts what is kept of a module into the record."""
        if self._is_open:  # else gradient checkpointing computes it once more
            self.calls[-1].attention[self.modules[module]] = attention
            self.calls[-1].queries = queries

    def to_image(self, attention: torch.Tensor) -> torch.Tensor:
        """Of attention to all keys, that to image tokens: `(rows, heads, queries, image tokens)`."""
        if self._columns is None:
            return attention
        # A sliding cache has dropped its first keys.
        dropped = max(0, self._keys - attention.shape[-1])
        columns = self._columns.to(attention.device) - dropped
        columns = columns.repeat_interleave(len(attention) // len(columns), dim=0)  # beams
        index = columns.clamp(min=0)[:, None, None].expand(-1, *attention.shape[1:3], -1)
        found = attention.gather(-1, index)
        return found * (columns >= 0)[:, None, None] if self._is_padded or dropped else found

    def to_patches(self, weights: torch.Tensor) -> torch.Tensor:
        """From weights of image tokens, `(..., rows, heads, queries, tokens)`, to those of patches, if others."""
        if not self.patches:
            return weights
        # Where image tokens look, as the mean over layers and heads: (rows, image tokens, patches)
        patches = torch.stack([a.mean(dim=1).to(weights) for a in self.patches.values()]).mean(dim=0)
        return weights @ patches.repeat_interleave(weights.shape[-4] // len(patches), dim=0).unsqueeze(1)


@contextmanager
def record_attention(
    model: PreTrainedModel,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: str | torch.Tensor = "auto",
    family: Family | None = None,
    keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
    replaces_output: bool = True,
) -> Iterator[AttentionRecord]:
    r"""
    Records the attention from words to image tokens while the model runs, at the memory cost of SDPA: probabilities
    are computed only for the words, and kept only for the image.

    The record is differentiable if gradients are on. The model is left as it was, also after an exception.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model = AutoModelForImageTextToText.from_pretrained(folder)
    >>> processor = AutoProcessor.from_pretrained(folder)
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> inputs = processor(images=image, return_tensors="pt")
    >>> with hf_vg.record_attention(model) as record:
    ...     outputs = model.generate(**inputs, num_beams=3, return_dict_in_generate=True)
    >>> word, word_map = hf_vg.word_maps(record, outputs, processor, inputs)[0][0]
    >>> word_map.shape
    torch.Size([8, 8])
    ```

    Args:
        model ([`PreTrainedModel`]):
            A model of one of the supported families.
        layers (`Sequence[int]`, *optional*):
            Which layers to record, of those that look at the image. By default all. Negative numbers count from the
            last.
        heads (`Sequence[int]`, *optional*):
            Which heads to record. By default all.
        queries (`str` or `torch.Tensor`, *optional*, defaults to `"auto"`):
            `"all"` positions of a pass, only the `"last"`, or `"auto"`: the last where the model has a cache, as it
            does in `generate`, and else all. Or the positions themselves, of shape `(rows, queries)`: for each row of
            token ids the places whose attention is wanted. Nothing is computed for other places. Rows with fewer are
            padded with any number, and what is recorded there means nothing.
        family ([`Family`], *optional*):
            How the model looks at images, for a model that is not in the table of families.
        keep (`Callable`, *optional*):
            What to keep instead of the attention to the image, at the memory cost of eager attention: it takes the
            attention of all heads and queries to all keys, and what it returns is recorded. The model computes its
            output from the tensor that `keep` is given, so that the output can be differentiated by it.
        replaces_output (`bool`, *optional*, defaults to `True`):
            Whether the output is computed so. Else it stays that of SDPA, and what `keep` is given is not held in
            memory: it is computed once more in the backward pass.

    Yields:
        [`AttentionRecord`]: What was recorded, for [`word_maps`].
    """
    if isinstance(queries, str) and queries not in ("auto", "all", "last"):
        raise ValueError(f'`queries` must be "auto", "all" or "last", got {queries!r}.')
    # Wrappers of other libraries, such as PEFT's or torch's, have the model within.
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if inner is None:
        raise ValueError(f"A {type(model).__name__} is not a transformers model.")
    family = family_of(inner) if family is None else family
    record = AttentionRecord(inner, family, layers, heads, queries, keep, replaces_output)
    writer = inner.get_submodule(family.writer)
    names = list(inspect.signature(writer.forward).parameters)

    def begin(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        record.begin({**dict(zip(names, args, strict=False)), **kwargs})

    with ExitStack() as stack:

        def after(module: nn.Module, function: Callable[[nn.Module, tuple, Any], None], **kwargs: Any) -> None:
            stack.callback(module.register_forward_hook(record.hook(function), **kwargs).remove)

        stack.callback(writer.register_forward_pre_hook(record.hook(begin), with_kwargs=True).remove)
        after(writer, lambda module, args, output: record.end(), always_call=True)
        if family.tokens is not None:
            after(inner.get_submodule(family.tokens), lambda module, args, output: record.embed(args[0]))
        if family.feature_map is not None:
            after(inner.get_submodule(family.feature_map), lambda module, args, output: record.see(output))
        if family.returned is None:
            stack.enter_context(_recorded_interface(inner, [*record.modules, *record.patch_modules], record))
        else:
            returned = family.returned
            for module in record.modules:
                after(module, lambda module, args, output: record.take(module, returned(args, output)))
        yield record


def _matching(model: PreTrainedModel, pattern: str, layers: Sequence[int] | None = None) -> dict[nn.Module, str]:
    found = [(module, name) for name, module in model.named_modules() if re.fullmatch(pattern, name)]
    if not found:
        raise ValueError(
            f"A {type(model).__name__} has no module whose name matches {pattern!r}, by which its words would look at "
            "the image. Give the whole model, such as one with a language model head."
        )
    if layers is not None:
        wrong = [layer for layer in layers if not -len(found) <= layer < len(found)]
        if wrong:
            raise ValueError(f"There is no layer {wrong[0]}: {len(found)} layers look at the image.")
        found = [found[layer] for layer in layers]
    return dict(found)


def _places(is_image: torch.Tensor) -> torch.Tensor:
    """The positions of image tokens in each row, padded with -1."""
    if not is_image.any():
        raise ValueError("There is no image token in these inputs: the text must have a place for the image.")
    rows = [row.nonzero().flatten() for row in is_image]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


# Which records want the attention of a module, and how each model attended before it was recorded.
_RECORDS: dict[nn.Module, tuple[AttentionRecord, ...]] = {}
_IMPLEMENTATIONS: dict[PreTrainedModel, tuple[str, int]] = {}
_LOCK = threading.Lock()


@contextmanager
def _recorded_interface(
    model: PreTrainedModel, modules: Sequence[nn.Module], record: AttentionRecord
) -> Iterator[None]:
    """Has the sub-models of these modules attend through [`_attend_and_record`]."""
    configs = {id(module.config) for module in modules}
    owners = []
    for submodel in model.modules():
        if isinstance(submodel, PreTrainedModel) and id(submodel.config) in configs:
            configs.remove(id(submodel.config))  # the outermost of those that share a config
            owners.append(submodel)
    with _LOCK:
        states = [_IMPLEMENTATIONS.get(owner, (owner.config._attn_implementation, 0)) for owner in owners]
        for owner, (before, _) in zip(owners, states, strict=True):
            if before not in _RECORDING:
                raise ValueError(
                    f"{type(owner).__name__} runs with {before!r} attention, which cannot be recorded. Call "
                    '`model.set_attn_implementation("sdpa")` first.'
                )
        for owner, (before, count) in zip(owners, states, strict=True):
            if count == 0:
                owner.set_attn_implementation(_RECORDING[before])
            _IMPLEMENTATIONS[owner] = before, count + 1
        for module in modules:
            _RECORDS[module] = (*_RECORDS.get(module, ()), record)
    try:
        yield
    finally:
        with _LOCK:
            for module in modules:
                others = tuple(other for other in _RECORDS.pop(module) if other is not record)
                if others:
                    _RECORDS[module] = others
            for owner in owners:
                before, count = _IMPLEMENTATIONS.pop(owner)
                if count == 1:
                    owner.set_attn_implementation(before)
                else:
                    _IMPLEMENTATIONS[owner] = before, count - 1


def _attend_and_record(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    """Attends as the model did before, and has the records of this thread compute what they keep."""
    config: Any = module.config
    if config._attn_implementation == _RECORDING["sdpa"]:
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    else:
        attend = sys.modules[type(module).__module__].eager_attention_forward
    output = attend(module, query, key, value, attention_mask, **kwargs)
    for record in _RECORDS.get(module, ()):
        if record.is_for_this_thread():
            attention = record.compute(module, query, key, attention_mask, **kwargs)
            if record.keep is not None and record.replaces_output and module in record.modules:
                # The output is computed once more, so that it depends on what is kept.
                values = value.repeat_interleave(attention.shape[1] // value.shape[1], dim=1)
                values = values.repeat_interleave(len(attention) // len(value), dim=0)
                context = (attention @ values).transpose(1, 2)  # (rows, queries, heads, size)
                output = (context.reshape(len(value), -1, *context.shape[2:]), None)
    return output


_RECORDING = {"sdpa": "recorded_sdpa", "eager": "recorded_eager"}
for before, make_mask in {"sdpa": sdpa_mask, "eager": eager_mask}.items():
    AttentionInterface.register(_RECORDING[before], _attend_and_record)
    AttentionMaskInterface.register(_RECORDING[before], make_mask)


def attention_of(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    queries: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """The probabilities of some queries, of shape `(rows, heads, queries, keys)`, as eager attention has them."""
    rows, heads, length, size = query.shape
    keys = key.shape[2]
    query = _rows_of(query, queries) * (size**-0.5 if scaling is None else scaling)
    # Heads that share their keys are more queries of the same keys, which are not copied.
    scores = query.reshape(rows, key.shape[1], -1, size) @ key.transpose(2, 3)
    scores = scores.view(rows, heads, -1, keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + _rows_of(position_bias, queries)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    lowest = torch.finfo(scores.dtype).min  # and not infinity: a padded query may see no key at all
    if attention_mask is not None:
        mask = (_rows_of(attention_mask, queries) if attention_mask.shape[2] > 1 else attention_mask)[..., :keys]
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    elif is_causal and length > 1:  # the mask that SDPA implies
        places = queries[..., None] if queries.dim() == 1 else queries[:, None, :, None]
        scores = scores.masked_fill(torch.arange(keys, device=key.device) > places, lowest)
    return scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)


def _rows_of(tensor: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Of `(rows, heads, length, size)` the queries: places for all rows, or for each row its own."""
    if queries.dim() == 1:
        return tensor[:, :, queries]
    tensor = tensor.expand(len(queries), -1, -1, -1)
    return tensor.gather(2, queries[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))


__all__ = ["AttentionCall", "AttentionRecord", "record_attention"]
