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
from collections import Counter

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessorPil,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from hf_vg.data import train_word_tokenizer
from hf_vg.models.vgg import VggConfig
from hf_vg.models.vse_scnlm import (
    VseScnlmConfig,
    VseScnlmForConditionalGeneration,
    VseScnlmModel,
    VseScnlmProcessor,
)
from hf_vg.models.vse_scnlm.kernels_vse_scnlm import encode_alike, encode_each
from tests.common import ModelTesterMixin, random_images, run_without_hf_vg


def tiny_config(**kwargs) -> VseScnlmConfig:
    defaults = {
        "backbone_config": VggConfig(depths=[1, 1], hidden_sizes=[4, 6]),
        "freeze_backbone": False,
        "feature_size": 6,
        "vocab_size": 12,
        "embedding_size": 5,
        "hidden_size": 8,
        "context_size": 3,
        "word_size": 7,
        "num_factors": 6,
        "num_forward_tags": 2,
        "tags": ["<pad>", "<eos>", "<unk>", "DT", "JJ", "NN"],
        "num_templates": 4,
        "template_size": 5,
        "num_sentences": 3,
        "num_bigrams": 5,
        "num_trigrams": 6,
    }
    return VseScnlmConfig(**{**defaults, **kwargs})


def tiny_processor(image_size: int = 8) -> VseScnlmProcessor:
    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": image_size}, crop_size={"height": image_size, "width": image_size}
    )
    tokenizer = train_word_tokenizer(["a red circle above two blue squares", "some words"], vocab_size=12)
    return VseScnlmProcessor(image_processor, tokenizer)


def tiny_sentences(count: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(3, 12, (count, 6), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    for row in range(count):
        length = [6, 4, 5, 3][row % 4]
        input_ids[row, length - 1] = 0
        input_ids[row, length:] = 2
        attention_mask[row, length:] = 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def tiny_inputs(batch_size: int = 3, size: int = 8) -> dict[str, torch.Tensor]:
    pixel_values = torch.randn(batch_size, 3, size, size, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": pixel_values, **tiny_sentences(batch_size), "image_ids": torch.arange(batch_size)}


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def restated_sentence(model: VseScnlmModel, words: list[int]) -> np.ndarray:
    """One word at a time, with the equations of the LSTM and of the GRU."""
    w = {name: p.detach().double().numpy() for name, p in model.text_encoder.named_parameters()}
    embeddings = [w["embed_tokens.weight"][word] for word in words]
    size = model.config.hidden_size
    if model.config.sentence_encoder == "bow":
        h = sum(embeddings)
    else:
        h, c = np.zeros(size), np.zeros(size)
        for x in embeddings:
            from_x = w["rnn.weight_ih_l0"] @ x + w["rnn.bias_ih_l0"]
            from_h = w["rnn.weight_hh_l0"] @ h + w["rnn.bias_hh_l0"]
            if model.config.sentence_encoder == "lstm":
                i, f, g, o = np.split(from_x + from_h, 4)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            else:
                (r_x, u_x, n_x), (r_h, u_h, n_h) = np.split(from_x, 3), np.split(from_h, 3)
                r, u = sigmoid(r_x + r_h), sigmoid(u_x + u_h)
                h = u * h + (1 - u) * np.tanh(n_x + r * n_h)
    return h / np.sqrt(sum(value**2 for value in h))


def restated_losses(images, sentences, ids, margin, max_violation) -> tuple[float, float]:
    """The paper's hinges, as a loop over pairs."""
    loss_images, loss_sentences = 0.0, 0.0
    for j in range(len(ids)):
        right = float(images[j] @ sentences[j])
        others = [i for i in range(len(ids)) if ids[i] != ids[j]]
        wrong_images = [max(0.0, margin - right + float(images[i] @ sentences[j])) for i in others]
        wrong_sentences = [max(0.0, margin - right + float(images[j] @ sentences[i])) for i in others]
        loss_images += max(wrong_images, default=0.0) if max_violation else sum(wrong_images)
        loss_sentences += max(wrong_sentences, default=0.0) if max_violation else sum(wrong_sentences)
    return loss_images, loss_sentences


class TestVseScnlmModel(ModelTesterMixin):
    model_class = VseScnlmModel
    auto_class = AutoModel
    outputs_to_compare = ("image_embeds", "text_embeds")
    num_hidden_states = {"hidden_states": 2}
    main_input = "input_ids"

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        return tiny_inputs(batch_size)

    @pytest.mark.parametrize(("normalize_image", "loss_reduction"), [(True, "mean"), (True, "sum"), (False, "sum")])
    @pytest.mark.parametrize("max_violation", [False, True])
    @pytest.mark.parametrize("sentence_encoder", ["lstm", "gru", "bow"])
    def test_equals_the_paper_restated(self, sentence_encoder, max_violation, normalize_image, loss_reduction):
        size = 8 if sentence_encoder == "bow" else 5
        config = tiny_config(
            backbone_config=None,
            sentence_encoder=sentence_encoder,
            embedding_size=size,
            max_violation=max_violation,
            normalize_image=normalize_image,
            loss_reduction=loss_reduction,
        )
        torch.manual_seed(0)
        model = VseScnlmModel(config).double().eval()
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.data = 0.3 * torch.randn_like(parameter)
        features, batch, ids = torch.randn(6, 6, dtype=torch.double), tiny_sentences(6), [0, 1, 2, 1, 3, 0]
        features[3], features[5] = features[1], features[0]
        outputs = model(image_features=features, image_ids=torch.tensor(ids), **batch)

        sentences = [
            restated_sentence(model, row[: sum(mask)])
            for row, mask in zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True)
        ]
        weight, bias = (p.detach().numpy() for p in model.image_projection.parameters())
        images = [weight @ (q / np.linalg.norm(q)) + bias for q in features.numpy()]
        units = [x / np.linalg.norm(x) for x in images]
        np.testing.assert_allclose(outputs.text_embeds.detach().numpy(), sentences, atol=1e-6)
        np.testing.assert_allclose(outputs.image_embeds.detach().numpy(), units, atol=1e-6)
        cosines = [[x @ v for v in sentences] for x in units]
        np.testing.assert_allclose(outputs.logits_per_image.detach().numpy(), cosines, atol=1e-6)
        np.testing.assert_allclose(outputs.logits_per_text.detach().numpy(), np.transpose(cosines), atol=1e-6)
        of_images, of_sentences = restated_losses(
            units if normalize_image else images, sentences, ids, config.margin, max_violation
        )
        assert of_images > 0 and of_sentences > 0
        if loss_reduction == "mean":  # over the six pairs
            of_images, of_sentences = of_images / 6, of_sentences / 6
        assert outputs.loss_images.item() == pytest.approx(of_images, abs=1e-5)
        assert outputs.loss_sentences.item() == pytest.approx(of_sentences, abs=1e-5)
        assert outputs.loss.item() == pytest.approx(of_images + of_sentences, abs=1e-5)

    def test_captions_of_an_image_share_it(self):
        model, pixels, sentences = self.model(), tiny_inputs(2)["pixel_values"], tiny_sentences(6)
        ids = torch.arange(2)
        shared = model(pixel_values=pixels, image_ids=ids, **sentences)
        repeated = model(
            pixel_values=pixels.repeat_interleave(3, dim=0), image_ids=ids.repeat_interleave(3), **sentences
        )
        torch.testing.assert_close(shared.loss, repeated.loss)
        assert shared.logits_per_image.shape == (2, 6)
        with pytest.raises(ValueError, match="6 sentences and 4 `image_ids` do not fit 4 images"):
            model(pixel_values=tiny_inputs(4)["pixel_values"], image_ids=torch.arange(4), **sentences)

    def test_features_serve_as_well_as_pixels(self):
        model, inputs = self.model(), self.inputs()
        features = model.image_encoder.backbone(inputs.pop("pixel_values")).feature_maps[-1].mean(dim=(2, 3))
        expected = model(**self.inputs())
        torch.testing.assert_close(model(**inputs, image_features=features).loss, expected.loss)
        embeds = model.get_image_features(image_features=features).pooler_output
        torch.testing.assert_close(embeds, expected.image_embeds)
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(**self.inputs(), image_features=features)
        with pytest.raises(ValueError, match="either `pixel_values` or `image_features`"):
            model(**inputs)
        with pytest.raises(ValueError, match=r"must be \(batch, 6\), got \(3, 5\)"):
            model(**inputs, image_features=features[:, :5])
        with pytest.raises(ValueError, match="no backbone"):
            VseScnlmModel(tiny_config(backbone_config=None))(**self.inputs())

    @pytest.mark.parametrize("sentence_encoder", ["lstm", "gru", "bow"])
    def test_padding_changes_nothing(self, sentence_encoder):
        model = VseScnlmModel(tiny_config(sentence_encoder=sentence_encoder, embedding_size=8)).eval()
        sentences = tiny_sentences()
        expected = model.get_text_features(**sentences).pooler_output
        longer = torch.nn.functional.pad(sentences["input_ids"], (0, 4), value=2)
        mask = torch.nn.functional.pad(sentences["attention_mask"], (0, 4))
        torch.testing.assert_close(model.get_text_features(longer, mask).pooler_output, expected)
        torch.testing.assert_close(model.get_text_features(longer).pooler_output, expected)

    @torch.no_grad()
    def test_features_are_had_as_from_clip(self):
        model, inputs = self.model(), self.inputs()
        asked = {"output_hidden_states": True, "return_dict": True}
        text = model.get_text_features(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], position_ids=None, **asked
        )
        image = model.get_image_features(pixel_values=inputs["pixel_values"], **asked)
        assert [tuple(states.shape) for states in text.hidden_states] == [(3, 6, 5), (3, 6, 8)]
        assert [tuple(states.shape) for states in image.hidden_states] == [(3, 6), (3, 8)]
        for features, get in (
            (text, lambda **options: model.get_text_features(inputs["input_ids"], **options)),
            (image, lambda **options: model.get_image_features(inputs["pixel_values"], **options)),
        ):
            assert torch.equal(features.hidden_states[-1], features.last_hidden_state)
            plain = get(return_dict=False)
            assert isinstance(plain, tuple) and torch.equal(plain[1], features.pooler_output)
            assert get().hidden_states is None
            with pytest.raises(ValueError, match="output_attentions"):
                get(output_attentions=True)

    def test_trainer_counts_the_words(self, tmp_path):
        rows = [{name: value[row] for name, value in self.inputs().items()} for row in range(3)]
        args = TrainingArguments(
            str(tmp_path),
            include_num_input_tokens_seen="all",
            max_steps=1,
            per_device_train_batch_size=3,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(self.model(), args, train_dataset=rows)
        trainer.train()
        assert trainer.state.num_input_tokens_seen == 3 * 6

    def test_learns_pairs_by_heart(self):
        model, inputs = self.model().train(), self.inputs(4)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(80):
            loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss.item() < 0.01
        assert model(**inputs).logits_per_image.argmax(dim=1).tolist() == [0, 1, 2, 3]

    def test_wrong_configs_are_refused(self):
        with pytest.raises(StrictDataclassClassValidationError, match="`embedding_size` must be `hidden_size`"):
            tiny_config(sentence_encoder="bow")
        with pytest.raises(StrictDataclassClassValidationError, match="`tags` must begin with"):
            tiny_config(tags=["DT", "NN"])
        with pytest.raises(ValueError, match="feature_size=6"):
            VseScnlmModel(tiny_config(feature_size=7))

    @pytest.mark.parametrize(
        "field",
        [
            {"vocab_size": 10**12},
            {"hidden_size": 0},
            {"embedding_size": -3},
            {"context_size": 0},
            {"num_forward_tags": -1},
            {"num_trigrams": 10**12},
            {"feature_dropout": 1.5},
            {"margin": float("nan")},
            {"loss_reduction": "max"},
            {"num_labels": 20_000_000},
        ],
        ids=str,
    )
    def test_a_field_out_of_range_is_named(self, field):
        with pytest.raises(Exception, match=next(iter(field))):
            tiny_config(**field)


class TestVseScnlmProcessor:
    def test_round_trip(self, tmp_path):
        processor, images = tiny_processor(), random_images(2)
        processor.save_pretrained(tmp_path)
        VseScnlmModel(tiny_config()).save_pretrained(tmp_path)
        loaded = AutoProcessor.from_pretrained(tmp_path)
        assert type(loaded) is VseScnlmProcessor
        texts = ["a red circle", "two words"]
        expected = processor(images=images, text=texts, return_tensors="pt")
        actual = loaded(images=images, text=texts, return_tensors="pt")
        assert set(actual) == set(expected) == {"pixel_values", "input_ids", "attention_mask"}
        for name in expected:
            assert torch.equal(actual[name], expected[name])
        assert loaded.batch_decode(actual["input_ids"], skip_special_tokens=True) == texts
        assert actual["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
        printed = run_without_hf_vg(
            f"""
            from transformers import AutoProcessor
            processor = AutoProcessor.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)
            print(processor(text=["a red circle"])["input_ids"])
            """,
            tmp_path,
        )
        assert printed.strip() == str(processor(text=["a red circle"])["input_ids"])

    def test_wrong_inputs_are_named(self):
        with pytest.raises(ValueError, match="Pass `images`, `text` or both"):
            tiny_processor()()
        with pytest.raises(TypeError, match="must be a str, got int"):
            tiny_processor()(text=["a", 3])


def tiny_captioner(remembers: bool = True, **kwargs) -> VseScnlmForConditionalGeneration:
    torch.manual_seed(0)
    kwargs = {"num_templates": 0, "num_sentences": 0, "num_bigrams": 0, "num_trigrams": 0, **kwargs}
    model = VseScnlmForConditionalGeneration(tiny_config(**kwargs)).eval()
    if remembers:
        model.remember(*tiny_captions(40), num_sentences=10, min_template_length=2)
    return model


def tiny_captions(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Captions of 2 to 5 words, and tags. With few words, n-grams repeat often."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(3, 9, (count, 6), generator=generator)
    tag_ids = torch.randint(3, 6, (count, 6), generator=generator)
    for row in range(count):
        length = 2 + row % 4
        input_ids[row, length], tag_ids[row, length] = 0, 1
        input_ids[row, length + 1 :], tag_ids[row, length + 1 :] = 2, 0
    return input_ids, tag_ids


def words_of(input_ids: torch.Tensor) -> list[list[int]]:
    return [[id for id in row if id != 2] for row in input_ids.tolist()]


def restated_probabilities(model, words: list[int], tags: list[int], u: np.ndarray) -> list[np.ndarray]:
    """P(w_n) of the SC-NLM for each n, as loops over context words, tags, factors and the vocabulary."""
    w = {name: p.detach().double().numpy() for name, p in model.decoder.named_parameters()}
    config = model.config
    W_fv, W_fk, W_fd = w["lm_head.weight"].T, w["factor_context.weight"], w["factor_attribute.weight"]
    factors, vocabulary, size = config.num_factors, config.vocab_size, config.hidden_size
    E = np.zeros((config.word_size, vocabulary))
    for f in range(factors):
        E += np.outer(W_fk[f], W_fv[f])
    # C^(i) belongs to the word i positions before, and T^(j) to the tag j positions after.
    blocks = np.split(w["context.weight"], config.context_size, axis=1)
    C = {i: blocks[config.context_size - i] for i in range(1, config.context_size + 1)}
    T = np.split(w["structure.weight"], config.num_forward_tags + 1)
    probabilities = []
    for n in range(len(words)):
        r = np.zeros(config.word_size)
        for i in range(1, config.context_size + 1):
            previous = words[n - i] if n - i >= 0 else config.decoder_start_token_id
            r += C[i] @ E[:, previous]
        u_hat = w["content.weight"] @ u + w["content.bias"]
        for j in range(config.num_forward_tags + 1):
            tag = tags[n + j] if n + j < len(tags) else 0
            u_hat = u_hat + T[j] @ w["embed_tags.weight"][tag]
        u_hat = [max(0.0, u_hat[g]) for g in range(size)]
        scores = []
        for word in range(vocabulary):
            score = w["lm_head.bias"][word]
            for f in range(factors):
                from_words = sum(W_fk[f, k] * r[k] for k in range(config.word_size))
                score += W_fv[f, word] * from_words * sum(W_fd[f, g] * u_hat[g] for g in range(size))
            scores.append(score)
        exponents = np.exp(scores)
        probabilities.append(exponents / exponents.sum())
    return probabilities


class TestVseScnlmForConditionalGeneration(ModelTesterMixin):
    model_class = VseScnlmForConditionalGeneration
    auto_class = AutoModelForImageTextToText
    outputs_to_compare = ("logits",)
    num_hidden_states = {"hidden_states": 2}
    main_input = "input_ids"
    frozen_parameters = ("model.",)

    def config(self):
        return tiny_config()

    def inputs(self, batch_size=3):
        input_ids, tag_ids = tiny_captions(batch_size)
        return {"labels": input_ids.masked_fill(input_ids == 2, -100), "tag_ids": tag_ids}

    def unlabelled_inputs(self):
        return dict(zip(("input_ids", "tag_ids"), tiny_captions(3), strict=True))

    @pytest.mark.parametrize("content", ["its own", "given"])
    def test_equals_the_paper_restated(self, content):
        model = tiny_captioner(remembers=False).double()
        for parameter in model.decoder.parameters():
            parameter.data = 0.7 * torch.randn_like(parameter)  # far from uniform
        inputs = self.inputs(4)
        input_ids = inputs["labels"].clamp(min=0).masked_fill(inputs["labels"] == -100, 2)
        given = torch.randn(4, 8, dtype=torch.double)
        vectors = given if content == "given" else model.model.get_text_features(input_ids).pooler_output
        outputs = model(**inputs, content_embeds=given if content == "given" else None)
        losses, tokens = [], 0
        for row, words in enumerate(words_of(input_ids)):
            tags = inputs["tag_ids"][row].tolist()[: len(words)]
            restated = restated_probabilities(model, words, tags, vectors[row].detach().numpy())
            actual = outputs.logits[row, : len(words)].softmax(dim=-1).detach().numpy()
            np.testing.assert_allclose(actual, restated, atol=1e-6)
            losses += [-np.log(p[word]) for p, word in zip(restated, words, strict=True)]
            tokens += len(words)
        assert max(p.max() for p in restated) > 0.3
        assert outputs.loss.item() == pytest.approx(sum(losses) / tokens, abs=1e-5)
        assert outputs.loss_caption.item() == outputs.loss.item()
        by_items = model(**inputs, content_embeds=None if content != "given" else given, num_items_in_batch=7)
        assert by_items.loss.item() == pytest.approx(sum(losses) / 7, abs=1e-5)

    def test_padding_changes_no_loss(self):
        model, inputs = self.model(), self.inputs()
        longer = {
            "labels": torch.nn.functional.pad(inputs["labels"], (0, 3), value=-100),
            "tag_ids": torch.nn.functional.pad(inputs["tag_ids"], (0, 3)),
        }
        torch.testing.assert_close(model(**longer).loss, model(**inputs).loss)
        with pytest.raises(ValueError, match=r"one tag per token, so its shape must be \(3, 6\), got \(3, 5\)"):
            model(labels=inputs["labels"], tag_ids=inputs["tag_ids"][:, :5])

    def test_trainer_counts_every_word(self, tmp_path):
        model, inputs = self.model(), self.inputs()
        trainer = Trainer(model, TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
        items = trainer._get_num_items_in_batch([inputs], torch.device("cpu"))
        assert items == (inputs["labels"] != -100).sum()
        outputs = model(**inputs, num_items_in_batch=items)
        torch.testing.assert_close(outputs.loss, outputs.loss_caption)

    def test_takes_the_space_from_its_checkpoint_and_gives_it_back(self, tmp_path):
        torch.manual_seed(3)
        space = VseScnlmModel(tiny_config(num_templates=0, num_sentences=0, num_bigrams=0, num_trigrams=0)).eval()
        space.save_pretrained(tmp_path)
        tags = ["<pad>", "<eos>", "<unk>", "X"]
        model = VseScnlmForConditionalGeneration.from_pretrained(tmp_path, tags=tags)
        assert model.decoder.embed_tags.num_embeddings == 4
        model.save_pretrained(tmp_path / "captioner")
        again = AutoModel.from_pretrained(tmp_path / "captioner")
        assert type(again) is VseScnlmModel
        # There is no warning about the other weights of the checkpoint.
        again, report = AutoModel.from_pretrained(tmp_path / "captioner", output_loading_info=True)
        assert not report["unexpected_keys"] and not report["missing_keys"]
        expected = space.get_text_features(**tiny_sentences()).pooler_output
        for loaded in (model.model, again):
            for name, weight in space.state_dict().items():
                assert torch.equal(loaded.state_dict()[name], weight), name
            # Not bit by bit: weights mapped from a file have another alignment, which can change the rounding.
            torch.testing.assert_close(loaded.get_text_features(**tiny_sentences()).pooler_output, expected)

    def test_words_follow_their_tags_after_training(self):
        """Each tag has its own words, and the content selects one of them. The model learns this from text alone."""
        model = tiny_captioner(remembers=False, decoder_dropout=0.0).train()
        generator = torch.Generator().manual_seed(0)
        tag_ids = torch.randint(3, 6, (64, 4), generator=generator)
        kind = torch.randint(0, 3, (64, 1), generator=generator)
        input_ids = 3 * (tag_ids - 3) + kind + 3  # words 3 to 11: three words for each of three tags
        input_ids = torch.nn.functional.pad(input_ids, (0, 1), value=0)
        tag_ids = torch.nn.functional.pad(tag_ids, (0, 1), value=1)
        directions = torch.nn.functional.normalize(torch.randn(3, 8, generator=generator))
        optimizer = torch.optim.Adam(model.decoder.parameters(), lr=2e-2)
        for _ in range(150):
            loss = model(labels=input_ids, tag_ids=tag_ids, content_embeds=directions[kind.squeeze(1)]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss.item() < 0.05
        model.eval().remember(input_ids, tag_ids, num_sentences=0)
        output = model.generate(
            content_embeds=directions, num_neighbors=1, similarity_weight=0.0, return_dict_in_generate=True
        )
        tags, contents = model.draw(200, [1.0])
        words = model.decode(tags, directions.unsqueeze(1), contents)[:, :, :4]
        # Most pairs of a template and a content do not occur in training.
        expected = 3 * (tags - 3) + torch.arange(3, 6).view(3, 1, 1)
        assert (words == expected).double().mean() > 0.95
        assert output.sequences.shape == (3, 5)


@pytest.mark.parametrize("sentence_encoder", ["lstm", "gru", "bow"])
def test_beginnings_that_sentences_share_are_read_once(sentence_encoder):
    sizes = {"embedding_size": 8} if sentence_encoder == "bow" else {}
    encoder = VseScnlmModel(tiny_config(sentence_encoder=sentence_encoder, **sizes)).eval().text_encoder
    input_ids = torch.randint(3, 5, (40, 6), generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(40) % 6 + 1
    reads = []
    if encoder.rnn is not None:
        encoder.rnn.register_forward_pre_hook(lambda module, inputs: reads.append(len(inputs[0])))
    encoded = encode_alike(encoder, input_ids, lengths)
    if encoder.rnn is not None:
        rows = zip(input_ids.tolist(), lengths.tolist(), strict=True)
        assert sum(reads) == len({tuple(row[:end]) for row, length in rows for end in range(1, length + 1)})
    torch.testing.assert_close(encoded, encode_each(encoder, input_ids, lengths))


class TestGeneration:
    def images(self, count: int = 3) -> dict[str, torch.Tensor]:
        return {"pixel_values": tiny_inputs(count)["pixel_values"]}

    def generate(self, model, inputs, seed: int = 0, **kwargs):
        set_seed(seed)
        return model.generate(**inputs, **{"num_candidates": 60, **kwargs})

    def test_decoding_equals_the_most_probable_words_one_by_one(self):
        model = tiny_captioner()
        contents = model.contents(torch.nn.functional.normalize(torch.randn(2, 8)), num_neighbors=2)
        tags, which = model.draw(20, [1.0, 1.0, 1.0])
        decoded = model.decode(tags, contents, which)
        assert decoded.shape == (2, len(tags), tags.shape[1] + 1)
        for image in range(2):
            for candidate in range(len(tags)):
                template = [tag for tag in tags[candidate].tolist() if tag]
                words = []
                for _ in template:
                    u = contents[image, which[candidate]].numpy()
                    # Append any word: only the words before a position count.
                    probabilities = restated_probabilities(model, [*words, 3], [*template, 1], u)[-1]
                    probabilities[[0, 1, 2]] = 0.0
                    words.append(int(probabilities.argmax()))
                padding = [2] * (tags.shape[1] - len(template))
                assert decoded[image, candidate].tolist() == [*words, 0, *padding]

    # With the first weights every caption is encoded, with the second only a few.
    @pytest.mark.parametrize(("similarity_weight", "language_model_weight"), [(0.7, 0.3), (0.1, 2.0), (-0.5, 0.4)])
    def test_best_captions_are_the_best_of_all_candidates(self, similarity_weight, language_model_weight):
        model = tiny_captioner()
        images = self.images(2)
        targets = model.model.get_image_features(**images).pooler_output
        options = {"similarity_weight": similarity_weight, "language_model_weight": language_model_weight}
        options["num_return_sequences"] = 3
        output = self.generate(model, images, return_dict_in_generate=True, **options)
        set_seed(0)
        contents = model.contents(targets, 5)
        tags, which = model.draw(60, [1.0, 1.0, 1.0])
        decoded = model.decode(tags, contents, which)
        for image in range(2):
            scored = {}
            for candidate, words in enumerate(words_of(decoded[image])):
                ids = torch.tensor([words])
                cosine = (model.model.get_text_features(ids).pooler_output[0] @ targets[image]).item()
                likelihood = model.trigrams.log_probabilities(ids, torch.ones_like(ids)).mean().item()
                template = [tag for tag in tags[candidate].tolist() if tag]
                score = similarity_weight * cosine + language_model_weight * likelihood
                scored.setdefault(tuple(words), (score, cosine, likelihood, [*template, 1]))
            best = sorted(scored, key=lambda words: -scored[words][0])[:3]
            rows = slice(3 * image, 3 * image + 3)
            assert words_of(output.sequences[rows]) == [list(words) for words in best]
            assert [[tag for tag in row if tag] for row in output.tag_ids[rows].tolist()] == [
                scored[words][3] for words in best
            ]
            for place, values in enumerate((output.scores, output.similarities, output.log_probabilities)):
                expected = [scored[words][place] for words in best]
                assert values[rows].tolist() == pytest.approx(expected, abs=1e-5)

    def test_a_batch_equals_its_images_one_by_one(self):
        model, images = tiny_captioner(), self.images(3)
        batch = self.generate(model, images, num_return_sequences=2)
        for row in range(3):
            single = self.generate(
                model, {"pixel_values": images["pixel_values"][row : row + 1]}, num_return_sequences=2
            )
            assert single.tolist() == batch[2 * row : 2 * row + 2].tolist()
        assert self.generate(model, images).tolist() == batch[::2].tolist()

    def test_a_prefix_is_kept_and_continued(self):
        model, images = tiny_captioner(), self.images(2)
        words = torch.tensor([[5, 7], [6, 4]])
        output = self.generate(model, images, input_ids=words, num_return_sequences=2, return_dict_in_generate=True)
        captions = words_of(output.sequences)
        assert [caption[:2] for caption in captions] == [[5, 7], [5, 7], [6, 4], [6, 4]]
        assert all(len(caption) > 3 and caption[-1] == 0 for caption in captions)
        # The next words are the most probable ones after these words.
        targets = model.model.get_image_features(**images).pooler_output
        for caption, tags, target in zip(
            captions, output.tag_ids.tolist(), targets.repeat_interleave(2, 0), strict=True
        ):
            best = []
            for content in model.contents(target.unsqueeze(0), 5)[0].detach().numpy():
                written = [5, 7] if caption[0] == 5 else [6, 4]
                while len(written) < len(caption) - 1:
                    template = [tag for tag in tags if tag]
                    probabilities = restated_probabilities(model, [*written, 3], template, content)[len(written)]
                    probabilities[[0, 1, 2]] = 0.0
                    written.append(int(probabilities.argmax()))
                best.append([*written, 0])
            assert caption in best
        # A tokenized prompt has start, end and padding tokens.
        for prompt in ([[0, 5, 7, 0, 2], [0, 6, 4, 0, 2]], [[2, 2, 5, 7], [2, 2, 6, 4]]):
            again = self.generate(model, images, decoder_input_ids=torch.tensor(prompt), num_return_sequences=2)
            assert again.tolist() == output.sequences.tolist()
        for row in range(2):
            alone = {"pixel_values": images["pixel_values"][row : row + 1]}
            single = self.generate(model, alone, input_ids=words[row : row + 1], num_return_sequences=2)
            assert words_of(single) == captions[2 * row : 2 * row + 2]
        shortest = self.generate(model, images, input_ids=words, max_new_tokens=1)
        assert all(len(caption) == 4 for caption in words_of(shortest))
        different = self.generate(model, images, input_ids=torch.tensor([[5, 7], [6, 0]]))
        assert [caption[:1] for caption in words_of(different)] == [[5], [6]]
        with pytest.raises(ValueError, match="No template has 6 words or more"):
            model.generate(**images, input_ids=torch.full((2, 5), 5))
        with pytest.raises(ValueError, match=r"one row for each of the 2 images, got \(1, 2\)"):
            model.generate(**images, input_ids=words[:1])

    @torch.no_grad()
    def test_resized_it_describes_as_before(self, tmp_path):
        model, images = tiny_captioner(), self.images()
        expected = self.generate(model, images, return_dict_in_generate=True)
        model.resize_token_embeddings(15, mean_resizing=False)
        for history in ([], [3], [5, 4], [13, 10], [10, 14]):
            asked = torch.tensor([[*history, word] for word in range(15)])
            probabilities = model.trigrams.log_probabilities(asked, torch.ones_like(asked))[:, -1].exp()
            assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-5)
        new = model.model.get_text_features(torch.tensor([[13, 0]])).pooler_output[0]
        torch.testing.assert_close(model.memory.word_embeds[13], new)
        model.save_pretrained(tmp_path)
        model = VseScnlmForConditionalGeneration.from_pretrained(tmp_path)
        assert model.generate(**images, num_candidates=20).shape[0] == 3
        model.resize_token_embeddings(12)
        again = self.generate(model, images, return_dict_in_generate=True)
        assert again.sequences.tolist() == expected.sequences.tolist()
        torch.testing.assert_close(again.scores, expected.scores, rtol=1e-4, atol=1e-5)
        # Words 8 to 11 are removed, with their n-grams.
        model.resize_token_embeddings(8)
        model.save_pretrained(tmp_path)
        model = VseScnlmForConditionalGeneration.from_pretrained(tmp_path)
        padded = [[0, 0, *words] for words in words_of(tiny_captions(40)[0])]
        trigrams = {tuple(words[place : place + 3]) for words in padded for place in range(len(words) - 2)}
        assert len(model.trigrams.trigrams) == sum(max(words) < 8 for words in trigrams)
        sequences = self.generate(model, images)
        assert sequences.max() < 8

    def test_images_features_and_vectors_serve_alike(self):
        model, images = tiny_captioner(), self.images()
        features = model.model.image_encoder.backbone(images["pixel_values"]).feature_maps[-1].mean(dim=(2, 3))
        vectors = model.model.get_image_features(**images).pooler_output
        expected = self.generate(model, images).tolist()
        assert self.generate(model, {"image_features": features}).tolist() == expected
        assert self.generate(model, {"content_embeds": 3 * vectors}).tolist() == expected

    def test_contents_are_the_vector_and_means_of_its_neighbors(self):
        model = tiny_captioner()
        target = torch.nn.functional.normalize(torch.randn(1, 8))
        vector, words, sentences = model.contents(target, num_neighbors=2)[0]
        torch.testing.assert_close(vector, target[0])
        input_ids, _ = tiny_captions(40)
        kept = [int(place) for place in np.linspace(0, 39, 10)]
        pools = [[[word, 0] for word in range(3, 12)], [words_of(input_ids)[place] for place in kept]]
        for actual, pool in zip((words, sentences), pools, strict=True):
            embeds = [model.model.get_text_features(torch.tensor([ids])).pooler_output[0] for ids in pool]
            nearest = sorted(embeds, key=lambda embed: -float(embed @ target[0]))[:2]
            expected = torch.nn.functional.normalize((nearest[0] + nearest[1]) / 2, dim=0)
            torch.testing.assert_close(actual, expected)

    def test_templates_are_those_of_training_captions_and_drawn_by_their_counts(self):
        model = tiny_captioner()
        _, tag_ids = tiny_captions(40)
        templates = Counter(tuple(tag for tag in row if tag > 1) for row in tag_ids.tolist())
        stored = {
            tuple(tag for tag in row if tag): count
            for row, count in zip(
                model.memory.template_tags.tolist(), model.memory.template_counts.tolist(), strict=True
            )
        }
        assert stored == templates
        model.memory.template_counts[1:] = 0
        tags, _ = model.draw(50, [1.0, 1.0, 1.0])
        assert tags.tolist() == [model.memory.template_tags[0].tolist()] * 3
        _, contents = tiny_captioner().draw(500, [1.0, 0.0, 2.0])
        assert set(contents.tolist()) == {0, 2}
        short = tiny_captioner().draw(500, [1.0], 3)[0]
        assert max(sum(tag > 0 for tag in row) for row in short.tolist()) == 3

    def test_what_it_remembers_is_saved(self, tmp_path):
        model, images = tiny_captioner(), self.images()
        model.generation_config.update(num_candidates=33, language_model_weight=0.4)
        model.save_pretrained(tmp_path)
        assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".py", ".safetensors"}
        loaded = VseScnlmForConditionalGeneration.from_pretrained(tmp_path)
        assert loaded.generation_config.num_candidates == 33
        assert loaded.generation_config.language_model_weight == 0.4
        for options in ({}, {"num_candidates": 20}):
            set_seed(0)
            expected = model.generate(**images, **options).tolist()
            set_seed(0)
            assert loaded.generate(**images, **options).tolist() == expected

    def test_wrong_calls_are_named(self):
        model, images = tiny_captioner(), self.images()
        with pytest.raises(ValueError, match="no templates to generate from"):
            tiny_captioner(remembers=False).generate(**images)
        with pytest.raises(ValueError, match="unknown option 'nonsense'"):
            model.generate(**images, nonsense=1)
        with pytest.raises(ValueError, match="not support `do_sample` and `num_beams`"):
            model.generate(**images, num_beams=3)
        for name in ("output_attentions", "output_hidden_states", "output_logits"):
            with pytest.raises(ValueError, match=name):
                model.generate(**images, **{name: True})
        with pytest.raises(ValueError, match="either `input_ids` or `decoder_input_ids`"):
            model.generate(**images, input_ids=torch.ones(3, 1), decoder_input_ids=torch.ones(3, 1))
        with pytest.raises(ValueError, match="Pass one of"):
            model.generate(**images, content_embeds=torch.randn(3, 8))
        with pytest.raises(ValueError, match="No template has 1 words or fewer"):
            model.generate(**images, max_new_tokens=1)
        with pytest.raises(ValueError, match=r"`content_weights` must be .* not all 0, got \[0.0, 0.0, 0.0\]"):
            model.generate(**images, content_weights=[0, 0, 0])
        with pytest.raises(ValueError, match="only 1 different captions were found"):
            model.generate(**images, num_candidates=1, num_return_sequences=2)
        with pytest.raises(ValueError, match="None of the 40 captions has 9 to 12 words"):
            model.remember(*tiny_captions(40), min_template_length=9)

    def test_pipeline(self, tmp_path):
        model, processor = tiny_captioner(), tiny_processor()
        model.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        captioner = pipeline("image-to-text", model=str(tmp_path), num_candidates=30)
        assert type(captioner.model) is VseScnlmForConditionalGeneration
        images = random_images(2)
        set_seed(0)
        captions = [caption[0]["generated_text"] for caption in captioner(images, batch_size=2)]
        pixels = processor(images=images, return_tensors="pt")
        expected = self.generate(model, pixels, num_candidates=30, max_new_tokens=50)
        assert captions == processor.batch_decode(expected, skip_special_tokens=True)
        assert all(captions) and "<" not in "".join(captions)
        assert len(captioner(images[0], num_return_sequences=3)) == 3
        # transformers' own pipeline continues a text.
        continues = pipeline("image-text-to-text", model=str(tmp_path))
        for text in ("a red", ""):
            (written,) = continues(images=images[0], text=text, generate_kwargs={"num_candidates": 30})
            assert written["generated_text"].startswith(text) and len(written["generated_text"]) > len(text) + 1


def restated_kneser_ney(sentences: list[list[int]], vocab_size: int):
    """Returns a function of (u, v, w): interpolated Kneser-Ney smoothing from dictionaries of counts."""
    trigrams = Counter()
    for words in sentences:
        padded = [0, 0, *words]
        trigrams.update((padded[i], padded[i + 1], padded[i + 2]) for i in range(len(words)))
    bigrams = Counter((v, w) for _, v, w in trigrams)  # number of distinct words before
    unigrams = Counter(w for _, w in bigrams)

    def discount(counts):
        once, twice = (sum(count == number for count in counts.values()) for number in (1, 2))
        return min(max(once / max(once + 2 * twice, 1), 0.1), 0.9)

    d1, d2, d3 = discount(unigrams), discount(bigrams), discount(trigrams)

    def p1(w):
        total = sum(unigrams.values())
        return max(unigrams[w] - d1, 0) / total + d1 * len(unigrams) / total / vocab_size

    def p2(v, w):
        followers = {key[1]: count for key, count in bigrams.items() if key[0] == v}
        if not followers:
            return p1(w)
        total = sum(followers.values())
        return max(followers.get(w, 0) - d2, 0) / total + d2 * len(followers) / total * p1(w)

    def p3(u, v, w):
        followers = {key[2]: count for key, count in trigrams.items() if key[:2] == (u, v)}
        if not followers:
            return p2(v, w)
        total = sum(followers.values())
        return max(followers.get(w, 0) - d3, 0) / total + d3 * len(followers) / total * p2(v, w)

    return p3


class TestTrigrams:
    def test_equals_kneser_ney_restated(self):
        model, input_ids = tiny_captioner(), tiny_captions(40)[0]
        probability = restated_kneser_ney(words_of(input_ids), 12)
        asked = torch.tensor([[3, 4, 5, 0, 2], [8, 8, 8, 8, 0], [11, 3, 10, 4, 0], [1, 2, 1, 0, 2]])
        mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
        actual = model.trigrams.log_probabilities(asked, mask).exp()
        for row, words in enumerate(asked.tolist()):
            padded = [0, 0, *words]
            for place in range(mask[row].sum()):
                expected = probability(*padded[place : place + 3])
                assert actual[row, place].item() == pytest.approx(expected, rel=1e-4)
        assert actual[0, 4] == actual[3, 4] == 1.0

    def test_probabilities_sum_to_one_after_anything(self):
        model = tiny_captioner()
        for history in ([], [3], [5, 4], [11, 10], [10, 3]):
            asked = torch.tensor([[*history, word] for word in range(12)])
            probabilities = model.trigrams.log_probabilities(asked, torch.ones_like(asked))[:, -1].exp()
            assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-5)
            assert (probabilities > 0).all()

    def test_likely_sentences_score_higher(self):
        model, input_ids = tiny_captioner(), tiny_captions(40)[0]
        shuffled = input_ids.clone()
        for row, words in enumerate(words_of(input_ids)):
            shuffled[row, : len(words) - 1] = torch.tensor(words[:-1]).flip(0)
        mask = (input_ids != 2).long()
        seen, unseen = (model.trigrams.log_probabilities(ids, mask).sum() for ids in (input_ids, shuffled))
        assert seen > unseen + 10
