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
Measures what supervision of attention costs: a training step of GroundedVisualBertForVGP against an unsupervised step
of transformers' VisualBertModel, whose attention is always eager, at BERT's base size.

    python benchmarks/attention_supervision.py

The same inputs go through all of them, alternating, in one run. Compare the ratios: machines are noisy.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch
from transformers import VisualBertConfig, VisualBertModel

from hf_vg.models.grounded_visual_bert import GroundedVisualBertConfig, GroundedVisualBertForVGP


BATCH, TOKENS, REGIONS, PHRASES, PAIRS = 8, 48, 37, 8, 4
LIMITS = {"direct": 1.15, "rollout": 1.25}  # of time; of memory it is MEMORY_LIMIT for both
MEMORY_LIMIT = 1.25
METHODS = ("none", "indirect", "direct", "rollout")


def make_inputs() -> dict[str, torch.Tensor]:
    """Two captions of some 20 word pieces, 36 boxes and the whole image, and phrases of three pieces."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(1, TOKENS - 4, (BATCH, PHRASES + 2 * PAIRS), generator=generator)
    spans = torch.stack([starts, starts + 3], dim=-1)
    boxes = torch.randint(1, REGIONS, (BATCH, PHRASES), generator=generator)
    return {
        "input_ids": torch.randint(1000, 30000, (BATCH, TOKENS), generator=generator),
        "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
        "visual_embeds": torch.randn(BATCH, REGIONS, 768, generator=generator),
        "visual_attention_mask": torch.ones(BATCH, REGIONS, dtype=torch.long),
        "phrase_spans": spans[:, :PHRASES],
        "phrase_boxes": torch.nn.functional.one_hot(boxes, REGIONS),
        "pair_spans": spans[:, PHRASES:].unflatten(1, (PAIRS, 2)),
        "labels": torch.randint(0, 3, (BATCH,), generator=generator),
        "pair_labels": torch.randint(0, 5, (BATCH, PAIRS), generator=generator),
    }


def make_step(which: str):
    """A function that runs one training step without the optimizer, which is the same for all."""
    torch.manual_seed(0)
    inputs = make_inputs()
    if which == "VisualBertModel":
        model = VisualBertModel(VisualBertConfig(visual_embedding_dim=768)).train()
        names = ("input_ids", "attention_mask", "visual_embeds", "visual_attention_mask")
        given = {name: inputs[name] for name in names}

        def loss():
            outputs = model(**given)
            return outputs.last_hidden_state.square().mean() + outputs.pooler_output.square().mean()
    else:
        model = GroundedVisualBertForVGP(GroundedVisualBertConfig(attention_supervision=which)).train()

        def loss():
            return model(**inputs).loss

    def step():
        model.zero_grad()
        loss().backward()

    return step


def measure_times(repeats: int) -> dict[str, float]:
    """Median seconds per step. The models take turns, so that noise falls on all of them."""
    steps = {which: make_step(which) for which in ("VisualBertModel", *METHODS)}
    times = {which: [] for which in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for which, step in steps.items():
            start = time.perf_counter()
            step()
            times[which].append(time.perf_counter() - start)
    return {which: statistics.median(values) for which, values in times.items()}


def peak_memory(which: str) -> float:
    """Peak memory of two steps in a fresh process, above what it used before them, in MiB."""
    code = f"""
import resource, sys
sys.path.insert(0, {sys.path[0]!r})
from attention_supervision import make_step
step = make_step({which!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=["time", "memory"], help="one of the measurements")
    args = parser.parse_args()
    print(
        f"{BATCH} caption pairs of {TOKENS} tokens, {REGIONS} regions, base size, {torch.get_num_threads()} threads; "
        "ratios to the eager step of VisualBertModel"
    )
    # Memory first: a process starts with the peak of its parent.
    if args.only in (None, "memory"):
        peaks = {which: peak_memory(which) for which in ("VisualBertModel", *METHODS)}
        for which, peak in peaks.items():
            limit = f"  (at most {MEMORY_LIMIT})" if which in LIMITS else ""
            print(f"peak memory    {which:16s} {peak:7.0f} MiB {peak / peaks['VisualBertModel']:5.2f}x{limit}")
    if args.only in (None, "time"):
        times = measure_times(args.repeats)
        for which, seconds in times.items():
            ratio = seconds / times["VisualBertModel"]
            limit = f"  (at most {LIMITS[which]})" if which in LIMITS else ""
            print(f"training step  {which:16s} {seconds:7.3f} s   {ratio:5.2f}x{limit}")


if __name__ == "__main__":
    main()
