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
Describing images with the structure-content language model on a CPU, as it is and with the plain versions of its
kernels, which give the same captions; side by side in one run.

The sizes are those of the recipe for Flickr8k; templates and words are those of scenes.

```bash
python benchmarks/scnlm.py
```
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from unittest import mock

import torch

from hf_vg.data import (
    TaggedCaptionCollator,
    load_scenes,
    tag_captions,
    tag_inventory,
    tagged_rows,
    train_word_tokenizer,
)
from hf_vg.data.tokenizers import special_token_fields
from hf_vg.models.vse_scnlm import (
    VseScnlmConfig,
    VseScnlmForConditionalGeneration,
    generation_vse_scnlm,
    kernels_vse_scnlm,
)


PLAIN = {"encode_alike": kernels_vse_scnlm.encode_each}


def make_model() -> VseScnlmForConditionalGeneration:
    scenes = load_scenes(500, 0, 0, image_size=32)["train"]
    captions = [caption for group in scenes["captions"] for caption in group]
    tokenizer = train_word_tokenizer(captions)
    tags = tag_captions(captions, tokenizer, "scenes")
    torch.manual_seed(0)
    config = VseScnlmConfig(
        **special_token_fields(tokenizer),
        sentence_encoder="gru",
        word_size=300,
        num_factors=300,
        tags=tag_inventory(tags),
    )
    model = VseScnlmForConditionalGeneration(config).eval()
    rows = tagged_rows(captions, tags, tokenizer, config.tags, torch.zeros(len(captions), 1))
    everything = TaggedCaptionCollator(config.pad_token_id)(rows.remove_columns("content_embeds"))
    model.remember(everything["labels"], everything["tag_ids"], num_sentences=500)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Describing images, with and without each kernel.")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--num_candidates", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = make_model()
    contents = torch.randn(arguments.images, model.config.hidden_size)

    def describe(plain: str | None) -> tuple[float, list[list[int]]]:
        torch.manual_seed(0)
        swap = nullcontext() if plain is None else mock.patch.object(generation_vse_scnlm, plain, PLAIN[plain])
        with swap:
            start = time.perf_counter()
            sequences = model.generate(content_embeds=contents, num_candidates=arguments.num_candidates)
            return time.perf_counter() - start, sequences.tolist()

    print(f"{arguments.images} images, {arguments.num_candidates} candidates, {model.config.num_templates} templates")
    _, expected = describe(None)
    seconds: dict[str | None, list[float]] = {name: [] for name in (None, *PLAIN)}
    for _ in range(arguments.rounds):
        for name, taken in seconds.items():
            elapsed, sequences = describe(name)
            assert sequences == expected, name
            taken.append(elapsed)
    ours = statistics.median(seconds[None])
    print(f"  as it is                   {ours:7.2f} s")
    for name in PLAIN:
        plain = statistics.median(seconds[name])
        print(f"  without {name:<18} {plain:7.2f} s   ratio {plain / ours:5.2f}x")


if __name__ == "__main__":
    main()
