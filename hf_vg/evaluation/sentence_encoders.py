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
"""Functions from sentences to vectors: universal ones, joined ones, and ones that remember."""

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
    """A function that encodes a sentence by each of `encoders` and joins the vectors, as in [h ; universal vector]."""

    def encode(sentences: list[str]) -> np.ndarray:
        return np.concatenate([np.asarray(encoder(sentences)) for encoder in encoders], axis=1)

    return encode


def universal_encoder(name: str, batch_size: int = 64, device: str | torch.device = "cpu") -> Encode:
    r"""
    Vectors that know language in general, to set beside grounded ones or to join with them.

    Args:
        name (`str`):
            A model that sentence-transformers loads: a folder, or a name on the Hub such as
            `"sentence-transformers/all-MiniLM-L6-v2"`.
        batch_size (`int`, *optional*, defaults to 64):
            How many sentences are encoded at a time.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`):
            Where they are encoded.

    Returns:
        `Callable`: From a list of sentences to an array with a row for each.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError("Universal vectors need sentence-transformers: `pip install hf-vg[sentences]`.") from error
    model = SentenceTransformer(name, device=str(device))
    return lambda sentences: model.encode(sentences, batch_size=batch_size, show_progress_bar=len(sentences) > 1000)


def cache_vectors(encode: Encode, name: str, path: str | os.PathLike) -> Encode:
    r"""
    Keeps the vectors of an encoder in an Arrow file, for what is set beside many others and need not be computed for
    each.

    Args:
        encode (`Callable`):
            From a list of sentences to an array with a row for each.
        name (`str`):
            What the encoder is called. A file with the vectors of another is refused.
        path (`str` or `os.PathLike`):
            The file. It is made, and added to, as sentences are encoded that it does not hold.

    Returns:
        `Callable`: As `encode`.
    """
    path, vectors = Path(path), {}
    if path.exists():
        table = feather.read_table(path)
        found = (table.schema.metadata or {}).get(b"encoder", b"").decode()
        if found != name:
            raise ValueError(f"{path} holds vectors of {found!r}, and not of {name!r}.")
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
