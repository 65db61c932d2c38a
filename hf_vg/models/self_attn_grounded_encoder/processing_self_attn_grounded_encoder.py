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
"""Processor class for SelfAttnGroundedEncoder."""

from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin


class SelfAttnGroundedEncoderProcessor(ProcessorMixin):
    r"""
    Wraps an image processor and a word-level tokenizer that ends each sentence with its end token.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Makes `input_ids`, `attention_mask` and `labels`. See [`hf_vg.data.train_word_tokenizer`].
    """

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        super().__init__(image_processor, tokenizer, **kwargs)

    def __call__(
        self,
        images=None,
        text: str | list[str] | None = None,
        text_target: str | list[str] | None = None,
        **kwargs,
    ) -> BatchFeature:
        r"""
        Makes `pixel_values` from `images`, `input_ids` and `attention_mask` from the sentences in `text`, and
        `labels`, padded with -100, from those in `text_target`. Sentences are cut to the tokenizer's
        `model_max_length` with the end token kept.

        Returns:
            [`BatchFeature`]: What the model is called with.
        """
        if images is None and text is None and text_target is None:
            raise ValueError("Give `images`, `text`, `text_target` or several of them.")
        return_tensors = kwargs.pop("return_tensors", None)
        features = {}
        if images is not None:
            features.update(self.image_processor(images, return_tensors=return_tensors, **kwargs))
        if text is not None:
            ids = self._ids("text", text)
            features["input_ids"] = _pad(ids, self.tokenizer.pad_token_id)
            features["attention_mask"] = _pad([[1] * len(row) for row in ids], 0)
        if text_target is not None:
            features["labels"] = _pad(self._ids("text_target", text_target), -100)
        return BatchFeature(features, tensor_type=return_tensors)

    def _ids(self, name: str, text: str | list[str]) -> list[list[int]]:
        sentences = [text] if isinstance(text, str) else list(text)
        for index, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                raise TypeError(f"`{name}[{index}]` must be a string, got {type(sentence).__name__}: {sentence!r}.")
        return self.tokenizer(sentences, truncation=True)["input_ids"]

    @property
    def model_input_names(self) -> list[str]:
        return [*self.image_processor.model_input_names, "input_ids", "attention_mask", "labels"]


def _pad(rows: list[list[int]], value: int) -> list[list[int]]:
    longest = max((len(row) for row in rows), default=0)
    return [row + [value] * (longest - len(row)) for row in rows]


__all__ = ["SelfAttnGroundedEncoderProcessor"]
