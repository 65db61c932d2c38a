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
"""The outputs of SpatialTransformerCaptioner, and its cache."""

from dataclasses import dataclass

import torch
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput


@dataclass
class SpatialTransformerCaptionerOutput(Seq2SeqLMOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption`. If you pass `num_items_in_batch`, the sum over tokens divided by that number.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` if the model is in training mode and gets `labels`: then it only computes the
        loss.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of the words, averaged over the tokens of the batch.
    caption_losses (`torch.FloatTensor` of shape `(captions,)`, *optional*):
        The share of each caption in `loss`. They sum to `loss`.
    """

    loss_caption: torch.Tensor | None = None
    caption_losses: torch.Tensor | None = None


class SpatialTransformerCaptionerCache(EncoderDecoderCache):
    """The keys and values of words and of locations, one entry per layer. `torch.export` can handle it."""


def flatten_cache(cache: SpatialTransformerCaptionerCache) -> tuple[list[tuple], None]:
    """Returns, for each layer, the keys and values of words and the keys and values of locations."""
    layers = zip(cache.self_attention_cache, cache.cross_attention_cache, strict=True)
    return [(*words[:2], *locations[:2]) for words, locations in layers], None


torch.utils._pytree.register_pytree_node(
    SpatialTransformerCaptionerCache,
    flatten_cache,
    lambda layers, _: SpatialTransformerCaptionerCache(layers),
    serialized_type_name="SpatialTransformerCaptionerCache",
    flatten_with_keys_fn=lambda cache: (
        [(torch.utils._pytree.SequenceKey(i), layer) for i, layer in enumerate(flatten_cache(cache)[0])],
        None,
    ),
)
