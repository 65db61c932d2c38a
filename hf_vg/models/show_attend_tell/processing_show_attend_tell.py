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
"""Processor class for ShowAttendTell."""

from ..processing import CaptionProcessor


class ShowAttendTellProcessor(CaptionProcessor):
    r"""
    Prepares images and captions for a [`ShowAttendTellForConditionalGeneration`].

    Args:
        image_processor ([`BaseImageProcessor`]):
            Turns images into `pixel_values`.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Turns captions into `labels` and `decoder_input_ids`. You can train one with
            [`hf_vg.train_word_tokenizer`].

    Example:

    ```python
    >>> from PIL import Image
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import ShowAttendTellProcessor, train_word_tokenizer

    >>> tokenizer = train_word_tokenizer(["a red circle", "a blue square"])
    >>> processor = ShowAttendTellProcessor(ViTImageProcessorPil(), tokenizer)
    >>> inputs = processor(images=Image.new("RGB", (64, 48)), text="a red circle", return_tensors="pt")
    >>> {name: list(tensor.shape) for name, tensor in inputs.items()}
    {'pixel_values': [1, 3, 224, 224], 'decoder_input_ids': [1, 4], 'labels': [1, 4]}
    ```
    """


__all__ = ["ShowAttendTellProcessor"]
