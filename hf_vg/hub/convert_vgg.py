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
Convert torchvision's VGG weights (`.safetensors`, or a `.pth` state dict) to a folder for `from_pretrained`.

```bash
python -m hf_vg.hub.convert_vgg --checkpoint vgg19-dcbb9e9d.pth --output_dir vgg19
```

The variant is detected from the tensors. The dtype is kept unless you set `--dtype`. A file with torchvision's
classifier becomes a `VggForImageClassification`, and a file without it a `VggBackbone`. You can use both as
`--backbone` in the recipes. With the classifier you can also use fc6 and fc7: `--backbone_stage fc7`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from transformers import CLIPImageProcessorPil, PreTrainedModel
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, PILImageResampling

from ..errors import told_in_one_sentence
from ..loading import check_weights
from ..models.publishing import upload_folder
from ..models.vgg import VGG_DEPTHS, VggBackbone, VggConfig, VggForImageClassification
from .cards import Run, model_card
from .conversion import check_tensors, converter_parser, new_folder, read_state_dict, some


CLASSIFIER = {"vgg.fc6.linear": "classifier.0", "vgg.fc7.linear": "classifier.3", "classifier": "classifier.6"}


def _module_names(config: VggConfig) -> Iterator[tuple[str, str]]:
    """Yields the names of each convolution and normalization in `VggBackbone` and in torchvision."""
    position = 0  # index in torchvision's `features`, which counts ReLUs and pools too
    for stage_idx, depth in enumerate(config.depths):
        for layer_idx in range(depth):
            layer = f"stages.{stage_idx}.layers.{layer_idx}"
            yield f"{layer}.convolution", f"features.{position}"
            position += 1
            if config.use_batch_norm:
                yield f"{layer}.normalization", f"features.{position}"
                position += 1
            position += 1  # the ReLU
        position += 1  # the pool


def _empty_model(config: VggConfig) -> PreTrainedModel:
    model_class = VggBackbone if config.fc_size is None else VggForImageClassification
    with torch.device("meta"):
        return model_class(config)


def convert_torchvision_state_dict(
    state_dict: Mapping[str, torch.Tensor],
) -> tuple[VggConfig, dict[str, torch.Tensor]]:
    r"""
    Renames the tensors of a torchvision VGG to those of [`VggForImageClassification`], or of [`VggBackbone`] if there
    is no classifier.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`):
            The tensors of torchvision: `features.*`, and `classifier.*` if the file has them.

    Returns:
        `tuple[VggConfig, dict[str, torch.Tensor]]`: The config, detected from the tensors, and the state dict of the
        model. It shares memory with the original tensors.
    """
    tensors = dict(state_dict)
    num_convolutions = sum(name.startswith("features.") and tensor.ndim == 4 for name, tensor in tensors.items())
    variants = {sum(depths): variant for variant, depths in VGG_DEPTHS.items()}
    if num_convolutions not in variants:
        expected = ", ".join(f"{count} ({variant})" for count, variant in variants.items())
        raise ValueError(
            f"not a torchvision VGG: it has {num_convolutions} convolutions named `features.N.weight`, expected "
            f"{expected}. Its tensors are {some(sorted(tensors))}."
        )
    variant = variants[num_convolutions]
    use_batch_norm = any(name.endswith(".running_mean") for name in tensors)
    sizes = {}
    if any(name.startswith("classifier.") for name in tensors):
        # If a tensor is missing or has a wrong shape, use the published size: the check below reports the tensor.
        fc6, output = (tensors.get(f"classifier.{index}.weight", torch.empty(0)) for index in (0, 6))
        sizes = {
            "fc_size": len(fc6) if fc6.ndim == 2 and 0 < len(fc6) <= 65_536 else 4096,
            "num_labels": len(output) if output.ndim == 2 and 0 < len(output) <= 65_536 else 1000,
        }
    config = VggConfig(depths=VGG_DEPTHS[variant], use_batch_norm=use_batch_norm, **sizes)

    module_names = dict(_module_names(config))
    if sizes:
        module_names = {f"vgg.{name}": source_name for name, source_name in module_names.items()} | CLASSIFIER
    expected, names = {}, {}
    for name, tensor in _empty_model(config).state_dict().items():
        module_name, _, tensor_name = name.rpartition(".")
        source_name = f"{module_names[module_name]}.{tensor_name}"
        expected[source_name], names[source_name] = tensor, name
        if tensor_name == "num_batches_tracked":
            # torchvision's older batch-norm files lack this counter. torch's own loader also starts it at 0.
            tensors.setdefault(source_name, torch.zeros((), dtype=torch.long))
    batch_norm = "_bn" if use_batch_norm else ""
    check_tensors(
        tensors, expected, f"a torchvision {variant}{batch_norm}, although it has {num_convolutions} convolutions"
    )
    return config, {name: tensors[source_name] for source_name, name in names.items()}


def convert_checkpoint(
    checkpoint: str | Path, output_dir: str | Path, dtype: torch.dtype | None = None, name: str | None = None
) -> None:
    r"""
    Converts a file of torchvision's VGG weights to a folder. If anything fails, nothing is written.

    Args:
        checkpoint (`str` or `Path`):
            A `.safetensors` file, or a `.pth` file, which is read with `weights_only=True`.
        output_dir (`str` or `Path`):
            The folder to create. It gets the weights, the config, the image processor, the model's code and a card.
        dtype (`torch.dtype`, *optional*):
            The dtype to save. Defaults to the dtype of the file.
        name (`str`, *optional*):
            The name of the model in the card: `user/name` on the Hub. Defaults to the folder.
    """
    checkpoint = Path(checkpoint)
    with new_folder(output_dir) as folder:
        tensors = read_state_dict(checkpoint, expected="torchvision's VGG weights")
        try:
            config, state_dict = convert_torchvision_state_dict(tensors)
        except ValueError as error:
            raise ValueError(f"{checkpoint}: {error}") from error

        model = _empty_model(config)
        model.load_state_dict(state_dict, assign=True)
        model.to(dtype)
        check_weights(checkpoint, model, missing=())

        # torchvision's evaluation transform for these weights.
        image_processor = CLIPImageProcessorPil(
            size={"shortest_edge": 256},
            crop_size={"height": 224, "width": 224},
            resample=PILImageResampling.BILINEAR,
            image_mean=IMAGENET_DEFAULT_MEAN,
            image_std=IMAGENET_DEFAULT_STD,
        )
        run = Run(converted_from=f"torchvision's {checkpoint.name}")
        model_card(model, name or str(output_dir), run).save(folder / "README.md")
        model.save_pretrained(folder)
        image_processor.save_pretrained(folder)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the converter from the command line."""
    parser = converter_parser(
        "hf_vg.hub.convert_vgg",
        "Convert torchvision's VGG weights to a folder for `from_pretrained`.",
        "torchvision's weights, .safetensors or .pth",
    )
    args = parser.parse_args(args)
    dtype = getattr(torch, args.dtype) if args.dtype else None
    with told_in_one_sentence(args.debug):
        convert_checkpoint(args.checkpoint, args.output_dir, dtype, args.push_to_hub)
        if args.push_to_hub is not None:
            upload_folder(args.output_dir, args.push_to_hub, commit_message="Convert torchvision's VGG")


if __name__ == "__main__":
    main()
