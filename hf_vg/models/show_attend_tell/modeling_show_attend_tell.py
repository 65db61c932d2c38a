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
"""PyTorch ShowAttendTell model: an LSTM that attends to a feature map while it writes a caption."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from ..generation import CaptionGenerationMixin
from ..publishing import PublishedModelMixin
from .configuration_show_attend_tell import ShowAttendTellConfig
from .encoder_show_attend_tell import ShowAttendTellEncoder
from .kernels_show_attend_tell import energy_of_steps
from .losses_show_attend_tell import captioning_losses
from .outputs_show_attend_tell import (
    ShowAttendTellCaptionerOutput,
    ShowAttendTellEncoderOutput,
    ShowAttendTellModelOutput,
    ShowAttendTellState,
    is_asked_for,
)


class ShowAttendTellAttention(nn.Module):
    """The layers of equations 4 and 5 that depend on the state, and the gate of section 4.2.1."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.attention_size, bias=False)
        self.word_query = (
            nn.Linear(config.embedding_size, config.attention_size, bias=False) if config.attention_sees_word else None
        )
        self.score = nn.Linear(config.attention_size, 1, bias=False)  # a bias would cancel in the softmax
        gate_size = {"scalar": 1, "vector": config.feature_size, "none": 0}[config.context_gate]
        self.gate = nn.Linear(config.hidden_size, gate_size) if gate_size else None

    @staticmethod
    def context(weights: torch.Tensor, features: torch.Tensor, choice: str) -> tuple[torch.Tensor, ...]:
        """Returns the context: equation 13, or the feature of one location (section 4.1) and that location."""
        if choice == "expected":
            return torch.bmm(weights, features).flatten(0, 1), None
        rows = weights.detach().flatten(0, 1)
        location = rows.argmax(dim=-1) if choice == "argmax" else torch.multinomial(rows.float(), 1).squeeze(-1)
        index = location.view(len(features), -1, 1).expand(-1, -1, features.shape[-1])
        return features.gather(1, index).flatten(0, 1), location


class ShowAttendTellDecoder(nn.Module):
    """The LSTM of equations 1 to 3, and its attention to the image."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.init_layers = nn.ModuleList(
            nn.Linear(config.feature_size, config.feature_size) for _ in range(config.num_init_layers - 1)
        )
        self.init_dropout = nn.Dropout(config.dropout)
        self.init_hidden = nn.Linear(config.feature_size, config.hidden_size)
        self.init_memory = nn.Linear(config.feature_size, config.hidden_size)
        self.attention = ShowAttendTellAttention(config)
        # Gates in the order input, forget, output, candidate.
        self.gates_from_word = nn.Linear(config.embedding_size, 4 * config.hidden_size)
        self.gates_from_hidden = nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False)
        self.gates_from_hidden.orthogonal_blocks = 4  # type: ignore[assignment]  # torch expects modules
        self.gates_from_context = nn.Linear(config.feature_size, 4 * config.hidden_size, bias=False)

    def initial_state(self, features: torch.Tensor, captions: int) -> ShowAttendTellState:
        """Computes the initial state of each caption from the mean feature of its image."""
        mean = features.mean(dim=1)
        for layer in self.init_layers:
            mean = self.init_dropout(torch.relu(layer(mean)))
        mean = mean.repeat_interleave(captions, dim=0)
        return ShowAttendTellState(torch.tanh(self.init_hidden(mean)), torch.tanh(self.init_memory(mean)))

    def context_choice(self) -> str:
        """Returns how this forward pass computes the context: "expected", "argmax" or "sample"."""
        if self.config.attention_type == "soft":
            return "expected"
        # Locations are sampled for the gradient. Without gradients (also in training mode), the model decodes.
        if not (self.training and torch.is_grad_enabled()):
            return self.config.hard_decoding
        # One draw per batch, as in the authors' code.
        return "sample" if torch.rand(()).item() < self.config.semi_sampling_probability else "expected"

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_outputs: ShowAttendTellEncoderOutput,
        past_key_values: ShowAttendTellState | None = None,
        differentiable_attention: bool = False,
    ) -> ShowAttendTellModelOutput:
        features = encoder_outputs.last_hidden_state  # (B, L, D)
        captions, images = input_ids.shape[0], features.shape[0]
        if captions % images:
            raise ValueError(f"{captions} captions cannot be shared out evenly among {images} images.")
        state = past_key_values or self.initial_state(features, captions // images)
        embeddings = self.embed_tokens(input_ids)  # (N, T, m)
        if state.seen_tokens == 0:
            # The first input is a vector of zeros, whatever the first token is.
            embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], dim=1)
        embeddings = self.embedding_dropout(embeddings)
        choice = self.context_choice()
        outputs = self.loop(embeddings, state, encoder_outputs, choice)
        if differentiable_attention and choice == "expected" and torch.is_grad_enabled():
            # Repeat the steps with the returned weights as input, so that all outputs can be differentiated by them.
            (attention,) = outputs.cross_attentions
            outputs = self.loop(embeddings, state, encoder_outputs, choice, attention)
            outputs.cross_attentions = (attention,)
        return outputs

    def loop(
        self,
        embeddings: torch.Tensor,
        state: ShowAttendTellState,
        encoder_outputs: ShowAttendTellEncoderOutput,
        choice: str,
        attention: torch.Tensor | None = None,
    ) -> ShowAttendTellModelOutput:
        """
        Equations 1 to 6 and 13, word by word, for B images with K captions each (N = B * K). If you pass `attention`,
        its weights of shape (N, 1, T, L) replace equations 4 and 5.
        """
        features, keys = encoder_outputs.last_hidden_state, encoder_outputs.attention_keys  # (B, L, D), (B, L, A)
        images, hidden, memory = len(features), state.hidden, state.memory  # (N, n)
        word_gates = self.gates_from_word(embeddings)  # (N, T, 4n): the words' part of equation 1
        word_queries = self.attention.word_query(embeddings) if self.config.attention_sees_word else None  # (N, T, A)
        score = self.attention.score.weight[0].to(keys.dtype)  # u, (A,)
        energy_of = energy_of_steps(keys, score, encoder_outputs.key_factors)

        hiddens, contexts, attentions, locations = [], [], [], []
        for step, word_gate in enumerate(word_gates.unbind(dim=1)):
            if attention is None:
                # Equation 4: e_ti = u . tanh(keys_i + W h_{t-1}), with `attention_sees_word` + V E y_{t-1}
                query = self.attention.query(hidden)  # (N, A)
                query = query if word_queries is None else query + word_queries[:, step]
                energy = energy_of(query.unflatten(0, (images, -1)))  # (B, K, L)
                # Equation 5: alpha_ti
                weights = torch.softmax(self.config.attention_temperature * energy.float(), dim=-1)
                weights = weights.to(features.dtype)  # (B, K, L)
            else:
                weights = attention[:, 0, step].unflatten(0, (images, -1))
            # Equations 6 and 13: z_t = sum_i alpha_ti a_i, times the gate beta_t = sigmoid(W h_{t-1})
            context, location = self.attention.context(weights, features, choice)  # (N, D)
            if self.attention.gate is not None:
                context = torch.sigmoid(self.attention.gate(hidden)) * context
            # Equation 1: the gates, from E y_{t-1}, h_{t-1} and z_t
            gates = word_gate + self.gates_from_hidden(hidden) + self.gates_from_context(context)  # (N, 4n)
            input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=-1)
            # Equations 2 and 3: c_t and h_t
            memory = torch.sigmoid(forget_gate) * memory + torch.sigmoid(input_gate) * torch.tanh(candidate)
            hidden = torch.sigmoid(output_gate) * torch.tanh(memory)  # (N, n)
            hiddens.append(hidden)
            contexts.append(context)
            attentions.append(weights.flatten(0, 1))
            locations.append(location)
            # Equation 7, the logits of the next word, needs no loop: `deep_output` takes all steps at once.

        return ShowAttendTellModelOutput(
            last_hidden_state=torch.stack(hiddens, dim=1),
            contexts=torch.stack(contexts, dim=1),
            embeddings=embeddings,
            past_key_values=ShowAttendTellState(hidden, memory, state.seen_tokens + embeddings.shape[1]),
            cross_attentions=(torch.stack(attentions, dim=1).unsqueeze(1),),
            locations=torch.stack(locations, dim=1) if choice != "expected" else None,
            encoder_last_hidden_state=features,
        )


class ShowAttendTellPreTrainedModel(PublishedModelMixin, PreTrainedModel):
    """Base class of the ShowAttendTell models: weight initialization, loading and saving."""

    config: ShowAttendTellConfig
    auto_map = {
        "AutoConfig": "configuration_show_attend_tell.ShowAttendTellConfig",
        "AutoModel": "modeling_show_attend_tell.ShowAttendTellModel",
        "AutoModelForImageTextToText": "modeling_show_attend_tell.ShowAttendTellForConditionalGeneration",
    }
    config_class = ShowAttendTellConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True  # for a backbone that is trained
    _no_split_modules = ["ShowAttendTellEncoder", "ShowAttendTellDecoder"]
    _is_stateful = True  # steps cannot be undone, so `generate` rejects assistant models

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Gaussian weights and zero biases. Square matrices, and those of each recurrent gate, are orthogonal."""
        super()._init_weights(module)
        if isinstance(module, ShowAttendTellForConditionalGeneration) and self.config.attention_type == "hard":
            init.zeros_(module.baseline)
        if isinstance(module, nn.Linear):
            blocks = getattr(module, "orthogonal_blocks", 1)
            if module.out_features == blocks * module.in_features:
                orthogonal = [init.orthogonal_(torch.empty_like(block)) for block in module.weight.chunk(blocks)]
                init.copy_(module.weight, torch.cat(orthogonal))


class ShowAttendTellModel(ShowAttendTellPreTrainedModel):
    r"""
    The encoder and the LSTM, without the output layer over words.

    Args:
        config ([`ShowAttendTellConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import ShowAttendTellConfig, ShowAttendTellModel
    >>> sizes = dict(feature_size=8, vocab_size=20, embedding_size=8, hidden_size=16)
    >>> model = ShowAttendTellModel(ShowAttendTellConfig(backbone_config=None, **sizes))
    >>> model(image_features=torch.rand(2, 9, 8)).cross_attentions[0].shape  # (captions, 1, words, locations)
    torch.Size([2, 1, 1, 9])
    ```
    """

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.encoder = ShowAttendTellEncoder(config)
        self.decoder = ShowAttendTellDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: ShowAttendTellEncoderOutput | tuple | None = None,
        past_key_values: ShowAttendTellState | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellModelOutput:
        r"""
        Encodes images, and runs the LSTM on captions.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`. Also `(images, height, width, feature_size)`.
            decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
                The start token (default) and the words so far. Rows `b * K` to `b * K + K - 1` belong to image `b`.
            encoder_outputs (`ShowAttendTellEncoderOutput` or `tuple`, *optional*):
                The output of the encoder, or a tuple of features, instead of `pixel_values` and `image_features`.
            past_key_values (`ShowAttendTellState`, *optional*):
                The state after the words before `decoder_input_ids`.
            kwargs (*optional*):
                `output_hidden_states`, `return_dict` and `output_attentions`. Attention weights are always returned:
                `True` only makes the other outputs differentiable by them, which takes twice the time.

        Returns:
            [`ShowAttendTellModelOutput`]: The states, contexts and attention weights of each step.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values, image_features, return_dict=True)
        elif not isinstance(encoder_outputs, ShowAttendTellEncoderOutput):
            encoder_outputs = self.encoder(image_features=encoder_outputs[0], return_dict=True)
        features = encoder_outputs.last_hidden_state
        if decoder_input_ids is None:
            start = self.config.decoder_start_token_id
            decoder_input_ids = torch.full((features.shape[0], 1), start, device=features.device)
        wants_attention = is_asked_for("output_attentions", kwargs, self.config)
        outputs = self.decoder(decoder_input_ids, encoder_outputs, past_key_values, wants_attention)
        if is_asked_for("output_hidden_states", kwargs, self.config):
            outputs.decoder_hidden_states = (outputs.last_hidden_state,)
            outputs.encoder_hidden_states = (features,)
        return outputs


class ShowAttendTellForConditionalGeneration(ShowAttendTellPreTrainedModel, CaptionGenerationMixin):
    r"""
    Show, Attend and Tell (Xu et al., 2015), an image captioner that shows where it looks for each word.

    Args:
        config ([`ShowAttendTellConfig`]):
            The configuration of the model.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration
    >>> sizes = dict(feature_size=8, vocab_size=20, embedding_size=8, hidden_size=16)
    >>> model = ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(backbone_config=None, **sizes)).eval()
    >>> model.generate(image_features=torch.rand(2, 9, 8), num_beams=3, max_new_tokens=4).shape[0]
    2
    ```
    """

    # The loss is a mean over captions, but Trainer counts words. `VgTrainer` counts with `count_loss_items` instead.
    accepts_loss_kwargs = False

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.model = ShowAttendTellModel(config)
        self.output_from_hidden = nn.Linear(config.hidden_size, config.embedding_size)
        self.output_from_context = (
            nn.Linear(config.feature_size, config.embedding_size, bias=False) if config.output_from_context else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(config.embedding_size, config.vocab_size)
        # The moving average of rewards, only for hard attention.
        self.baseline = nn.Buffer(torch.zeros(())) if config.attention_type == "hard" else None
        self.post_init()
        self.suppress_special_tokens()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_encoder(self, modality: str | None = None) -> ShowAttendTellEncoder:
        return self.model.encoder

    @staticmethod
    def count_loss_items(labels: torch.Tensor) -> torch.Tensor:
        """Returns the number of captions. The loss is a mean over captions."""
        return (labels != -100).any(dim=-1).sum()

    def deep_output(self, hiddens: torch.Tensor, contexts: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Equation 7: the logits of the next word."""
        readout = self.output_from_hidden(self.dropout(hiddens))
        if self.config.output_from_embedding:
            readout = readout + embeddings
        if self.output_from_context is not None:
            readout = readout + self.output_from_context(contexts)
        if self.config.deep_output_activation == "tanh":
            readout = torch.tanh(readout)
        return self.lm_head(self.dropout(readout))

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: ShowAttendTellEncoderOutput | tuple | None = None,
        past_key_values: ShowAttendTellState | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellCaptionerOutput:
        r"""
        Computes the scores of the next words, and the loss if you pass `labels`.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`. Also `(images, height, width, feature_size)`.
            labels (`torch.LongTensor` of shape `(captions, length)` or `(images, captions, length)`, *optional*):
                Captions that end with the end token, padded with -100. Rows that are all -100 are skipped.
            decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
                The start token and the words so far. Made from `labels` by default.
            encoder_outputs (`ShowAttendTellEncoderOutput` or `tuple`, *optional*):
                The output of the encoder, instead of `pixel_values` and `image_features`.
            past_key_values (`ShowAttendTellState`, *optional*):
                The state after the words before `decoder_input_ids`.
            use_cache (`bool`, *optional*):
                Whether to return the state. Defaults to `config.use_cache`.
            num_items_in_batch (`torch.Tensor`, *optional*):
                The number of captions whose gradients are accumulated, over all batches and processes.
            kwargs (*optional*):
                `output_attentions`, `output_hidden_states` and `return_dict`: see [`ShowAttendTellModel.forward`].

        Returns:
            [`ShowAttendTellCaptionerOutput`]: The loss with its parts, the logits and the attention weights.
        """
        if labels is not None:
            labels = labels.flatten(0, -2)
            if decoder_input_ids is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        wants_attention = is_asked_for("output_attentions", kwargs, self.config)
        only_loss = labels is not None and self.training and not wants_attention
        inputs = (pixel_values, image_features, decoder_input_ids, encoder_outputs, past_key_values)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        states = (outputs.last_hidden_state, outputs.contexts, outputs.embeddings)

        logits = None if only_loss else self.deep_output(*states)
        losses = {}
        if labels is not None:
            is_word = labels != -100
            # Drop padding before the vocabulary projection, the widest layer of the model.
            word_logits = self.deep_output(*(s[is_word] for s in states)) if logits is None else logits[is_word]
            attention = outputs.cross_attentions[0].squeeze(1)
            hard = {"locations": outputs.locations, "baseline": self.baseline, "update_baseline": self.training}
            losses = captioning_losses(self.config, word_logits, labels, attention, num_items_in_batch, **hard)

        use_cache = self.config.use_cache if use_cache is None else use_cache
        return ShowAttendTellCaptionerOutput(
            **losses,
            logits=logits,
            past_key_values=outputs.past_key_values if use_cache else None,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            decoder_hidden_states=outputs.decoder_hidden_states,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )


__all__ = ["ShowAttendTellForConditionalGeneration", "ShowAttendTellModel", "ShowAttendTellPreTrainedModel"]
