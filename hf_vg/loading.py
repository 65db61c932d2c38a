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
"""Finds, loads and checks checkpoints. If one cannot be loaded, the error says why in one sentence."""

import difflib
import hashlib
import json
import math
import re
import zipfile
from collections.abc import Collection, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from huggingface_hub.utils import httpx
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    ImageProcessingMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_MAPPING
from transformers.utils import logging

from .examples import CHECKPOINTS, checkpoint


logger = logging.get_logger(__name__)

HUB_TIMEOUT = 10  # seconds
MAX_IMAGE_SIDE = 4096  # largest image side of an image processor, in pixels
# The largest values in the generation config of a captioner of this package.
GENERATION_LIMITS = {
    **dict.fromkeys(("max_length", "max_new_tokens", "min_length", "min_new_tokens"), 1000),
    **dict.fromkeys(("num_beams", "num_return_sequences"), 100),
    **dict.fromkeys(("num_candidates", "num_neighbors"), 10_000),
}
# The tasks of the models of this package, by class name.
TASKS = {
    "ShowAttendTellForConditionalGeneration": ("captions",),
    "SpatialTransformerCaptionerForConditionalGeneration": ("captions",),
    "VseScnlmForConditionalGeneration": ("captions", "search"),
    "VseScnlmModel": ("search",),
    "SelfAttnGroundedEncoderForPreTraining": ("sentences",),
    "SelfAttnGroundedEncoderModel": ("sentences",),
    "GroundedVisualBertModel": ("regions",),
    "GroundedVisualBertForVGP": ("regions",),
    "GroundedVisualBertForQuestionAnswering": ("regions",),
    "GroundedVisualBertForReferringExpression": ("regions",),
}
# For each task: what a model does, and which commands are for such models.
_MEANINGS = {
    "captions": ("write captions", "`hf-vg caption` or recipes/evaluate_captioner.py"),
    "search": ("put images and sentences in one space", "`hf-vg search` or recipes/evaluate_retrieval.py"),
    "sentences": ("encode sentences", "`hf-vg explain --text` or recipes/evaluate_sentences.py"),
    "regions": ("relate words to regions", "`hf-vg ground`"),
}


def local_folder(name_or_path: str | PathLike) -> Path:
    """Returns the folder of a checkpoint. The name of an example checkpoint works if you have no such folder."""
    folder = Path(name_or_path).expanduser()
    return Path(checkpoint(str(name_or_path))) if str(name_or_path) in CHECKPOINTS and not folder.exists() else folder


def find_checkpoint(name_or_path: str | PathLike) -> str:
    r"""
    Checks that a checkpoint exists: a folder with a `config.json`, an example checkpoint, or a model in the Hugging
    Face cache or on the Hub. The Hub is asked at most once, and never for a name that looks like a folder.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, one of `hf_vg.examples.CHECKPOINTS`, or `user/name` on the Hub.

    Returns:
        `str`: The argument for `from_pretrained`.

    Example:

    ```python
    >>> from pathlib import Path
    >>> from hf_vg.loading import find_checkpoint

    >>> Path(find_checkpoint("spatial_transformer")).name  # an example checkpoint
    'spatial_transformer'
    ```
    """
    name = str(name_or_path)
    path = local_folder(name)
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path)
        within = sorted(file.parent.name for file in path.glob("*/config.json"))
        hint = f" These folders in it are checkpoints: {', '.join(within[:5])}." if within else ""
        raise FileNotFoundError(f"{name} is not a checkpoint: it has no config.json.{hint}")
    if path.exists():
        raise NotADirectoryError(f"{name} is a file. Pass the folder of a checkpoint.")
    is_hub_name = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None
    if not is_hub_name or ("/" in name and path.parent.is_dir()):
        raise FileNotFoundError(f"there is no folder {name}.{_nearest_checkpoint(path)}")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return name
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"there is no folder {name} here, and no public model {name} on the Hub. For a private model, log in with "
            f"`hf auth login`.{_nearest_checkpoint(path)}"
        ) from None
    except OfflineModeIsEnabled:
        raise FileNotFoundError(
            f"there is no folder {name} here, it is not in the Hugging Face cache, and HF_HUB_OFFLINE is set, so the "
            f"Hub is not asked.{_nearest_checkpoint(path)}"
        ) from None
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise FileNotFoundError(
            f"there is no folder {name} here, and the Hub cannot be reached ({type(error).__name__}). Download the "
            f"model on a machine with a network, and pass its folder.{_nearest_checkpoint(path)}"
        ) from None
    return name


def _nearest_checkpoint(path: Path) -> str:
    """Returns a hint for a missing folder: the checkpoint next to it or in `outputs` with the most similar name."""
    beside, written = (
        {file.parent.name: file.parent for file in folder.glob("*/config.json")}
        for folder in (path.parent, Path("outputs"))
    )
    for there in (beside, written):
        nearest = difflib.get_close_matches(path.name, there, n=1)
        if nearest:
            return f" Did you mean {there[nearest[0]]}?"
    names = sorted(map(str, (beside or written).values()))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f" There are: {', '.join(names[:5])}{more}." if names else ""


def load_config(
    name_or_path: str | PathLike, task: str | None = None, trust_remote_code: bool = False
) -> PreTrainedConfig:
    r"""
    Reads the config of a checkpoint, and checks that the model is for the task.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        task (`str`, *optional*):
            `"captions"`, `"search"`, `"sentences"` or `"regions"`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.

    Returns:
        [`PreTrainedConfig`]: The config.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.loading import load_config

    >>> load_config("spatial_transformer", task="captions").model_type
    'spatial_transformer_captioner'
    ```
    """
    name = find_checkpoint(name_or_path)
    if Path(name).is_dir():
        _check_json(Path(name, "config.json"))
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except OSError:
        raise
    except Exception as error:  # wrong values in a config.json raise many kinds of errors
        raise ValueError(_without_trust(name_or_path, error)) from error
    architectures = config.architectures or [type(config).__name__]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise ValueError(f"the config of {name_or_path} is wrong: architectures must be a list of names.")
    architecture = architectures[0]
    if task is None:
        return config
    tasks = TASKS.get(architecture)
    if tasks is None:  # a model of transformers, or a user's subclass
        fits = {"captions": type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, "search": is_dual_encoder(config)}
        tasks = tuple(name for name in _MEANINGS if fits.get(name, True))
    if task not in tasks:
        uses = " or ".join(_MEANINGS[name][1] for name in tasks) if architecture in TASKS else None
        raise ValueError(
            f"{name_or_path} is a {config.model_type} ({architecture}), which does not {_MEANINGS[task][0]}"
            + (f"; use {uses}." if uses else ".")
        )
    return config


def is_dual_encoder(config: PreTrainedConfig) -> bool:
    """Returns whether the model of this config encodes images and sentences as vectors, as CLIP does."""
    if config.model_type == "blip-2":  # its text features are those of a language model
        return False
    model_class = MODEL_MAPPING.get(type(config), None)
    return hasattr(model_class, "get_image_features") and hasattr(model_class, "get_text_features")


def load_checkpoint(
    name_or_path: str | PathLike,
    task: str | None = None,
    model_class: Any = None,
    new_head: bool = False,
    trust_remote_code: bool = False,
    may_lack: Collection[str] = (),
    **kwargs: Any,
) -> PreTrainedModel:
    r"""
    Loads a trained model in evaluation mode. Raises an error if weights are missing, damaged or not finite, because
    such a model would silently compute nonsense.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        task (`str`, *optional*):
            The task of the model: `"captions"`, `"search"`, `"sentences"` or `"regions"`.
        model_class (`type`, *optional*):
            The class to load. Defaults to `AutoModelForImageTextToText` for captions, and to `AutoModel` otherwise.
        new_head (`bool`, *optional*, defaults to `False`):
            Whether the head may be missing. It is then initialized at random.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        may_lack (`Collection[str]`, *optional*):
            Names of weights that may be missing. They are then initialized at random.
        kwargs (*optional*):
            Passed to `from_pretrained`.

    Returns:
        [`PreTrainedModel`]: The model.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.loading import load_checkpoint

    >>> type(load_checkpoint("spatial_transformer", task="captions")).__name__
    'SpatialTransformerCaptionerForConditionalGeneration'
    ```
    """
    load_config(name_or_path, task, trust_remote_code)
    if model_class is None:
        model_class = AutoModelForImageTextToText if task == "captions" else AutoModel
    folder = local_folder(name_or_path)
    # transformers reads `.bin` files only if there is no `.safetensors` file.
    for file in [] if any(folder.glob("*.safetensors")) else folder.glob("pytorch_model*.bin"):
        check_archive(file)
    try:
        model, loaded = model_class.from_pretrained(
            find_checkpoint(name_or_path), trust_remote_code=trust_remote_code, output_loading_info=True, **kwargs
        )
    except OSError:
        raise
    except (ValueError, StrictDataclassError) as error:
        raise ValueError(_without_trust(name_or_path, error)) from error
    except Exception as error:  # a damaged pickle can raise any exception
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
        if isinstance(error, RuntimeError) and "mismatched" in reason:
            raise ValueError(f"the weights of {name_or_path} do not fit its config.json: {error}") from error
        if "weights_only" in reason:  # torch then advises a setting that would run the code in the file
            reason = type(error).__name__
        raise ValueError(
            f"the weights of {name_or_path} are damaged, or contain more than tensors ({reason})."
        ) from error
    check_weights(name_or_path, model, {*loaded["missing_keys"]} - {*may_lack}, new_head)
    return model.eval()


def check_archive(file: Path) -> None:
    """
    Raises a `ValueError` if the parts of a torch file are compressed or overlap: a small file could fill the memory.
    """
    if not zipfile.is_zipfile(file):  # the format of torch before version 1.6
        return
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError(f"{file} is compressed. torch does not save such files, so it is not read.")
    if sum(member.file_size for member in members) > file.stat().st_size:
        raise ValueError(f"{file} claims to hold more than its size. It is not read.")


def load_part(auto_class: Any, name_or_path: str | PathLike, trust_remote_code: bool = False, **kwargs: Any) -> Any:
    r"""
    Loads a tokenizer, an image processor or a processor, and tries it on a short text or a small image. Raises a
    `ValueError` if it does not work.

    Args:
        auto_class (`type`):
            `AutoTokenizer`, `AutoImageProcessor`, `AutoProcessor`, or a processor class.
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        kwargs (*optional*):
            Passed to `from_pretrained`.

    Returns:
        The tokenizer, image processor or processor.

    Example:

    ```python
    >>> import hf_vg
    >>> from transformers import AutoProcessor
    >>> from hf_vg.loading import load_part

    >>> type(load_part(AutoProcessor, "spatial_transformer")).__name__
    'SpatialTransformerCaptionerProcessor'
    ```
    """
    folder = local_folder(name_or_path)
    name = str(folder) if folder.is_dir() else str(name_or_path)
    try:
        part = auto_class.from_pretrained(name, trust_remote_code=trust_remote_code, **kwargs)
        if part is None:
            raise ValueError("it is missing")
        # A tokenizer has neither of these attributes.
        parts = [part, getattr(part, "tokenizer", None), getattr(part, "image_processor", None)]
        for one in parts:
            if isinstance(one, PreTrainedTokenizerBase):
                one("a dog")
            elif isinstance(one, ImageProcessingMixin):
                _try_image_processor(one)
    except Exception as error:  # broken files raise many kinds of errors
        kind = auto_class.__name__.removeprefix("Auto")
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            raise ValueError(_without_trust(name_or_path, error)) from error
        raise ValueError(f"the {kind} of {name_or_path} cannot be loaded: {reason}") from error
    return part


def _try_image_processor(image_processor: Any) -> None:
    # With a longest edge, some image processors count pixels in `shortest_edge`.
    for field in ("size", "crop_size"):
        size = dict(getattr(image_processor, field, None) or {})
        names = ("height", "width", *(() if size.get("longest_edge") else ("shortest_edge",)))
        for name in names:
            value = size.get(name)
            if value is not None and not (type(value) is int and 1 <= value <= MAX_IMAGE_SIDE):
                raise ValueError(f"{field}.{name} must be from 1 to {MAX_IMAGE_SIDE:,}, got {value!r:.80}")
    for field in ("image_mean", "image_std"):
        values = getattr(image_processor, field, None)
        if values is not None and not all(
            map(math.isfinite, values if isinstance(values, list | tuple) else [values])
        ):
            raise ValueError(f"{field} must be finite, got {values!r:.80}")
    pixel_values = image_processor(Image.new("RGB", (224, 224)), return_tensors="pt").get("pixel_values")
    if isinstance(pixel_values, torch.Tensor) and not torch.isfinite(pixel_values).all():
        raise ValueError("its pixel values are not finite: image_mean, image_std or rescale_factor is wrong")


def check_generation(name_or_path: str | PathLike, model: PreTrainedModel) -> None:
    r"""
    Raises a `ValueError` if the generation config of a captioner of this package has numbers out of range: the model
    would never stop, or would use tokens that it does not have.

    Args:
        name_or_path (`str` or `PathLike`):
            Where the model was loaded from.
        model ([`PreTrainedModel`]):
            The captioner.
    """
    if type(model).__name__ not in TASKS:
        return
    settings = model.generation_config.to_dict()
    words = model.config.vocab_size
    for field, value in settings.items():
        values, problem = value if isinstance(value, list) else [value], None
        if field in GENERATION_LIMITS and value is not None:
            most = GENERATION_LIMITS[field]
            problem = None if type(value) is int and 0 <= value <= most else f"from 0 to {most:,}"
        elif field.endswith("token_id") or field == "suppress_tokens":
            known = all(one is None or (type(one) is int and 0 <= one < words) for one in values)
            problem = None if known else f"from 0 to {words - 1:,}"
        if problem is not None:
            raise ValueError(
                f"the generation config of {name_or_path} is wrong: {field} must be {problem}, got {value!r:.80}."
            )


def check_weights(
    name_or_path: str | PathLike, model: PreTrainedModel, missing: Iterable[str], new_head: bool = False
) -> None:
    r"""
    Raises a `ValueError` if weights of a model are missing or not finite.

    Args:
        name_or_path (`str` or `PathLike`):
            Where the model was loaded from.
        model ([`PreTrainedModel`]):
            The model.
        missing (`Iterable[str]`):
            The `missing_keys` of `from_pretrained(..., output_loading_info=True)`.
        new_head (`bool`, *optional*, defaults to `False`):
            Whether weights outside of the base model may be missing.
    """
    base = f"{model.base_model_prefix}."
    lacks = sorted(name for name in missing if not new_head or name.startswith(base))
    if lacks:
        more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        raise ValueError(f"{name_or_path} lacks weights of {type(model).__name__}: {', '.join(lacks[:3])}{more}.")
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or name in missing or torch.isfinite(tensor).all():
            continue
        # Batch normalization divides by it: a variance too large for float16 makes a channel constant.
        if (
            name.endswith("running_var")
            and (infinite := int((tensor == torch.inf).sum())) == (~tensor.isfinite()).sum()
        ):
            logger.warning(
                f"{name_or_path}: {infinite} of {len(tensor)} variances in {name} are infinite. Were they "
                "saved in float16? The model works, but these channels are constant."
            )
            continue
        raise ValueError(f"{name_or_path} has weights that are not finite, in {name}. It cannot be used.")


def _check_json(file: Path) -> None:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def _without_trust(name_or_path: str | PathLike, error: Exception) -> str:
    if isinstance(error, StrictDataclassError):
        return f"the config of {name_or_path} is wrong: {config_problem(error)}"
    if "trust_remote_code" in str(error):
        return f"{name_or_path} comes with its own code. If you trust its author, pass --trust_remote_code."
    if not isinstance(error, ValueError):
        return f"{name_or_path} cannot be loaded: its config.json is wrong ({type(error).__name__}: {error!s:.300})."
    return f"{name_or_path} cannot be loaded: {error}"


def config_problem(error: StrictDataclassError) -> str:
    """Returns the error of a config as one sentence with the name of the field."""
    field = re.match(r"Validation error for field '(.+?)'", str(error))
    problem = " ".join(str(error.__cause__ or error).split()).rstrip(".")
    return f"{problem:.300}." if field is None or field[1] in problem else f"{field[1]} {problem:.300}."


def weights_digest(model: torch.nn.Module) -> str:
    """Returns a digest of the names and values of all weights of a model."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
