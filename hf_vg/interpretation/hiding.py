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
"""Hiding parts of an image: cells of a grid are painted with the mean color, in the model's own pixel inputs."""

from collections.abc import Sequence

import torch

from .families import pixels_per_token
from .reading import Reading


class HiddenCells:
    r"""
    Cuts the image of a [`Reading`] into the cells of a grid, and hides any of them: their pixels get the mean color
    of the image. This happens in the pixels that the processor made, in the format of the family: `pixel_values` of
    images or tiles, packed patches (Qwen), or `flattened_patches` (Pix2Struct). So a cell of the grid is the same cell
    of a word's map.

    Args:
        reading ([`Reading`]):
            What the model reads.
        grid (`tuple[int, int]`):
            Rows and columns.
        layout (`Sequence[torch.Tensor]`):
            The grids of the image's tokens. See [`layout_of`].
        tokens (`int`):
            The number of image tokens of the row.
        image (`int`, *optional*, defaults to 0):
            Which image of the row.
    """

    def __init__(
        self,
        reading: Reading,
        grid: tuple[int, int],
        layout: Sequence[torch.Tensor],
        tokens: int,
        image: int = 0,
    ):
        self.reading, self.grid = reading, grid
        inputs = reading.inputs
        self.name = "flattened_patches" if "flattened_patches" in inputs else "pixel_values"
        if self.name not in inputs:
            raise ValueError("Cells are hidden in `pixel_values`, but these inputs have none.")
        pixels = inputs[self.name]
        if self.name == "flattened_patches":
            cells, channels = self._flattened_patches(pixels)
        elif "image_grid_thw" in inputs:
            cells, channels = self._packed_patches(pixels, image)
        else:
            is_whole_and_unpadded = reading.model.config.model_type == "llava_next"
            cells = (
                self._unpadded_tiles(pixels, layout, image)
                if is_whole_and_unpadded
                else self._tiles(pixels, layout, tokens)
            )
            channels = torch.arange(pixels.shape[-3]).view(-1, 1, 1)
        # (of shapes that broadcast to that of the pixels) -1 is outside of the image.
        self.cells, channels = cells.to(pixels.device), channels.to(pixels.device)
        self.color = torch.zeros_like(pixels)
        for channel in range(int(channels.max()) + 1):
            is_channel = ((self.cells >= 0) & (channels == channel)).expand_as(pixels)
            self.color[is_channel] = pixels[is_channel].mean()

    def _grid_of(self, height: int, width: int) -> torch.Tensor:
        """For an image of this many pixels or patches, the cell of each place: `(height, width)`."""
        rows = torch.arange(height) * self.grid[0] // height
        columns = torch.arange(width) * self.grid[1] // width
        return rows[:, None] * self.grid[1] + columns

    def _flattened_patches(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of each patch, from 1, and its pixels with channels last. The rest is padding."""
        rows, columns = pixels[0, :, :2].long().unbind(dim=-1)
        grid = self._grid_of(int(rows.max()), int(columns.max())).to(pixels.device)
        cells = torch.where(rows > 0, grid[rows - 1, columns - 1], -1)
        channels = (torch.arange(pixels.shape[-1]) - 2) % 3
        channels[:2] = -1
        return torch.where(channels.to(pixels.device) >= 0, cells[:, None], -1)[None], channels

    def _packed_patches(self, pixels: torch.Tensor, image: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Patches of all images, one after another: in the order of blocks that are merged into one token."""
        merge = self.reading.model.config.vision_config.spatial_merge_size
        sizes = self.reading.inputs["image_grid_thw"].tolist()
        cells = torch.full((len(pixels), 1), -1)
        frames, height, width = sizes[image]
        first = sum(t * h * w for t, h, w in sizes[:image])
        blocks = self._grid_of(height, width).view(height // merge, merge, width // merge, merge)
        cells[first : first + frames * height * width, 0] = blocks.transpose(1, 2).flatten().repeat(frames)
        return cells, torch.arange(pixels.shape[1]) * 3 // pixels.shape[1]

    def _tiles(self, pixels: torch.Tensor, layout: Sequence[torch.Tensor], tokens: int) -> torch.Tensor:
        """Images or tiles of shape `(..., channels, height, width)`, each with the same number of tokens."""
        height, width = pixels.shape[-2:]
        tiles = pixels.flatten(0, -4)
        cells = torch.full((len(tiles), 1, height, width), -1)
        for places in layout:  # a block of places is a tile
            owners = torch.where(places >= 0, places * len(tiles) // tokens, -1)
            for owner in owners[owners >= 0].unique().tolist():
                rows, columns = (owners == owner).nonzero().unbind(dim=1)
                sides = []
                for places_in, side, total, wanted in (
                    (rows, height, owners.shape[0], self.grid[0]),
                    (columns, width, owners.shape[1], self.grid[1]),
                ):
                    first, number = int(places_in.min()), int(places_in.max() - places_in.min()) + 1
                    # The middle of a pixel, as a share of the image.
                    share = (first + (torch.arange(side) + 0.5) / side * number) / total
                    sides.append((share * wanted).long().clamp(max=wanted - 1))
                cells[owner, 0] = sides[0][:, None] * self.grid[1] + sides[1]
        return cells.view(*pixels.shape[:-3], 1, height, width)

    def _unpadded_tiles(self, pixels: torch.Tensor, layout: Sequence[torch.Tensor], image: int) -> torch.Tensor:
        """LLaVA-NeXT: the whole image, and its tiles. Their padding has no tokens."""
        from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

        config, (height, width) = self.reading.model.config, pixels.shape[-2:]
        cells = torch.full((*pixels.shape[:-3], 1, height, width), -1)
        cells[image, 0, 0] = self._grid_of(height, width)
        if len(layout) > 1:
            size = self.reading.inputs["image_sizes"][image].tolist()
            rows, columns = get_anyres_image_grid_shape(size, config.image_grid_pinpoints, height)
            shape = [side * pixels_per_token(config.vision_config) for side in layout[1].shape]
            canvas = torch.full((rows * height, columns * width), -1)
            top, left = (rows * height - shape[0]) // 2, (columns * width - shape[1]) // 2
            canvas[top : top + shape[0], left : left + shape[1]] = self._grid_of(*shape)
            tiles = canvas.view(rows, height, columns, width).transpose(1, 2).flatten(0, 1)
            cells[image, 1 : 1 + len(tiles), 0] = tiles
        return cells

    @torch.no_grad()
    def log_probabilities(self, hidden: torch.Tensor, batch_size: int = 16) -> torch.Tensor:
        r"""
        Computes the log-probability of each word while cells are hidden.

        Args:
            hidden (`torch.BoolTensor` of shape `(variants, rows * columns)`):
                Which cells each variant hides.
            batch_size (`int`, *optional*, defaults to 16):
                Variants per forward pass.

        Returns:
            `torch.Tensor` of shape `(variants, words)`.
        """
        found = []
        for part in hidden.to(self.cells.device).split(batch_size):
            table = torch.nn.functional.pad(part, (0, 1))  # cell -1 is never hidden
            pixels = torch.where(table[:, self.cells], self.color, self.reading.inputs[self.name])
            arguments = self.reading.arguments(len(part), **{self.name: pixels.flatten(0, 1)})
            found.append(self.reading.of_words(self.reading.log_probabilities(arguments)).cpu())
        return torch.cat(found)
