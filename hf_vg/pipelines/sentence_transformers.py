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
"""A grounded sentence encoder as a module of sentence-transformers, which MTEB and much else can drive."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerFast


try:
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    raise ImportError(
        "`GroundedSentenceEncoder` needs sentence-transformers: `pip install hf-vg[sentences]`."
    ) from error

from ..models.self_attn_grounded_encoder import SelfAttnGroundedEncoderModel


class GroundedSentenceEncoder(InputModule):
    r"""
    Gives `SentenceTransformer` the vectors of a [`SelfAttnGroundedEncoderModel`]:

    ```python
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=[GroundedSentenceEncoder.load("outputs/grounded_encoder_scenes")])
    model.encode(["a dog runs through the grass"])
    ```

    Args:
        model ([`SelfAttnGroundedEncoderModel`]):
            The encoder.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Its tokenizer.
    """

    modalities = ["text"]

    def __init__(self, model: SelfAttnGroundedEncoderModel, tokenizer: PreTrainedTokenizerFast):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs) -> dict[str, torch.Tensor]:
        if prompt:
            inputs = self._prepend_prompt(inputs, prompt)
        encoded = self.tokenizer(list(inputs), truncation=True, padding=True, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def forward(self, features: dict[str, Any], **kwargs) -> dict[str, Any]:
        outputs = self.model(features["input_ids"], features["attention_mask"])
        features["token_embeddings"] = outputs.last_hidden_state
        features["sentence_embedding"] = outputs.pooler_output
        return features

    def get_embedding_dimension(self) -> int:
        return self.model.config.sentence_size

    @property
    def max_seq_length(self) -> int:
        return self.tokenizer.model_max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int):
        self.tokenizer.model_max_length = value

    def save(self, output_path: str, *args, **kwargs) -> None:
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs) -> "GroundedSentenceEncoder":
        """From a checkpoint of the encoder, as its recipe and `SentenceTransformer.save_pretrained` write it."""
        hub = {name: kwargs[name] for name in ("token", "revision", "local_files_only") if kwargs.get(name)}
        return cls(
            SelfAttnGroundedEncoderModel.from_pretrained(model_name_or_path, subfolder=subfolder, **hub),
            PreTrainedTokenizerFast.from_pretrained(model_name_or_path, subfolder=subfolder, **hub),
        )
