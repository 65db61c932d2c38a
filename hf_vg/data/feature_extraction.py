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
"""Computes the features of a frozen backbone and writes them to a feature cache."""

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from safetensors.torch import save
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import BaseImageProcessor, PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import BackboneMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from ..loading import load_checkpoint, load_config, weights_digest
from .features import DIGEST_SIZE, FeatureCache, image_digests, undecoded
from .files import atomic_write
from .images import open_or_report
from .processes import available_cores, emulates_bfloat16, process_state


POOLINGS = ("none", "mean")
LEFTOVER_AGE = 600  # seconds; an older temporary file belongs to a run that was killed


def load_backbone(
    name_or_path: str | PathLike, trust_remote_code: bool = False, stage: str | None = None
) -> PreTrainedModel:
    r"""
    Loads the backbone of a checkpoint in float32. The checks of [`load_checkpoint`] apply.

    Args:
        name_or_path (`str` or `PathLike`):
            A folder or a model on the Hub: a backbone, or an image classifier with a backbone.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with the checkpoint.
        stage (`str`, *optional*):
            The stage whose feature map the backbone returns: one of its `stage_names`, such as `"stage4"`, or `"fc7"`
            for a VGG with its classifier. Defaults to the stage in its config, usually the last.

    Returns:
        [`PreTrainedModel`]: The backbone.

    Example:

    ```python
    >>> import tempfile
    >>> from hf_vg import VggBackbone, VggConfig
    >>> from hf_vg.data import load_backbone

    >>> folder = tempfile.TemporaryDirectory()
    >>> VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[8, 16])).save_pretrained(folder.name)
    >>> load_backbone(folder.name, stage="stage1").channels
    [8]
    ```
    """
    config = load_config(name_or_path, trust_remote_code=trust_remote_code)
    if type(config) not in MODEL_FOR_BACKBONE_MAPPING:
        raise ValueError(f"{name_or_path} is a {config.model_type!r}: transformers has no backbone for it")
    if stage is not None and stage not in config.stage_names:
        raise ValueError(f"{name_or_path} has no stage {stage!r}; its stages are {', '.join(config.stage_names)}.")
    options: dict[str, Any] = {} if stage is None else {"out_features": [stage]}
    # `AutoBackbone.from_pretrained` of transformers 5.22 does not find a local folder.
    return load_checkpoint(
        name_or_path,
        model_class=MODEL_FOR_BACKBONE_MAPPING[type(config)],
        trust_remote_code=trust_remote_code,
        dtype=torch.float32,
        **options,
    )


def backbone_of(model: PreTrainedModel) -> PreTrainedModel | None:
    """
    Finds the vision backbone inside a model.

    Args:
        model ([`PreTrainedModel`]):
            Any model.

    Returns:
        [`PreTrainedModel`] or `None`: The first backbone among the model's modules, or `None` if it has none.
    """
    return next((module for module in model.modules() if isinstance(module, BackboneMixin)), None)


def extract_features(
    dataset: Dataset,
    backbone: PreTrainedModel,
    image_processor: BaseImageProcessor,
    directory: str | PathLike,
    pooling: str = "none",
    batch_size: int = 32,
    shard_size: int = 256,
    num_workers: int | None = None,
    mirrored: bool = False,
    strict: bool = True,
    dtype: torch.dtype = torch.float32,
) -> FeatureCache:
    r"""
    Computes the features that are missing from the cache in `directory`, and opens the cache. Under
    `accelerate launch`, every process must call it and computes its share. If it is killed, only the shards that are
    being written are lost: run it again to compute the rest.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with an `image`. Features of identical files are computed once.
        backbone ([`PreTrainedModel`]):
            Computes the features. Its last feature map is kept.
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`, all of the same size.
        directory (`str` or `PathLike`):
            The folder of the cache. Several backbones may share it, and all processes must see it.
        pooling (`str`, *optional*, defaults to `"none"`):
            `"none"` keeps the feature map, `"mean"` keeps its mean over positions.
        batch_size (`int`, *optional*, defaults to 32):
            Number of images per forward pass.
        shard_size (`int`, *optional*, defaults to 256):
            Number of images per file.
        num_workers (`int`, *optional*):
            Number of processes that decode images. Defaults to one per free core, at most 8.
        mirrored (`bool`, *optional*, defaults to `False`):
            Whether to flip each image left to right before the forward pass. The cache keeps these features in a
            separate folder, see [`FeatureCache.attach`].
        strict (`bool`, *optional*, defaults to `True`):
            Whether to raise an error for an image that cannot be opened. Otherwise its name is logged and it gets no
            features.
        dtype (`torch.dtype`, *optional*, defaults to `torch.float32`):
            Precision of the forward pass: `torch.float32` or `torch.bfloat16`. The latter is faster on hardware that
            supports it and several times slower elsewhere. The cache keeps each precision in a separate folder.

    Returns:
        [`FeatureCache`]: The features of all readable images.

    Example:

    ```python
    >>> import tempfile
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import VggBackbone, VggConfig
    >>> from hf_vg.data import extract_features, load_scenes

    >>> scenes = load_scenes(2, 1, 1)["train"]
    >>> backbone = VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[8, 16]))
    >>> image_processor = ViTImageProcessorPil(size={"height": 64, "width": 64})
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache = extract_features(scenes, backbone, image_processor, folder.name, num_workers=0)
    >>> len(cache)
    2
    >>> cache.attach(scenes)[0]["image_features"].shape
    torch.Size([32, 32, 16])
    ```
    """
    if pooling not in POOLINGS:
        raise ValueError(f"`pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"`dtype` must be torch.float32 or torch.bfloat16, got {dtype}")
    state = process_state()
    about = _describe(backbone, image_processor, pooling, mirrored, dtype)
    key = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=DIGEST_SIZE).hexdigest()
    folder = Path(directory) / key
    if state.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):  # from a killed run, or from a run that is writing now
            with suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > LEFTOVER_AGE:
                    leftover.unlink()
        if not (folder / "about.json").exists():
            with atomic_write(folder / "about.json") as file:
                file.write_text(json.dumps(about, indent=2) + "\n")
    state.wait_for_everyone()

    cache = FeatureCache(folder)
    digests = image_digests(dataset)
    rows = {digest: row for row, digest in enumerate(digests) if digest not in cache}  # the last of equal images
    # All processes must list the missing images before any of them writes: otherwise their shares would not match.
    state.wait_for_everyone()
    share = sorted(rows)[state.process_index :: state.num_processes]
    unreadable = []
    if rows and dtype == torch.bfloat16 and emulates_bfloat16(state.device):
        state.print("This CPU has no bfloat16 instructions: float32 features are computed several times faster.")
    if share:
        images = undecoded(dataset.select_columns("image")).select([rows[digest] for digest in share])
        pixels = _PixelValues(images, image_processor, mirrored, strict)
        loader = DataLoader(
            pixels,
            batch_size=batch_size,
            num_workers=min(8, max(1, available_cores() - 1)) if num_workers is None else num_workers,
            collate_fn=_stack_readable,
            pin_memory=state.device.type == "cuda",
        )
        progress = tqdm(
            desc="Extracting features" + " of mirrored images" * mirrored,
            unit="image",
            total=len(share),
            disable=not state.is_local_main_process,
        )
        # The move is outside of inference mode: weights moved in inference mode cannot be trained later.
        backbone = backbone.eval().to(state.device, memory_format=torch.channels_last)
        features = _forward(backbone, loader, pooling, state.device, dtype)
        unreadable = _write_features(folder, share, features, shard_size, pixels, progress)
        progress.close()
    state.wait_for_everyone()
    if rows:
        cache = FeatureCache(folder)
        cache.unreadable = set(gather_object(unreadable))
        if cache.unreadable:
            state.print(f"{len(cache.unreadable):,} images cannot be opened and have no features.")
    return cache


def _describe(
    backbone: PreTrainedModel, image_processor: BaseImageProcessor, pooling: str, mirrored: bool, dtype: torch.dtype
) -> dict[str, Any]:
    # Fields that every config has, such as the version that wrote it, do not change the features. Neither do fields
    # that are added when a model or processor is saved.
    saved_with = {"processor_class", "auto_map"}
    common = PreTrainedConfig().to_dict().keys() | saved_with
    config = {name: value for name, value in backbone.config.to_dict().items() if name not in common}
    preprocessing = {name: value for name, value in image_processor.to_dict().items() if name not in saved_with}
    return {
        "backbone": {"class": type(backbone).__name__, "weights": weights_digest(backbone), "config": config},
        # The class is part of the key because backends round differently.
        "preprocessing": {"class": type(image_processor).__name__, **preprocessing},
        "pooling": pooling,
        # Defaults are not part of the key, so that older caches stay valid.
        **({"mirrored": True} if mirrored else {}),
        **({"dtype": str(dtype)} if dtype != torch.float32 else {}),
    }


class _PixelValues(torch.utils.data.Dataset):
    def __init__(self, images: Dataset, image_processor: BaseImageProcessor, mirrored: bool, strict: bool):
        self.images = images
        self.image_processor = image_processor
        self.mirrored = mirrored
        self.strict = strict

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor | None]:
        image = open_or_report(self.images[index]["image"], self.strict)
        if image is None:
            return index, None
        pixel_values = self.image_processor(image, return_tensors="pt")["pixel_values"][0]
        return index, pixel_values.flip(-1) if self.mirrored else pixel_values


def _stack_readable(batch: list[tuple[int, torch.Tensor | None]]) -> tuple[list[int], torch.Tensor | None]:
    """Returns the indices of the readable images and their stacked pixel values."""
    readable = [(index, pixel_values) for index, pixel_values in batch if pixel_values is not None]
    if not readable:
        return [], None
    indices, pixel_values = zip(*readable, strict=True)
    return list(indices), torch.stack(pixel_values)


@torch.inference_mode()
def _forward(
    backbone: PreTrainedModel, loader: DataLoader, pooling: str, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yields the image indices of each batch and their features in float16: (B, H, W, C) or (B, C)."""
    for indices, pixel_values in loader:
        if pixel_values is None:
            continue
        pixel_values = pixel_values.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            feature_map = backbone(pixel_values).feature_maps[-1].float()
        features = feature_map.mean(dim=(2, 3)) if pooling == "mean" else feature_map.permute(0, 2, 3, 1)
        yield indices, features.to(torch.float16).cpu()


def _write_features(
    folder: Path,
    digests: list[bytes],
    batches: Iterator[tuple[list[int], torch.Tensor]],
    shard_size: int,
    pixels: _PixelValues,
    progress: tqdm,
) -> list[bytes]:
    """Writes the features of all readable images and returns the digests of the unreadable ones."""
    pending, of_shard, done = [], [], set()
    # A thread writes the shards while the backbone computes the next ones.
    with ThreadPoolExecutor(max_workers=1) as writer:
        written = None

        def write() -> None:
            nonlocal written, pending, of_shard
            if written is not None:
                written.result()
            written = writer.submit(_write_shard, folder, of_shard, pending)
            pending, of_shard = [], []

        for indices, features in batches:
            if not features.isfinite().all():
                bad = indices[int((~features.isfinite().flatten(1).all(dim=1)).nonzero()[0])]
                raise ValueError(f"features of {pixels.images[bad]['image']['path']} are not finite in half precision")
            pending.append(features.contiguous())
            new = [digests[index] for index in indices]
            of_shard += new
            done.update(new)
            if len(of_shard) >= shard_size:
                write()
            progress.update(len(features))
        if of_shard:
            write()
        if written is not None:
            written.result()
    return [digest for digest in digests if digest not in done]


def _write_shard(folder: Path, digests: list[bytes], batches: list[torch.Tensor]) -> None:
    tensors = {
        "features": torch.cat(batches),
        "digests": torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(digests), DIGEST_SIZE),
    }
    with atomic_write(folder / f"{digests[0].hex()}.safetensors") as file:
        file.write_bytes(save(tensors))
