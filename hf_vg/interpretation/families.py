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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel


# Rows and columns of the tiles that an image was cut into: for each image, or one for all.
Tiles = tuple[int, int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Layout:
    r"""
    The places of an image's tokens on the image.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.interpretation import Layout

    >>> patches = 1 + torch.arange(6).view(2, 3)  # 2 x 3 patches after a class token
    >>> Layout(tokens=7, grids=[patches]).grids[0]
    tensor([[1, 2, 3],
            [4, 5, 6]])
    ```

    Attributes:
        tokens (`int`):
            The number of image tokens of the image. Tokens that are no patches, such as a class token, count too.
        grids (`list[torch.Tensor]`):
            Grids of shape `(height, width)`. Each cell holds the number of its token, or -1 if it has none. Each grid
            covers the whole image. A model that sees the image whole and in tiles has two grids.
    """

    tokens: int
    grids: list[torch.Tensor]


@dataclass(frozen=True)
class Family:
    r"""
    Describes how the words of one `model_type` look at an image. Write one to record a model that hf_vg does not know.

    Example:

    ```python
    >>> from itertools import repeat
    >>> import torch
    >>> from hf_vg.interpretation import Family, Layout

    >>> grid = torch.arange(24 * 24).view(24, 24)
    >>> mine = Family(
    ...     attention=r"model\.language_model\.layers\.\d+\.self_attn",
    ...     layout=lambda config, inputs: repeat(Layout(tokens=24 * 24, grids=[grid])),
    ...     columns=lambda config, inputs: inputs["input_ids"] == config.image_token_id,
    ... )  # for `record_attention(model, family=mine)`
    >>> mine.writer  # the model itself
    ''
    ```

    Attributes:
        attention (`str`):
            A regular expression for the names of the modules by which words look at the image. It must match a whole
            name.
        layout (`Callable`):
            Takes the config and the model's inputs. Returns the [`Layout`] of each image, in the order of the images
            in the batch.
        columns (`Callable`, *optional*):
            Takes the config and the inputs. Returns a boolean tensor of shape `(rows, positions)` that is true at
            image tokens. By default every key is an image token, as in cross-attention.
        returned (`Callable`, *optional*):
            Takes the arguments and the output of the module, and returns its attention. Leave it out if the module
            calls transformers' attention interface.
        patches (`str`, *optional*):
            A regular expression for the modules by which image tokens look at patches, if image tokens are not patches
            themselves.
        writer (`str`, *optional*, defaults to the model itself):
            The name of the module that is called once per generated token.
        tokens (`str`, *optional*):
            The name of the module that is called with token ids, if the writer is called with embeddings.
        feature_map (`str`, *optional*):
            The name of the module that returns the map that words look at, of shape `(batch, height, width,
            channels)`. The layout finds its height and width as `inputs["feature_map"]`.
    """

    attention: str
    layout: Callable[[PreTrainedConfig, dict[str, Any]], Iterable[Layout]]
    columns: Callable[[PreTrainedConfig, dict[str, Any]], torch.Tensor] | None = None
    returned: Callable[[tuple, Any], torch.Tensor] | None = None
    patches: str | None = None
    writer: str = ""
    tokens: str | None = None
    feature_map: str | None = None


def family_of(model: PreTrainedModel) -> Family:
    r"""
    Looks up the family of a model. For an unknown model, the error says what you can do.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import family_of
    >>> from transformers import AutoModelForImageTextToText

    >>> model = AutoModelForImageTextToText.from_pretrained(hf_vg.examples.checkpoint("spatial_transformer"))
    >>> family_of(model).attention
    'model\\.decoder\\.layers\\.\\d+\\.cross_attention'
    ```

    Args:
        model ([`PreTrainedModel`]):
            The model.

    Returns:
        [`Family`]: Where the model attends to the image, and how its image tokens lie on the image.
    """
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        reason = UNSUPPORTED.get(model_type)
        raise ValueError(
            f"Where words look in a {model_type!r} model is not supported yet{f': {reason}' if reason else ''}. "
            f"Supported model types: {', '.join(sorted(FAMILIES))}. For another model, write a "
            "`hf_vg.interpretation.Family(attention=..., layout=...)` and pass it as `family`. You can also give the "
            "grid by hand: `word_maps(..., grid=(height, width))`."
        )
    return FAMILIES[model_type]


def deal(images: Iterable[Layout], tokens: Sequence[int]) -> list[list[list[torch.Tensor]]]:
    r"""
    Assigns images to the rows of a batch.

    Args:
        images (`Iterable[Layout]`):
            The images of all rows, in order.
        tokens (`Sequence[int]`):
            The number of image tokens of each row. The images must fill them exactly.

    Returns:
        `list[list[list[torch.Tensor]]]`: For each row, and for each image in it, its grids of places in the row.
    """
    images, rows = iter(images), []
    for count in tokens:
        row, used = [], 0
        while used < count:
            image = next(images, None)
            if image is None or used + image.tokens > count:
                needs = "no image is left for them" if image is None else f"the next image has {image.tokens}"
                raise ValueError(
                    f"Row {len(rows)} has {count} image tokens. After its first images {count - used} are left, and "
                    f"{needs}. Their places on the image are not known. Give the grid by hand with "
                    "`grid=(height, width)`."
                )
            if image.grids:
                row.append([torch.where(grid >= 0, grid + used, grid) for grid in image.grids])
            used += image.tokens
        rows.append(row)
    return rows


def grid(height: int, width: int, first: int = 0) -> torch.Tensor:
    """Tokens row by row, from the one numbered `first`."""
    return first + torch.arange(height * width).view(height, width)


def tiled(side: int, rows: int, columns: int, first: int = 0, per_tile: int | None = None) -> torch.Tensor:
    """The grid of tiles of `side` x `side` tokens that follow each other row by row."""
    per_tile = side**2 if per_tile is None else per_tile
    tiles = first + per_tile * torch.arange(rows * columns).view(rows, columns)
    return (tiles[:, None, :, None] + grid(side, side)[None, :, None]).view(rows * side, columns * side)


def pixels_per_token(vision: PreTrainedConfig) -> int:
    """The side of the square of pixels behind a token. A hierarchical encoder halves its grid after every stage."""
    return vision.patch_size * 2 ** (len(getattr(vision, "depths", [0])) - 1)


def patches_per_side(config: PreTrainedConfig) -> int:
    return config.vision_config.image_size // pixels_per_token(config.vision_config)


def image_tokens(config: PreTrainedConfig, inputs: dict[str, Any]) -> torch.Tensor:
    return inputs["input_ids"] == config.image_token_id


def runs_of(is_image: torch.Tensor) -> list[tuple[int, int]]:
    """The runs of image tokens in a row: for each its first position, and the position after its last."""
    edges = torch.nn.functional.pad(is_image.int(), (1, 1)).diff().nonzero().flatten().tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


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
            f"It is not known how many tokens a {vision.model_type!r} encoder puts in front of its patches, so its "
            "maps cannot be drawn. If it puts none, give the grid by hand with `grid=(height, width)`."
        )
    return LEADING_TOKENS[vision.model_type]


def selected_tokens(config: PreTrainedConfig) -> int:
    """Tokens in front of the patches that LLaVA keeps. Its default drops the first token, whatever it is."""
    return leading_tokens(config.vision_config) - (config.vision_feature_select_strategy == "default")


def llava(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    vision = config.vision_config
    if vision.model_type == "pixtral":  # images of any size
        sizes = [[side // vision.patch_size for side in size] for size in inputs["image_sizes"].tolist()]
        return [Layout(height * width, [grid(height, width)]) for height, width in sizes]
    side, first = patches_per_side(config), selected_tokens(config)
    return repeat(Layout(first + side**2, [grid(side, side, first)]))


def square(side: Callable[[PreTrainedConfig], int]) -> Any:
    """For models with exactly `side` x `side` tokens per image."""
    return lambda config, inputs: repeat(Layout(side(config) ** 2, [grid(side(config), side(config))]))


def qwen(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    merge = config.vision_config.spatial_merge_size
    sizes = [(height // merge, width // merge) for _, height, width in inputs["image_grid_thw"].tolist()]
    return [Layout(height * width, [grid(height, width)]) for height, width in sizes]


def llava_next(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterator[Layout]:
    """First the whole image, then its tiles as one grid without padding, with a separator after each row."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    vision, side, first = config.vision_config, patches_per_side(config), selected_tokens(config)
    whole = grid(side, side, first)
    for original in inputs["image_sizes"].tolist():
        rows, columns = get_anyres_image_grid_shape(original, config.image_grid_pinpoints, vision.image_size)
        if rows * columns == 1 and inputs["pixel_values"].shape[1] == 1:
            yield Layout(first + side**2 + 1, [whole])
            continue
        height, width = unpad_image(torch.empty(1, rows * side, columns * side), original).shape[1:]
        tiles = grid(height, width + 1, first + side**2)
        yield Layout(first + side**2 + tiles.numel(), [whole, tiles[:, :-1]])


def whole_and_tiles(side: int, tiles: int, arrangement: tuple[int, int] | None) -> Layout:
    """Tiles row by row, and then the whole image."""
    if tiles == 1:
        return Layout(side**2, [grid(side, side)])
    rows, columns = (0, 0) if arrangement is None else arrangement
    if rows * columns not in (tiles, tiles - 1):
        given = "their arrangement is not known" if arrangement is None else f"`tiles` says {rows} x {columns}"
        raise ValueError(
            f"An image was cut into {tiles} tiles (the last one may show the whole image), but {given}. Give `tiles`: "
            "the rows and columns of tiles of each image, such as `tiles=[(2, 3)]`."
        )
    grids = [tiled(side, rows, columns)]
    if rows * columns < tiles:
        grids.append(grid(side, side, rows * columns * side**2))
    return Layout(tiles * side**2, grids)


def arrangements_of(inputs: dict[str, Any]) -> Iterator[tuple[int, int] | None]:
    """The `tiles` that were given by hand: for each image, or one for all."""
    tiles: Any = inputs.get("tiles")
    if tiles is None or isinstance(tiles[0], int):
        return repeat(tiles)
    return iter(tiles)


def internvl(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterator[Layout]:
    """Up to twelve tiles per image, and then the whole image. The inputs do not say how tiles are arranged."""
    vision = config.vision_config
    side = int(vision.image_size[0] // vision.patch_size[0] * config.downsample_ratio)
    arrangements = arrangements_of(inputs)
    for row in image_tokens(config, inputs):
        for start, end in runs_of(row):
            yield whole_and_tiles(side, (end - start) // side**2, next(arrangements, None))


def idefics3(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterator[Layout]:
    r"""
    Tiles, and then the whole image. The prompt says how tiles are arranged: `<fake><row_1_col_1>...`, then
    `<fake><row_1_col_2>...`, a line break after each row, and at the end `<fake><global-img>...<fake>`.
    """
    side = patches_per_side(config) // config.scale_factor
    arrangements = arrangements_of(inputs)
    for ids, is_image in zip(inputs["input_ids"].tolist(), image_tokens(config, inputs), strict=True):
        if "tiles" in inputs:
            left = int(is_image.sum())
            while left > 0 and (arrangement := next(arrangements, None)):
                count = arrangement[0] * arrangement[1]
                layout = whole_and_tiles(side, count + 1 if count > 1 else 1, arrangement)
                yield layout
                left -= layout.tokens
            continue
        runs = runs_of(is_image)
        around = [ids[start - 2 : start - 1] for start, _ in runs] + [ids[end : end + 1] for _, end in runs[-1:]]
        if any(token != around[0] for token in around):  # there are no tags
            yield whole_and_tiles(side, int(is_image.sum()) // side**2, None)
            continue
        image: list[tuple[int, int]] = []  # the runs of one image
        for start, end in runs:
            image.append((start, end))
            # The tag of the whole image stands before the last run of all.
            if ids[start - 1] == ids[runs[-1][0] - 1]:
                gaps = [after - before for (_, before), (after, _) in pairwise(image)]
                columns = next((number for number, gap in enumerate(gaps, 1) if gap != 2), 1)
                tiles = sum(end - start for start, end in image) // side**2
                yield whole_and_tiles(side, tiles, ((len(image) - 1) // columns, columns) if gaps else None)
                image = []


def vision_encoder_decoder(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    vision = config.encoder
    if not hasattr(vision, "depths"):
        return with_leading_tokens(vision, inputs)
    # Hierarchical encoders pad, and halve the grid after every stage but the last.
    first = leading_tokens(vision)
    height, width = inputs["pixel_values"].shape[-2:]
    for step in (vision.patch_size, *[2] * (len(vision.depths) - 1)):
        height, width = -(-height // step), -(-width // step)
    return repeat(Layout(first + height * width, [grid(height, width, first)]))


def with_leading_tokens(vision: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    """For encoders that cut `pixel_values` into patches, with one image per row."""
    patch = (vision.patch_size, vision.patch_size) if isinstance(vision.patch_size, int) else vision.patch_size
    height, width = (pixels // side for pixels, side in zip(inputs["pixel_values"].shape[-2:], patch, strict=True))
    first = leading_tokens(vision)
    return repeat(Layout(first + height * width, [grid(height, width, first)]))


def with_class_token(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    return with_leading_tokens(config.vision_config, inputs)


def kosmos2(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    """Patches, and then the latent queries, which also look at themselves."""
    image = next(iter(with_leading_tokens(config.vision_config, inputs)))
    return repeat(Layout(image.tokens + config.latent_query_num, image.grids))


def git_columns(config: PreTrainedConfig, inputs: dict[str, Any]) -> torch.Tensor:
    """The image comes before the words, and `input_ids` do not contain it."""
    return torch.ones(inputs["input_ids"].shape[0], 1 + patches_per_side(config) ** 2, dtype=torch.bool)


def florence2(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    """A token of the whole image, then the patches. The words of the prompt follow."""
    height, width = inputs["pixel_values"].shape[-2:]
    for stride in config.vision_config.patch_stride:
        height, width = -(-height // stride), -(-width // stride)
    return repeat(Layout(inputs["input_ids"].shape[1], [grid(height, width, 1)]))


def pix2struct(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterator[Layout]:
    for places in inputs["flattened_patches"][..., :2].long():  # (patches, 2): row and column, from 1; 0 is padding
        layout = torch.full((int(places[:, 0].max()), int(places[:, 1].max())), -1)
        is_patch = places[:, 0] > 0
        layout[places[is_patch, 0] - 1, places[is_patch, 1] - 1] = is_patch.nonzero().flatten()
        yield Layout(len(places), [layout])


def mllama(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterator[Layout]:
    """Room for `max_num_tiles` tiles per image, each a class token and its patches."""
    vision, side = config.vision_config, patches_per_side(config)
    per_tile = side**2 + 1
    for ratio in inputs["aspect_ratio_ids"].flatten().tolist():  # 0 where a row has fewer images than others
        rows, columns = vision.supported_aspect_ratios[ratio - 1]
        grids = [tiled(side, rows, columns, 1, per_tile)] if ratio else []
        yield Layout(vision.max_num_tiles * per_tile, grids)


def feature_map(config: PreTrainedConfig, inputs: dict[str, Any]) -> Iterable[Layout]:
    if inputs["feature_map"] is None:
        raise ValueError(
            "Features of shape (batch, locations, channels) do not say where the locations are on the image. Give "
            "features of shape (batch, height, width, channels), or the grid by hand with `grid=(height, width)`."
        )
    height, width = inputs["feature_map"]
    return repeat(Layout(height * width, [grid(height, width)]))


def tiles_of(image_processor: Any, image_size: tuple[int, int]) -> tuple[int, int]:
    r"""
    Computes how InternVL's image processor cuts an image into tiles. The model's inputs do not say it.

    Example:

    ```python
    >>> from hf_vg.interpretation import tiles_of
    >>> from transformers import GotOcr2ImageProcessorPil

    >>> image_processor = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, max_patches=12)
    >>> tiles_of(image_processor, (1344, 896))
    (2, 3)
    ```

    Args:
        image_processor ([`BaseImageProcessor`]):
            A [`GotOcr2ImageProcessor`].
        image_size (`tuple[int, int]`):
            Width and height of the image.

    Returns:
        `tuple[int, int]`: Rows and columns of tiles, for the argument `tiles` of [`word_maps`].
    """
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    size = image_processor.size
    columns, rows = get_optimal_tiled_canvas(
        (image_size[1], image_size[0]),
        (size["height"], size["width"]),
        image_processor.min_patches,
        image_processor.max_patches,
    )
    return rows, columns


def tiles_of_images(
    config: PreTrainedConfig, image_processor: Any, images: Sequence[Image.Image]
) -> list[tuple[int, int]] | None:
    """The `tiles` of images, for models whose inputs do not say them. `None` for all other models."""
    if config.model_type != "internvl":
        return None
    return [tiles_of(image_processor, image.size) for image in images]


TEXT_LAYERS = r"(model\.)?(language_model|text_model)\.(model\.)?(decoder\.)?layers\.\d+\.self_attn"

FAMILIES = {
    "blip": Family(
        r"text_decoder\.bert\.encoder\.layer\.\d+\.crossattention\.self",
        with_class_token,
        returned=lambda args, output: output[1],
        writer="text_decoder",
    ),
    "blip-2": Family(
        TEXT_LAYERS,
        with_class_token,
        image_tokens,
        patches=r"qformer\.encoder\.layer\.\d+\.crossattention\.attention",
        writer="language_model",
        tokens="language_model.model.decoder.embed_tokens",
    ),
    "florence2": Family(r"model\.language_model\.decoder\.layers\.\d+\.encoder_attn", florence2),
    "gemma3": Family(TEXT_LAYERS, square(lambda config: int(config.mm_tokens_per_image**0.5)), image_tokens),
    "git": Family(
        r"git\.encoder\.layer\.\d+\.attention\.self\.dropout",  # its input: the attention before dropout
        with_class_token,
        git_columns,
        returned=lambda args, output: args[0],
    ),
    "idefics3": Family(TEXT_LAYERS, idefics3, image_tokens),
    "internvl": Family(TEXT_LAYERS, internvl, image_tokens),
    "kosmos-2": Family(
        r"text_model\.model\.layers\.\d+\.self_attn",
        kosmos2,
        lambda config, inputs: inputs["image_embeds_position_mask"].bool(),
        patches=r"image_to_text_projection\.x_attn",
        writer="text_model",
    ),
    "llava": Family(TEXT_LAYERS, llava, image_tokens),
    "llava_next": Family(TEXT_LAYERS, llava_next, image_tokens),
    "mllama": Family(r"model\.language_model\.layers\.\d+\.cross_attn", mllama),
    "paligemma": Family(TEXT_LAYERS, square(patches_per_side), image_tokens),
    "pix2struct": Family(r"decoder\.layer\.\d+\.encoder_decoder_attention\.attention", pix2struct),
    "qwen2_5_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "qwen2_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "qwen3_vl": Family(TEXT_LAYERS, qwen, image_tokens),
    "show_attend_tell": Family(
        r"model\.decoder",
        feature_map,
        returned=lambda args, output: output.cross_attentions[0],
        feature_map="model.encoder.image_encoder",
    ),
    "smolvlm": Family(TEXT_LAYERS, idefics3, image_tokens),
    "spatial_transformer_captioner": Family(
        r"model\.decoder\.layers\.\d+\.cross_attention", feature_map, feature_map="model.encoder.image_encoder"
    ),
    "vision-encoder-decoder": Family(
        r"decoder\..*(encoder_attn|crossattention\.self|h\.\d+\.crossattention)", vision_encoder_decoder
    ),
}

UNSUPPORTED = {
    "grounded_visual_bert": "it reads words and regions and writes none; `regions_of_words` shows where they look",
    "self_attn_grounded_encoder": "it reads sentences; `attention_of_sentences` shows which words count",
    "vilt": "it shuffles its patches at random in every pass, and writes no words",
    "visual_bert": "it reads words and regions and writes none; a GroundedVisualBert loads its weights",
    "vse_scnlm": "it has no attention; `caption_candidates` shows what it considered",
}


__all__ = ["FAMILIES", "Family", "Layout", "family_of", "tiles_of"]
