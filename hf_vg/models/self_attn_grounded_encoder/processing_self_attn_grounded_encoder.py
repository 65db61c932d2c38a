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
    r"""
    Prepares sentences, target captions and images for a [`SelfAttnGroundedEncoderForPreTraining`].

    Args:
        image_processor ([`BaseImageProcessor`]):
            Turns images into `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Turns sentences into `input_ids` and `attention_mask`, and target captions into `labels`. You can train one
            with [`hf_vg.train_word_tokenizer`].

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import SelfAttnGroundedEncoderProcessor, train_word_tokenizer

    >>> tokenizer = train_word_tokenizer(["a red circle", "a round red thing"])
    >>> processor = SelfAttnGroundedEncoderProcessor(ViTImageProcessorPil(), tokenizer)
    >>> inputs = processor(text=["a red circle"], text_target=["a round red thing"], return_tensors="pt")
    >>> {name: list(tensor.shape) for name, tensor in inputs.items()}
    {'input_ids': [1, 4], 'attention_mask': [1, 4], 'labels': [1, 5]}
    ```
    """

    def __call__(
        self,
        images: ImageInput | None = None,
        text: str | list[str] | None = None,
        text_target: str | list[str] | None = None,
        **kwargs: Unpack[PaddedTextKwargs],
    ) -> BatchFeature:
        r"""
        Turns images into `pixel_values`, sentences into `input_ids` and `attention_mask`, and target captions into
        `labels`, padded with -100.

        Sentences longer than the tokenizer's `model_max_length` are truncated, but keep their end token.

        Args:
            images (`PIL.Image.Image`, `np.ndarray`, `torch.Tensor` or a list of them, *optional*):
                The images.
            text (`str` or `list[str]`, *optional*):
                The sentences to encode.
            text_target (`str` or `list[str]`, *optional*):
                The captions to predict from them.
            kwargs (*optional*):
                Arguments of the tokenizer and of the image processor, such as `padding`, `max_length`, `size` and
                `return_tensors`. You can also group them in `text_kwargs` and `images_kwargs`.

        Returns:
            [`BatchFeature`]: The inputs of the model.
        """
        if text_target is None:
            return super().__call__(images, text, **kwargs)
        text_kwargs, _ = self.split_kwargs(kwargs)
        features = {} if images is None and text is None else super().__call__(images, text, **kwargs)
        labels = self.labels("text_target", text_target, text_kwargs)
        return BatchFeature({**features, "labels": labels}, tensor_type=text_kwargs.get("return_tensors"))

    @property
    def model_input_names(self) -> list[str]:
        """Names of the model inputs that this processor makes."""
        return [*super().model_input_names, "labels"]


__all__ = ["SelfAttnGroundedEncoderProcessor"]
