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
"""Training that also teaches a vision-language model where its words should look (Samaran et al., 2021)."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer

from ..interpretation.explainers import evaluation_mode
from ..interpretation.families import Family, family_of
from ..interpretation.recording import AttentionRecord, record_attention
from ..interpretation.targets import targets_of_boxes
from ..interpretation.word_maps import layouts_of_rows
from ..models.attention_supervision import (
    align_words,
    attention_loss,
    attention_rollout,
    cross_attention_rollout,
    supervise_attention,
)
from .loss_parts import LossPartsMixin
from .trainer import VgTrainer


SUPERVISION = ("none", "direct", "rollout")
# What a batch carries for the supervision, which the model itself does not take.
PHRASE_INPUTS = ("phrase_spans", "phrase_boxes", "phrase_targets", "boxes", "missing_phrases", "tiles")


def _no_layout(config: Any, inputs: dict[str, Any]) -> Any:
    raise ValueError("This model reads regions and no grid of patches: give `phrase_targets` in place of `boxes`.")


# Models that read words and then regions in one stream, where both look at each other.
ONE_STREAM = {
    "visual_bert": Family(
        r"(visual_bert\.)?encoder\.layer\.\d+\.attention\.self\.dropout",
        _no_layout,
        returned=lambda args, output: args[0],  # before dropout
    ),
}


class AttentionSupervisionMixin(LossPartsMixin):
    r"""
    Put it in front of a [`Trainer`], a [`Seq2SeqTrainer`] or TRL's `SFTTrainer`, and words also learn where to look.
    The trainer then logs `loss_grounding` beside `loss`.

    ```python
    >>> from trl import SFTTrainer
    >>> from hf_vg.training import AttentionSupervisionMixin

    >>> class MyTrainer(AttentionSupervisionMixin, SFTTrainer):
    ...     pass

    ```

    Give it a collator such as [`PhraseChatCollator`]. [`AttentionSupervisedTrainer`] has an example that trains.

    The model may be of any family that [`record_attention`] knows. Its attention stays SDPA: probabilities are
    computed only for the words that have a target. A word that the model writes is supervised at the position that
    chooses it, one before its own. A word that it only reads is supervised at its own position.

    Batches carry these beside the model's own inputs. [`PromptedCaptionCollator`], [`CaptionCollator`] and
    [`PhraseChatCollator`] make them:

    - **phrase_spans**, of shape `(rows, phrases, 2)`: first token of each phrase, and the one after its last. Tokens
      are counted in `labels` for encoder-decoders, and in `input_ids` for other models. Empty spans are padding.
    - **boxes**, `(rows, boxes, 4)`: left, top, right and bottom, as shares of what the model is given of the image.
    - **phrase_boxes**, `(rows, phrases, boxes)`: 1 for the boxes of a phrase.
    - **phrase_targets**, `(rows, phrases, image tokens)`, in place of the last two: 1 for image tokens of a phrase.

    The loss is that of the paper. The attention of a word to the patches is divided by its sum over the patches, and
    the loss is the cross-entropy with the patches of its boxes, in equal shares. It is the mean over
    words, layers and heads of all batches of an optimizer step, on all processes. Models that read words and regions
    in one stream, such as VisualBERT, also have the loss from regions to words.

    Evaluations report the model's own loss alone, so that you can compare trainings with and without supervision.

    Args:
        attention_supervision (`str`, *optional*, defaults to `"direct"`):
            `"direct"` supervises the attention of each layer and head, `"rollout"` the attention rollout up to each
            layer, and `"none"` nothing.
        attention_weight (`float`, *optional*, defaults to 1.0):
            Weight of the loss of attention.
        attention_layers (`Sequence[int]`, *optional*), attention_heads (`Sequence[int]`, *optional*):
            The layers, of those that look at the image, and the heads to supervise. All by default.
        attention_family ([`Family`], *optional*):
            How the model looks at images, if its family is not known.
        distillation_weight (`float`, *optional*, defaults to 0.0):
            Weight of staying near what the model said before training (Hinton et al., 2015): the divergence of its
            words' probabilities from those of the model that training started from. A model with adapters of PEFT is
            its own teacher, with the adapters off. Other models are copied.
        distillation_temperature (`float`, *optional*, defaults to 2.0):
            Temperature that the words of both are softened by.
    """

    model: Any
    args: Any
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any
    current_gradient_accumulation_steps: int

    def __init__(
        self,
        *args: Any,
        attention_supervision: str = "direct",
        attention_weight: float = 1.0,
        attention_layers: Sequence[int] | None = None,
        attention_heads: Sequence[int] | None = None,
        attention_family: Family | None = None,
        distillation_weight: float = 0.0,
        distillation_temperature: float = 2.0,
        **kwargs: Any,
    ):
        if attention_supervision not in SUPERVISION:
            raise ValueError(
                f"`attention_supervision` must be one of {', '.join(SUPERVISION)}, got {attention_supervision!r}."
            )
        super().__init__(*args, **kwargs)
        self.attention_supervision, self.attention_weight = attention_supervision, attention_weight
        self.attention_layers = None if attention_layers is None else list(attention_layers)
        self.attention_heads = None if attention_heads is None else list(attention_heads)
        self.distillation_weight, self.distillation_temperature = distillation_weight, distillation_temperature
        inner = next(module for module in self.model.modules() if isinstance(module, PreTrainedModel))
        self._config = inner.config
        self._is_one_stream = attention_family is None and inner.config.model_type in ONE_STREAM
        self._family: Family | None = None
        if attention_supervision != "none":
            self._family = attention_family or ONE_STREAM.get(inner.config.model_type) or family_of(inner)
        self._totals: dict[str, float] = {}  # of what an optimizer step is a mean over, on all processes
        self._missing = 0.0
        self._recording = ExitStack()
        self.teacher: torch.nn.Module | None = None
        if distillation_weight and not hasattr(self.model, "disable_adapter"):
            self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Gradient checkpointing computes attention once more in the backward pass, which must be recorded alike.
        with self._recording:
            return super().training_step(*args, **kwargs)  # type: ignore[misc]

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs = {name: value for name, value in inputs.items() if name not in PHRASE_INPUTS}
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]
        if batches:
            counts = [self._counts(batch) for batch in batches]
            summed = torch.tensor([sum(count[name] for count in counts) for name in counts[0]], device=device)
            summed = self.accelerator.gather(summed).view(-1, len(counts[0])).sum(dim=0).tolist()
            self._totals = dict(zip(counts[0], summed, strict=True))
            self._missing += self._totals["missing"]
        return batches, num_items

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._missing:
            logs["missing_phrases"] = self._missing
        super().log(logs, *args, **kwargs)

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        batch, inputs = inputs, {name: value for name, value in inputs.items() if name not in PHRASE_INPUTS}
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, **kwargs)  # type: ignore[misc]
        teacher_logits = self._teacher_logits(model, inputs) if self.distillation_weight else None
        targets = self._targets(batch) if self._family is not None else None  # (rows, tokens, boxes or image tokens)
        record = None
        if targets is not None and targets.any():
            chosen = positions(targets)
            record = self._recording.enter_context(self._record(model, chosen))
        needs_outputs = return_outputs or teacher_logits is not None
        found = super().compute_loss(model, inputs, needs_outputs, **kwargs)  # type: ignore[misc]
        loss, outputs = found if needs_outputs else (found, None)
        losses: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        if record is not None and targets is not None:
            losses |= self._attention_losses(record, batch, targets, chosen)
            if not any(summed.requires_grad for summed, _ in losses.values()):
                raise ValueError(
                    "The attention has no gradient, so that nothing would learn from its supervision. With gradient "
                    'checkpointing, set `gradient_checkpointing_kwargs={"use_reentrant": False}`. With PEFT, adapt '
                    "the queries and keys of attention."
                )
        parts = {}
        if targets is not None:
            parts["grounding"] = sum((self._mean(name, *losses[name]) for name in losses), loss.new_zeros(()))
        if teacher_logits is not None:
            parts["distillation"] = self._mean("words", *self._divergence(outputs, teacher_logits, inputs))
        weights = {"grounding": self.attention_weight, "distillation": self.distillation_weight}
        for name, part in parts.items():
            self.log_part(f"loss_{name}", part)
            loss = loss + weights[name] * part / self._batches_to_sum(kwargs.get("num_items_in_batch"))
        return (loss, outputs) if return_outputs else loss

    def _mean(self, name: str, summed: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """
        A loss of this batch, so that the mean over the batches and processes of an optimizer step is the mean over all
        words of the step.
        """
        if not self._totals:
            return summed / count.clamp(min=1)
        batches = self.accelerator.num_processes * self.current_gradient_accumulation_steps
        return summed * (batches / max(self._totals[name], 1))

    def _batches_to_sum(self, num_items_in_batch: Any) -> int:
        """By how many to divide the loss of a batch: by none where the Trainer divides by the number of batches."""
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is None:
            is_counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            is_scaled = is_counted or self.compute_loss_func is not None
        return self.current_gradient_accumulation_steps if self._totals and is_scaled else 1

    def _targets(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """1 where a token should look at a box or an image token: `(rows, tokens, boxes or image tokens)`."""
        if "phrase_spans" not in batch:
            raise ValueError(
                "The batches have no `phrase_spans`, which say what words should look at. Use a collator that makes "
                "them, such as `hf_vg.data.PhraseChatCollator`, and `remove_unused_columns=False`."
            )
        which = batch["phrase_targets" if "phrase_targets" in batch else "phrase_boxes"].flatten(0, -3)
        is_encoder_decoder = self._config.is_encoder_decoder
        tokens = batch["labels" if is_encoder_decoder else "input_ids"]
        targets = align_words(batch["phrase_spans"].flatten(0, -3), which, tokens.shape[-1])
        if is_encoder_decoder or self._is_one_stream or "labels" not in batch:
            return targets
        is_written = (batch["labels"] != -100).unsqueeze(2)
        written = torch.nn.functional.pad((targets * is_written)[:, 1:], (0, 0, 0, 1))
        return (targets * ~is_written + written).clamp(max=1)

    def _counts(self, batch: Mapping[str, Any]) -> dict[str, float]:
        counts = {"to_image": 0.0, "to_text": 0.0, "words": 0.0, "missing": 0.0}
        if self._family is not None:
            targets = self._targets(batch)
            counts["to_image"] = targets.amax(dim=2).sum().item()
            counts["to_text"] = targets.amax(dim=1).sum().item() if self._is_one_stream else 0.0
        if self.distillation_weight:
            counts["words"] = float((self._labels(batch) != -100).sum())
        if "missing_phrases" in batch:
            counts["missing"] = float(batch["missing_phrases"].sum())
        return counts

    def _record(self, model: torch.nn.Module, chosen: torch.Tensor) -> Any:
        assert self._family is not None
        is_direct, heads = self.attention_supervision == "direct", self.attention_heads
        layers = self.attention_layers if is_direct else None  # rollout needs those below too
        options: dict[str, Any] = {"layers": layers, "family": self._family}
        if self._is_one_stream:
            return record_attention(model, **options, keep=lambda attention: attention)
        if is_direct or self._family.columns is None:
            return record_attention(model, **options, heads=heads if is_direct else None, queries=chosen)

        def mean(attention: torch.Tensor) -> torch.Tensor:
            return (attention if heads is None else attention[:, heads]).mean(dim=1, keepdim=True)

        return record_attention(model, **options, keep=mean, replaces_output=False)

    def _attention_losses(
        self, record: AttentionRecord, batch: Mapping[str, Any], targets: torch.Tensor, chosen: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The summed losses, and the number of words or regions that they are summed over."""
        attention = tuple(record.calls[-1].attention.values())
        attention = tuple(layer.to(attention[0].device) for layer in attention)  # layers may be on several
        is_rollout, layers, heads = (
            self.attention_supervision == "rollout",
            self.attention_layers,
            self.attention_heads,
        )
        if self._is_one_stream:
            return supervise_attention(
                attention,
                targets,
                batch["attention_mask"],
                batch["visual_attention_mask"],
                is_rollout,
                layers if is_rollout else None,
                heads,
            )
        if not is_rollout:
            maps = list(attention)
        elif record.family.columns is None:
            maps = [layer[:, None] for layer in cross_attention_rollout(attention, layers, heads)]
        else:
            rows = torch.arange(len(chosen), device=chosen.device)[:, None]
            places = chosen + attention[0].shape[-1] - targets.shape[1]  # behind an image in front of the tokens
            rolled = attention_rollout(attention, layers)
            maps = [record.to_image(layer[rows, places][:, None]) for layer in rolled]
        maps = record.to_patches(torch.stack(maps))  # (layers, rows, heads, chosen, image tokens)
        aims = targets.gather(1, chosen[..., None].expand(-1, -1, targets.shape[2]))  # (rows, chosen, boxes)
        if "phrase_targets" in batch:
            mask = torch.ones(len(aims), aims.shape[2], device=aims.device)
        else:
            tokens_of_boxes, mask = self._image_tokens(record, batch, maps.shape[-1])
            captions = len(aims) // len(mask)
            mask = mask.to(aims.device).repeat_interleave(captions, dim=0)
            aims = (aims @ tokens_of_boxes.to(aims).repeat_interleave(captions, dim=0)).clamp(max=1)
        summed = attention_loss(maps * mask[:, None, None].to(maps), aims, mask)
        return {"to_image": (summed, aims.amax(dim=2).sum())}

    def _image_tokens(
        self, record: AttentionRecord, batch: Mapping[str, Any], tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of each box, `(images, boxes, tokens)`, and which tokens are patches, `(images, tokens)`."""
        targets, masks = [], []
        for layouts, boxes in zip(layouts_of_rows(record, batch), batch["boxes"].cpu(), strict=True):
            if len(layouts) != 1:
                raise ValueError(
                    f"`boxes` are of one image per row, and a row has {len(layouts)}. Give `phrase_targets` instead."
                )
            targets.append(targets_of_boxes(layouts[0], boxes, tokens))
            masks.append(targets_of_boxes(layouts[0], torch.tensor([[0.0, 0.0, 1.0, 1.0]]), tokens)[0])
        return torch.stack(targets), torch.stack(masks)

    def _labels(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """What the logits of each position are for, `(rows, positions)`."""
        labels = inputs["labels"].flatten(0, -2)
        return labels if self._config.is_encoder_decoder else labels[:, 1:]

    def _teacher_logits(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
        teacher: Any = self.teacher or self.accelerator.unwrap_model(model)
        with (
            torch.no_grad(),
            evaluation_mode(teacher),
            teacher.disable_adapter() if self.teacher is None else nullcontext(),
        ):
            return teacher(**inputs).logits

    def _divergence(
        self, outputs: Any, teacher_logits: torch.Tensor, inputs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = outputs.get("logits")
        if logits is None or not logits.requires_grad:
            raise ValueError(
                "Distillation needs the logits of the model, and this trainer does not keep them. TRL's `SFTTrainer` "
                "computes its loss without them: use `AttentionSupervisedTrainer`."
            )
        labels = self._labels(inputs)
        is_word = labels != -100
        length = inputs["labels"].shape[-1]  # some models also have logits at image tokens
        words, taught = (
            scores.flatten(0, -3)[:, -length:][:, : labels.shape[1]][is_word] for scores in (logits, teacher_logits)
        )
        return distillation_loss(words, taught, self.distillation_temperature), is_word.sum()


class SupervisedCaptionerTrainer(AttentionSupervisionMixin, VgTrainer):
    r"""
    The [`VgTrainer`] of `recipes/train_captioner.py --attention_supervision`. It takes the arguments of both.

    Example:

    ```python
    >>> from hf_vg.training import AttentionSupervisionMixin, SupervisedCaptionerTrainer, VgTrainer
    >>> set(SupervisedCaptionerTrainer.__bases__) == {AttentionSupervisionMixin, VgTrainer}
    True
    ```
    """


class AttentionSupervisedTrainer(AttentionSupervisionMixin, Trainer):
    r"""
    A [`Trainer`] that also teaches words where to look. See [`AttentionSupervisionMixin`] for its arguments.

    Example:

    ```python
    >>> import tempfile
    >>> from transformers import TrainingArguments
    >>> from hf_vg.data import PromptedCaptionCollator, grounded_scenes, load_scenes, train_word_tokenizer
    >>> from hf_vg.training import AttentionSupervisedTrainer, CaptionerArguments, build_captioner

    >>> rows = grounded_scenes(load_scenes(8, 0, 0)["train"])  # with `image`, `captions`, `phrases` and `boxes`
    >>> vision = {"image_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    >>> text = {**vision, "num_attention_heads": 2, "encoder_hidden_size": 16}
    >>> del text["image_size"]
    >>> fields = {"vision_config": {**vision, "num_attention_heads": 2}, "text_config": text}
    >>> tokenizer = train_word_tokenizer(caption for captions in rows["captions"] for caption in captions)
    >>> model, processor = build_captioner(CaptionerArguments(model_type="blip", model=fields), tokenizer)
    >>> folder = tempfile.TemporaryDirectory()
    >>> trainer = AttentionSupervisedTrainer(
    ...     model=model,
    ...     args=TrainingArguments(folder.name, max_steps=2, logging_steps=1, remove_unused_columns=False),
    ...     train_dataset=rows,
    ...     data_collator=PromptedCaptionCollator(processor, model.config),
    ...     attention_supervision="direct",
    ...     attention_layers=[-1],
    ... )
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'loss': ...
    >>> "loss_grounding" in trainer.state.log_history[0]
    True

    ```
    """


def positions(targets: torch.Tensor) -> torch.Tensor:
    """The positions that have a target, `(rows, most of a row)`. Rows with fewer are filled with others."""
    has_target = targets.amax(dim=2) > 0
    most = int(has_target.sum(dim=1).max()) if has_target.numel() else 0
    return has_target.int().argsort(dim=1, descending=True, stable=True)[:, :most]


def distillation_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    r"""
    Hinton's loss: the divergence of the student's softened probabilities from the teacher's, summed over words. It is
    multiplied by the square of the temperature, which softening divides gradients by.

    Args:
        student (`torch.Tensor`), teacher (`torch.Tensor`):
            Logits, of shape `(words, vocabulary)`.
        temperature (`float`):
            What both are divided by.
    """
    student, teacher = ((logits.float() / temperature).log_softmax(dim=-1) for logits in (student, teacher))
    return temperature**2 * torch.nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)


__all__ = [
    "AttentionSupervisedTrainer",
    "AttentionSupervisionMixin",
    "SupervisedCaptionerTrainer",
    "distillation_loss",
]
