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
"""Builders and loaders of captioners for `recipes/train_captioner.py`."""

import copy
from collections.abc import Callable

import torch
from datasets import Dataset
from tqdm.auto import trange
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrOCRProcessor,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ..data.collators import CaptionCollator
from ..data.prompted_captions import PromptedCaptionCollator, end_token
from ..data.tokenizers import special_token_fields
from ..evaluation.captions import caption_metrics
from ..interpretation.families import leading_tokens, pixels_per_token
from ..loading import load_checkpoint, load_config, load_part
from ..models.show_attend_tell import ShowAttendTellConfig
from ..models.spatial_transformer import SpatialTransformerCaptionerConfig
from ..models.vse_scnlm import VseScnlmConfig
from .arguments import CaptionerArguments, check_config_fields
from .images import build_image_processor, config_fields, fill_backbone


# Fields that shape the weights. A checkpoint keeps its own: a recipe's config would make new layers.
SHAPES = (
    *("backbone_config", "feature_size", "vocab_size", "embedding_size", "hidden_size", "attention_size"),
    *("num_attention_layers", "num_init_layers", "attention_sees_word", "context_gate"),
    *("output_from_embedding", "output_from_context"),
    *("num_attention_heads", "intermediate_size", "encoder_layers", "decoder_layers", "num_hidden_layers"),
)


IMAGE_TOKEN = "<image>"
# The captioners of this package. All others are trained as transformers' own are.
OWN_CAPTIONERS = (ShowAttendTellConfig, SpatialTransformerCaptionerConfig)


def caption_collator(
    args: CaptionerArguments, model: PreTrainedModel, processor: ProcessorMixin
) -> CaptionCollator | PromptedCaptionCollator:
    r"""
    Makes the collator that a captioner is trained with.

    Args:
        args ([`CaptionerArguments`]):
            How long captions may be, and what to do with images that cannot be opened.
        model ([`PreTrainedModel`]):
            The captioner.
        processor ([`ProcessorMixin`]):
            The captioner's processor.

    Returns:
        [`CaptionCollator`] or [`PromptedCaptionCollator`]: The collator.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.training import CaptionerArguments, caption_collator, load_captioner
    >>> args = CaptionerArguments(checkpoint=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> model, processor = load_captioner(args)
    >>> rows = [{"image": row["image"], "captions": row["captions"]} for row in hf_vg.examples.scenes()[:2]]
    >>> batch = caption_collator(args, model, processor)(rows)
    >>> sorted(batch)
    ['labels', 'pixel_values']
    ```
    """
    longest = args.max_caption_words if args.reward is None else None  # references may have any length
    if isinstance(model.config, OWN_CAPTIONERS):
        return CaptionCollator(processor, longest, strict=args.strict)
    return PromptedCaptionCollator(processor, model.config, longest, args.strict, model.generation_config)


def caption_scorer(
    args: CaptionerArguments,
    rows: Dataset,
    collator: CaptionCollator | PromptedCaptionCollator,
    batch_size: int,
) -> Callable[[PreTrainedModel], dict[str, float]] | None:
    r"""
    Makes the function that scores a captioner during training: it captions the first `args.num_scored_images` images.

    Args:
        args ([`CaptionerArguments`]):
            The number of images to caption.
        rows ([`~datasets.Dataset`]):
            The rows of [`captioner_rows`], one per image.
        collator ([`CaptionCollator`] or [`PromptedCaptionCollator`]):
            The collator of [`caption_collator`].
        batch_size (`int`):
            Number of images to caption at a time.

    Returns:
        `Callable`, *optional*: Takes a model and returns metrics, see [`VgTrainer`]. `None` if no image is scored.

    Example:

    ```python
    >>> import hf_vg
    >>> from datasets import Dataset
    >>> from hf_vg.training import CaptionerArguments, caption_collator, caption_scorer, load_captioner
    >>> args = CaptionerArguments(checkpoint=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> model, processor = load_captioner(args)
    >>> scenes = hf_vg.examples.scenes()[:2]
    >>> rows = Dataset.from_list([{"image": row["image"], "captions": row["captions"]} for row in scenes])
    >>> score = caption_scorer(args, rows, caption_collator(args, model, processor), batch_size=2)
    >>> "cider_d" in score(model)
    True
    ```
    """
    rows = rows.select(range(min(args.num_scored_images, len(rows))))
    if not len(rows):
        return None

    def score(model: PreTrainedModel) -> dict[str, float]:
        texts, references = [], []
        settings = copy.deepcopy(model.generation_config)
        settings.do_sample = False
        for start in trange(0, len(rows), batch_size, desc="Captioning", unit="batch", leave=False):
            batch = [rows[index] for index in range(start, min(start + batch_size, len(rows)))]
            inputs = {name: tensor.to(model.device) for name, tensor in collator.prompts(batch).items()}
            sequences = model.generate(**inputs, generation_config=settings)
            prompted = "input_ids" in inputs and not model.config.is_encoder_decoder
            length = inputs["input_ids"].shape[1] if prompted else 0
            texts += collator.processor.batch_decode(sequences[:, length:], skip_special_tokens=True)
            references += [row["captions"] for row in batch]
        return caption_metrics(texts, references)

    return score


def build_captioner(
    args: CaptionerArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Makes a new captioner and its processor. If `args` name a backbone, that part is pretrained.

    Args:
        args ([`CaptionerArguments`]):
            The captioner's type, the fields of its config, and its backbone or the image size.
        tokenizer ([`PreTrainedTokenizerFast`]):
            The tokenizer, which sets the vocabulary size and the special tokens.

    Returns:
        `tuple`: The model and its processor.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer
    >>> from hf_vg.training import CaptionerArguments, build_captioner
    >>> fields = {"backbone_config": None, "feature_size": 4, "embedding_size": 8, "hidden_size": 8}
    >>> model, processor = build_captioner(CaptionerArguments(model=fields), train_word_tokenizer(["a dog runs"]))
    >>> model.config.hidden_size
    8
    ```
    """
    if not issubclass(CONFIG_MAPPING[args.model_type], OWN_CAPTIONERS):
        return _build_native_captioner(args, tokenizer)
    fields, backbone = config_fields(args)
    config = AutoConfig.for_model(args.model_type, **special_token_fields(tokenizer), **fields)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    _set_decoding(args, model)
    fill_backbone(model, backbone)
    return model, PROCESSOR_MAPPING[type(config)](build_image_processor(args), tokenizer)


def _build_native_captioner(
    args: CaptionerArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedModel, ProcessorMixin]:
    if args.backbone is not None:
        raise ValueError(f"`backbone` is not for a {args.model_type}, whose image network is part of its config.")
    config = AutoConfig.for_model(args.model_type, **args.model)
    is_asked = "image_token_id" in {*config.to_dict(), *config.attribute_map}
    if is_asked:
        tokenizer.add_tokens(IMAGE_TOKEN, special_tokens=True)
        config.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    text_config, end = config.get_text_config(decoder=True), tokenizer.eos_token_id
    text_config.vocab_size = len(tokenizer)
    # As GPT-2's, the end token stands in front of a text as well.
    for part in (config, text_config):
        part.bos_token_id = part.eos_token_id = part.sep_token_id = part.decoder_start_token_id = end
        part.pad_token_id = tokenizer.pad_token_id
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    _set_decoding(args, model)
    image_processor = build_image_processor(args)
    if config.is_encoder_decoder:
        return model, TrOCRProcessor(image_processor, tokenizer)  # which is for any encoder with any decoder
    prompt = {}
    if is_asked:
        # The tokenizer puts its end token after the image: there the caption begins.
        prompt = {
            "patch_size": pixels_per_token(config.vision_config),
            "vision_feature_select_strategy": config.vision_feature_select_strategy,
            "num_additional_image_tokens": leading_tokens(config.vision_config),
            "chat_template": IMAGE_TOKEN,
        }
    return model, PROCESSOR_MAPPING[type(config)](image_processor, tokenizer, **prompt)


def load_captioner(args: CaptionerArguments) -> tuple[PreTrainedModel, ProcessorMixin]:
    r"""
    Loads the captioner of `args.checkpoint` and its processor, to train it further. This may be any model that
    `AutoModelForImageTextToText` loads. It keeps its words, image processor and sizes, and takes the other fields of
    `args.model`. It decodes as before, unless the arguments say how.

    Args:
        args ([`CaptionerArguments`]):
            The checkpoint, and the fields of its config to change.

    Returns:
        `tuple`: The model and its processor.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.training import CaptionerArguments, load_captioner
    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model, processor = load_captioner(CaptionerArguments(checkpoint=folder, num_beams=3))
    >>> model.generation_config.num_beams
    3
    ```
    """
    if args.backbone is not None:
        raise ValueError(
            f"`backbone` is for a new captioner: the checkpoint {args.checkpoint} has one of its own. Leave it out, "
            "or take it back with `--backbone null`."
        )
    assert args.checkpoint is not None
    config = load_config(args.checkpoint, "captions", args.trust_remote_code)
    if isinstance(config, VseScnlmConfig):
        raise ValueError(f"{args.checkpoint} is a vse_scnlm. Train it with recipes/train_scnlm.py.")
    # Configs within, such as `vision_config`, are sizes too.
    kept = {name: value for name, value in args.model.items() if name not in SHAPES and not isinstance(value, dict)}
    if kept:
        check_config_fields(config.model_type, kept)
    model = load_checkpoint(
        args.checkpoint,
        "captions",
        trust_remote_code=args.trust_remote_code,
        may_lack=("baseline",),  # of hard attention, if soft attention was trained before
        dtype=torch.float32,
        **kept,
    )
    processor = load_part(AutoProcessor, args.checkpoint, args.trust_remote_code)
    if not isinstance(processor, ProcessorMixin):  # older encoder-decoders have none
        parts = (
            load_part(part, args.checkpoint, args.trust_remote_code) for part in (AutoImageProcessor, AutoTokenizer)
        )
        processor = TrOCRProcessor(*parts)  # which is for any encoder with any decoder
    if not isinstance(config, OWN_CAPTIONERS):
        _complete_special_tokens(model, processor.tokenizer)
    _set_decoding(args, model)
    return model, processor


def _complete_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Names the tokens that training and `generate` need, where a checkpoint does not. Labels never depend on them."""
    end, settings = end_token(model.config, tokenizer), model.generation_config
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    if settings.eos_token_id is None:
        settings.eos_token_id = end
    if settings.pad_token_id is None:
        settings.pad_token_id = tokenizer.pad_token_id


def _set_decoding(args: CaptionerArguments, model: PreTrainedModel) -> None:
    # These settings are saved, so that the checkpoint decodes as it was scored.
    settings = model.generation_config
    settings.max_new_tokens = args.max_new_tokens or settings.max_new_tokens or 30
    settings.num_beams = args.num_beams or settings.num_beams or 1
    if args.length_penalty is not None:
        settings.length_penalty = args.length_penalty
    if settings.num_beams == 1:
        settings.length_penalty = None  # otherwise transformers warns whenever the checkpoint is loaded
