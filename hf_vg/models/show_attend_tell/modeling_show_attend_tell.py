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
"""PyTorch ShowAttendTell model: an LSTM that looks at a convolutional feature map while it writes a caption."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from ..generation import CaptionGenerationMixin
from ..image_encoder import ImageEncoder
from ..publishing import PublishedModelMixin
from .configuration_show_attend_tell import ShowAttendTellConfig
from .kernels_show_attend_tell import energy_of_steps, tanh_factors
from .losses_show_attend_tell import captioning_losses
from .outputs_show_attend_tell import (
    ShowAttendTellCaptionerOutput,
    ShowAttendTellEncoderOutput,
    ShowAttendTellModelOutput,
    ShowAttendTellState,
    is_asked_for,
)


class ShowAttendTellEncoder(nn.Module):
    """Feature map of the image, and its part of the attention network, which no step of the decoder changes."""

    main_input_name = "pixel_values"

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        self.image_encoder = ImageEncoder(config)
        self.feature_dropout = nn.Dropout1d(config.feature_dropout)
        self.key_layers = nn.ModuleList(
            nn.Linear(config.feature_size if i == 0 else config.attention_size, config.attention_size)
            for i in range(config.num_attention_layers)
        )
        self.key_layers[0].orthogonal_blocks = 0  # type: ignore[assignment]  # Gaussian in the authors' code

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellEncoderOutput:
        features = self.image_encoder(pixel_values, image_features).flatten(1, -2)  # (B, L, D)
        features = features.to(self.key_layers[0].weight.dtype).contiguous()
        if self.training and self.feature_dropout.p > 0:
            features = self.feature_dropout(features.transpose(1, 2)).transpose(1, 2)

        keys = self.key_layers[0](features)  # (B, L, A)
        for layer in self.key_layers[1:]:
            keys = torch.tanh(layer(keys))
        return ShowAttendTellEncoderOutput(
            last_hidden_state=features,
            hidden_states=(features,) if is_asked_for("output_hidden_states", kwargs, self.config) else None,
            attention_keys=keys,
            key_factors=tanh_factors(keys),
        )


class ShowAttendTellAttention(nn.Module):
    """The layers of equations 4 and 5 that see the state, with the gate of section 4.2.1."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.attention_size, bias=False)
        self.word_query = (
            nn.Linear(config.embedding_size, config.attention_size, bias=False) if config.attention_sees_word else None
        )
        # A bias here would cancel in the softmax.
        self.score = nn.Linear(config.attention_size, 1, bias=False)
        gate_size = {"scalar": 1, "vector": config.feature_size, "none": 0}[config.context_gate]
        self.gate = nn.Linear(config.hidden_size, gate_size) if gate_size else None

    @staticmethod
    def context(weights: torch.Tensor, features: torch.Tensor, choice: str) -> tuple[torch.Tensor, ...]:
        """Equation 13, or the feature of one location (section 4.1), which is returned too."""
        if choice == "expected":
            return torch.bmm(weights, features).flatten(0, 1), None
        rows = weights.detach().flatten(0, 1)
        location = rows.argmax(dim=-1) if choice == "argmax" else torch.multinomial(rows.float(), 1).squeeze(-1)
        index = location.view(len(features), -1, 1).expand(-1, -1, features.shape[-1])
        return features.gather(1, index).flatten(0, 1), location


class ShowAttendTellDecoder(nn.Module):
    """The LSTM of equations 1 to 3 and the attention that it directs."""

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
        """The state that the mean feature gives, for each of the captions of an image."""
        mean = features.mean(dim=1)
        for layer in self.init_layers:
            mean = self.init_dropout(torch.relu(layer(mean)))
        mean = mean.repeat_interleave(captions, dim=0)
        return ShowAttendTellState(torch.tanh(self.init_hidden(mean)), torch.tanh(self.init_memory(mean)))

    def context_choice(self) -> str:
        """How this forward pass makes a context of attention weights."""
        if self.config.attention_type == "soft":
            return "expected"
        # Locations are drawn for the gradient. Where there is none, as in captions that training finds, this decodes.
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
        state = past_key_values
        if state is None:
            state = self.initial_state(features, captions // images)
        embeddings = self.embed_tokens(input_ids)  # (N, T, m)
        if state.seen_tokens == 0:
            # The first input is a vector of zeros, whatever token holds its place.
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
        Equations 1 to 6 and 13, word by word. B images have K captions each, and N = B * K. If `attention` is given,
        its weights, of shape (N, 1, T, L), replace equations 4 and 5.
        """
        features, keys = encoder_outputs.last_hidden_state, encoder_outputs.attention_keys  # (B, L, D), (B, L, A)
        images, hidden, memory = len(features), state.hidden, state.memory  # (N, n)
        word_gates = self.gates_from_word(embeddings)  # (N, T, 4n): the words' part of equation 1
        word_query = self.attention.word_query
        word_queries = None if word_query is None else word_query(embeddings)  # V E y_{t-1}, (N, T, A)
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
    supports_gradient_checkpointing = True  # of the backbone, where it is trained
    _no_split_modules = ["ShowAttendTellEncoder", "ShowAttendTellDecoder"]
    _is_stateful = True  # no step can be taken back, so `generate` refuses an assistant

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Gaussian weights and zero biases; square matrices, and those of each recurrent gate, are orthogonal."""
        super()._init_weights(module)
        if isinstance(module, ShowAttendTellForConditionalGeneration) and self.config.attention_type == "hard":
            init.zeros_(module.baseline)
        if isinstance(module, nn.Linear):
            blocks = getattr(module, "orthogonal_blocks", 1)
            if module.out_features == blocks * module.in_features:
                orthogonal = [init.orthogonal_(torch.empty_like(block)) for block in module.weight.chunk(blocks)]
                init.copy_(module.weight, torch.cat(orthogonal))


class ShowAttendTellModel(ShowAttendTellPreTrainedModel):
    """The encoder and the LSTM, without the layer that chooses words."""

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
        image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`. `(images, height, width, feature_size)` is taken too.
        decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
            The caption so far, the first id holding the place of the zero vector. The number of captions is a multiple
            K of the number of images: rows `b * K` to `b * K + K - 1` belong to image `b`, and share its features.
        output_attentions (`bool`, *optional*):
            Attention weights are always returned. With `True`, all other outputs are computed from the returned
            tensor, so that they can be differentiated by it. With gradients, this takes twice the time.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values, image_features, return_dict=True)
        elif not isinstance(encoder_outputs, ShowAttendTellEncoderOutput):
            encoder_outputs = self.encoder(image_features=encoder_outputs[0], return_dict=True)
        features = encoder_outputs.last_hidden_state
        if decoder_input_ids is None:
            shape, start = (features.shape[0], 1), self.config.decoder_start_token_id
            decoder_input_ids = torch.full(shape, start, device=features.device)
        wants_attention = is_asked_for("output_attentions", kwargs, self.config)
        outputs = self.decoder(decoder_input_ids, encoder_outputs, past_key_values, wants_attention)
        if is_asked_for("output_hidden_states", kwargs, self.config):
            outputs.decoder_hidden_states = (outputs.last_hidden_state,)
            outputs.encoder_hidden_states = (features,)
        return outputs


class ShowAttendTellForConditionalGeneration(ShowAttendTellPreTrainedModel, CaptionGenerationMixin):
    """Show, Attend and Tell, an image captioner."""

    # The loss is a mean over captions, and Trainer's `num_items_in_batch` is a number of words. A trainer that counts
    # with `count_loss_items` instead, as `hf_vg.training.VgTrainer` does, may pass it.
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
        # The moving average of rewards, for hard attention alone.
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
        """The number of captions, over which the loss is a mean."""
        return (labels != -100).any(dim=-1).sum()

    def deep_output(self, hiddens: torch.Tensor, contexts: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Equation 7: logits of the next word, for states with any leading dimensions."""
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
        caption_weights: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: ShowAttendTellEncoderOutput | tuple | None = None,
        past_key_values: ShowAttendTellState | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellCaptionerOutput:
        r"""
        labels (`torch.LongTensor` of shape `(captions, length)` or `(images, captions, length)`, *optional*):
            Captions that end with the end token, padded with -100; a row of -100 alone is no caption.
            `decoder_input_ids` are made from them.
        caption_weights (`torch.FloatTensor` of shape `(captions,)` or `(images, captions)`, *optional*):
            What the log likelihood of each caption counts. Below zero, it is made less likely.
        num_items_in_batch (`torch.Tensor`, *optional*):
            The captions of all batches whose gradients are summed, on all processes. The loss is then this batch's
            share of their mean.
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
            # Padding is left out before the vocabulary projection, the widest of the model.
            word_logits = self.deep_output(*(s[is_word] for s in states)) if logits is None else logits[is_word]
            attention = outputs.cross_attentions[0].squeeze(1)
            hard = {"locations": outputs.locations, "baseline": self.baseline, "update_baseline": self.training}
            losses = captioning_losses(
                self.config, word_logits, labels, attention, caption_weights, num_items_in_batch, **hard
            )

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
