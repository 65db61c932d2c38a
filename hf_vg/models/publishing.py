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
Saves the model's code and a card next to its weights, so a checkpoint loads anywhere. Uploads are one commit.

This file is saved next to the weights too. If you load a checkpoint with `trust_remote_code=True` and save it again,
the copy is complete.
"""

import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, ModelCard, ModelCardData
from huggingface_hub.utils import filter_repo_objects
from transformers import PreTrainedModel


CARD = "README.md"
CAPTIONER = "AutoModelForImageTextToText"
PIPELINES = {
    "image-to-text": {"impl": "image_to_text.ImageToTextPipeline", "pt": [CAPTIONER], "type": "multimodal"},
}
PIPELINE_TAGS = {
    CAPTIONER: "image-to-text",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForVisualQuestionAnswering": "visual-question-answering",
    "AutoModelForZeroShotImageClassification": "zero-shot-image-classification",
}
_HERE = Path(__file__).resolve().parent
_RELATIVE_IMPORT = re.compile(r"^( *)from (\.+)([\w.]+) import ", flags=re.MULTILINE)
_FAMILY = "if False:  # never runs: tells transformers which other files belong to this model"
_UPLOAD_ARGUMENTS = ("commit_message", "commit_description", "private", "token", "revision", "create_pr")


class PublishedModelMixin:
    r"""
    Mixin for the base class of a model family. `save_pretrained` also writes the code of the family and a short model
    card. `push_to_hub` uploads all of it in one commit.

    `auto_map` lists the classes of the family: for each Auto class, `file.Class`. It is written to `config.json`.
    Classes that are not listed, such as user subclasses, are saved the standard way: their source file is unknown.
    """

    auto_map: dict[str, str] = {}

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        *args: Any,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        r"""
        Saves the weights and the config, with the model's code and a short model card next to them.

        Args:
            save_directory (`str` or `os.PathLike`):
                The folder to write to. It is created if it does not exist. A card that is already there is kept.
            is_main_process (`bool`, *optional*, defaults to `True`):
                Whether this process writes the config, the code and the card.
            args (*optional*):
                The other positional arguments of [`~transformers.PreTrainedModel.save_pretrained`].
            push_to_hub (`bool`, *optional*, defaults to `False`):
                Whether to upload the model afterwards, to `repo_id` or to the name of the folder.
            kwargs (*optional*):
                The other arguments of [`~transformers.PreTrainedModel.save_pretrained`], and those of
                [`~PublishedModelMixin.push_to_hub`] if the model is uploaded.
        """
        reference = _reference(type(self))
        if reference not in self.auto_map.values() or os.path.isfile(save_directory):
            return super().save_pretrained(save_directory, is_main_process, *args, push_to_hub=push_to_hub, **kwargs)  # type: ignore[misc]
        repo_id = kwargs.pop("repo_id", Path(save_directory).name)
        upload = {name: kwargs.pop(name) for name in _UPLOAD_ARGUMENTS if push_to_hub and name in kwargs}
        if is_main_process:
            self._write_code(Path(save_directory))
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)  # type: ignore[misc]
        if is_main_process:
            if not Path(save_directory, CARD).exists():
                short_card(self, repo_id if push_to_hub else str(save_directory)).save(Path(save_directory, CARD))
            if push_to_hub:  # upload a fresh copy: the folder may hold other files
                self.push_to_hub(repo_id, **upload)

    def push_to_hub(
        self, repo_id: str, *, max_shard_size: int | str = "50GB", tags: str | list[str] | None = None, **kwargs: Any
    ) -> CommitInfo:
        r"""
        Uploads the model, its code and a short model card to the Hub in one commit.

        Args:
            repo_id (`str`):
                The repository: `user/name`, or the name of one of your repositories. It is created if needed.
            max_shard_size (`int` or `str`, *optional*, defaults to `"50GB"`):
                The largest size of a weight file.
            tags (`str` or `list[str]`, *optional*):
                More tags for the card.
            kwargs (*optional*):
                The other arguments of [`hf_vg.hub.upload_folder`], such as `private`, `token` and `revision`.

        Returns:
            [`~huggingface_hub.CommitInfo`]: The commit.
        """
        if _reference(type(self)) not in self.auto_map.values():
            return super().push_to_hub(repo_id, max_shard_size=max_shard_size, tags=tags, **kwargs)  # type: ignore[misc]
        repo_id = create_repo(repo_id, kwargs.get("private"), kwargs.get("token"))
        with tempfile.TemporaryDirectory() as folder:
            short_card(self, repo_id, tags).save(Path(folder, CARD))
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            return upload_folder(folder, repo_id, **{"commit_message": "Upload model", **kwargs})

    def _write_code(self, folder: Path) -> None:
        config = self.config  # type: ignore[attr-defined]
        config.auto_map = dict(self.auto_map)
        here = _file_of(type(self))
        files = [here.with_name(f"{reference.partition('.')[0]}.py") for reference in self.auto_map.values()]
        config.__dict__.pop("custom_pipelines", None)
        if self.auto_map.get(CAPTIONER) == _reference(type(self)):
            config.custom_pipelines = {task: dict(info) for task, info in PIPELINES.items()}
            copied = _HERE / "image_to_text.py"
            files.append(copied if copied.exists() else _HERE.parent / "pipelines" / "image_to_text.py")
        write_code(files, folder)


class PublishedProcessorMixin:
    """Mixin for a processor. `save_pretrained` also writes its code. `push_to_hub` keeps the model's card."""

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> list[str]:
        r"""
        Saves the processor, with its code next to it.

        Args:
            save_directory (`str` or `os.PathLike`):
                The folder to write to.
            kwargs (*optional*):
                The other arguments of [`~transformers.ProcessorMixin.save_pretrained`].

        Returns:
            `list[str]`: The files that were written.
        """
        if _is_published(type(self)):
            self.auto_map = {"AutoProcessor": _reference(type(self))}
            write_code([_file_of(type(self))], Path(save_directory))
        return super().save_pretrained(save_directory, **kwargs)  # type: ignore[misc]

    def push_to_hub(
        self,
        repo_id: str,
        *,
        max_shard_size: int | str | None = None,
        tags: str | list[str] | None = None,
        **kwargs: Any,
    ) -> CommitInfo:
        r"""
        Uploads the processor and its code to the Hub in one commit.

        Args:
            repo_id (`str`):
                The repository: `user/name`, or the name of one of your repositories. It is created if needed.
            max_shard_size (`int` or `str`, *optional*):
                Ignored: a processor has no weights.
            tags (`str` or `list[str]`, *optional*):
                Ignored: the card belongs to the model.
            kwargs (*optional*):
                The other arguments of [`hf_vg.hub.upload_folder`], such as `private`, `token` and `revision`.

        Returns:
            [`~huggingface_hub.CommitInfo`]: The commit.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload_folder(folder, repo_id, **{"commit_message": "Upload processor", **kwargs})


def write_code(files: Iterable[Path], folder: Path) -> None:
    r"""
    Copies Python files, and the files of this package that they import, into one folder.

    transformers' `custom_object_save` only copies imports from the same folder. Models here also import shared files,
    such as a backbone, so imports are rewritten. Every modeling file names the others: transformers then downloads
    all files of the family and not only those of one class.

    Args:
        files (`Iterable[Path]`):
            The files to copy.
        folder (`Path`):
            Where to write them. It is created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    family = sorted({file.stem for file in files})
    pending, done = list(files), set()
    while pending:
        file = pending.pop()
        if file in done:
            continue
        done.add(file)

        def flatten(match: re.Match, file: Path = file) -> str:
            indent, dots, module = match.groups()
            imported = file.parents[len(dots) - 1].joinpath(*module.split(".")).with_suffix(".py")
            pending.append(imported)
            return f"{indent}from .{imported.stem} import "

        code = _RELATIVE_IMPORT.sub(flatten, file.read_text(encoding="utf-8"))
        if file.stem in family and file.stem.startswith("modeling_") and len(family) > 1 and _FAMILY not in code:
            named = "".join(f"    from .{other} import *  # noqa\n" for other in family if other != file.stem)
            code += f"\n\n{_FAMILY}\n{named}"
        Path(folder, file.name).write_text(code, encoding="utf-8")


def short_card(model: PreTrainedModel, name: str, tags: Iterable[str] | str | None = None) -> ModelCard:
    r"""
    Writes a model card from the model alone. The recipes write a longer card, with training settings and scores.

    Args:
        model ([`PreTrainedModel`]):
            A model of this package.
        name (`str`):
            The argument of `from_pretrained`: `user/name` on the Hub, or a folder.
        tags (`str` or `Iterable[str]`, *optional*):
            More tags.

    Returns:
        [`~huggingface_hub.ModelCard`]: The card.

    Example:

    ```python
    >>> from hf_vg import VggBackbone, VggConfig
    >>> from hf_vg.models.publishing import short_card

    >>> card = short_card(VggBackbone(VggConfig(depths=[1], hidden_sizes=[8])), "me/tiny-vgg")
    >>> card.data.library_name, card.data.pipeline_tag
    ('transformers', 'feature-extraction')
    ```
    """
    reference = _reference(type(model))
    auto_class = next(name for name, other in model.auto_map.items() if other == reference)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=PIPELINE_TAGS.get(auto_class, "feature-extraction"),
        tags=["hf_vg", model.config.model_type, *([tags] if isinstance(tags, str) else tags or [])],
    )
    about = inspect.cleandoc(type(model).__doc__ or "").partition("\n\n")[0]
    name = Path(name).as_posix()
    if auto_class == CAPTIONER and model.config.backbone_config is not None:
        usage = f"""from PIL import Image
from transformers import pipeline

captioner = pipeline("image-to-text", model="{name}", trust_remote_code=True)
image = Image.new("RGB", (256, 256), "gray")  # put your image here
print(captioner(image)[0]["generated_text"])"""
    else:
        usage = f"""from transformers import {auto_class}

model = {auto_class}.from_pretrained("{name}", trust_remote_code=True)
print(model.num_parameters())"""
    return ModelCard(f"""---
{data.to_yaml()}
---

# {Path(name).name}

{about}

This is a `{type(model).__name__}` with {model.num_parameters():,} parameters. Its code is part of this repository and
needs torch, transformers and Pillow.

```python
{usage}
```

With hf_vg imported, `trust_remote_code=True` is not needed.
""")


def create_repo(repo_id: str, private: bool | None = None, token: bool | str | None = None) -> str:
    """Creates a repository on the Hub if it does not exist, and returns its full name."""
    return HfApi(token=token).create_repo(repo_id, private=private, exist_ok=True).repo_id


def upload_folder(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    replace_card: bool = False,
    ignore_patterns: list[str] | None = None,
) -> CommitInfo:
    r"""
    Uploads a folder to the Hub in one commit: it succeeds completely or changes nothing. The repository is created if
    it does not exist.

    Args:
        folder (`str` or `os.PathLike`):
            The folder to upload.
        repo_id (`str`):
            The repository: `user/name`, or the name of one of your repositories.
        commit_message (`str`, *optional*, defaults to `"Upload model"`):
            The message of the commit.
        commit_description (`str`, *optional*):
            The description of the commit.
        private (`bool`, *optional*):
            Whether a new repository is private.
        token (`bool` or `str`, *optional*):
            Your token, if it is not the one you logged in with.
        revision (`str`, *optional*):
            The branch. It is created if it does not exist. Defaults to the main branch.
        create_pr (`bool`, *optional*, defaults to `False`):
            Whether to open a pull request instead of committing to the branch.
        replace_card (`bool`, *optional*, defaults to `False`):
            Whether the folder's model card replaces the one in the repository.
        ignore_patterns (`list[str]`, *optional*):
            Files that are not uploaded, such as `["*.log"]`.

    Returns:
        [`~huggingface_hub.CommitInfo`]: The commit.

    Example:

    ```python
    >>> from hf_vg.hub import upload_folder

    >>> upload_folder("outputs/captioner", "me/my-captioner", private=True)  # doctest: +SKIP
    ```
    """
    api = HfApi(token=token)
    folder = Path(folder)
    try:
        repo_id = create_repo(repo_id, private, token)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        ignored = list(ignore_patterns or [])
        if not replace_card and api.file_exists(repo_id, CARD, revision=revision):
            ignored.append(CARD)
        files = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
        return api.create_commit(
            repo_id,
            [CommitOperationAdd(name, folder / name) for name in filter_repo_objects(files, ignore_patterns=ignored)],
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    except Exception as error:
        error.add_note(
            f"Nothing from {folder} was committed to {repo_id!r}. Try again: files that arrived are not sent twice."
        )
        raise


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def _file_of(cls: type) -> Path:
    return Path(inspect.getfile(cls)).resolve()


def _is_published(cls: type) -> bool:
    """Returns whether a class comes from this package, and not from a user's own file."""
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(_HERE)


__all__ = ["PublishedModelMixin", "PublishedProcessorMixin"]
