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
"""Finds the checkpoint to resume a training from, in a folder or on the Hub."""

import os

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id


LAST_CHECKPOINT = "last-checkpoint"  # the folder that Trainer uploads with `hub_strategy="checkpoint"`


def checkpoint_folder(checkpoint: str | bool | None, token: bool | str | None = None) -> str | bool | None:
    r"""
    Returns the folder that [`Trainer`] resumes from. A checkpoint on the Hub is downloaded.

    Args:
        checkpoint (`str` or `bool`, *optional*):
            A folder, or a repository on the Hub: `user/name` or `user/name@revision`. In a repository, the function
            takes `last-checkpoint` or else the newest `checkpoint-*`. `True`, `False` and `None` are returned
            unchanged.
        token (`bool` or `str`, *optional*):
            Your token, if it is not the one you logged in with.

    Returns:
        `str` or `bool`: The folder, for `trainer.train(resume_from_checkpoint=...)`.

    Example:

    ```python
    >>> from hf_vg.hub import checkpoint_folder

    >>> checkpoint_folder(True)  # the newest checkpoint of the output folder
    True
    >>> checkpoint_folder("me/my-captioner@main")  # doctest: +SKIP
    ```
    """
    if not isinstance(checkpoint, str) or os.path.isdir(checkpoint):
        return checkpoint
    repo_id, _, revision = checkpoint.partition("@")
    try:
        validate_repo_id(repo_id)
        info = HfApi(token=token).model_info(repo_id, revision=revision or None)
    except HFValidationError as error:
        raise ValueError(
            f"There is no folder {checkpoint!r} to resume from. A repository on the Hub must have the form "
            "`user/name` or `user/name@revision`."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ValueError(
            f"There is no folder {checkpoint!r} to resume from, and the Hub has no such repository or revision: "
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
            f"{repo_id!r} on the Hub has neither {LAST_CHECKPOINT!r} nor `checkpoint-*` to resume from. Train with "
            '`push_to_hub` and the `hub_strategy` "checkpoint" or "all_checkpoints" to upload checkpoints.'
        )
    local = snapshot_download(repo_id, revision=info.sha, allow_patterns=f"{folder}/*", token=token)
    return os.path.join(local, folder)
