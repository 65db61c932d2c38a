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
"""The format of a folder is detected by its file names. A wrong name is never guessed."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from hf_vg.data import CaptionDataArguments, detect_format, load_caption_data, load_captions
from hf_vg.data.formats import check_dataset_name


TABLE = "image,caption\na.png,A dog\nb.png,A cat\n"
KARPATHY = {"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": "A dog"}]}]}
COCO = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"id": 1, "image_id": 1, "caption": "A dog"}]}
TOKENS = "a.png#0\tA dog\nb.png#0\tA cat\n"


def write(folder, files: dict):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.lower().endswith((".png", ".jpg")):
            Image.new("RGB", (8, 6), "red").save(path, "png")
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_tar(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.parent, {"0.png": "", "0.txt": "A dog\n"})
    with tarfile.open(path, "w") as tar:
        for name in ("0.png", "0.txt"):
            tar.add(path.parent / name, name)
            (path.parent / name).unlink()


ENTITIES = {
    "Annotations/a.xml": "<annotation><filename>a.png</filename></annotation>",
    "Sentences/a.txt": "[/EN#1/animals A dog] runs\n",
    "train.txt": "a\n",
}
FOLDERS = {
    "csv": ({"captions.csv": TABLE}, "table"),
    "tsv": ({"captions.tsv": TABLE.replace(",", "\t")}, "table"),
    "txt": ({"captions.txt": TABLE}, "table"),
    "jsonl": ({"captions.jsonl": '{"image": "a.png", "caption": "A dog"}\n'}, "table"),
    "upper case": ({"CAPTIONS.CSV": TABLE}, "table"),
    "any name": ({"my photos.csv": TABLE, "notes.txt": "hello"}, "table"),
    "captions beside another table": ({"captions.csv": TABLE, "weather.csv": "a,b\n"}, "table"),
    "flickr8k": ({"Flickr8k.token.txt": TOKENS, "Flickr8k.lemma.token.txt": TOKENS, "readme.txt": ""}, "flickr8k"),
    "flickr8k in upper case": ({"FLICKR8K.TOKEN.TXT": TOKENS}, "flickr8k"),
    "flickr30k": ({"results_20130124.token": TOKENS}, "flickr30k"),
    "karpathy": ({"dataset_flickr8k.json": KARPATHY}, "karpathy"),
    "karpathy of any name": ({"mine.json": KARPATHY}, "karpathy"),
    "coco": ({"captions_train2014.json": COCO, "instances_train2014.json": {"images": []}}, "coco"),
    "coco in annotations": ({"annotations/captions_val2017.json": COCO}, "coco"),
    "coco of any name": ({"labels.json": COCO}, "coco"),
    "entities": (ENTITIES, "flickr30k_entities"),
}


@pytest.mark.parametrize("images", ["", "Images", "images", "Flicker8k_Dataset", "IMAGES"])
@pytest.mark.parametrize("case", [*FOLDERS, "parquet", "tars"])
def test_each_format_is_found_and_loaded(tmp_path, case, images):
    folder = tmp_path / "photos"
    write(folder / images, {"a.png": "", "b.png": ""})
    if case == "parquet":
        pyarrow.parquet.write_table(pa.table({"image": ["a.png"], "caption": ["A dog"]}), folder / "captions.parquet")
        expected = "table"
    elif case == "tars":
        write_tar(folder / "train-000.tar")
        expected = "webdataset"
    else:
        files, expected = FOLDERS[case]
        write(folder, files)
    assert detect_format(folder).name == expected
    data = load_captions(None, folder)
    assert all(len(rows) and rows[0]["captions"][0].startswith("A dog") for rows in data.values())
    assert data[next(iter(data))][0]["image"].size == (8, 6)


def test_a_folder_in_the_folder_is_looked_into(tmp_path):
    write(tmp_path, {"__MACOSX/captions.csv": "", ".git/captions.csv": "", "inner/captions.csv": TABLE})
    assert detect_format(tmp_path).path == tmp_path / "inner" / "captions.csv"


@pytest.mark.parametrize("name", ["captions.csv", "mine.CSV", "dataset_x.json", "mine.json", "captions_train.json"])
def test_a_file_is_recognized(tmp_path, name):
    content = TABLE if name.lower().endswith("csv") else KARPATHY if name != "captions_train.json" else COCO
    write(tmp_path, {name: content, "a.png": "", "b.png": ""})
    assert len(load_captions(None, tmp_path / name)["train"])


@pytest.mark.parametrize("pattern", ["*.tar", "train-*.tar", "train-{0..3}.tar"])
def test_a_pattern_of_tars_is_recognized(tmp_path, pattern):
    assert detect_format(tmp_path / pattern).name == "webdataset"


@pytest.mark.parametrize(
    "files",
    [
        {"captions.csv": TABLE, "captions.jsonl": "{}"},
        {"a.csv": TABLE, "b.csv": TABLE},
        {"captions.csv": TABLE, "Flickr8k.token.txt": TOKENS},
        {"dataset_coco.json": KARPATHY, "captions_train2014.json": COCO},
        {"one/captions.csv": TABLE, "two/captions.csv": TABLE},
    ],
    ids=lambda files: " and ".join(files),
)
def test_an_ambiguous_folder_names_what_it_has(tmp_path, files):
    write(tmp_path, files)
    with pytest.raises(ValueError, match="not clear which captions") as error:
        detect_format(tmp_path)
    assert all(name.rpartition("/")[2] in str(error.value) for name in files)


@pytest.mark.parametrize("files", [{}, {"a.png": ""}, {"readme.txt": "hello", "a.json": "[]", "b.json": "{oops"}])
def test_a_folder_without_captions_says_what_was_looked_for(tmp_path, files):
    write(tmp_path, files)
    with pytest.raises(ValueError, match=r"no captions were found\. Looked for: captions\.csv.*Flickr8k\.token.*tar"):
        detect_format(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder or file .*gone"):
        detect_format(tmp_path / "gone")
    with pytest.raises(ValueError, match="there is no folder or file .*gone"):
        CaptionDataArguments(data_dir=str(tmp_path / "gone"))


@pytest.mark.parametrize("dataset", [None, "scenes"])
def test_photos_are_never_exchanged_for_scenes(tmp_path, dataset, capsys):
    write(tmp_path, {"captions.csv": TABLE, "a.png": "", "b.png": ""})
    args = CaptionDataArguments(dataset=dataset, data_dir=str(tmp_path))
    assert (args.dataset, args.data_dir) == ("table", str(tmp_path / "captions.csv"))
    data = load_caption_data(args)
    assert {name for split in ("train", "test") for name in data[split]["image_id"]} == {"a.png", "b.png"}
    assert f"Found table: {tmp_path / 'captions.csv'}" in capsys.readouterr().out
    assert CaptionDataArguments().dataset == "scenes"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("tabel", "table"), ("Table", "table"), ("flickr8", "flickr8k"), ("scene", "scenes"), ("cocoo", "coco")],
)
def test_a_misspelt_dataset_suggests_the_nearest_and_never_asks_the_hub(monkeypatch, name, nearest):
    def refuse(*args, **kwargs):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("hf_vg.data.captions.load_dataset", refuse)
    for load in (check_dataset_name, load_captions, lambda name: CaptionDataArguments(dataset=name)):
        with pytest.raises(ValueError, match=f"unknown dataset '{name}', did you mean {nearest}\\?"):
            load(name)
    with pytest.raises(ValueError, match="unknown dataset"):
        check_dataset_name("../photos/none")
    check_dataset_name("user/name")
