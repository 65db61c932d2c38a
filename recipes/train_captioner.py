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

    accelerate launch recipes/train_captioner.py

Any argument can be set in a YAML file, and a flag wins over the file:

    accelerate launch recipes/train_captioner.py --config recipes/configs/show_attend_tell_scenes.yaml \
        --learning_rate 5e-4 --model.hidden_size 512 --output_dir outputs/wider
"""

from pathlib import Path

from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import pipeline, set_seed
from transformers.pipelines.pt_utils import KeyDataset

from hf_vg.data import CaptionCollator, load_scenes, train_word_tokenizer
from hf_vg.evaluation import scene_caption_metrics, scene_grounding_metrics
from hf_vg.interpretation import plot_attention
from hf_vg.training import (
    CaptionerArguments,
    VgTrainer,
    VgTrainingArguments,
    build_captioner,
    parse_arguments,
    use_all_cores,
)


def main():
    default_config = Path(__file__).parent / "configs" / "show_attend_tell_scenes.yaml"
    args, training_args = parse_arguments((CaptionerArguments, VgTrainingArguments), default_config)
    set_seed(training_args.seed)
    use_all_cores()
    say = PartialState().print

    say(f"\n[1/4] Drawing {args.num_train_images:,} scenes to train on, and {2 * args.num_eval_images:,} to judge by")
    scenes = load_scenes(args.num_train_images, args.num_eval_images, args.num_eval_images, args.image_size)
    tokenizer = train_word_tokenizer(
        (caption for captions in scenes["train"]["captions"] for caption in captions),
        vocab_size=args.vocab_size,
        min_frequency=args.min_word_frequency,
    )
    model, processor = build_captioner(args, tokenizer)

    say(f"\n[2/4] Training {type(model).__name__}: {model.num_parameters():,} parameters, {len(tokenizer)} words")
    trainer = VgTrainer(
        model=model,
        args=training_args,
        train_dataset=scenes["train"].select_columns(["image", "captions"]),
        eval_dataset=scenes["validation"].select_columns(["image", "captions"]),
        data_collator=CaptionCollator(processor, args.max_caption_words),
        processing_class=processor,
    )
    trainer.train()
    trainer.save_model()
    if not trainer.is_world_process_zero():
        return

    say(f"\n[3/4] Captioning the {args.num_eval_images:,} test scenes with pipeline('image-to-text')")
    captioner = pipeline("image-to-text", model=training_args.output_dir, num_beams=args.num_beams)
    images = KeyDataset(scenes["test"], "image")
    outputs = captioner(images, batch_size=training_args.per_device_eval_batch_size, return_attention=True)
    captions = [output[0] for output in tqdm(outputs, total=len(images), unit="image")]
    metrics = scene_caption_metrics(scenes["test"], [caption["generated_text"] for caption in captions])
    metrics |= scene_grounding_metrics(scenes["test"], captions)
    trainer.save_metrics("test", metrics)
    say("  BLEU-1..4 " + " / ".join(f"{100 * metrics[f'bleu{n}']:.1f}" for n in (1, 2, 3, 4)))
    say(f"  true captions, combinations seen in training   {metrics['true_seen']:.1%}")
    say(f"  true captions, combinations never seen         {metrics['true_unseen']:.1%}")
    say(f"  peak of a noun's map in the box of its object  {metrics['pointing']:.1%}")
    say(f"  the same, by chance                            {metrics['pointing_random']:.1%}")

    examples = [
        {"image": image, **caption} for image, caption in zip(images, captions[: args.num_figures], strict=False)
    ]
    say(f"\n[4/4] Drawing where the model looked in {len(examples)} of them")
    for example in examples:
        say(f"  {example['generated_text']}")
    figure = Path(training_args.output_dir) / "attention.png"
    plot_attention(examples, figure)
    say(
        f"\nThe checkpoint lies in {training_args.output_dir}, the figure is {figure}. Caption an image of your own:\n"
        f"  import hf_vg\n  from transformers import pipeline\n"
        f"  pipeline('image-to-text', model='{training_args.output_dir}')('image.png')"
    )


if __name__ == "__main__":
    main()
