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
Checkpoints that load anywhere: code and a card beside the weights, uploaded in one commit.

This file lies beside the weights too. A checkpoint that was loaded with `trust_remote_code=True` and is saved again is
as complete as the first.
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
_FAMILY = "if False:  # never run: names the files that are saved along with this one"
_UPLOAD_ARGUMENTS = ("commit_message", "commit_description", "private", "token", "revision", "create_pr")


class PublishedModelMixin:
    r"""
    For the base class of a family of models. `save_pretrained` also writes the code of the family and a short card.
    `push_to_hub` uploads all of it in one commit.

    `auto_map` names the family, and goes into `config.json`: for each Auto class `file.Class`. Other models, such as
    parts of a model and subclasses that users write, are saved the standard way.
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
            if push_to_hub:  # not the folder itself, which may hold other things
                self.push_to_hub(repo_id, **upload)

    def push_to_hub(
        self, repo_id: str, *, max_shard_size: int | str = "50GB", tags: str | list[str] | None = None, **kwargs: Any
    ) -> CommitInfo:
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
    """For a processor. `save_pretrained` also writes its code, and `push_to_hub` leaves the model's card as it is."""

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> list[str]:
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
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload_folder(folder, repo_id, **{"commit_message": "Upload processor", **kwargs})


def write_code(files: Iterable[Path], folder: Path) -> None:
    """
    Writes Python files, and what they import from this package, side by side into a folder.

    transformers' `custom_object_save` does this for the files of one folder. A model may also import from a shared
    file, such as a backbone, so imports are rewritten. Every modeling file names the others, so that transformers
    fetches the whole family and not only what one class needs.
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
    """
    A card with what a model knows of itself. The recipes write a longer one, with the training and the scores.

    Args:
        model ([`PreTrainedModel`]):
            A published model.
        name (`str`):
            What its user gives `from_pretrained`: `user/name` on the Hub, or a folder.
        tags (`str` or several, *optional*):
            More tags.
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

A `{type(model).__name__}` of {model.num_parameters():,} parameters. Its code lies beside its weights, and needs torch,
transformers and Pillow.

```python
{usage}
```

With hf_vg imported, `trust_remote_code=True` is not needed.
""")


def create_repo(repo_id: str, private: bool | None = None, token: bool | str | None = None) -> str:
    """Makes a repository on the Hub if there is none, and returns its full name."""
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
    Uploads a folder to the Hub in one commit: it succeeds completely or changes nothing. The repository is made if
    there is none.

    Args:
        folder (`str` or `os.PathLike`):
            What to upload.
        repo_id (`str`):
            Where to: `user/name`, or the name of a repository of yours.
        commit_message (`str`, *optional*), commit_description (`str`, *optional*):
            The texts of the commit.
        private (`bool`, *optional*):
            Whether a new repository is private.
        token (`bool` or `str`, *optional*):
            Your token, if it is not the one you logged in with.
        revision (`str`, *optional*):
            The branch, which is made if there is none. By default the main one.
        create_pr (`bool`, *optional*, defaults to `False`):
            Whether to propose the commit as a pull request.
        replace_card (`bool`, *optional*, defaults to `False`):
            Whether the folder's card replaces the one that the repository has.
        ignore_patterns (`list[str]`, *optional*):
            Files to leave out.
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
            f"Nothing of {folder} was committed to {repo_id!r}. Try again: what has arrived is not sent twice."
        )
        raise


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def _file_of(cls: type) -> Path:
    return Path(inspect.getfile(cls)).resolve()


def _is_published(cls: type) -> bool:
    """Whether the code of a class lies with this file. That of a user's subclass does not."""
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(_HERE)


__all__ = ["PublishedModelMixin", "PublishedProcessorMixin"]
