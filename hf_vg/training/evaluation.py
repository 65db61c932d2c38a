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
"""What recipes judge captioners and sentence encoders by."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, Image

from ..data.arguments import CaptionDataArguments
from ..data.entities import load_flickr30k_entities


@dataclass
class CaptionReportArguments(CaptionDataArguments):
    """What `recipes/evaluate_captioner.py` judges, and on what."""

    checkpoint: str = field(
        default="outputs/show_attend_tell_scenes",
        metadata={"help": "The captioner: a folder, or a model of the Hub."},
    )
    split: str = field(default="test", metadata={"help": "`train`, `validation` (or `dev`) or `test`."})
    num_beams: int = field(default=3, metadata={"help": "Beams of the captions; 1 is greedy."})
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "Beams are ranked by their mean a word (1), by their sum (0), or between. By default as the "
            "checkpoint says."
        },
    )
    batch_size: int = field(default=32, metadata={"help": "Images that are captioned at a time."})
    metrics: list[str] = field(
        default_factory=lambda: ["bleu", "rouge", "cider", "diversity"],
        metadata={
            "help": "Any of bleu, bleu_no_bp, bleu_punctuation, rouge, cider, meteor, meteor_python and diversity."
        },
    )
    num_samples: int = field(default=1000, metadata={"help": "Sets that are drawn for the confidence intervals."})
    num_examples: int = field(default=5, metadata={"help": "Captions to show of the best, and of the worst."})
    entities_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of Flickr30k Entities: judge where nouns look by its boxes. Scenes have their own."},
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Where the report is written. By default `report` in the checkpoint."}
    )


def entities_of(
    rows: Dataset, entities_dir: str, images_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[int]]:
    r"""
    The boxes and phrases of those images that Flickr30k Entities has, and the numbers of these among the rows.

    Args:
        rows ([`~datasets.Dataset`]):
            Rows with an `image` that is a file.
        entities_dir (`str`):
            The folder of Flickr30k Entities.
        images_dir (`str`, *optional*):
            Where its images are. By default where those of the rows are.
    """
    paths = [Path(image["path"]) for image in rows.cast_column("image", Image(decode=False))["image"]]
    annotated = {}
    for table in load_flickr30k_entities(entities_dir, images_dir or paths[0].parent).values():
        table = table.cast_column("image", Image(decode=False))
        annotated |= {Path(row["image"]["path"]).name: row for row in table}
    numbers = [number for number, path in enumerate(paths) if path.name in annotated]
    return [annotated[paths[number].name] for number in numbers], numbers
