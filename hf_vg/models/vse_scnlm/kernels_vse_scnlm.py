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
"""Encodes captions faster when VseScnlm generates."""

from collections.abc import Callable
from typing import Any

import torch


def encode_alike(encoder: Any, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """
    Encodes sentences without dropout, and reads first words that several sentences share only once. The plain version
    is [`encode_each`]. Describing an image is 2.7x faster with this kernel (benchmarks/scnlm.py).
    """
    if encoder.rnn is None:
        return encode_each(encoder, input_ids, lengths)
    size = encoder.embed_tokens.num_embeddings
    encoded = encoder.embed_tokens.weight.new_empty(len(input_ids), encoder.rnn.hidden_size)
    # `place` is the index of each sentence's first words among all distinct beginnings, `state` the states after them.
    place, state = torch.zeros_like(lengths), None
    for position in range(int(lengths.max())):
        goes_on = lengths > position
        # A beginning is identified by the beginning before it and one more word.
        beginnings = place[goes_on] * size + input_ids[goes_on, position]
        beginnings, place[goes_on] = torch.unique(beginnings, return_inverse=True)
        if state is not None:
            before = beginnings // size
            state = tuple(part[:, before] for part in state) if isinstance(state, tuple) else state[:, before]
        output, state = encoder.rnn(encoder.embed_tokens(beginnings % size).unsqueeze(1), state)
        ends = lengths == position + 1
        encoded[ends] = output[place[ends], 0]
    return encoded


def encode_each(encoder: Callable, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Encodes each sentence from its first word to its last."""
    mask = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths.unsqueeze(1)
    return encoder(input_ids, mask)[-1]
