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
"""The page of the web demo, and how it is served."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.route_utils import FnIndexInferError
from starlette.requests import Request
from starlette.responses import JSONResponse
from transformers.utils import logging

from ..examples import CHECKPOINTS
from .checkpoints import Checkpoints, find_checkpoints, is_loopback
from .demo import Demo


logger = logging.get_logger(__name__)
INTRO = """# Visually grounded language
Where captioners look, what a sentence finds, which region a phrase names, which words of a sentence count."""
IMAGE = {"type": "filepath", "image_mode": None, "format": "png", "sources": ["upload", "clipboard"], "height": 260}


def build(demo: Demo, cache_age: int = 3600) -> gr.Blocks:
    r"""
    Makes the page.

    Args:
        demo ([`Demo`]):
            What its tabs do.
        cache_age (`int`, *optional*, defaults to 3600):
            Uploads and results are deleted after so many seconds.
    """
    with gr.Blocks(title="hf_vg", analytics_enabled=False, delete_cache=(cache_age, cache_age)) as blocks:
        gr.Markdown(INTRO)
        with gr.Tab("Caption"), gr.Row():
            _caption_tab(demo)
        with gr.Tab("Search"), gr.Row():
            _search_tab(demo)
        with gr.Tab("Ground"), gr.Row():
            _ground_tab(demo)
        with gr.Tab("Sentences"), gr.Row():
            _sentences_tab(demo)
    return blocks


def _caption_tab(demo: Demo) -> None:
    with gr.Column(scale=2):
        name = _checkpoint(demo, "captions")
        image = gr.Image(label="Image", elem_id="caption_image", **IMAGE)
        run = gr.Button("Caption", variant="primary", elem_id="caption_run")
        prompt = gr.Textbox(
            label="Prompt",
            placeholder="Describe this image.",
            info="What a model that chats is asked, or the first words of a caption",
            elem_id="caption_prompt",
        )
        number = gr.Slider(
            1, 8, value=1, step=1, label="Captions", info="Best first, by the checkpoint's own settings"
        )
        _picker(demo, image)
    with gr.Column(scale=3):
        shown = gr.HTML(elem_id="caption_shown", padding=False)
    inputs = [name, image, number, prompt]
    run.click(demo.caption, inputs, shown, api_name="caption")
    prompt.submit(demo.caption, inputs, shown, api_name=False)


def _search_tab(demo: Demo) -> None:
    with gr.Column(scale=2):
        name = _checkpoint(demo, "search")
        sentence = gr.Textbox(label="Sentence", placeholder="a red circle", elem_id="search_sentence")
        run = gr.Button("Search", variant="primary", elem_id="search_run")
        number = gr.Slider(1, 24, value=8, step=1, label="Images to show")
        with gr.Accordion("Begin with an image, add and take away words", open=False):
            image = gr.Image(label="Image", **{**IMAGE, "height": 200})
            _picker(demo, image)
            plus = gr.Textbox(label="Plus", placeholder="red", info="Words, with commas between them")
            minus = gr.Textbox(label="Minus", placeholder="blue")
    with gr.Column(scale=3):
        gr.Markdown("Found, best first:")
        found = gr.Gallery(
            show_label=False, columns=4, format="png", elem_id="search_found", buttons=[], interactive=False
        )
    inputs = [name, sentence, image, plus, minus, number]
    run.click(demo.search, inputs, found, api_name="search")
    sentence.submit(demo.search, inputs, found, api_name=False)


def _ground_tab(demo: Demo) -> None:
    with gr.Column(scale=2):
        name = _checkpoint(demo, "regions")
        image = gr.Image(label="Image", elem_id="ground_image", **{**IMAGE, "height": 200})
        text = gr.Textbox(label="Text", placeholder="a red circle above a square", elem_id="ground_text")
        run = gr.Button("Ground", variant="primary", elem_id="ground_run")
        phrase = gr.Textbox(label="Phrase", placeholder="a red circle", info="A part of the text; all of it if empty")
        regions = "detected objects" if demo.detector is not None else "a grid of 3 x 3"
        boxes = gr.Textbox(
            label="Boxes", max_lines=4, info=f"JSON of [left, top, right, bottom] in pixels; {regions} if empty"
        )

        def picked(index: int) -> tuple:
            return demo.images[index], demo.texts[index], json.dumps(demo.boxes[index]) if demo.boxes[index] else ""

        _picker(demo, image, text, boxes, values=picked)
    with gr.Column(scale=3):
        drawn = gr.Image(label="The region", format="png", interactive=False, elem_id="ground_drawn", height=420)
        source = gr.Markdown(elem_id="ground_source")
        shown = gr.HTML(elem_id="ground_shown", padding=False)
        table = gr.Dataframe(headers=["score", "left", "top", "right", "bottom"], label="Regions, best first")
    outputs = [drawn, source, shown, table]
    run.click(demo.ground, [name, image, text, phrase, boxes], outputs, api_name="ground")


def _sentences_tab(demo: Demo) -> None:
    with gr.Column(scale=2):
        name = _checkpoint(demo, "sentences")
        sentence = gr.Textbox(
            label="Sentence", placeholder="a red circle above a square", elem_id="sentences_sentence"
        )
        run = gr.Button("Compare", variant="primary", elem_id="sentences_run")
        others = gr.Textbox(
            "\n".join(dict.fromkeys(text for text in demo.texts if text)),
            label="Sentences to compare with, one per line",
            lines=10,
            max_lines=10,
        )
    with gr.Column(scale=3):
        shown = gr.HTML(elem_id="sentences_shown", padding=False)
        table = gr.Dataframe(headers=["similarity", "sentence"], label="Nearest first", elem_id="sentences_table")
    run.click(demo.sentences, [name, sentence, others], [shown, table], api_name="sentences")
    sentence.submit(demo.sentences, [name, sentence, others], [shown, table], api_name=False)


def _checkpoint(demo: Demo, task: str) -> gr.Dropdown:
    names = demo.checkpoints.of(task)
    custom = demo.checkpoints.any_model
    info = "A folder on this machine, or a model of the Hub" if custom else None if names else "None is offered here"
    return gr.Dropdown(
        names, value=names[0] if names else None, allow_custom_value=custom, label="Checkpoint", info=info
    )


def _picker(demo: Demo, *targets: gr.components.Component, values: Callable[[int], Any] | None = None) -> None:
    gr.Markdown("Or pick one:")
    gallery = gr.Gallery(
        demo.images[:8], show_label=False, columns=4, height=250, format="png", allow_preview=False, buttons=[],
        interactive=False,
    )  # fmt: skip

    def pick(event: gr.SelectData) -> Any:
        return values(event.index) if values is not None else demo.images[event.index]

    gallery.select(pick, None, list(targets), api_name=False)


# Gradio raises these for a raw request that its own page never sends, such as one with an unknown function number.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, FnIndexInferError)


def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answers a malformed request with status 400 instead of 500, and logs the reason."""
    logger.warning(f"Refused a malformed request to {request.url.path!r}: {type(error).__name__}: {error}"[:300])
    return JSONResponse({"detail": "The server does not understand this request."}, status_code=400)


def launch(
    models: Sequence[str] | None = None,
    images_dir: str | None = None,
    detector: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = 7860,
    share: bool = False,
    any_model: bool | None = None,
    trust_remote_code: bool = False,
    max_file_size: str = "20mb",
    max_queue: int = 64,
    concurrency: int = 2,
    time_limit: int = 60,
    cache_age: int = 3600,
    **kwargs: Any,
) -> Any:
    r"""
    Serves the demo.

    Args:
        models (`Sequence[str]`, *optional*):
            Checkpoints to offer. By default those in `outputs` and `checkpoints`, newest first, and then the example
            checkpoints; on this machine alone, these follow the given ones.
        images_dir (`str`, *optional*), detector (`str`, *optional*):
            As for [`Demo`].
        host (`str`, *optional*), port (`int`, *optional*), share (`bool`, *optional*):
            Where to listen. By default this machine alone can reach it.
        any_model (`bool`, *optional*):
            Whether visitors may name any checkpoint. By default they may only on this machine (`host` is a loopback
            address, and `share` is not set).
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with a checkpoint.
        max_file_size (`str`, *optional*, defaults to `"20mb"`):
            The largest upload.
        max_queue (`int`, *optional*, defaults to 64), concurrency (`int`, *optional*, defaults to 2):
            Requests that may wait, and that are served at a time. Others are told to try again.
        time_limit (`int`, *optional*, defaults to 60), cache_age (`int`, *optional*, defaults to 3600):
            Seconds that a request may take, and that its files are kept.
        kwargs:
            Passed to Gradio's `launch`.
    """
    if any_model is None:
        any_model = is_loopback(host) and not share
    names = [*(models or [])]
    if any_model or not names:
        names += [*find_checkpoints(), *CHECKPOINTS]
    demo = Demo(Checkpoints(names, any_model, trust_remote_code), images_dir, detector, concurrency, time_limit)
    blocks = build(demo, cache_age).queue(
        api_open=False,  # a direct request would pass by the queue and its limits
        max_size=max_queue,
        default_concurrency_limit=concurrency,
    )
    return blocks.launch(
        server_name=host,
        server_port=port,
        share=share,
        max_file_size=max_file_size,
        theme=gr.themes.Soft(),
        app_kwargs={"exception_handlers": dict.fromkeys(MALFORMED, refuse)},
        **kwargs,
    )
