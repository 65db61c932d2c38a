"""
Draws `docs/words.png`, README's figure: scenes, their captions by an example checkpoint, and a map for each word. The
caption of the last scene is false.

    python docs/figures.py
"""

import io
from pathlib import Path

from PIL import Image
from transformers import pipeline

import hf_vg


def main():
    captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
    scenes = hf_vg.load_scenes(num_train=1, num_validation=1, num_test=60, image_size=128)["test"]
    found = [(scene, captioner(scene["image"], return_attention=True)[0]) for scene in scenes]
    truth = [hf_vg.caption_is_true(scene, caption["generated_text"]) for scene, caption in found]
    # Captions of about equal length, of scenes with several shapes, so that there is something to choose from.
    fit = [6 <= len(caption["words"]) <= 9 and len(scene["objects"]) >= 3 for scene, caption in found]
    right = [pair for pair, true, fits in zip(found, truth, fit, strict=True) if true and fits][:3]
    wrong = [pair for pair, true, fits in zip(found, truth, fit, strict=True) if not true and fits][:1]
    for scene, caption in right + wrong:
        things = ", ".join(f"{thing['size']} {thing['color']} {thing['shape']}" for thing in scene["objects"])
        print(f"{caption['generated_text']}   ({things})")
    figure = hf_vg.plot_attention([{"image": scene["image"], **caption} for scene, caption in right + wrong])
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(128).save(Path(__file__).with_name("words.png"), optimize=True)


if __name__ == "__main__":
    main()
