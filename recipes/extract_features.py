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
Cache the features of a frozen network for every image of a dataset.

    accelerate launch --quiet recipes/extract_features.py --dataset flickr8k --data_dir flickr8k --backbone vgg16 \
        --features outputs/features

Cache fc7 (4,096 numbers) of a VGG that was converted with its classifier:

    accelerate launch --quiet recipes/extract_features.py --data_dir flickr8k --backbone vgg19 --backbone_stage fc7 \
        --pooling mean --features outputs/features

If it is killed, run it again to resume. Only new images and networks are computed. Recipes read the features with
`--features outputs/features`, and compute those that are missing.
"""

from pathlib import Path

import torch
from datasets import concatenate_datasets

from hf_vg.data import extract_features, load_backbone, load_caption_data
from hf_vg.data.processes import process_state
from hf_vg.training import FeatureArguments, build_image_processor, run_recipe, start_recipe, tiny_backbone


def main():
    default_config = Path(__file__).parent / "configs" / "extract_features.yaml"
    needs = {"backbone": ("name a folder, or a model of the Hub", tiny_backbone)}
    (args,) = start_recipe((FeatureArguments,), default_config, needs, photo_config=default_config)

    images = concatenate_datasets([split.select_columns("image") for split in load_caption_data(args).values()])
    cache = extract_features(
        images,
        load_backbone(args.backbone, args.trust_remote_code, args.backbone_stage),
        build_image_processor(args),
        args.features,
        pooling=args.pooling,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        strict=args.strict,
        dtype=getattr(torch, args.features_dtype),
    )
    shape = tuple(next(iter(cache.values())).shape)
    place = "" if args.dry_run else f" in {cache.folder}"
    process_state().print(f"{len(cache):,} images have features of shape {shape}{place}")


if __name__ == "__main__":
    run_recipe(main)
