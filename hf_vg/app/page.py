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
"""The page of the web app, and its server."""

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
See where captioners look, find images by a sentence, ground phrases in regions, and compare sentences."""
IMAGE = {"type": "filepath", "image_mode": None, "format": "png", "sources": ["upload", "clipboard"], "height": 260}


def build(demo: Demo, cache_age: int = 3600) -> gr.Blocks:
    r"""
    Builds the page.

    Args:
        demo ([`Demo`]):
            The functions of the tabs.
        cache_age (`int`, *optional*, defaults to 3600):
            Number of seconds after which uploads and results are deleted.

    Returns:
        `gr.Blocks`: The page.
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
            info="The question to a chat model, or the first words of the caption",
            elem_id="caption_prompt",
        )
        number = gr.Slider(1, 8, value=1, step=1, label="Captions", info="Number of captions, best first")
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
        with gr.Accordion("Start with an image, add and subtract words", open=False):
            image = gr.Image(label="Image", **{**IMAGE, "height": 200})
            _picker(demo, image)
            plus = gr.Textbox(label="Plus", placeholder="red", info="Words, separated by commas")
            minus = gr.Textbox(label="Minus", placeholder="blue")
    with gr.Column(scale=3):
        gr.Markdown("Results, best first:")
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
        phrase = gr.Textbox(
            label="Phrase", placeholder="a red circle", info="A part of the text (default: the whole text)"
        )
        regions = "detected objects" if demo.detector is not None else "a 3 x 3 grid"
        boxes = gr.Textbox(
            label="Boxes", max_lines=4, info=f"JSON list of [left, top, right, bottom] in pixels (default: {regions})"
        )

        def picked(index: int) -> tuple:
            boxes = json.dumps(demo.boxes[index]) if demo.boxes[index] else ""
            return demo.images[index], demo.texts[index], demo.phrases[index], boxes

        _picker(demo, image, text, phrase, boxes, values=picked)
    with gr.Column(scale=3):
        drawn = gr.Image(label="Best region", format="png", interactive=False, elem_id="ground_drawn", height=420)
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
        table = gr.Dataframe(headers=["similarity", "sentence"], label="Most similar first", elem_id="sentences_table")
    run.click(demo.sentences, [name, sentence, others], [shown, table], api_name="sentences")
    sentence.submit(demo.sentences, [name, sentence, others], [shown, table], api_name=False)


def _checkpoint(demo: Demo, task: str) -> gr.Dropdown:
    names = demo.checkpoints.of(task)
    custom = demo.checkpoints.any_model
    info = "A folder on this machine or a model on the Hub" if custom else None if names else "No checkpoint available"
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


# Gradio raises these errors for requests that its own page never sends, such as one with an unknown function number.
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
    Starts the web app.

    Args:
        models (`Sequence[str]`, *optional*):
            The checkpoints to offer. Defaults to those in `outputs` and `checkpoints`, newest first, followed by the
            example checkpoints. If visitors may enter any checkpoint, these defaults follow your `models`.
        images_dir (`str`, *optional*):
            Folder of images to pick and search. By default scenes are drawn.
        detector (`str`, *optional*):
            An object-detection model of transformers that finds regions. By default the regions are a grid.
        host (`str`, *optional*, defaults to `"127.0.0.1"`):
            The address to listen on. By default only this machine can reach the app.
        port (`int`, *optional*, defaults to 7860):
            The port to listen on.
        share (`bool`, *optional*, defaults to `False`):
            Whether to create a public Gradio link.
        any_model (`bool`, *optional*):
            Whether visitors may enter any checkpoint. By default they may if only this machine can reach the app.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that comes with a checkpoint.
        max_file_size (`str`, *optional*, defaults to `"20mb"`):
            Maximum size of an upload.
        max_queue (`int`, *optional*, defaults to 64):
            Maximum number of waiting requests. Further visitors are asked to try again.
        concurrency (`int`, *optional*, defaults to 2):
            Number of requests that run at the same time.
        time_limit (`int`, *optional*, defaults to 60):
            Maximum number of seconds per request.
        cache_age (`int`, *optional*, defaults to 3600):
            Number of seconds after which uploads and results are deleted.
        kwargs (*optional*):
            Passed to Gradio's `launch`.

    Returns:
        `Any`: The result of Gradio's `launch`.

    Example:

    ```python
    >>> from hf_vg.app import launch

    >>> launch(["outputs/show_attend_tell_scenes"])  # doctest: +SKIP
    ```
    """
    if any_model is None:
        any_model = is_loopback(host) and not share
    names = [*(models or [])]
    if any_model or not names:
        names += [*find_checkpoints(), *CHECKPOINTS]
    demo = Demo(Checkpoints(names, any_model, trust_remote_code), images_dir, detector, concurrency, time_limit)
    blocks = build(demo, cache_age).queue(
        api_open=False,  # direct requests would bypass the queue and its limits
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
