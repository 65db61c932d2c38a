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
Judge where the words of a captioner or chat model look, by the boxes of what they name: the pointing game, attention
in the box, and average precision, by explainer, by layer and by head, beside the center and chance.

With no arguments it judges what `recipes/train_captioner.py` trained on scenes:

    python recipes/evaluate_grounding.py

Explainers side by side, with the deletion test, which tells whether a map is to be believed:

    python recipes/evaluate_grounding.py --methods attention gradient rollout occlusion --deletion

On photos with the boxes of Flickr30k Entities, or with RefCOCO's expressions:

    python recipes/evaluate_grounding.py --dataset flickr30k_entities --data_dir flickr30k_entities \
        --images_dir flickr30k-images --checkpoint Salesforce/blip-image-captioning-base --num_eval_images 500
    python recipes/evaluate_grounding.py --dataset refcoco --data_dir . --images_dir train2014 --split testA \
        --checkpoint Qwen/Qwen2.5-VL-3B-Instruct
"""

import json
from pathlib import Path

from hf_vg.data import phrase_rows
from hf_vg.evaluation import evaluate_grounding
from hf_vg.pipelines import load_captioner
from hf_vg.reports import grounding_table
from hf_vg.training import GroundingReportArguments, run_recipe, start_recipe, tiny_captioner


def main():
    default_config = Path(__file__).parent / "configs" / "grounding_scenes.yaml"
    needs = {"checkpoint": ("run recipes/train_captioner.py first", tiny_captioner)}
    (args,) = start_recipe((GroundingReportArguments,), default_config, needs)
    captioner = load_captioner(args.checkpoint, args.trust_remote_code)
    rows = phrase_rows(args, args.split, args.split_by)
    metrics = evaluate_grounding(
        captioner.model,
        captioner.processor or captioner,
        rows,
        methods=args.methods,
        prompt=args.prompt,
        captions_per_image=args.captions_per_image,
        words=args.words or ("all" if "expression" in rows.column_names else "last"),
        deletion=args.deletion,
        batch_size=args.batch_size,
        samples=args.num_samples,
    )
    print(grounding_table(metrics))
    if args.metrics_file is not None:
        Path(args.metrics_file).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        if not args.dry_run:
            print(f"The metrics are in {args.metrics_file}.")


if __name__ == "__main__":
    run_recipe(main)
