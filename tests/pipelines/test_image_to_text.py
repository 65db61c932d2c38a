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
import base64
import http.server
import subprocess
import sys
import threading
from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    BertConfig,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    CLIPImageProcessorPil,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    pipeline,
    set_seed,
)
from transformers.pipelines.pt_utils import KeyDataset

from hf_vg.data import train_word_tokenizer
from hf_vg.models.show_attend_tell import ShowAttendTellForConditionalGeneration
from hf_vg.pipelines import ImageToTextPipeline
from tests.common import random_images
from tests.models.test_modeling_show_attend_tell import tiny_config, tiny_processor
from tests.models.test_modeling_spatial_transformer import tiny_model as tiny_transformer
from tests.models.test_modeling_spatial_transformer import tiny_processor as tiny_transformer_processor
from tests.models.test_modeling_vse_scnlm import tiny_captioner as tiny_vse_captioner
from tests.models.test_modeling_vse_scnlm import tiny_processor as tiny_vse_processor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("captioner")
    set_seed(0)
    model = ShowAttendTellForConditionalGeneration(tiny_config())
    model.lm_head.bias.data[model.config.eos_token_id] = -1.0  # captions of several words
    model.save_pretrained(folder)
    tiny_processor().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def captioner(checkpoint):
    return pipeline("image-to-text", model=checkpoint, max_new_tokens=6)


@pytest.fixture
def image() -> Image.Image:
    return random_images(1, size=24)[0]


def png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def text_of(records) -> str:
    (record,) = records
    assert set(record) == {"generated_text"}
    return record["generated_text"]


def test_uses_the_pipeline_of_this_package(captioner):
    assert type(captioner) is ImageToTextPipeline
    assert type(captioner.model) is ShowAttendTellForConditionalGeneration


def test_takes_images_from_anywhere(captioner, image, tmp_path):
    expected = text_of(captioner(image))
    assert expected and "<" not in expected
    path = tmp_path / "image.png"
    path.write_bytes(png(image))
    handler = lambda *args: http.server.SimpleHTTPRequestHandler(*args, directory=str(tmp_path))  # noqa: E731
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        sources = {
            "path": str(path),
            "Path": path,
            "bytes": png(image),
            "base64": base64.b64encode(png(image)).decode(),
            "data address": "data:image/png;base64," + base64.b64encode(png(image)).decode(),
            "array": np.asarray(image),
            "http": f"http://127.0.0.1:{server.server_port}/image.png",
        }
        for name, source in sources.items():
            assert text_of(captioner(source)) == expected, name
    finally:
        server.shutdown()


def test_several_images_in_every_container(captioner):
    images = random_images(5, size=24)
    expected = [captioner(image) for image in images]
    column = datasets.Dataset.from_dict({"image": images}, features=datasets.Features(image=datasets.Image()))
    for batch_size in (1, 2, 5):
        assert captioner(images, batch_size=batch_size) == expected
        assert captioner(column["image"], batch_size=batch_size) == expected
        assert captioner(tuple(images), batch_size=batch_size) == expected
        assert list(captioner(KeyDataset(column, "image"), batch_size=batch_size)) == expected
        assert list(captioner((image for image in images), batch_size=batch_size)) == expected
    assert captioner([]) == [] and captioner(column.select([])["image"]) == []


def test_generation_parameters(captioner, image):
    assert len(text_of(captioner(image, max_new_tokens=2)).split()) <= 2
    assert captioner(image, generate_kwargs={"max_new_tokens": 2}) == captioner(image, max_new_tokens=2)
    three = captioner(image, num_beams=3, num_return_sequences=3)
    assert len(three) == 3 and len({record["generated_text"] for record in three}) > 1
    images = random_images(4, size=24)
    batched = captioner(images, batch_size=4, generate_kwargs={"num_beams": 3, "num_return_sequences": 2})
    assert batched == [captioner(image, num_beams=3, num_return_sequences=2) for image in images]
    with pytest.raises(ValueError, match=r"\['num_beams'\] given twice"):
        captioner(image, num_beams=2, generate_kwargs={"num_beams": 3})
    with pytest.raises(ValueError, match="nonsense"):
        captioner(image, nonsense=1)


@pytest.mark.parametrize("generate_kwargs", [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}])
def test_attention_is_that_of_the_returned_caption(captioner, generate_kwargs):
    """The maps equal those of the model when it is made to write the same caption."""
    images = random_images(3, size=24)
    plain = captioner(images, batch_size=3, **generate_kwargs)
    with_maps = captioner(images, batch_size=3, return_attention=True, **generate_kwargs)
    tokenizer, model = captioner.tokenizer, captioner.model
    for image, captions, expected in zip(images, with_maps, plain, strict=True):
        assert [caption["generated_text"] for caption in captions] == [record["generated_text"] for record in expected]
        for caption in captions:
            words, maps = caption["words"], caption["attention"]
            assert " ".join(words) == caption["generated_text"]
            assert maps.shape == (len(words), 4, 4)
            np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, rtol=1e-5)
            ids = tokenizer.convert_tokens_to_ids(words)
            pixel_values = captioner.image_processor(image, return_tensors="pt")["pixel_values"]
            with torch.no_grad():
                forced = model(pixel_values, decoder_input_ids=torch.tensor([[0, *ids]])).cross_attentions[0]
            np.testing.assert_allclose(maps, forced[0, 0, : len(ids)].view(-1, 4, 4).numpy(), atol=1e-6)


def test_maps_have_the_shape_of_the_image(checkpoint):
    captioner = pipeline("image-to-text", model=checkpoint, max_new_tokens=4)
    captioner.image_processor.do_center_crop = False
    (caption,) = captioner(Image.new("RGB", (48, 24), "red"), return_attention=True)
    assert caption["attention"].shape[1:] == (4, 8)


def test_a_model_and_its_processor_instead_of_a_folder(checkpoint, captioner, image):
    model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    direct = pipeline("image-to-text", model=model, processor=tiny_processor(), max_new_tokens=6)
    assert direct(image) == captioner(image)


def tiny_blip(folder: Path):
    tokenizer = train_word_tokenizer(["a photograph of some words"])
    tokenizer.add_special_tokens({"bos_token": "[DEC]", "sep_token": "[SEP]", "cls_token": "[CLS]"})
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {**shape, "vocab_size": len(tokenizer), "encoder_hidden_size": 16, "bos_token_id": tokenizer.bos_token_id}
    text |= {"sep_token_id": tokenizer.sep_token_id, "pad_token_id": 2, "eos_token_id": tokenizer.sep_token_id}
    config = BlipConfig(text_config=text, vision_config={**shape, "image_size": 16, "patch_size": 8})
    BlipForConditionalGeneration(config).save_pretrained(folder)
    size = {"height": 16, "width": 16}
    BlipProcessor(CLIPImageProcessorPil(size=size, do_center_crop=False), tokenizer).save_pretrained(folder)


def tiny_vision_encoder_decoder(folder: Path):
    """As such checkpoints are on the Hub: an image processor and a tokenizer, and no processor."""
    tokenizer = train_word_tokenizer(["a photograph of some words"])
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = ViTConfig(**shape, image_size=16, patch_size=8)
    decoder = BertConfig(**shape, vocab_size=len(tokenizer), is_decoder=True, add_cross_attention=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = VisionEncoderDecoderModel(config)
    model.generation_config.decoder_start_token_id = model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"height": 16, "width": 16}, do_center_crop=False).save_pretrained(folder)


@pytest.mark.parametrize("make", [tiny_blip, tiny_vision_encoder_decoder])
def test_captioners_of_transformers_itself(make, tmp_path):
    set_seed(0)
    make(tmp_path)
    captioner = pipeline("image-to-text", model=str(tmp_path), max_new_tokens=5)
    assert type(captioner) is ImageToTextPipeline
    images = random_images(3, size=20)
    expected = [captioner(image) for image in images]
    assert all(isinstance(text_of(records), str) for records in expected)
    assert captioner(images, batch_size=3) == expected
    assert len(captioner(images[0], num_beams=2, num_return_sequences=2)) == 2
    # BLIP writes its start token over the first one, which is [CLS] where its own tokenizer is used.
    continued = text_of(captioner(images[0], prompt="some words"))
    assert continued.startswith("words" if make is tiny_blip else "some words")


def test_a_checkpoint_without_its_processor_is_named(tmp_path):
    ShowAttendTellForConditionalGeneration(tiny_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="(?s)image_processor and no tokenizer.*" + tmp_path.name):
        pipeline("image-to-text", model=str(tmp_path))


def continuing(name: str) -> dict:
    """A captioner whose captions do not end at once, and its processor."""
    set_seed(0)
    if name == "vse_scnlm":
        return {"model": tiny_vse_captioner(), "processor": tiny_vse_processor()}
    if name == "spatial_transformer":
        model, processor = tiny_transformer(), tiny_transformer_processor()
    else:
        model, processor = ShowAttendTellForConditionalGeneration(tiny_config()).eval(), tiny_processor()
    model.lm_head.bias.data[model.config.eos_token_id] = -100.0
    return {"model": model, "processor": processor}


@pytest.mark.parametrize("name", ["show_attend_tell", "spatial_transformer", "vse_scnlm"])
def test_a_prompt_is_continued_by_both_pipelines(name, caplog):
    parts, images = continuing(name), random_images(2, size=24)
    ours = pipeline("image-to-text", **parts, max_new_tokens=3)
    theirs = pipeline("image-text-to-text", **parts)
    words = parts["processor"].tokenizer.convert_ids_to_tokens([4, 5, 6])
    prompts = [f"{words[0]}", f"{words[1]} {words[2]}"] if name != "vse_scnlm" else [words[0], words[1]]

    def text(record) -> str:
        return record["generated_text"]

    # Sampled templates are the same for all images of a call, but not from call to call.
    def seeded(captioner, *args, **kwargs):
        set_seed(0)
        return captioner(*args, **kwargs)

    for image, prompt in zip(images, prompts, strict=True):
        (record,) = seeded(ours, image, prompt=prompt)
        assert text(record).startswith(f"{prompt} ")
        (other,) = seeded(theirs, image, text=prompt, max_new_tokens=3)
        assert text(other) == text(record) and other["input_text"] == prompt
        (new,) = seeded(theirs, image, text=prompt, max_new_tokens=3, return_full_text=False)
        assert prompt + text(new) == text(record)
    # Without a prompt it is the ordinary caption.
    assert text(seeded(theirs, images[0], text="", max_new_tokens=3)[0]) == text(seeded(ours, images[0])[0])
    if name != "vse_scnlm":
        single = [text(theirs(image, text=p, max_new_tokens=3)[0]) for image, p in zip(images, prompts, strict=True)]
        assert [text(record) for record in theirs(images, text=prompts, max_new_tokens=3)] == single
        rows = [{"images": image, "text": prompt} for image, prompt in zip(images, prompts, strict=True)]
        for batch_size in (1, 2):
            batched = theirs((row for row in rows), batch_size=batch_size, max_new_tokens=3)
            assert [text(records[0]) for records in batched] == single
        ((caption,),) = (ours(images[0], prompt=prompts[0], return_attention=True),)
        assert caption["attention"].shape[0] == 3  # of the words that were written
    assert "not supported" not in caplog.text


def test_one_bad_image_in_a_list_is_named(captioner, image, tmp_path):
    (tmp_path / "broken.png").write_bytes(png(image)[:60])
    with pytest.raises(ValueError, match="broken.png"):
        captioner([image, str(tmp_path / "broken.png")], batch_size=2)
    with pytest.raises(TypeError, match="type int"):
        captioner(7)


def test_other_tasks_are_untouched():
    """Every other task resolves to the class, and every wrong name to the error, of transformers alone."""
    code = """
import sys
if sys.argv[1] == "with": import hf_vg
import transformers
from transformers import pipelines
for task in pipelines.PIPELINE_REGISTRY.get_supported_tasks() + ["summarization", "translation_en_to_fr", "no"]:
    if task == "image-to-text": continue
    try:
        name, info, options = pipelines.check_task(task)
        print(task, name, info["impl"].__module__, info["impl"].__name__, info["pt"], options)
    except KeyError as error:
        print(task, str(error).replace("'image-to-text', ", ""))
"""
    outputs = [
        subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True, check=True).stdout
        for word in ("with", "without")
    ]
    assert outputs[0] == outputs[1] and "ImageTextToTextPipeline" in outputs[0]


def test_the_name_prints_no_warning(checkpoint, image, tmp_path):
    image.save(tmp_path / "image.png")
    code = f"""
import hf_vg
from transformers import pipeline
print(pipeline("image-to-text", model={checkpoint!r}, max_new_tokens=3)({str(tmp_path / "image.png")!r}))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.startswith("[{'generated_text': '")
    assert "image-text-to-text" not in process.stderr and "Traceback" not in process.stderr
