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
"""Tiny untrained models, which a dry run takes where a recipe needs what another one trains."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from ..data.arguments import CaptionDataArguments
from ..data.scenes import load_scenes
from ..data.tokenizers import train_word_tokenizer
from ..models.vgg import VggBackbone, VggConfig
from .arguments import CaptionerArguments
from .captioner import build_captioner
from .grounded_encoder import GroundedEncoderArguments, build_grounded_encoder
from .images import build_image_processor
from .vse import VseArguments, build_vse


IMAGE_SIZE = 32  # pixels
BACKBONE = {"model_type": "vgg", "depths": [1, 1], "hidden_sizes": [4, 6], "use_batch_norm": True}
MODEL = {"backbone_config": BACKBONE, "freeze_backbone": False, "feature_size": 6, "embedding_size": 8}


def tiny_captioner(folder: Path) -> str:
    r"""
    Saves a tiny, untrained captioner of scenes, for dry runs.

    Args:
        folder (`Path`):
            The folder to save to.

    Returns:
        `str`: The folder.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.training import tiny_captioner
    >>> folder = tiny_captioner(Path("tiny"))
    >>> Path(folder, "config.json").exists()
    True
    ```
    """
    model, processor = build_captioner(_arguments(CaptionerArguments, hidden_size=8, attention_size=4), _tokenizer())
    model.generation_config.max_new_tokens = 8  # an untrained captioner does not stop by itself
    return _save(model, processor, folder)


def tiny_space(folder: Path) -> str:
    r"""
    Saves a tiny, untrained space of scenes and captions, for dry runs.

    Args:
        folder (`Path`):
            The folder to save to.

    Returns:
        `str`: The folder.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.training import tiny_space
    >>> folder = tiny_space(Path("tiny"))
    >>> Path(folder, "config.json").exists()
    True
    ```
    """
    return _save(*build_vse(_arguments(VseArguments, hidden_size=8), _tokenizer()), folder)


def tiny_encoder(folder: Path) -> str:
    r"""
    Saves a tiny, untrained encoder of sentences, for dry runs.

    Args:
        folder (`Path`):
            The folder to save to.

    Returns:
        `str`: The folder.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.training import tiny_encoder
    >>> folder = tiny_encoder(Path("tiny"))
    >>> Path(folder, "config.json").exists()
    True
    ```
    """
    return _save(*build_grounded_encoder(_arguments(GroundedEncoderArguments, hidden_size=8), _tokenizer()), folder)


def tiny_backbone(folder: Path) -> str:
    r"""
    Saves a tiny, untrained backbone and its image processor, for dry runs.

    Args:
        folder (`Path`):
            The folder to save to.

    Returns:
        `str`: The folder.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.training import tiny_backbone
    >>> folder = tiny_backbone(Path("tiny"))
    >>> Path(folder, "config.json").exists()
    True
    ```
    """
    backbone = VggBackbone(VggConfig(**{name: value for name, value in BACKBONE.items() if name != "model_type"}))
    return _save(backbone, build_image_processor(CaptionDataArguments(image_size=IMAGE_SIZE)), folder)


def _arguments(arguments_class: type, **fields: Any) -> Any:
    return arguments_class(dataset="scenes", image_size=IMAGE_SIZE, model={**MODEL, **fields})


def _tokenizer() -> Any:
    captions = load_scenes(32, 8, 8, IMAGE_SIZE)["train"]["captions"]
    return train_word_tokenizer(caption for group in captions for caption in group)


def _save(model: PreTrainedModel, processor: ProcessorMixin, folder: Path) -> str:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
