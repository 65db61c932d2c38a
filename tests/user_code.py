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
Code of a user, for the type checker. It is never run. `make check` reads it with mypy, which fails if a correct line
is an error, or if a line with `type: ignore` is not.
"""

from typing import Any, assert_type

import numpy as np
import torch

from hf_vg import (
    EmbeddingSpace,
    ImageToTextPipeline,
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    caption_is_true,
    caption_metrics,
    load_scenes,
    retrieval_metrics,
)


def search(space: EmbeddingSpace, paths: list[str]) -> list[str]:
    photos = assert_type(space.encode_images(paths), torch.Tensor)
    red_car = space.image("car.jpg") - "blue" + "red"
    assert_type(space.rank(red_car, photos), tuple[torch.Tensor, torch.Tensor])
    space.rank(3, photos)  # type: ignore[arg-type]
    space.search("a dog", photos, top="5")  # type: ignore[call-arg]
    return [paths[hit["index"]] for hit in space.search("a dog", photos.numpy())]


def score(images: torch.Tensor, sentences: torch.Tensor) -> float:
    metrics = assert_type(retrieval_metrics(images, sentences, np.arange(len(images))), dict[str, float])
    retrieval_metrics(images, sentences, folds="5")  # type: ignore[arg-type]
    return metrics["rsum"] + caption_metrics(["a dog"], [["a dog", "the dog"]])["cider"]


def describe(pipeline: ImageToTextPipeline, pixel_values: torch.Tensor) -> str:
    captioner = ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(vocab_size=20))
    captioner.generate(pixel_values, num_beams=5)
    captioner.generate("dog.jpg")  # type: ignore[arg-type]
    records = assert_type(pipeline("dog.jpg"), list[dict[str, Any]] | list[list[dict[str, Any]]])
    scenes = load_scenes(num_train=10)
    load_scenes(num_training=10)  # type: ignore[call-arg]
    assert_type(caption_is_true(scenes["train"][0]["objects"], "a red circle"), bool)
    return str(records)
