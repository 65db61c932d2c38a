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
Convert published VisualBERT weights to a folder for `from_pretrained`. The source is a transformers checkpoint (a
folder, or a name on the Hub such as `uclanlp/visualbert-vqa-coco-pre`), or a state dict of the authors
(`vqa_coco_pre_trained.th`).

```bash
python -m hf_vg.hub.convert_visual_bert --checkpoint uclanlp/visualbert-vqa-coco-pre \
    --backbone microsoft/resnet-50 --output_dir visualbert
accelerate launch --quiet recipes/train_vgp.py --checkpoint visualbert
```

The weights of the encoder are copied, and task heads are left out. VisualBERT itself takes the features of an object
detector. With `--backbone` the model takes pixels and boxes instead. The projection of their features is initialized
at random, so you have to train it.
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


# Parts of weight names in the authors' code, and in transformers.
RENAMED = (
    ("bert.bert.", "visual_bert."),
    ("token_type_embeddings_visual", "visual_token_type_embeddings"),
    ("position_embeddings_visual", "visual_position_embeddings"),
    ("embeddings.projection", "embeddings.visual_projection"),
)
# Matrices that determine the sizes of a model, by their names in transformers.
SIZES_FROM = (
    "embeddings.word_embeddings.weight",
    "embeddings.visual_projection.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "encoder.layer.0.intermediate.dense.weight",
)
HEAD_SIZE = 64  # in every published BERT and VisualBERT. The tensors do not determine it.


def convert_visual_bert_state_dict(
    state_dict: Mapping[str, torch.Tensor],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    r"""
    Renames the tensors of a VisualBERT to those of [`GroundedVisualBertModel`].

    Args:
        state_dict (`Mapping[str, torch.Tensor]`):
            The authors' tensors, `bert.bert.*`, or those of a transformers model, with or without the prefix
            `visual_bert.`.

    Returns:
        `tuple[dict, dict[str, torch.Tensor]]`: The config fields that the tensors determine, and the state dict of the
        model. It shares memory with the original tensors.
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
    # On the meta device: a few bytes of a file can claim sizes that fill the memory. The number of heads changes no
    # shape.
    with torch.device("meta"):
        model = GroundedVisualBertModel(GroundedVisualBertConfig(**fields | {"num_attention_heads": 1}))
    check_tensors(encoder, model.state_dict(), "a complete VisualBERT with the sizes of its embeddings")
    return fields, encoder


def read_checkpoint(checkpoint: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns the config fields and the encoder weights from a file, a folder or a model on the Hub."""
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
        raise ValueError(f"{checkpoint} is a {config.model_type}. Pass a VisualBERT checkpoint.")
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
    r"""
    Converts published VisualBERT weights to a folder. If anything fails, nothing is written.

    Args:
        checkpoint (`str` or `Path`):
            A transformers VisualBERT (a folder or a name on the Hub), a `.safetensors` file, or a state dict of the
            authors, which is read with `weights_only=True`.
        output_dir (`str` or `Path`):
            The folder to create. It gets the weights, the config, the processor, the model's code and a card.
        tokenizer (`str`, *optional*, defaults to `"google-bert/bert-base-uncased"`):
            The tokenizer: a folder or a name on the Hub. Published VisualBERT checkpoints do not contain one.
        backbone (`str`, *optional*):
            The backbone that encodes pixels: a folder or a name on the Hub.
        image_size (`int`, *optional*, defaults to 224):
            The width and height of images after resizing.
        dtype (`torch.dtype`, *optional*):
            The dtype to save. Defaults to the dtype of the weights.
        name (`str`, *optional*):
            The name of the model in the card: `user/name` on the Hub. Defaults to the folder.
    """
    with new_folder(output_dir) as folder:
        fields, state_dict = read_checkpoint(checkpoint)
        tokenizer = load_part(AutoTokenizer, tokenizer)
        if len(tokenizer) > fields["vocab_size"]:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} words, but {checkpoint} only has {fields['vocab_size']}. Pass "
                "the tokenizer that it was trained with as `--tokenizer`."
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
            assert new is not None  # the config has a `backbone_config`
            new.load_state_dict(network.state_dict())
        model.to(dtype or next(iter(state_dict.values())).dtype)
        check_weights(checkpoint, model, missing=())

        source = Path(checkpoint).name if Path(checkpoint).exists() else str(checkpoint)
        eyes = "" if backbone is None else f", and from {backbone} with a projection that is not trained yet"
        run = Run(converted_from=f"VisualBERT's {source}{eyes}")
        model_card(model, name or str(output_dir), run).save(folder / "README.md")
        model.save_pretrained(folder)
        GroundedVisualBertProcessor(image_processor, tokenizer).save_pretrained(folder)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the converter from the command line."""
    parser = converter_parser(
        "hf_vg.hub.convert_visual_bert",
        "Convert published VisualBERT weights to a folder for `from_pretrained`.",
        "a transformers VisualBERT (folder or name on the Hub), or the authors' weights (.th)",
    )
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased", help="default: %(default)s")
    parser.add_argument("--backbone", help="the backbone that encodes pixels: a folder, or a model on the Hub")
    parser.add_argument("--image_size", type=int, default=224, help="width and height of images; default: %(default)s")
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
