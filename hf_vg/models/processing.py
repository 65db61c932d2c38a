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
"""Shared by the processors: keyword arguments, batches of texts, and captions as labels."""

import os
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import ImageInput
from transformers.processing_utils import ImagesKwargs, ProcessingKwargs, ProcessorMixin, TextKwargs, Unpack

from .publishing import PublishedProcessorMixin


# Arguments that are no tokenizer options here: texts have their own parameters, and the others are for chat models.
_OTHER_TEXTS = {"text_pair", "text_target", "text_pair_target"}
_ONLY_CHAT = {"return_mm_token_type_ids", "return_text_replacement_offsets"}


class PaddedTextKwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # a `TypedDict`
    """Defaults: pad texts to the longest one, and truncate them to the tokenizer's `model_max_length`."""

    _defaults = {"text_kwargs": {"padding": True, "truncation": True, "return_token_type_ids": False}}


class PaddedPairKwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # a `TypedDict`
    """Defaults for pairs of texts: the same, with token types. The longer text of a pair is truncated first."""

    _defaults = {"text_kwargs": {"padding": True, "truncation": "longest_first"}}


class ImageAndTextProcessor(PublishedProcessorMixin, ProcessorMixin):
    r"""
    Prepares images and sentences for a model, with an image processor and a tokenizer.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Turns images into `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Turns sentences into `input_ids` and `attention_mask`. You can train one with
            [`hf_vg.train_word_tokenizer`].
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
        Turns images into `pixel_values`, and sentences into `input_ids` and `attention_mask`.

        Sentences are padded to the longest one. Sentences longer than the tokenizer's `model_max_length` are
        truncated, but keep their end token.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                The sentences.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`. You can also group them in `text_kwargs` and `images_kwargs`.

        Returns:
            [`BatchFeature`]: The inputs of the model.
        """
        text_kwargs, images_kwargs = self.split_kwargs(kwargs)
        if images is None and text is None:
            raise ValueError("Pass `images`, `text` or both.")
        features = {}
        if images is not None:
            features.update(self.image_processor(images, **images_kwargs))
        if text is not None:
            features.update(self.encode_text(text, text_kwargs))
        return BatchFeature(features, tensor_type=text_kwargs.get("return_tensors"))

    def encode_text(self, text: str | list[str], text_kwargs: dict[str, Any]) -> dict[str, list]:
        """Returns the inputs that the model needs for `text`."""
        return self.tokenize("text", text, text_kwargs)

    @property
    def model_input_names(self) -> list[str]:
        """Names of the model inputs that this processor makes."""
        return [*self.image_processor.model_input_names, "input_ids", "attention_mask"]

    def save_pretrained(
        self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        # Otherwise the `max_length` of the last call would be saved as the tokenizer's default.
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        return super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def split_kwargs(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        r"""
        Splits the keyword arguments of a call into those for the tokenizer and those for the image processor.

        Args:
            kwargs (`dict[str, Any]`):
                The arguments, given directly or grouped in `text_kwargs`, `images_kwargs` and `common_kwargs`.

        Returns:
            `tuple[dict, dict]`: The arguments of the tokenizer and of the image processor. An argument that neither
            of them takes raises a `TypeError`.
        """
        known = {
            "text_kwargs": TextKwargs.__annotations__.keys() - _OTHER_TEXTS - _ONLY_CHAT,
            "images_kwargs": ImagesKwargs.__annotations__.keys() | self.image_processor.valid_kwargs.__annotations__,
        }
        # Callers that work with any processor, such as sentence-transformers, pass the groups of all modalities.
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
        """Tokenizes one text or a list. `name` is the argument that holds the texts, for error messages."""
        texts = batched_text(name, text, text_kwargs.get("is_split_into_words"))
        return dict(self.tokenizer(texts, **{**text_kwargs, "return_tensors": None}))

    def labels(self, name: str, text: Any, text_kwargs: dict[str, Any]) -> list[list[int]]:
        """Returns the token ids of one text or a list, with -100 for padding."""
        encoded = self.tokenize(name, text, {**text_kwargs, "return_attention_mask": True})
        rows = zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
        return [[id if real else -100 for id, real in zip(*row, strict=True)] for row in rows]


class CaptionProcessor(ImageAndTextProcessor):
    r"""
    Prepares images and captions for a captioner, with an image processor and a word-level tokenizer.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Turns images into `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Turns captions into `labels` and `decoder_input_ids`. It must add its end token after each caption. You
            can train one with [`hf_vg.train_word_tokenizer`].
    """

    def __call__(
        self, images: ImageInput | None = None, text: str | list[str] | None = None, **kwargs: Unpack[PaddedTextKwargs]
    ) -> BatchFeature:
        r"""
        Turns images into `pixel_values`, and captions into `labels` and `decoder_input_ids`.

        `labels` are the words of a caption and the end token, padded with -100. Captions longer than the tokenizer's
        `model_max_length` are truncated, but keep their end token. `decoder_input_ids` are the start token and the
        caption without its end token. So you can pass the result to `model(**inputs)` to train on the captions, and
        to `model.generate(**inputs)` to continue them.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                Captions, or their first words. With K captions per image, put the K captions of an image in a row.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`. You can also group them in `text_kwargs` and `images_kwargs`. With
                `add_special_tokens=False` the labels do not contain the end token.

        Returns:
            [`BatchFeature`]: The inputs of the model.
        """
        return super().__call__(images, text, **kwargs)

    def encode_text(self, text: str | list[str], text_kwargs: dict[str, Any]) -> dict[str, list]:
        """Returns `labels` and `decoder_input_ids` of one caption or a list."""
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
        """Names of the model inputs that this processor makes."""
        return [*self.image_processor.model_input_names, "decoder_input_ids", "labels"]


def batched_text(name: str, text: Any, is_split_into_words: bool | None = False) -> list:
    r"""
    Returns one text or several as a list, and checks that each is valid.

    Args:
        name (`str`):
            The argument that holds the texts, for error messages.
        text (`str` or `list`):
            One text or a list of texts.
        is_split_into_words (`bool`, *optional*, defaults to `False`):
            Whether each text is a list of words.

    Returns:
        `list`: The texts.
    """
    expected = list if is_split_into_words else str
    is_one = isinstance(text, str) or (expected is list and len(text) > 0 and isinstance(text[0], str))
    texts = [text] if is_one else list(text)
    for index, item in enumerate(texts):
        if not isinstance(item, expected):
            raise TypeError(f"`{name}[{index}]` must be a {expected.__name__}, got {type(item).__name__}: {item!r}.")
        if isinstance(item, str) and not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
            raise ValueError(
                f"`{name}[{index}]` holds half of a surrogate pair, so it is not valid text: {item!a:.80}."
            )
    return texts


__all__ = ["CaptionProcessor", "ImageAndTextProcessor"]
