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
"""
A training step of the grounded sentence encoder on a CPU, as it is and with the plain LSTM in place of its own
recurrence, which gives the same gradients; side by side in one run. Both leave the optimizer out.

Captions have 7 to 17 words, vectors are the paper's sizes, and the vocabulary is that of Flickr8k.

```bash
python benchmarks/grounded_encoder.py
python benchmarks/grounded_encoder.py --batch_size 128 --rounds 5
```
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from unittest import mock

import torch

from hf_vg.models.self_attn_grounded_encoder import (
    SelfAttnGroundedEncoderConfig,
    SelfAttnGroundedEncoderForPreTraining,
    kernels_self_attn_grounded_encoder,
)


SYSTEMS = {
    "Att. CAP2IMG": {"objective": "cap2img"},
    "Att. CAP2ALL": {"objective": "cap2all"},
    "CAP2IMG": {"objective": "cap2img", "use_attention": False, "hidden_size": 2048},
    "CAP2ALL": {"objective": "cap2all", "use_attention": False, "hidden_size": 2048},
}
VOCABULARY = 2600


def make_step(settings: dict, batch_size: int):
    torch.manual_seed(0)
    config = SelfAttnGroundedEncoderConfig(vocab_size=VOCABULARY, embedding_size=100, **settings)
    model = SelfAttnGroundedEncoderForPreTraining(config).train()
    lengths = torch.randint(7, 18, (batch_size, 1))
    lengths[0] = 17
    ids = torch.randint(3, VOCABULARY, (batch_size, 17))
    mask = torch.arange(17) < lengths
    batch = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(~mask, -100),
        "image_features": torch.randn(batch_size, config.feature_size),
    }

    def step(plain: bool) -> float:
        model.zero_grad()
        plain_lstm = kernels_self_attn_grounded_encoder.plain_lstm
        swap = mock.patch.object(kernels_self_attn_grounded_encoder, "train_lstm", plain_lstm)
        with swap if plain else nullcontext():
            start = time.perf_counter()
            model(**batch).loss.backward()
            return time.perf_counter() - start

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=128, help="captions")
    parser.add_argument("--rounds", type=int, default=3, help="number of steps; the median is printed")
    arguments = parser.parse_args()
    print(f"{arguments.batch_size} captions per step, {torch.get_num_threads()} threads")
    for name, settings in SYSTEMS.items():
        step = make_step(settings, arguments.batch_size)
        step(plain=False)
        times = [(step(plain=True), step(plain=False)) for _ in range(arguments.rounds)]
        plain, ours = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:13} {ours:6.2f} s, with the plain LSTM {plain:6.2f} s: {plain / ours:.2f}x")


if __name__ == "__main__":
    main()
