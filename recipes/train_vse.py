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
Train a space of images and sentences, and measure retrieval in both directions.

With no arguments it trains on scenes, a micro-world that is made on the spot:

    accelerate launch --quiet recipes/train_vse.py

Train on photos, with cached features of a frozen network and GloVe vectors:

    accelerate launch --quiet recipes/train_vse.py --config recipes/configs/vse_flickr8k.yaml --data_dir flickr8k \
        --backbone resnet50 --features outputs/features --glove glove.6B.100d.txt --model.embedding_size 100
"""

from pathlib import Path

from accelerate import PartialState

from hf_vg.data import PairCollator, load_caption_data, split_name, train_word_tokenizer, vse_rows
from hf_vg.training import (
    HardestNegatives,
    VgTrainer,
    VgTrainingArguments,
    VseArguments,
    build_vse,
    print_next_steps,
    run_recipe,
    run_training,
    start_recipe,
    vse_metrics,
)


def main():
    configs = Path(__file__).parent / "configs"
    photo_config = configs / "vse_flickr8k.yaml"
    args, training_args = start_recipe(
        (VseArguments, VgTrainingArguments), configs / "vse_scenes.yaml", photo_config=photo_config
    )
    training_args.label_names = ["image_ids"]
    say = PartialState().print

    say(f"\n[1/3] Loading {args.dataset}")
    data = load_caption_data(args)
    tokenizer = train_word_tokenizer(
        (caption for captions in data["train"]["captions"] for caption in captions),
        vocab_size=args.vocab_size,
        min_frequency=args.min_word_frequency,
    )
    model, processor = build_vse(args, tokenizer)

    say(f"\n[2/3] Training {type(model).__name__}: {model.num_parameters():,} parameters, {len(tokenizer)} words")
    by_length = training_args.max_length_difference is not None
    trainer = VgTrainer(
        model=model,
        args=training_args,
        train_dataset=vse_rows(args, data["train"], model, processor, one_a_caption=by_length),
        eval_dataset=vse_rows(args, data["validation"], model, processor, one_a_caption=True),
        data_collator=PairCollator(processor, args.captions_per_image, strict=args.strict),
        compute_metrics=vse_metrics,
        processing_class=processor,
        dataset_name=args.dataset,
    )
    if args.hardest_negatives_after is not None:
        trainer.add_callback(HardestNegatives(args.hardest_negatives_after))
    run_training(trainer)

    say(f"\n[3/3] Retrieval among the {len(data['test']):,} test images and their captions")
    rows = vse_rows(args, data["test"], model, processor, one_a_caption=True)
    metrics = trainer.evaluate(rows, metric_key_prefix="test")
    trainer.save_metrics("test", metrics)
    trainer.publish(split=split_name(data), num_images=len(data["test"]))
    for direction in ("image_to_text", "text_to_image"):
        recalls = " / ".join(f"{metrics[f'test_{direction}_r{k}']:.1f}" for k in (1, 5, 10))
        rank = metrics[f"test_{direction}_median_rank"]
        say(f"  {direction.replace('_', ' '):<14} R@1/5/10 {recalls}   median rank {rank:.0f}")
    print_next_steps(
        training_args,
        "Search with it:\n"
        "  from hf_vg import EmbeddingSpace\n"
        f"  space = EmbeddingSpace.from_pretrained('{training_args.output_dir}')\n"
        "  space.search('a red circle', space.encode_images(images))",
    )


if __name__ == "__main__":
    run_recipe(main)
