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
import io
import json
import resource
import tarfile
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from transformers import CLIPImageProcessorPil
from transformers.modeling_outputs import ModelOutput

from hf_vg import ShowAttendTellProcessor
from hf_vg.data import CaptionCollator, LoadingReport, stream_captions, train_word_tokenizer
from hf_vg.training import VgTrainer, VgTrainingArguments
from tests.common import start_process


def png(index: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (index, 0, 0)).save(file, "png")
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def write_shards(folder: Path, shards: int, rows: int, payload: int = 0) -> None:
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for index in range(shard * rows, (shard + 1) * rows):
                # Readers ignore bytes after the end of a PNG.
                add(tar, f"{index:05}.png", png(index % 256) + np.random.default_rng(index).bytes(payload))
                add(tar, f"{index:05}.txt", f"image {index}\na dog\n".encode())


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path, shards=3, rows=5)
    return str(tmp_path / "*.tar")


def names(rows) -> list[str]:
    return [row["captions"][0] for row in rows]


def test_a_pass_has_every_row_and_each_pass_another_order(shards, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.Image, "decode_example", refuse)
    stream = stream_captions("webdataset", shards, shuffle_buffer=4)
    rows = list(islice(stream, 30))
    first, second = names(rows[:15]), names(rows[15:])
    assert set(first) == set(second) == {f"image {index}" for index in range(15)}
    assert first != second and first != sorted(first, key=lambda name: int(name.split()[1]))
    assert names(islice(stream, 30)) == first + second
    assert names(islice(stream_captions("webdataset", shards, shuffle_buffer=4, seed=1), 15)) != first
    assert rows[0]["captions"][1] == "a dog" and rows[0]["image"]["bytes"].startswith(b"\x89PNG")


def test_other_formats(tmp_path):
    rows = [{"image": {"bytes": png(index), "path": "a.png"}, "caption": f"image {index}"} for index in range(4)]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    stream = stream_captions("parquet", str(tmp_path / "a.parquet"))
    assert sorted(names(islice(stream, 4))) == [f"image {index}" for index in range(4)]

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "0.jpg", png(0))
        add(tar, "0.json", json.dumps({"captions": ["a  cat", " "]}).encode())
    assert next(iter(stream_captions("webdataset", str(tmp_path / "a.tar"))))["captions"] == ["a cat"]

    pyarrow.parquet.write_table(pa.table({"caption": ["a dog"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"image column.*\['caption'\]"):
        stream_captions("parquet", str(tmp_path / "b.parquet"))


def test_rows_that_lack_something_are_named(tmp_path):
    rows = [{"image": {"bytes": png(0), "path": "a.png"}, "caption": caption} for caption in ("a dog", " ", None)]
    table = pa.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    report = LoadingReport("flawed")
    stream = stream_captions("parquet", str(tmp_path / "a.parquet"), report=report)
    assert names(islice(stream, 3)) == ["a dog"] * 3
    assert [problem.reason for problem in report.problems] == [
        "the row has no captions"
    ] * 2  # once, not in every pass
    with pytest.raises(ValueError, match="skipped: the row has no captions"):
        list(islice(stream_captions("parquet", str(tmp_path / "a.parquet"), strict=True), 3))
    pyarrow.parquet.write_table(table.slice(1), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="no row with an image and a caption"):
        next(iter(stream_captions("parquet", str(tmp_path / "b.parquet"))))


def test_workers_share_the_files(shards):
    loader = DataLoader(stream_captions("webdataset", shards), batch_size=1, num_workers=2, collate_fn=names)
    # One worker has two files. The other has one file and has read it twice by then.
    assert {name for batch in islice(loader, 20) for name in batch} == {f"image {index}" for index in range(15)}


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.dropout = nn.Dropout()

    def forward(self, pixel_values, labels):
        self.seen.append(pixel_values[:, 0, 0, 0].tolist())
        return ModelOutput(loss=(self.dropout(self.weight) - pixel_values.mean(dim=(2, 3))).square().mean())


def train(shards: str, output_dir: Path, checkpoint: str | None = None) -> Tiny:
    model = Tiny()
    model.seen = []
    image_processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    processor = ShowAttendTellProcessor(image_processor, train_word_tokenizer(["image a dog"]))
    trainer = VgTrainer(
        model=model,
        args=VgTrainingArguments(
            str(output_dir),
            max_steps=16,
            per_device_train_batch_size=2,
            save_strategy="steps",
            save_steps=11,
            learning_rate=0.1,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=stream_captions("webdataset", shards, shuffle_buffer=4),
        data_collator=CaptionCollator(processor),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return model


def test_training_is_resumed_in_the_second_pass(shards, tmp_path):
    whole = train(shards, tmp_path)
    assert len(whole.seen) == 16  # a pass has 7.5 steps
    resumed = train(shards, tmp_path, str(tmp_path / "checkpoint-11"))
    assert resumed.seen == whole.seen[11:]
    assert torch.equal(resumed.weight, whole.weight)


def measure(shards: str, rows: int, file: Path) -> None:
    """Returns the bytes of the images that were read, and the peak memory."""
    stream = stream_captions("webdataset", shards, shuffle_buffer=5)
    read = sum(len(row["image"]["bytes"]) for row in islice(stream, rows))
    file.write_text(json.dumps([read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def test_memory_does_not_grow_with_the_data(tmp_path):
    write_shards(tmp_path, shards=10, rows=10, payload=1_000_000)

    results = []
    for rows in (20, 100):  # after two shards, the buffers of the readers have their full size
        process = start_process(measure, str(tmp_path / "*.tar"), rows, tmp_path / "measured.json")
        process.join()
        results.append(json.loads((tmp_path / "measured.json").read_text()))
    (little, peak), (much, peak_of_much) = results
    assert much > 95_000_000 and much > 4.5 * little
    assert peak_of_much - peak < 0.5 * (much - little)
