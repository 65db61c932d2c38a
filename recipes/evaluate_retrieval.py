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
Measure image-sentence retrieval in both directions, with any model that encodes images and sentences.

With no arguments it evaluates the space that `recipes/train_vse.py` trained on scenes, and vector arithmetic ("this,
but blue"):

    python recipes/evaluate_retrieval.py

Evaluate on photos, also CLIP, SigLIP, ALIGN or a multimodal model of sentence-transformers:

    python recipes/evaluate_retrieval.py --dataset flickr8k --data_dir flickr8k --space outputs/vse_flickr8k
    python recipes/evaluate_retrieval.py --dataset flickr8k --data_dir flickr8k --space openai/clip-vit-base-patch32

Score sums of photos and words, by the words of captions, and draw a search for each:

    python recipes/evaluate_retrieval.py --dataset flickr8k --data_dir flickr8k --space outputs/vse_bow_flickr8k \
        --arithmetic "dog - black + white" "man - bike + skateboard" --arithmetic_figure outputs/arithmetic.png
"""

import json
from pathlib import Path

from hf_vg.data import load_caption_data
from hf_vg.evaluation import photo_arithmetic, retrieval_metrics, scene_arithmetic_metrics
from hf_vg.interpretation import plot_search
from hf_vg.pipelines import load_space
from hf_vg.training import RetrievalArguments, encode_rows, run_recipe, start_recipe, tiny_space


def main():
    default_config = Path(__file__).parent / "configs" / "vse_scenes_retrieval.yaml"
    needs = {"space": ("run recipes/train_vse.py first", tiny_space)}
    (args,) = start_recipe((RetrievalArguments,), default_config, needs)
    space = load_space(args.space, args.trust_remote_code)
    rows = load_caption_data(args)[args.split]

    captions = rows["captions"][:]
    image_embeds = encode_rows(args, rows, space, args.batch_size)
    text_embeds = space.encode_texts([caption for group in captions for caption in group], args.batch_size)
    image_of_text = [image for image, group in enumerate(captions) for _ in group]

    metrics = retrieval_metrics(image_embeds, text_embeds, image_of_text, folds=args.folds)
    print(f"{len(image_embeds):,} images, {len(text_embeds):,} sentences, {args.folds} fold(s)")
    for direction in ("image_to_text", "text_to_image"):
        recalls = " / ".join(f"{metrics[f'{direction}_r{k}']:.1f}" for k in (1, 5, 10))
        ranks = " / ".join(f"{metrics[f'{direction}_{kind}_rank']:.1f}" for kind in ("median", "mean"))
        print(f"  {direction.replace('_', ' '):<14} R@1/5/10 {recalls}   median/mean rank {ranks}")
    if args.dataset == "scenes" and not args.dry_run:  # few scenes show the same shape in two colors
        metrics |= scene_arithmetic_metrics(rows["objects"][:], image_embeds, space.encode_texts)
        print(
            f"  scene - color + other color: the other color and the same shape at rank 1 in "
            f"{metrics['arithmetic_r1']:.1f}% of {metrics['arithmetic_queries']:,} tries"
        )
    if args.arithmetic:
        sums = photo_arithmetic(captions, image_embeds, space.encode_texts, args.arithmetic)
        ways = ("fit", "fit_image", "fit_word", "fit_chance")
        mean = {way: sum(row[way] for row in sums) / len(sums) for way in ways}
        queries = [query for row in sums for query in row["queries"]]
        print("  % of the first 4 photos that fit    queries    sum  image alone  word alone  chance")
        for row in (*sums, {"swap": "mean", "queries": queries, **mean}):
            numbers = "{:7.1f}{:13.1f}{:12.1f}{:8.1f}".format(*(row[way] for way in ways))
            print(f"  {row['swap']:<33} {len(row['queries']):9,}{numbers}")
        metrics |= {f"arithmetic_{way}": value for way, value in mean.items()}
        if args.arithmetic_figure is not None:
            image = rows["image"]
            examples = [
                {"title": row["swap"], "image": image[row["queries"][0]], "found": [image[i] for i in row["found"][0]]}
                for row in sums
            ]
            plot_search(examples, args.arithmetic_figure)
            print(f"  The first search of each sum: {args.arithmetic_figure}")
    if args.metrics_file is not None:
        Path(args.metrics_file).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_recipe(main)
