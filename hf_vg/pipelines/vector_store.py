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
"""Vectors of image files on disk, so that each image is encoded only once."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import torch
from huggingface_hub.constants import HF_HOME
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from transformers.utils import logging

from ..data.files import atomic_write
from ..loading import weights_digest
from .embedding_space import EmbeddingSpace, nearest


logger = logging.get_logger(__name__)
VECTORS_PER_FILE = 8192


def store_folder(space: EmbeddingSpace, directory: str | os.PathLike | None = None) -> Path:
    r"""
    Returns the folder for the vectors of a model. Its name is a digest of the weights and of the image processor.

    Args:
        space ([`EmbeddingSpace`]):
            The model.
        directory (`str` or `os.PathLike`, *optional*):
            The folder that contains it. By default `hf_vg/vectors` in the Hugging Face cache.

    Returns:
        `Path`: The folder. It may not exist yet.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.pipelines import load_space, store_folder
    >>> from hf_vg.training import tiny_space
    >>> folder = store_folder(load_space(tiny_space(Path("tiny_space"))), "index")
    >>> folder.parent.name, len(folder.name)
    ('index', 32)
    ```
    """
    return Path(directory or Path(HF_HOME, "hf_vg", "vectors")) / _digest(
        weights_digest(space.model) + space.settings()
    )


class VectorStore:
    r"""
    The vectors of image files, made by one model and kept on disk. A file that changed has no vector until it is
    encoded again. Writes are atomic, and several programs can use one store at the same time. Vectors of deleted
    images stay on disk but are never found. To remove them, delete the folder.

    Args:
        folder (`str` or `os.PathLike`):
            The folder of the vectors. Images of one folder share safetensors files with up to 8,192 vectors each.

    Example:

    ```python
    >>> from pathlib import Path
    >>> import hf_vg
    >>> from hf_vg.pipelines import VectorStore, load_space, store_folder
    >>> from hf_vg.training import tiny_space
    >>> paths = [scene["image"] for scene in hf_vg.examples.scenes()[:3]]
    >>> space = load_space(tiny_space(Path("tiny_space")))
    >>> store = VectorStore(store_folder(space, "index"))
    >>> for path in store.missing(paths):
    ...     store.add(path, space.encode_images([path])[0])
    >>> store.save()
    >>> [(path, score)] = store.nearest(space.image(paths[1]).vector, paths, top_k=1)
    >>> path == paths[1], round(score, 3)
    (True, 1.0)
    ```
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        # Where the vector of each file is, for each folder that was searched.
        self._known: dict[str, dict[str, tuple[list[int], Path, int]]] = {}
        self._new: dict[str, list[tuple[str, list[int], torch.Tensor]]] = defaultdict(list)
        # The state of each file before it was encoded. A change during the encoding must not count as encoded.
        self._missed: dict[str, list[int]] = {}

    def missing(self, paths: Iterable[str]) -> list[str]:
        """The image files that have no vector yet, or that changed since. A file that vanished is not missing."""
        found = []
        for path in paths:
            if self._find(path) is None:
                try:
                    self._missed[path] = self.stamp(path)
                except FileNotFoundError:
                    continue
                found.append(path)
        return found

    def add(self, path: str, vector: torch.Tensor) -> None:
        """Adds the vector of an image file. Vectors are written every 8,192 files, and by [`save`]."""
        folder, name = os.path.split(os.path.abspath(path))
        stamp = self._missed.pop(path, None) or self.stamp(path)
        self._new[folder].append((name, stamp, vector.detach().cpu().float()))
        if len(self._new[folder]) >= VECTORS_PER_FILE:
            self._write(folder)

    def save(self) -> None:
        """Writes all vectors that were added."""
        for folder in list(self._new):
            self._write(folder)

    def parts(self, paths: Iterable[str]) -> Iterator[tuple[list[str], torch.Tensor]]:
        r"""
        Yields image files and their vectors, one file of the store at a time.

        Args:
            paths (`Iterable[str]`):
                Image files. Files without a vector are left out.
        """
        rows_of: dict[Path, list[tuple[int, str]]] = defaultdict(list)
        for path in paths:
            found = self._find(path)
            if found is not None:
                rows_of[found[0]].append((found[1], path))
        for file, rows in rows_of.items():
            rows.sort()
            numbers = [number for number, _ in rows]
            with safe_open(file, framework="pt") as tensors:
                vectors = tensors.get_tensor("vectors")
            yield [path for _, path in rows], vectors if len(numbers) == len(vectors) else vectors[numbers]

    def fingerprint(self, paths: Iterable[str]) -> str:
        """A name for the present content of the image files that have a vector."""
        digest = hashlib.blake2b(digest_size=16)
        for path in paths:
            if self._find(path) is None:
                continue
            digest.update(os.fsencode(f"{os.path.abspath(path)} {self.stamp(path)}\n"))
        return digest.hexdigest()

    @staticmethod
    def stamp(path: str) -> list[int]:
        """The size of a file in bytes, and when it was written. If these differ, the file has changed."""
        status = os.stat(path)
        return [status.st_size, status.st_mtime_ns]

    def nearest(
        self, query: torch.Tensor, paths: Iterable[str], top_k: int, device: torch.device | str = "cpu"
    ) -> list[tuple[str, float]]:
        r"""
        Finds the image files whose vectors are nearest to a query.

        Args:
            query (`torch.FloatTensor` of shape `(size,)`):
                The vector to search for.
            paths (`Iterable[str]`):
                The files to search. Files without a vector are left out.
            top_k (`int`):
                The number of files to find.
            device (`torch.device`, *optional*, defaults to `"cpu"`):
                The device to compute on.

        Returns:
            `list[tuple[str, float]]`: Files and their cosines, best first.
        """
        names: list[str] = []

        def vectors() -> Iterator[torch.Tensor]:
            for some, part in self.parts(paths):
                names.extend(some)
                yield part

        scores, numbers = nearest(nn.functional.normalize(query[None], dim=-1), vectors, top_k, device)
        return [(names[number], score) for number, score in zip(numbers[0].tolist(), scores[0].tolist(), strict=True)]

    def _find(self, path: str) -> tuple[Path, int] | None:
        folder, name = os.path.split(os.path.abspath(path))
        stamp, file, row = self._known_in(folder).get(name, (None, Path(), 0))
        try:
            return (file, row) if stamp is not None and stamp == self.stamp(path) else None
        except FileNotFoundError:
            return None

    def _files_of(self, folder: str) -> Path:
        return self.folder / _digest(folder)

    def _known_in(self, folder: str) -> dict[str, tuple[list[int], Path, int]]:
        if folder in self._known:
            return self._known[folder]
        known = self._known[folder] = {}
        # The newest file is read last, so its vectors replace older ones.
        for file in sorted(self._files_of(folder).glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns):
            try:
                with safe_open(file, framework="pt") as tensors:
                    images = json.loads(tensors.metadata()["images"])
                known |= {name: ([size, time], file, row) for row, (name, size, time) in enumerate(images)}
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                logger.warning(f"{file} is damaged ({error}). The images in it are encoded again.")
        return known

    def _write(self, folder: str) -> None:
        new = self._new.pop(folder)
        file = self._files_of(folder) / f"{uuid4().hex}.safetensors"
        images = json.dumps([(name, *stamp) for name, stamp, _ in new])
        with atomic_write(file) as temporary:
            temporary.write_bytes(save({"vectors": torch.stack([vector for _, _, vector in new])}, {"images": images}))
        known = self._known_in(folder)
        known |= {name: (stamp, file, row) for row, (name, stamp, _) in enumerate(new)}


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()
