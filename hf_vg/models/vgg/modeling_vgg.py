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
"""PyTorch VGG backbone and image classifier."""

import copy

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.backbone_utils import BackboneMixin
from transformers.modeling_outputs import BackboneOutput, ImageClassifierOutputWithNoAttention
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from ..publishing import PublishedModelMixin
from .configuration_vgg import VggConfig


POOLED_SIZE = 7  # fc6 takes a map of 7 x 7 locations
DROPOUT = 0.5  # after fc6 and after fc7, as in torchvision's classifier


class VggConvLayer(nn.Module):
    """A 3x3 convolution that keeps the image size, optional batch normalization, and a ReLU."""

    def __init__(self, config: VggConfig, in_channels: int, out_channels: int):
        super().__init__()
        # torchvision's weights have this bias with batch normalization too.
        self.convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
        # CODEPATH: torchvision's vgg*_bn have batch normalization, its vgg11, 13, 16 and 19 do not.
        self.normalization = nn.BatchNorm2d(out_channels) if config.use_batch_norm else nn.Identity()
        # In place, to keep only one copy of the large early maps.
        self.activation = nn.ReLU(inplace=True)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.convolution(hidden_states)
        hidden_states = self.normalization(hidden_states)
        return self.activation(hidden_states)


class VggStage(nn.Module):
    """
    The convolutions of one image size. The max-pool is the first layer of a stage and not the last layer of the stage
    before. So a stage returns the map before pooling, and the last stage has no pool.
    """

    def __init__(self, config: VggConfig, stage_idx: int):
        super().__init__()
        out_channels = config.hidden_sizes[stage_idx]
        in_channels = config.hidden_sizes[stage_idx - 1] if stage_idx > 0 else config.num_channels
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2) if stage_idx > 0 else nn.Identity()
        self.layers = nn.ModuleList(
            VggConvLayer(config, in_channels if layer_idx == 0 else out_channels, out_channels)
            for layer_idx in range(config.depths[stage_idx])
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.pool(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class VggFullyConnected(nn.Module):
    """fc6 or fc7: a linear layer over the whole map, and a ReLU. The output is a map with one location."""

    def __init__(self, config: VggConfig, in_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, config.fc_size)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = self.linear(hidden_states.flatten(1))
        return self.activation(hidden_states)[:, :, None, None]


class VggPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    """Base class of the VGG models: weight initialization, loading and saving."""

    config: VggConfig
    auto_map = {
        "AutoConfig": "configuration_vgg.VggConfig",
        "AutoModel": "modeling_vgg.VggBackbone",
        "AutoBackbone": "modeling_vgg.VggBackbone",
        "AutoModelForImageClassification": "modeling_vgg.VggForImageClassification",
    }
    base_model_prefix = "vgg"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["VggConvLayer"]
    # VGG has no attention, so a model with this backbone can use any implementation.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=0.01)
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class VggBackbone(BackboneMixin, VggPreTrainedModel):
    r"""
    VGG as a backbone: `feature_maps` holds one map per stage in `config.out_features`. The layers fc6 and fc7 exist
    only if `config.out_features` ends with one of them.

    Args:
        config ([`VggConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import VggBackbone, VggConfig

    >>> backbone = VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[8, 16], out_features=["stage1", "stage2"]))
    >>> [list(feature_map.shape) for feature_map in backbone(torch.rand(1, 3, 32, 32)).feature_maps]
    [[1, 8, 32, 32], [1, 16, 16, 16]]
    ```
    """

    has_attentions = False
    # You can load a backbone from the weights of a classifier.
    _keys_to_ignore_on_load_unexpected = [r"^(vgg\.)?fc[67]\.", r"^classifier\."]
    _can_record_outputs = {"hidden_states": OutputRecorder(VggStage, capture_initial_hidden_state=False)}

    def __init__(self, config: VggConfig):
        super().__init__(config)
        self.num_features = [*config.hidden_sizes, *([] if config.fc_size is None else [config.fc_size] * 2)]
        self.stages = nn.ModuleList(VggStage(config, stage_idx) for stage_idx in range(len(config.depths)))
        # Captioners do not need fc6, which alone has 103 million weights at the published width.
        # CODEPATH: the published classifiers have both layers, convolutional backbones have neither.
        if config.out_features[-1] in ("fc6", "fc7"):
            self.last_pool = nn.MaxPool2d(kernel_size=2, stride=2)
            # fc6 gets 7 x 7 locations for any image size, as in torchvision.
            self.resize = nn.AdaptiveAvgPool2d(POOLED_SIZE)
            self.fc6 = VggFullyConnected(config, config.hidden_sizes[-1] * POOLED_SIZE**2)
            self.dropout = nn.Dropout(DROPOUT)
            self.fc7 = VggFullyConnected(config, config.fc_size)

        # Recomputing a stage would count its batch twice in the running statistics of batch normalization.
        self.supports_gradient_checkpointing = not config.use_batch_norm
        self.gradient_checkpointing = False

        # Initialize weights and apply final processing
        self.post_init()

    @capture_outputs(tie_last_hidden_states=False)
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""
        Computes the feature maps of images.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`):
                Images from the image processor. torchvision's weights expect RGB values from 0 to 1, normalized with
                the mean and standard deviation of ImageNet.
            kwargs (*optional*):
                `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.BackboneOutput`]: `feature_maps`, one per stage of `out_features`. With
            `output_hidden_states=True` also `hidden_states`, one per stage up to the last one in `out_features`.
        """
        # Image processors return float32, but the weights may be in half precision.
        hidden_states = pixel_values.to(self.dtype)

        # A parent model can switch on checkpointing without a look at `supports_gradient_checkpointing`.
        # CODEPATH: torchvision's vgg*_bn are never recomputed, see __init__.
        checkpointing = self.gradient_checkpointing and self.training and not self.config.use_batch_norm
        if checkpointing and torch.is_grad_enabled() and not hidden_states.requires_grad:
            # With `use_reentrant=True`, weights get gradients only if the input of their stage requires gradients.
            hidden_states = hidden_states.detach().requires_grad_()

        feature_maps = {}
        for stage_name, stage in zip(self.stage_names, self.stages, strict=False):
            if checkpointing:
                hidden_states = self._gradient_checkpointing_func(stage.__call__, hidden_states)
            else:
                hidden_states = stage(hidden_states)

            if stage_name in self.out_features:
                feature_maps[stage_name] = hidden_states
            if stage_name == self.out_features[-1]:
                return BackboneOutput(feature_maps=tuple(feature_maps.values()))

        feature_maps["fc6"] = self.fc6(self.resize(self.last_pool(hidden_states)))  # (B, 4096, 1, 1)
        if self.out_features[-1] == "fc7":
            feature_maps["fc7"] = self.fc7(self.dropout(feature_maps["fc6"]))
        feature_maps = {name: feature_map for name, feature_map in feature_maps.items() if name in self.out_features}
        return BackboneOutput(feature_maps=tuple(feature_maps.values()))


class VggForImageClassification(VggPreTrainedModel):
    r"""
    VGG as an image classifier: the convolutions, fc6, fc7 and a linear layer over the classes.

    Args:
        config ([`VggConfig`]):
            The configuration of the model. `fc_size` must be set.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import VggConfig, VggForImageClassification

    >>> model = VggForImageClassification(VggConfig(depths=[1, 1], hidden_sizes=[8, 16], fc_size=32, num_labels=10))
    >>> model(torch.rand(1, 3, 32, 32)).logits.shape
    torch.Size([1, 10])
    ```
    """

    def __init__(self, config: VggConfig):
        super().__init__(config)
        if config.fc_size is None:
            raise ValueError("`fc_size` is `None`. A classifier needs the layers fc6 and fc7, so set their width.")
        backbone_config = copy.deepcopy(config)
        backbone_config.out_features = ["fc7"]
        self.vgg = VggBackbone(backbone_config)
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(config.fc_size, config.num_labels)

        # Initialize weights and apply final processing
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> ImageClassifierOutputWithNoAttention:
        r"""
        Classifies images, and computes the loss if you pass `labels`.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`):
                Images from the image processor. torchvision's weights expect RGB values from 0 to 1, normalized with
                the mean and standard deviation of ImageNet.
            labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                The class of each image, from 0 to `config.num_labels - 1`.
            kwargs (*optional*):
                `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`~transformers.modeling_outputs.ImageClassifierOutputWithNoAttention`]: `logits` of shape
            `(batch_size, num_labels)`, and `loss` if you passed labels.
        """
        outputs = self.vgg(pixel_values, **kwargs)
        fc7 = outputs.feature_maps[-1].flatten(1)  # (B, 4096)
        logits = self.classifier(self.dropout(fc7))
        loss = self.loss_function(labels, logits, self.config) if labels is not None else None
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


__all__ = ["VggBackbone", "VggForImageClassification", "VggPreTrainedModel"]
