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
"""Sentence encoders: functions from a list of sentences to one vector per sentence."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import feather

from ..data.files import atomic_write


Encode = Callable[[list[str]], "np.ndarray | torch.Tensor"]


def concatenate_encoders(*encoders: Encode) -> Encode:
    """
    Joins encoders: the result concatenates their vectors.

    Args:
        encoders (`Callable`):
            Functions from a list of sentences to an array with one row per sentence.

    Returns:
        `Callable`: The joined encoder.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation import concatenate_encoders

    >>> encode = concatenate_encoders(lambda texts: np.zeros((len(texts), 2)), lambda texts: np.ones((len(texts), 1)))
    >>> encode(["a dog"]).tolist()
    [[0.0, 0.0, 1.0]]
    ```
    """

    def encode(sentences: list[str]) -> np.ndarray:
        return np.concatenate([np.asarray(encoder(sentences)) for encoder in encoders], axis=1)

    return encode


def universal_encoder(name: str, batch_size: int = 64, device: str | torch.device = "cpu") -> Encode:
    r"""
    Loads a text-only sentence encoder, to compare with a grounded one or to join with it.

    Args:
        name (`str`):
            A model that sentence-transformers loads: a folder, or a name on the Hub such as
            `"sentence-transformers/all-MiniLM-L6-v2"`.
        batch_size (`int`, *optional*, defaults to 64):
            Number of sentences per batch.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`):
            The device of the model.

    Returns:
        `Callable`: A function from a list of sentences to an array with one row per sentence.

    Example:

    ```python
    >>> from hf_vg.evaluation import universal_encoder

    >>> encode = universal_encoder("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> encode(["a dog runs"]).shape  # doctest: +SKIP
    (1, 384)
    ```
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            "A universal encoder needs sentence-transformers: `pip install hf-vg[sentences]`."
        ) from error
    model = SentenceTransformer(name, device=str(device))
    return lambda sentences: model.encode(sentences, batch_size=batch_size, show_progress_bar=len(sentences) > 1000)


def cache_vectors(encode: Encode, name: str, path: str | os.PathLike) -> Encode:
    r"""
    Caches the vectors of an encoder in an Arrow file, so that each sentence is encoded once.

    Args:
        encode (`Callable`):
            A function from a list of sentences to an array with one row per sentence.
        name (`str`):
            The name of the encoder. A file with the vectors of another encoder raises an error.
        path (`str` or `os.PathLike`):
            The file. It is created if necessary, and new sentences are added to it.

    Returns:
        `Callable`: The encoder with the cache.

    Example:

    ```python
    >>> import tempfile
    >>> import numpy as np
    >>> from hf_vg.evaluation import cache_vectors

    >>> folder = tempfile.TemporaryDirectory()
    >>> lengths = lambda texts: np.array([[len(text)] for text in texts])
    >>> encode = cache_vectors(lengths, "lengths", f"{folder.name}/vectors.arrow")
    >>> encode(["a dog", "a bird"]).tolist()
    [[5.0], [6.0]]
    ```
    """
    path, vectors = Path(path), {}
    if path.exists():
        table = feather.read_table(path)
        found = (table.schema.metadata or {}).get(b"encoder", b"").decode()
        if found != name:
            raise ValueError(f"{path} contains vectors of {found!r}, not of {name!r}.")
        rows = table["vector"].combine_chunks()
        matrix = rows.flatten().to_numpy().reshape(len(rows), -1)
        vectors.update(zip(table["sentence"].to_pylist(), matrix, strict=True))

    def cached(sentences: list[str]) -> np.ndarray:
        missing = [sentence for sentence in dict.fromkeys(sentences) if sentence not in vectors]
        if missing:
            vectors.update(zip(missing, np.asarray(encode(missing), dtype=np.float32), strict=True))
            matrix = np.stack(list(vectors.values()))
            rows = pa.FixedSizeListArray.from_arrays(matrix.ravel(), matrix.shape[1])
            table = pa.table({"sentence": list(vectors), "vector": rows}).replace_schema_metadata({"encoder": name})
            with atomic_write(path) as file:
                feather.write_feather(table, file)
        return np.stack([vectors[sentence] for sentence in sentences])

    return cached
