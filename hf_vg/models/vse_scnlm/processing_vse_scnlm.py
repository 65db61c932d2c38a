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
"""Processor class for VseScnlm."""

from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import Unpack

from ..processing import ImageAndTextProcessor, PaddedTextKwargs


class VseScnlmProcessor(ImageAndTextProcessor):
    r"""
    Wraps an image processor and a word-level tokenizer that ends each sentence with its end token.

    Args:
        image_processor ([`BaseImageProcessor`]):
            Makes `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Makes `input_ids`. See [`hf_vg.data.train_word_tokenizer`].
    """

    def __call__(
        self, images=None, text: str | list[str] | None = None, **kwargs: Unpack[PaddedTextKwargs]
    ) -> BatchFeature:
        r"""
        Makes `pixel_values` from `images`, and `input_ids` and `attention_mask` from the sentences in `text`: padded
        to the longest, and cut to the tokenizer's `model_max_length` with the end token kept.

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
            features.update(self.tokenize("text", text, text_kwargs))
        return BatchFeature(features, tensor_type=text_kwargs.get("return_tensors"))

    @property
    def model_input_names(self) -> list[str]:
        return [*self.image_processor.model_input_names, "input_ids", "attention_mask"]


__all__ = ["VseScnlmProcessor"]
