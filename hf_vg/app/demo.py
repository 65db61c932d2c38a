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
"""The web demo: caption an image and see where each word looks, search images, ground phrases. `make app` opens it."""

import html
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from PIL import Image
from transformers import AutoConfig, pipeline

from ..cli.inputs import ImageInputs
from ..data.images import open_image
from ..data.scenes import load_scenes
from ..interpretation import (
    caption_examples,
    explanation_html,
    ground_phrase,
    load_region_model,
    regions_of_words,
)
from ..models.vse_scnlm import VseScnlmSpace


CAPTIONERS = ("show_attend_tell", "spatial_transformer_captioner")
SPACES = ("vse_scnlm",)
REGION_MODELS = ("grounded_visual_bert",)
NUM_SCENES = 48
# Models in memory; who chooses another waits for it to load.
_MODELS_AT_A_TIME = 4

INTRO = """# Visually grounded language
Where captioners look, what a sentence finds, which region a phrase names. Choose a checkpoint on this machine, or type
the name of one on the Hub."""
NO_MODEL = "Choose a checkpoint first: a folder, or a model of the Hub."


def find_checkpoints(folders: Sequence[str] = ("outputs", "checkpoints")) -> list[str]:
    """The folders of checkpoints within `folders`."""
    return sorted(str(config.parent) for folder in folders for config in Path(folder).glob("*/config.json"))


def model_types(names: Sequence[str]) -> dict[str, str]:
    """The model type of each checkpoint; those that can not be read are left out."""
    types = {}
    for name in names:
        try:
            types[name] = AutoConfig.from_pretrained(name).model_type
        except (OSError, ValueError) as error:
            print(f"{name} is not offered: {str(error).strip().splitlines()[0]}")
    return types


@lru_cache(maxsize=_MODELS_AT_A_TIME)
def _captioner(name: str):
    return pipeline("image-to-text", model=name)


@lru_cache(maxsize=_MODELS_AT_A_TIME)
def _space(name: str) -> VseScnlmSpace:
    return VseScnlmSpace.from_pretrained(name)


@lru_cache(maxsize=_MODELS_AT_A_TIME)
def _region_model(name: str):
    return load_region_model(name)


def _load(load, name: str | None):
    """Loads a model, and says what is wrong with it to who chose it."""
    if not name or not name.strip():
        raise gr.Error(NO_MODEL)
    try:
        return load(name.strip())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise gr.Error(f"{name} can not be loaded here: {lines[0]}") from error


def _frame(examples: list[dict[str, Any]], title: str) -> str:
    """The page of an explanation in a frame of its own, as high as the page."""
    page = html.escape(explanation_html(examples, title))
    fit = "this.style.height = this.contentDocument.documentElement.scrollHeight + 48 + 'px'"
    return (
        f'<iframe title="{html.escape(title)}" srcdoc="{page}" onload="{fit}" '
        'style="width: 100%; height: 640px; border: 0; border-radius: 8px"></iframe>'
    )


def caption(name: str, image: Image.Image | None, beams: float) -> str:
    """Captions an image with a captioner, and shows every beam with its maps."""
    captioner = _load(_captioner, name)
    if image is None:
        raise gr.Error("Upload an image, or pick one.")
    beams = int(beams)
    (records,) = caption_examples(captioner, [open_image(image)], num_beams=beams, num_return_sequences=beams)
    names = ["best", *(f"alternative {number}" for number in range(1, beams))]
    return _frame([{**record, "name": name} for record, name in zip(records, names, strict=True)], "Captions")


class Demo:
    r"""
    What the tabs share: checkpoints to choose from, and images to pick and to search.

    Args:
        models (`Sequence[str]`, *optional*):
            Checkpoints to offer, besides those in `outputs` and `checkpoints`.
        images_dir (`str`, *optional*):
            Folder of images. Scenes are drawn by default.
    """

    def __init__(self, models: Sequence[str] | None = None, images_dir: str | None = None):
        self.types = model_types(dict.fromkeys([*(models or []), *find_checkpoints()]))
        self.images: list[Image.Image] = []
        self.boxes: list[list[list[float]] | None] = []
        self.texts: list[str] = []
        if images_dir is None:
            for row in load_scenes(1, NUM_SCENES, 1, 128)["validation"]:
                self.images.append(row["image"])
                self.boxes.append([obj["box"] for obj in row["objects"]])
                self.texts.append(row["captions"][0])
        else:
            self.images = [image for _, image in ImageInputs().images([images_dir], "Opening images")]
            if not self.images:
                raise ValueError(f"There are no images in {images_dir!r}.")
            self.boxes, self.texts = [None] * len(self.images), [""] * len(self.images)
        self.vectors: dict[str, torch.Tensor] = {}

    def of(self, types: Sequence[str]) -> list[str]:
        return [name for name, model_type in self.types.items() if model_type in types]

    def search(self, name: str, sentence: str, image: Image.Image | None, plus: str, minus: str, number: float):
        """The images nearest to a sentence or an image, with words added and taken away."""
        space = _load(_space, name)
        # A field that was never shown is nothing, rather than an empty text.
        sentence, plus, minus = sentence or "", plus or "", minus or ""
        parts = [space.text(sentence)] if sentence.strip() else []
        parts += [space.image(open_image(image))] if image is not None else []
        plus, minus = ([word.strip() for word in words.split(",") if word.strip()] for words in (plus, minus))
        parts += [space.text(word) for word in plus]
        if not parts:
            raise gr.Error("Write a sentence, or give an image to begin with.")
        query = parts[0]
        for part in parts[1:]:
            query = query + part
        for word in minus:
            query = query - word
        if name not in self.vectors:
            self.vectors[name] = space.encode_images(self.images)
        hits = space.search(query, self.vectors[name], int(number))
        return [(self.images[hit["index"]], f"{hit['score']:.3f}") for hit in hits]

    def ground(self, name: str, image: Image.Image | None, text: str, phrase: str, boxes: str):
        """Where words of a text look among the regions of an image, and which region a phrase names."""
        model, processor = _load(_region_model, name)
        text, phrase, boxes = text or "", phrase or "", boxes or ""
        if image is None or not text.strip():
            raise gr.Error("Give an image and a text.")
        try:
            regions = json.loads(boxes) if boxes.strip() else None
            image = open_image(image)
            found = ground_phrase(model, processor, image, text, regions, phrase.strip() or None)
            example = regions_of_words(model, processor, image, text, regions)
        except (ValueError, TypeError) as error:
            raise gr.Error(str(error)) from error
        rows = [[round(hit["score"], 3), *(round(side, 1) for side in hit["box"])] for hit in found]
        return _frame([{**example, "name": text}], "What words see"), rows


def build(models: Sequence[str] | None = None, images_dir: str | None = None) -> gr.Blocks:
    """Makes the demo. Takes the arguments of [`Demo`]."""
    demo = Demo(models, images_dir)

    def checkpoint(types: Sequence[str]) -> gr.Dropdown:
        names = demo.of(types)
        return gr.Dropdown(
            names,
            value=names[0] if names else None,
            allow_custom_value=True,
            label="Checkpoint",
            info="A folder on this machine, or a model of the Hub",
        )

    def picker(*targets: gr.components.Component, values=lambda index: demo.images[index]) -> None:
        gr.Markdown("Or pick one:")
        gallery = gr.Gallery(
            demo.images[:8],
            show_label=False,
            columns=4,
            height=250,
            allow_preview=False,
            buttons=[],
            interactive=False,
        )

        def pick(event: gr.SelectData):
            return values(event.index)

        gallery.select(pick, None, list(targets), api_name=False)

    with gr.Blocks(title="hf_vg", analytics_enabled=False) as blocks:
        gr.Markdown(INTRO)
        with gr.Tab("Caption"), gr.Row():
            with gr.Column(scale=2):
                name = checkpoint(CAPTIONERS)
                image = gr.Image(type="pil", label="Image", sources=["upload", "clipboard"], elem_id="caption_image")
                picker(image)
                beams = gr.Slider(1, 8, value=3, step=1, label="Beams", info="As many captions are shown")
                run = gr.Button("Caption", variant="primary", elem_id="caption_run")
            with gr.Column(scale=3):
                shown = gr.HTML(elem_id="caption_shown", padding=False)
            run.click(caption, [name, image, beams], shown, api_name="caption")
        with gr.Tab("Search"), gr.Row():
            with gr.Column(scale=2):
                name = checkpoint(SPACES)
                sentence = gr.Textbox(label="Sentence", placeholder="a red circle", elem_id="search_sentence")
                with gr.Accordion("Begin with an image, add and take away words", open=False):
                    image = gr.Image(type="pil", label="Image", sources=["upload", "clipboard"], height=200)
                    picker(image)
                    plus = gr.Textbox(label="Plus", placeholder="red", info="Words, with commas between them")
                    minus = gr.Textbox(label="Minus", placeholder="blue")
                number = gr.Slider(1, 24, value=8, step=1, label="Images to show")
                run = gr.Button("Search", variant="primary", elem_id="search_run")
            with gr.Column(scale=3):
                gr.Markdown("Found, best first:")
                found = gr.Gallery(show_label=False, columns=4, elem_id="search_found", buttons=[], interactive=False)
            inputs = [name, sentence, image, plus, minus, number]
            run.click(demo.search, inputs, found, api_name="search")
            sentence.submit(demo.search, inputs, found, api_name=False)
        with gr.Tab("Ground"), gr.Row():
            with gr.Column(scale=2):
                name = checkpoint(REGION_MODELS)
                image = gr.Image(type="pil", label="Image", sources=["upload", "clipboard"], elem_id="ground_image")
                text = gr.Textbox(label="Text", placeholder="a red circle above a square", elem_id="ground_text")
                phrase = gr.Textbox(label="Phrase", placeholder="a red circle", info="Of the text; all of it if empty")
                boxes = gr.Textbox(
                    label="Boxes", info="JSON of [left, top, right, bottom] in pixels; a grid of 3 x 3 if empty"
                )
                picker(
                    image,
                    text,
                    boxes,
                    values=lambda i: (
                        demo.images[i],
                        demo.texts[i],
                        json.dumps(demo.boxes[i]) if demo.boxes[i] else "",
                    ),
                )
                run = gr.Button("Ground", variant="primary", elem_id="ground_run")
            with gr.Column(scale=3):
                shown = gr.HTML(elem_id="ground_shown", padding=False)
                table = gr.Dataframe(headers=["score", "left", "top", "right", "bottom"], label="Regions, best first")
            run.click(demo.ground, [name, image, text, phrase, boxes], [shown, table], api_name="ground")
    return blocks


def launch(
    models: Sequence[str] | None = None,
    images_dir: str | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    share: bool = False,
    **kwargs,
) -> Any:
    """Serves the demo. `kwargs` are those of Gradio's `launch`."""
    return (
        build(models, images_dir)
        .queue()
        .launch(server_name=host, server_port=port, share=share, theme=gr.themes.Soft(), **kwargs)
    )
