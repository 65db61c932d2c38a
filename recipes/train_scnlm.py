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
Train the structure-content language model on captions, and describe images with it.

It needs a space of images and sentences. With no arguments it uses that of `recipes/train_vse.py` on scenes:

    accelerate launch --quiet recipes/train_vse.py
    accelerate launch --quiet recipes/train_scnlm.py

Train on photos, with cached part-of-speech tags of any spaCy pipeline:

    accelerate launch --quiet recipes/train_scnlm.py --config recipes/configs/scnlm_flickr8k.yaml --data_dir flickr8k
"""

from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import AutoProcessor

from hf_vg import EmbeddingSpace, VseScnlmForConditionalGeneration
from hf_vg.data import (
    TaggedCaptionCollator,
    load_caption_data,
    open_image,
    say_long_captions,
    split_name,
    tag_captions,
    tag_inventory,
    tagged_rows,
    undecoded,
)
from hf_vg.evaluation import caption_metrics, scene_caption_metrics
from hf_vg.interpretation import caption_candidates, plot_candidates
from hf_vg.loading import load_checkpoint, load_part
from hf_vg.reports import metric_lines
from hf_vg.training import (
    ScnlmArguments,
    VgTrainer,
    VgTrainingArguments,
    encode_rows,
    initialize_scnlm,
    print_next_steps,
    run_recipe,
    run_training,
    start_recipe,
    tiny_space,
)


def main():
    configs = Path(__file__).parent / "configs"
    photo_config = configs / "scnlm_flickr8k.yaml"
    needs = {"space": ("run recipes/train_vse.py first", tiny_space)}
    args, training_args = start_recipe(
        (ScnlmArguments, VgTrainingArguments), configs / "scnlm_scenes.yaml", needs, photo_config=photo_config
    )
    say = PartialState().print

    say(f"\n[1/4] Loading {args.dataset}, and tagging its captions")
    data = load_caption_data(args)
    processor = load_part(AutoProcessor, args.space, args.trust_remote_code)
    tokenizer = processor.tokenizer
    captions = {
        split: [caption for group in data[split]["captions"] for caption in group] for split in ("train", "validation")
    }
    with PartialState().main_process_first():  # the others read what it has cached
        tags = {split: tag_captions(captions[split], tokenizer, args.tagger) for split in captions}
    inventory = tag_inventory(tags["train"])

    # `from_pretrained` takes the trained space, and draws the language model at random.
    model = load_checkpoint(
        args.space,
        "search",
        VseScnlmForConditionalGeneration,
        True,
        args.trust_remote_code,
        tags=inventory,
        **args.model,
    )
    if args.glove is not None:
        say(initialize_scnlm(model, tokenizer, args.glove))
    model.to(training_args.device)
    space = EmbeddingSpace(model.model, processor)
    rows = {}
    for split in captions:
        say_long_captions(captions[split], tokenizer, args.max_caption_words)
        short = [place for place, row in enumerate(tags[split]) if len(row) <= (args.max_caption_words or len(row))]
        texts = [captions[split][place] for place in short]
        rows[split] = tagged_rows(
            texts, [tags[split][place] for place in short], tokenizer, inventory, space.encode_texts(texts)
        )
    trained = sum(parameter.numel() for parameter in model.decoder.parameters())
    say(f"\n[2/4] Training the SC-NLM: {trained:,} parameters, {len(tokenizer)} words, {len(inventory)} tags")
    trainer = VgTrainer(
        model=model,
        args=training_args,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=TaggedCaptionCollator(),
        processing_class=processor,
        dataset_name=args.dataset,
    )
    run_training(trainer)
    if not trainer.is_world_process_zero():
        return

    everything = TaggedCaptionCollator(model.config.pad_token_id)(rows["train"].remove_columns("content_embeds"))
    model.remember(everything["labels"], everything["tag_ids"], args.num_sentences)
    # A space has no generation config of its own, so transformers made one from its config.json. It knows no custom
    # entries, and would not load them.
    model.generation_config._from_model_config = False
    model.generation_config.update(
        allow_custom_entries=True,
        num_candidates=args.num_candidates,
        content_weights=args.content_weights,
        similarity_weight=args.similarity_weight,
        language_model_weight=args.language_model_weight,
    )
    trainer.save_model()
    say(f"  {model.config.num_templates:,} templates and {model.config.num_trigrams:,} trigrams go with it")

    test = data["test"]
    say(f"\n[3/4] Describing the {len(test):,} test images, and their first captions, from their vectors")
    batch_size = training_args.per_device_eval_batch_size
    vectors = {
        "image": encode_rows(args, test, space, batch_size),
        "caption": space.encode_texts([group[0] for group in test["captions"]]),
    }
    metrics = {}
    for name, embeds in vectors.items():
        texts = describe(model, tokenizer, embeds, batch_size)
        if args.dataset == "scenes":
            scores = scene_caption_metrics(test, texts)
        else:
            scores = caption_metrics(texts, test["captions"][:], ("bleu", "rouge", "cider", "meteor"))
        metrics |= {f"{name}_{key}": value for key, value in scores.items()}
    say(metric_lines(metrics, metrics))
    trainer.save_metrics("test", metrics)

    sources, number = undecoded(test), min(args.num_examples, len(test))
    say(f"\n[4/4] Drawing the best candidates of {number} images, with their tags")
    examples = [
        {
            "image": open_image(sources[index]["image"]),
            "title": sources[index]["captions"][0],
            "candidates": candidates,
        }
        for index, candidates in enumerate(
            caption_candidates(model, tokenizer, content_embeds=vectors["image"][:number]) if number else []
        )
    ]
    for example in examples:
        say(f"  {example['title']}")
        for candidate in example["candidates"]:
            pairs = zip(candidate["words"], candidate["tags"], strict=True)
            say(f"    {candidate['score']:6.3f}  " + " ".join(f"{word}/{tag}" for word, tag in pairs))
    figure = Path(training_args.output_dir) / "candidates.png" if examples else None
    if examples:
        plot_candidates(examples, figure)
    trainer.publish(figure, split=split_name(data), num_images=len(test))
    print_next_steps(training_args, f"Caption an image:\n  hf-vg caption image.png --model {training_args.output_dir}")


def describe(model, tokenizer, embeds: torch.Tensor, batch_size: int) -> list[str]:
    texts = []
    for part in tqdm(embeds.split(batch_size), desc="Describing"):
        sequences = model.generate(content_embeds=part.to(model.device))
        texts += tokenizer.batch_decode(sequences, skip_special_tokens=True)
    return texts


if __name__ == "__main__":
    run_recipe(main)
