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
from transformers.image_utils import ImageInput
from transformers.processing_utils import Unpack

from ..processing import ImageAndTextProcessor, PaddedTextKwargs


class SelfAttnGroundedEncoderProcessor(ImageAndTextProcessor):
    __doc__ = ImageAndTextProcessor.__doc__

    def __call__(
        self,
        images: ImageInput | None = None,
        text: str | list[str] | None = None,
        text_target: str | list[str] | None = None,
        **kwargs: Unpack[PaddedTextKwargs],
    ) -> BatchFeature:
        r"""
        Makes `pixel_values` from `images`, `input_ids` and `attention_mask` from the sentences in `text`, and
        `labels`, padded with -100, from those in `text_target`. Sentences are cut to the tokenizer's
        `model_max_length` with the end token kept.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*), text_target (`str` or `list[str]`, *optional*):
                Sentences to encode, and those to predict from them.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`; or `text_kwargs` and `images_kwargs` that hold them.

        Returns:
            [`BatchFeature`]: What the model is called with.
        """
        if text_target is None:
            return super().__call__(images, text, **kwargs)
        text_kwargs, _ = self.split_kwargs(kwargs)
        features = {} if images is None and text is None else super().__call__(images, text, **kwargs)
        labels = self.labels("text_target", text_target, text_kwargs)
        return BatchFeature({**features, "labels": labels}, tensor_type=text_kwargs.get("return_tensors"))

    @property
    def model_input_names(self) -> list[str]:
        return [*super().model_input_names, "labels"]


__all__ = ["SelfAttnGroundedEncoderProcessor"]
