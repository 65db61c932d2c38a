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
Fine-tune GroundedVisualBert on visually grounded paraphrases, with its attention supervised, and show where it looks.

With no arguments it trains on scenes, a micro-world that is made on the spot, and supervises attention rollout:

    accelerate launch --quiet recipes/train_vgp.py

There is a config for each way to supervise attention (none, indirect, direct, rollout), on scenes and on Flickr30k
Entities with the VGP typology. Flags override the file:

    accelerate launch --quiet recipes/train_vgp.py --config recipes/configs/vgp_direct_scenes.yaml --num_train_epochs 5
    accelerate launch --quiet recipes/train_vgp.py --config recipes/configs/vgp_rollout_flickr30k.yaml \
        --data_dir flickr30k_entities --images_dir flickr30k-images --paraphrases_dir vgp \
        --text_model bert-base-uncased --backbone microsoft/resnet-50 --features outputs/features
"""

from pathlib import Path

from accelerate import PartialState

from hf_vg import GroundedVisualBertForVGP
from hf_vg.data import (
    CaptionPairCollatorForVGP,
    load_grounded_images,
    region_images,
    rows_by_novelty,
    rows_to_draw,
    split_name,
    training_texts,
    vgp_rows,
)
from hf_vg.evaluation import vgp_metrics
from hf_vg.interpretation import plot_regions, region_examples
from hf_vg.reports import metric_name, metric_text
from hf_vg.training import (
    VgpArguments,
    VgTrainingArguments,
    build_grounded_visual_bert,
    build_region_trainer,
    print_next_steps,
    run_recipe,
    run_training,
    start_recipe,
)


def main():
    default_config = Path(__file__).parent / "configs" / "vgp_rollout_scenes.yaml"
    args, training_args = start_recipe((VgpArguments, VgTrainingArguments), default_config)
    training_args.label_names = ["labels"]  # others are not in every batch
    say = PartialState().print

    say("\n[1/4] Reading images, and pairing their captions with each other and with those of similar images")
    images = load_grounded_images(args)
    model, processor = build_grounded_visual_bert(args, GroundedVisualBertForVGP, training_texts(images["train"]))
    rows = vgp_rows(args, images, model, processor, args.paraphrases_dir, args.pairs_per_image)
    mask_words = bool(model.config.masked_lm_weight)
    collators = {
        split: CaptionPairCollatorForVGP(
            processor, region_images(args, table, model, processor, keep_images=split == "test"), mask_words
        )
        for split, table in images.items()
    }

    supervision = model.config.attention_supervision
    say(
        f"\n[2/4] Training {type(model).__name__} with {supervision} supervision: {model.num_parameters():,} "
        f"parameters, {len(rows['train']):,} caption pairs"
    )
    batch_size = training_args.per_device_eval_batch_size

    def score(model) -> dict[str, float]:
        return vgp_metrics(model, rows["validation"], collators["validation"], batch_size)

    trainer = build_region_trainer(args, training_args, model, processor, rows, collators, score)
    run_training(trainer)
    if not trainer.is_world_process_zero():
        return

    say(f"\n[3/4] Scoring {len(rows['test']):,} caption pairs of {len(images['test']):,} images")
    parts = {"": rows["test"], **rows_by_novelty(rows["test"], images["test"])}
    scores = {part: vgp_metrics(model, table, collators["test"], batch_size) for part, table in parts.items()}
    trainer.save_metrics(
        "test", {f"{name}_{part}".rstrip("_"): s for part in parts for name, s in scores[part].items()}
    )
    if len(parts) > 1:
        say(f"  {'':65s}    all   seen  unseen combinations of color and shape")
    for name in scores[""]:
        say(f"  {metric_name(name):65s} " + " ".join(f"{metric_text(name, scores[part][name]):>6s}" for part in parts))

    figure = None
    shown = rows_to_draw(rows["test"], args.num_figures)
    if shown:
        say(f"\n[4/4] Drawing where the words of {len(shown)} captions look")
        figure = Path(training_args.output_dir) / "regions.png"
        plot_regions(region_examples(model, shown, collators["test"], rollout=supervision == "rollout"), figure)
    trainer.publish(figure, split=split_name(images), num_images=len(images["test"]))
    print_next_steps(
        training_args,
        "To fine-tune it:\n"
        f"  accelerate launch --quiet recipes/finetune_vqa.py --checkpoint {training_args.output_dir}\n"
        f"  accelerate launch --quiet recipes/finetune_referring.py --checkpoint {training_args.output_dir}",
    )


if __name__ == "__main__":
    run_recipe(main)
