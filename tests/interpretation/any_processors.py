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
"""Real processors for the tiny models of `any_models`, whose tokenizer has a token for each letter."""

import string
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import (
    Blip2Processor,
    BlipImageProcessorPil,
    BlipProcessor,
    CLIPImageProcessorPil,
    Florence2Processor,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    GitProcessor,
    GotOcr2ImageProcessorPil,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    InternVLProcessor,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaProcessor,
    MllamaImageProcessorPil,
    MllamaProcessor,
    PaliGemmaProcessor,
    Pix2StructImageProcessorPil,
    Pix2StructProcessor,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
    ViTImageProcessorPil,
)
from transformers.utils import is_torchvision_available

from .any_models import IMAGE, tiny


if not is_torchvision_available():  # which their processors of videos need
    for processor_class in (InternVLProcessor, Qwen2_5_VLProcessor):
        processor_class.get_attributes = classmethod(lambda cls: ["image_processor", "tokenizer"])

LETTERS = string.ascii_letters + string.digits + " .,:?!'-\n<>/"
SQUARE = {"height": 16, "width": 16}
CHAT = """{% for message in messages %}{{ message.role }}: {% for part in message.content %}\
{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def tokenizer(image: str = "<image>", *others: str, **named: str) -> PreTrainedTokenizerFast:
    """Ids as in `any_models`: 0 to 2 are <pad>, <s> and </s>, then letters; `IMAGE` is `image`, and others follow."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {letter: id for id, letter in enumerate(LETTERS, 3)}
    vocabulary |= {f"unused{id}": id for id in range(len(vocabulary), IMAGE)}
    vocabulary |= {token: id for id, token in enumerate((image, *others), IMAGE)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="?"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "?"},
        extra_special_tokens=named | {f"other_{id}": token for id, token in enumerate((image, *others))},
    )


def chat_template(image: str) -> str:
    return CHAT.replace("IMAGE", image)


def llava() -> ProcessorMixin:
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE)
    return LlavaProcessor(
        pixels,
        tokenizer(),
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template("<image>"),
    )


def llava_next() -> ProcessorMixin:
    pixels = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16}, crop_size=SQUARE, image_grid_pinpoints=[[16, 32], [32, 16], [32, 32]]
    )
    return LlavaNextProcessor(
        pixels,
        tokenizer(),
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template("<image>"),
    )


def qwen2_5_vl() -> ProcessorMixin:
    tokens = tokenizer("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
    pixels = Qwen2VLImageProcessorPil(patch_size=2, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=512)
    template = chat_template("<|vision_start|><|image_pad|><|vision_end|>")
    return Qwen2_5_VLProcessor(pixels, tokens, chat_template=template)


def internvl() -> ProcessorMixin:
    tokens = tokenizer(
        *("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    pixels = GotOcr2ImageProcessorPil(size=SQUARE, max_patches=6)
    return InternVLProcessor(pixels, tokens, image_seq_length=16, chat_template=chat_template("<IMG_CONTEXT>"))


def idefics3() -> ProcessorMixin:
    tags = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokens = tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tags)
    pixels = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    return Idefics3Processor(pixels, tokens, image_seq_len=16, chat_template=chat_template("<image>"))


def paligemma() -> ProcessorMixin:
    pixels = SiglipImageProcessorPil(size=SQUARE)
    pixels.image_seq_length = 16
    return PaliGemmaProcessor(pixels, tokenizer())


def gemma3() -> ProcessorMixin:
    names = {"image_token": "<image>", "boi_token": "<start>", "eoi_token": "<end>"}
    tokens = tokenizer("<image>", "<start>", "<end>", **names)
    pixels = Gemma3ImageProcessorPil(size=SQUARE)
    return Gemma3Processor(pixels, tokens, image_seq_length=16, chat_template=chat_template("<start>"))


def mllama() -> ProcessorMixin:
    pixels = MllamaImageProcessorPil(size=SQUARE, max_image_tiles=4)
    tokens = tokenizer("<|image|>", "<|python_tag|>")
    return MllamaProcessor(pixels, tokens, chat_template=chat_template("<|image|>"))


def blip() -> ProcessorMixin:
    return BlipProcessor(BlipImageProcessorPil(size=SQUARE), tokenizer())


def blip2() -> ProcessorMixin:
    return Blip2Processor(BlipImageProcessorPil(size=SQUARE), tokenizer(), num_query_tokens=5)


def git() -> ProcessorMixin:
    return GitProcessor(CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE), tokenizer())


def florence2() -> ProcessorMixin:
    pixels = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    pixels.image_seq_length = 17
    return Florence2Processor(pixels, tokenizer(image_token="<image>"))


def pix2struct() -> ProcessorMixin:
    pixels = Pix2StructImageProcessorPil(patch_size={"height": 2, "width": 2}, max_patches=24)
    return Pix2StructProcessor(pixels, tokenizer())


def vit_gpt2() -> tuple:
    """As such checkpoints are on the Hub: an image processor and a tokenizer, and no processor."""
    return ViTImageProcessorPil(size=SQUARE), tokenizer()


PROCESSORS: dict[str, Callable] = {
    build.__name__: build
    for build in (
        *(blip, blip2, florence2, gemma3, git, idefics3, internvl, llava, llava_next, mllama, paligemma, pix2struct),
        *(qwen2_5_vl, vit_gpt2),
    )
}


def save(name: str, folder: Path) -> str:
    """Saves a tiny model and its processor."""
    model, _ = tiny(name)
    # Words are made of letters alone, and go on.
    spaces = [3 + LETTERS.index(space) for space in " \n"]
    model.generation_config.suppress_tokens = [0, 1, 2, *spaces, *range(3 + len(LETTERS), 100)]
    model.save_pretrained(folder)
    parts = PROCESSORS[name]()
    for part in parts if isinstance(parts, tuple) else (parts,):
        part.save_pretrained(folder)
    return str(folder)
