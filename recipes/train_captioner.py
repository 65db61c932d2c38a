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

Any argument can be set in a YAML file, and every flag wins over the file:

    accelerate launch recipes/train_captioner.py --config recipes/configs/show_attend_tell_scenes.yaml \
        --learning_rate 5e-4 --model.hidden_size 512 --output_dir outputs/wider
"""

from pathlib import Path

from transformers import AutoModelForImageTextToText, CLIPImageProcessor, TrainingArguments, pipeline, set_seed

from hf_vg.data import CaptionCollator, load_scenes, train_word_tokenizer
from hf_vg.evaluation import score_captions
from hf_vg.interpretation import plot_attention
from hf_vg.training import CaptionerArguments, VgTrainer, build_captioner, parse_arguments, say


def main():
    default_config = Path(__file__).parent / "configs" / "show_attend_tell_scenes.yaml"
    args, training_args = parse_arguments((CaptionerArguments, TrainingArguments), default_config)
    set_seed(training_args.seed)

    say(f"Drawing {args.num_train_images} scenes to train on")
    dataset = load_scenes(args.num_train_images, args.num_eval_images, args.num_eval_images, args.image_size)
    tokenizer = train_word_tokenizer(
        (caption for captions in dataset["train"]["captions"] for caption in captions),
        vocab_size=args.vocab_size,
        min_frequency=args.min_word_frequency,
    )
    model, processor = build_captioner(args, tokenizer)
    say(f"{type(model).__name__}, {model.num_parameters() / 1e6:.1f} M parameters, {len(tokenizer)} words")

    trainer = VgTrainer(
        model=model,
        args=training_args,
        train_dataset=dataset["train"],
        eval_dataset=dataset["validation"],
        data_collator=CaptionCollator(processor),
        processing_class=processor,
    )
    trainer.train()
    trainer.save_model()
    ...


if __name__ == "__main__":
    main()
