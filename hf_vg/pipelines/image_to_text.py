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
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import GenerationConfig
from transformers.pipelines.base import Pipeline

from ..data.images import TIMEOUT, open_image
from ..data.prompts import caption_inputs, is_asked
from ..interpretation.deletion import deletion_summary, deletion_test
from ..interpretation.families import family_of, tiles_of_images
from ..interpretation.recording import record_attention
from ..interpretation.word_maps import word_maps


class ImageToTextPipeline(Pipeline):
    r"""
    Writes captions for images, with any model that `AutoModelForImageTextToText` loads: captioners, and models that
    chat about images.

    Example:

    ```python
    >>> import hf_vg
    >>> from transformers import pipeline

    >>> captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> (caption,) = captioner(hf_vg.examples.scenes()[0]["image"], return_attention=True)
    >>> len(caption["words"]) == len(caption["attention"]) == len(caption["generated_text"].split())
    True

    >>> captioner = pipeline("image-to-text", model="Qwen/Qwen2.5-VL-3B-Instruct")  # doctest: +SKIP
    >>> captioner("dog.jpg", prompt="What is the dog doing?", return_attention=True)  # doctest: +SKIP
    [{'generated_text': 'It is running.', 'words': ['It', 'is', 'running', '.'], 'attention': array(...)}]
    ```
    """

    # All are optional: some checkpoints have a processor, others a tokenizer and an image processor.
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
        test_deletion: bool | None = None,
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
            if return_attention:
                family_of(self.model)
        if prompt is not None:
            forward_parameters["prompt"] = prompt
        if test_deletion is not None:
            forward_parameters["test_deletion"] = test_deletion
        return {} if timeout is None else {"timeout": timeout}, forward_parameters, {}

    def __call__(self, images: Any, **kwargs: Any) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        r"""
        Captions images.

        Args:
            images (`str`, `Path`, `bytes`, `PIL.Image.Image`, `np.ndarray`, or several of them):
                A path, an http(s) address, the bytes of a file, base64 text, or an image; or a list, a column of a
                dataset, a generator or a `KeyDataset` of these.
            generate_kwargs (`dict`, *optional*):
                Passed to `generate`. Its keys may also be given directly, as in `max_new_tokens=20`, `num_beams=5`.
            return_attention (`bool` or `"heads"`, *optional*, defaults to `False`):
                Whether to add where the model looked while it wrote each word. `"heads"` adds the maps of each head.
            test_deletion (`bool`, *optional*, defaults to `False`):
                Whether to test each map that `return_attention` adds: see [`deletion_test`]. A caption of `n` words
                takes `5 * (6 + n) + 1` more passes over the image, 81 for ten words.
            prompt (`str`, *optional*):
                What the model is asked, by default to describe the image. It goes through the processor's chat
                template if there is one, and the caption is only the answer. Captioners that take no question (BLIP,
                GIT, encoder-decoders and ours) continue the prompt: it is the first words of the caption.
            batch_size (`int`, *optional*, defaults to 1):
                Number of images per forward pass, when several are given.
            timeout (`float`, *optional*, defaults to 10.0):
                Maximum number of seconds for a download.

        Returns:
            For one image a list with one dictionary per generated sequence; for several a list of such lists.

            - **generated_text** (`str`) -- The caption.
            - **words** (`list[str]`), **attention** (`np.ndarray` of shape `(words, height, width)`) -- With
              `return_attention=True`: the words that the model wrote, and for each a map that sums to 1, along the
              winning beam. See [`word_maps`].
            - **head_attention** (`np.ndarray` of shape `(layers, heads, words, height, width)`) -- With
              `return_attention="heads"`: what `attention` is the mean of.
            - **deletion** (`dict`) -- With `test_deletion=True`: what [`deletion_test`] returns for this caption. A
              caption without words has none.
        """
        if isinstance(images, Sequence) and not isinstance(images, (str, bytes, list)):
            # A column of a dataset decodes images one by one. A list would hold all of them in memory.
            return list(super().__call__(_Indexed(images), **kwargs)) if len(images) else []
        if isinstance(images, list) and not images:
            return []
        return super().__call__(images, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves the model, with its code if it belongs to hf_vg, and its processor."""
        self.model.save_pretrained(save_directory, **kwargs)
        for part in [self.processor] if self.processor is not None else [self.tokenizer, self.image_processor]:
            part.save_pretrained(save_directory)

    def preprocess(self, image: Any, timeout: float = TIMEOUT) -> dict[str, Image.Image]:
        # The processor makes the batch in `_forward`, from all images at once.
        return {"image": open_image(image, timeout=timeout)}

    def _forward(
        self,
        model_inputs: Mapping[str, Any],
        prompt: str | None = None,
        generate_kwargs: dict[str, Any] | None = None,
        return_attention: bool | str = False,
        test_deletion: bool = False,
    ) -> dict[str, Any]:
        if test_deletion and not return_attention:
            raise ValueError("`test_deletion` tests the maps that `return_attention` adds. Set both.")
        is_batch = isinstance(model_inputs["image"], list)
        images = model_inputs["image"] if is_batch else [model_inputs["image"]]
        config = self.model.config
        inputs = caption_inputs(config, self.processor, images, prompt, self.tokenizer, self.image_processor)
        inputs = inputs.to(self.device, self.dtype)
        settings = self._prepare_generate_kwargs(generate_kwargs or {}, return_dict_in_generate=bool(return_attention))
        try:
            with record_attention(self.model) if return_attention else nullcontext() as record:
                outputs = self.model.generate(**inputs, **settings)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            # `generate` does not check the settings of a checkpoint or a user before it fails.
            raise ValueError(
                f"{self.model.name_or_path} cannot write a caption with these settings: {type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0][:200]}"
            ) from error
        sequences = outputs if record is None else outputs.sequences
        start = 0
        if is_asked(config, self.processor) and "input_ids" in inputs:
            prompts = inputs["input_ids"].repeat_interleave(len(sequences) // len(images), dim=0)
            if torch.equal(sequences[:, : prompts.shape[1]], prompts):
                start = prompts.shape[1]
        records = [
            {"generated_text": self.tokenizer.decode(ids, skip_special_tokens=True).strip()}
            for ids in sequences[:, start:].tolist()
        ]
        if record is not None:
            tiles = tiles_of_images(config, self.image_processor, images)
            found = word_maps(
                record, outputs, self.tokenizer, inputs, tiles=tiles, by_head=return_attention == "heads"
            )
            for caption, words in zip(records, found, strict=True):
                caption |= _described(words)
            if test_deletion and any(found):
                maps = [[(word, m.mean(dim=(0, 1)) if m.dim() == 4 else m) for word, m in words] for words in found]
                tested = deletion_test(self.model, self.tokenizer, inputs, outputs, maps, tiles=tiles)["words"]
                for number, caption in enumerate(records):
                    if own := [word for word in tested if word["sequence"] == number]:
                        caption["deletion"] = deletion_summary(own)
        each = len(records) // len(images)
        by_image = [records[first : first + each] for first in range(0, len(records), each)]
        return {"records": by_image if is_batch else by_image[0]}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, Any]]:
        return model_outputs["records"]


def _described(words: list[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """The words of a caption and their maps, `(height, width)` or `(layers, heads, height, width)`, as arrays."""
    maps = torch.stack([word_map for _, word_map in words], dim=-3).cpu().numpy() if words else np.zeros((0, 1, 1))
    described = {"words": [word for word, _ in words], "attention": maps}
    if maps.ndim == 5:
        described |= {"attention": maps.mean(axis=(0, 1)), "head_attention": maps}
    return described


class _Indexed(torch.utils.data.Dataset):
    """A sequence that the pipeline reads item by item."""

    def __init__(self, items: Sequence):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]
