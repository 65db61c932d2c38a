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
"""`pipeline("image-to-text")`, which transformers 5 took away."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import BatchFeature, GenerationConfig
from transformers.pipelines.base import Pipeline

from ..data.images import TIMEOUT, open_image
from ..interpretation.word_attention import attention_maps, attention_of_generated


class ImageToTextPipeline(Pipeline):
    r"""
    Writes captions for images, with any model that `AutoModelForImageTextToText` loads.

    Example:

    ```python
    >>> import hf_vg
    >>> from transformers import pipeline

    >>> captioner = pipeline("image-to-text", model="me/show-attend-tell-flickr8k")
    >>> captioner("dog.jpg")
    [{'generated_text': 'a dog runs through the grass'}]
    ```
    """

    # Optional, each of them: some checkpoints have a processor, others a tokenizer and an image processor.
    _load_processor = None
    _load_tokenizer = None
    _load_image_processor = None
    _load_feature_extractor = False
    _load_video_processor = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=50)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        missing = [name for name in ("image_processor", "tokenizer") if getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"No {' and no '.join(missing)} could be loaded for {self.model.name_or_path or 'the model'!r}. Save "
                "its processor beside it (`processor.save_pretrained(folder)`), or give the pipeline `processor=`."
            )

    def _sanitize_parameters(
        self,
        generate_kwargs: dict[str, Any] | None = None,
        return_attention: bool | str | None = None,
        timeout: float | None = None,
        prompt: str | None = None,
        **generation_parameters: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        repeated = sorted(generation_parameters.keys() & (generate_kwargs or {}).keys())
        if repeated:
            raise ValueError(f"{repeated} given twice, once in `generate_kwargs` and once directly. Use only one.")
        forward_parameters: dict[str, Any] = {}
        if generate_kwargs is not None or generation_parameters:
            forward_parameters["generate_kwargs"] = {**(generate_kwargs or {}), **generation_parameters}
        if return_attention is not None:
            if return_attention not in (True, False, "heads"):
                raise ValueError(f'`return_attention` must be True, False or "heads", got {return_attention!r}.')
            forward_parameters["return_attention"] = return_attention
        preprocess_parameters = {"timeout": timeout, "prompt": prompt}
        return {name: v for name, v in preprocess_parameters.items() if v is not None}, forward_parameters, {}

    def __call__(self, images: Any, **kwargs: Any) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        r"""
        Args:
            images (`str`, `Path`, `bytes`, `PIL.Image.Image`, `np.ndarray`, or several of them):
                A path, an http(s) address, the bytes of a file, base64 text, or an image; or a list, a column of a
                dataset, a generator or a `KeyDataset` of these.
            generate_kwargs (`dict`, *optional*):
                Passed to `generate`. Its keys may also be given directly, as in `max_new_tokens=20`, `num_beams=5`.
            return_attention (`bool` or `"heads"`, *optional*, defaults to `False`):
                Whether to add where the model looked while it wrote each word; `"heads"` adds the same head by head.
            prompt (`str`, *optional*):
                The first words of the caption, which the model continues.
            batch_size (`int`, *optional*, defaults to 1):
                Number of images per forward pass, when several are given.
            timeout (`float`, *optional*, defaults to 10.0):
                The most seconds that the download from an address may take.

        Returns:
            For one image a list with one dictionary per generated sequence; for several a list of such lists.

            - **generated_text** (`str`) -- The caption.
            - **words** (`list[str]`), **attention** (`np.ndarray` of shape `(words, height, width)`) -- With
              `return_attention=True`: the caption's words, and for each a map that sums to 1, along the winning beam.
            - **head_attention** (`np.ndarray` of shape `(layers, heads, words, height, width)`) -- With
              `return_attention="heads"`: what `attention` is the mean of.
        """
        if isinstance(images, Sequence) and not isinstance(images, (str, bytes, list)):
            # A column of a dataset decodes an image when it is asked for it, so it is not made a list of images.
            return list(super().__call__(_Indexed(images), **kwargs)) if len(images) else []
        if isinstance(images, list) and not images:
            return []
        return super().__call__(images, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves the model, with its code if it is one of hf_vg's, and what prepares its inputs."""
        self.model.save_pretrained(save_directory, **kwargs)
        for part in [self.processor] if self.processor is not None else [self.tokenizer, self.image_processor]:
            part.save_pretrained(save_directory)

    def preprocess(self, image: Any, timeout: float = TIMEOUT, prompt: str | None = None) -> BatchFeature:
        image = open_image(image, timeout=timeout)
        if prompt is not None and self.processor is not None:
            return self.processor(images=image, text=prompt, return_tensors="pt").to(self.dtype)
        inputs = self.image_processor(images=image, return_tensors="pt").to(self.dtype)
        if prompt is not None:
            tokens = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
            inputs["decoder_input_ids"] = tokens["input_ids"]
        return inputs

    def _forward(
        self,
        model_inputs: Mapping[str, torch.Tensor],
        generate_kwargs: dict[str, Any] | None = None,
        return_attention: bool | str = False,
    ) -> dict[str, torch.Tensor]:
        batch_size = model_inputs["pixel_values"].shape[0]
        overrides = {"return_dict_in_generate": bool(return_attention)}
        if return_attention:
            overrides["output_attentions"] = True
        settings = self._prepare_generate_kwargs(generate_kwargs or {}, **overrides)
        try:
            outputs = self.model.generate(**model_inputs, **settings)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            # What a checkpoint or a user asks of `generate` is not checked before it fails.
            raise ValueError(
                f"{self.model.name_or_path} cannot write a caption with these settings: {type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0][:200]}"
            ) from error
        sequences = outputs.sequences if return_attention else outputs
        # One row per image, so that a batch is taken apart rightly when there are several sequences per image.
        result = {"sequences": sequences.view(batch_size, -1, sequences.shape[-1])}
        if return_attention:
            attention = attention_of_generated(outputs, by_head=True)
            maps = attention_maps(attention, *model_inputs["pixel_values"].shape[-2:])
            if return_attention == "heads":
                result["head_maps"] = maps.view(batch_size, -1, *maps.shape[1:])
            maps = maps.mean(dim=(1, 2))
            result["maps"] = maps.view(batch_size, -1, *maps.shape[1:])
        return result

    def postprocess(self, model_outputs: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        records = []
        special_ids = set(self.tokenizer.all_special_ids)
        for row, ids in enumerate(model_outputs["sequences"][0].tolist()):
            record = {"generated_text": self.tokenizer.decode(ids, skip_special_tokens=True).strip()}
            if "maps" in model_outputs:
                maps = model_outputs["maps"][0, row]
                ids = ids[len(ids) - len(maps) :]  # without the prompt
                kept = [position for position, id in enumerate(ids) if id not in special_ids]
                record["words"] = [self.tokenizer.decode([ids[position]]).strip() for position in kept]
                record["attention"] = maps[kept].float().numpy()
            if "head_maps" in model_outputs:
                record["head_attention"] = model_outputs["head_maps"][0, row][:, :, kept].float().numpy()
            records.append(record)
        return records


class _Indexed(torch.utils.data.Dataset):
    """Makes the pipeline walk through a sequence item by item."""

    def __init__(self, items: Sequence):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]
