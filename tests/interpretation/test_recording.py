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
"""Where words look is recorded as eager attention has it, in any family, and put onto the right place of the image."""

import threading

import pytest
import torch
from accelerate import cpu_offload
from transformers import LlamaConfig, LlamaForCausalLM

from hf_vg.interpretation import Family, explain_words, family_of, record_attention, recording, word_maps
from hf_vg.interpretation.families import FAMILIES
from hf_vg.interpretation.word_maps import attention_of_tokens, generated_ids, layout_of, words_of

from .any_models import BUILDERS, IMAGE, tiny


DECODINGS = {"greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2}}


class Words:
    """A tokenizer whose word for a token is its number."""

    all_special_ids = [0, 1, 2]

    def decode(self, ids, **kwargs) -> str:
        return " ".join(f"w{id}" for id in ids)


def generate(model, inputs, **kwargs):
    return model.generate(**inputs, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, **kwargs)


def state_of(model) -> list:
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    implementations = [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")]
    return [implementations, sum(len(a) + len(b) for a, b in hooks), set(vars(model)), model.config.to_dict()]


def eager_attention(name: str, model, inputs, outputs, decoding) -> list[list[torch.Tensor]]:
    """For each step the attention of each layer, `(rows, heads, keys)`, as the model returns it itself."""
    if name == "blip":  # `generate` does not return it: the finished captions are read once more
        sequences = outputs.sequences[:, :-1]
        features = model.vision_model(inputs["pixel_values"])[0]
        features = features.repeat_interleave(len(sequences) // len(features), dim=0)
        read = model.text_decoder(
            input_ids=sequences, encoder_hidden_states=features, output_attentions=True, return_dict=True
        )
        start = sequences.shape[1] - (outputs.sequences.shape[1] - 2)
        return [[a[:, :, step] for a in read.cross_attentions] for step in range(start, sequences.shape[1])]
    model.set_attn_implementation("eager")
    outputs = generate(model, inputs, output_attentions=True, **decoding)
    steps = outputs.get("cross_attentions") or outputs.get("attentions")
    layers = [1] if name == "mllama" else range(len(steps[0]))
    return [[step[layer][:, :, -1] for layer in layers] for step in steps]


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("name", BUILDERS)
@torch.no_grad()
def test_equals_eager_attention(name, decoding):
    model, inputs = tiny(name)
    if name == "kosmos2":
        # By SDPA transformers masks the latents of the image as if they were words, which eager attention does not.
        model.set_attn_implementation("eager")
    decoding = DECODINGS[decoding]
    plain = generate(model, inputs, **decoding)
    before = state_of(model)
    with record_attention(model) as record:
        outputs = generate(model, inputs, **decoding)
    assert state_of(model) == before
    assert torch.equal(outputs.sequences, plain.sequences)
    if name == "blip" and decoding:
        return  # its beams are followed in the test of word maps
    expected = eager_attention(name, model, inputs, outputs, decoding)
    assert len(record.calls) >= len(expected)
    for step, (call, layers) in enumerate(zip(record.calls, expected, strict=False)):
        for actual, keys in zip(call.attention.values(), layers, strict=True):
            if record._columns is not None:
                columns = record._columns.repeat_interleave(len(keys) // len(record._columns), dim=0)
                columns = columns - max(0, record.prompt_length + step - keys.shape[-1])  # a sliding cache
                keys = keys.gather(-1, columns.clamp(min=0)[:, None].expand(-1, keys.shape[1], -1))
                keys = keys * (columns >= 0)[:, None]
            torch.testing.assert_close(actual[:, :, -1], keys, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BUILDERS)
@torch.no_grad()
def test_maps_follow_the_words_of_winning_beams(name):
    """The map of a word is that of the finished sequence, read in one pass."""
    model, inputs = tiny(name)
    decoding = DECODINGS["beams"]
    with record_attention(model) as record:
        outputs = generate(model, inputs, **decoding)
    found = word_maps(record, outputs, Words(), inputs)
    assert len(found) == 4
    ids = generated_ids(record, outputs)
    for words, row in zip(found, ids.tolist(), strict=True):
        assert [word for word, _ in words] == [f"w{id}" for id in row if id > 2]
        for _, word_map in words:
            assert word_map.dim() == 2 and word_map.sum().item() == pytest.approx(1, abs=1e-4)
    attention, rows = attention_of_tokens(record, outputs)
    assert attention.shape[0] == 4 and (attention >= 0).all()
    # Beams of the first image stay with the first image.
    per_image = next(iter(record.calls[0].attention.values())).shape[0] // 2
    assert [row // per_image for row in rows.tolist()] == [0, 0, 1, 1]


CELLS = [name for name in BUILDERS if name not in ("blip", "git", "blip2", "kosmos2", "florence2")]


def brighten(name: str, inputs: dict, row: int, column: int, height: int, width: int) -> dict:
    """The inputs with one cell of the last image brighter."""
    inputs = {key: value.clone() for key, value in inputs.items()}
    pixels = inputs.get("pixel_values")
    if name == "pix2struct":
        inputs["flattened_patches"][-1, row * width + column, 2:] += 3
    elif name.startswith("qwen"):  # the four patches of a cell lie side by side
        first = 32 + 4 * (row * width + column)
        pixels[first : first + 4] += 3
    elif name in ("mllama", "llava_next"):  # 2 x 2 tiles of 4 x 4 cells; the whole image first in llava_next
        tile = (row // 4) * 2 + column // 4 + (name == "llava_next")
        top, left = row % 4 * 4, column % 4 * 4
        pixels.flatten(1, -4)[-1, tile, :, top : top + 4, left : left + 4] += 3
    else:
        cell_height, cell_width = pixels.shape[-2] // height, pixels.shape[-1] // width
        top, left = row * cell_height, column * cell_width
        pixels[-1, ..., top : top + cell_height, left : left + cell_width] += 3
    return inputs


@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_a_cell_of_the_map_is_that_cell_of_the_image(name, monkeypatch):
    """The key that changes most when a cell of the image changes is the one that the layout puts there."""
    model, inputs = tiny(name, torch.float64)
    keys, attention_of = [], recording.attention_of

    def spy(module, query, key, *args, **kwargs):
        keys.append(key)
        return attention_of(module, query, key, *args, **kwargs)

    monkeypatch.setattr(recording, "attention_of", spy)

    def keys_on_the_grid(inputs) -> torch.Tensor:
        keys.clear()
        with record_attention(model) as record:
            model.generate(**inputs, max_new_tokens=1)
        last = keys[0][-1].transpose(0, 1).flatten(1)  # (keys, heads * size)
        last = last if record._columns is None else last[record._columns[-1]]
        return last[layout_of(record, inputs, 1)[-1]]

    before = keys_on_the_grid(inputs)
    height, width = before.shape[:2]
    cells = [(0, 0), (0, width - 1), (height - 1, 0), (height // 2, width // 2)]
    for row, column in cells:
        changed = keys_on_the_grid(brighten(name, inputs, row, column, height, width))
        change = (changed - before).norm(dim=-1)
        assert divmod(int(change.argmax()), width) == (row, column)


@torch.no_grad()
def test_a_cell_of_florence_is_that_cell_of_the_image():
    """Its encoder mixes words and patches, so the features in front of it are looked at."""
    model, inputs = tiny("florence2", torch.float64)
    with record_attention(model) as record:
        generate(model, inputs)
    (layout,) = layout_of(record, inputs, 1)
    features = torch.stack(list(model.get_image_features(inputs["pixel_values"]).pooler_output))[1]
    changed = brighten("florence2", inputs, 3, 3, 4, 4)["pixel_values"]
    change = (torch.stack(list(model.get_image_features(changed).pooler_output))[1] - features).norm(dim=-1)
    assert divmod(int(change[layout].argmax()), 4) == (3, 3)


def test_records_are_part_of_the_graph_and_reach_the_vision_tower():
    model, inputs = tiny("llava")
    with record_attention(model, layers=[-1], heads=[0, 3]) as record:
        model(**inputs)
    (call,) = record.calls
    ((name, attention),) = call.attention.items()
    assert name == "model.language_model.layers.1.self_attn" and attention.shape == (2, 2, 20, 16)
    attention[:, :, -1].square().sum().backward()
    gradient = model.model.vision_tower.embeddings.patch_embedding.weight.grad
    assert gradient is not None and gradient.abs().sum() > 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradient(use_reentrant):
    gradients = []
    for checkpointing in (False, True):
        model, inputs = tiny("llava")
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        with record_attention(model) as record:
            loss = model(**inputs, labels=inputs["input_ids"], use_cache=False).loss
            if not use_reentrant:  # the other mode cuts the graph of what is recorded
                loss = loss + sum(a[:, :, -1].square().sum() for a in record.calls[0].attention.values())
            loss.backward()
        gradients.append(model.model.multi_modal_projector.linear_1.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)


def test_an_exception_leaves_the_model_as_it_was():
    model, inputs = tiny("llava")
    generate(model, inputs)
    before = state_of(model)
    with pytest.raises(ZeroDivisionError), record_attention(model):
        generate(model, inputs)
        raise ZeroDivisionError
    assert state_of(model) == before and not recording._RECORDS and not recording._IMPLEMENTATIONS
    with pytest.raises(ValueError, match="no layer 7"), record_attention(model, layers=[7]):
        pass
    assert state_of(model) == before


def test_two_threads_on_one_model_do_not_mix():
    model, inputs = tiny("llava")
    other = {name: value.flip(0) for name, value in inputs.items()}
    expected = []
    for these in (inputs, other):
        with record_attention(model) as record, torch.no_grad():
            generate(model, these)
        expected.append(record)
    records, barrier = {}, threading.Barrier(3)

    def run(number: int, these: dict):
        with record_attention(model) as record, torch.no_grad():
            barrier.wait()
            generate(model, these)
            barrier.wait()
        records[number] = record

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate((inputs, other))]
    for thread in threads:
        thread.start()
    barrier.wait()
    with torch.no_grad():
        generate(model, inputs)  # of a thread that records nothing
    barrier.wait()
    for thread in threads:
        thread.join()
    assert model.config.text_config._attn_implementation == "sdpa"
    for number in (0, 1):
        for call, other_call in zip(records[number].calls, expected[number].calls, strict=True):
            for actual, tensor in zip(call.attention.values(), other_call.attention.values(), strict=True):
                torch.testing.assert_close(actual, tensor)


CACHES = {
    "none": {"use_cache": False},
    "static": {"cache_implementation": "static"},
    "none and beams": {"use_cache": False, "num_beams": 3},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_5_vl", "vit_gpt2", "git"])
@torch.no_grad()
def test_the_cache_does_not_change_the_maps(name, cache):
    model, inputs = tiny(name)
    if cache == "static" and name == "git":
        pytest.skip("GIT has no static cache")
    maps = []
    for kwargs in ({"num_beams": CACHES[cache].get("num_beams", 1)}, CACHES[cache]):
        with record_attention(model) as record:
            outputs = generate(model, inputs, **kwargs)
        maps.append(attention_of_tokens(record, outputs)[0])
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_padding_on_either_side_and_sampled_sequences():
    """A row has the maps that it has alone: after a longer text before the image, and padded left or right."""
    model, inputs = tiny("llava")
    rows = [[1, 5, *[IMAGE] * 16, 6], [1, 7, 8, 9, *[IMAGE] * 16, 5, 6]]
    alone = []
    for ids, pixels in zip(rows, inputs["pixel_values"], strict=True):
        with record_attention(model) as record:
            model(input_ids=torch.tensor([ids]), pixel_values=pixels[None])
        alone.append([a[0, :, len(ids) - 1] for a in record.calls[0].attention.values()])
    for side in ("left", "right"):
        ids = torch.tensor([[0] * 3 * (side == "left") + rows[0] + [0] * 3 * (side == "right"), rows[1]])
        with record_attention(model) as record:
            model(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=inputs["pixel_values"])
        for row, last in enumerate((-1 if side == "left" else -4, -1)):
            for actual, expected in zip(record.calls[0].attention.values(), alone[row], strict=True):
                torch.testing.assert_close(actual[row, :, last], expected, rtol=1e-4, atol=1e-6)

    torch.manual_seed(0)
    with record_attention(model) as record:
        outputs = model.generate(
            **inputs, do_sample=True, num_return_sequences=3, max_new_tokens=4, return_dict_in_generate=True
        )
    found = word_maps(record, outputs, Words(), inputs)
    assert len(found) == 6
    for words, row in zip(found, generated_ids(record, outputs).tolist(), strict=True):
        assert [word for word, _ in words] == [f"w{id}" for id in row if id > 2]
    # The second token of each sequence is the model's answer to its first.
    three = {name: value.repeat_interleave(3, dim=0) for name, value in inputs.items()}
    three["input_ids"] = torch.cat([three["input_ids"], outputs.sequences[:, -4:-3]], dim=1)
    three["attention_mask"] = torch.cat([three["attention_mask"], torch.ones(6, 1, dtype=torch.long)], dim=1)
    with record_attention(model) as read:
        model(**three)
    expected = torch.stack([a[:, :, -1] for a in read.calls[0].attention.values()], dim=1)
    torch.testing.assert_close(attention_of_tokens(record, outputs)[0][:, :, :, 1], expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_words_are_kept_by_layer_and_head():
    model, inputs = tiny("llava")
    with record_attention(model) as record:
        outputs = generate(model, inputs)
    (word, mean), *_ = word_maps(record, outputs, Words(), inputs)[0]
    (other, heads), *_ = word_maps(record, outputs, Words(), inputs, by_head=True)[0]
    assert word == other and heads.shape == (2, 4, 4, 4)
    torch.testing.assert_close(heads.mean(dim=(0, 1)), mean)
    with pytest.raises(ValueError, match="`heads` must be from 0 to 3"), record_attention(model, heads=[4]):
        model(**inputs)
    with record_attention(model, layers=[1, 0], heads=[3]) as record:
        outputs = generate(model, inputs)
    (_, some), *_ = word_maps(record, outputs, Words(), inputs, by_head=True)[0]
    torch.testing.assert_close(some / some.sum(), (chosen := heads[[1, 0]][:, [3]]) / chosen.sum())
    for wrong in (outputs.sequences, model(**inputs)):
        with pytest.raises(ValueError, match=r"return_dict_in_generate=True.*explain_words"):
            word_maps(record, wrong, Words(), inputs)


@torch.no_grad()
def test_records_within_each_other_and_images_of_several_rows():
    model, inputs = tiny("llava")
    ids = torch.tensor([[0] * 17 + [1, *[IMAGE] * 16, 6], [1, *[IMAGE] * 16, 7, *[IMAGE] * 16, 8]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": torch.randn(3, 3, 16, 16)}
    generate(model, inputs)
    before = state_of(model)
    with record_attention(model) as record:
        with record_attention(model, layers=[0], heads=[1]) as inner:
            outputs = generate(model, inputs)
        assert state_of(model)[0] != before[0]  # the outer one still records
    assert state_of(model) == before
    for call, some in zip(record.calls, inner.calls, strict=True):
        assert torch.equal(next(iter(call.attention.values()))[:, [1]], next(iter(some.attention.values())))
    first, second = word_maps(record, outputs, Words(), inputs)
    assert first and second and all(word_map.shape == (4, 4) for _, word_map in [*first, *second])
    with pytest.raises(ValueError, match="Row 0 has 1 images, counted from 0, so there is no image 1"):
        word_maps(record, outputs, Words(), inputs, image=1)
    # The same row alone, with both of its images.
    alone = {"input_ids": ids[1:], "pixel_values": inputs["pixel_values"][1:]}
    with record_attention(model) as record:
        outputs = generate(model, alone)
    for (_, actual), (_, expected) in zip(word_maps(record, outputs, Words(), alone)[0], second, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_lora_adapters():
    peft = pytest.importorskip("peft")
    model, inputs = tiny("llava")
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings).eval()
    with record_attention(adapted) as record:
        outputs = generate(adapted, inputs)
    recorded = word_maps(record, outputs, Words(), inputs)
    read = explain_words(adapted, Words(), inputs, outputs)
    for (_, actual), (_, expected) in zip(recorded[0], read[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    adapted.disable_adapter_layers()
    with record_attention(adapted) as record:
        outputs = generate(adapted, inputs)
    assert not torch.allclose(word_maps(record, outputs, Words(), inputs)[0][0][1], recorded[0][0][1], atol=1e-4)


def test_dropout_of_attention_is_not_recorded():
    for name in ("git", "llava", "blip"):
        model, inputs = tiny(name)
        inputs = {"input_ids": torch.tensor([[1, 5, 6], [1, 7, 8]]), **inputs}
        with record_attention(model, layers=[0]) as record:
            model(**inputs)
            (expected,) = record.calls[0].attention.values()
            for module in model.modules():
                if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
                    module.attention_dropout = 0.5
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.5 if module in record.modules or name == "blip" else 0.0
            model.train()
            if name == "blip":
                model.text_decoder.bert.embeddings.dropout.p = 0.0
                for layer in model.text_decoder.bert.encoder.layer:
                    layer.attention.eval()
            model(**inputs)
            (actual,) = record.calls[0].attention.values()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llava", "git", "blip", "vit_gpt2"])
@torch.no_grad()
def test_bfloat16(name):
    model, inputs = tiny(name, torch.bfloat16)
    with record_attention(model) as record:
        outputs = generate(model, inputs)
    for words in word_maps(record, outputs, Words(), inputs):
        for _, word_map in words:
            assert word_map.dtype == torch.float32 and word_map.sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_attention_that_cannot_be_recorded_is_named(implementation):
    model, inputs = tiny("llava")
    model.config.text_config._attn_implementation = implementation
    before = state_of(model)
    with pytest.raises(ValueError, match=f"{implementation}.*sdpa"), record_attention(model):
        pass
    assert state_of(model) == before


@torch.no_grad()
def test_generation_that_is_not_token_by_token_is_an_error():
    model, inputs = tiny("llava")
    ids = torch.tensor([[1, *[IMAGE] * 16, 5, 6, 7, 8, 5, 6]])
    inputs = {"input_ids": ids, "pixel_values": inputs["pixel_values"][:1]}
    with pytest.raises(ValueError, match="assisted generation"), record_attention(model) as record:
        outputs = generate(model, inputs, prompt_lookup_num_tokens=3, max_matching_ngram_size=2)
        word_maps(record, outputs, Words(), inputs)
    with record_attention(model) as record:
        outputs = generate(model, inputs)
        model(**inputs)
    with pytest.raises(ValueError, match="another run"):
        word_maps(record, outputs, Words(), inputs)


class Wrapper(torch.nn.Module):
    """As PEFT and DistributedDataParallel wrap models."""

    def __init__(self, model):
        super().__init__()
        self.base_model = torch.nn.Module()
        self.base_model.model = model

    def generate(self, **kwargs):
        return self.base_model.model.generate(**kwargs)


@pytest.mark.parametrize("wrap", ["wrapper", "compiled", "dispatched"])
@torch.no_grad()
def test_models_within_wrappers(wrap):
    model, inputs = tiny("llava")
    with record_attention(model) as record:
        outputs = generate(model, inputs)
    expected = attention_of_tokens(record, outputs)[0]
    if wrap == "wrapper":
        wrapped = Wrapper(model)
    elif wrap == "compiled":
        wrapped = torch.compile(model, backend="eager")
        wrapped(**inputs)
    else:
        wrapped = cpu_offload(model, execution_device="cpu")
    before = state_of(model)
    with record_attention(wrapped) as record:
        outputs = generate(wrapped, inputs)
    assert state_of(model) == before
    torch.testing.assert_close(attention_of_tokens(record, outputs)[0], expected)
    if wrap == "compiled":
        with record_attention(wrapped) as record:
            wrapped(**inputs)
        assert len(record.calls[0].attention) == 2
    with (
        pytest.raises(ValueError, match="Linear is not a transformers model"),
        record_attention(torch.nn.Linear(1, 1)),
    ):
        pass


@torch.no_grad()
def test_a_second_run_begins_anew():
    model, inputs = tiny("llava")
    longer = {name: torch.cat([value[:, :1], value], dim=1) for name, value in inputs.items() if value.dim() == 2}
    with record_attention(model) as record:
        model(**inputs)
        model(**{**inputs, **longer})
        assert len(record.calls) == 1 and next(iter(record.calls[0].attention.values())).shape[2] == 21
        outputs = generate(model, inputs)
    assert len(record.calls) == 4 and len(word_maps(record, outputs, Words(), inputs)) == 2


def test_what_is_not_known_is_an_error_that_says_what_to_do():
    text_model = LlamaForCausalLM(
        LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(ValueError, match=r"'llama'.*not supported yet.*Family"), record_attention(text_model):
        pass
    for model_type, hint in {"vilt": "shuffles", "visual_bert": "regions", "vse_scnlm": "caption_candidates"}.items():
        text_model.config.model_type = model_type
        with pytest.raises(ValueError, match=f"'{model_type}'.*not supported yet: .*{hint}"):
            family_of(text_model)
    model, inputs = tiny("vit_gpt2")
    model.config.encoder.model_type = "some_new_encoder"
    with record_attention(model) as record, torch.no_grad():
        outputs = generate(model, inputs)
    with pytest.raises(ValueError, match=r"'some_new_encoder'.*grid=\(height, width\)"):
        word_maps(record, outputs, Words(), inputs)
    with pytest.raises(ValueError, match="4 x 4 does not hold 17"):
        word_maps(record, outputs, Words(), inputs, grid=(4, 4))
    assert word_maps(record, outputs, Words(), inputs, grid=(1, 17))[0][0][1].shape == (1, 17)


@torch.no_grad()
def test_a_family_can_be_described_by_hand():
    model, inputs = tiny("llava")
    family = Family(FAMILIES["llava"].attention, FAMILIES["llava"].layout, FAMILIES["llava"].columns)
    model.config.model_type = "mine"
    with record_attention(model, family=family) as record:
        outputs = generate(model, inputs)
    assert word_maps(record, outputs, Words(), inputs)[0][0][1].shape == (4, 4)


def test_pieces_become_words():
    class Pieces:
        all_special_ids = [0]
        pieces = {1: "a", 2: " rac", 3: "co", 4: "on", 5: "'s", 6: " tail", 7: ",", 8: " two", 9: "  ", 10: "\u00e9"}

        def decode(self, ids, **kwargs):
            return "".join(self.pieces[id] for id in ids)

    chinese = {20: "\u4e00", 21: "\u53ea\u72d7", 22: "\u8dd1", 23: "\u3002"}
    Pieces.pieces |= chinese
    assert words_of(Pieces(), [20, 21, 22, 23]) == [(chinese[id], [id - 20]) for id in chinese]
    words = words_of(Pieces(), [1, 2, 3, 4, 5, 6, 7, 9, 8, 10, 0, 0])
    assert words == [("a", [0]), ("raccoon's", [1, 2, 3, 4]), ("tail", [5]), (",", [6]), ("two\u00e9", [8, 9])]
