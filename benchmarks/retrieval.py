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
Ranks in both directions against the loop over queries of the well-known evaluation scripts: for each image a numpy
product with all sentences and a full sort, and for each image's sentences the same with all images. Both get the same
vectors, and with `--share 1` must give the same recalls. Some of the scripts hold their vectors in double precision
(numpy's default), others in single; ours are single here, and ranked as exactly as in double.

```bash
python benchmarks/retrieval.py
python benchmarks/retrieval.py --images 1000 --rounds 3
```
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_vg.evaluation import retrieval_metrics


def make_vectors(images: int, captions: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Image by image, so that making them takes no memory to speak of."""
    generator = torch.Generator().manual_seed(0)
    image_embeds, text_embeds = torch.empty(images, size), torch.empty(images * captions, size)
    for index in range(images):
        image_embeds[index] = torch.nn.functional.normalize(torch.randn(size, generator=generator), dim=0)
        texts = image_embeds[index] + 3 / size**0.5 * torch.randn(captions, size, generator=generator)
        text_embeds[index * captions : (index + 1) * captions] = torch.nn.functional.normalize(texts)
    return image_embeds, text_embeds


def loop_over_queries(images: np.ndarray, texts: np.ndarray, share: float) -> tuple[dict[str, float], float]:
    """Recalls of the first images, and the seconds that all would take at their pace."""
    captions = len(texts) // len(images)
    queries = max(1, round(share * len(images)))
    i2t, t2i = np.zeros(queries), np.zeros(queries * captions)
    start = time.perf_counter()
    for index in tqdm(range(queries), desc="loop over queries", unit="image"):
        order = np.argsort(images[index : index + 1].dot(texts.T).flatten())[::-1]
        own = range(captions * index, captions * index + captions)
        i2t[index] = min(np.where(order == text)[0][0] for text in own)
        scores = texts[own.start : own.stop].dot(images.T)
        for row, text in enumerate(own):
            t2i[text] = np.where(np.argsort(scores[row])[::-1] == index)[0][0]
    seconds = time.perf_counter() - start
    recalls = {f"image_to_text_r{k}": 100 * (i2t < k).mean() for k in (1, 5, 10)}
    recalls |= {f"text_to_image_r{k}": 100 * (t2i < k).mean() for k in (1, 5, 10)}
    return recalls, seconds * len(images) / queries


def peak_megabytes() -> float:
    """Of this program: what `resource` tells includes the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranks of images and sentences, against a loop over queries.")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=5, help="sentences of an image")
    parser.add_argument("--size", type=int, default=1024, help="numbers in a vector")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.1, help="of the queries the loop is timed on; 1 for all")
    parser.add_argument("--memory_only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    imports = peak_megabytes()
    images, texts = make_vectors(arguments.images, arguments.captions, arguments.size)
    if arguments.memory_only:
        vectors = peak_megabytes()
        retrieval_metrics(images, texts)
        print(imports, vectors, peak_megabytes())
        return

    print(f"Ranks both ways: {len(images):,} images x {len(texts):,} sentences, {arguments.size} numbers each")
    seconds = []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        metrics = retrieval_metrics(images, texts)
        seconds.append(time.perf_counter() - start)
    ours = sorted(seconds)[len(seconds) // 2]
    print(f"  retrieval_metrics            {ours:8.2f} s")
    shared = "" if arguments.share == 1 else ", from a share of the queries"
    for name, dtype in (("double", torch.double), ("single", torch.float)):
        recalls, theirs = loop_over_queries(images.to(dtype).numpy(), texts.to(dtype).numpy(), arguments.share)
        if arguments.share == 1:
            for key, value in recalls.items():
                assert abs(value - metrics[key]) < 1e-9, f"{key}: {value} in the loop, {metrics[key]} here"
        print(f"  loop, {name} precision       {theirs:8.2f} s   ratio {theirs / ours:5.1f}x{shared}")

    # In a process of its own, as the loop's memory would count.
    command = [sys.executable, __file__, "--memory_only"]
    for name in ("images", "captions", "size"):
        command += [f"--{name}", str(getattr(arguments, name))]
    measured = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    imports, vectors, peak = map(float, measured)
    full = len(images) * len(texts) * 4 / 2**20
    print(
        f"  peak memory                  {peak - imports:8.0f} MB: {vectors - imports:.0f} MB for the vectors and "
        f"{peak - vectors:.0f} MB for the ranks, besides {imports:.0f} MB of imported libraries\n"
        f"  matrix of all scores         {full:8.0f} MB   ratio {full / max(peak - vectors, 1):5.1f}x of the ranks'"
    )


if __name__ == "__main__":
    main()
