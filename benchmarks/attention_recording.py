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
Measures what it costs to know where each word looks: a LLaVA with random weights writes 64 words about an image of 576
tokens, plainly with SDPA, with `record_attention`, and with eager attention that returns its maps.

    python benchmarks/attention_recording.py

Times are taken in one process, where the three take turns. Memory is the peak of the resident memory, each in a fresh
process: of all of it, and above the loaded model. Compare the ratios: machines are noisy.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

from hf_vg.interpretation.recording import record_attention


PATCHES_PER_SIDE, PATCH_SIZE, PROMPT, WORDS = 24, 14, 24, 64
IMAGE_TOKEN = 32_000
WAYS = ("SDPA", "recorded", "eager")
TIME_LIMIT, MEMORY_LIMIT, EAGER_LIMIT = 1.15, 1.10, 5


def make_model() -> LlavaForConditionalGeneration:
    """A text model of GPT-2's size, and half a CLIP ViT-B."""
    torch.manual_seed(0)
    size = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048}
    config = LlavaConfig(
        text_config={
            "model_type": "llama",
            "num_hidden_layers": 12,
            "num_key_value_heads": 12,
            "vocab_size": IMAGE_TOKEN + 1,
            **size,
        },
        vision_config={
            "model_type": "clip_vision_model",
            "num_hidden_layers": 6,
            "image_size": PATCHES_PER_SIDE * PATCH_SIZE,
            "patch_size": PATCH_SIZE,
            **size,
        },
        image_token_id=IMAGE_TOKEN,
    )
    return LlavaForConditionalGeneration(config).eval()


def make_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.full((1, PATCHES_PER_SIDE**2), IMAGE_TOKEN)
    words = torch.randint(3, IMAGE_TOKEN, (1, PROMPT), generator=generator)
    side = PATCHES_PER_SIDE * PATCH_SIZE
    return {
        "input_ids": torch.cat([image, words], dim=1),
        "attention_mask": torch.ones(1, PATCHES_PER_SIDE**2 + PROMPT, dtype=torch.long),
        "pixel_values": torch.randn(1, 3, side, side, generator=generator),
    }


def make_run(model: LlavaForConditionalGeneration, way: str) -> Callable[[], Any]:
    """A function that generates. It returns the record or the maps, so that they are in memory when they count."""
    inputs = make_inputs()
    settings = {"do_sample": False, "min_new_tokens": WORDS, "max_new_tokens": WORDS, "return_dict_in_generate": True}

    def run() -> Any:
        model.set_attn_implementation("eager" if way == "eager" else "sdpa")
        if way == "recorded":
            with record_attention(model) as record:
                model.generate(**inputs, **settings)
            return record
        return model.generate(**inputs, **settings, output_attentions=way == "eager")

    return run


def measure_times(repeats: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of each run, and by how much recorded maps differ from eager ones at most."""
    model = make_model()
    runs = {way: make_run(model, way) for way in WAYS}
    results = {way: run() for way, run in runs.items()}
    difference = 0.0
    for call, layers in zip(results["recorded"].calls, results["eager"].attentions, strict=True):
        for recorded, eager in zip(call.attention.values(), layers, strict=True):
            eager = eager[:, :, -1:, : PATCHES_PER_SIDE**2]
            difference = max(difference, (recorded - eager).abs().max().item())
    del results, call, layers, recorded, eager
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, run in runs.items():
            start = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - start)
    return times, difference


def resident_memory(name: str) -> float:
    """`VmRSS`, or its peak `VmHWM`, in MiB. The peak is since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def print_peak_memory(way: str) -> None:
    run = make_run(make_model(), way)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which the making of the model has left
    before = resident_memory("VmRSS")
    result = run()
    print(resident_memory("VmHWM"), resident_memory("VmHWM") - before)
    del result


def peak_memory(way: str) -> tuple[float, float]:
    """Peak memory of one generation in a fresh process, in MiB: of all, and above that of the loaded model."""
    command = [sys.executable, __file__, "--peak_of", way]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    whole, above = map(float, printed.split())
    return whole, above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["time", "memory"], help="one of the measurements")
    parser.add_argument("--peak_of", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of is not None:
        return print_peak_memory(args.peak_of)
    print(
        f"LLaVA, 12 layers of 12 heads, {PATCHES_PER_SIDE**2} image tokens, {WORDS} tokens generated, "
        f"{torch.get_num_threads()} threads; ratios to plain SDPA"
    )
    if args.only in (None, "memory"):
        peaks = {way: peak_memory(way) for way in WAYS}
        plain, plain_above = peaks["SDPA"]
        for way, (whole, _) in peaks.items():
            limit = f"  (at most {MEMORY_LIMIT})" if way == "recorded" else ""
            print(f"peak memory      {way:9s} {whole:7.0f} MiB  {whole / plain:5.2f}x{limit}")
        for way, (_, above) in peaks.items():
            print(f"above the model  {way:9s} {above:7.0f} MiB  {above / plain_above:5.2f}x")
        extra = {way: above - plain_above for way, (_, above) in peaks.items()}
        ratio = extra["eager"] / max(extra["recorded"], 1)
        for way in ("recorded", "eager"):
            print(f"for the maps     {way:9s} {extra[way]:7.0f} MiB")
        print(f"recording takes {ratio:.1f} times less for the maps than eager attention  (at least {EAGER_LIMIT})")
    if args.only in (None, "time"):
        times, difference = measure_times(args.repeats)
        medians = {way: statistics.median(values) for way, values in times.items()}
        # Of each turn one ratio: what else the machine does then falls on both.
        for way, seconds in medians.items():
            ratio = statistics.median(a / b for a, b in zip(times[way], times["SDPA"], strict=True))
            limit = f"  (at most {TIME_LIMIT})" if way == "recorded" else ""
            print(f"time             {way:9s} {seconds:7.2f} s    {ratio:5.2f}x{limit}")
        print(f"recorded and eager maps differ by at most {difference:.1e}")


if __name__ == "__main__":
    main()
