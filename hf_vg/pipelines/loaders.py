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
"""Loads what a task needs from a checkpoint: for the command line, the app and the recipes."""

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


def load_captioner(name_or_path: str, trust_remote_code: bool = False) -> ImageToTextPipeline:
    r"""
    Loads any captioner, or model that chats about images, as a `pipeline("image-to-text")`. A checkpoint that does not
    write captions, lacks weights or is damaged is refused with one sentence.

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
    """
    model = load_checkpoint(name_or_path, "captions", trust_remote_code=trust_remote_code)
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
    What to give a captioner besides the checkpoint's own settings, which hold unless something else is asked for.

    Args:
        captioner ([`ImageToTextPipeline`]):
            The captioner.
        num_captions (`int`, *optional*, defaults to 1):
            How many captions to write per image. Without sampling, the search needs at least as many beams.
        num_beams (`int`, *optional*):
            Beams of the search, 1 for greedy search. The checkpoint's by default.
        prompt (`str`, *optional*):
            What the model is asked, or the first words of its caption.
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
    Tries whether a captioner tells where its words look.

    Args:
        captioner ([`ImageToTextPipeline`]):
            The captioner.
        image:
            Any image that the pipeline takes.

    Returns:
        `str`, *optional*: Why it does not, or `None` if it does.
    """
    try:
        captioner(image, return_attention=True, max_new_tokens=2)
    except ValueError as error:
        return str(error)
    return None


def load_space(name_or_path: str, trust_remote_code: bool = False) -> EmbeddingSpace:
    r"""
    Loads any model that has one space for images and sentences: a `vse_scnlm`, CLIP, SigLIP, ALIGN and their like, or
    a model of sentence-transformers that embeds images too. Others are refused with one sentence.

    Args:
        name_or_path (`str`):
            The folder of a checkpoint, or a model on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
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
    """Loads a sentence encoder and its tokenizer, as [`load_captioner`] loads captioners."""
    model = load_checkpoint(name_or_path, "sentences", trust_remote_code=trust_remote_code)
    return model, load_part(AutoTokenizer, name_or_path, trust_remote_code)


def load_detector(name_or_path: str, trust_remote_code: bool = False) -> Pipeline:
    """Loads any object detector of transformers as a `pipeline("object-detection")`."""
    config = load_config(name_or_path, trust_remote_code=trust_remote_code)
    if type(config) not in MODEL_FOR_OBJECT_DETECTION_MAPPING:
        raise ValueError(f"{name_or_path} is a {config.model_type}, which does not detect objects.")
    model = load_checkpoint(name_or_path, model_class=AutoModelForObjectDetection, trust_remote_code=trust_remote_code)
    image_processor = load_part(AutoImageProcessor, name_or_path, trust_remote_code)
    return pipeline("object-detection", model=model, image_processor=image_processor)
