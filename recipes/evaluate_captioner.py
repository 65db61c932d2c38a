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
Evaluate a captioner and write a report: scores with confidence intervals, where its nouns look, whether its maps are
faithful (the deletion test), and its best and worst captions.

With no arguments it evaluates the captioner that `recipes/train_captioner.py` trained on scenes:

    python recipes/evaluate_captioner.py

Evaluate on photos, with the boxes of Flickr30k Entities:

    python recipes/evaluate_captioner.py --dataset flickr8k --data_dir flickr8k --split dev \
        --checkpoint outputs/show_attend_tell_flickr8k --entities_dir flickr30k_entities --num_deletion_images 100

Let hard attention look at the most probable location only, instead of the expected context:

    python recipes/evaluate_captioner.py --checkpoint outputs/show_attend_tell_hard_scenes --model.hard_decoding argmax
"""

from pathlib import Path

import numpy as np
from tqdm.auto import tqdm
from transformers.pipelines.pt_utils import KeyDataset

from hf_vg.data import caption_is_true, entities_of, load_caption_data, open_image, seen_box, split_name, undecoded
from hf_vg.evaluation import caption_intervals, grounding_intervals
from hf_vg.interpretation import candidate_examples, caption_examples, deletion_summary
from hf_vg.loading import load_config
from hf_vg.pipelines import caption_settings, load_captioner
from hf_vg.reports import write_report
from hf_vg.training import CaptionReportArguments, check_config_fields, run_recipe, start_recipe, tiny_captioner


def main():
    default_config = Path(__file__).parent / "configs" / "caption_report_scenes.yaml"
    needs = {"checkpoint": ("run recipes/train_captioner.py first", tiny_captioner)}
    (args,) = start_recipe((CaptionReportArguments,), default_config, needs)
    if args.model:
        check_config_fields(load_config(args.checkpoint, "captions", args.trust_remote_code).model_type, args.model)
    captioner = load_captioner(args.checkpoint, args.trust_remote_code, **args.model)
    decoding = caption_settings(captioner, num_beams=args.num_beams)
    if args.length_penalty is not None:
        decoding["length_penalty"] = args.length_penalty
    has_maps = captioner.model.config.model_type != "vse_scnlm"
    split = {"dev": "validation", "val": "validation"}.get(args.split, args.split)
    data = load_caption_data(args)
    rows, split = undecoded(data[split]), split_name(data, split)

    images = KeyDataset(rows, "image")
    outputs = captioner(images, batch_size=args.batch_size, return_attention=has_maps, **decoding)
    captions = [output[0] for output in tqdm(outputs, total=len(rows), desc="Captioning", unit="image")]
    texts, references = [caption["generated_text"] for caption in captions], rows["captions"][:]
    scenes = args.dataset == "scenes"
    true = [caption_is_true(row, text) for row, text in zip(rows, texts, strict=True)] if scenes else None
    metrics, per_image = caption_intervals(texts, references, args.metrics, true, samples=args.num_samples)

    grounded, numbers = rows, range(len(rows))
    if args.entities_dir is not None:
        grounded, numbers = entities_of(rows, args.entities_dir, args.images_dir)
    if has_maps and (scenes or args.entities_dir is not None):
        sizes = [open_image(images[number]).size for number in tqdm(numbers, desc="Measuring", unit="image")]
        seen = [seen_box(captioner.image_processor, size) for size in sizes]
        pointing = grounding_intervals(
            grounded, [captions[number] for number in numbers], seen, sizes, samples=args.num_samples
        )
        if not pointing:
            print("No noun of the captions names anything that has a box: where nouns look is not judged.")
        metrics |= pointing

    deletion = None
    if has_maps and args.num_deletion_images:
        some = KeyDataset(rows.select(range(min(args.num_deletion_images, len(rows)))), "image")
        outputs = captioner(some, batch_size=args.batch_size, return_attention=True, test_deletion=True, **decoding)
        words = [
            {**word, "image": number}
            for number, output in enumerate(tqdm(outputs, total=len(some), desc="Hiding", unit="image"))
            for word in output[0].get("deletion", {"words": []})["words"]
        ]
        if words:
            deletion = deletion_summary(words, samples=args.num_samples)
            metrics |= {"deletion": deletion["score"], "deletion_center": deletion["score_center"]}

    ranked_by = "cider_d" if "cider_d" in per_image else next(iter(per_image))
    ranking = per_image[ranked_by]
    order = np.argsort(-ranking, kind="stable").tolist()
    number = min(args.num_examples, len(order) // 2)
    examples = {}
    for heading, chosen in (("Best", order[:number]), ("Worst", order[len(order) - number :][::-1])):
        pictures = [open_image(images[i]) for i in chosen]
        if has_maps:
            found = caption_examples(
                captioner, pictures, batch_size=args.batch_size, test_deletion=deletion is not None, **decoding
            )
        else:
            found = candidate_examples(captioner, pictures)
        examples[heading] = [
            {
                **records[0],
                "id": str(rows[i].get("image_id", f"{split} {i}")),
                "references": references[i],
                "score": float(ranking[i]),
            }
            for i, records in zip(chosen, found, strict=True)
        ]
    settings = {"generation": "many candidates, ranked"}
    if has_maps:
        own = captioner.model.generation_config
        settings = {
            "beams": decoding.get("num_beams", own.num_beams or 1),
            "length_penalty": decoding.get(
                "length_penalty", 1.0 if own.length_penalty is None else own.length_penalty
            ),
        }
    facts = {
        "model": args.checkpoint,
        "model_type": captioner.model.config.model_type,
        "dataset": args.dataset,
        "split": split,
        "images": len(rows),
        **settings,
        **args.model,
        "bootstrap_samples": args.num_samples,
    }
    output_dir = args.output_dir or Path(args.checkpoint) / "report"
    files = write_report(
        output_dir, f"Captions of {Path(args.checkpoint).name}", facts, metrics, examples, ranked_by, deletion
    )
    print(files["md"].read_text(encoding="utf-8").split("\n## ")[0])
    if not args.dry_run:
        print("The report is " + ", ".join(map(str, files.values())))


if __name__ == "__main__":
    run_recipe(main)
