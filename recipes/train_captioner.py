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
Train an image captioner, score it, and show where it looks.

With no arguments it trains Show, Attend and Tell on scenes, a micro-world that is made on the spot:

    accelerate launch --quiet recipes/train_captioner.py

You can set any argument in a YAML file. Flags override the file:

    accelerate launch --quiet recipes/train_captioner.py --config recipes/configs/show_attend_tell_scenes.yaml \
        --learning_rate 5e-4 --model.hidden_size 512 --output_dir outputs/wider

Captioners of transformers train the same way. There are configs for a Swin or a ViT with GPT-2, BLIP, GIT and LLaVA:

    accelerate launch --quiet recipes/train_captioner.py --config recipes/configs/swin_gpt2_scenes.yaml

Train on Flickr8k, with cached features of a frozen VGG-16:

    python -m hf_vg.hub.convert_vgg --checkpoint vgg16-397923af.pth --output_dir vgg16
    accelerate launch --quiet recipes/train_captioner.py --config recipes/configs/show_attend_tell_flickr8k.yaml \
        --data_dir flickr8k --backbone vgg16 --features outputs/features

Train on your own photos, with a table of captions (captions.csv, .tsv, .jsonl or .parquet) in the same folder. The
format is detected, and the defaults are those of configs/captions_table.yaml:

    accelerate launch --quiet recipes/train_captioner.py --data_dir photos --backbone microsoft/resnet-50

Fine-tune any captioner of transformers on your own photos: BLIP, GIT, a VisionEncoderDecoder, Florence-2, LLaVA or
another model that chats about images. The defaults are those of configs/finetune_captioner.yaml:

    accelerate launch --quiet recipes/train_captioner.py --checkpoint microsoft/git-base --data_dir photos

Train one of your own captioners further. Here its convolutions learn as well:

    accelerate launch --quiet recipes/train_captioner.py --checkpoint outputs/show_attend_tell_flickr8k \
        --data_dir photos --learning_rate 1e-4 --num_beams 5 \
        --model.freeze_backbone false --backbone_learning_rate 1e-5 --output_dir outputs/photos

Then train it for the CIDEr of the captions that it writes. This works for every captioner:

    accelerate launch --quiet recipes/train_captioner.py --checkpoint outputs/photos --data_dir photos --reward cider \
        --output_dir outputs/photos_cider
    accelerate launch --quiet recipes/train_captioner.py --config recipes/configs/self_critical_flickr8k.yaml \
        --checkpoint outputs/show_attend_tell_flickr8k --data_dir flickr8k --features outputs/features

Teach any of these captioners where its words should look, with boxes for phrases:

    accelerate launch --quiet recipes/train_captioner.py --config recipes/configs/llava_scenes.yaml \
        --attention_supervision direct --attention_layers -1
    accelerate launch --quiet recipes/train_captioner.py --checkpoint microsoft/git-base \
        --dataset flickr30k_entities --data_dir flickr30k_entities --images_dir flickr30k_images \
        --attention_supervision rollout --attention_weight 0.5 --distillation_weight 0.5

Stream any number of tar files with images and captions:

    accelerate launch --quiet recipes/train_captioner.py --dataset webdataset --streaming \
        --data_dir 'shards/train-*.tar' --eval_data_dir 'shards/val-*.tar' --max_steps 100000 \
        --save_strategy steps --save_steps 1000
"""

from functools import partial
from pathlib import Path

from accelerate import PartialState
from tqdm.auto import tqdm
from transformers.pipelines.pt_utils import KeyDataset

from hf_vg.data import (
    caption_is_true,
    captioner_rows,
    load_caption_data,
    load_caption_stream,
    open_image,
    split_name,
    train_word_tokenizer,
    training_captions,
    undecoded,
    unknown_words,
)
from hf_vg.evaluation import caption_metrics, scene_caption_metrics, scene_grounding_metrics
from hf_vg.interpretation import plot_attention
from hf_vg.pipelines import attention_problem
from hf_vg.pipelines import load_captioner as load_captioner_pipeline
from hf_vg.reports import metric_lines
from hf_vg.training import (
    CaptionerArguments,
    SelfCriticalTrainer,
    SupervisedCaptionerTrainer,
    VgTrainer,
    VgTrainingArguments,
    build_captioner,
    caption_collator,
    caption_scorer,
    load_captioner,
    print_next_steps,
    run_recipe,
    run_training,
    self_critical_reward,
    start_recipe,
)


def main():
    configs = Path(__file__).parent / "configs"
    args, training_args = start_recipe(
        (CaptionerArguments, VgTrainingArguments),
        configs / "show_attend_tell_scenes.yaml",
        photo_config=configs / "captions_table.yaml",
        checkpoint_config=configs / "finetune_captioner.yaml",
    )
    say = PartialState().print

    say(f"\n[1/4] Loading {args.dataset}")
    if args.streaming:
        data = load_caption_stream(args, training_args.seed)
    else:
        data = load_caption_data(args, phrases=args.attention_supervision != "none")
    if args.checkpoint is not None:
        model, processor = load_captioner(args)
        if processor.tokenizer.unk_token_id is not None and not args.streaming:
            share = unknown_words(processor.tokenizer, training_captions(args, data["train"]))
            say(f"{share:.1%} of the words are not in the vocabulary of {args.checkpoint}, and stay unknown.")
    else:
        tokenizer = train_word_tokenizer(
            training_captions(args, data["train"]),
            vocab_size=args.vocab_size,
            min_frequency=args.min_word_frequency,
        )
        model, processor = build_captioner(args, tokenizer)

    num_tokens = len(processor.tokenizer)
    say(f"\n[2/4] Training {type(model).__name__}: {model.num_parameters():,} parameters, {num_tokens:,} tokens")
    by_length = training_args.max_length_difference is not None
    validation = captioner_rows(args, data["validation"], model, processor)
    collator = caption_collator(args, model, processor)
    trainer_class = VgTrainer
    if args.attention_supervision != "none" or args.distillation_weight:
        trainer_class = partial(SupervisedCaptionerTrainer, **args.supervision())
    if args.reward is not None:
        reward = self_critical_reward(processor.tokenizer, data["train"]["captions"][:])
        trainer_class = partial(SelfCriticalTrainer, reward=reward, num_candidates=args.num_candidates)
    trainer = trainer_class(
        model=model,
        args=training_args,
        train_dataset=captioner_rows(args, data["train"], model, processor, by_length, args.mirror_images),
        eval_dataset=validation,
        score=caption_scorer(args, validation, collator, training_args.per_device_eval_batch_size),
        data_collator=collator,
        processing_class=processor,
        dataset_name=args.dataset,
    )
    run_training(trainer)
    if not trainer.is_world_process_zero():
        return

    say(f"\n[3/4] Captioning the {len(data['test']):,} test images with pipeline('image-to-text')")
    captioner = load_captioner_pipeline(training_args.output_dir)
    test = undecoded(data["test"])
    images = KeyDataset(test, "image")
    problem = attention_problem(captioner, images[0])
    if problem is not None:
        say(f"Without maps: {problem}")
    batch_size = training_args.per_device_eval_batch_size
    outputs = captioner(images, batch_size=batch_size, return_attention=problem is None)
    captions = [output[0] for output in tqdm(outputs, total=len(images), unit="image")]
    texts = [caption["generated_text"] for caption in captions]
    if args.dataset == "scenes":
        metrics = scene_caption_metrics(data["test"], texts)
        if problem is None:
            metrics |= scene_grounding_metrics(data["test"], captions)
    else:
        metrics = caption_metrics(texts, data["test"]["captions"][:])
    trainer.save_metrics("test", metrics)
    shown = ["bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider_d"]
    say(metric_lines(metrics, [*shown, "true_seen", "true_unseen", "pointing", "pointing_random"]))

    examples = [
        {"image": open_image(image), **caption}
        for image, caption in zip(images, captions[: args.num_figures], strict=False)
    ]
    say(
        f"\n[4/4] Showing {len(examples)} of them, and where the model looked"
        if problem is None
        else "\n[4/4] Examples"
    )
    for row, example in zip(test, examples, strict=False):
        note = ""
        if args.dataset == "scenes":
            truth = "true" if caption_is_true(row, example["generated_text"]) else "false"
            note = f"  ({truth}, {'a new combination' if row['unseen'] else 'combinations seen in training'})"
        say(f"  {example['generated_text']}{note}")
    figure = Path(training_args.output_dir) / "attention.png" if examples and problem is None else None
    if figure is not None:
        plot_attention(examples, figure)
    # The card offers an image to try the model on: a scene, since photos belong to other people.
    trainer.publish(
        figure,
        example=examples[0]["image"] if examples and args.dataset == "scenes" else None,
        split=split_name(data),
        num_images=len(data["test"]),
    )
    print_next_steps(
        training_args,
        "Caption an image, and see where the model looks:\n"
        f"  hf-vg caption image.png --model {training_args.output_dir}\n"
        f"  hf-vg explain image.png --model {training_args.output_dir}",
    )


if __name__ == "__main__":
    run_recipe(main)
