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
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from ..generation import CaptionGenerationMixin
from ..image_encoder import ImageEncoder
from ..publishing import PublishedModelMixin
from .configuration_show_attend_tell import ShowAttendTellConfig


class ShowAttendTellState:
    """The recurrent state, standing where `generate` keeps its key-value cache."""

    def __init__(
        self,
        hidden: torch.Tensor,
        memory: torch.Tensor,
        hidden_weight: torch.Tensor,
        key_factors: torch.Tensor | None = None,
        seen_tokens: int = 0,
    ):
        self.hidden = hidden  # (N, n)
        self.memory = memory  # (N, n)
        # Made once a caption and not once a word: all that multiplies h, and what `factored_energy` takes.
        self.hidden_weight = hidden_weight
        self.key_factors = key_factors
        self.seen_tokens = seen_tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def reorder_cache(self, beam_idx: torch.LongTensor):
        self.hidden = self.hidden.index_select(0, beam_idx)
        self.memory = self.memory.index_select(0, beam_idx)


class ShowAttendTellHoistedGradients(torch.autograd.Function):
    """
    Hands the inputs of all steps through to a loop that uses `keys` and `weights` detached. In the backward pass the
    gradient of all steps arrives here at once, and what each of them would add up by itself is made in one go.
    """

    @staticmethod
    def forward(ctx, step_inputs, loop, keys, score, *weights):
        ctx.loop = loop
        ctx.save_for_backward(score)
        ctx.weight_sizes = [weight.shape[0] for weight in weights]
        return step_inputs.view_as(step_inputs)

    @staticmethod
    def backward(ctx, gradient):
        (score,) = ctx.saved_tensors
        weight_gradients = [
            gradient[:, :size].T @ torch.cat(steps).to(gradient.dtype)
            for size, steps in zip(ctx.weight_sizes, ctx.loop.multiplied, strict=True)
        ]
        keys_gradient, ctx.loop.keys_gradient = ctx.loop.keys_gradient, None
        if keys_gradient is not None:
            keys_gradient = keys_gradient * score
        return gradient, None, keys_gradient, None, *weight_gradients


class ShowAttendTellLoop:
    """What the steps of one loop leave for `ShowAttendTellHoistedGradients`."""

    def __init__(self, keys: torch.Tensor):
        self.keys = keys.detach()  # (B, L, A)
        self.multiplied = [], []  # for each weight, what each step multiplied by it
        self.keys_gradient = None  # without the factor u, which is the same in every step


def cache_sized(tensor: torch.Tensor, elements: int) -> list[slice]:
    """Slices of images, of `elements` each, that a processor's cache holds from one operation to the next."""
    images = tensor.shape[0]
    step = max(1, 2**19 // elements) if tensor.device.type == "cpu" else images
    return [slice(start, start + step) for start in range(0, images, step)]


class ShowAttendTellEnergy(torch.autograd.Function):
    """Equation 4: u . tanh(key + query) of every location, for the first images of the batch."""

    @staticmethod
    def forward(ctx, query, score, loop):
        keys = loop.keys[: query.shape[0]]
        shape = torch.Size([*query.shape[:2], *keys.shape[1:]])
        activation, energy = keys.new_empty(shape), keys.new_empty(shape[:-1])  # (B, K, L, A), (B, K, L)
        for part in cache_sized(activation, shape[1:].numel()):
            torch.add(keys[part].unsqueeze(1), query[part].unsqueeze(2), out=activation[part])
            torch.matmul(activation[part].tanh_(), score, out=energy[part])
        ctx.loop = loop
        ctx.save_for_backward(activation, score)
        return energy

    @staticmethod
    def backward(ctx, gradient):
        activation, score = ctx.saved_tensors
        if ctx.loop.keys_gradient is None:
            ctx.loop.keys_gradient = torch.zeros_like(ctx.loop.keys)
        score_gradient = torch.zeros_like(score)
        query_gradient = activation.new_empty(*activation.shape[:2], 1, activation.shape[-1])
        one = activation.new_ones(())
        for part in cache_sized(activation, activation[0].numel()):
            rows, tanh = gradient[part], activation[part]
            score_gradient += rows.flatten() @ tanh.flatten(0, 2)
            slope = torch.addcmul(one, tanh, tanh, value=-1)
            torch.matmul(rows.unsqueeze(2), slope, out=query_gradient[part])
            keys_gradient = ctx.loop.keys_gradient[part][: len(rows)]
            for caption in range(rows.shape[1]):
                keys_gradient.addcmul_(slope[:, caption], rows[:, caption].unsqueeze(-1))
        return query_gradient.squeeze(2) * score, score_gradient, None


EXPONENT_LIMIT = 40.0  # e^(2 * 40) is neither zero nor infinite in single precision


def tanh_factors(values: torch.Tensor) -> torch.Tensor | None:
    """e^(2 x), or `None` where its range does not suffice."""
    in_range = values.dtype in (torch.float32, torch.float64) and values.abs().max() < EXPONENT_LIMIT
    return torch.exp(2 * values) if in_range else None


def factored_energy(key_factors: torch.Tensor, query_factors: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """
    Equation 4 without a tanh of every location: tanh(k + q) = 1 - 2 / (1 + e^2k e^2q), of which the first factor is
    the same for all words of a caption.
    """
    parts = [
        (key_factors[part].unsqueeze(1) * query_factors[part].unsqueeze(2)).add_(1).reciprocal_() @ score
        for part in cache_sized(key_factors, query_factors.shape[1] * key_factors[0].numel())
    ]
    return score.sum() - 2 * torch.cat(parts)


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
        self.key_layers[0].orthogonal_blocks = 0  # Gaussian in the authors' code, even though it is square

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        **kwargs,
    ) -> "ShowAttendTellEncoderOutput":
        image_features = self.image_encoder(pixel_values, image_features).flatten(1, -2)  # (B, L, D)
        image_features = image_features.to(self.key_layers[0].weight.dtype).contiguous()
        if self.training and self.feature_dropout.p > 0:
            image_features = self.feature_dropout(image_features.transpose(1, 2)).transpose(1, 2)

        keys = self.key_layers[0](image_features)
        for layer in self.key_layers[1:]:
            keys = torch.tanh(layer(keys))
        return ShowAttendTellEncoderOutput(last_hidden_state=image_features, attention_keys=keys)


class ShowAttendTellAttention(nn.Module):
    """Equations 4-6 and 13, with the gate of section 4.2.1."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.temperature = config.attention_temperature
        self.query = nn.Linear(config.hidden_size, config.attention_size, bias=False)
        # A bias here would cancel in the softmax.
        self.score = nn.Linear(config.attention_size, 1, bias=False)
        gate_sizes = {"scalar": 1, "vector": config.feature_size, "none": 0}
        gate_size = gate_sizes[config.context_gate]
        self.gate = nn.Linear(config.hidden_size, gate_size) if gate_size else None

    def forward(
        self,
        query: torch.Tensor,
        gate: torch.Tensor,
        features: torch.Tensor,
        keys: torch.Tensor,
        choice: str,
        loop: ShowAttendTellLoop | None = None,
        key_factors: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        batch, _, feature_size = features.shape
        query = query.unflatten(0, (batch, -1))  # (B, K, A): the captions, or beams, that share an image
        score = self.score.weight[0].to(keys.dtype)
        query_factors = tanh_factors(query) if key_factors is not None else None
        if loop is not None:
            energy = ShowAttendTellEnergy.apply(query, score, loop)  # (B, K, L)
        elif query_factors is not None:
            energy = factored_energy(key_factors, query_factors, score)
        else:
            energy = (keys.unsqueeze(1) + query.unsqueeze(2)).tanh_() @ score
        weights = torch.softmax(self.temperature * energy.float(), dim=-1).to(features.dtype)
        location = None
        if choice == "expected":
            context = torch.bmm(weights, features)  # (B, K, D)
        else:
            rows = weights.detach().flatten(0, 1)
            location = rows.argmax(dim=-1) if choice == "argmax" else torch.multinomial(rows.float(), 1).squeeze(-1)
            index = location.view(batch, -1, 1).expand(-1, -1, feature_size)
            context = features.gather(1, index)
        context = context.flatten(0, 1)  # (N, D)
        if self.gate is not None:
            context = torch.sigmoid(gate) * context
        return context, weights.flatten(0, 1), location


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

    def initial_state(self, features: torch.Tensor, keys: torch.Tensor, captions: int) -> ShowAttendTellState:
        mean = features.mean(dim=1)
        for layer in self.init_layers:
            mean = self.init_dropout(torch.relu(layer(mean)))
        mean = mean.repeat_interleave(captions, dim=0)
        from_hidden = [self.gates_from_hidden.weight, self.attention.query.weight]
        if self.attention.gate is not None:
            from_hidden.append(self.attention.gate.weight)
        # Other processors compute a tanh as fast as they read its argument, and gradients take another way.
        factored = keys.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return ShowAttendTellState(
            torch.tanh(self.init_hidden(mean)),
            torch.tanh(self.init_memory(mean)),
            torch.cat(from_hidden),
            tanh_factors(keys) if factored else None,
        )

    def context_choice(self) -> str:
        """How this forward pass makes a context of attention weights."""
        if self.config.attention_type == "soft":
            return "expected"
        # Locations are drawn for the gradient: where there is none, as in captions that training finds, this decodes.
        if not (self.training and torch.is_grad_enabled()):
            return self.config.hard_decoding
        # One draw a batch, as in the authors' code.
        return "sample" if torch.rand(()).item() < self.config.semi_sampling_probability else "expected"

    def forward(
        self,
        input_ids: torch.LongTensor,
        features: torch.Tensor,
        keys: torch.Tensor,
        past_key_values: ShowAttendTellState | None = None,
        lengths: torch.LongTensor | None = None,
    ) -> "ShowAttendTellModelOutput":
        (captions, length), images = input_ids.shape, features.shape[0]
        if captions % images:
            raise ValueError(f"{captions} captions can not be shared out evenly among {images} images.")
        embeddings = self.embed_tokens(input_ids)
        if past_key_values is None:
            past_key_values = self.initial_state(features, keys, captions // images)
        if past_key_values.seen_tokens == 0:
            # The first input is a vector of zeros, whatever token holds its place.
            embeddings = torch.cat([torch.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], dim=1)
        embeddings = self.embedding_dropout(embeddings)
        hidden, memory = past_key_values.hidden, past_key_values.memory

        encoder_last_hidden_state = features
        if lengths is None:
            positions, shapes = None, [(images, captions // images)] * length
            word_inputs = embeddings.transpose(0, 1).flatten(0, 1)
        else:
            image_order, rows, positions, shapes = longest_first(lengths.view(images, -1), length)
            word_inputs = embeddings.flatten(0, 1).index_select(0, positions)
            hidden, memory = hidden.index_select(0, rows), memory.index_select(0, rows)
            features, keys = features.index_select(0, image_order), keys.index_select(0, image_order)

        # What each step adds to the product of h with all its weights: gates, query of the attention, context gate.
        step_inputs = [self.gates_from_word(word_inputs)]  # (words, 4n), step by step
        step_inputs.append(step_inputs[0].new_zeros(len(word_inputs), self.config.attention_size))
        if self.attention.gate is not None:
            step_inputs.append(self.attention.gate.bias.to(step_inputs[0].dtype).expand(len(word_inputs), -1))
        sizes = [part.shape[-1] for part in step_inputs]
        step_inputs = torch.cat(step_inputs, dim=-1)
        hidden_weight, context_weight = past_key_values.hidden_weight, self.gates_from_context.weight

        loop = None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            loop = ShowAttendTellLoop(keys)
            score = self.attention.score.weight[0].detach().to(keys.dtype)
            step_inputs = ShowAttendTellHoistedGradients.apply(
                step_inputs, loop, keys, score, hidden_weight, context_weight
            )
            hidden_weight, context_weight = hidden_weight.detach(), context_weight.detach()
        dtype = step_inputs.dtype  # under autocast, that of its products
        hidden_weight, context_weight = hidden_weight.to(dtype).T, context_weight.to(dtype).T

        choice = self.context_choice()
        hiddens, contexts, attentions, locations = [], [], [], []
        shape = (images, captions // images)
        for step_input, (images, captions) in zip(step_inputs.split([b * k for b, k in shapes]), shapes, strict=True):
            if (images, captions) != shape:  # the others have ended
                hidden, memory = (
                    state.unflatten(0, shape)[:images, :captions].flatten(0, 1) for state in (hidden, memory)
                )
                if images != shape[0]:
                    features, keys = features[:images], keys[:images]
                shape = (images, captions)
            projected = torch.addmm(step_input, hidden.to(dtype), hidden_weight).split(sizes, dim=-1)
            context, weights, location = self.attention(
                projected[1], projected[-1], features, keys, choice, loop, past_key_values.key_factors
            )
            gates = torch.addmm(projected[0], context.to(dtype), context_weight)
            if loop is not None:
                loop.multiplied[0].append(hidden.detach())
                loop.multiplied[1].append(context.detach())
            input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(forget_gate) * memory + torch.sigmoid(input_gate) * torch.tanh(candidate)
            hidden = torch.sigmoid(output_gate) * torch.tanh(memory)
            hiddens.append(hidden)
            contexts.append(context)
            attentions.append(weights)
            locations.append(location)

        def by_caption(steps: list[torch.Tensor]) -> torch.Tensor:
            if positions is None:
                return torch.stack(steps, dim=1)
            steps = torch.cat(steps)
            return (
                steps.new_zeros(input_ids.numel(), *steps.shape[1:])
                .index_copy(0, positions, steps)
                .view(*input_ids.shape, *steps.shape[1:])
            )

        state = None
        if positions is None:
            state = ShowAttendTellState(
                hidden,
                memory,
                past_key_values.hidden_weight,
                past_key_values.key_factors,
                past_key_values.seen_tokens + length,
            )
        return ShowAttendTellModelOutput(
            last_hidden_state=by_caption(hiddens),
            contexts=by_caption(contexts),
            embeddings=embeddings,
            past_key_values=state,
            cross_attentions=(by_caption(attentions).unsqueeze(1),),
            locations=by_caption(locations) if choice != "expected" else None,
            encoder_last_hidden_state=encoder_last_hidden_state,
        )


def longest_first(
    lengths: torch.LongTensor, max_length: int
) -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor, list[tuple[int, int]]]:
    """
    Orders captions so that those going on at any step are the first captions of the first images, or nearly so.

    Args:
        lengths (`torch.LongTensor` of shape `(images, captions)`):
            The number of steps of each caption.
        max_length (`int`):
            The number of steps that captions are padded to.

    Returns:
        `tuple`: The order of images; that of rows; the positions in the flattened `(rows, max_length)` that the steps
        compute, one step after the other; and the number of images and of captions an image in each step.
    """
    device = lengths.device
    image_order = lengths.amax(dim=1).argsort(descending=True, stable=True)
    lengths, caption_order = lengths[image_order].sort(dim=1, descending=True, stable=True)
    rows = image_order.unsqueeze(1) * lengths.shape[1] + caption_order
    going_on = lengths.unsqueeze(-1) > torch.arange(int(lengths.max().clamp(min=1)), device=device)  # (B, K, T)
    images, captions = (going_on.any(dim=dim).sum(dim=0).clamp(min=1).tolist() for dim in (1, 0))
    shapes = list(zip(images, captions, strict=True))
    positions = [(rows[:b, :k] * max_length + step).flatten() for step, (b, k) in enumerate(shapes)]
    return image_order, rows.flatten(), torch.cat(positions), shapes


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

    @torch.no_grad()
    def _init_weights(self, module):
        """Gaussian weights and zero biases; square matrices, and those of each recurrent gate, are orthogonal."""
        super()._init_weights(module)
        if isinstance(module, ShowAttendTellForConditionalGeneration) and self.config.attention_type == "hard":
            init.zeros_(module.baseline)
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
    locations (`torch.LongTensor` of shape `(captions, length)`, *optional*):
        The one location looked at in each step, where hard attention chose one.
    encoder_last_hidden_state (`torch.FloatTensor` of shape `(images, locations, feature_size)`):
        The features attended to.
    """

    last_hidden_state: torch.FloatTensor | None = None
    contexts: torch.FloatTensor | None = None
    embeddings: torch.FloatTensor | None = None
    past_key_values: ShowAttendTellState | None = None
    cross_attentions: tuple[torch.FloatTensor] | None = None
    locations: torch.LongTensor | None = None
    encoder_last_hidden_state: torch.FloatTensor | None = None


@dataclass
class ShowAttendTellCaptionerOutput(Seq2SeqLMOutput):
    r"""
    loss (`torch.FloatTensor` of shape `(1,)`, *optional*):
        With soft attention `loss_caption + attention_penalty * loss_attention`, with hard attention
        `loss_caption + loss_reinforce + loss_entropy`.
    logits (`torch.FloatTensor` of shape `(captions, length, vocab_size)`, *optional*):
        Scores of the next word. `None` in training, where only the loss is wanted.
    loss_caption (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Negative log likelihood of a caption: summed over its words, averaged over captions.
    loss_attention (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The doubly stochastic term of equation 14 for a caption: sum over locations of (1 - sum over time)^2.
    loss_reinforce (`torch.FloatTensor` of shape `(1,)`, *optional*):
        The term whose gradient is the REINFORCE estimate of hard attention; its value means nothing by itself.
    loss_entropy (`torch.FloatTensor` of shape `(1,)`, *optional*):
        Minus the weighted entropy of the locations of hard attention.
    """

    loss_caption: torch.FloatTensor | None = None
    loss_attention: torch.FloatTensor | None = None
    loss_reinforce: torch.FloatTensor | None = None
    loss_entropy: torch.FloatTensor | None = None


class ShowAttendTellModel(ShowAttendTellPreTrainedModel):
    """The encoder and the LSTM, without the layer that chooses words."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.encoder = ShowAttendTellEncoder(config)
        self.decoder = ShowAttendTellDecoder(config)
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
        lengths: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ShowAttendTellModelOutput:
        r"""
        image_features (`torch.FloatTensor` of shape `(images, locations, feature_size)`, *optional*):
            Features computed before, instead of `pixel_values`. `(images, height, width, feature_size)` is taken too.
        decoder_input_ids (`torch.LongTensor` of shape `(captions, length)`, *optional*):
            The caption so far, the first id holding the place of the zero vector. The number of captions is a multiple
            K of the number of images: rows `b * K` to `b * K + K - 1` belong to image `b`, and share its features.
        lengths (`torch.LongTensor` of shape `(captions,)`, *optional*):
            The number of steps wanted of each caption. What is beyond need not be computed, and may be zero.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values=pixel_values, image_features=image_features)
        features, keys = encoder_outputs.last_hidden_state, encoder_outputs.attention_keys
        if decoder_input_ids is None:
            decoder_input_ids = torch.full(
                (features.shape[0], 1), self.config.decoder_start_token_id, device=features.device
            )
        return self.decoder(decoder_input_ids, features, keys, past_key_values, lengths)


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
        if config.attention_type == "hard":
            self.baseline = nn.Buffer(torch.zeros(()))
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

    @staticmethod
    def count_loss_items(labels: torch.LongTensor) -> torch.Tensor:
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

    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        image_features: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        caption_weights: torch.FloatTensor | None = None,
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
        caption_weights (`torch.FloatTensor` of shape `(captions,)` or `(images, captions)`, *optional*):
            What the log likelihood of each caption counts. Below zero, it is made less likely.
        num_items_in_batch (`torch.Tensor`, *optional*):
            The captions of all batches whose gradients are summed, on all processes. The loss is then this batch's
            share of their mean.
        """
        if labels is not None:
            labels = labels.flatten(0, -2)
            if decoder_input_ids is None:
                decoder_input_ids = labels.new_full(labels.shape, self.config.decoder_start_token_id)
                decoder_input_ids[:, 1:] = labels[:, :-1].clamp(min=0)
        # Shapes that change with every batch are not for a compiled model.
        only_words = labels is not None and self.training and not torch.compiler.is_compiling()
        outputs = self.model(
            pixel_values=pixel_values,
            image_features=image_features,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            lengths=(labels != -100).sum(dim=-1) if only_words else None,
        )
        states = (outputs.last_hidden_state, outputs.contexts, outputs.embeddings)

        logits = self.deep_output(*states) if labels is None or not self.training else None
        losses = {}
        if labels is not None:
            is_word = labels != -100
            is_caption = is_word.any(dim=-1)  # images of a batch need not have equally many captions
            num_captions = is_caption.sum().clamp(min=1)
            all_captions = kwargs.get("num_items_in_batch")
            share = 1 if all_captions is None else num_captions / all_captions
            # Padding is left out before the vocabulary projection, the widest of the model.
            word_logits = self.deep_output(*(s[is_word] for s in states)) if logits is None else logits[is_word]
            word_losses = nn.functional.cross_entropy(word_logits.float(), labels[is_word], reduction="none")
            weighted, weights = word_losses, None
            if caption_weights is not None:
                weights = caption_weights.flatten()
                weighted = word_losses * weights.unsqueeze(1).expand_as(labels)[is_word]
            losses["loss_caption"] = weighted.sum() / num_captions
            attention = outputs.cross_attentions[0].squeeze(1) * is_word.unsqueeze(-1)  # (N, T, L)
            uncovered = (1 - attention.sum(dim=1)).square().sum(dim=-1)
            losses["loss_attention"] = (uncovered * is_caption).sum() / num_captions
            if self.config.attention_type == "soft":
                loss = share * (losses["loss_caption"] + self.config.attention_penalty * losses["loss_attention"])
            else:
                losses["loss_attention"] = losses["loss_attention"].detach()
                losses |= self.hard_attention_losses(
                    attention, outputs.locations, word_losses.detach(), is_word, all_captions is not None, weights
                )
                loss = share * losses["loss_caption"] + losses["loss_reinforce"] + losses["loss_entropy"]
            losses["loss"] = loss

        return ShowAttendTellCaptionerOutput(
            **losses,
            logits=logits,
            past_key_values=outputs.past_key_values if use_cache is not False else None,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
        )

    def hard_attention_losses(
        self,
        attention: torch.Tensor,
        locations: torch.Tensor | None,
        word_losses: torch.Tensor,
        is_word: torch.Tensor,
        is_share: bool = False,
        caption_weights: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Terms whose gradient is that of equation 11, with the reward, baseline and sums of the authors' code."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        # The terms are sums over the global batch, and DDP takes the mean over processes. Trainer makes up for that
        # itself where a loss is its batch's share of a whole.
        processes = torch.distributed.get_world_size() if distributed and not is_share else 1
        log_attention = torch.log(attention.float() + 1e-8)
        entropy = (attention * log_attention).sum()
        reinforce = attention.new_zeros(())
        if locations is not None:
            losses = torch.zeros_like(is_word, dtype=word_losses.dtype).masked_scatter(is_word, word_losses)
            rewards = losses.sum(dim=1) / is_word.sum(dim=1).clamp(min=1) - self.baseline
            if caption_weights is not None:
                rewards = rewards * caption_weights
            chosen = log_attention.gather(2, locations.unsqueeze(-1)).squeeze(-1) * is_word
            reinforce = (rewards.unsqueeze(1) * chosen).sum()
        if self.training:
            total = torch.stack([word_losses.sum(), is_word.sum().to(word_losses.dtype)])
            if distributed:
                torch.distributed.all_reduce(total)
            # After use, and from the words of all processes, so that it is the same everywhere.
            self.baseline.lerp_((total[0] / total[1].clamp(min=1)).to(self.baseline), 1 - self.config.baseline_decay)
        return {
            "loss_reinforce": processes * self.config.reinforce_weight * reinforce,
            "loss_entropy": processes * self.config.entropy_weight * entropy,
        }


__all__ = ["ShowAttendTellForConditionalGeneration", "ShowAttendTellModel", "ShowAttendTellPreTrainedModel"]
