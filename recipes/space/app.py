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
"""The web demo as a Space. `make space` puts it beside the package, ready to be uploaded."""

import os

from hf_vg.app import find_checkpoints, launch


# Visitors may choose among the models of the Hub that HF_VG_MODELS names, with commas between them, and the
# checkpoints in the folder `checkpoints`. They cannot name others.
models = [name.strip() for name in os.environ.get("HF_VG_MODELS", "").split(",") if name.strip()]
launch(
    [*models, *find_checkpoints(["checkpoints"])],
    os.environ.get("HF_VG_IMAGES"),
    host="0.0.0.0",
    port=int(os.environ.get("PORT", "7860")),
    any_model=False,
)
