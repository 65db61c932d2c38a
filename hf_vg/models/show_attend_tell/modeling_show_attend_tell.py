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

from dataclasses import dataclass

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.backbone_utils import load_backbone
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..vgg.modeling_vgg import VggBackbone
from .configuration_show_attend_tell import ShowAttendTellConfig


class ShowAttendTellState:
    """The recurrent state, standing where `generate` keeps its key-value cache."""

    def __init__(self, hidden: torch.Tensor, memory: torch.Tensor, seen_tokens: int = 0):
        self.hidden = hidden  # (N, n)
        self.memory = memory  # (N, n)
        self.seen_tokens = seen_tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def reorder_cache(self, beam_idx: torch.LongTensor):
        self.hidden = self.hidden.index_select(0, beam_idx)
        self.memory = self.memory.index_select(0, beam_idx)


class ShowAttendTellEncoder(nn.Module):
    """Feature map of the image, and its part of the attention network, which no step of the decoder changes."""

    main_input_name = "pixel_values"

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        if config.backbone_config is None:
            self.backbone = None
        elif config.backbone_config.model_type == "vgg":
            self.backbone = VggBackbone(config.backbone_config)
        else:
            self.backbone = load_backbone(config)
        if self.backbone is not None and self.backbone.channels[-1] != config.feature_size:
            raise ValueError(
                f"`feature_size` is {config.feature_size}, but the backbone's last feature map has "
                f"{self.backbone.channels[-1]} channels. Set `feature_size={self.backbone.channels[-1]}`."
            )
        self.key_layers = nn.ModuleList(
            nn.Linear(config.feature_size if i == 0 else config.attention_size, config.attention_size)
            for i in range(config.num_attention_layers)
        )
        self.key_layers[0].orthogonal_blocks = 0  # Gaussian in the authors' code, even though it is square

    def train(self, mode: bool = True):
        super().train(mode)
        if self.backbone is not None and self.config.freeze_backbone:
            self.backbone.eval()  # batch statistics and dropout of a frozen network stay as pretrained
        return self

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        **kwargs,
    ) -> "ShowAttendTellEncoderOutput":
        if (pixel_values is None) == (image_features is None):
            raise ValueError("Give either `pixel_values` or `image_features`, and not both.")
        if image_features is None:
            if self.backbone is None:
                raise ValueError("This model has no backbone (`backbone_config=None`): give it `image_features`.")
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
                feature_map = self.backbone(pixel_values).feature_maps[-1]  # (B, D, H, W)
            image_features = feature_map.flatten(2).transpose(1, 2).contiguous()
        elif image_features.shape[-1] != self.config.feature_size or image_features.dim() not in (3, 4):
            raise ValueError(
                f"`image_features` must be (batch, locations, {self.config.feature_size}) or (batch, height, width, "
                f"{self.config.feature_size}), got {tuple(image_features.shape)}."
            )
        else:
            image_features = image_features.flatten(1, -2).to(self.key_layers[0].weight.dtype)  # (B, L, D)

        keys = self.key_layers[0](image_features)
        for layer in self.key_layers[1:]:
            keys = torch.tanh(layer(keys))
        return ShowAttendTellEncoderOutput(last_hidden_state=image_features, attention_keys=keys)


class ShowAttendTellAttention(nn.Module):
    """Equations 4-6 and 13, with the gate of section 4.2.1."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.attention_size, bias=False)
        # A bias here would cancel in the softmax.
        self.score = nn.Linear(config.attention_size, 1, bias=False)
        gate_sizes = {"scalar": 1, "vector": config.feature_size, "none": 0}
        gate_size = gate_sizes[config.context_gate]
        self.gate = nn.Linear(config.hidden_size, gate_size) if gate_size else None

    def forward(
        self, hidden: torch.Tensor, features: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch, locations, _ = features.shape
        captions = hidden.shape[0] // batch  # captions, or beams, that share an image
        query = self.query(hidden).view(batch, captions, 1, -1)
        energy = self.score(torch.tanh(keys.unsqueeze(1) + query)).squeeze(-1)  # (B, K, L)
        weights = torch.softmax(energy.float(), dim=-1).to(features.dtype)
        context = torch.bmm(weights, features).flatten(0, 1)  # (N, D)
        if self.gate is not None:
            context = torch.sigmoid(self.gate(hidden)) * context
        return context, weights.flatten(0, 1)


class ShowAttendTellDecoder(nn.Module):
    """The LSTM of equations 1-3. All that does not depend on the previous state is computed outside its loop."""

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
        self.gates_from_hidden.orthogonal_blocks = 4
        self.gates_from_context = nn.Linear(config.feature_size, 4 * config.hidden_size, bias=False)

    def initial_state(self, features: torch.Tensor, captions: int) -> ShowAttendTellState:
        mean = features.mean(dim=1)
        for layer in self.init_layers:
            mean = self.init_dropout(torch.relu(layer(mean)))
        mean = mean.repeat_interleave(captions, dim=0)
        return ShowAttendTellState(torch.tanh(self.init_hidden(mean)), torch.tanh(self.init_memory(mean)))

    def forward(
        self,
        input_ids: torch.LongTensor,
        features: torch.Tensor,
        keys: torch.Tensor,
        past_key_values: ShowAttendTellState | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor], ShowAttendTellState]:
        if input_ids.shape[0] % features.shape[0]:
            raise ValueError(
                f"{input_ids.shape[0]} captions can not be shared out evenly among {features.shape[0]} images."
            )
        embeddings = self.embed_tokens(input_ids)
        if past_key_values is None:
            past_key_values = self.initial_state(features, captions=input_ids.shape[0] // features.shape[0])
        if past_key_values.seen_tokens == 0:
            # The first input is a vector of zeros, whatever token holds its place.
            embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], dim=1)
        embeddings = self.embedding_dropout(embeddings)

        hidden, memory = past_key_values.hidden, past_key_values.memory
        hiddens, contexts, attentions = [], [], []
        for gates in self.gates_from_word(embeddings).unbind(dim=1):
            context, weights = self.attention(hidden, features, keys)
            gates = gates + self.gates_from_hidden(hidden) + self.gates_from_context(context)
            input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(forget_gate) * memory + torch.sigmoid(input_gate) * torch.tanh(candidate)
            hidden = torch.sigmoid(output_gate) * torch.tanh(memory)
            hiddens.append(hidden)
            contexts.append(context)
            attentions.append(weights)
        state = ShowAttendTellState(hidden, memory, past_key_values.seen_tokens + input_ids.shape[1])
        return torch.stack(hiddens, dim=1), torch.stack(contexts, dim=1), embeddings, attentions, state


class ShowAttendTellPreTrainedModel(PreTrainedModel):
    config: ShowAttendTellConfig
    config_class = ShowAttendTellConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")

    @torch.no_grad()
    def _init_weights(self, module):
        """Gaussian weights and zero biases; square matrices, and those of each recurrent gate, are orthogonal."""
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            blocks = getattr(module, "orthogonal_blocks", 1)
            if module.out_features == blocks * module.in_features:
                orthogonal = [init.orthogonal_(torch.empty_like(block)) for block in module.weight.chunk(blocks)]
                init.copy_(module.weight, torch.cat(orthogonal))


@dataclass
class ShowAttendTellEncoderOutput(BaseModelOutput):
    r"""
    attention_keys (`torch.FloatTensor` of shape `(batch_size, locations, attention_size)`):
        The features as the attention network sees them.
    """

    attention_keys: torch.FloatTensor | None = None


@dataclass
class ShowAttendTellModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(captions, length, hidden_size)`):
        h_t of each step.
    contexts (`torch.FloatTensor` of shape `(captions, length, feature_size)`):
        The gated context z_t of each step.
    embeddings (`torch.FloatTensor` of shape `(captions, length, embedding_size)`):
        E y_{t-1} of each step; zeros at the first.
    past_key_values (`ShowAttendTellState`):
        The LSTM's state after the last step.
    cross_attentions (`tuple(torch.FloatTensor)` of one tensor of shape `(captions, 1, length, locations)`):
        alpha_t of each step.
    encoder_last_hidden_state (`torch.FloatTensor` of shape `(images, locations, feature_size)`):
        The features attended to.
    """

    last_hidden_state: torch.FloatTensor | None = None
    contexts: torch.FloatTensor | None = None
    embeddings: torch.FloatTensor | None = None
    past_key_values: ShowAttendTellState | None = None
    cross_attentions: tuple[torch.FloatTensor] | None = None
    encoder_last_hidden_state: torch.FloatTensor | None = None


@dataclass
class ShowAttendTellCaptionerOutput(Seq2SeqLMOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        `loss_caption + attention_penalty * loss_attention`.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` in training, where only the loss is wanted.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of a caption: summed over its words, averaged over captions.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The doubly stochastic term of equation 14 for a caption: sum over locations of (1 - sum over time)^2.
    """

    loss_caption: torch.FloatTensor | None = None
    loss_attention: torch.FloatTensor | None = None


class ShowAttendTellModel(ShowAttendTellPreTrainedModel):
    """The encoder and the LSTM, without the layer that chooses words."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.encoder = ShowAttendTellEncoder(config)
        self.decoder = ShowAttendTellDecoder(config)
        if config.freeze_backbone and self.encoder.backbone is not None:
            self.encoder.backbone.requires_grad_(False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        self.decoder.embed_tokens = value

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        encoder_outputs: ShowAttendTellEncoderOutput | None = None,
        past_key_values: ShowAttendTellState | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellModelOutput:
        r"""
        image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`. `(images, height, width, feature_size)` is taken too.
        decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
            The caption so far, the first id holding the place of the zero vector. The number of captions is a multiple
            K of the number of images: rows `b * K` to `b * K + K - 1` belong to image `b`, and share its features.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values=pixel_values, image_features=image_features)
        features, keys = encoder_outputs.last_hidden_state, encoder_outputs.attention_keys
        if decoder_input_ids is None:
            decoder_input_ids = torch.full(
                (features.shape[0], 1), self.config.decoder_start_token_id, device=features.device
            )
        hiddens, contexts, embeddings, attentions, state = self.decoder(
            decoder_input_ids, features, keys, past_key_values
        )
        return ShowAttendTellModelOutput(
            last_hidden_state=hiddens,
            contexts=contexts,
            embeddings=embeddings,
            past_key_values=state if use_cache is not False else None,
            cross_attentions=(torch.stack(attentions, dim=1).unsqueeze(1),),
            encoder_last_hidden_state=features,
        )


class ShowAttendTellForConditionalGeneration(ShowAttendTellPreTrainedModel, GenerationMixin):
    """Show, Attend and Tell, an image captioner."""

    # The loss is a mean over captions, so that Trainer's mean over accumulated batches is right as it is.
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
        self.post_init()
        # A caption is not the place for a token that stands for words unknown.
        hidden_tokens = [token for token in (config.unk_token_id, config.pad_token_id) if token is not None]
        self.generation_config.suppress_tokens = hidden_tokens or None

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_encoder(self, modality: str | None = None) -> ShowAttendTellEncoder:
        return self.model.encoder

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.lm_head = new_embeddings

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

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        encoder_outputs: ShowAttendTellEncoderOutput | None = None,
        past_key_values: ShowAttendTellState | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellCaptionerOutput:
        r"""
        labels (`torch.LongTensor` of shape `(captions, length)` or `(images, captions, length)`, *optional*):
            Captions that end with the end token, padded with -100; a row of -100 alone is no caption.
            `decoder_input_ids` are made from them.
        """
        if labels is not None:
            labels = labels.flatten(0, -2)
            if decoder_input_ids is None:
                decoder_input_ids = labels.new_full(labels.shape, self.config.decoder_start_token_id)
                decoder_input_ids[:, 1:] = labels[:, :-1].clamp(min=0)
        outputs = self.model(
            pixel_values=pixel_values,
            image_features=image_features,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        states = (outputs.last_hidden_state, outputs.contexts, outputs.embeddings)

        loss = loss_caption = loss_attention = logits = None
        if labels is None or not self.training:
            logits = self.deep_output(*states)
        if labels is not None:
            is_word = labels != -100
            is_caption = is_word.any(dim=-1)  # images of a batch need not have equally many captions
            num_captions = is_caption.sum().clamp(min=1)
            # Padding is left out before the vocabulary projection, the widest of the model.
            word_logits = (
                self.deep_output(*(state[is_word] for state in states)) if logits is None else logits[is_word]
            )
            loss_caption = nn.functional.cross_entropy(word_logits.float(), labels[is_word], reduction="sum")
            loss_caption = loss_caption / num_captions
            attended = (outputs.cross_attentions[0].squeeze(1) * is_word.unsqueeze(-1)).sum(dim=1)  # (N, L)
            loss_attention = ((1 - attended).square().sum(dim=-1) * is_caption).sum() / num_captions
            loss = loss_caption + self.config.attention_penalty * loss_attention

        return ShowAttendTellCaptionerOutput(
            loss=loss,
            loss_caption=loss_caption,
            loss_attention=loss_attention,
            logits=logits,
            past_key_values=outputs.past_key_values,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
        )

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        if inputs is None and model_kwargs.get("image_features") is not None:
            return model_kwargs.pop("image_features"), "image_features", model_kwargs
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)

    def _expand_inputs_for_generation(self, is_encoder_decoder: bool = True, encoder_outputs=None, **kwargs):
        # Beams share the features of their image, so these are not repeated.
        input_ids, model_kwargs = super()._expand_inputs_for_generation(is_encoder_decoder=False, **kwargs)
        return input_ids, {**model_kwargs, "encoder_outputs": encoder_outputs}


__all__ = ["ShowAttendTellForConditionalGeneration", "ShowAttendTellModel", "ShowAttendTellPreTrainedModel"]
