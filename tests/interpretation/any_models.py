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
"""Tiny random models of transformers' vision-language families, each with inputs of a batch of two."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPVisionConfig,
    DonutSwinConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    GitConfig,
    GitForCausalLM,
    GPT2Config,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    MBartConfig,
    MllamaConfig,
    MllamaForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    set_seed,
)


IMAGE = 90  # the id of image tokens
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
TEXT = {
    **{"vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **SIZES,
    **TOKENS,
}
VISION = {**SIZES, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
Model = tuple[PreTrainedModel, dict[str, torch.Tensor]]


def chat(number: int, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Prompts with `number` image tokens. The first is shorter, and padded on the left."""
    ids = torch.tensor([[0, 1, *[IMAGE] * number, 5, 6], [1, 7, *[IMAGE] * number, 8, 9]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), **inputs}


def pixels(height: int = 16, width: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, height, width)


def llava() -> Model:
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_id=IMAGE
    )
    config.vision_feature_layer = -1
    return LlavaForConditionalGeneration(config), chat(16, pixel_values=pixels())


def llava_next() -> Model:
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        image_grid_pinpoints=[[16, 32], [32, 16], [32, 32]],
    )
    config.vision_feature_layer = -1
    inputs = chat(16 + 8 * 9, pixel_values=torch.randn(2, 5, 3, 16, 16), image_sizes=torch.tensor([[32, 32]] * 2))
    return LlavaNextForConditionalGeneration(config), inputs


def paligemma() -> Model:
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**VISION),
        text_config=GemmaConfig(**TEXT, head_dim=4),
        image_token_id=IMAGE,
        projection_dim=16,
    )
    return PaliGemmaForConditionalGeneration(config), chat(16, pixel_values=pixels())


def idefics3(config_class=Idefics3Config, model_class=Idefics3ForConditionalGeneration) -> Model:
    vision = {**VISION, "patch_size": 2}
    config = config_class(vision_config=vision, text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2)
    return model_class(config), chat(16, pixel_values=pixels().unsqueeze(1))


def smolvlm() -> Model:
    return idefics3(SmolVLMConfig, SmolVLMForConditionalGeneration)


def qwen(config_class, model_class, vision: dict[str, Any], **text) -> Model:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}
    if "head_dim" in text:
        rope["mrope_interleaved"] = True
    config = config_class(
        vision_config={
            **{"depth": 2, "hidden_size": 16, "num_heads": 2, "patch_size": 2},
            **{"spatial_merge_size": 2, "temporal_patch_size": 2},
            **vision,
        },
        text_config={**TEXT, **text, "rope_parameters": rope},
        image_token_id=IMAGE,
        vision_start_token_id=91,
        vision_end_token_id=92,
        video_token_id=93,
    )
    inputs = chat(8, pixel_values=torch.randn(64, 24), image_grid_thw=torch.tensor([[1, 8, 4], [1, 4, 8]]))
    return model_class(config), {**inputs, "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def qwen2_vl() -> Model:
    return qwen(Qwen2VLConfig, Qwen2VLForConditionalGeneration, {"embed_dim": 16, "mlp_ratio": 1})


def qwen2_5_vl() -> Model:
    vision = {"intermediate_size": 16, "out_hidden_size": 16, "fullatt_block_indexes": [1], "window_size": 8}
    return qwen(Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, vision)


def qwen3_vl() -> Model:
    vision = {"intermediate_size": 16, "out_hidden_size": 16, "num_position_embeddings": 64}
    vision["deepstack_visual_indexes"] = [0]
    return qwen(Qwen3VLConfig, Qwen3VLForConditionalGeneration, vision, head_dim=4)


def gemma3() -> Model:
    layers = ["sliding_attention", "full_attention"]
    text = Gemma3TextConfig(**TEXT, head_dim=4, sliding_window=8, query_pre_attn_scalar=4, layer_types=layers)
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(**{**VISION, "patch_size": 2}),
        text_config=text,
        image_token_id=IMAGE,
        mm_tokens_per_image=16,
    )
    model, inputs = Gemma3ForConditionalGeneration(config), chat(16, pixel_values=pixels())
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.1)  # zeros at first
    return model, {**inputs, "token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def internvl() -> Model:
    vision = {**VISION, "image_size": [16, 16], "patch_size": [2, 2]}
    config = InternVLConfig(
        vision_config=vision, text_config=Qwen2Config(**TEXT), image_token_id=IMAGE, downsample_ratio=0.5
    )
    return InternVLForConditionalGeneration(config), chat(16, pixel_values=pixels())


def encoder_decoder(encoder, decoder, height: int, width: int) -> Model:
    model = VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    return model, {"pixel_values": pixels(height, width)}


def vit_gpt2() -> Model:
    decoder = GPT2Config(vocab_size=100, n_embd=16, n_layer=2, n_head=4, n_positions=64, **TOKENS)
    return encoder_decoder(ViTConfig(**VISION), decoder, 16, 16)


def donut() -> Model:
    encoder = DonutSwinConfig(
        image_size=[16, 32], patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2
    )
    decoder = MBartConfig(
        **{"vocab_size": 100, "d_model": 16, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4},
        **{"decoder_ffn_dim": 16, "max_position_embeddings": 64},
        **TOKENS,
    )
    return encoder_decoder(encoder, decoder, 16, 32)


def blip() -> Model:
    text = {**SIZES, **TOKENS, "vocab_size": 100, "encoder_hidden_size": 16, "num_attention_heads": 4}
    text |= {"max_position_embeddings": 64, "sep_token_id": 2, "is_decoder": True}
    return BlipForConditionalGeneration(BlipConfig(vision_config=VISION, text_config=text)), {"pixel_values": pixels()}


def git() -> Model:
    config = GitConfig(
        vision_config=VISION, vocab_size=100, num_attention_heads=4, max_position_embeddings=64, **SIZES, **TOKENS
    )
    return GitForCausalLM(config), {"pixel_values": pixels()}


def florence2() -> Model:
    vision = {"embed_dim": [8, 16], "depths": [1, 1], "num_heads": [1, 2], "num_groups": [1, 2], "window_size": 2}
    vision |= {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    vision |= {"projection_dim": 16, "max_temporal_embeddings": 10, "max_position_embeddings": 10}
    text = {"model_type": "bart", "vocab_size": 100, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2}
    text |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    text |= {"max_position_embeddings": 64, "decoder_start_token_id": 2, **TOKENS}
    text |= {"forced_eos_token_id": None, "forced_bos_token_id": None}
    config = Florence2Config(vision_config=vision, text_config=text, image_token_id=IMAGE)
    ids = torch.tensor([[IMAGE] * 17 + [5, 6, 0], [IMAGE] * 17 + [8, 9, 7]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": pixels(32, 32)}
    return Florence2ForConditionalGeneration(config), inputs


def pix2struct() -> Model:
    vision = {"hidden_size": 16, "d_ff": 16, "d_kv": 4, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"vocab_size": 100, "hidden_size": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4}
    config = Pix2StructConfig(
        vision_config={**vision, "patch_embed_hidden_size": 12, "seq_len": 64},
        text_config={**text, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
    )
    places = torch.cartesian_prod(torch.arange(1, 4), torch.arange(1, 5)).expand(2, 12, 2)
    patches = torch.cat([places, torch.randn(2, 12, 12)], dim=-1)
    patches = torch.nn.functional.pad(patches, (0, 0, 0, 3))  # three patches of padding
    inputs = {"flattened_patches": patches, "attention_mask": (patches[..., 0] > 0).float()}
    return Pix2StructForConditionalGeneration(config), inputs


def mllama() -> Model:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "rope_parameters": rope}
    vision = {**SIZES, "num_global_layers": 1, "attention_heads": 2, "image_size": 16, "patch_size": 4}
    vision |= {"max_num_tiles": 4, "vision_output_dim": 32, "intermediate_layers_indices": [0]}
    vision["supported_aspect_ratios"] = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]
    config = MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    ids = torch.tensor([[1, IMAGE, 5, 6], [1, IMAGE, 8, 9]])
    is_tile, seen = torch.ones(2, 1, 4, dtype=torch.long), torch.zeros(2, 4, 1, 4, dtype=torch.long)
    is_tile[0, 0, 2:] = 0
    seen[0, 1:, 0, :2] = seen[1, 1:] = 1
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "cross_attention_mask": seen}
    inputs |= {"pixel_values": torch.randn(2, 1, 4, 3, 16, 16), "aspect_ratio_mask": is_tile}
    return MllamaForConditionalGeneration(config), {**inputs, "aspect_ratio_ids": torch.tensor([[2], [6]])}


def blip2() -> Model:
    qformer = {**SIZES, "vocab_size": 100, "num_attention_heads": 4, "encoder_hidden_size": 16}
    text = {"model_type": "opt", "vocab_size": 100, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, **TOKENS}
    config = Blip2Config(
        vision_config=VISION,
        qformer_config={**qformer, "cross_attention_frequency": 1},
        text_config=text,
        num_query_tokens=5,
        image_token_index=IMAGE,
    )
    return Blip2ForConditionalGeneration(config), chat(5, pixel_values=pixels())


def kosmos2() -> Model:
    text = {"vocab_size": 100, "embed_dim": 16, "layers": 2, "ffn_dim": 16, "attention_heads": 4}
    config = Kosmos2Config(
        vision_config=VISION, text_config={**text, "max_position_embeddings": 64, **TOKENS}, latent_query_num=4
    )
    ids = torch.tensor([[1, 91, 4, 4, 4, 4, 92, 5], [1, 91, 4, 4, 4, 4, 92, 7]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels()}
    return Kosmos2ForConditionalGeneration(config), {**inputs, "image_embeds_position_mask": (ids == 4).long()}


BUILDERS: dict[str, Callable[[], Model]] = {
    build.__name__: build
    for build in (
        *(blip, blip2, donut, florence2, gemma3, git, idefics3, internvl, kosmos2, llava, llava_next, mllama),
        *(paligemma, pix2struct, qwen2_5_vl, qwen2_vl, qwen3_vl, smolvlm, vit_gpt2),
    )
}


def tiny(name: str, dtype: torch.dtype = torch.float32) -> Model:
    """A seeded model in evaluation mode, and its inputs."""
    set_seed(0)
    model, inputs = BUILDERS[name]()
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    return model.to(dtype).eval(), inputs
