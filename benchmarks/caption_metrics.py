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
Caption metrics against `pycocoevalcap`, side by side in one run, taking turns.

```bash
python benchmarks/caption_metrics.py                                  # invented captions
python benchmarks/caption_metrics.py --captions Flickr8k.token.txt    # real ones, and METEOR on them
```
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from hf_vg.evaluation import caption_metrics, caption_scores, ptb_tokenize
from hf_vg.evaluation.meteor import meteor_java_available


def read_captions(path: Path) -> list[list[str]]:
    """The captions of each image in Flickr8k's file of `image#number<TAB>caption` lines."""
    images: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, caption = line.split("\t")
        images.setdefault(name.split("#")[0], []).append(caption)
    return [captions for captions in images.values() if len(captions) >= 5]


def invent_captions(num_images: int, generator: random.Random) -> list[list[str]]:
    """Captions of the lengths and word frequencies of real ones: each image has some words of its own."""
    vocabulary = [f"word{rank}" for rank in range(8000)]
    weights = [1 / (rank + 2) for rank in range(8000)]
    images = []
    for _ in range(num_images):
        own = generator.choices(vocabulary, weights, k=12)
        lengths = [max(3, round(generator.gauss(11, 3))) for _ in range(5)]
        images.append([" ".join(generator.choices(own, k=length)) + " ." for length in lengths])
    return images


def take_turns(rounds: int, ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, times in ((ours, seconds[0]), (theirs, seconds[1])):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def report(name: str, ours: float, theirs: float) -> None:
    print(f"{name:<42} hf_vg {ours:7.2f} s   pycocoevalcap {theirs:7.2f} s   ratio {theirs / ours:6.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description="Caption metrics against pycocoevalcap.")
    parser.add_argument("--captions", type=Path, help="Flickr8k.token.txt; captions are invented when not given")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    generator = random.Random(0)
    images = read_captions(arguments.captions) if arguments.captions else invent_captions(arguments.images, generator)
    images = images[: arguments.images]
    raw_references = [captions[:5] for captions in images]
    # Half the predictions are another image's caption, half are their own image's with a few words lost.
    raw_predictions = []
    for captions in images:
        words = (captions if generator.random() < 0.5 else generator.choice(images))[0].split()
        raw_predictions.append(" ".join(word for word in words if generator.random() < 0.8))
    print(f"{len(images)} captions, {sum(map(len, raw_references))} references")

    predictions = [" ".join(ptb_tokenize(caption)) for caption in raw_predictions]
    references = [[" ".join(ptb_tokenize(caption)) for caption in captions] for captions in raw_references]
    their_predictions = {image: [caption] for image, caption in enumerate(predictions)}
    their_references = dict(enumerate(references))
    their_scores = {}

    def theirs():
        bleu, _ = Bleu(4).compute_score(their_references, their_predictions, verbose=0)
        their_scores.update({f"bleu{order}": bleu[order - 1] for order in range(1, 5)})
        their_scores["rouge_l"], _ = Rouge().compute_score(their_references, their_predictions)
        their_scores["cider_d"], _ = Cider().compute_score(their_references, their_predictions)

    def ours():
        return caption_metrics(predictions, references, tokenize=str.split)

    report("BLEU + ROUGE-L + CIDEr-D, same tokens", *take_turns(arguments.rounds, ours, theirs))
    our_scores = ours()
    difference = max(abs(our_scores[name] - score) for name, score in their_scores.items())
    print(f"{'':<42} largest difference of a score {difference:.1e}")

    if not meteor_java_available():
        print("no Java: tokenization and METEOR are not compared")
        return

    captions = [caption for row in raw_references for caption in row]
    their_captions = {index: [{"caption": caption}] for index, caption in enumerate(captions)}
    tokenized = {}

    def their_tokenizer():
        tokenized.update(PTBTokenizer().tokenize(their_captions))

    our_seconds, their_seconds = take_turns(
        arguments.rounds, lambda: [ptb_tokenize(caption) for caption in captions], their_tokenizer
    )
    report("tokenization", our_seconds, their_seconds)
    same = sum(ptb_tokenize(caption) == tokenized[index][0].split() for index, caption in enumerate(captions))
    print(f"{'':<42} identical {same} of {len(captions)} captions ({same / len(captions):.3%})")

    if not arguments.captions:
        return
    few = slice(0, 1000)
    scores, totals = {}, {}
    for name in ("meteor", "meteor_python"):
        for run in ("first", "second"):
            start = time.perf_counter()
            totals |= caption_metrics(predictions[few], references[few], name, tokenize=str.split)
            print(f"{name + ', ' + run + ' call, 1000 captions':<42} {time.perf_counter() - start:13.2f} s")
        scores |= caption_scores(predictions[few], references[few], name, tokenize=str.split)
    correlation = np.corrcoef(scores["meteor"], scores["meteor_python"])[0, 1]
    print(
        f"meteor {totals['meteor']:.4f}   meteor_python {totals['meteor_python']:.4f}   correlation {correlation:.4f}"
    )


if __name__ == "__main__":
    main()
