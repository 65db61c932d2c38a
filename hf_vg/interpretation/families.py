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
"""How each family of vision-language models looks at an image: by which modules, and on which grid of patches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    r"""
    How the words of one `model_type` look at an image.

    Attributes:
        attention (`str`):
            A regular expression of the modules by which words look at the image. It must match a whole name.
        layout (`Callable`):
            Takes the config, the model's inputs and the number of a row, and returns for each image of that row its
            [`Layout`].
        columns (`Callable`, *optional*):
            Takes the config and the inputs, and returns a boolean `(rows, positions)` of what is an image token. By
            default every key is one, as in cross-attention.
        returned (`Callable`, *optional*):
            Takes what the module returns, and gives its attention. By default the module calls transformers'
            attention interface.
        patches (`str`, *optional*):
            Modules by which image tokens look at patches, where image tokens are not patches themselves.
        writer (`str`, *optional*, defaults to the model itself):
            The module that is called once per generated token.
        tokens (`str`, *optional*):
            The module that is called with token ids, where the writer is called with embeddings.
    """

    attention: str
    layout: Callable[[PreTrainedConfig, dict[str, Any], int], list["Layout"]]
    columns: Callable[[PreTrainedConfig, dict[str, Any]], torch.Tensor] | None = None
    returned: Callable[[Any], torch.Tensor] | None = None
    patches: str | None = None
    writer: str = ""
    tokens: str | None = None


# The image tokens of an image, as grids that each cover all of it: `(height, width)` of places among the tokens.
# A model that sees the image whole and in tiles has two grids. -1 stands where there is no token.
Layout = list[torch.Tensor]


def family_of(model: PreTrainedModel) -> Family:
    """The family of a model, or an error that says what can be done."""
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        raise ValueError(
            f"Where words look in a {model_type!r} model is not supported yet. Supported are "
            f"{', '.join(sorted(FAMILIES))}. For another model, describe it with "
            "`hf_vg.interpretation.Family(attention=..., layout=...)` and give it as `family`."
        )
    return FAMILIES[model_type]


def grid(height: int, width: int, first: int = 0) -> torch.Tensor:
    """Tokens row by row, from the one numbered `first`."""
    return first + torch.arange(height * width).view(height, width)


def patches_per_side(config: PreTrainedConfig) -> int:
    return config.vision_config.image_size // config.vision_config.patch_size


def image_tokens(config: PreTrainedConfig, inputs: dict[str, Any]) -> torch.Tensor:
    return inputs["input_ids"] == config.image_token_id


def patches_of_pixels(inputs: dict[str, Any], patch_size: int | tuple[int, int], merged: int = 1) -> tuple[int, int]:
    """Height and width of the grid that `pixel_values` are cut into."""
    patch_height, patch_width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    height, width = inputs["pixel_values"].shape[-2:]
    return height // patch_height // merged, width // patch_width // merged


# Tokens that a vision encoder puts in front of those of the patches.
LEADING_TOKENS = {
    "beit": 1,
    "blip_vision_model": 1,
    "blip_2_vision_model": 1,
    "clip_vision_model": 1,
    "deit": 2,
    "dinov2": 1,
    "donut-swin": 0,
    "git_vision_model": 1,
    "kosmos_2_vision_model": 1,
    "siglip_vision_model": 0,
    "swin": 0,
    "swinv2": 0,
    "vit": 1,
}


def leading_tokens(vision: PreTrainedConfig) -> int:
    if vision.model_type == "dinov2_with_registers":
        return 1 + vision.num_register_tokens
    if vision.model_type not in LEADING_TOKENS:
        raise ValueError(
            f"How many tokens a {vision.model_type!r} encoder puts in front of its patches is not known here, and a "
            "wrong map would be drawn. Give the grid by hand with `grid=(height, width)` if there are none."
        )
    return LEADING_TOKENS[vision.model_type]


def one_per_row(layout: Callable[[PreTrainedConfig, dict[str, Any]], Layout]) -> Any:
    """For models that see one image per row, all of one size."""
    return lambda config, inputs, row: [layout(config, inputs)]


def llava(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
    vision, side = config.vision_config, patches_per_side(config)
    first = leading_tokens(vision) if config.vision_feature_select_strategy == "full" else 0
    per_image = first + side**2
    images = int(image_tokens(config, inputs)[row].sum()) // per_image
    return [[grid(side, side, image * per_image + first)] for image in range(images)]


def square(side: Callable[[PreTrainedConfig], int]) -> Any:
    """For models whose images, or tiles, each have `side` x `side` tokens and nothing else."""

    def layout(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
        length = side(config)
        images = int(image_tokens(config, inputs)[row].sum()) // length**2
        return [[grid(length, length, image * length**2)] for image in range(images)]

    return layout


def qwen(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
    merge = config.vision_config.spatial_merge_size
    sizes = [(t, h // merge, w // merge) for t, h, w in inputs["image_grid_thw"].tolist()]
    tokens = image_tokens(config, inputs).sum(dim=1).tolist()
    layouts: list[list[Layout]] = [[] for _ in tokens]
    current, used = 0, 0
    for frames, height, width in sizes:  # images are listed row after row
        while used + frames * height * width > tokens[current]:
            current, used = current + 1, 0
        layouts[current].append([grid(height, width, used)])
        used += frames * height * width
    return layouts[row]


def llava_next(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
    """The whole image, then its tiles put together, less the padding, each row closed by a separator."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    vision, side = config.vision_config, patches_per_side(config)
    original = inputs["image_sizes"][row].tolist()
    rows, columns = get_anyres_image_grid_shape(original, config.image_grid_pinpoints, vision.image_size)
    height, width = unpad_image(torch.empty(1, rows * side, columns * side), original).shape[1:]
    first = leading_tokens(vision) if config.vision_feature_select_strategy == "full" else 0
    if rows * columns == 1 and inputs["pixel_values"].shape[1] == 1:
        return [[grid(side, side, first)]]
    return [[grid(side, side, first), grid(height, width + 1, first + side**2)[:, :-1]]]


def vision_encoder_decoder(config: PreTrainedConfig, inputs: dict[str, Any]) -> Layout:
    vision = config.encoder
    # Hierarchical encoders halve the grid after every stage but the last.
    merged = 2 ** (len(vision.depths) - 1) if hasattr(vision, "depths") else 1
    return [grid(*patches_of_pixels(inputs, vision.patch_size, merged), leading_tokens(vision))]


def with_class_token(config: PreTrainedConfig, inputs: dict[str, Any]) -> Layout:
    vision = config.vision_config
    return [grid(*patches_of_pixels(inputs, vision.patch_size), leading_tokens(vision))]


def git_columns(config: PreTrainedConfig, inputs: dict[str, Any]) -> torch.Tensor:
    """The image stands in front of the words, and is not among `input_ids`."""
    tokens = 1 + (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    return torch.ones(inputs["input_ids"].shape[0], tokens, dtype=torch.bool)


def florence2(config: PreTrainedConfig, inputs: dict[str, Any]) -> Layout:
    """A token of the whole image, then the patches. The words of the prompt follow."""
    height, width = inputs["pixel_values"].shape[-2:]
    for stride in config.vision_config.patch_stride:
        height, width = -(-height // stride), -(-width // stride)
    return [grid(height, width, 1)]


def pix2struct(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
    places = inputs["flattened_patches"][row, :, :2].long()  # (patches, 2): row and column, from 1; 0 is padding
    layout = torch.full((int(places[:, 0].max()), int(places[:, 1].max())), -1)
    is_patch = places[:, 0] > 0
    layout[places[is_patch, 0] - 1, places[is_patch, 1] - 1] = is_patch.nonzero().flatten()
    return [[layout]]


def mllama(config: PreTrainedConfig, inputs: dict[str, Any], row: int) -> list[Layout]:
    """Up to `max_num_tiles` tiles per image, each a class token and its patches."""
    vision, side = config.vision_config, patches_per_side(config)
    per_tile = side**2 + 1
    layouts = []
    for image, ratio in enumerate(inputs["aspect_ratio_ids"][row].tolist()):
        if ratio == 0:
            continue
        rows, columns = vision.supported_aspect_ratios[ratio - 1]
        first = image * vision.max_num_tiles
        tiles = [
            torch.cat([grid(side, side, (first + r * columns + c) * per_tile + 1) for c in range(columns)], dim=1)
            for r in range(rows)
        ]
        layouts.append([torch.cat(tiles)])
    return layouts


TEXT_LAYERS = r"(model\.)?(language_model|text_model)\.(model\.)?(decoder\.)?layers\.\d+\.self_attn"

FAMILIES = {
    "blip": Family(
        r"text_decoder\.bert\.encoder\.layer\.\d+\.crossattention\.self",
        one_per_row(with_class_token),
        returned=lambda output: output[1],
        writer="text_decoder",
    ),
    "blip-2": Family(
        TEXT_LAYERS,
        one_per_row(with_class_token),
        image_tokens,
        patches=r"qformer\.encoder\.layer\.\d+\.crossattention\.attention",
        writer="language_model",
        tokens="language_model.model.decoder.embed_tokens",
    ),
    "florence2": Family(
        r"model\.language_model\.decoder\.layers\.\d+\.encoder_attn",
        one_per_row(florence2),
    ),
    "gemma3": Family(TEXT_LAYERS, square(lambda config: int(config.mm_tokens_per_image**0.5)), image_tokens),
    "git": Family(
        r"git\.encoder\.layer\.\d+\.attention\.self",
        one_per_row(with_class_token),
        git_columns,
        returned=lambda output: output[1],
    ),
    "idefics3": Family(
        TEXT_LAYERS,
        square(lambda config: patches_per_side(config) // config.scale_factor),
        image_tokens,
    ),
    "internvl": Family(
        TEXT_LAYERS,
        square(
            lambda config: int(
                config.vision_config.image_size[0] // config.vision_config.patch_size[0] * config.downsample_ratio
            )
        ),
        image_tokens,
    ),
    "kosmos-2": Family(
        r"text_model\.model\.layers\.\d+\.self_attn",
        one_per_row(with_class_token),
        lambda config, inputs: inputs["image_embeds_position_mask"].bool(),
        patches=r"image_to_text_projection\.x_attn",
        writer="text_model",
    ),
    "llava": Family(TEXT_LAYERS, llava, image_tokens),
    "llava_next": Family(TEXT_LAYERS, llava_next, image_tokens),
    "mllama": Family(r"model\.language_model\.layers\.\d+\.cross_attn", mllama),
    "paligemma": Family(
        TEXT_LAYERS,
        square(patches_per_side),
        image_tokens,
    ),
    "pix2struct": Family(r"decoder\.layer\.\d+\.encoder_decoder_attention\.attention", pix2struct),
    "qwen2_5_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "qwen2_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "qwen3_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "vision-encoder-decoder": Family(
        r"decoder\..*\.(crossattention|encoder_attn)(\.self)?", one_per_row(vision_encoder_decoder)
    ),
}
FAMILIES["smolvlm"] = FAMILIES["idefics3"]
