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
"""
The feature cache: how busy extraction keeps the backbone, and what an epoch gains by cached features, with VGG-16 on
images of 224 x 224 pixels. Measured in one run, taking turns.

An epoch goes over all captions, five an image. In batches of captions of one length, which the paper and the recipes
train on, the captions of an image are in different batches, so its pixels are encoded five times an epoch; where they
stay together, once.

```bash
python benchmarks/features.py
python benchmarks/features.py --images flickr8k/Images --num_images 256 --backbone vgg16
```
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from PIL import Image
from torch.utils.data import DataLoader
from transformers import CLIPImageProcessorPil
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from hf_vg import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration, ShowAttendTellProcessor, VggConfig
from hf_vg.data import CaptionCollator, extract_features, train_word_tokenizer
from hf_vg.data.captions import CAPTION_FEATURES
from hf_vg.data.feature_extraction import backbone_of, load_backbone
from hf_vg.models.vgg.configuration_vgg import VGG_DEPTHS


CAPTION = "a dog runs through the green grass with a ball in its mouth"
WARM_UP = 2  # steps of an epoch that are not measured: memory is touched for the first time, the loader starts


def draw_photos(folder: Path, number: int) -> list[str]:
    """JPEG files of the size of Flickr's photos, with as much detail."""
    generator = np.random.default_rng(0)
    paths = [str(folder / f"{index}.jpg") for index in range(number)]
    for path in paths:
        coarse = Image.fromarray(generator.integers(0, 255, (94, 125, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def bare_forward(backbone: torch.nn.Module, batch_size: int, num_images: int) -> float:
    """Images a second, of pixels that are there already."""
    pixel_values = torch.randn(batch_size, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    backbone = backbone.eval().to(memory_format=torch.channels_last)
    with torch.inference_mode():
        backbone(pixel_values)
        start = time.perf_counter()
        for _ in range(num_images // batch_size):
            backbone(pixel_values)
        return num_images // batch_size * batch_size / (time.perf_counter() - start)


def train_epoch(model: torch.nn.Module, rows: Dataset, collator: CaptionCollator, batch_size: int) -> float:
    """Captions a second, through a training step each."""
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    model.train()
    seconds, num_captions = 0.0, 0
    start = time.perf_counter()
    for step, batch in enumerate(DataLoader(rows, batch_size=batch_size, collate_fn=collator, num_workers=1)):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= WARM_UP:
            seconds += time.perf_counter() - start
            num_captions += batch["labels"].shape[:-1].numel()
        start = time.perf_counter()
    return num_captions / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of images; drawn if not given")
    parser.add_argument("--num_images", type=int, default=256)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--hidden_size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="also extract in bfloat16, if the processor multiplies it")
    parser.add_argument("--backbone", help="folder of a pretrained VGG-16; drawn at random if not given")
    arguments = parser.parse_args()
    disable_progress_bar()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as folder:
        if arguments.images is None:
            paths = draw_photos(Path(folder), arguments.num_images)
        else:
            paths = [str(path) for path in sorted(arguments.images.iterdir())[: arguments.num_images]]
        # An epoch of captions apart has the fewest steps.
        if len(paths) <= (least := WARM_UP * 4 * arguments.batch_size):
            parser.error(
                f"There are {len(paths)} images. With batches of {arguments.batch_size}, give more than {least}."
            )
        columns = {"image_id": paths, "image": paths, "captions": [[CAPTION] * 5] * len(paths)}
        rows = Dataset.from_dict(columns, features=CAPTION_FEATURES)

        tokenizer = train_word_tokenizer([CAPTION])
        config = ShowAttendTellConfig(
            backbone_config=VggConfig(depths=VGG_DEPTHS["vgg16"]),
            vocab_size=8000,
            hidden_size=arguments.hidden_size,
        )
        model = ShowAttendTellForConditionalGeneration(config)
        backbone = backbone_of(model)
        if arguments.backbone is not None:
            backbone.load_state_dict(load_backbone(arguments.backbone).state_dict())
        image_processor = CLIPImageProcessorPil(
            size={"shortest_edge": 256},
            crop_size={"height": 224, "width": 224},
            image_mean=IMAGENET_DEFAULT_MEAN,
            image_std=IMAGENET_DEFAULT_STD,
        )
        collator = CaptionCollator(ShowAttendTellProcessor(image_processor, tokenizer))

        # Of captions apart, a fifth of the epoch: the other four fifths cost the same.
        apart = rows.map(lambda row: {"captions": row["captions"][:1]})
        epochs = {"together": (rows, arguments.batch_size), "apart": (apart, 4 * arguments.batch_size)}
        speeds: dict[str, list[float]] = defaultdict(list)
        for turn in range(arguments.rounds):
            speeds["bare"].append(bare_forward(backbone, arguments.batch_size, len(paths)))
            start = time.perf_counter()
            cache = extract_features(
                rows, backbone, image_processor, Path(folder, f"cache{turn}"), batch_size=arguments.batch_size
            )
            speeds["extraction"].append(len(paths) / (time.perf_counter() - start))
            if arguments.bf16:
                start = time.perf_counter()
                half = extract_features(
                    rows,
                    backbone,
                    image_processor,
                    Path(folder, f"cache{turn}"),
                    batch_size=arguments.batch_size,
                    dtype=torch.bfloat16,
                )
                speeds["extraction, bfloat16"].append(len(paths) / (time.perf_counter() - start))
            for batches, (examples, batch_size) in epochs.items():
                speeds[f"images, {batches}"].append(train_epoch(model, examples, collator, batch_size))
                speeds[f"features, {batches}"].append(train_epoch(model, cache.attach(examples), collator, batch_size))

        if arguments.bf16:
            cosines = [
                torch.cosine_similarity(cache[digest].float().flatten(), half[digest].float().flatten(), dim=0).item()
                for digest in cache
            ]
            mean_cosine = statistics.mean(cosines)
        size = sum(file.stat().st_size for file in cache.folder.glob("*.safetensors"))
    median = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{len(paths)} images, VGG-16, {torch.get_num_threads()} threads, median of {arguments.rounds} rounds")
    print(f"  backbone alone         {median['bare']:8.2f} images/s")
    ratio = median["extraction"] / median["bare"]
    print(f"  extraction             {median['extraction']:8.2f} images/s   {ratio:.0%} of the backbone alone")
    if arguments.bf16:
        faster = median["extraction, bfloat16"] / median["extraction"]
        print(f"  extraction, bfloat16   {median['extraction, bfloat16']:8.2f} images/s   {faster:.2f} times as fast")
        print(
            f"  its features           {min(cosines):8.5f} least cosine with those of float32, mean {mean_cosine:.5f}"
        )
    for batches, text in {"apart": "captions of one length", "together": "images with all captions"}.items():
        slow, fast = median[f"images, {batches}"], median[f"features, {batches}"]
        print(f"  epoch in batches of {text}")
        print(f"    from images          {slow:8.2f} captions/s")
        print(f"    from features        {fast:8.2f} captions/s   {fast / slow:.1f} times as fast")
    print(f"  size of the cache      {size / len(paths) / 1024:8.0f} kB an image")


if __name__ == "__main__":
    main()
