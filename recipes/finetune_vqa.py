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
Teach GroundedVisualBert to answer questions about images.

With no arguments it trains on the questions of scenes, a micro-world that is made on the spot:

    accelerate launch --quiet recipes/finetune_vqa.py

To start from a model whose attention was supervised, or to train on VQA v2:

    accelerate launch --quiet recipes/finetune_vqa.py --checkpoint outputs/vgp_rollout_scenes
    accelerate launch --quiet recipes/finetune_vqa.py --config recipes/configs/paper/vqa_v2.yaml \
        --checkpoint outputs/vgp_rollout --data_dir vqa --images_dir coco --detections trainval_36.tsv

The regions of VQA's images are published detections, results of `--detector`, or a grid.
"""

from pathlib import Path

from accelerate import PartialState

from hf_vg import GroundedVisualBertForQuestionAnswering
from hf_vg.data import QuestionCollator, answer_vocabulary, question_rows, region_images
from hf_vg.evaluation import answer_questions, vqa_accuracy
from hf_vg.reports import metric_lines
from hf_vg.training import (
    QuestionArguments,
    VgTrainingArguments,
    build_grounded_visual_bert,
    build_region_trainer,
    print_next_steps,
    run_recipe,
    run_training,
    start_recipe,
)


def main():
    default_config = Path(__file__).parent / "configs" / "vqa_scenes.yaml"
    args, training_args = start_recipe((QuestionArguments, VgTrainingArguments), default_config)
    say = PartialState().print

    say("\n[1/3] Reading images and questions")
    images, rows = question_rows(args, args.detector, args.detections, args.max_regions)
    answers = answer_vocabulary(rows["train"]["answers"], args.num_answers)
    model, processor = build_grounded_visual_bert(
        args,
        GroundedVisualBertForQuestionAnswering,
        rows["train"]["question"],
        id2label=dict(enumerate(answers)),
        label2id={answer: index for index, answer in enumerate(answers)},
    )
    collators = {
        split: QuestionCollator(processor, region_images(args, table, model, processor), answers)
        for split, table in images.items()
    }

    say(
        f"\n[2/3] Training {type(model).__name__}: {model.num_parameters():,} parameters, {len(rows['train']):,} "
        f"questions, {len(answers):,} answers"
    )
    batch_size = training_args.per_device_eval_batch_size

    def score(model, split: str = "validation") -> dict[str, float]:
        predicted = answer_questions(model, rows[split], collators[split], batch_size)
        return {"vqa_accuracy": vqa_accuracy(predicted, rows[split]["answers"][:])}

    trainer = build_region_trainer(args, training_args, model, processor, rows, collators, score)
    run_training(trainer)
    if not trainer.is_world_process_zero():
        return

    say(f"\n[3/3] Answering {len(rows['test']):,} questions about {len(images['test']):,} images")
    metrics = score(model, "test")
    trainer.save_metrics("test", metrics)
    trainer.publish(split="test" if args.dataset == "scenes" else "val2014", num_images=len(images["test"]))
    shown = rows["test"].select(range(min(5, len(rows["test"]))))
    for row, answer in zip(shown, answer_questions(model, shown, collators["test"], batch_size), strict=True):
        say(f"  {row['question']:60s} {answer}")
    say(metric_lines(metrics, metrics))
    print_next_steps(training_args)


if __name__ == "__main__":
    run_recipe(main)
