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
"""Detects the caption format of a folder or file."""

import os
import re
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import yaml

from .files import read_text
from .loading_report import LoadingReport
from .records import read_json
from .spelling import did_you_mean


# The formats of `load_captions`, and the files that each is recognized by.
FORMATS = {
    "table": "captions.csv, .tsv, .txt, .jsonl or .parquet, or a single such file with another name",
    "flickr8k": "Flickr8k.token.txt",
    "flickr30k": "results_20130124.token",
    "karpathy": "dataset_flickr8k.json and similar",
    "coco": "captions_train2014.json and similar, also in a folder annotations",
    "flickr30k_entities": "folders Annotations and Sentences",
    "webdataset": "*.tar",
}
MAX_JSON_BYTES = 200 * 2**20  # larger files are recognized by name only
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


class FoundFormat(NamedTuple):
    """
    The result of [`detect_format`].

    - **name** (`str`) -- The format, a key of `FORMATS`.
    - **path** (`Path`) -- The file or folder to load.
    - **evidence** (`str`) -- The file or folder that gave it away.
    """

    name: str
    path: Path
    evidence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.name}, recognized by {self.evidence}"


def detect_format(data_dir: str | PathLike) -> FoundFormat:
    r"""
    Detects the format of caption data by its file names, ignoring case. If the folder itself has no captions, its
    subfolders are searched. If there is no match, or more than one, the error lists what was searched for or found.

    Args:
        data_dir (`str` or `PathLike`):
            A folder, a file, or a pattern of `.tar` files.

    Returns:
        [`FoundFormat`]: The format, the path to load, and the file it was recognized by.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data import detect_format

    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "captions.csv").write_text("image,caption\ndog.jpg,a dog\n")
    >>> detect_format(folder.name).name
    'table'
    ```
    """
    data_dir = Path(data_dir)
    if not data_dir.is_dir():
        return _detect_file(data_dir)
    found = _detect_in(data_dir)
    if not found:
        folders = sorted(
            path for path in data_dir.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
        )
        found = [one for folder in folders[:100] for one in _detect_in(folder)]
    if not found:
        raise ValueError(f"{data_dir}: no captions were found. {_looked_for()}")
    if len(found) > 1:
        several = "; ".join(f"{one.evidence} ({one.name})" for one in found[:10])
        raise ValueError(
            f"{data_dir}: it is not clear which captions to load: {several}. Pass the file as `data_dir`, or the "
            "format as `dataset`."
        )
    return found[0]


def check_dataset_name(name: str) -> None:
    r"""
    Raises a `ValueError` for a name that is not a format, a folder or a dataset on the Hub (`user/name`).

    Args:
        name (`str`):
            The name to check.
    """
    known = ("scenes", "parquet", *FORMATS)
    if name in known or _HUB_ID.fullmatch(name) or os.path.isdir(name):
        return
    hint = did_you_mean(name.lower(), known)
    raise ValueError(
        f"unknown dataset {name!r}{hint} Use one of {', '.join(known)}, or a dataset on the Hub (user/name)."
    )


def check_card(name: str) -> None:
    """
    Raises a `ValueError` if the card of a local dataset refers to data outside of its folder: `datasets` would read
    such data, also from the network. Datasets on the Hub (`user/name`) are not checked.

    Args:
        name (`str`):
            The folder of the dataset.
    """
    card = Path(name, "README.md")
    if not card.is_file():
        return
    block = re.match(r"---\s*\n(.*?)\n---", read_text(card, LoadingReport(card.name)), re.DOTALL)
    try:
        about = yaml.safe_load(block[1]) if block else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{card}: the metadata is not YAML: {str(error).partition(chr(10))[0]:.200}") from None
    places, seen = [about.get("configs")] if isinstance(about, dict) else [], set()
    while places:
        place = places.pop()
        if isinstance(place, (dict, list)):
            if id(place) not in seen:  # aliases in YAML may repeat a list a billion times
                places += place.values() if isinstance(place, dict) else place
            seen.add(id(place))
        elif "://" in str(place) or os.path.isabs(str(place)) or ".." in Path(str(place)).parts:
            raise ValueError(f"{card} refers to data outside of its folder: {place!r:.200}. Such data is not read.")


def _detect_file(path: Path) -> FoundFormat:
    name = path.name.lower()
    streamed = {".tar": "webdataset", ".parquet": "parquet"}.get(path.suffix.lower())
    if streamed and (any(mark in name for mark in "*?[{") or (path.is_file() and streamed == "webdataset")):
        return FoundFormat(streamed, path, path.name)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or file {path}")
    if path.suffix.lower() in (*_TABLES, ".txt") and "token" not in name:
        return FoundFormat("table", path, path.name)
    if path.suffix.lower() == ".json" and (kind := _kind_of_json(path)):
        return FoundFormat(kind, path, path.name)
    raise ValueError(f"{path} is not a caption file. {_looked_for()}")


def _detect_in(folder: Path) -> list[FoundFormat]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    folders = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    found = []

    tables = [path for path in files if path.suffix.lower() in _TABLES]
    named = [path for path in files if path.stem.lower() == "captions" and path.suffix.lower() in (*_TABLES, ".txt")]
    found += [FoundFormat("table", path, path.name) for path in named or tables]

    tokens = [path for path in files if path.name.lower().endswith((".token", ".token.txt"))]
    tokens = [path for path in tokens if "lemma" not in path.name.lower()]
    for path in tokens:
        of_30k = path.name.lower().startswith("results") or "30k" in path.name.lower()
        found.append(FoundFormat("flickr30k" if of_30k else "flickr8k", folder, path.name))

    jsons = [(path, _kind_of_json(path)) for path in files if path.suffix.lower() == ".json"]
    found += [FoundFormat("karpathy", path, path.name) for path, kind in jsons if kind == "karpathy"]
    coco = [path.name for path, kind in jsons if kind == "coco"]
    if not coco and "annotations" in folders:
        in_folder = sorted(folders["annotations"].iterdir())
        coco = [path.name for path in in_folder if path.suffix.lower() == ".json" and _kind_of_json(path) == "coco"]
    if coco:
        found.append(FoundFormat("coco", folder, ", ".join(coco[:3])))

    if {"annotations", "sentences"} <= folders.keys() and any(folders["sentences"].glob("*.txt")):
        found.append(FoundFormat("flickr30k_entities", folder, "Annotations and Sentences"))

    tars = [path.name for path in files if path.suffix.lower() == ".tar"]
    if tars:
        found.append(FoundFormat("webdataset", folder, f"{tars[0]} and {len(tars) - 1} more tar files"))
    return found


def _kind_of_json(path: Path) -> str | None:
    name = path.name.lower()
    if name.startswith("captions_"):
        return "coco"
    if name.startswith("dataset"):
        return "karpathy"
    if path.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        content = read_json(path)
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    rows = {key: content.get(key) for key in ("images", "annotations")}
    first = {key: value[0] for key, value in rows.items() if isinstance(value, list) and value}
    if isinstance(first.get("images"), dict) and "sentences" in first["images"]:
        return "karpathy"
    return "coco" if isinstance(first.get("annotations"), dict) and "caption" in first["annotations"] else None


def _looked_for() -> str:
    return "Looked for: " + "; ".join(f"{evidence} ({name})" for name, evidence in FORMATS.items()) + "."
