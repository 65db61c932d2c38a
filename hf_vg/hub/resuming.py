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

import os

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id


LAST_CHECKPOINT = "last-checkpoint"  # where Trainer puts what `hub_strategy="checkpoint"` publishes


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
