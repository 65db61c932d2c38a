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
"""The cache of a frozen backbone's features. They are computed once and memory-mapped afterwards.

A cache is a folder. Each combination of backbone weights, preprocessing and pooling has a subfolder, named after a
digest of all three. It contains shards of features in half precision. Features are looked up by a digest of the image
file's bytes. If the weights, the image size or an image changes, its digest changes and new features are computed.
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
from .images import image_size, mirror_boxes
from .processes import process_state


DIGEST_SIZE = 16  # bytes; among a billion images, any two share a digest with a probability of 1e-21


class FeatureCache(Mapping[bytes, torch.Tensor]):
    r"""
    The features that [`extract_features`] wrote for one backbone, preprocessing and pooling. It maps the digest of an
    image to a half-precision tensor of shape `(height, width, channels)`, or `(channels,)` with pooling. The tensors
    are memory-mapped.

    You rarely create one yourself: [`extract_features`] returns it, and [`~FeatureCache.attach`] adds the features to
    a dataset. See [`extract_features`] for an example.

    Args:
        folder (`str` or `PathLike`):
            The subfolder of the cache for this combination.

    Example:

    ```python
    >>> import tempfile
    >>> from hf_vg.data import FeatureCache

    >>> folder = tempfile.TemporaryDirectory()
    >>> len(FeatureCache(folder.name))  # an empty folder has no features
    0
    ```
    """

    def __init__(self, folder: str | PathLike):
        self.folder = Path(folder)
        # Digests of images that `extract_features` could not open.
        self.unreadable: set[bytes] = set()
        self._shards: list[torch.Tensor] = []
        self._places: dict[bytes, tuple[int, int]] = {}
        for shard, file in enumerate(sorted(self.folder.glob("*.safetensors"))):
            try:
                tensors = load_file(file)  # memory-mapped
                features, digests = tensors["features"], tensors["digests"]
                if features.dtype not in (torch.float16, torch.bfloat16) or digests.dtype != torch.uint8:
                    raise ValueError(f"unexpected types {features.dtype} and {digests.dtype}")
                if features.ndim not in (2, 4) or digests.shape != (len(features), DIGEST_SIZE):
                    raise ValueError(f"unexpected shapes {tuple(features.shape)} and {tuple(digests.shape)}")
            except (SafetensorError, KeyError, ValueError) as error:
                raise ValueError(f"{file} is damaged ({error}). Delete it to compute it again.") from error
            self._shards.append(features)
            self._places |= {digest.tobytes(): (shard, row) for row, digest in enumerate(digests.numpy())}

    # `datasets` pickles the cache to hash it and to send it to workers. The folder is enough to open it again.
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
        Replaces the image of each row by its `image_features`, which are read from disk when you read the row. Images
        that [`extract_features`] could not open are left out. Under `accelerate launch`, every process must call it.

        Args:
            dataset ([`~datasets.Dataset`]):
                Rows with an `image`. All images must be in the cache.
            columns (`Iterable[str]`, *optional*, defaults to `("captions",)`):
                The other columns that a row returns. Add `"image"` to keep the image too, and `"image_size"` for its
                width and height in pixels.
            mirrored ([`FeatureCache`], *optional*):
                Features of the same images, mirrored. Each time rows are read, either of the two features is chosen at
                random, see [`~hf_vg.data.draws.batch_generator`]. If `columns` has `boxes`, it must have `image_size`
                too, and the boxes are mirrored with the image.

        Returns:
            [`~datasets.Dataset`]: Rows with `columns` and `image_features`.
        """
        digests = image_digests(dataset)
        unreadable = self.unreadable if mirrored is None else self.unreadable | mirrored.unreadable
        if unreadable:
            dataset = dataset.select([row for row, digest in enumerate(digests) if digest not in unreadable])
            digests = [digest for digest in digests if digest not in unreadable]
        for cache in (self,) if mirrored is None else (self, mirrored):
            missing = [row for row, digest in enumerate(digests) if digest not in cache]
            if missing:
                path = undecoded(dataset.select_columns("image"))[missing[0]]["image"]["path"] or f"row {missing[0]}"
                raise ValueError(
                    f"{len(missing):,} of {len(dataset):,} images have no features in {cache.folder}. The first is "
                    f"{path}. Run recipes/extract_features.py to compute them."
                )
        columns = [*columns]
        if "image_size" in columns:
            images = undecoded(dataset.select_columns("image"))["image"]
            dataset = dataset.add_column("image_size", [image_size(image) for image in images])

        def add_features(batch: dict[str, list]) -> dict[str, list]:
            digests = batch["image_digest"]
            coins = [False] * len(digests) if mirrored is None else toss(digest.hex() for digest in digests)
            caches = (self, self if mirrored is None else mirrored)
            features = [caches[coin][digest] for coin, digest in zip(coins, digests, strict=True)]
            rows = {name: batch[name] for name in columns} | {"image_features": features}
            if "boxes" in columns and any(coins):
                boxes = zip(coins, batch["boxes"], batch["image_size"], strict=True)
                rows["boxes"] = [mirror_boxes(some, width) if coin else some for coin, some, (width, _) in boxes]
            return rows

        if "image" not in columns:
            dataset = dataset.remove_columns("image")
        dataset = dataset.add_column("image_digest", digests)
        return dataset.with_transform(add_features, columns=[*columns, "image_digest"])


def image_digests(dataset: Dataset) -> list[bytes]:
    r"""
    Computes a digest of each row's image file. Images are not decoded. The processes share the work.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`.

    Returns:
        `list[bytes]`: One digest per row.
    """
    state = process_state()
    rows = range(state.process_index, len(dataset), state.num_processes)
    of_path: dict[str, bytes] = {}  # rows that share a file read it once
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
    """
    Turns off image decoding: a row's `image` becomes a dictionary with the `path` or the `bytes` of the file.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`.

    Returns:
        [`~datasets.Dataset`]: The same rows, with images that are not decoded.

    Example:

    ```python
    >>> from hf_vg.data import load_scenes, undecoded

    >>> sorted(undecoded(load_scenes(1, 1, 1)["train"])[0]["image"])
    ['bytes', 'path']
    ```
    """
    return dataset.with_format(None).cast_column("image", Image(decode=False))
