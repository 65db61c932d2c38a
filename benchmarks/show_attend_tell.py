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
How fast ShowAttendTell trains and decodes, against the implementation that tutorials teach: features projected to
attention space at every step, a vocabulary projection at every step, padded outputs, one image a beam search.

    python benchmarks/show_attend_tell.py             # against the tutorial's implementation
    python benchmarks/show_attend_tell.py --kernels   # against itself with its kernel replaced by plain code

The same weights and inputs go through both, alternating, in one run. What counts is the ratio: machines are noisy.
"""

import argparse
import statistics
import subprocess
import sys
import time
from unittest import mock

import torch
from torch import nn

from hf_vg.models.show_attend_tell import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    kernels_show_attend_tell,
)


BATCH, LOCATIONS, VOCABULARY = 64, 196, 10_000
BEAM_SEARCH = {"num_beams": 5, "max_new_tokens": 18, "min_new_tokens": 10, "length_penalty": 0.0}


class PlainShowAttendTell(nn.Module):
    """One step after another, each doing all of its work, as the paper's equations read."""

    def __init__(self, model: ShowAttendTellForConditionalGeneration):
        super().__init__()
        self.captioner = model
        self.encoder, self.decoder = model.model.encoder, model.model.decoder

    def attend(self, features, hidden):
        keys = self.encoder.key_layers[0](features)
        for layer in self.encoder.key_layers[1:]:
            keys = torch.tanh(layer(keys))
        attention = self.decoder.attention
        energy = attention.score(torch.tanh(keys + attention.query(hidden).unsqueeze(1))).squeeze(2)
        alpha = torch.softmax(energy, dim=1)
        context = (features * alpha.unsqueeze(2)).sum(dim=1)
        return torch.sigmoid(attention.gate(hidden)) * context, alpha

    def step(self, embedding, features, hidden, memory):
        decoder, captioner = self.decoder, self.captioner
        context, alpha = self.attend(features, hidden)
        gates = (
            decoder.gates_from_word(embedding)
            + decoder.gates_from_hidden(hidden)
            + decoder.gates_from_context(context)
        )
        i, f, o, g = gates.chunk(4, dim=1)
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(memory)
        readout = captioner.output_from_hidden(captioner.dropout(hidden)) + embedding
        readout = torch.tanh(readout + captioner.output_from_context(context))
        return captioner.lm_head(captioner.dropout(readout)), alpha, hidden, memory

    def initial_state(self, features):
        mean = features.mean(dim=1)
        for layer in self.decoder.init_layers:
            mean = self.decoder.init_dropout(torch.relu(layer(mean)))
        return torch.tanh(self.decoder.init_hidden(mean)), torch.tanh(self.decoder.init_memory(mean))

    def loss(self, features, labels):
        embeddings = self.decoder.embed_tokens(labels[:, :-1].clamp(min=0))
        embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings], dim=1)
        hidden, memory = self.initial_state(features)
        predictions = torch.zeros(*labels.shape, VOCABULARY)
        alphas = torch.zeros(*labels.shape, features.shape[1])
        for t in range(labels.shape[1]):
            predictions[:, t], alphas[:, t], hidden, memory = self.step(embeddings[:, t], features, hidden, memory)
        words = labels != -100
        loss = nn.functional.cross_entropy(predictions.flatten(0, 1), labels.flatten(), reduction="sum")
        covered = (alphas * words.unsqueeze(2)).sum(dim=1)
        return loss / len(labels) + ((1 - covered) ** 2).sum(dim=1).mean()

    @torch.no_grad()
    def beam_search(self, features, beams: int = 5, max_steps: int = 18) -> list[int]:
        """One image, a beam that shrinks when captions finish."""
        features = features.expand(beams, -1, -1)
        hidden, memory = self.initial_state(features)
        words, scores = torch.zeros(beams, 1, dtype=torch.long), torch.zeros(beams, 1)
        embedding = torch.zeros(beams, self.decoder.embed_tokens.embedding_dim)
        finished = []
        for step in range(max_steps):
            logits, _, hidden, memory = self.step(embedding, features[: len(words)], hidden, memory)
            logits[:, 1:3] = float("-inf")
            totals = scores + torch.log_softmax(logits, dim=1)
            scores, best = (totals[0] if step == 0 else totals.flatten()).topk(beams - len(finished))
            previous, word = best // VOCABULARY, best % VOCABULARY
            words = torch.cat([words[previous], word.unsqueeze(1)], dim=1)
            ended = word == 0
            finished += [
                (score, ids) for score, ids in zip(scores[ended].tolist(), words[ended].tolist(), strict=True)
            ]
            keep = ~ended
            if not keep.any():
                break
            words, scores, hidden, memory = (
                words[keep],
                scores[keep, None],
                hidden[previous[keep]],
                memory[previous[keep]],
            )
            embedding = self.decoder.embed_tokens(word[keep])
        finished += [(score, ids) for score, ids in zip(scores.flatten().tolist(), words.tolist(), strict=False)]
        return max(finished)[1]


def make() -> tuple[ShowAttendTellForConditionalGeneration, PlainShowAttendTell, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    config = ShowAttendTellConfig(backbone_config=None, vocab_size=VOCABULARY)
    model = ShowAttendTellForConditionalGeneration(config)
    features = torch.randn(BATCH, LOCATIONS, config.feature_size).relu()
    lengths = torch.randint(10, 19, (BATCH,)) + 1  # the end token
    labels = torch.randint(3, VOCABULARY, (BATCH, int(lengths.max())))
    labels.scatter_(1, lengths.unsqueeze(1) - 1, 0)
    labels[torch.arange(labels.shape[1]) >= lengths.unsqueeze(1)] = -100
    return model, PlainShowAttendTell(model), features, labels


def alternate(functions: dict, repeats: int) -> dict[str, float]:
    """Median seconds of each function, which take turns so that noise falls on all of them."""
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(which: str) -> float:
    """Peak of a fresh process that takes two training steps, above what it needs before them, in MiB."""
    code = f"""
import resource, sys
sys.path.insert(0, {sys.path[0]!r})
from show_attend_tell import make
model, plain, features, labels = make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    model.zero_grad()
    loss = plain.loss(features, labels) if {which!r} == "plain" else model(image_features=features, labels=labels).loss
    loss.backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def measure_kernel(model: ShowAttendTellForConditionalGeneration, features: torch.Tensor, repeats: int):
    """Prints how much longer a beam search takes with the plain energy instead of `factored_energy`."""

    def beam_search():
        model.eval().generate(image_features=features, **BEAM_SEARCH)

    def plain_beam_search():
        with mock.patch.object(kernels_show_attend_tell, "factored_energy", ignoring_factors):
            beam_search()

    def ignoring_factors(query, keys, score, key_factors):
        return kernels_show_attend_tell.plain_energy(query, keys, score)

    times = alternate({"factored": beam_search, "plain": plain_beam_search}, repeats)
    print(f"beam of 5 with plain_energy {times['plain']:7.3f} s   {times['plain'] / times['factored']:5.2f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--compile", action="store_true", help="measure the compiled step too; takes minutes to compile"
    )
    parser.add_argument("--only", choices=["train", "memory", "beam"], help="one of the measurements")
    parser.add_argument("--kernels", action="store_true", help="measure only the speed-up of the kernel")
    args = parser.parse_args()
    if args.kernels:
        model, _, features, _ = make()
        measure_kernel(model, features, args.repeats)
        return
    # First: a process begins with the peak of the one that started it.
    if args.only in (None, "memory"):
        peaks = {which: peak_memory(which) for which in ("plain", "hf_vg")}
        for name, peak in peaks.items():
            print(f"peak memory    {name:9s} {peak:7.0f} MiB {peak / peaks['plain']:5.2f}x")

    model, plain, features, labels = make()
    print(
        f"{BATCH} captions of 10..18 words, {LOCATIONS} x 512 features, {VOCABULARY} words, "
        f"{torch.get_num_threads()} threads"
    )

    if args.only in (None, "train"):
        model.eval()
        difference = abs(
            plain.loss(features, labels).item() - model(image_features=features, labels=labels).loss.item()
        )
        assert difference < 1e-2, f"the two do not compute the same loss: {difference}"
        model.train()

        def train(loss):
            model.zero_grad()
            loss().backward()

        functions = {
            "plain": lambda: train(lambda: plain.loss(features, labels)),
            "hf_vg": lambda: train(lambda: model(image_features=features, labels=labels).loss),
        }
        if args.compile:
            compiled = torch.compile(model)
            functions["compiled"] = lambda: train(lambda: compiled(image_features=features, labels=labels).loss)
        times = alternate(functions, args.repeats)
        for name, seconds in times.items():
            print(f"training step  {name:9s} {seconds:7.3f} s   {times['plain'] / seconds:5.2f}x")

    if args.only in (None, "beam"):
        model.eval()
        functions = {
            "plain": lambda: [plain.beam_search(image[None]) for image in features[:8]],
            "hf_vg": lambda: model.generate(image_features=features, **BEAM_SEARCH),
        }
        times = alternate(functions, max(1, args.repeats // 2))
        rates = {"plain": 8 / times["plain"], "hf_vg": BATCH / times["hf_vg"]}
        for name, rate in rates.items():
            print(f"beam of 5      {name:9s} {rate:7.1f} images/s {rate / rates['plain']:5.2f}x")


if __name__ == "__main__":
    main()
