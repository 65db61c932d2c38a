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
"""Folders that any machine can load, and their way to the Hub and back."""

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects, validate_repo_id

from .cards import model_card
from .remote_code import write_code, write_processor_code


LAST_CHECKPOINT = "last-checkpoint"  # where Trainer puts what `hub_strategy="checkpoint"` publishes
CARD = "README.md"
_UPLOAD_ARGUMENTS = ("commit_message", "commit_description", "private", "token", "revision", "create_pr")


def publish_model(model_class: type):
    """Makes `save_pretrained` of a model write its code and a card too, and `push_to_hub` upload all in one commit."""
    if "save_pretrained" in vars(model_class):  # done: one class may be loaded by two Auto classes
        return
    plain_save, plain_push = model_class.save_pretrained, model_class.push_to_hub

    @functools.wraps(plain_save)
    def save_pretrained(self, save_directory, *args, push_to_hub: bool = False, **kwargs):
        # A subclass lives in a file of its user's, about which nothing is known here.
        if type(self) is not model_class or os.path.isfile(save_directory):
            return plain_save(self, save_directory, *args, push_to_hub=push_to_hub, **kwargs)
        repo_id = kwargs.pop("repo_id", Path(save_directory).name)
        upload = {name: kwargs.pop(name) for name in _UPLOAD_ARGUMENTS if push_to_hub and name in kwargs}
        is_main_process = kwargs.get("is_main_process", True)
        if is_main_process:
            write_code(self, save_directory)
        plain_save(self, save_directory, *args, **kwargs)
        if is_main_process:
            if not Path(save_directory, CARD).exists():
                model_card(self, repo_id if push_to_hub else str(save_directory)).save(Path(save_directory, CARD))
            if push_to_hub:  # not the folder itself, which may hold other things
                self.push_to_hub(repo_id, **upload)

    @functools.wraps(plain_push)
    def push_to_hub(self, repo_id, *, max_shard_size="50GB", tags=None, **kwargs) -> CommitInfo:
        if type(self) is not model_class:
            return plain_push(self, repo_id, max_shard_size=max_shard_size, tags=tags, **kwargs)
        repo_id = _create_repo(repo_id, kwargs)
        with tempfile.TemporaryDirectory() as folder:
            model_card(self, repo_id, tags=tags).save(Path(folder, CARD))
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            return upload_folder(folder, repo_id, **{"commit_message": "Upload model", **kwargs})

    model_class.save_pretrained, model_class.push_to_hub = save_pretrained, push_to_hub


def publish_processor(processor_class: type):
    """Makes `save_pretrained` of a processor write its code too, and `push_to_hub` leave the model's card as it is."""
    plain_save, plain_push = processor_class.save_pretrained, processor_class.push_to_hub

    @functools.wraps(plain_save)
    def save_pretrained(self, save_directory, *args, **kwargs):
        if type(self) is processor_class:
            write_processor_code(self, save_directory)
        return plain_save(self, save_directory, *args, **kwargs)

    @functools.wraps(plain_push)
    def push_to_hub(self, repo_id, *, max_shard_size=None, tags=None, **kwargs) -> CommitInfo:
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload_folder(folder, repo_id, **{"commit_message": "Upload processor", **kwargs})

    processor_class.save_pretrained, processor_class.push_to_hub = save_pretrained, push_to_hub


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
    Uploads a folder to the Hub in one commit, so that nobody ever sees half of it. The repository is made if it is not
    there.

    Args:
        folder (`str` or `os.PathLike`):
            What to upload.
        repo_id (`str`):
            Where to: `user/name`, or the name of a repository of yours.
        commit_message (`str`, *optional*), commit_description (`str`, *optional*):
            Of the commit.
        private (`bool`, *optional*):
            Whether a repository that is made is private.
        token (`bool` or `str`, *optional*):
            Your token, if it is not the one you logged in with.
        revision (`str`, *optional*):
            The branch, which is made if it is not there. By default the main one.
        create_pr (`bool`, *optional*, defaults to `False`):
            Whether to propose the commit as a pull request.
        replace_card (`bool`, *optional*, defaults to `False`):
            Whether a card that the repository already has is replaced by the folder's.
        ignore_patterns (`list[str]`, *optional*):
            Files to leave out.
    """
    api = HfApi(token=token)
    folder = Path(folder)
    try:
        repo_id = _create_repo(repo_id, {"private": private, "token": token})
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


def checkpoint_folder(checkpoint: str | bool | None, token: bool | str | None = None) -> str | bool | None:
    r"""
    The folder that [`Trainer`] resumes from, downloaded if it is on the Hub.

    Args:
        checkpoint (`str` or `bool`, *optional*):
            A folder; or `user/name` or `user/name@revision`, of which `last-checkpoint`, or else the newest
            `checkpoint-*`, is taken. Anything else is returned as it is.
        token (`bool` or `str`, *optional*):
            Your token, if it is not the one you logged in with.
    """
    if not isinstance(checkpoint, str) or os.path.isdir(checkpoint):
        return checkpoint
    repo_id, _, revision = checkpoint.partition("@")
    try:
        validate_repo_id(repo_id)
        info = HfApi(token=token).model_info(repo_id, revision=revision or None)
    except HFValidationError as error:
        raise ValueError(
            f"There is no folder {checkpoint!r} to resume from, and as a repository on the Hub it must read "
            "`user/name` or `user/name@revision`."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ValueError(
            f"There is no folder {checkpoint!r} to resume from, and no such repository or revision on the Hub: "
            f"{str(error).strip().splitlines()[-1]}"
        ) from error
    folders = {sibling.rfilename.partition("/")[0] for sibling in info.siblings if "/" in sibling.rfilename}
    steps = [name for name in folders if name.startswith("checkpoint-") and name.rpartition("-")[2].isdigit()]
    if LAST_CHECKPOINT in folders:
        folder = LAST_CHECKPOINT
    elif steps:
        folder = max(steps, key=lambda name: int(name.rpartition("-")[2]))
    else:
        raise ValueError(
            f"{repo_id!r} on the Hub has neither {LAST_CHECKPOINT!r} nor `checkpoint-*` to resume from: it was not "
            'trained with `push_to_hub` and `hub_strategy` "checkpoint" or "all_checkpoints".'
        )
    local = snapshot_download(repo_id, revision=info.sha, allow_patterns=f"{folder}/*", token=token)
    return os.path.join(local, folder)


def _create_repo(repo_id: str, arguments: dict[str, Any]) -> str:
    api = HfApi(token=arguments.get("token"))
    return api.create_repo(repo_id, private=arguments.get("private"), exist_ok=True).repo_id
