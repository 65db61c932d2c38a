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
Teach GroundedVisualBert to find what an expression refers to.

With no arguments it trains on the expressions of scenes, a micro-world that is made on the spot:

    accelerate launch --quiet recipes/finetune_referring.py

To start from a model whose attention was supervised, or to train on RefCOCO, RefCOCO+ or RefCOCOg:

    accelerate launch --quiet recipes/finetune_referring.py --checkpoint outputs/vgp_rollout_scenes
    accelerate launch --quiet recipes/finetune_referring.py \
        --config recipes/configs/paper/referring_ground_truth.yaml \
        --checkpoint outputs/vgp_rollout --data_dir refer/data --images_dir coco/train2014

With `--detections`, the regions are published detections instead of the annotated objects.
"""

from pathlib import Path

from accelerate import PartialState

from hf_vg import GroundedVisualBertForReferringExpression
from hf_vg.data import ReferringCollator, referring_rows, region_images
from hf_vg.evaluation import referring_accuracy, resolve_expressions
from hf_vg.reports import metric_lines
from hf_vg.training import (
    ReferringArguments,
    VgTrainingArguments,
    build_grounded_visual_bert,
    build_region_trainer,
    print_next_steps,
    run_recipe,
    run_training,
    start_recipe,
)


def main():
    default_config = Path(__file__).parent / "configs" / "referring_scenes.yaml"
    args, training_args = start_recipe((ReferringArguments, VgTrainingArguments), default_config)
    say = PartialState().print

    say("\n[1/3] Reading images and expressions")
    images, rows = referring_rows(args, args.split_by, args.test_split, args.detections)
    model, processor = build_grounded_visual_bert(
        args, GroundedVisualBertForReferringExpression, rows["train"]["expression"]
    )
    collators = {
        split: ReferringCollator(processor, region_images(args, table, model, processor))
        for split, table in images.items()
    }

    say(
        f"\n[2/3] Training {type(model).__name__}: {model.num_parameters():,} parameters, {len(rows['train']):,} "
        "expressions"
    )
    batch_size = training_args.per_device_eval_batch_size

    def score(model, split: str = "validation") -> dict[str, float]:
        chosen = resolve_expressions(model, rows[split], collators[split], batch_size)
        return {"referring_accuracy": referring_accuracy(chosen, rows[split]["box"][:])}

    trainer = build_region_trainer(args, training_args, model, processor, rows, collators, score)
    run_training(trainer)
    if not trainer.is_world_process_zero():
        return

    say(f"\n[3/3] Resolving {len(rows['test']):,} expressions in {len(images['test']):,} images")
    metrics = score(model, "test")
    trainer.save_metrics("test", metrics)
    trainer.publish(split="test" if args.dataset == "scenes" else args.test_split, num_images=len(images["test"]))
    say(metric_lines(metrics, metrics))
    print_next_steps(training_args)


if __name__ == "__main__":
    run_recipe(main)
