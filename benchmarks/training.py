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
What training gains by cached features and by a second process, and whether it needs more memory for more data. Each
number is of `recipes/train_captioner.py` as it is launched, with a VGG of 11 layers on photos of 224 x 224 pixels.

```bash
python benchmarks/training.py
python benchmarks/training.py --num_images 512 --steps 60
```
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from features import draw_photos
from transformers import CLIPImageProcessorPil

from hf_vg import VggBackbone, VggConfig
from hf_vg.models.vgg.configuration_vgg import VGG_DEPTHS


ROOT = Path(__file__).resolve().parents[1]
CAPTIONS = ("a dog runs through the green grass", "two children play with a red ball on the beach")


def launch(flags: list[str], processes: int = 1) -> tuple[float, float]:
    """Captions a second of training, and the peak memory of a process, in MB."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes)]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += ["--multi_gpu"] if processes > 1 else []
    command += [str(ROOT / "recipes/train_captioner.py"), *map(str, flags)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        log.seek(0)
        printed = log.read()
    if status:
        raise SystemExit(printed)
    rate = re.search(r"'train_samples_per_second': '([\d.e+]+)'", printed)
    return float(rate.group(1)), usage.ru_maxrss / 1024


def write_shards(folder: Path, photos: list[str], rows: int) -> float:
    """Tar files of 64 rows, from as few photos as there are. Returns their size in MB."""
    folder.mkdir()
    encoded = [Path(photo).read_bytes() for photo in photos]
    for start in range(0, rows, 64):
        with tarfile.open(folder / f"{start:06}.tar", "w") as tar:
            for row in range(start, min(start + 64, rows)):
                content = {"jpg": encoded[row % len(encoded)], "txt": CAPTIONS[row % 2].encode()}
                for suffix, data in content.items():
                    info = tarfile.TarInfo(f"{row:06}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return sum(file.stat().st_size for file in folder.iterdir()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_images", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16, help="of 16 captions, shared out among the processes")
    parser.add_argument("--rows", type=int, default=256, help="that are streamed, and ten times as many")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        photos = draw_photos(folder / "photos", arguments.num_images)
        table = "".join(f"{Path(photo).name},{CAPTIONS[i % 2]}\n" for i, photo in enumerate(photos))
        (folder / "photos" / "captions.csv").write_text(f"image,caption\n{table}")
        VggBackbone(VggConfig(depths=VGG_DEPTHS["vgg11"])).save_pretrained(folder / "vgg")
        size = {"shortest_edge": 256}
        CLIPImageProcessorPil(size=size, crop_size={"height": 224, "width": 224}).save_pretrained(folder / "vgg")

        flags = ["--dataset", "table", "--data_dir", folder / "photos", "--backbone", folder / "vgg"]
        flags += ["--config", ROOT / "recipes/configs/show_attend_tell_flickr8k.yaml", "--max_length_difference", "5"]
        flags += ["--num_eval_images", "4", "--num_scored_images", "0", "--num_figures", "0", "--num_beams", "1"]
        flags += ["--max_steps", arguments.steps, "--eval_strategy", "no", "--save_strategy", "no"]
        flags += ["--early_stopping_patience", "0", "--load_best_model_at_end", "false", "--max_new_tokens", "3"]
        flags += ["--output_dir", folder / "output"]
        cached = ["--features", folder / "features"]
        launch([*flags, *cached, "--max_steps", "1"])  # computes the features
        speeds = {}
        for processes in (1, 2):
            share = ["--per_device_train_batch_size", 16 // processes]
            for source, extra in (("images", []), ("features", cached)):
                speeds[source, processes], memory = launch([*flags, *extra, *share], processes)
                print(
                    f"{source:9} {processes} process{'es' * (processes - 1):2}  "
                    f"{speeds[source, processes]:8.1f} captions/s  {memory:6.0f} MB a process",
                    flush=True,
                )
        for processes in (1, 2):
            ratio = speeds["features", processes] / speeds["images", processes]
            print(f"cached features against images, {processes} process{'es' * (processes - 1)}: {ratio:.2f}x")
        for source in ("images", "features"):
            ratio = speeds[source, 2] / speeds[source, 1]
            print(f"2 processes against 1, {source}: {ratio:.2f}x, on {len(os.sched_getaffinity(0))} cores")

        small = ["--model.backbone_config", "{model_type: vgg, depths: [1], hidden_sizes: [4]}", "--dataset"]
        small += [
            "webdataset",
            "--streaming",
            "--shuffle_buffer",
            "64",
            "--image_size",
            "32",
            "--vocabulary_rows",
            "9",
        ]
        small += ["--model.feature_size", "4", "--model.hidden_size", "8", "--model.embedding_size", "8"]
        small += ["--num_eval_images", "4", "--num_scored_images", "0", "--num_figures", "0", "--max_new_tokens", "3"]
        small += ["--eval_strategy", "no", "--save_strategy", "no", "--per_device_train_batch_size", "16"]
        peaks, sizes = [], []
        for rows in (arguments.rows, 10 * arguments.rows):
            shards = folder / f"shards{rows}"
            sizes.append(write_shards(shards, photos, rows))
            pattern = ["--data_dir", shards / "*.tar", "--eval_data_dir", shards / "000000.tar"]
            _, peak = launch([*small, *pattern, "--max_steps", rows // 16, "--output_dir", folder / f"output{rows}"])
            peaks.append(peak)
            print(f"streaming {sizes[-1]:7.0f} MB of photos: peak memory {peak:6.0f} MB", flush=True)
        growth, more = peaks[1] - peaks[0], sizes[1] - sizes[0]
        print(f"10x the data: memory {peaks[1] / peaks[0]:.3f}x, {growth:+.0f} MB for {more:.0f} MB more data")


if __name__ == "__main__":
    main()
