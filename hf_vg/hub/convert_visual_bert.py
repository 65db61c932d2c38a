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
Convert published VisualBERT weights to a folder for `from_pretrained`: a transformers checkpoint (a folder, or a name
on the Hub such as `uclanlp/visualbert-vqa-coco-pre`), or a state dict of the authors' (`vqa_coco_pre_trained.th`).

```bash
python -m hf_vg.hub.convert_visual_bert --checkpoint uclanlp/visualbert-vqa-coco-pre \
    --backbone microsoft/resnet-50 --output_dir visualbert
accelerate launch --quiet recipes/train_vgp.py --checkpoint visualbert
```

The encoder is taken over weight for weight, and heads of other tasks are left out. VisualBERT itself sees features of
an object detector; with `--backbone` the model sees pixels and boxes, through a projection that is yet to be trained.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoImageProcessor, AutoTokenizer, CLIPImageProcessorPil, VisualBertModel
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..data.feature_extraction import backbone_of, load_backbone
from ..errors import error_message, told_in_one_sentence
from ..loading import check_weights, load_checkpoint, load_config, load_part
from ..models.grounded_visual_bert.configuration_grounded_visual_bert import GroundedVisualBertConfig
from ..models.grounded_visual_bert.modeling_grounded_visual_bert import GroundedVisualBertModel
from ..models.grounded_visual_bert.processing_grounded_visual_bert import GroundedVisualBertProcessor
from ..models.publishing import upload_folder
from .cards import Run, model_card
from .conversion import check_tensors, converter_parser, new_folder, read_state_dict, some


# Parts of names in the authors' code, and in transformers'.
RENAMED = (
    ("bert.bert.", "visual_bert."),
    ("token_type_embeddings_visual", "visual_token_type_embeddings"),
    ("position_embeddings_visual", "visual_position_embeddings"),
    ("embeddings.projection", "embeddings.visual_projection"),
)
# Matrices that tell the sizes of a model, by their names in transformers.
SIZES_FROM = (
    "embeddings.word_embeddings.weight",
    "embeddings.visual_projection.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "encoder.layer.0.intermediate.dense.weight",
)
HEAD_SIZE = 64  # of every published BERT and VisualBERT: tensors do not tell


def convert_visual_bert_state_dict(
    state_dict: Mapping[str, torch.Tensor],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """
    Rename the tensors of a VisualBERT to those of [`GroundedVisualBertModel`].

    Args:
        state_dict (`Mapping[str, torch.Tensor]`):
            The authors' tensors, `bert.bert.*`, or those of a transformers model, with or without its `visual_bert.`.

    Returns:
        `tuple[dict, dict[str, torch.Tensor]]`: the fields of the configuration that the tensors tell, and a state dict
        that shares their memory.
    """
    encoder = {}
    for name, tensor in state_dict.items():
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        name = name.removeprefix("visual_bert.")
        if name.startswith(("embeddings.", "encoder.", "pooler.")) and not name.endswith("position_ids"):
            encoder[name] = tensor
    lacks = [name for name in SIZES_FROM if name not in encoder or encoder[name].ndim != 2]
    if lacks:
        raise ValueError(f"not a VisualBERT: it has no matrices {lacks}. Its tensors are {some(sorted(state_dict))}.")
    words, image, positions, types, inner = (encoder[name] for name in SIZES_FROM)
    hidden_size = words.shape[1]
    fields = {
        "vocab_size": words.shape[0],
        "hidden_size": hidden_size,
        "visual_embedding_dim": image.shape[1],
        "num_hidden_layers": len({name.split(".")[2] for name in encoder if name.startswith("encoder.layer.")}),
        "num_attention_heads": max(1, hidden_size // HEAD_SIZE),
        "intermediate_size": inner.shape[0],
        "max_position_embeddings": positions.shape[0],
        "type_vocab_size": types.shape[0],
    }
    # Compared without data, as a few bytes can claim sizes that fill the memory. Heads change no shape.
    with torch.device("meta"):
        model = GroundedVisualBertModel(GroundedVisualBertConfig(**fields | {"num_attention_heads": 1}))
    check_tensors(encoder, model.state_dict(), "a whole VisualBERT of the sizes that its embeddings have")
    return fields, encoder


def read_checkpoint(checkpoint: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The configuration's fields and the encoder's tensors of a file, a folder or a name on the Hub."""
    if Path(checkpoint).suffix in (".th", ".pth", ".pt", ".bin", ".safetensors"):
        tensors = read_state_dict(checkpoint, expected="VisualBERT's weights")
        try:
            fields, state_dict = convert_visual_bert_state_dict(tensors)
            if fields["hidden_size"] % fields["num_attention_heads"]:
                raise ValueError(f"its hidden size {fields['hidden_size']} is not a multiple of {HEAD_SIZE}.")
            return fields, state_dict
        except (ValueError, StrictDataclassError) as error:
            raise ValueError(f"{checkpoint}: {error_message(error)}") from error
    config = load_config(checkpoint)
    if config.model_type != "visual_bert":
        raise ValueError(f"{checkpoint} is a {config.model_type}; expected a checkpoint of VisualBERT.")
    model = load_checkpoint(checkpoint, model_class=VisualBertModel, dtype="auto")
    fields, state_dict = convert_visual_bert_state_dict(model.state_dict())
    known = set(GroundedVisualBertConfig.__dataclass_fields__) - {"model_type"}
    return {name: value for name, value in config.to_dict().items() if name in known} | {
        name: value for name, value in fields.items() if name != "num_attention_heads"
    }, state_dict


def convert_checkpoint(
    checkpoint: str | Path,
    output_dir: str | Path,
    tokenizer: str = "google-bert/bert-base-uncased",
    backbone: str | None = None,
    image_size: int = 224,
    dtype: torch.dtype | None = None,
    name: str | None = None,
) -> None:
    """
    Write `output_dir` from published VisualBERT weights: all of it, or nothing if anything fails.

    Args:
        checkpoint (`str` or `Path`):
            A folder or a name on the Hub of a transformers VisualBERT; or a `.safetensors` file or a state dict of the
            authors', which is read with `weights_only=True`.
        output_dir (`str` or `Path`):
            Folder to create. It gets the weights, the configuration, the processor, the model's own code and a card.
        tokenizer (`str`, *optional*, defaults to `"google-bert/bert-base-uncased"`):
            Folder or name on the Hub of the tokenizer, which published VisualBERTs come without.
        backbone (`str`, *optional*):
            Folder or name on the Hub of a network to see pixels with.
        image_size (`int`, *optional*, defaults to 224):
            Width and height that images are resized to.
        dtype (`torch.dtype`, *optional*):
            Precision to store. That of the weights when not given.
        name (`str`, *optional*):
            What the card calls the model: `user/name` on the Hub. The folder when not given.
    """
    with new_folder(output_dir) as folder:
        fields, state_dict = read_checkpoint(checkpoint)
        tokenizer = load_part(AutoTokenizer, tokenizer)
        if len(tokenizer) > fields["vocab_size"]:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} words and {checkpoint} only {fields['vocab_size']}: name the one "
                "it was trained with by `--tokenizer`"
            )
        fields |= {"pad_token_id": tokenizer.pad_token_id, "mask_token_id": tokenizer.mask_token_id}
        size = {"height": image_size, "width": image_size}
        if backbone is not None:
            image_processor = load_part(AutoImageProcessor, backbone, size=size, do_center_crop=False)
            network = load_backbone(backbone)
            fields |= {"backbone_config": network.config, "region_feature_size": network.channels[-1]}
        else:
            image_processor = CLIPImageProcessorPil(
                size=size, do_center_crop=False, image_mean=IMAGENET_DEFAULT_MEAN, image_std=IMAGENET_DEFAULT_STD
            )
        model = GroundedVisualBertModel(GroundedVisualBertConfig(**fields))
        model.load_state_dict(state_dict, strict=False)  # the region encoder is new
        if backbone is not None:
            new = backbone_of(model)
            assert new is not None  # of `backbone_config`
            new.load_state_dict(network.state_dict())
        model.to(dtype or next(iter(state_dict.values())).dtype)
        check_weights(checkpoint, model, missing=())

        source = Path(checkpoint).name if Path(checkpoint).exists() else str(checkpoint)
        eyes = (
            "" if backbone is None else f", and of {backbone}, which it sees through by a projection yet to be trained"
        )
        run = Run(converted_from=f"VisualBERT's {source}{eyes}")
        model_card(model, name or str(output_dir), run).save(folder / "README.md")
        model.save_pretrained(folder)
        GroundedVisualBertProcessor(image_processor, tokenizer).save_pretrained(folder)


def main(args: Sequence[str] | None = None) -> None:
    parser = converter_parser(
        "hf_vg.hub.convert_visual_bert",
        "Convert published VisualBERT weights to a folder for `from_pretrained`.",
        "folder or name on the Hub of a transformers VisualBERT, or the authors' weights (.th)",
    )
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased", help="default: %(default)s")
    parser.add_argument("--backbone", help="network to see pixels with: a folder, or a model of the Hub")
    parser.add_argument("--image_size", type=int, default=224, help="of images; default: %(default)s")
    args = parser.parse_args(args)
    with told_in_one_sentence(args.debug):
        convert_checkpoint(
            args.checkpoint,
            args.output_dir,
            tokenizer=args.tokenizer,
            backbone=args.backbone,
            image_size=args.image_size,
            dtype=getattr(torch, args.dtype) if args.dtype else None,
            name=args.push_to_hub,
        )
        if args.push_to_hub is not None:
            upload_folder(args.output_dir, args.push_to_hub, commit_message="Convert VisualBERT")


if __name__ == "__main__":
    main()
