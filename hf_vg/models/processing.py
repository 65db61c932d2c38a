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
"""What processors share: the standard keyword arguments, batches of texts, and captions as labels."""

import os
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import ImageInput
from transformers.processing_utils import ImagesKwargs, ProcessingKwargs, ProcessorMixin, TextKwargs, Unpack

from .publishing import PublishedProcessorMixin


# A processor that takes other texts than `text` names them in its signature; the last two are for chat models.
_OTHER_TEXTS = {"text_pair", "text_target", "text_pair_target"}
_ONLY_CHAT = {"return_mm_token_type_ids", "return_text_replacement_offsets"}


class PaddedTextKwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # a `TypedDict`
    """By default texts are padded to the longest, and cut to the tokenizer's `model_max_length`."""

    _defaults = {"text_kwargs": {"padding": True, "truncation": True, "return_token_type_ids": False}}


class PaddedPairKwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # a `TypedDict`
    """The same for pairs of texts, whose tokens have a type. The longer text of a pair is cut first."""

    _defaults = {"text_kwargs": {"padding": True, "truncation": "longest_first"}}


class ImageAndTextProcessor(PublishedProcessorMixin, ProcessorMixin):
    r"""
    Wraps an image processor and a tokenizer, called with the standard keyword arguments.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Makes `input_ids` and `attention_mask`. See [`hf_vg.data.train_word_tokenizer`].
    """

    valid_processor_kwargs = PaddedTextKwargs

    def __init__(
        self, image_processor: Any | None = None, tokenizer: PreTrainedTokenizerBase | None = None, **kwargs: Any
    ):
        super().__init__(image_processor, tokenizer, **kwargs)

    def __call__(
        self, images: ImageInput | None = None, text: str | list[str] | None = None, **kwargs: Unpack[PaddedTextKwargs]
    ) -> BatchFeature:
        r"""
        Makes `pixel_values` from `images`, and `input_ids` and `attention_mask` from `text`: padded to the longest,
        and cut to the tokenizer's `model_max_length` with the end token kept.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                The sentences.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`; or `text_kwargs` and `images_kwargs` that hold them.

        Returns:
            [`BatchFeature`]: What the model is called with.
        """
        text_kwargs, images_kwargs = self.split_kwargs(kwargs)
        if images is None and text is None:
            raise ValueError("Give `images`, `text` or both.")
        features = {}
        if images is not None:
            features.update(self.image_processor(images, **images_kwargs))
        if text is not None:
            features.update(self.encode_text(text, text_kwargs))
        return BatchFeature(features, tensor_type=text_kwargs.get("return_tensors"))

    def encode_text(self, text: str | list[str], text_kwargs: dict[str, Any]) -> dict[str, list]:
        """What the model is given of a text."""
        return self.tokenize("text", text, text_kwargs)

    @property
    def model_input_names(self) -> list[str]:
        return [*self.image_processor.model_input_names, "input_ids", "attention_mask"]

    def save_pretrained(
        self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        # Else the tokenizer would be saved with the `max_length` of its last call, as a default from then on.
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        return super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def split_kwargs(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        The keyword arguments of a call, for the tokenizer and for the image processor. They are given directly or in
        `text_kwargs`, `images_kwargs` and `common_kwargs`. An argument that neither takes is an error.
        """
        known = {
            "text_kwargs": TextKwargs.__annotations__.keys() - _OTHER_TEXTS - _ONLY_CHAT,
            "images_kwargs": ImagesKwargs.__annotations__.keys() | self.image_processor.valid_kwargs.__annotations__,
        }
        # Callers that serve any processor, such as sentence-transformers, give the groups of all modalities.
        kwargs = {name: value for name, value in kwargs.items() if name not in ("audio_kwargs", "videos_kwargs")}
        known["common_kwargs"] = known["text_kwargs"] | known["images_kwargs"]
        for name, value in kwargs.items():
            for argument in value if name in known else (name,):
                if argument not in known.get(name, known["common_kwargs"]):
                    where = f" in `{name}`" if name in known else ""
                    raise TypeError(f"{type(self).__name__} got an unexpected argument {argument!r}{where}.")
        merged = self._merge_kwargs(
            self.valid_processor_kwargs, tokenizer_init_kwargs=self.tokenizer.init_kwargs, **kwargs
        )
        return merged["text_kwargs"], merged["images_kwargs"]

    def tokenize(self, name: str, text: Any, text_kwargs: dict[str, Any]) -> dict[str, list]:
        """What the tokenizer returns for one text or several. `name` is the argument that holds them, for errors."""
        texts = batched_text(name, text, text_kwargs.get("is_split_into_words"))
        return dict(self.tokenizer(texts, **{**text_kwargs, "return_tensors": None}))

    def labels(self, name: str, text: Any, text_kwargs: dict[str, Any]) -> list[list[int]]:
        """Token ids of one text or several, with -100 for padding."""
        encoded = self.tokenize(name, text, {**text_kwargs, "return_attention_mask": True})
        rows = zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
        return [[id if real else -100 for id, real in zip(*row, strict=True)] for row in rows]


class CaptionProcessor(ImageAndTextProcessor):
    r"""
    Wraps an image processor and a word-level tokenizer that ends each caption with its end token.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Makes `labels` and `decoder_input_ids`. See [`hf_vg.data.train_word_tokenizer`].
    """

    def __call__(
        self, images: ImageInput | None = None, text: str | list[str] | None = None, **kwargs: Unpack[PaddedTextKwargs]
    ) -> BatchFeature:
        r"""
        Makes `pixel_values` from `images`. From `text` it makes `labels`, padded with -100 and cut to the tokenizer's
        `model_max_length` with the end token kept, and `decoder_input_ids`: the start token and the text without its
        end. So one call serves both uses of a text:

        ```python
        >>> model(**processor(images=images, text=captions, return_tensors="pt")).loss  # captions to learn
        >>> model.generate(**processor(images=image, text="a dog", return_tensors="pt"))  # the start of a caption
        ```

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                Captions, or their beginnings. They may be K times as many as images, which K captions in a row share.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`; or `text_kwargs` and `images_kwargs` that hold them. With `add_special_tokens=False`
                the end token is not a label.

        Returns:
            [`BatchFeature`]: What the model is called with.
        """
        return super().__call__(images, text, **kwargs)

    def encode_text(self, text: str | list[str], text_kwargs: dict[str, Any]) -> dict[str, list]:
        eos, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        labels = self.labels("text", text, {**text_kwargs, "add_special_tokens": True})
        inputs = []
        for row in labels:
            previous = iter([eos, *(id for id in row if id != -100)])  # the end token also starts a caption
            inputs.append([pad if id == -100 else next(previous) for id in row])
        if text_kwargs.get("add_special_tokens") is False:
            labels = [[-100 if id == eos else id for id in row] for row in labels]
        return {"decoder_input_ids": inputs, "labels": labels}

    @property
    def model_input_names(self) -> list[str]:
        return [*self.image_processor.model_input_names, "decoder_input_ids", "labels"]


def batched_text(name: str, text: Any, is_split_into_words: bool | None = False) -> list:
    """One text or several as a list. `name` is the argument that holds them, for errors."""
    expected = list if is_split_into_words else str
    is_one = isinstance(text, str) or (expected is list and len(text) > 0 and isinstance(text[0], str))
    texts = [text] if is_one else list(text)
    for index, item in enumerate(texts):
        if not isinstance(item, expected):
            raise TypeError(f"`{name}[{index}]` must be a {expected.__name__}, got {type(item).__name__}: {item!r}.")
        if isinstance(item, str) and not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
            raise ValueError(f"`{name}[{index}]` holds half of a surrogate pair, and is no valid text: {item!a:.80}.")
    return texts


__all__ = ["CaptionProcessor", "ImageAndTextProcessor"]
