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
"""Evaluates GroundedVisualBert: caption matching, paraphrases, attention, questions and referring expressions."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..models.attention_supervision import align_words, attention_rollout
from ..models.grounded_visual_bert.functional_grounded_visual_bert import repeat_images


@torch.no_grad()
def vgp_metrics(
    model: PreTrainedModel, rows: Sequence[Mapping[str, Any]], collator: Callable, batch_size: int = 32
) -> dict[str, float]:
    r"""
    Evaluates a [`GroundedVisualBertForVGP`].

    Args:
        model ([`PreTrainedModel`]):
            The model.
        rows (`Sequence[Mapping]`):
            Rows of [`make_caption_pairs`].
        collator (`Callable`):
            Batches the rows, see [`CaptionPairCollatorForVGP`].
        batch_size (`int`, *optional*, defaults to 32):
            Number of rows per batch.

    Returns:
        `dict[str, float]`: Accuracies from 0 to 1.

        - **identification** -- caption-image matching: which of the two captions match the image.
        - **paraphrase** -- the types of phrase pairs.
        - **word_attention** and **word_rollout** -- words of grounded phrases that attend most to one of their boxes,
          among all regions and the whole image: by the mean attention of the last layer, and by rollout.
        - **phrase_attention** and **phrase_rollout** -- phrases whose words together attend most to one of their
          boxes, among the boxes of the image.
        - **phrase_classifier** -- the same for the classifier of indirect supervision, if the model has one.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import GroundedVisualBertConfig, GroundedVisualBertForVGP, GroundedVisualBertProcessor, VggConfig
    >>> from hf_vg.data import (
    ...     CaptionPairCollatorForVGP,
    ...     RegionDataArguments,
    ...     load_grounded_images,
    ...     train_wordpiece_tokenizer,
    ...     training_texts,
    ...     vgp_rows,
    ... )

    >>> args = RegionDataArguments(num_train_images=2, num_eval_images=2)
    >>> images = load_grounded_images(args)
    >>> tokenizer = train_wordpiece_tokenizer(training_texts(images["train"]))
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> config = GroundedVisualBertConfig(
    ...     vocab_size=len(tokenizer),
    ...     hidden_size=32,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]),
    ...     region_feature_size=16,
    ... )
    >>> model = GroundedVisualBertForVGP(config)
    >>> rows = vgp_rows(args, images, model, processor, pairs_per_image=2)["train"]

    >>> from hf_vg.evaluation import vgp_metrics

    >>> metrics = vgp_metrics(model, rows, CaptionPairCollatorForVGP(processor, images["train"]))
    >>> sorted(metrics)[:2]
    ['identification', 'paraphrase']
    ```
    """
    right, total = Counter(), Counter()

    def add(name: str, is_right: torch.Tensor) -> None:
        right[name] += int(is_right.sum())
        total[name] += is_right.numel()

    for batch in _batches(model, rows, collator, batch_size, "Scoring caption pairs"):
        labels, pair_labels = batch.pop("labels"), batch.pop("pair_labels")
        for name in ("masked_input_ids", "masked_labels"):
            batch.pop(name, None)
        outputs = model(**batch, output_attentions=True)
        add("identification", outputs.logits.argmax(dim=-1) == labels)
        is_pair = pair_labels != -100
        add("paraphrase", outputs.paraphrase_logits.argmax(dim=-1)[is_pair] == pair_labels[is_pair])

        tokens = batch["input_ids"].shape[1]
        phrase_boxes = batch["phrase_boxes"]
        shown = align_words(batch["phrase_spans"], phrase_boxes, tokens)  # (B, T, R)
        is_grounded, is_phrase = shown.amax(dim=2) > 0, phrase_boxes.amax(dim=2) > 0
        in_phrase = align_words(batch["phrase_spans"], torch.eye(phrase_boxes.shape[1]).to(shown), tokens)  # (B, T, E)
        is_box = repeat_images(batch["visual_attention_mask"] > 0, len(labels)).unsqueeze(1).clone()
        is_box[..., 0] = False  # the whole image
        scores = {}
        for name, attention in (
            ("attention", outputs.attentions[-1].mean(dim=1)),
            ("rollout", attention_rollout(outputs.attentions, layers=[-1])[0]),
        ):
            attention = attention[:, :tokens, tokens:]
            peak = attention.argmax(dim=2, keepdim=True)
            add(f"word_{name}", shown.gather(2, peak).squeeze(2)[is_grounded] > 0)
            scores[name] = in_phrase.transpose(1, 2) @ attention
        if outputs.grounding_logits is not None:
            scores["classifier"] = outputs.grounding_logits
        for name, score in scores.items():
            peak = score.masked_fill(~is_box, -torch.inf).argmax(dim=2, keepdim=True)
            add(f"phrase_{name}", phrase_boxes.gather(2, peak).squeeze(2)[is_phrase] > 0)
    return {name: right[name] / max(total[name], 1) for name in total}


@torch.no_grad()
def answer_questions(
    model: PreTrainedModel,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable,
    batch_size: int = 32,
) -> list[str]:
    """
    Answers questions with a [`GroundedVisualBertForQuestionAnswering`].

    Args:
        model ([`PreTrainedModel`]):
            The model.
        rows (`Sequence[Mapping]`):
            Rows of [`question_rows`].
        collator (`Callable`):
            Batches the rows, see [`QuestionCollator`].
        batch_size (`int`, *optional*, defaults to 32):
            Number of rows per batch.

    Returns:
        `list[str]`: One answer per row.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import (
    ...     GroundedVisualBertConfig,
    ...     GroundedVisualBertForQuestionAnswering,
    ...     GroundedVisualBertProcessor,
    ...     VggConfig,
    ... )
    >>> from hf_vg.data import QuestionCollator, RegionDataArguments, question_rows, train_wordpiece_tokenizer
    >>> from hf_vg.evaluation import answer_questions

    >>> images, questions = question_rows(RegionDataArguments(num_train_images=1, num_eval_images=1))
    >>> tokenizer = train_wordpiece_tokenizer(questions["train"]["question"])
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> config = GroundedVisualBertConfig(
    ...     vocab_size=len(tokenizer),
    ...     hidden_size=32,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]),
    ...     region_feature_size=16,
    ...     id2label={0: "green", 1: "yellow"},
    ... )
    >>> model = GroundedVisualBertForQuestionAnswering(config)
    >>> collator = QuestionCollator(processor, images["train"], answers=["green", "yellow"])
    >>> answers = answer_questions(model, questions["train"], collator)
    >>> len(answers) == len(questions["train"])
    True
    ```
    """
    answers = []
    for batch in _batches(model, rows, collator, batch_size, "Answering questions"):
        batch.pop("labels")
        answers += [model.config.id2label[index] for index in model(**batch).logits.argmax(dim=-1).tolist()]
    return answers


@torch.no_grad()
def resolve_expressions(
    model: PreTrainedModel,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable,
    batch_size: int = 32,
) -> list[list[float]]:
    """
    Resolves referring expressions with a [`GroundedVisualBertForReferringExpression`].

    Args:
        model ([`PreTrainedModel`]):
            The model.
        rows (`Sequence[Mapping]`):
            Rows of [`referring_rows`].
        collator (`Callable`):
            Batches the rows, see [`ReferringCollator`].
        batch_size (`int`, *optional*, defaults to 32):
            Number of rows per batch.

    Returns:
        `list[list[float]]`: The chosen box of each row, relative to the image.

    Example:

    ```python
    >>> from transformers import ViTImageProcessorPil
    >>> from hf_vg import (
    ...     GroundedVisualBertConfig,
    ...     GroundedVisualBertForReferringExpression,
    ...     GroundedVisualBertProcessor,
    ...     VggConfig,
    ... )
    >>> from hf_vg.data import ReferringCollator, RegionDataArguments, referring_rows, train_wordpiece_tokenizer
    >>> from hf_vg.evaluation import resolve_expressions

    >>> images, expressions = referring_rows(RegionDataArguments(num_train_images=1, num_eval_images=1))
    >>> tokenizer = train_wordpiece_tokenizer(expressions["train"]["expression"])
    >>> processor = GroundedVisualBertProcessor(ViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer)
    >>> config = GroundedVisualBertConfig(
    ...     vocab_size=len(tokenizer),
    ...     hidden_size=32,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     backbone_config=VggConfig(depths=[1, 1], hidden_sizes=[8, 16]),
    ...     region_feature_size=16,
    ... )
    >>> model = GroundedVisualBertForReferringExpression(config)
    >>> boxes = resolve_expressions(model, expressions["train"], ReferringCollator(processor, images["train"]))
    >>> len(boxes) == len(expressions["train"])
    True
    ```
    """
    boxes = []
    for batch in _batches(model, rows, collator, batch_size, "Resolving expressions"):
        batch.pop("labels")
        chosen = model(**batch).logits.argmax(dim=-1)
        regions = repeat_images(batch["boxes"], len(chosen))
        boxes += regions[torch.arange(len(chosen)), chosen].tolist()
    return boxes


def _batches(
    model: PreTrainedModel, rows: Sequence[Mapping[str, Any]], collator: Callable, batch_size: int, description: str
) -> Iterator[dict[str, torch.Tensor]]:
    was_training = model.training
    model.eval()
    try:
        for start in tqdm(range(0, len(rows), batch_size), desc=description, unit="batch"):
            batch = collator([rows[index] for index in range(start, min(start + batch_size, len(rows)))])
            yield {name: value.to(model.device) for name, value in batch.items()}
    finally:
        model.train(was_training)
