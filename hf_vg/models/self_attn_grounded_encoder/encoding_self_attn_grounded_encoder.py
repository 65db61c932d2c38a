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
"""`encode`, which turns sentences into vectors, and the files that sentence-transformers needs to load the model."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging


# These files let `SentenceTransformer(folder)` load the model and use `pooler_output` as the sentence vector.
SENTENCE_TRANSFORMERS_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
    },
}


class SentenceEncodingMixin:
    """Adds `encode` to a [`PreTrainedModel`] whose `base_model` returns sentence vectors as `pooler_output`."""

    def save_pretrained(
        self, save_directory: str | os.PathLike, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        r"""
        Saves the model. If you save its processor too, `SentenceTransformer(save_directory)` can load the folder.

        Args:
            save_directory (`str` or `os.PathLike`):
                The folder to write to.
            is_main_process (`bool`, *optional*, defaults to `True`):
                Whether this process writes the files that are not weights.
            args (*optional*):
                The other positional arguments of [`~transformers.PreTrainedModel.save_pretrained`].
            kwargs (*optional*):
                The other keyword arguments of [`~transformers.PreTrainedModel.save_pretrained`].
        """
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)  # type: ignore[misc]
        if is_main_process and os.path.isdir(save_directory):
            for name, content in SENTENCE_TRANSFORMERS_FILES.items():
                Path(save_directory, name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @torch.no_grad()
    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        show_progress_bar: bool = True,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        device: str | torch.device | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
    ) -> np.ndarray | torch.Tensor | list[torch.Tensor]:
        r"""
        Encodes sentences as vectors. The arguments have the names of `SentenceTransformer.encode`.

        Args:
            sentences (`str` or `Sequence[str]`):
                One sentence or several.
            batch_size (`int`, *optional*, defaults to 64):
                Number of sentences per batch.
            show_progress_bar (`bool`, *optional*, defaults to `True`):
                Whether to show a progress bar if encoding takes more than two seconds.
            normalize_embeddings (`bool`, *optional*, defaults to `False`):
                Whether to scale vectors to length 1.
            convert_to_tensor (`bool`, *optional*, defaults to `False`):
                Whether to return a `torch.Tensor` on the model's device instead of a `np.ndarray`.
            convert_to_numpy (`bool`, *optional*, defaults to `True`):
                Whether to return a `np.ndarray`. If both are `False`, a list of tensors is returned.
            device (`str` or `torch.device`, *optional*):
                The device to encode on. The model is moved there.
            tokenizer ([`PreTrainedTokenizerFast`], *optional*):
                The tokenizer. Defaults to the one of the checkpoint that the model was loaded from.

        Returns:
            `np.ndarray` or `torch.Tensor` of shape `(sentences, sentence_size)`: The vectors in the order of the
            sentences, or one vector of shape `(sentence_size,)` for a `str`.

        Example:

        ```python
        >>> from hf_vg import SelfAttnGroundedEncoderConfig, SelfAttnGroundedEncoderModel, train_word_tokenizer

        >>> tokenizer = train_word_tokenizer(["a red circle", "a blue square"])
        >>> model = SelfAttnGroundedEncoderModel(
        ...     SelfAttnGroundedEncoderConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16)
        ... )
        >>> model.encode(["a red circle", "a square"], tokenizer=tokenizer).shape
        (2, 32)
        ```
        """
        model: Any = self
        if device is not None:
            model.to(device)
        batch = [sentences] if isinstance(sentences, str) else list(sentences)
        for index, sentence in enumerate(batch):
            if not isinstance(sentence, str):
                raise TypeError(f"Sentence {index} must be a string, got {type(sentence).__name__}: {sentence!r}.")
            if not sentence.isascii() and any("\ud800" <= char <= "\udfff" for char in sentence):
                raise ValueError(f"Sentence {index} holds half of a surrogate pair: {sentence!a:.80}.")
        ids = (tokenizer or self._checkpoint_tokenizer())(batch, truncation=True)["input_ids"] if batch else []
        # Sorted by length to reduce padding, longest first: if memory runs out, it does so at once.
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        vectors = torch.empty(len(ids), model.config.sentence_size, dtype=model.dtype, device=model.device)
        starts = range(0, len(order), batch_size)
        for start in logging.tqdm(starts, desc="Encoding", unit="batch", disable=not show_progress_bar, delay=2):
            rows = order[start : start + batch_size]
            length = max(len(ids[rows[0]]), 1)
            input_ids = torch.full((len(rows), length), model.config.pad_token_id)
            mask = torch.zeros_like(input_ids)
            for row, index in enumerate(rows):
                input_ids[row, : len(ids[index])] = torch.tensor(ids[index], dtype=torch.long)
                mask[row, : len(ids[index])] = 1
            outputs = model.base_model(input_ids.to(model.device), mask.to(model.device), return_dict=True)
            vectors[rows] = outputs.pooler_output
        if normalize_embeddings:
            vectors = nn.functional.normalize(vectors, dim=-1)
        if isinstance(sentences, str):
            vectors = vectors[0]
        if convert_to_tensor:
            return vectors
        if convert_to_numpy:
            return vectors.float().cpu().numpy()
        return vectors if isinstance(sentences, str) else list(vectors)

    def _checkpoint_tokenizer(self) -> PreTrainedTokenizerFast:
        if getattr(self, "_tokenizer", None) is None:
            checkpoint = self.name_or_path  # type: ignore[attr-defined]
            if not checkpoint:
                raise ValueError(
                    "This model was not loaded from a checkpoint, so its tokenizer is not known. Pass a `tokenizer` "
                    "to `encode`."
                )
            # `AutoTokenizer` would ask for `trust_remote_code` again.
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        return self._tokenizer


__all__ = ["SentenceEncodingMixin"]
