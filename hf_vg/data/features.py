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
"""Features of a frozen backbone, computed once and memory-mapped from then on.

A cache is a folder. In it, each combination of backbone weights, preprocessing and pooling has a folder of its own,
named after a digest of all three, with shards of features in half precision. There, features are found by a digest of
the image file's bytes. So other weights, another image size or a changed image never find the features that were made
for something else: they find none, and those are computed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from tqdm.auto import tqdm

from .draws import toss
from .processes import process_state


DIGEST_SIZE = 16  # bytes; two of a billion images share a digest with a probability of 1e-21


class FeatureCache(Mapping[bytes, torch.Tensor]):
    r"""
    The features that [`extract_features`] wrote, for one backbone, preprocessing and pooling, by the digest of an
    image. They are half-precision tensors, read from disk when they are used: `(height, width, channels)`, or
    `(channels,)` if they are pooled.

    Args:
        folder (`str` or `PathLike`):
            The folder of this combination, within that of the cache.
    """

    def __init__(self, folder: str | PathLike):
        self.folder = Path(folder)
        # Digests of images that `extract_features` could not open.
        self.unreadable: set[bytes] = set()
        self._shards: list[torch.Tensor] = []
        self._places: dict[bytes, tuple[int, int]] = {}
        for shard, file in enumerate(sorted(self.folder.glob("*.safetensors"))):
            try:
                tensors = load_file(file)  # mapped, not read
                features, digests = tensors["features"], tensors["digests"]
                if features.dtype not in (torch.float16, torch.bfloat16) or digests.dtype != torch.uint8:
                    raise ValueError(f"it holds {features.dtype} and {digests.dtype}")
                if features.ndim not in (2, 4) or digests.shape != (len(features), DIGEST_SIZE):
                    raise ValueError(f"it holds shapes {tuple(features.shape)} and {tuple(digests.shape)}")
            except (SafetensorError, KeyError, ValueError) as error:
                raise ValueError(f"{file} is damaged ({error}). Delete it, and it is computed again.") from error
            self._shards.append(features)
            self._places |= {digest.tobytes(): (shard, row) for row, digest in enumerate(digests.numpy())}

    # A dataset that carries the cache is hashed and sent to workers by pickle: the folder says it all.
    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return FeatureCache, (self.folder,)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __getitem__(self, digest: bytes) -> torch.Tensor:
        shard, row = self._places[digest]
        return self._shards[shard][row]

    def attach(
        self, dataset: Dataset, columns: Iterable[str] = ("captions",), mirrored: "FeatureCache | None" = None
    ) -> Dataset:
        r"""
        Replaces the image of each row by its `image_features`, which are mapped from disk as the row is read. Rows
        with images that [`extract_features`] could not open are left out. Under `accelerate launch` every process
        must call it.

        Args:
            dataset ([`~datasets.Dataset`]):
                Rows with an `image`, all of which are in the cache.
            columns (`Iterable[str]`, *optional*, defaults to `("captions",)`):
                The other columns that rows keep, and `image` to keep that too. Others stay in the dataset.
            mirrored ([`FeatureCache`], *optional*):
                Features of the same images, mirrored. In every batch that is read, a coin decides for each row which
                it has. See [`~hf_vg.data.draws.batch_generator`].
        """
        digests = image_digests(dataset)
        unreadable = self.unreadable if mirrored is None else self.unreadable | mirrored.unreadable
        if unreadable:
            dataset = dataset.select([row for row, digest in enumerate(digests) if digest not in unreadable])
            digests = [digest for digest in digests if digest not in unreadable]
        for cache in (self,) if mirrored is None else (self, mirrored):
            missing = [row for row, digest in enumerate(digests) if digest not in cache]
            if missing:
                path = (
                    undecoded(dataset.select_columns("image"))[missing[0]]["image"]["path"]
                    or f"that of row {missing[0]}"
                )
                raise ValueError(
                    f"{len(missing):,} of {len(dataset):,} images have no features in {cache.folder}, the first is "
                    f"{path}. Extract them with recipes/extract_features.py."
                )
        columns = [*columns]

        def add_features(batch: dict[str, list]) -> dict[str, list]:
            digests = batch["image_digest"]
            coins = [False] * len(digests) if mirrored is None else toss(digest.hex() for digest in digests)
            caches = (self, self if mirrored is None else mirrored)
            features = [caches[coin][digest] for coin, digest in zip(coins, digests, strict=True)]
            return {**{name: batch[name] for name in columns}, "image_features": features}

        if "image" not in columns:
            dataset = dataset.remove_columns("image")
        dataset = dataset.add_column("image_digest", digests)
        return dataset.with_transform(add_features, columns=[*columns, "image_digest"])


def image_digests(dataset: Dataset) -> list[bytes]:
    r"""
    A digest of the bytes of each row's image file, without decoding it. Processes share the reading.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`.
    """
    state = process_state()
    rows = range(state.process_index, len(dataset), state.num_processes)
    of_path: dict[str, bytes] = {}  # a file that several rows show is read once
    digests = []
    batches = undecoded(dataset.select_columns("image")).select(rows).iter(batch_size=256)
    shown = state.is_local_main_process
    progress = tqdm(desc="Reading images", unit="image", total=len(rows), delay=2, disable=not shown)
    with ThreadPoolExecutor() as pool, progress:
        for batch in batches:
            sources = batch["image"]
            files = {source["path"]: source for source in sources if not source["bytes"]}
            new = [source for path, source in files.items() if path not in of_path]
            of_path.update(zip((source["path"] for source in new), pool.map(_digest, new), strict=True))
            digests += [_digest(source) if source["bytes"] else of_path[source["path"]] for source in sources]
            progress.update(len(sources))
    of_row = dict(gather_object(list(zip(rows, digests, strict=True))))
    return [of_row[row] for row in range(len(dataset))]


def _digest(source: dict[str, Any]) -> bytes:
    content = source["bytes"] or Path(source["path"]).read_bytes()
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def undecoded(dataset: Dataset) -> Dataset:
    """Rows whose `image` is the path or the bytes of the file."""
    return dataset.with_format(None).cast_column("image", Image(decode=False))
