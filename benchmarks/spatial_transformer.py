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
The spatial Transformer against ShowAttendTell, ours and as tutorials teach it, `torch.nn.Transformer` and
`VisionEncoderDecoderModel`, side by side in one run, taking turns. All have the sizes of their papers, and see the
same features of 14 x 14 locations. Also printed are the floating-point operations of a training step: on a CPU, which
multiplies the matrices of one step about as fast as those of a whole sequence, they decide.

```bash
python benchmarks/spatial_transformer.py
python benchmarks/spatial_transformer.py --images 64 --captions 1 --rounds 5
python benchmarks/spatial_transformer.py --bf16  # mixed precision, for processors that multiply in bfloat16
```
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from show_attend_tell import PlainShowAttendTell
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrOCRConfig, TrOCRForCausalLM, VisionEncoderDecoderModel, ViTConfig, ViTModel
from transformers.modeling_outputs import BaseModelOutput

from hf_vg import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    SpatialTransformerCaptionerConfig,
    SpatialTransformerCaptionerForConditionalGeneration,
)


LOCATIONS, FEATURE_SIZE, MAX_NEW_TOKENS = 196, 512, 16


class TorchTransformerCaptioner(nn.Module):
    """The same layers from torch, with dropout at the same places. An image is encoded once for all its captions."""

    def __init__(self, config: SpatialTransformerCaptionerConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Buffer(torch.randn(LOCATIONS, config.hidden_size))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            d_model=config.hidden_size,
            nhead=config.num_attention_heads,
            num_encoder_layers=config.encoder_layers,
            num_decoder_layers=config.decoder_layers,
            dim_feedforward=config.intermediate_size,
            dropout=config.dropout,
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.Dropout):  # attention weights have theirs as a number
                module.p = 0.0
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, image_features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        captions, length = labels.shape[1:]
        labels = labels.flatten(0, 1)
        memory = self.transformer.encoder(self.dropout(image_features + self.positions))
        memory = memory.repeat_interleave(captions, dim=0)
        inputs = nn.functional.pad(labels[:, :-1].clamp(min=0), (1, 0))
        words = self.dropout(self.embed_tokens(inputs) + self.positions[:length])
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.transformer.decoder(words, memory, tgt_mask=mask, tgt_is_causal=True)
        is_word = labels != -100
        return nn.functional.cross_entropy(self.lm_head(hidden[is_word]), labels[is_word])


def training_step(model: nn.Module, loss_of: Callable[[], torch.Tensor], bf16: bool = False) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.train().parameters(), lr=3e-4, fused=True)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def take_turns(rounds: int, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, after a round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def report(title: str, seconds: dict[str, float], count: int, unit: str) -> None:
    print(title)
    ours = next(iter(seconds.values()))
    for name, time_taken in seconds.items():
        print(f"  {name:<28} {count / time_taken:8.1f} {unit}/s   ratio {time_taken / ours:5.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description="The spatial Transformer captioner against others.")
    parser.add_argument("--images", type=int, default=8, help="images in a batch")
    parser.add_argument("--captions", type=int, default=5, help="captions of an image")
    parser.add_argument("--vocab_size", type=int, default=10000)
    parser.add_argument("--num_beams", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    features = torch.randn(arguments.images, LOCATIONS, FEATURE_SIZE).relu()
    labels = torch.randint(3, arguments.vocab_size, (arguments.images, arguments.captions, 15))
    # Lengths of COCO's captions up to 14 words: 10.5 words on average, and the end token.
    lengths = (10.5 + 2 * torch.randn(labels.shape[:2])).round().clamp(6, 14).long()
    labels.scatter_(2, lengths.unsqueeze(-1), 0)
    labels[torch.arange(15) > lengths.unsqueeze(-1)] = -100

    config = SpatialTransformerCaptionerConfig(backbone_config=None, vocab_size=arguments.vocab_size)
    ours = SpatialTransformerCaptionerForConditionalGeneration(config)
    lstm = ShowAttendTellForConditionalGeneration(
        ShowAttendTellConfig(backbone_config=None, vocab_size=arguments.vocab_size)
    )
    plain = PlainShowAttendTell(lstm)
    repeated = features.repeat_interleave(arguments.captions, dim=0)
    torch_transformer = TorchTransformerCaptioner(config)
    losses = {
        "spatial Transformer": (ours, lambda: ours(image_features=features, labels=labels).loss),
        "ShowAttendTell": (lstm, lambda: lstm(image_features=features, labels=labels).loss),
        "ShowAttendTell, as taught": (lstm, lambda: plain.loss(repeated, labels.flatten(0, 1))),
        "torch.nn.Transformer": (torch_transformer, lambda: torch_transformer(features, labels)),
    }
    steps = {name: training_step(model, loss_of, arguments.bf16) for name, (model, loss_of) in losses.items()}
    for name in ("spatial Transformer", "ShowAttendTell"):
        with FlopCounterMode(display=False) as counter:
            steps[name]()
        operations = counter.get_total_flops() / arguments.images / arguments.captions / 1e9
        print(f"{name}: {operations:.2f} GFLOP to train on a caption")
    report(
        f"Training step, {arguments.images} images with {arguments.captions} captions, {arguments.vocab_size} words, "
        + ("bfloat16" if arguments.bf16 else "single precision"),
        take_turns(arguments.rounds, steps),
        arguments.images * arguments.captions,
        "captions",
    )

    decoder = TrOCRForCausalLM(
        TrOCRConfig(
            vocab_size=arguments.vocab_size,
            d_model=config.hidden_size,
            cross_attention_hidden_size=config.hidden_size,
            decoder_layers=config.decoder_layers,
            decoder_attention_heads=config.num_attention_heads,
            decoder_ffn_dim=config.intermediate_size,
            max_position_embeddings=64,
        )
    )
    encoder = ViTModel(ViTConfig(hidden_size=config.hidden_size, num_hidden_layers=1, num_attention_heads=8))
    theirs = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    options = {
        "num_beams": arguments.num_beams,
        "do_sample": False,
        "min_new_tokens": MAX_NEW_TOKENS,
        "max_new_tokens": MAX_NEW_TOKENS,
        "decoder_start_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 2,
    }
    for model in (ours, lstm, theirs):
        model.eval()
    decodings = {
        "spatial Transformer": lambda: ours.generate(image_features=features, **options),
        "ShowAttendTell": lambda: lstm.generate(image_features=features, **options),
        # Its encoder has another shape: it is given what it would have encoded, and the others encode theirs.
        "VisionEncoderDecoderModel": lambda: theirs.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=features), **options
        ),
    }
    report(
        f"Captions of {MAX_NEW_TOKENS} tokens, {arguments.num_beams} beams, {arguments.images} images at a time",
        take_turns(arguments.rounds, decodings),
        arguments.images,
        "images",
    )


if __name__ == "__main__":
    main()
