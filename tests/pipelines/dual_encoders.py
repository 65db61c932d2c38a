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
"""Tiny random dual encoders of transformers, each with its processor."""

from collections.abc import Callable

from transformers import (
    AlignConfig,
    AlignModel,
    AlignProcessor,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    EfficientNetImageProcessorPil,
    FlavaConfig,
    FlavaImageProcessorPil,
    FlavaModel,
    FlavaProcessor,
    PreTrainedModel,
    ProcessorMixin,
    Siglip2Config,
    Siglip2ImageProcessorPil,
    Siglip2Model,
    Siglip2Processor,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipProcessor,
    set_seed,
)

from hf_vg.data import train_word_tokenizer


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SQUARE = {"height": 16, "width": 16}


def tokenizer():
    words = train_word_tokenizer(["a red circle above two blue squares", "a dog runs"], vocab_size=14)
    words.model_max_length = 64
    return words


def clip() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = tokenizer()
    text = {**SIZES, "vocab_size": len(words), "max_position_embeddings": 64, "eos_token_id": words.eos_token_id}
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    return model, CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE), words)


def siglip() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = tokenizer()
    text = {**SIZES, "vocab_size": len(words), "max_position_embeddings": 64, "projection_size": 16}
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    return model, SiglipProcessor(SiglipImageProcessorPil(size=SQUARE), words)


def align() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = tokenizer()
    text = {**SIZES, "vocab_size": len(words), "max_position_embeddings": 64}
    vision = {
        **{"image_size": 32, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 16},
        **{"kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [1], "num_block_repeats": [1]},
        **{"expand_ratios": [1], "depthwise_padding": []},
    }
    model = AlignModel(AlignConfig(text_config=text, vision_config=vision, projection_dim=16))
    images = EfficientNetImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    return model, AlignProcessor(images, words)


def siglip2() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = tokenizer()
    text = {**SIZES, "vocab_size": len(words), "max_position_embeddings": 64, "projection_size": 16}
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config={**SIZES, "num_patches": 256}))
    return model, Siglip2Processor(Siglip2ImageProcessorPil(), words)


def flava() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = tokenizer()
    model = FlavaModel(
        FlavaConfig(
            text_config={**SIZES, "vocab_size": len(words), "max_position_embeddings": 64},
            image_config={**SIZES, "image_size": 16, "patch_size": 4},
            multimodal_config=SIZES,
            projection_dim=16,
            hidden_size=16,
        )
    )
    return model, FlavaProcessor(FlavaImageProcessorPil(size=SQUARE, crop_size=SQUARE), words)


DUAL_ENCODERS: dict[str, Callable[[], tuple[PreTrainedModel, ProcessorMixin]]] = {
    "clip": clip,
    "siglip": siglip,
    "align": align,
    "siglip2": siglip2,
    "flava": flava,
}


def dual_encoder(name: str) -> tuple[PreTrainedModel, ProcessorMixin]:
    set_seed(0)
    model, processor = DUAL_ENCODERS[name]()
    return model.eval(), processor
