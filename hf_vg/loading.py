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
"""Loads checkpoints, and says in one sentence what is wrong with one that cannot be loaded."""

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

from .examples import CHECKPOINTS, checkpoint


HUB_TIMEOUT = 10  # seconds
MAX_IMAGE_SIDE = 4096  # pixels that a processor may ask for
# The most that a captioner of this package may be told to do.
GENERATION_LIMITS = {
    **dict.fromkeys(("max_length", "max_new_tokens", "min_length", "min_new_tokens"), 1000),
    **dict.fromkeys(("num_beams", "num_return_sequences"), 100),
    **dict.fromkeys(("num_candidates", "num_neighbors"), 10_000),
}
# What the models of this package are for, by the class that was saved.
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
# For each task: what a model must do, and what to use with a model that does it.
_MEANINGS = {
    "captions": ("write captions", "`hf-vg caption` or recipes/evaluate_captioner.py"),
    "search": ("put images and sentences in one space", "`hf-vg search` or recipes/evaluate_retrieval.py"),
    "sentences": ("encode sentences", "`hf-vg explain --text` or recipes/evaluate_sentences.py"),
    "regions": ("relate words to regions", "`hf-vg ground`"),
}


def local_folder(name_or_path: str | PathLike) -> Path:
    """The folder of a checkpoint: your own, or that of an example checkpoint if you have none of this name."""
    folder = Path(name_or_path).expanduser()
    return Path(checkpoint(str(name_or_path))) if str(name_or_path) in CHECKPOINTS and not folder.exists() else folder


def find_checkpoint(name_or_path: str | PathLike) -> str:
    r"""
    Checks that a checkpoint is there, before anything else is done: a folder with a `config.json`, an example
    checkpoint, or a model in the cache or on the Hub. The Hub is asked once, and not about what looks like a folder.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, one of `hf_vg.examples.CHECKPOINTS`, or `user/name` on the Hub.

    Returns:
        `str`: What `from_pretrained` takes.
    """
    name = str(name_or_path)
    path = local_folder(name)
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path)
        within = sorted(file.parent.name for file in path.glob("*/config.json"))
        hint = f" These folders in it are: {', '.join(within[:5])}." if within else ""
        raise FileNotFoundError(f"{name} is not a checkpoint: it has no config.json.{hint}")
    if path.exists():
        raise NotADirectoryError(f"{name} is a file. Give the folder of a checkpoint.")
    is_hub_name = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None
    if not is_hub_name or ("/" in name and path.parent.is_dir()):
        raise FileNotFoundError(f"there is no folder {name}.{_nearest_checkpoint(path)}")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return name
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"there is no folder {name} here, and no public model {name} on the Hub. For a private one, log in with "
            f"`hf auth login`.{_nearest_checkpoint(path)}"
        ) from None
    except OfflineModeIsEnabled:
        raise FileNotFoundError(
            f"there is no folder {name} here, it is not in the Hugging Face cache, and HF_HUB_OFFLINE forbids to ask "
            f"the Hub.{_nearest_checkpoint(path)}"
        ) from None
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise FileNotFoundError(
            f"there is no folder {name} here, and the Hub cannot be reached ({type(error).__name__}). Download the "
            f"model where there is a network, and give its folder.{_nearest_checkpoint(path)}"
        ) from None
    return name


def _nearest_checkpoint(path: Path) -> str:
    """A hint for a folder that is not there: the checkpoint beside it, or in `outputs`, with the most similar name."""
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
    Reads the config of a checkpoint, and checks that the model is one for the task.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        task (`str`, *optional*):
            `"captions"`, `"search"`, `"sentences"` or `"regions"`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
    """
    name = find_checkpoint(name_or_path)
    if Path(name).is_dir():
        _check_json(Path(name, "config.json"))
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except OSError:
        raise
    except Exception as error:  # wrong values in a config.json are reported in many ways
        raise ValueError(_without_trust(name_or_path, error)) from error
    architectures = config.architectures or [type(config).__name__]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise ValueError(f"the config of {name_or_path} is wrong: architectures must be a list of names.")
    architecture = architectures[0]
    if task is None:
        return config
    tasks = TASKS.get(architecture)
    if tasks is None:  # a model of transformers, or a subclass that a user wrote
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
    """Whether the model of this config has one vector for an image and one for a sentence, as CLIP has."""
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
    Loads a trained model in evaluation mode. One that lacks weights, or whose weights are damaged or not finite, is
    refused: it would compute nonsense without a word.

    Args:
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        task (`str`, *optional*):
            What the model must be for: `"captions"`, `"search"`, `"sentences"` or `"regions"`.
        model_class (`type`, *optional*):
            The class to load. By default `AutoModelForImageTextToText` for captions, and else `AutoModel`.
        new_head (`bool`, *optional*, defaults to `False`):
            Whether only the base model must be there: a head that the checkpoint lacks is drawn at random.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        may_lack (`Collection[str]`, *optional*):
            Names of weights that begin anew if the checkpoint lacks them.
        kwargs:
            Passed to `from_pretrained`.
    """
    load_config(name_or_path, task, trust_remote_code)
    if model_class is None:
        model_class = AutoModelForImageTextToText if task == "captions" else AutoModel
    folder = local_folder(name_or_path)
    # transformers reads these only if there is nothing else.
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
    except Exception as error:  # a damaged pickle may raise anything: its opcodes are a small program
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
        if isinstance(error, RuntimeError) and "mismatched" in reason:  # transformers has reported them
            raise ValueError(f"the weights of {name_or_path} do not fit its config.json: {error}") from error
        if "weights_only" in reason:  # what torch advises then would run the code in a file
            reason = type(error).__name__
        raise ValueError(
            f"the weights of {name_or_path} are damaged, or hold more than tensors ({reason})."
        ) from error
    check_weights(name_or_path, model, {*loaded["missing_keys"]} - {*may_lack}, new_head)
    return model.eval()


def check_archive(file: Path) -> None:
    """Refuses a file of torch whose parts are compressed or overlap: a small one could fill the memory."""
    if not zipfile.is_zipfile(file):  # as torch saved before version 1.6
        return
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError(f"{file} is compressed, which torch never does. It is not read.")
    if sum(member.file_size for member in members) > file.stat().st_size:
        raise ValueError(f"{file} claims to hold more than its size. It is not read.")


def load_part(auto_class: Any, name_or_path: str | PathLike, trust_remote_code: bool = False, **kwargs: Any) -> Any:
    r"""
    Loads what prepares the inputs of a model, and tries it: one that does not work is refused in one sentence.

    Args:
        auto_class (`type`):
            `AutoTokenizer`, `AutoImageProcessor`, `AutoProcessor`, or the class of a processor.
        name_or_path (`str` or `PathLike`):
            The folder, or `user/name` on the Hub.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        kwargs:
            Passed to `from_pretrained`.
    """
    folder = local_folder(name_or_path)
    name = str(folder) if folder.is_dir() else str(name_or_path)
    try:
        part = auto_class.from_pretrained(name, trust_remote_code=trust_remote_code, **kwargs)
        if part is None:
            raise ValueError("it is not there")
        # A tokenizer is no processor, and has neither.
        parts = [part, getattr(part, "tokenizer", None), getattr(part, "image_processor", None)]
        for one in parts:
            if isinstance(one, PreTrainedTokenizerBase):
                one("a dog")
            elif isinstance(one, ImageProcessingMixin):
                _try_image_processor(one)
    except Exception as error:  # broken files are reported in many ways
        kind = auto_class.__name__.removeprefix("Auto")
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            raise ValueError(_without_trust(name_or_path, error)) from error
        raise ValueError(f"the {kind} of {name_or_path} cannot be loaded: {reason}") from error
    return part


def _try_image_processor(image_processor: Any) -> None:
    # Where there is a longest edge, some processors count pixels instead of sides.
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
        raise ValueError(
            "an image becomes numbers that are not finite: image_mean, image_std or rescale_factor is wrong"
        )


def check_generation(name_or_path: str | PathLike, model: PreTrainedModel) -> None:
    r"""
    Refuses a captioner of this package whose generation config would make it write for ever, or words that it does
    not have.

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
    Refuses a model that lacks weights, or has weights that are not finite.

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
        if tensor.is_floating_point() and name not in missing and not torch.isfinite(tensor).all():
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
        return f"{name_or_path} needs code of its own. If you trust its author, give --trust_remote_code."
    if not isinstance(error, ValueError):
        return f"{name_or_path} cannot be loaded: its config.json is wrong ({type(error).__name__}: {error!s:.300})."
    return f"{name_or_path} cannot be loaded: {error}"


def config_problem(error: StrictDataclassError) -> str:
    """What a config says of a wrong value, as one sentence with the name of the field."""
    field = re.match(r"Validation error for field '(.+?)'", str(error))
    problem = " ".join(str(error.__cause__ or error).split()).rstrip(".")
    return f"{problem:.300}." if field is None or field[1] in problem else f"{field[1]} {problem:.300}."


def weights_digest(model: torch.nn.Module) -> str:
    """A digest of all weights of a model, by name."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
