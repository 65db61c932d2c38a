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
"""The captions that a structure-content language model considered, with their tags."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image
from transformers import PreTrainedModel, PreTrainedTokenizerBase


if TYPE_CHECKING:
    # Our pipelines import this package.
    from transformers import Pipeline


def caption_candidates(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, number: int = 3, **inputs: Any
) -> list[list[dict[str, Any]]]:
    r"""
    Finds the best captions that a structure-content language model considered for images or vectors.
    [`plot_candidates`] and [`save_html`] draw them.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import caption_candidates
    >>> from hf_vg.pipelines import load_captioner
    >>> from PIL import Image

    >>> captioner = load_captioner(hf_vg.examples.checkpoint("vse_scnlm"))
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> pixels = captioner.image_processor(images=image, return_tensors="pt")["pixel_values"]
    >>> best = caption_candidates(captioner.model, captioner.tokenizer, pixel_values=pixels)[0][0]
    >>> len(best["words"]) == len(best["tags"])
    True
    ```

    Args:
        model ([`PreTrainedModel`]):
            A [`VseScnlmForConditionalGeneration`].
        tokenizer ([`PreTrainedTokenizerBase`]):
            Its tokenizer.
        number (`int`, *optional*, defaults to 3):
            Candidates per image. There are fewer if the model finds fewer different captions.
        inputs (`dict`, *optional*):
            Inputs of `generate`: `pixel_values`, `image_features` or `content_embeds`.

    Returns:
        `list[list[dict]]`: The candidates of each image, best first. Each has `words`, `tags` and a `score`.
    """
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    while True:
        try:
            output = model.generate(**inputs, num_return_sequences=number, return_dict_in_generate=True)
            break
        except ValueError:
            if number == 1:
                raise
            number -= 1
    candidates = []
    for ids, tag_ids, score in zip(output.sequences, output.tag_ids, output.scores.tolist(), strict=True):
        words = tokenizer.convert_ids_to_tokens([id for id in ids.tolist() if id not in tokenizer.all_special_ids])
        tags = [model.config.tags[tag] for tag in tag_ids[: len(words)]]
        candidates.append({"words": words, "tags": tags, "score": score})
    return [candidates[start : start + number] for start in range(0, len(candidates), number)]


def candidate_examples(
    captioner: "Pipeline", images: Sequence[Image.Image], number: int = 3
) -> list[list[dict[str, Any]]]:
    r"""
    Captions images with a structure-content language model, and collects the captions that it considered. For other
    captioners use [`caption_examples`].

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import candidate_examples
    >>> from hf_vg.pipelines import load_captioner
    >>> from PIL import Image

    >>> captioner = load_captioner(hf_vg.examples.checkpoint("vse_scnlm"))
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> ((example,),) = candidate_examples(captioner, [image])
    >>> sorted(example)
    ['candidates', 'generated_text', 'image', 'words']
    ```

    Args:
        captioner ([`Pipeline`]):
            A `pipeline("image-to-text")` with a [`VseScnlmForConditionalGeneration`].
        images (`Sequence[PIL.Image.Image]`):
            The images.
        number (`int`, *optional*, defaults to 3):
            Candidates per image.

    Returns:
        `list[list[dict]]`: For each image a list with one dictionary: its `image`, `generated_text`, `words` and
        `candidates`.
    """
    if not len(images):
        return []
    pixels = captioner.image_processor(images=list(images), return_tensors="pt")["pixel_values"]
    found = caption_candidates(captioner.model, captioner.tokenizer, number, pixel_values=pixels)
    return [
        [{"image": image, "generated_text": " ".join(c[0]["words"]), "words": c[0]["words"], "candidates": c}]
        for image, c in zip(images, found, strict=True)
    ]
