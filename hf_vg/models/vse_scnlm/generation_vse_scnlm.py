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
"""`generate` of the structure-content language model: draw templates and contents, decode captions and rank them."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import ModelOutput, logging

from .configuration_vse_scnlm import EOS_TAG, PAD_TAG, VseScnlmConfig
from .kernels_vse_scnlm import encode_alike


class VseScnlmMemory(nn.Module):
    """The templates and the vectors of words and sentences that generation needs from the training captions."""

    template_tags: torch.Tensor
    template_counts: torch.Tensor
    word_embeds: torch.Tensor
    sentence_embeds: torch.Tensor

    def __init__(self, config: VseScnlmConfig):
        super().__init__()
        num_words = config.vocab_size if config.num_templates else 0
        self.template_tags = nn.Buffer(torch.zeros(config.num_templates, config.template_size, dtype=torch.long))
        self.template_counts = nn.Buffer(torch.zeros(config.num_templates, dtype=torch.long))
        self.word_embeds = nn.Buffer(torch.zeros(num_words, config.hidden_size))
        self.sentence_embeds = nn.Buffer(torch.zeros(config.num_sentences, config.hidden_size))


@dataclass
class VseScnlmGenerateOutput(ModelOutput):
    r"""
    sequences (`torch.LongTensor` of shape `(images * num_return_sequences, length)`):
        The captions, best first, each with its end token.
    tag_ids (`torch.LongTensor` of shape `(images * num_return_sequences, length)`):
        The tag of each word, as an index into `config.tags`.
    scores (`torch.FloatTensor` of shape `(images * num_return_sequences,)`):
        `similarity_weight * similarities + language_model_weight * log_probabilities`.
    similarities (`torch.FloatTensor` of shape `(images * num_return_sequences,)`):
        Cosines between the captions and the image (or the given vector).
    log_probabilities (`torch.FloatTensor` of shape `(images * num_return_sequences,)`):
        Log probability per token under the trigram language model, including the end token.
    """

    sequences: torch.Tensor | None = None
    tag_ids: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    similarities: torch.Tensor | None = None
    log_probabilities: torch.Tensor | None = None


class VseScnlmGenerationMixin(GenerationMixin):
    """Adds `generate` to [`VseScnlmForConditionalGeneration`], and `remember`, which collects the data it needs."""

    # Options of `generate` that other models do not have. Their values are saved in the generation config.
    generation_defaults = {
        "num_candidates": 1000,
        "num_neighbors": 5,
        "content_weights": [1.0, 1.0, 1.0],
        "similarity_weight": 1.0,
        "language_model_weight": 0.2,
    }

    @torch.no_grad()
    def remember(
        self,
        input_ids: torch.Tensor,
        tag_ids: torch.Tensor,
        num_sentences: int = 5000,
        min_template_length: int = 4,
        max_template_length: int = 12,
        batch_size: int = 256,
    ) -> None:
        r"""
        Collects what `generate` needs from the training captions: templates, vectors and a trigram language model.
        Call it once after training. Everything is saved with the model.

        Args:
            input_ids (`torch.LongTensor` of shape `(captions, length)`):
                The training captions, with their end tokens, padded on the right.
            tag_ids (`torch.LongTensor` of shape `(captions, length)`):
                The tags of the tokens. Positions after the end token have the padding tag, 0.
            num_sentences (`int`, *optional*, defaults to 5000):
                Number of captions whose vectors are kept, spread evenly over all captions.
            min_template_length (`int`, *optional*, defaults to 4):
                Captions with fewer words are not used as templates.
            max_template_length (`int`, *optional*, defaults to 12):
                Captions with more words are not used as templates.
            batch_size (`int`, *optional*, defaults to 256):
                Number of sentences per batch.
        """
        config, device = self.config, self.device
        attention_mask = (input_ids != config.pad_token_id).long()
        lengths = attention_mask.sum(dim=1) - 1  # without the end token
        fits = (lengths >= min_template_length) & (lengths <= max_template_length)
        if not fits.any():
            raise ValueError(
                f"None of the {len(input_ids)} captions has {min_template_length} to {max_template_length} words, so "
                "there is no template to generate from."
            )
        tags = tag_ids[fits][:, : lengths[fits].max()]
        tags = tags.masked_fill(tags == config.tags.index(EOS_TAG), config.tags.index(PAD_TAG))
        templates, counts = torch.unique(tags, dim=0, return_counts=True)
        kept = torch.linspace(0, len(input_ids) - 1, min(num_sentences, len(input_ids))).long()

        memory = self.memory
        memory.word_embeds = self.embed_words(torch.arange(config.vocab_size), batch_size)
        memory.sentence_embeds = self._encode(input_ids[kept], attention_mask[kept], batch_size, "sentences")
        memory.template_tags, memory.template_counts = templates.to(device), counts.to(device)
        self.trigrams.count(input_ids, attention_mask)
        config.num_templates, config.template_size = templates.shape
        config.num_sentences = len(kept)
        config.num_bigrams, config.num_trigrams = len(self.trigrams.bigrams), len(self.trigrams.trigrams)

    def embed_words(self, words: torch.Tensor, batch_size: int = 256) -> torch.Tensor:
        """Returns the vectors of words. Each word is encoded as a sentence."""
        sentences = torch.stack([words, torch.full_like(words, self.config.eos_token_id)], dim=1)
        return self._encode(sentences, torch.ones_like(sentences), batch_size, "words")

    def _encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, batch_size: int, what: str) -> Any:
        starts = range(0, len(input_ids), batch_size)
        batches = [
            self.model.get_text_features(
                input_ids[start : start + batch_size].to(self.device),
                attention_mask[start : start + batch_size].to(self.device),
                return_dict=True,
            ).pooler_output
            for start in logging.tqdm(starts, desc=f"Encoding {what}", disable=len(starts) < 10)
        ]
        return torch.cat(batches) if batches else torch.zeros(0, self.config.hidden_size, device=self.device)

    @torch.no_grad()
    def generate(
        self,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        content_embeds: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs: Any,
    ) -> torch.Tensor | VseScnlmGenerateOutput:
        r"""
        Describes images, or any vectors of the space.

        The model draws templates (sequences of tags) and contents (vectors), decodes a caption for each pair, and
        ranks the captions by their similarity to the image and by a trigram language model. Templates are drawn as
        often as they occur in the training captions. A content is the vector itself, the mean of its nearest words, or
        the mean of its nearest training sentences. All images of a call share the same draws, so the result does not
        depend on the batch.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(images, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor` of shape `(images, feature_size)`, *optional*):
                Precomputed features, instead of `pixel_values`.
            content_embeds (`torch.FloatTensor` of shape `(vectors, hidden_size)`, *optional*):
                Vectors of the space to describe, such as those of sentences, instead of images.
            input_ids (`torch.LongTensor` of shape `(images, length)`, *optional*):
                The first words of each caption. Start, end and padding tokens are removed.
            decoder_input_ids (`torch.LongTensor` of shape `(images, length)`, *optional*):
                Another name for `input_ids`.
            attention_mask (`torch.Tensor` of shape `(images, length)`, *optional*):
                Not needed: padding is removed.
            generation_config ([`GenerationConfig`], *optional*, defaults to the model's):
                Holds the options below.
            kwargs (*optional*):
                The same options, given directly:

                - **num_candidates** (`int`, defaults to 1000) -- number of template-content pairs to draw.
                - **num_neighbors** (`int`, defaults to 5) -- number of nearest words, or sentences, in a content.
                - **content_weights** (`list[float]`, defaults to `[1.0, 1.0, 1.0]`) -- relative frequencies of the
                  vector itself, of the mean of its nearest words, and of the mean of its nearest sentences.
                - **similarity_weight** (`float`, defaults to 1.0) -- weight of the cosine in a caption's score.
                - **language_model_weight** (`float`, defaults to 0.2) -- weight of the log probability per token.
                - **num_return_sequences** (`int`, defaults to 1) -- number of distinct captions to return per image.
                - **max_new_tokens** (`int`, *optional*) -- largest number of new words. Longer templates are skipped.
                - **return_dict_in_generate** (`bool`, defaults to `False`) -- whether to return tags and scores too.

        Returns:
            `torch.LongTensor` or [`VseScnlmGenerateOutput`]: The captions, padded after their end tokens.
        """
        settings = copy.deepcopy(self.generation_config if generation_config is None else generation_config)
        missing = {key: value for key, value in self.generation_defaults.items() if not hasattr(settings, key)}
        # `update` would reject several sequences without beams or sampling.
        for key, value in {**missing, **kwargs}.items():
            if key not in missing and not hasattr(settings, key):
                raise ValueError(f"`generate` got an unknown option {key!r}.")
            setattr(settings, key, value)
        if settings.do_sample or (settings.num_beams or 1) > 1:
            raise ValueError(
                "This model does not support `do_sample` and `num_beams`: it decodes `num_candidates` templates "
                "greedily and ranks the captions."
            )
        for name in ("output_attentions", "output_hidden_states", "output_logits"):
            if getattr(settings, name):
                raise ValueError(f"`generate` of this model does not support `{name}`.")
        if not self.config.num_templates:
            raise ValueError("This model has no templates to generate from. Call `remember` with tagged captions.")
        if content_embeds is None:
            targets = self.model.get_image_features(pixel_values, image_features, return_dict=True).pooler_output
        elif pixel_values is None and image_features is None:
            targets = nn.functional.normalize(content_embeds.to(self.dtype), dim=-1)
        else:
            raise ValueError("Pass one of `pixel_values`, `image_features` and `content_embeds`, not several.")

        if input_ids is not None and decoder_input_ids is not None:
            raise ValueError("Pass either `input_ids` or `decoder_input_ids`, not both.")
        prefix = self._prefix(decoder_input_ids if input_ids is None else input_ids, len(targets))  # (B, P)

        contents = self.contents(targets, settings.num_neighbors)  # (B, S, G)
        weights = settings.content_weights[: contents.shape[1]]  # only two contents if no sentences are kept
        shortest, longest = prefix.shape[1] + 1, settings.max_new_tokens
        longest = None if longest is None else longest + prefix.shape[1]
        tags, which = self.draw(settings.num_candidates, weights, longest, shortest)
        words = self.decode(tags, contents, which, prefix)  # (B, M, T)
        number = settings.num_return_sequences or 1
        output = VseScnlmGenerateOutput(*self.rank(words, targets, tags, number, settings))
        return output if settings.return_dict_in_generate else output.sequences

    def _prefix(self, input_ids: torch.Tensor | None, images: int) -> torch.Tensor:
        """Returns the first words of captions, padded on the right. The shape is `(images, 0)` if there are none."""
        config = self.config
        if input_ids is None:
            input_ids = torch.empty(images, 0, dtype=torch.long)
        if input_ids.shape[:-1] != (images,):
            raise ValueError(
                f"`input_ids` must have one row for each of the {images} images, got {tuple(input_ids.shape)}."
            )
        special = {config.decoder_start_token_id, config.eos_token_id, config.pad_token_id}
        rows = [torch.tensor([id for id in row if id not in special], dtype=torch.long) for row in input_ids.tolist()]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
        return padded.to(self.device)

    def contents(self, targets: torch.Tensor, num_neighbors: int) -> torch.Tensor:
        """Returns the vectors to decode from, of shape `(images, contents, hidden_size)` and unit length."""
        contents = [targets]
        special = [self.config.eos_token_id, self.config.unk_token_id, self.config.pad_token_id]
        for embeds, hidden in ((self.memory.word_embeds, special), (self.memory.sentence_embeds, [])):
            if len(embeds):
                scores = targets @ embeds.T
                scores[:, [id for id in hidden if id is not None]] = -torch.inf
                nearest = scores.topk(min(num_neighbors, len(embeds)), dim=1).indices
                contents.append(nn.functional.normalize(embeds[nearest].mean(dim=1), dim=-1))
        return torch.stack(contents, dim=1)

    def draw(
        self, count: int, content_weights: list[float], max_length: int | None = None, min_length: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws templates, and the content of each. Pairs that were drawn twice are removed."""
        tags, weights = self.memory.template_tags, self.memory.template_counts.double()
        lengths = (tags != self.config.tags.index(PAD_TAG)).sum(dim=1)
        weights = weights * (lengths >= min_length)
        if not weights.any():
            raise ValueError(f"No template has {min_length} words or more. Pass fewer first words of the caption.")
        if max_length is not None:
            weights = weights * (lengths <= max_length)
            if not weights.any():
                raise ValueError(f"No template has {max_length} words or fewer. Raise `max_new_tokens`.")
        content_weights = torch.tensor(content_weights, dtype=weights.dtype, device=weights.device)
        if not ((content_weights >= 0).all() and content_weights.any()):
            raise ValueError(f"`content_weights` must be 0 or more, but not all 0, got {content_weights.tolist()}.")
        templates = torch.multinomial(weights, count, replacement=True)
        contents = torch.multinomial(content_weights, count, replacement=True)
        pairs = torch.unique(templates * len(content_weights) + contents)
        return tags[pairs // len(content_weights)], pairs % len(content_weights)

    def decode(
        self,
        tags: torch.Tensor,
        contents: torch.Tensor,
        which: torch.Tensor,
        prefix: torch.Tensor | None = None,
    ) -> torch.Tensor:
        r"""
        Decodes captions greedily: the most probable word for each tag of a template, one after the other.

        Args:
            tags (`torch.LongTensor` of shape `(templates, length)`):
                The templates.
            contents (`torch.FloatTensor` of shape `(images, contents, hidden_size)`):
                The vectors to decode from.
            which (`torch.LongTensor` of shape `(templates,)`):
                The index of the content of each template.
            prefix (`torch.LongTensor` of shape `(images, words)`, *optional*):
                The first words of the captions of each image, padded on the right.

        Returns:
            `torch.LongTensor` of shape `(images, templates, length + 1)`: The captions with their end tokens.
        """
        config, decoder = self.config, self.decoder
        size, pad_tag = config.context_size, config.tags.index(PAD_TAG)
        images, num_contents, _ = contents.shape
        is_word = tags != pad_tag
        lengths = is_word.sum(dim=1, keepdim=True)
        # As in training, the tag of the end token comes after the tag of the last word.
        ahead = nn.functional.pad(tags, (0, max(config.num_forward_tags, 1)), value=pad_tag)
        ahead = ahead.scatter(1, lengths, config.tags.index(EOS_TAG))
        windows = ahead.unfold(1, config.num_forward_tags + 1, 1).repeat(images, 1, 1)  # (B * M, T, k + 1)
        which = (which + num_contents * torch.arange(images, device=which.device).unsqueeze(1)).flatten()
        tables = (decoder.content(contents.flatten(0, 1)), decoder.tag_table(), decoder.word_table())
        words = tags.new_full((len(windows), size + tags.shape[1]), config.decoder_start_token_id)
        # Captions with the same content and the same tags so far have the same words, so only one of them is decoded.
        alike = number_rows(torch.cat([which.unsqueeze(1), windows[:, 0, :-1]], dim=1))
        for position in range(int(lengths.max())):
            rows = is_word[:, position].repeat(images).nonzero().squeeze(1)
            alike[rows] = number_rows(torch.stack([alike[rows], windows[rows, position, -1]], dim=1))
            one_of_each = rows[first_rows(alike[rows])]
            states = which[one_of_each], words[one_of_each, position : position + size], windows[one_of_each, position]
            parts = zip(*(state.split(1024) for state in states), strict=True)
            chosen = torch.cat([self._most_probable(*part, *tables) for part in parts])  # type: ignore[call-arg]
            words[rows, position + size] = chosen[alike[rows]]
            if prefix is not None and position < prefix.shape[1]:
                given = prefix[rows // len(tags), position]
                words[rows, position + size] = torch.where(given == config.pad_token_id, chosen[alike[rows]], given)
        words = words[:, size:].unflatten(0, (images, -1)).masked_fill(~is_word, config.pad_token_id)
        words = nn.functional.pad(words, (0, 1), value=config.pad_token_id)
        return words.scatter(2, lengths.expand(images, -1, 1), config.eos_token_id)

    def _most_probable(
        self,
        which: torch.Tensor,
        previous: torch.Tensor,
        tags: torch.Tensor,
        contents: torch.Tensor,
        tag_table: torch.Tensor,
        word_table: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the best word for each content, given the previous words and the next tags."""
        config = self.config
        context = sum(nn.functional.embedding(*pair) for pair in zip(previous.unbind(1), word_table, strict=True))
        logits = self.decoder.lm_head(self.decoder(context, tags, contents[which], tag_table))
        # The template determines the length, so the end token is never chosen. <unk> and <pad> are not words.
        hidden = [config.eos_token_id, config.unk_token_id, config.pad_token_id]
        logits[:, [id for id in hidden if id is not None]] = -torch.inf
        return logits.argmax(dim=-1)

    def rank(
        self, words: torch.Tensor, targets: torch.Tensor, tags: torch.Tensor, number: int, settings: Any
    ) -> tuple[torch.Tensor, ...]:
        """Returns the best captions of each image, with their tags and scores."""
        images, templates, length = words.shape
        image = torch.arange(images, device=words.device).repeat_interleave(templates)
        words = words.flatten(0, 1)
        first = first_rows(number_rows(torch.cat([image.unsqueeze(1), words], dim=1)))  # drop duplicate captions
        image, words, tags = image[first], words[first], tags[first % templates]
        rows_of = [(image == place).nonzero().squeeze(1) for place in range(images)]
        fewest = min(len(rows) for rows in rows_of)
        if fewest < number:
            raise ValueError(
                f"`num_return_sequences={number}`, but only {fewest} different captions were found. Raise "
                "`num_candidates`."
            )
        attention_mask = (words != self.config.pad_token_id).long()
        lengths = attention_mask.sum(dim=1)
        tags = nn.functional.pad(tags, (0, 1), value=self.config.tags.index(PAD_TAG))
        tags = tags.scatter(1, lengths.unsqueeze(1) - 1, self.config.tags.index(EOS_TAG))

        log_probabilities = self.trigrams.log_probabilities(words, attention_mask).sum(dim=1) / lengths
        scores = settings.language_model_weight * log_probabilities
        similarities = torch.full_like(scores, torch.nan)
        # Encoding captions takes most of the time. A cosine is at most 1 (up to rounding), so the most likely captions
        # are encoded first, and then only those whose score can still exceed the best of them.
        at_most = scores + 1.01 * abs(settings.similarity_weight)
        least = torch.stack([at_most[rows].topk(max(number, len(rows) // 10)).values[-1] for rows in rows_of])
        for _ in range(2):
            rows = (similarities.isnan() & (at_most >= least[image])).nonzero().squeeze(1)
            if len(rows):
                encoded = encode_alike(self.model.text_encoder, words[rows], lengths[rows])
                encoded = nn.functional.normalize(encoded, dim=-1)
                similarities[rows] = (encoded * targets[image[rows]]).sum(dim=-1).float()
                scores[rows] += settings.similarity_weight * similarities[rows]
            ranked = scores.masked_fill(similarities.isnan(), -torch.inf)
            best = [rows[ranked[rows].topk(number).indices] for rows in rows_of]
            least = torch.stack([ranked[rows[-1]] for rows in best])
        best = torch.cat(best)
        return words[best], tags[best], scores[best], similarities[best], log_probabilities[best]


def number_rows(rows: torch.Tensor) -> torch.Tensor:
    """Numbers distinct rows from 0 on. Equal rows get the same number."""
    return torch.unique(rows, dim=0, return_inverse=True)[1]


def first_rows(numbers: torch.Tensor) -> torch.Tensor:
    """Returns the index of the first row with each number of [`number_rows`]."""
    places = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(places, len(numbers)).scatter_reduce(0, numbers, places, "amin")
    return first[: int(numbers.max()) + 1]


__all__ = ["VseScnlmGenerationMixin"]
