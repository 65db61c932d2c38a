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
Exact search among a million vectors, against FAISS's exact index (`IndexFlatIP`), with the same vectors and queries in
one run. Ours reads the vectors from disk, a part at a time; FAISS holds them all in memory.

    python benchmarks/vector_search.py
    python benchmarks/vector_search.py --vectors 100000
"""

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from hf_vg.pipelines.embedding_space import nearest


def write_vectors(path: Path, count: int, size: int) -> None:
    """A part at a time, so that making them takes no memory to speak of."""
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(count, size))
    generator = torch.Generator().manual_seed(0)
    for start in range(0, count, 10_000):
        part = torch.randn(min(10_000, count - start), size, generator=generator)
        vectors[start : start + 10_000] = torch.nn.functional.normalize(part).numpy()


def megabytes() -> float:
    """Memory of this program without the pages of mapped files, which the system takes back when it needs them."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def ours(vectors: np.ndarray, queries: torch.Tensor, top_k: int) -> np.ndarray:
    return nearest(queries, lambda: [vectors], top_k)[1].numpy()


def memory(path: Path, library: str, size: int, top_k: int) -> None:
    """Prints by how much the memory grows at most, for 256 queries."""
    before = peak = megabytes()

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, megabytes())
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    vectors, queries = np.load(path, mmap_mode="c"), torch.randn(256, size)
    if library == "faiss":
        index = faiss.IndexFlatIP(size)
        index.add(vectors)
        index.search(queries.numpy(), top_k)
    else:
        ours(vectors, queries, top_k)
    print(peak - before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact search, against FAISS's exact index.")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512, help="numbers in a vector")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 32, 256], help="in a batch")
    parser.add_argument("--top_k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        memory(Path(args.memory[0]), args.memory[1], args.size, args.top_k)
        return

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vectors.npy")
        write_vectors(path, args.vectors, args.size)
        vectors = np.load(path, mmap_mode="c")  # copy on write: torch warns of arrays that cannot be written
        index = faiss.IndexFlatIP(args.size)
        index.add(vectors)
        faiss.omp_set_num_threads(torch.get_num_threads())
        print(f"{args.vectors:,} vectors of {args.size} numbers, {torch.get_num_threads()} threads")
        for count in args.queries:
            queries = torch.nn.functional.normalize(torch.randn(count, args.size))
            seconds: dict[str, list[float]] = {"faiss": [], "hf_vg": []}
            for _ in range(args.rounds):
                start = time.perf_counter()
                theirs = index.search(queries.numpy(), args.top_k)[1]
                middle = time.perf_counter()
                found = ours(vectors, queries, args.top_k)
                seconds["hf_vg"].append(time.perf_counter() - middle)
                seconds["faiss"].append(middle - start)
            agree = (found == theirs).mean()
            assert agree > 0.999, f"only {agree:.2%} of the places are the same"
            faiss_time, our_time = (sorted(times)[len(times) // 2] for times in seconds.values())
            print(
                f"  {count:4d} queries   IndexFlatIP {faiss_time:7.3f} s   hf_vg {our_time:7.3f} s   "
                f"ratio {faiss_time / our_time:5.2f}x"
            )
        del index
        grown = {}
        for library in ("faiss", "hf_vg"):
            command = [sys.executable, __file__, "--size", str(args.size), "--memory", str(path), library]
            grown[library] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"  peak memory    IndexFlatIP {grown['faiss']:7.0f} MB  hf_vg {grown['hf_vg']:7.0f} MB  "
            f"ratio {grown['faiss'] / max(grown['hf_vg'], 1):5.1f}x"
        )


if __name__ == "__main__":
    main()
