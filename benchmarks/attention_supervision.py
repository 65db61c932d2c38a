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
Measures what supervision of attention costs, in two comparisons at a time:

- a training step of GroundedVisualBertForVGP against an unsupervised step of transformers' VisualBertModel, whose
  attention is always eager, at BERT's base size;
- a training step of a LLaVA with [`AttentionSupervisedTrainer`] against a plain step with SDPA, and against one with
  eager attention that keeps all attention maps for the same loss.

    python benchmarks/attention_supervision.py
    python benchmarks/attention_supervision.py --model llava --repeats 9

The same inputs go through all of them, alternating, in one run. Compare the ratios: machines are noisy.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from attention_recording import resident_memory
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    Trainer,
    TrainingArguments,
    VisualBertConfig,
    VisualBertModel,
)

from hf_vg.models.attention_supervision import attention_loss
from hf_vg.models.grounded_visual_bert import GroundedVisualBertConfig, GroundedVisualBertForVGP
from hf_vg.training import AttentionSupervisedTrainer


BATCH, TOKENS, REGIONS, PHRASES, PAIRS = 8, 48, 37, 8, 4
SIDE, PATCH, WORDS, IMAGE_TOKEN = 32, 14, 64, 4_000  # of LLaVA: 1,024 image tokens, and a prompt with its answer
WAYS = {
    "visual_bert": ("VisualBertModel", "none", "indirect", "direct", "rollout"),
    "llava": ("SDPA", "direct", "rollout", "eager"),
}
# The most that a way may cost, by the first of its model; and of a supervised step by the eager one.
TIME_LIMITS = {"visual_bert": {"direct": 1.15, "rollout": 1.25}, "llava": {"direct": 1.25}}
MEMORY_LIMITS = {"visual_bert": {"direct": 1.25, "rollout": 1.25}, "llava": {"direct": 1.15}}
EAGER_LIMIT = 0.6


def visual_bert_inputs() -> dict[str, torch.Tensor]:
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


def visual_bert_step(which: str) -> Callable[[], None]:
    """A function that runs one training step without the optimizer, which is the same for all."""
    inputs = visual_bert_inputs()
    if which == "VisualBertModel":
        model = VisualBertModel(VisualBertConfig(visual_embedding_dim=768)).train()
        names = ("input_ids", "attention_mask", "visual_embeds", "visual_attention_mask")
        given = {name: inputs[name] for name in names}

        def loss() -> torch.Tensor:
            outputs = model(**given)
            return outputs.last_hidden_state.square().mean() + outputs.pooler_output.square().mean()
    else:
        model = GroundedVisualBertForVGP(GroundedVisualBertConfig(attention_supervision=which)).train()

        def loss() -> torch.Tensor:
            return model(**inputs).loss

    def step() -> None:
        model.zero_grad()
        loss().backward()

    return step


def llava_inputs() -> dict[str, torch.Tensor]:
    """One image with a question and an answer, in which phrases of three words have boxes."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, IMAGE_TOKEN, (1, WORDS), generator=generator)
    ids = torch.cat([torch.full((1, SIDE**2), IMAGE_TOKEN), words], dim=1)
    labels = ids.clone()
    labels[:, : SIDE**2 + WORDS // 2] = -100
    starts = SIDE**2 + WORDS // 2 + 4 * torch.arange(PHRASES)
    corners = 0.7 * torch.rand(1, PHRASES, 2, generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 3, SIDE * PATCH, SIDE * PATCH, generator=generator),
        "labels": labels,
        "phrase_spans": torch.stack([starts, starts + 3], dim=-1)[None],
        "phrase_boxes": torch.eye(PHRASES)[None],
        "boxes": torch.cat([corners, corners + 0.3], dim=-1),
    }


def llava_step(which: str) -> Callable[[], None]:
    """A training step without the optimizer: a text model of 6 layers, and a CLIP tower of 3."""
    size = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1408}
    text = {"model_type": "llama", "num_hidden_layers": 6, "num_key_value_heads": 8, "vocab_size": IMAGE_TOKEN + 1}
    vision = {"model_type": "clip_vision_model", "num_hidden_layers": 3, "image_size": SIDE * PATCH}
    config = LlavaConfig(
        text_config={**text, **size},
        vision_config={**vision, "patch_size": PATCH, **size},
        image_token_id=IMAGE_TOKEN,
    )
    model = LlavaForConditionalGeneration(config).train()
    inputs = llava_inputs()
    own = {name: value for name, value in inputs.items() if "phrase" not in name and name != "boxes"}
    if which == "eager":
        model.set_attn_implementation("eager")
        columns = torch.nn.functional.pad(torch.ones(1, SIDE**2), (0, WORDS))
        targets = torch.zeros(1, SIDE**2 + WORDS, SIDE**2 + WORDS)
        for (start, end), (left, top, right, bottom) in zip(
            inputs["phrase_spans"][0].tolist(), inputs["boxes"][0].tolist(), strict=True
        ):
            cells = torch.zeros(SIDE, SIDE)
            cells[int(top * SIDE) : int(bottom * SIDE), int(left * SIDE) : int(right * SIDE)] = 1
            targets[0, start - 1 : end - 1, : SIDE**2] = cells.flatten()

        def step() -> None:
            model.zero_grad()
            outputs = model(**own, output_attentions=True)
            maps = torch.stack(outputs.attentions) * columns
            summed = attention_loss(maps, targets, columns)
            (outputs.loss + summed / targets.amax(dim=-1).sum()).backward()

        return step
    folder = tempfile.mkdtemp()
    args = TrainingArguments(folder, use_cpu=True)
    if which == "SDPA":
        trainer = Trainer(model=model, args=args)
    else:
        trainer = AttentionSupervisedTrainer(model=model, args=args, attention_supervision=which)
    trainer.current_gradient_accumulation_steps = 1  # which `train` sets

    def step() -> None:
        model.zero_grad()
        trainer.training_step(model, dict(own if which == "SDPA" else inputs))

    return step


def make_step(model: str, which: str) -> Callable[[], None]:
    torch.manual_seed(0)
    return (visual_bert_step if model == "visual_bert" else llava_step)(which)


def measure_times(model: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of each step. The ways take turns, so that noise falls on all of them."""
    steps = {which: make_step(model, which) for which in WAYS[model]}
    times: dict[str, list[float]] = {which: [] for which in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for which, step in steps.items():
            start = time.perf_counter()
            step()
            times[which].append(time.perf_counter() - start)
    return times


def print_peak_memory(model: str, which: str) -> None:
    step = make_step(model, which)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which the making of the model has left
    before = resident_memory("VmRSS")
    for _ in range(2):
        step()
    print(resident_memory("VmHWM") - before)


def peak_memory(model: str, which: str) -> float:
    """Peak memory of two steps in a fresh process, above what it used before them, in MiB."""
    command = [sys.executable, __file__, "--model", model, "--peak_of", which]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", choices=WAYS, help="one of the models")
    parser.add_argument("--only", choices=["time", "memory"], help="one of the measurements")
    parser.add_argument("--peak_of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of is not None:
        return print_peak_memory(args.model, args.peak_of)
    titles = {
        "visual_bert": f"{BATCH} caption pairs of {TOKENS} tokens, {REGIONS} regions, base size",
        "llava": f"LLaVA, 6 layers of 8 heads, {SIDE**2} image tokens, {WORDS} words, {3 * PHRASES} with boxes",
    }
    for model in [args.model] if args.model else WAYS:
        first = WAYS[model][0]
        print(f"{titles[model]}, {torch.get_num_threads()} threads; ratios to {first}")
        if args.only in (None, "memory"):
            peaks = {which: peak_memory(model, which) for which in WAYS[model]}
            for which, peak in peaks.items():
                limit = MEMORY_LIMITS[model].get(which)
                said = f"  (at most {limit})" if limit else ""
                print(f"peak memory    {which:16s} {peak:7.0f} MiB {peak / peaks[first]:5.2f}x{said}")
        if args.only in (None, "time"):
            times = measure_times(model, args.repeats)
            for which, seconds in times.items():
                # One ratio per turn: what else the machine does then falls on both.
                ratio = statistics.median(a / b for a, b in zip(seconds, times[first], strict=True))
                limit = TIME_LIMITS[model].get(which)
                said = f"  (at most {limit})" if limit else ""
                print(f"training step  {which:16s} {statistics.median(seconds):7.3f} s   {ratio:5.2f}x{said}")
            if model == "llava":
                ratio = statistics.median(a / b for a, b in zip(times["direct"], times["eager"], strict=True))
                print(f"a supervised step takes {ratio:.2f} of the eager step with all maps  (at most {EAGER_LIMIT})")


if __name__ == "__main__":
    main()
