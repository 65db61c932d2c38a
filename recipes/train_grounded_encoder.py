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
Train a visually grounded sentence encoder, measure how well it finds the images of captions, and show which words it
attends to.

With no arguments it trains Att. CAP2ALL on scenes, a micro-world that is made on the spot:

    accelerate launch --quiet recipes/train_grounded_encoder.py

Train on Flickr8k, with pooled features of a pretrained ResNet and GloVe vectors (`--model.objective cap2cap` or
`cap2img`, and `--model.use_attention false`, give the other systems of the paper):

    accelerate launch --quiet recipes/train_grounded_encoder.py \
        --config recipes/configs/grounded_encoder_flickr8k.yaml --data_dir flickr8k \
        --backbone resnet50 --features outputs/features --glove glove.6B.300d.txt
"""

from pathlib import Path

from accelerate import PartialState
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_vg.data import (
    CaptionPairCollator,
    entities_of,
    grounded_encoder_rows,
    grounded_scenes,
    initialize_from_glove,
    load_caption_data,
    split_name,
    train_word_tokenizer,
)
from hf_vg.evaluation import retrieval_metrics, sentence_grounding_metrics
from hf_vg.interpretation import attention_of_sentences, plot_sentence_attention
from hf_vg.reports import metric_lines
from hf_vg.training import (
    ClipGradientValues,
    GroundedEncoderArguments,
    VgTrainer,
    VgTrainingArguments,
    build_grounded_encoder,
    print_next_steps,
    retrieval_vectors,
    run_recipe,
    run_training,
    start_recipe,
)


def main():
    configs = Path(__file__).parent / "configs"
    photo_config = configs / "grounded_encoder_flickr8k.yaml"
    args, training_args = start_recipe(
        (GroundedEncoderArguments, VgTrainingArguments),
        configs / "grounded_encoder_scenes.yaml",
        photo_config=photo_config,
    )
    say = PartialState().print

    say(f"\n[1/4] Loading {args.dataset}")
    data = load_caption_data(args)
    tokenizer = train_word_tokenizer(
        (caption for captions in data["train"]["captions"] for caption in captions),
        vocab_size=args.vocab_size,
        min_frequency=args.min_word_frequency,
        max_length=args.max_caption_length,
    )
    model, processor = build_grounded_encoder(args, tokenizer)
    if args.glove is not None:
        say(initialize_from_glove(model.get_input_embeddings(), tokenizer, args.glove))

    say(f"\n[2/4] Training {model.config.objective}: {model.num_parameters():,} parameters, {len(tokenizer)} words")
    collator = CaptionPairCollator(processor, strict=args.strict)

    def score(model, rows: Dataset) -> dict[str, float]:
        batches = DataLoader(rows, batch_size=training_args.per_device_eval_batch_size, collate_fn=collator)
        return retrieval_metrics(*retrieval_vectors(model, tqdm(batches, unit="batch", leave=False)))

    validation = grounded_encoder_rows(args, data["validation"], model, processor, fixed=True)
    trainer = VgTrainer(
        model=model,
        args=training_args,
        train_dataset=grounded_encoder_rows(args, data["train"], model, processor),
        eval_dataset=validation,
        score=(lambda model: score(model, validation)) if model.predicts_image else None,
        data_collator=collator,
        processing_class=processor,
        dataset_name=args.dataset,
        callbacks=[] if args.max_grad_value is None else [ClipGradientValues(args.max_grad_value)],
    )
    run_training(trainer)
    test_rows = grounded_encoder_rows(args, data["test"], model, processor, fixed=True)
    if not trainer.is_world_process_zero():
        return

    model.eval()
    metrics = {}
    if model.predicts_image:
        say(f"\n[3/4] Finding the images of {len(test_rows):,} test captions, one of each image")
        metrics = score(model, test_rows)
        for direction, name in (("text_to_image", "image of a caption"), ("image_to_text", "caption of an image")):
            recalls = " / ".join(f"{metrics[f'{direction}_r{k}']:.1f}" for k in (1, 5, 10))
            say(f"  {name:20} recall at 1 / 5 / 10: {recalls}, median rank {metrics[f'{direction}_median_rank']:.0f}")
    else:
        say("\n[3/4] Skipped: cap2cap does not encode images")

    grounded = None
    if model.config.use_attention and args.dataset == "scenes":
        grounded = grounded_scenes(data["test"]).select_columns(["captions", "phrases"])
    elif model.config.use_attention and args.entities_dir is not None:
        grounded, _ = entities_of(data["test"], args.entities_dir, args.images_dir)
    if grounded is not None:
        grounding = sentence_grounding_metrics(model, tokenizer, grounded)
        metrics |= {f"grounding_{name}": value for name, value in grounding.items()}
        say(metric_lines(metrics, ("grounding_pointing", "grounding_random", "grounding_sentences")))
    trainer.save_metrics("test", metrics)

    captions = (
        [group[0] for group in data["test"]["captions"][: args.num_figures]] if model.config.use_attention else []
    )
    say(f"\n[4/4] Drawing the attention to the words of {len(captions)} captions")
    figure = Path(training_args.output_dir) / "sentence_attention.png" if captions else None
    if captions:
        plot_sentence_attention(attention_of_sentences(model, tokenizer, captions), figure)
    trainer.publish(figure, split=split_name(data), num_images=len(data["test"]))
    print_next_steps(
        training_args,
        "Encode sentences:\n"
        "  import hf_vg\n  from transformers import AutoModel\n"
        f"  AutoModel.from_pretrained('{training_args.output_dir}').encode(['a sentence', 'another'])",
    )


if __name__ == "__main__":
    run_recipe(main)
