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
"""PyTorch SelfAttnGroundedEncoder model: a self-attentive sentence encoder that learns from captions and images."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..distributed import gather_rows
from ..image_encoder import ImageEncoder
from ..publishing import PublishedModelMixin
from .configuration_self_attn_grounded_encoder import SelfAttnGroundedEncoderConfig
from .encoding_self_attn_grounded_encoder import SentenceEncodingMixin
from .kernels_self_attn_grounded_encoder import run_lstm


def log_sum_exp_loss(similarity: torch.Tensor, same_image: torch.Tensor, negatives: str) -> torch.Tensor:
    """Equation 1. `similarity[i, j]` compares sentence i and image j. `same_image` is `True` for matching pairs."""
    positive = similarity.diagonal()
    least = torch.finfo(similarity.dtype).min  # -inf would give NaN gradients for a batch without negatives
    if negatives == "global":
        # The sum over all combinations of a positive and a negative is a product of two sums.
        negative = similarity.masked_fill(same_image, least)
        return nn.functional.softplus(negative.flatten().logsumexp(0) + (-positive).logsumexp(0))
    from_sentence = (similarity - positive.unsqueeze(1)).masked_fill(same_image, least)
    from_image = (similarity - positive.unsqueeze(0)).masked_fill(same_image, least)
    differences = torch.cat([from_sentence.flatten(), from_image.flatten(), similarity.new_zeros(1)])
    return differences.logsumexp(0)


def margin_loss(similarity: torch.Tensor, same_image: torch.Tensor, margin: float) -> torch.Tensor:
    """A hinge for each other image of the batch: summed for each sentence, averaged over sentences."""
    violation = (margin - similarity.diagonal().unsqueeze(1) + similarity).clamp(min=0)
    return violation.masked_fill(same_image, 0).sum() / similarity.shape[0]


class SelfAttnGroundedEncoderAttention(nn.Module):
    """A = softmax over words of W_a2 tanh(W_a1 h_t), with `num_attention_rows` rows."""

    def __init__(self, config: SelfAttnGroundedEncoderConfig):
        super().__init__()
        state_size = config.hidden_size * (2 if config.state_merge == "concat" else 1)
        self.hidden = nn.Linear(state_size, config.attention_size, bias=False)
        self.score = nn.Linear(config.attention_size, config.num_attention_rows, bias=False)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.score(torch.tanh(self.hidden(states))).transpose(1, 2).float()  # (B, n_a, T)
        scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        # A sentence without words has zero weights.
        weights = (scores.softmax(dim=-1) * mask.unsqueeze(1)).to(states.dtype)
        rows = torch.bmm(weights, states)  # C, (B, n_a, d_h)
        return rows.max(dim=1).values, weights


class SelfAttnGroundedEncoderImageHead(nn.Module):
    """psi, which predicts the image vector from the sentence vector."""

    def __init__(self, config: SelfAttnGroundedEncoderConfig):
        super().__init__()
        hidden = [config.image_head_size] * (config.image_head_layers - 1)
        sizes = [config.sentence_size, *hidden, config.feature_size]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes[:-1], sizes[1:], strict=True))
        self.dropout = nn.Dropout(config.image_head_dropout)

    def forward(self, sentence: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            sentence = self.dropout(torch.relu(layer(sentence)))
        return self.layers[-1](sentence)


class SelfAttnGroundedEncoderDecoder(nn.Module):
    """An LSTM that writes a caption. The sentence vector gives its initial state and is part of every input."""

    def __init__(self, config: SelfAttnGroundedEncoderConfig):
        super().__init__()
        self.init_state = nn.Linear(config.sentence_size, 2 * config.hidden_size)
        self.lstm = nn.LSTM(config.embedding_size + config.sentence_size, config.hidden_size, batch_first=True)

    def forward(self, embeddings: torch.Tensor, sentence: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the states. P(y_t | y_<t, h) is the softmax of `lm_head(state_t)`."""
        state = self.init_state(sentence).chunk(2, dim=-1)
        return run_lstm(self.lstm, embeddings, lengths, constant=sentence, state=state)[0]


class SelfAttnGroundedEncoderPreTrainedModel(SentenceEncodingMixin, PublishedModelMixin, PreTrainedModel):
    """Base class of the sentence encoders: weight initialization, loading, saving and `encode`."""

    config: SelfAttnGroundedEncoderConfig
    auto_map = {
        "AutoConfig": "configuration_self_attn_grounded_encoder.SelfAttnGroundedEncoderConfig",
        "AutoModel": "modeling_self_attn_grounded_encoder.SelfAttnGroundedEncoderModel",
        "AutoModelForPreTraining": "modeling_self_attn_grounded_encoder.SelfAttnGroundedEncoderForPreTraining",
    }
    config_class = SelfAttnGroundedEncoderConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    _no_split_modules = ["SelfAttnGroundedEncoderModel"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Recurrent weights are orthogonal, other weights Xavier-uniform, each gate on its own. Biases are zero."""
        super()._init_weights(module)
        if isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                if name.startswith("bias"):
                    init.zeros_(parameter)
                    continue
                fill = init.orthogonal_ if name.startswith("weight_hh") else init.xavier_uniform_
                init.copy_(parameter, torch.cat([fill(torch.empty_like(gate)) for gate in parameter.chunk(4)]))
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            init.xavier_uniform_(module.weight)

    def requested_outputs(self, kwargs: dict) -> tuple[bool, bool]:
        """Returns whether the caller (or by default the config) asks for hidden states, and for attentions."""
        states, attentions = (
            getattr(self.config, name) if kwargs.get(name) is None else kwargs[name]
            for name in ("output_hidden_states", "output_attentions")
        )
        if attentions and not self.config.use_attention:
            raise ValueError(
                "`output_attentions` needs self-attention, but this encoder has none (`use_attention=False`)."
            )
        return bool(states), bool(attentions)


@dataclass
class SelfAttnGroundedEncoderModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, length, state_size)`):
        h_t of each word, with zeros after the end of a sentence.
    pooler_output (`torch.FloatTensor` of shape `(batch_size, sentence_size)`):
        The sentence vector h. It is zero for a sentence without words.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The word embeddings, and h_t.
    attentions (`tuple(torch.FloatTensor)`, *optional*, returned when `output_attentions=True`):
        One tensor A of shape `(batch_size, num_attention_rows, length)`: the weight of each word in each attention
        row. Rows sum to 1, or to 0 for a sentence without words.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class SelfAttnGroundedEncoderForPreTrainingOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption` and `loss_grounding` (those that the objective has), plus `attention_penalty * loss_attention`.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        L_C, the negative log likelihood of the other caption: summed over words, averaged over captions.
    loss_grounding (`torch.FloatTensor` of shape `(1,)`, *optional*):
        L_VG of the global batch, which is the batch of all processes together.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        ||A A^T - I||^2, averaged over sentences.
    logits (`torch.FloatTensor` of shape `(batch_size, length, vocab_size)`, *optional*):
        Scores of the next word of the other caption. `None` in training mode, where only the loss is computed.
    image_embeds (`torch.FloatTensor` of shape `(batch_size, feature_size)`, *optional*):
        psi(h), the image vector predicted from the sentence.
    pooler_output (`torch.FloatTensor` of shape `(batch_size, sentence_size)`):
        The sentence vector h.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The word embeddings, and h_t.
    attentions (`tuple(torch.FloatTensor)`, *optional*, returned when `output_attentions=True`):
        One tensor A of shape `(batch_size, num_attention_rows, length)`.
    """

    loss: torch.Tensor | None = None
    loss_caption: torch.Tensor | None = None
    loss_grounding: torch.Tensor | None = None
    loss_attention: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    image_embeds: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class SelfAttnGroundedEncoderModel(SelfAttnGroundedEncoderPreTrainedModel):
    r"""
    The sentence encoder: a bidirectional LSTM with self-attention over its states. `encode` turns sentences into
    vectors.

    Args:
        config ([`SelfAttnGroundedEncoderConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import SelfAttnGroundedEncoderConfig, SelfAttnGroundedEncoderModel

    >>> config = SelfAttnGroundedEncoderConfig(vocab_size=20, embedding_size=8, hidden_size=16, num_attention_rows=4)
    >>> model = SelfAttnGroundedEncoderModel(config)
    >>> outputs = model(torch.tensor([[5, 6, 7, 0]]), output_attentions=True)
    >>> outputs.pooler_output.shape, outputs.attentions[0].shape
    (torch.Size([1, 32]), torch.Size([1, 4, 4]))
    ```
    """

    # You can load the encoder from a checkpoint of the whole model, which has these weights too.
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^lm_head\.", r"^image_head\.", r"^image_encoder\."]

    def __init__(self, config: SelfAttnGroundedEncoderConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        self.attention = SelfAttnGroundedEncoderAttention(config) if config.use_attention else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SelfAttnGroundedEncoderModelOutput:
        r"""
        Encodes sentences.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, length)`):
                Sentences that end with the end token, padded on the right.
            attention_mask (`torch.Tensor` of shape `(batch_size, length)`, *optional*):
                1 for tokens, 0 for padding. By default, all tokens except the padding token count.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`SelfAttnGroundedEncoderModelOutput`]: `pooler_output` holds the sentence vectors.
        """
        if attention_mask is None:
            attention_mask = input_ids != self.config.pad_token_id
        mask = attention_mask.bool()
        lengths = mask.sum(dim=1)
        is_padded_on_the_right = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(1)
        if not torch.compiler.is_compiling() and not torch.equal(mask, is_padded_on_the_right):
            raise ValueError("Each row of `attention_mask` must be ones and then zeros: pad sentences on the right.")
        wants_states, wants_attentions = self.requested_outputs(kwargs)

        embeddings = self.embed_tokens(input_ids)  # (B, T, E)
        # Padding is skipped: the forward direction ends at the last word, and the backward direction starts there.
        states, final = run_lstm(self.lstm, embeddings, lengths)  # (B, T, 2 d), (2, B, d)
        states = states * mask.unsqueeze(-1)
        if self.config.state_merge == "max":
            states = states.unflatten(-1, (2, -1)).max(dim=2).values  # h_t, (B, T, d)
        sentence = final.max(dim=0).values * (lengths > 0).unsqueeze(-1)  # h_S, (B, d)
        weights = None
        if self.attention is not None:
            attended, weights = self.attention(states, mask)  # h_A, (B, d), and A, (B, n_a, T)
            sentence = torch.cat([attended, sentence], dim=-1)  # h = [h_A ; h_S]
        return SelfAttnGroundedEncoderModelOutput(
            last_hidden_state=states,
            pooler_output=sentence,
            hidden_states=(embeddings, states) if wants_states else None,
            attentions=(weights,) if wants_attentions else None,
        )


class SelfAttnGroundedEncoderForPreTraining(SelfAttnGroundedEncoderPreTrainedModel):
    r"""
    The sentence encoder with its training heads. From a caption it predicts another caption of the same image, the
    image, or both (`config.objective`).

    Args:
        config ([`SelfAttnGroundedEncoderConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import SelfAttnGroundedEncoderConfig, SelfAttnGroundedEncoderForPreTraining

    >>> config = SelfAttnGroundedEncoderConfig(vocab_size=20, embedding_size=8, hidden_size=16, feature_size=6)
    >>> model = SelfAttnGroundedEncoderForPreTraining(config)
    >>> input_ids = torch.tensor([[5, 6, 7, 0], [8, 9, 4, 0]])
    >>> outputs = model(input_ids, labels=input_ids.flip(0), image_features=torch.rand(2, 6))
    >>> bool(outputs.loss == outputs.loss_caption + outputs.loss_grounding)
    True
    ```
    """

    _no_split_modules = ["SelfAttnGroundedEncoderModel", "SelfAttnGroundedEncoderDecoder"]
    # The loss is a mean over captions, so Trainer's mean over accumulated batches is already correct.
    accepts_loss_kwargs = False

    def __init__(self, config: SelfAttnGroundedEncoderConfig):
        super().__init__(config)
        self.model = SelfAttnGroundedEncoderModel(config)
        self.predicts_caption = config.objective in ("cap2cap", "cap2all")
        self.predicts_image = config.objective in ("cap2img", "cap2all")
        self.decoder = SelfAttnGroundedEncoderDecoder(config) if self.predicts_caption else None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size) if self.predicts_caption else None
        self.image_head = SelfAttnGroundedEncoderImageHead(config) if self.predicts_image else None
        self.image_encoder = ImageEncoder(config, pooled=True) if self.predicts_image else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        image_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SelfAttnGroundedEncoderForPreTrainingOutput:
        r"""
        Encodes captions, and computes the losses of the objective if you pass its targets.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, length)`):
                Captions that end with the end token, padded on the right.
            attention_mask (`torch.Tensor` of shape `(batch_size, length)`, *optional*):
                1 for tokens, 0 for padding. By default, all tokens except the padding token count.
            labels (`torch.LongTensor` of shape `(batch_size, length)`, *optional*):
                Another caption of the same image. It ends with the end token and is padded with -100. Needed for
                `"cap2cap"` and `"cap2all"`.
            pixel_values (`torch.FloatTensor` of shape `(batch_size, channels, height, width)`, *optional*):
                The images, from the image processor. For `"cap2img"` and `"cap2all"`.
            image_features (`torch.FloatTensor` of shape `(batch_size, feature_size)`, *optional*):
                Precomputed image vectors, instead of `pixel_values`.
            image_ids (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
                The image of each caption, unique over all processes. Captions of the same image are not used as
                negatives of each other. By default, each row is a different image.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`, as in other transformers models.

        Returns:
            [`SelfAttnGroundedEncoderForPreTrainingOutput`]: The losses, and `pooler_output`, the sentence vectors.
        """
        wants_states, wants_attentions = self.requested_outputs(kwargs)
        is_penalised = self.config.use_attention and self.config.attention_penalty > 0
        outputs = self.model(
            input_ids,
            attention_mask,
            output_hidden_states=wants_states,
            output_attentions=wants_attentions or is_penalised,
            return_dict=True,
        )
        sentence = outputs.pooler_output  # h
        losses, logits, image_embeds = {}, None, None
        if self.predicts_caption and labels is not None:
            losses["loss_caption"], logits = self.caption_loss(sentence, labels)
        if self.predicts_image:
            image_embeds = self.image_head(sentence)
            if pixel_values is not None or image_features is not None:
                images = self.image_encoder(pixel_values, image_features)  # h_I
                losses["loss_grounding"] = self.grounding_loss(image_embeds, images, image_ids)
        if losses and len(losses) < self.predicts_caption + self.predicts_image:
            missing = "`labels`" if "loss_caption" not in losses else "`pixel_values` or `image_features`"
            raise ValueError(f"The objective {self.config.objective!r} needs {missing} too.")
        if losses:
            losses["loss"] = sum(losses.values())  # type: ignore[assignment]  # there is at least one
            if is_penalised:
                losses["loss_attention"] = self.attention_loss(outputs.attentions[0])
                losses["loss"] = losses["loss"] + self.config.attention_penalty * losses["loss_attention"]
        return SelfAttnGroundedEncoderForPreTrainingOutput(
            **losses,
            logits=logits,
            image_embeds=image_embeds,
            pooler_output=sentence,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions if wants_attentions else None,
        )

    def caption_loss(self, sentence: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """L_C, and the logits unless the model is in training mode."""
        is_word = labels != -100
        lengths = is_word.sum(dim=1)
        inputs = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        inputs[:, 1:] = labels[:, :-1].clamp(min=0)
        states = self.decoder(self.model.embed_tokens(inputs), sentence, lengths)
        # Drop padding before the vocabulary projection, the widest layer of the model.
        logits = None if self.training else self.lm_head(states)
        word_logits = self.lm_head(states[is_word]) if logits is None else logits[is_word]
        summed = nn.functional.cross_entropy(word_logits.float(), labels[is_word], reduction="sum")
        return summed / (lengths > 0).sum().clamp(min=1), logits

    def grounding_loss(
        self, predicted: torch.Tensor, images: torch.Tensor, image_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """L_VG, with the sentences and images of all processes."""
        predicted = gather_rows(nn.functional.normalize(predicted.float(), dim=-1))
        images = gather_rows(nn.functional.normalize(images.float(), dim=-1))
        if image_ids is None:
            same_image = torch.eye(len(images), dtype=torch.bool, device=images.device)
        else:
            image_ids = gather_rows(image_ids)
            same_image = image_ids.unsqueeze(0) == image_ids.unsqueeze(1)
        similarity = predicted @ images.T  # cosines, (sentences, images)
        if self.config.grounding_loss == "margin":
            return margin_loss(similarity, same_image, self.config.margin)
        return log_sum_exp_loss(similarity, same_image, self.config.negatives)

    @staticmethod
    def attention_loss(attentions: torch.Tensor) -> torch.Tensor:
        """||A A^T - I||^2, averaged over sentences."""
        weights = attentions.float()
        overlap = torch.bmm(weights, weights.transpose(1, 2))
        return (overlap - torch.eye(overlap.shape[1], device=overlap.device)).square().sum() / len(overlap)


__all__ = [
    "SelfAttnGroundedEncoderForPreTraining",
    "SelfAttnGroundedEncoderModel",
    "SelfAttnGroundedEncoderPreTrainedModel",
]
