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
"""Loaders of checkpoints for one task, used by the command line, the app and the recipes."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from transformers import (
    AutoImageProcessor,
    AutoModelForObjectDetection,
    AutoProcessor,
    AutoTokenizer,
    Pipeline,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_OBJECT_DETECTION_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ..loading import (
    HUB_TIMEOUT,
    check_generation,
    is_dual_encoder,
    load_checkpoint,
    load_config,
    load_part,
    local_folder,
)
from ..models.self_attn_grounded_encoder import SelfAttnGroundedEncoderConfig
from .embedding_space import EmbeddingSpace, SentenceTransformerSpace
from .image_to_text import ImageToTextPipeline


def load_captioner(name_or_path: str, trust_remote_code: bool = False, **config_fields: Any) -> ImageToTextPipeline:
    r"""
    Loads any captioner, or model that chats about images, as a `pipeline("image-to-text")`. If a checkpoint does not
    write captions, lacks weights or is damaged, the error says so in one sentence.

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        config_fields (*optional*):
            Fields of the checkpoint's config to change, such as `hard_decoding="argmax"`.

    Returns:
        [`ImageToTextPipeline`]: The pipeline.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.pipelines import load_captioner
    >>> captioner = load_captioner(hf_vg.examples.checkpoint("spatial_transformer"))
    >>> (caption,) = captioner(hf_vg.examples.scenes()[0]["image"])
    >>> isinstance(caption["generated_text"], str)
    True
    ```
    """
    model = load_checkpoint(name_or_path, "captions", trust_remote_code=trust_remote_code, **config_fields)
    check_generation(name_or_path, model)
    if type(model.config) in PROCESSOR_MAPPING:
        parts = {"processor": load_part(AutoProcessor, name_or_path, trust_remote_code)}
    else:
        parts = {
            "tokenizer": load_part(AutoTokenizer, name_or_path, trust_remote_code),
            "image_processor": load_part(AutoImageProcessor, name_or_path, trust_remote_code),
        }
    return ImageToTextPipeline(model=model, task="image-to-text", **parts)


def caption_settings(
    captioner: ImageToTextPipeline,
    num_captions: int = 1,
    num_beams: int | None = None,
    prompt: str | None = None,
) -> dict[str, Any]:
    r"""
    Makes the settings of a call to a captioner. The checkpoint's own settings hold unless you ask for others.

    Args:
        captioner ([`ImageToTextPipeline`]):
            The captioner.
        num_captions (`int`, *optional*, defaults to 1):
            Number of captions to write per image. Without sampling, at least as many beams are used.
        num_beams (`int`, *optional*):
            Number of beams; 1 is greedy search. By default the checkpoint decides.
        prompt (`str`, *optional*):
            What the model is asked, or the first words of its caption.

    Returns:
        `dict[str, Any]`: Arguments for the captioner.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.pipelines import caption_settings, load_captioner
    >>> captioner = load_captioner(hf_vg.examples.checkpoint("spatial_transformer"))
    >>> settings = caption_settings(captioner, num_captions=2, num_beams=3)
    >>> settings
    {'num_return_sequences': 2, 'num_beams': 3}
    >>> len(captioner(hf_vg.examples.scenes()[0]["image"], **settings))
    2
    ```
    """
    own = captioner.model.generation_config
    settings: dict[str, Any] = {} if num_captions == 1 else {"num_return_sequences": num_captions}
    if prompt:
        settings["prompt"] = prompt
    if captioner.model.config.model_type == "vse_scnlm":
        if num_beams is not None:
            raise ValueError("an SC-NLM ranks many candidates and has no beams: leave out the number of beams.")
        return settings
    if num_beams is not None:
        settings["num_beams"] = max(num_beams, num_captions)
    elif num_captions > (own.num_beams or 1) and not own.do_sample:
        settings["num_beams"] = num_captions
    return settings


def attention_problem(captioner: ImageToTextPipeline, image: Any) -> str | None:
    r"""
    Captions one image to find out whether a captioner can show where its words look.

    Args:
        captioner ([`ImageToTextPipeline`]):
            The captioner.
        image (`Any`):
            Any image that the pipeline takes.

    Returns:
        `str` or `None`: Why it cannot, or `None` if it can.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.pipelines import attention_problem, load_captioner
    >>> captioner = load_captioner(hf_vg.examples.checkpoint("spatial_transformer"))
    >>> attention_problem(captioner, hf_vg.examples.scenes()[0]["image"]) is None
    True
    ```
    """
    try:
        captioner(image, return_attention=True, max_new_tokens=2)
    except ValueError as error:
        return str(error)
    return None


def load_space(name_or_path: str, trust_remote_code: bool = False) -> EmbeddingSpace:
    r"""
    Loads any model that has one space for images and sentences: a `vse_scnlm`, CLIP, SigLIP, ALIGN and similar models,
    or a model of sentence-transformers that embeds images too. For any other model, the error says what it is.

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.

    Returns:
        [`EmbeddingSpace`]: The space.

    Example:

    ```python
    >>> from pathlib import Path
    >>> import hf_vg
    >>> from hf_vg.pipelines import load_space
    >>> from hf_vg.training import tiny_space
    >>> space = load_space(tiny_space(Path("tiny_space")))
    >>> vectors = space.encode_images([scene["image"] for scene in hf_vg.examples.scenes()])
    >>> best = space.search("a red circle", vectors, top_k=1)
    >>> sorted(best[0])
    ['index', 'score']
    ```
    """
    if _is_sentence_transformer(name_or_path, trust_remote_code):
        try:
            return SentenceTransformerSpace.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
        except ImportError as error:
            raise ValueError(f"{name_or_path} needs sentence-transformers: pip install hf-vg[sentences].") from error
        except Exception as error:  # broken files are reported in many ways
            raise ValueError(f"{name_or_path} cannot be loaded: {error}") from error
    model = load_checkpoint(name_or_path, "search", trust_remote_code=trust_remote_code)
    return EmbeddingSpace(model, load_part(AutoProcessor, name_or_path, trust_remote_code))


def _is_sentence_transformer(name_or_path: str, trust_remote_code: bool) -> bool:
    """Whether the modules of a checkpoint are to be put together by sentence-transformers, and not by transformers."""
    folder = local_folder(name_or_path)
    if folder.is_dir():
        file = folder / "modules.json"
        if not file.is_file():
            return False
        if not (folder / "config.json").is_file():
            return True
    else:
        try:
            file = Path(hf_hub_download(name_or_path, "modules.json", etag_timeout=HUB_TIMEOUT))
        except Exception:  # not there, or not to be had; what follows says which
            return False
    try:
        config = load_config(name_or_path, trust_remote_code=trust_remote_code)
        types = [module["type"].rpartition(".")[2] for module in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return True
    if isinstance(config, SelfAttnGroundedEncoderConfig):
        return False  # it is saved with what sentence-transformers needs too, and embeds no images
    # A dual encoder by itself is loaded by transformers. Layers that follow it are not known there.
    return not is_dual_encoder(config) or not {*types[1:]} <= {"Normalize", "Pooling"}


def load_sentence_encoder(
    name_or_path: str, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    r"""
    Loads a sentence encoder and its tokenizer, with the same checks as [`load_captioner`].

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.

    Returns:
        `tuple`: The model and its tokenizer.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.pipelines import load_sentence_encoder
    >>> from hf_vg.training import tiny_encoder
    >>> model, tokenizer = load_sentence_encoder(tiny_encoder(Path("tiny_encoder")))
    >>> type(model).__name__.startswith("SelfAttnGroundedEncoder")
    True
    ```
    """
    model = load_checkpoint(name_or_path, "sentences", trust_remote_code=trust_remote_code)
    return model, load_part(AutoTokenizer, name_or_path, trust_remote_code)


def load_detector(name_or_path: str, trust_remote_code: bool = False) -> Pipeline:
    r"""
    Loads any object detector of transformers as a `pipeline("object-detection")`.

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.

    Returns:
        [`~transformers.Pipeline`]: The pipeline.

    Example:

    ```python
    >>> from hf_vg.pipelines import load_detector
    >>> detector = load_detector("facebook/detr-resnet-50")  # doctest: +SKIP
    >>> detector("street.jpg")  # doctest: +SKIP
    [{'score': 0.99, 'label': 'car', 'box': {'xmin': 13, 'ymin': 40, 'xmax': 210, 'ymax': 122}}]
    ```
    """
    config = load_config(name_or_path, trust_remote_code=trust_remote_code)
    if type(config) not in MODEL_FOR_OBJECT_DETECTION_MAPPING:
        raise ValueError(f"{name_or_path} is a {config.model_type}, which does not detect objects.")
    model = load_checkpoint(name_or_path, model_class=AutoModelForObjectDetection, trust_remote_code=trust_remote_code)
    image_processor = load_part(AutoImageProcessor, name_or_path, trust_remote_code)
    return pipeline("object-detection", model=model, image_processor=image_processor)
