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
"""
Make the example checkpoints and scenes that come with the package, in hf_vg/examples: train each system on scenes, and
keep the weights in half precision with what is needed to load them.

    python recipes/make_checkpoints.py                      # all, as `make checkpoints` does
    python recipes/make_checkpoints.py spatial_transformer  # one of them

Trainings are in the folder outputs/examples. One that has finished there is not run again.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from hf_vg import load_scenes
from hf_vg.examples import CHECKPOINTS, checkpoint
from hf_vg.reports import METRICS, metric_lines


# The recipes that train each system, in order: the recipe, its config, and flags that keep the checkpoint small.
RECIPES = {
    "show_attend_tell": [("train_captioner", "show_attend_tell_scenes")],
    "spatial_transformer": [("train_captioner", "spatial_transformer_scenes")],
    "vse_scnlm": [
        ("train_vse", "vse_scenes"),
        ("train_scnlm", "scnlm_scenes", "--space", "outputs/examples/vse_scenes", "--num_sentences", "1000"),
    ],
    "grounded_visual_bert": [("train_vgp", "vgp_rollout_scenes")],
    "self_attn_grounded_encoder": [("train_grounded_encoder", "grounded_encoder_scenes")],
}
# The parts of a checkpoint that loading needs. The code of the model is that of the package.
FILES = ("config.json", "generation_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json")
SENTENCE_TRANSFORMERS = ("modules.json", "sentence_bert_config.json")
NUM_SCENES = 12
CARD = """\
# {name}

An example checkpoint of hf_vg: it {does}.
It was trained on scenes of colored shapes, which `hf_vg.load_scenes` draws, and knows nothing else. The weights are
stored in half precision and loaded in float32.

```bash
{commands}
```

Scores on test scenes, seed 0:

```
{scores}
```
"""


def train(name: str) -> tuple[Path, str, str]:
    """Trains a system, and returns the folder, the commands and the scores."""
    commands, metrics, folder = [], {}, Path()
    for recipe, config, *flags in RECIPES[name]:
        folder = Path("outputs", "examples", config)
        command = ["accelerate launch --quiet --num_processes 1", f"recipes/{recipe}.py"]
        command += ["--config", f"recipes/configs/{config}.yaml", "--output_dir", folder.as_posix(), *flags]
        commands.append(" ".join(command))
        results = folder / "test_results.json"
        if not results.exists():
            subprocess.run(commands[-1].split(), check=True)
        metrics |= json.loads(results.read_text(encoding="utf-8"))
    scores = metric_lines({key.removeprefix("test_"): value for key, value in metrics.items()}, METRICS)
    return folder, "\n".join(commands), scores


def pack(name: str, trained: Path, commands: str, scores: str) -> None:
    """Writes an example checkpoint from the folder of a finished training."""
    folder = Path(checkpoint(name))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = load_file(trained / "model.safetensors")
    changes = {}
    if name == "self_attn_grounded_encoder":  # its decoder and its image network are for training alone
        weights = {key: value for key, value in weights.items() if key.startswith("model.")}
        changes = {"architectures": ["SelfAttnGroundedEncoderModel"]}
    for file in SENTENCE_TRANSFORMERS:
        if (trained / file).exists():
            shutil.copyfile(trained / file, folder / file)
    for file in FILES:
        if (trained / file).exists():
            content = json.loads((trained / file).read_text(encoding="utf-8"))
            for key in ("auto_map", "custom_pipelines"):  # they name the code that a published checkpoint brings
                content.pop(key, None)
            if file == "config.json":
                content |= changes
            (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    halves = {key: value.half() if value.is_floating_point() else value for key, value in weights.items()}
    for key, value in halves.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{key} of {trained} does not fit into half precision.")
    (folder / "model.safetensors").write_bytes(save(halves, {"format": "pt"}))
    card = CARD.format(name=name, does=CHECKPOINTS[name], commands=commands, scores=scores)
    (folder / "README.md").write_text(card, encoding="utf-8")


def write_scenes() -> None:
    """The first test scenes whose combinations of color and shape training has shown, drawn larger."""
    folder = Path(checkpoint(next(iter(RECIPES)))).parents[1] / "scenes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = []
    for row in load_scenes(0, 0, 4 * NUM_SCENES, image_size=128)["test"]:
        if row["unseen"] or len(rows) == NUM_SCENES:
            continue
        row["image"].save(folder / f"{len(rows):02}.png", optimize=True)
        kept = {key: row[key] for key in ("objects", "captions", "phrases")}
        rows.append({"image": f"{len(rows):02}.png", **kept})
    text = json.dumps(rows, indent=None).replace('}, {"image"', '},\n{"image"')
    (folder / "scenes.json").write_text(text + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(RECIPES)} (all of them)")
    names = parser.parse_args().names or list(RECIPES)
    write_scenes()
    for name in names:
        pack(name, *train(name))


if __name__ == "__main__":
    main()
