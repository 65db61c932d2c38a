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
Evaluate a sentence encoder with linear classifiers on its vectors.

With no arguments it evaluates the encoder that `recipes/train_grounded_encoder.py` trained on scenes, on how two
phrases of a scene relate:

    python recipes/evaluate_sentences.py

Evaluate on SentEval, alone and joined with a universal sentence vector:

    python recipes/evaluate_sentences.py --model outputs/grounded_encoder_flickr8k --data_dir senteval
    python recipes/evaluate_sentences.py --model outputs/grounded_encoder_flickr8k --data_dir senteval \
        --universal sentence-transformers/all-MiniLM-L6-v2 --universal_cache outputs/universal.arrow
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from hf_vg.data import SENTENCE_TASKS, scene_phrase_task
from hf_vg.evaluation import (
    cache_vectors,
    concatenate_encoders,
    evaluate_sentence_task,
    evaluate_sentences,
    universal_encoder,
)
from hf_vg.pipelines import load_sentence_encoder
from hf_vg.training import DryRunArguments, run_recipe, start_recipe, tiny_encoder


@dataclass
class SentenceEvaluationArguments(DryRunArguments):
    model: str | None = field(
        default=None, metadata={"help": "Checkpoint of the encoder. Without it the universal vector is scored alone."}
    )
    universal: str | None = field(
        default=None,
        metadata={
            "help": "Sentence encoder whose vectors are joined with the model's: a folder or a name on the Hub that "
            "sentence-transformers loads."
        },
    )
    universal_cache: str | None = field(
        default=None, metadata={"help": "Arrow file to keep the universal vectors in, for the next model."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with SentEval's files. Without it, phrases of scenes are compared."}
    )
    tasks: list[str] = field(default_factory=lambda: list(SENTENCE_TASKS), metadata={"help": "Which of SentEval's."})
    num_folds: int = field(default=10, metadata={"help": "Folds of the cross-validation."})
    batch_size: int = field(default=128, metadata={"help": "Sentences to encode at a time."})
    device: str = field(default="cpu", metadata={"help": "Where to encode and to train classifiers."})
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with a checkpoint, if you trust its author."}
    )
    output: str | None = field(default=None, metadata={"help": "JSON file to write the scores to."})


def main():
    default_config = Path(__file__).parent / "configs" / "grounded_encoder_evaluation.yaml"
    needs = {"model": ("run recipes/train_grounded_encoder.py first", tiny_encoder)}
    (args,) = start_recipe((SentenceEvaluationArguments,), default_config, needs)

    encoders = []
    if args.model is not None:
        model = load_sentence_encoder(args.model, args.trust_remote_code)[0].to(args.device)
        encoders.append(lambda sentences: model.encode(sentences, batch_size=args.batch_size))
    if args.universal is not None:
        universal = universal_encoder(args.universal, args.batch_size, args.device)
        if args.universal_cache is not None:
            universal = cache_vectors(universal, args.universal, args.universal_cache)
        encoders.append(universal)
    if not encoders:
        raise ValueError("give --model, --universal or both.")
    encode = concatenate_encoders(*encoders)

    if args.data_dir is None:
        task = scene_phrase_task(32, 8) if args.dry_run else scene_phrase_task()
        results = {task.name: evaluate_sentence_task(task, encode, device=args.device)}
    else:
        results = evaluate_sentences(encode, args.data_dir, args.tasks, args.num_folds, args.device)
    for task, scores in results.items():
        print(f"{task:14} " + "  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    if args.output is not None:
        Path(args.output).parent.mkdir(parents=True, exist_ok=True)
        Path(args.output).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    run_recipe(main)
