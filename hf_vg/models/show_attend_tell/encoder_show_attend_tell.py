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
"""The encoder of ShowAttendTell."""

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from ..image_encoder import ImageEncoder
from .configuration_show_attend_tell import ShowAttendTellConfig
from .kernels_show_attend_tell import tanh_factors
from .outputs_show_attend_tell import ShowAttendTellEncoderOutput, is_asked_for


class ShowAttendTellEncoder(nn.Module):
    """The feature map of the image, and the layers of the attention network that do not depend on the decoder."""

    main_input_name = "pixel_values"

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        self.image_encoder = ImageEncoder(config)
        self.feature_dropout = nn.Dropout1d(config.feature_dropout)
        self.key_layers = nn.ModuleList(
            nn.Linear(config.feature_size if i == 0 else config.attention_size, config.attention_size)
            for i in range(config.num_attention_layers)
        )
        self.key_layers[0].orthogonal_blocks = 0  # type: ignore[assignment]  # Gaussian in the authors' code

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellEncoderOutput:
        """Encodes images. See [`ShowAttendTellModel.forward`] for the arguments."""
        features = self.image_encoder(pixel_values, image_features).flatten(1, -2)  # (B, L, D)
        features = features.to(self.key_layers[0].weight.dtype).contiguous()
        if self.training and self.feature_dropout.p > 0:
            features = self.feature_dropout(features.transpose(1, 2)).transpose(1, 2)

        keys = self.key_layers[0](features)  # (B, L, A)
        for layer in self.key_layers[1:]:
            keys = torch.tanh(layer(keys))
        return ShowAttendTellEncoderOutput(
            last_hidden_state=features,
            hidden_states=(features,) if is_asked_for("output_hidden_states", kwargs, self.config) else None,
            attention_keys=keys,
            key_factors=tanh_factors(keys),
        )
