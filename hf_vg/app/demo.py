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
"""The functions behind the tabs of the web app."""

import html
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import wraps
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import gradio as gr
import torch
from PIL import Image
from transformers.utils import logging

from ..data.files import atomic_write, images_below
from ..data.images import open_image
from ..data.scenes import load_scenes
from ..interpretation import (
    attention_of_sentences,
    candidate_examples,
    caption_examples,
    draw_regions,
    explanation_html,
    find_regions,
    ground_phrase,
    load_region_model,
    regions_of_words,
)
from ..pipelines import caption_settings, load_captioner, load_detector, load_sentence_encoder, load_space
from .checkpoints import Checkpoints, toast


logger = logging.get_logger(__name__)
NUM_SCENES = 48
MAX_TEXT = 2_000  # characters of a text
MAX_BOXES_TEXT = 200_000  # characters of boxes
MAX_SENTENCES = 500
MAX_FILES = 256  # number of recently shown images to keep


def limited(function: Callable) -> Callable:
    """Stops a request after `time_limit` seconds, and shows errors that a visitor can cause as messages."""

    @wraps(function)
    def run(self: "Demo", *args: Any) -> Any:
        future = self.workers.submit(function, self, *args)
        try:
            return future.result(timeout=self.time_limit)
        except gr.Error:  # which is a ValueError
            raise
        except FutureTimeoutError as error:
            future.cancel()
            raise toast(f"This took longer than {self.time_limit} seconds. Try something smaller.") from error
        except ValueError as error:
            raise toast(str(error).strip()[:300]) from error
        except MemoryError as error:
            raise toast("There is not enough memory for this. Try something smaller.") from error

    return run


class Demo:
    r"""
    The shared state of the tabs: the checkpoints, and the images to pick and search.

    Args:
        checkpoints ([`Checkpoints`]):
            The checkpoints that visitors can choose.
        images_dir (`str`, *optional*):
            Folder of images. By default scenes are drawn.
        detector (`str`, *optional*):
            An object-detection model of transformers that finds regions. By default the regions are a grid.
        concurrency (`int`, *optional*, defaults to 2):
            Number of requests that run at the same time.
        time_limit (`int`, *optional*, defaults to 60):
            Maximum number of seconds per request.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        images_dir: str | None = None,
        detector: str | None = None,
        concurrency: int = 2,
        time_limit: int = 60,
    ):
        self.checkpoints = checkpoints
        self.detector = None if detector is None else load_detector(detector, checkpoints.trust_remote_code)
        self.time_limit = time_limit
        self.workers = ThreadPoolExecutor(concurrency, "demo")
        self.folder, self.files, self.lock = TemporaryDirectory(prefix="hf_vg_"), [], Lock()
        self.images: list[Image.Image] = []
        self.boxes: list[list[list[float]] | None] = []
        self.texts: list[str] = []
        self.phrases: list[str] = []  # the first phrase of each text
        if images_dir is None:
            for row in load_scenes(1, NUM_SCENES, 1, 128)["validation"]:
                self.images.append(row["image"])
                self.boxes.append([obj["box"] for obj in row["objects"]])
                self.texts.append(row["captions"][0])
                self.phrases.append(next((item["text"] for item in row["phrases"] if item["caption"] == 0), ""))
        else:
            for path in images_below(images_dir):
                try:
                    self.images.append(open_image(path))
                except (ValueError, OSError, MemoryError) as error:
                    logger.warning(f"{path} is left out: {error}")
            if not self.images:
                raise ValueError(f"There are no images in {images_dir!r}.")
            self.boxes = [None] * len(self.images)
            self.texts, self.phrases = [""] * len(self.images), [""] * len(self.images)

    def file(self, image: Image.Image) -> str:
        """
        Saves an image and returns the path. Gradio itself would overwrite the same file for each visitor while others
        read it.
        """
        buffer = BytesIO()
        image.save(buffer, "PNG")
        path = Path(self.folder.name, f"{sha256(buffer.getvalue()).hexdigest()}.png")
        if not path.exists():
            with atomic_write(path) as temporary:
                temporary.write_bytes(buffer.getvalue())
            # Gradio serves its own copy, so old files can be deleted.
            with self.lock:
                self.files.append(path)
                old, self.files = self.files[:-MAX_FILES], self.files[-MAX_FILES:]
            for file in set(old) - set(self.files):
                file.unlink(missing_ok=True)
        return str(path)

    @limited
    def caption(self, name: str, image: Any, number: float, prompt: str = "") -> str:
        """Captions an image with the checkpoint's settings, and shows where words look or what was considered."""
        captioner = self.checkpoints.load(load_captioner, name)
        image, number, prompt = _opened(image), _whole(number, 1, 8), _text(prompt)
        if captioner.model.config.model_type == "vse_scnlm":
            if prompt:
                raise toast("An SC-NLM writes whole captions and takes no prompt: leave the prompt empty.")
            ((example,),) = candidate_examples(captioner, [image], number)
            return _frame([{**example, "name": example["generated_text"]}], "Captions")
        (records,) = caption_examples(captioner, [image], **caption_settings(captioner, number, prompt=prompt))
        names = ["best", *(f"alternative {place}" for place in range(1, number))]
        return _frame([{**record, "name": name} for record, name in zip(records, names, strict=True)], "Captions")

    def _space_and_vectors(self, name: str, trust_remote_code: bool) -> tuple[Any, torch.Tensor]:
        space = load_space(name, trust_remote_code)
        return space, space.encode_images(self.images)

    @limited
    def search(
        self, name: str, sentence: str, image: Any, plus: str, minus: str, number: float
    ) -> list[tuple[str, str]]:
        """Finds the images nearest to a sentence or an image, with words added or subtracted."""
        space, vectors = self.checkpoints.load(self._space_and_vectors, name)
        sentence, plus, minus = _text(sentence), _text(plus), _text(minus)
        parts = [space.text(sentence)] if sentence else []
        parts += [space.image(_opened(image))] if image is not None else []
        plus, minus = ([word.strip() for word in words.split(",") if word.strip()] for words in (plus, minus))
        parts += [space.text(word) for word in plus]
        if not parts:
            raise toast("Write a sentence or upload an image to start with.")
        query = parts[0]
        for part in parts[1:]:
            query = query + part
        for word in minus:
            query = query - word
        hits = space.search(query, vectors, _whole(number, 1, 24))
        return [(self.file(self.images[hit["index"]]), f"{hit['score']:.3f}") for hit in hits]

    @limited
    def ground(
        self, name: str, image: Any, text: str, phrase: str, boxes: str
    ) -> tuple[str, str, str, list[list[float]]]:
        """Finds the region that a phrase names, draws it, and shows where all words of the text look."""
        model, processor = self.checkpoints.load(load_region_model, name)
        text, phrase = _text(text), _text(phrase)
        boxes = _text(boxes, MAX_BOXES_TEXT)
        if not text:
            raise toast("Write a text.")
        image = _opened(image)
        try:
            given = json.loads(boxes) if boxes else None
        except (ValueError, RecursionError) as error:
            raise toast("The boxes are not JSON. Write [[left, top, right, bottom], ...] in pixels.") from error
        regions, source = find_regions(processor, image, given, self.detector)
        found = ground_phrase(model, processor, image, text, regions, phrase or None)
        example = regions_of_words(model, processor, image, text, regions)
        rows = [[round(hit["score"], 3), *(round(side, 1) for side in hit["box"])] for hit in found]
        return (
            self.file(draw_regions(image, found[:1], phrase or text)),
            f"The regions are {source}.",
            _frame([{**example, "name": text}], "What words see"),
            rows,
        )

    @limited
    def sentences(self, name: str, sentence: str, others: str) -> Any:
        """Shows which words of a sentence the encoder attends to, and ranks other sentences by similarity."""
        model, tokenizer = self.checkpoints.load(load_sentence_encoder, name)
        sentence = _text(sentence)
        others = [line.strip() for line in _text(others, 50 * MAX_SENTENCES).splitlines() if line.strip()]
        if not sentence:
            raise toast("Write a sentence.")
        if len(others) > MAX_SENTENCES:
            raise toast(f"Enter at most {MAX_SENTENCES} sentences, one per line.")
        shown = ""
        if model.config.use_attention:
            shown = _frame(attention_of_sentences(model, tokenizer, sentence), "Which words count")
        vectors = model.encode(
            [sentence, *others],
            show_progress_bar=False,
            normalize_embeddings=True,
            convert_to_tensor=True,
            tokenizer=tokenizer,
        )
        scores = torch.as_tensor(vectors[1:]) @ torch.as_tensor(vectors[0])
        order = scores.argsort(descending=True, stable=True).tolist()
        return shown, [[round(float(scores[place]), 3), others[place]] for place in order]


def _opened(image: Any) -> Image.Image:
    if image is None:
        raise toast("Upload an image or pick one.")
    try:
        return open_image(image)
    except (ValueError, TypeError) as error:
        # The message contains the path of the file, which visitors must not see.
        print(f"An image cannot be opened: {error}", file=sys.stderr)
        raise toast("This file cannot be opened as an image. It may be damaged, too large or too thin.") from error


def _text(text: Any, most: int = MAX_TEXT) -> str:
    """Cleans the text of a field. Gradio passes `None` for a field that was never shown."""
    text = "" if text is None else str(text)
    if len(text) > most:
        raise toast(f"This text has {len(text):,} characters; at most {most:,} are allowed.")
    # Tokenizers raise an error for a lone surrogate.
    return text.encode(errors="replace").decode().strip()


def _whole(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int | float) or value != value:
        raise toast(f"Enter a number from {low} to {high}.")
    return int(min(max(value, low), high))


def _frame(examples: list[dict[str, Any]], title: str) -> str:
    """Puts an explanation page into a frame that adapts its height."""
    page = html.escape(explanation_html(examples, title))
    fit = "this.style.height = this.contentDocument.documentElement.scrollHeight + 48 + 'px'"
    return (
        f'<iframe title="{html.escape(title)}" srcdoc="{page}" onload="{fit}" '
        'style="width: 100%; height: 640px; border: 0; border-radius: 8px"></iframe>'
    )
