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
from torch.utils.hooks import RemovableHandle
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
            By the name of the module, of shape `(rows, heads, queries, image tokens)`.
        queries (`torch.LongTensor` of shape `(queries,)`):
            Which positions of this pass the queries are.
    """

    attention: dict[str, torch.Tensor] = field(default_factory=dict)
    queries: torch.Tensor | None = None


class AttentionRecord:
    r"""
    What [`record_attention`] fills while the model runs. A new `generate`, or a new call of the model, begins anew.

    Attributes:
        calls (`list[AttentionCall]`):
            The forward passes: one per generated token, or a single one.
        prompt_length (`int`):
            The number of tokens of the first pass.
        patches (`dict[str, torch.Tensor]`):
            Where image tokens that are not patches look: by the name of the module, `(rows, heads, tokens, patches)`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        queries: str = "auto",
        keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ):
        self.config, self.family, self.keep = model.config, family, keep
        self.modules = _matching(model, family.attention, layers)
        self.patch_modules = _matching(model, family.patches) if family.patches else {}
        self.calls: list[AttentionCall] = []
        self.prompt_length = 0
        self.patches: dict[str, torch.Tensor] = {}
        self._embedded_patches: dict[str, torch.Tensor] = {}  # seen before the first pass
        self._heads = None if heads is None else torch.as_tensor(heads)
        self._wanted = queries
        self._owner = threading.get_ident()
        self._embedded: torch.Tensor | None = None  # ids that were embedded since the last pass
        self._columns: torch.Tensor | None = None  # (rows, image tokens), -1 where a row has fewer
        self._ids: torch.Tensor | None = None  # of the last pass
        self._keys = 0  # of all passes that a cache has kept
        self._is_open = self._has_cache = False

    def is_for_this_thread(self) -> bool:
        # Gradient checkpointing recomputes in a thread of autograd's, which Python did not start.
        return threading.get_ident() == self._owner or isinstance(threading.current_thread(), threading._DummyThread)

    def begin(self, arguments: dict[str, Any]) -> None:
        """A forward pass begins: of a new run, or of the next token of a generation."""
        cache, ids = arguments.get("past_key_values"), arguments.get("decoder_input_ids")
        if ids is None:
            ids = self._embedded if arguments.get("input_ids") is None else arguments["input_ids"]
        if ids is None:
            raise ValueError(
                "Attention is recorded only where a model is called with token ids, and not with `inputs_embeds`."
            )
        is_next = cache.get_seq_length() > 0 if cache is not None else self._is_longer(ids)
        if not (self.calls and is_next):
            self.calls, self.patches, self._embedded_patches, self._keys = [], self._embedded_patches, {}, 0
            columns = self.family.columns
            self._columns = None if columns is None else _places(columns(self.config, {**arguments, "input_ids": ids}))
            self.prompt_length = ids.shape[1]
        self._keys = ids.shape[1] if cache is None else self._keys + ids.shape[1]
        self._ids, self._embedded, self._is_open, self._has_cache = ids, None, True, cache is not None
        self.calls.append(AttentionCall())

    def embed(self, ids: torch.Tensor) -> None:
        """For writers that are called with embeddings: the ids that were embedded before."""
        self._embedded = ids

    def _is_longer(self, ids: torch.Tensor | None) -> bool:
        """Whether these are the ids of the last pass with a token more. Beams may have changed places."""
        if ids is None or self._ids is None or ids.shape[1] != self._ids.shape[1] + 1:
            return False
        before = set(map(tuple, self._ids.tolist()))
        return all(tuple(row[:-1]) in before for row in ids.tolist())

    def end(self, *hook_arguments: Any) -> None:
        """The forward pass has ended."""
        if self.is_for_this_thread():
            self._is_open = False

    def queries(self, length: int, device: torch.device) -> torch.Tensor:
        """The positions of a pass that are kept: in a generation the last, whose token is about to be chosen."""
        only_last = self._wanted == "last" or (self._wanted == "auto" and self._has_cache)
        return torch.arange(length - 1 if only_last else 0, length, device=device)

    def store(self, module: nn.Module, attention: torch.Tensor, queries: torch.Tensor) -> None:
        """Takes the attention of the kept queries to all keys, and keeps that to the image."""
        if module in self.patch_modules:
            (self.patches if self._is_open else self._embedded_patches)[self.patch_modules[module]] = attention
            return
        if self.keep is None:
            if self._heads is not None:
                attention = attention[:, self._heads.to(attention.device)]
            attention = self.to_image(attention)
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
        return attention.gather(-1, index) * (columns >= 0)[:, None, None]


@contextmanager
def record_attention(
    model: PreTrainedModel,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: str = "auto",
    family: Family | None = None,
    keep: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[AttentionRecord]:
    r"""
    Records the attention from words to image tokens while the model runs, at the memory cost of SDPA: probabilities
    are computed only for the words, and kept only for the image.

    ```python
    >>> with record_attention(model) as record:
    ...     outputs = model.generate(**inputs, num_beams=3, return_dict_in_generate=True)
    >>> word_maps(record, outputs, processor, inputs)[0]
    [("a", tensor of shape (24, 24)), ("dog", ...), ...]
    ```

    With gradients on, what is recorded is part of the graph. The model is left as it was, also after an exception.

    Args:
        model ([`PreTrainedModel`]):
            A model of one of the supported families.
        layers (`Sequence[int]`, *optional*):
            Which layers to record, of those that look at the image. By default all. Negative numbers count from the
            last.
        heads (`Sequence[int]`, *optional*):
            Which heads to record. By default all.
        queries (`str`, *optional*, defaults to `"auto"`):
            `"all"` positions of a pass, only the `"last"`, or `"auto"`: the last where the model has a cache, as it
            does in `generate`, and else all.
        family ([`Family`], *optional*):
            How the model looks at images, for a model that is not in the table of families.
        keep (`Callable`, *optional*):
            What to keep instead of the attention to the image, at the memory cost of eager attention: it takes the
            attention of all heads and queries to all keys, and what it returns is recorded. The model computes its
            output from the tensor that `keep` is given, so that the output can be differentiated by it.
    """
    if queries not in ("auto", "all", "last"):
        raise ValueError(f'`queries` must be "auto", "all" or "last", got {queries!r}.')
    family = family_of(model) if family is None else family
    record = AttentionRecord(model, family, layers, heads, queries, keep)
    with ExitStack() as stack:
        writer = model.get_submodule(family.writer)
        if family.tokens is not None:
            stack.callback(_hook_tokens(model.get_submodule(family.tokens), record).remove)
        stack.callback(_hook_inputs(writer, record).remove)
        stack.callback(writer.register_forward_hook(record.end, always_call=True).remove)
        if family.returned is None:
            stack.enter_context(_recorded_interface(model, [*record.modules, *record.patch_modules], record))
        else:
            for module in record.modules:
                stack.callback(_hook_attention(module, record, family.returned).remove)
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


def _hook_inputs(module: nn.Module, record: AttentionRecord) -> RemovableHandle:
    names = list(inspect.signature(module.forward).parameters)

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if record.is_for_this_thread():
            record.begin({**dict(zip(names, args, strict=False)), **kwargs})

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _hook_tokens(embeddings: nn.Module, record: AttentionRecord) -> RemovableHandle:
    def hook(module: nn.Module, args: tuple) -> None:
        if record.is_for_this_thread():
            record.embed(args[0])

    return embeddings.register_forward_pre_hook(hook)


def _hook_attention(
    module: nn.Module, record: AttentionRecord, returned: Callable[[Any], torch.Tensor]
) -> RemovableHandle:
    def hook(module: nn.Module, args: tuple, output: Any) -> None:
        if record.is_for_this_thread():
            attention = returned(output)
            if record.keep is not None:
                record.store(module, record.keep(attention), torch.arange(attention.shape[2]))
                return
            queries = record.queries(attention.shape[2], attention.device)
            record.store(module, attention[:, :, queries], queries)

    return module.register_forward_hook(hook)


# Which records want the attention of a module, and how each model attended before it was recorded.
_RECORDS: dict[nn.Module, list[AttentionRecord]] = {}
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
        for owner in owners:
            before, count = _IMPLEMENTATIONS.get(owner, (owner.config._attn_implementation, 0))
            if before not in _RECORDING:
                raise ValueError(
                    f"{type(owner).__name__} attends by {before!r}, of which no attention can be recorded. Call "
                    '`model.set_attn_implementation("sdpa")` first.'
                )
            if count == 0:
                owner.set_attn_implementation(_RECORDING[before])
            _IMPLEMENTATIONS[owner] = before, count + 1
        for module in modules:
            _RECORDS.setdefault(module, []).append(record)
    try:
        yield
    finally:
        with _LOCK:
            for module in modules:
                _RECORDS[module].remove(record)
                if not _RECORDS[module]:
                    del _RECORDS[module]
            for owner in owners:
                before, count = _IMPLEMENTATIONS.pop(owner)
                if count == 1:
                    owner.set_attn_implementation(before)
                else:
                    _IMPLEMENTATIONS[owner] = before, count - 1


def _attend_with_sdpa(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    return _attend_and_record(ALL_ATTENTION_FUNCTIONS["sdpa"], module, query, key, value, attention_mask, **kwargs)


def _attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return _attend_and_record(eager, module, query, key, value, attention_mask, **kwargs)


_RECORDING = {"sdpa": "recorded_sdpa", "eager": "recorded_eager"}
AttentionInterface.register("recorded_sdpa", _attend_with_sdpa)
AttentionInterface.register("recorded_eager", _attend_eagerly)
AttentionMaskInterface.register("recorded_sdpa", sdpa_mask)
AttentionMaskInterface.register("recorded_eager", eager_mask)


def _attend_and_record(
    attend: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    output = attend(module, query, key, value, attention_mask, **kwargs)
    for record in _RECORDS.get(module, ()):
        if record.is_for_this_thread():
            is_patch, length = module in record.patch_modules, query.shape[2]
            wants_all = is_patch or record.keep is not None
            queries = torch.arange(length, device=query.device) if wants_all else record.queries(length, query.device)
            attention = attention_of(module, query, key, attention_mask, queries, **kwargs)
            if record.keep is not None and not is_patch:
                # The output is computed once more, so that it depends on what is kept.
                value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
                output = ((attention @ value).transpose(1, 2).contiguous(), None)
                attention = record.keep(attention)
            record.store(module, attention, queries)
    return output


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
    query = query[:, :, queries] * (size**-0.5 if scaling is None else scaling)
    # Heads that share their keys are more queries of the same keys, which are not copied.
    scores = query.reshape(rows, key.shape[1], -1, size) @ key.transpose(2, 3)
    scores = scores.view(rows, heads, -1, keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias[:, :, queries]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    lowest = torch.finfo(scores.dtype).min  # and not infinity: a padded query may see no key at all
    if attention_mask is not None:
        mask = attention_mask[:, :, queries if attention_mask.shape[2] > 1 else slice(None), :keys]
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    elif is_causal and length > 1:  # the mask that SDPA implies
        scores = scores.masked_fill(torch.arange(keys, device=key.device) > queries[:, None], lowest)
    return scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)


__all__ = ["AttentionCall", "AttentionRecord", "record_attention"]
