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
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from hf_vg.data import (
    CaptionDataArguments,
    LoadingReport,
    load_caption_data,
    load_captions,
    one_caption_a_row,
    say_long_captions,
    split_name,
    train_word_tokenizer,
)
from hf_vg.data.captions import to_caption_schema
from hf_vg.data.files import read_text


REAL_DATA = Path(__file__).resolve().parents[2] / "../shared/data/flickr8k"


def draw(path: Path, color: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), color).save(path)
    return path


@pytest.fixture
def never_decoded(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.Image, "decode_example", refuse)


@pytest.fixture
def flickr(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        draw(tmp_path / "Images" / name)
    (tmp_path / "Flickr8k.token.txt").write_text(
        "a.jpg#0\tA dog .\na.jpg#1\tA  brown dog .\nb.jpg#0\tA cat .\nc.jpg#0\tA bird .\n"
    )
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("b.jpg\na.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("c.jpg\n")
    return tmp_path


def test_flickr(flickr, never_decoded):
    report = LoadingReport("tiny")
    data = load_captions("flickr8k", flickr, strict=True, report=report)
    assert {split: rows["image_id"][:] for split, rows in data.items()} == {
        "train": ["b.jpg", "a.jpg"],
        "validation": ["c.jpg"],
    }
    assert data["train"]["captions"][:] == [["A cat ."], ["A dog .", "A brown dog ."]]
    assert report.counts == {
        "train images": 2,
        "train captions": 3,
        "validation images": 1,
        "validation captions": 1,
    }
    assert report.problems == []


def test_images_are_paths_that_open_from_anywhere(flickr, monkeypatch):
    monkeypatch.chdir(flickr.parent)
    data = load_captions("flickr8k", flickr.name)
    monkeypatch.chdir("/")
    assert data["train"][0]["image"].size == (8, 6)


def test_flickr30k_names(tmp_path):
    draw(tmp_path / "flickr30k-images" / "1.jpg")
    (tmp_path / "results_20130124.token").write_text("1.jpg#0\tA dog .\n")
    (tmp_path / "test.txt").write_text("1\n")
    data = load_captions("flickr30k", tmp_path, strict=True)
    assert list(data) == ["test"] and data["test"]["image_id"][:] == ["1.jpg"]


def test_every_flaw_of_token_files_is_named(flickr):
    token_file, train, dev = (
        flickr / name for name in ("Flickr8k.token.txt", "Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt")
    )
    token_file.write_bytes(
        b"\xef\xbb\xbfa.jpg#0\tA dog .\r\n"
        b"a.jpg#0\tAnother .\n"
        b"no tab here\n"
        b"b.jpg#0\tCaf\xe9 .\n"
        b"gone.jpg#0\tA ghost .\n"
        b"c.jpg#0\t \n"
        b"d.jpg#0\tBroken .\n"
    )
    (flickr / "Images" / "d.jpg").write_bytes(b"no image")
    train.write_text("a.jpg\nb.jpg\ngone.jpg\nd.jpg\nnobody.jpg\n")
    dev.write_text("c.jpg\na.jpg\n")
    report = LoadingReport("flawed")
    data = load_captions("flickr8k", flickr, report=report, check_images=True)
    assert data["train"]["captions"][:] == [["A dog ."], ["Café ."]] and list(data) == ["train"]
    found = [(problem.kind, Path(problem.file).name, problem.line) for problem in report.problems]
    assert found == [
        ("repaired", token_file.name, 4),  # wrong encoding
        ("skipped", token_file.name, 2),  # duplicate
        ("skipped", token_file.name, 3),  # no tab
        ("skipped", token_file.name, 6),  # empty
        ("skipped", train.name, 5),  # no captions
        ("skipped", dev.name, 2),  # in two splits
        ("skipped", token_file.name, 5),  # no image
        ("skipped", token_file.name, 7),  # unreadable image
        ("skipped", token_file.name, 6),  # no captions left
    ]
    with pytest.raises(ValueError, match=r"token\.txt:5: skipped: there is no image .*gone\.jpg"):
        load_captions("flickr8k", flickr, strict=True)


def test_without_lists_all_is_training_data_and_with_lists_the_rest_is_counted(flickr):
    (flickr / "Flickr_8k.devImages.txt").unlink()
    report = LoadingReport("tiny")
    assert len(load_captions("flickr8k", flickr, report=report)["train"]) == 2
    assert report.counts["images in no split"] == 1
    (flickr / "Flickr_8k.trainImages.txt").unlink()
    assert len(load_captions("flickr8k", flickr)["train"]) == 3


def test_nothing_left_is_an_error(flickr, tmp_path, caplog):
    (flickr / "elsewhere").mkdir()
    with pytest.raises(ValueError, match="no image with a caption is left"):
        load_captions("flickr8k", flickr, images_dir=flickr / "elsewhere")
    rows = "".join(f"{number}.jpg,A dog\n" for number in range(90))
    (tmp_path / "captions.csv").write_text("image,caption\n" + rows)
    with pytest.raises(ValueError, match="(?s)90 rows skipped.*no image .*0.jpg.*pass it as `images_dir`") as raised:
        load_captions("table", tmp_path)
    # The message shows the first rows, each once.
    assert str(raised.value).count("skipped: there is no image") == 5 and not caplog.text


def test_a_wrong_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected one file such as Flickr8k.token.txt"):
        load_captions("flickr8k", tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_captions("flickr8k", tmp_path / "gone")
    with pytest.raises(ValueError, match="needs a `data_dir`"):
        load_captions("coco")


@pytest.fixture
def karpathy(tmp_path):
    for name in ("train2014/1.jpg", "val2014/2.jpg", "val2014/3.jpg"):
        draw(tmp_path / "images" / name)
    rows = [
        {"filepath": "train2014", "filename": "1.jpg", "split": "train", "sentences": [{"raw": "A dog."}]},
        {"filepath": "val2014", "filename": "2.jpg", "split": "restval", "sentences": [{"raw": "A cat."}]},
        {"filepath": "val2014", "filename": "3.jpg", "split": "val", "sentences": [{"raw": "B."}, {"raw": "C."}]},
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": rows, "dataset": "coco"}))
    return tmp_path, rows


def test_karpathy(karpathy, never_decoded):
    folder, _ = karpathy
    data = load_captions("karpathy", folder / "dataset_coco.json", folder / "images", strict=True)
    assert {split: rows["captions"][:] for split, rows in data.items()} == {
        "train": [["A dog."]],
        "restval": [["A cat."]],
        "validation": [["B.", "C."]],
    }
    assert load_captions("karpathy", folder)["train"].to_dict() == data["train"].to_dict()


def test_flaws_of_karpathys_json_are_named_by_entry(karpathy):
    folder, rows = karpathy
    rows += [rows[0], {"filename": "4.jpg"}, {**rows[0], "filename": "5.jpg", "sentences": [{"tokens": []}]}]
    file = folder / "dataset_coco.json"
    file.write_text(json.dumps({"images": rows}))
    report = LoadingReport("flawed")
    load_captions("karpathy", file, folder / "images", report=report)
    assert [problem.reason.split(": ")[0] for problem in report.problems] == [
        "images[3]",
        "images[4]",
        "images[5].sentences[0]",
        "images[5]",
    ]
    file.write_text('{"images": [\n}')
    with pytest.raises(ValueError, match=r"dataset_coco\.json:2: not JSON"):
        load_captions("karpathy", file, folder / "images")
    file.write_text('{"photos": []}')
    with pytest.raises(ValueError, match="expected an object with a list 'images'"):
        load_captions("karpathy", file, folder / "images")


def test_coco(tmp_path, never_decoded):
    draw(tmp_path / "train2014" / "1.jpg")
    draw(tmp_path / "val2014" / "2.jpg")
    (tmp_path / "annotations").mkdir()
    train = {
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 1, "file_name": "1.jpg"}],
        "annotations": [
            {"id": 10, "image_id": 1, "caption": "A dog.\n"},
            {"id": 11, "image_id": 1, "caption": "A brown dog."},
            {"id": 11, "image_id": 1, "caption": "Twice."},
            {"id": 12, "image_id": 7, "caption": "No image."},
        ],
    }
    val = {"images": [{"id": 2, "file_name": "2.jpg"}], "annotations": [{"id": 10, "image_id": 2, "caption": "C."}]}
    (tmp_path / "annotations" / "captions_train2014.json").write_text(json.dumps(train))
    (tmp_path / "annotations" / "captions_val2014.json").write_text(json.dumps(val))
    report = LoadingReport("coco")
    data = load_captions("coco", tmp_path, report=report)
    assert data["train"].remove_columns("image").to_dict() == {
        "image_id": ["1"],
        "captions": [["A dog.", "A brown dog."]],
    }
    assert data["validation"]["captions"][:] == [["C."]]
    assert [problem.reason.split(":")[0] for problem in report.problems] == [
        "images[1]",
        "annotations[2]",
        "annotations[3]",
    ]


ROWS = [("a.png", "A dog, brown", "train"), ("a.png", "A “big” dog", "train"), ("b/c.png", "A\ncat", "dev")]
EXPECTED = {"train": [["A dog, brown", "A “big” dog"]], "validation": [["A cat"]]}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_tables(tmp_path, suffix, never_decoded):
    draw(tmp_path / "a.png")
    draw(tmp_path / "b" / "c.png")
    file = tmp_path / f"captions.{suffix}"
    rows = [{"file_name": image, "text": text, "split": split} for image, text, split in ROWS]
    if suffix == "jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    elif suffix == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        mark = "," if suffix == "csv" else "\t"
        lines = [mark.join(rows[0])] + [mark.join(f'"{value}"' for value in row.values()) for row in rows]
        file.write_text("\n".join(lines), encoding="utf-8")
    data = load_captions("table", tmp_path, strict=True)
    assert {split: rows["captions"][:] for split, rows in data.items()} == EXPECTED


@pytest.mark.parametrize(
    "columns",
    [("Image", "Caption", "Split"), (" File Name ", "TEXT", "SPLIT"), ("path", "Caption 1", "split")],
)
def test_columns_are_found_however_they_are_written(tmp_path, columns, never_decoded):
    for name, _, _ in ROWS:
        draw(tmp_path / name)
    lines = [";".join(columns), *(";".join(f'"{value}"' for value in row) for row in ROWS)]
    (tmp_path / "captions.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    data = load_captions("table", tmp_path, strict=True)
    assert {split: rows["captions"][:] for split, rows in data.items()} == EXPECTED


def test_flaws_of_tables_are_named_by_line(tmp_path):
    draw(tmp_path / "a.png")
    file = tmp_path / "captions.csv"
    file.write_text(
        'image,caption\na.png,"A dog\nthat runs"\na.png,A dog, brown\n,Nobody\ngone.png,A ghost\na.png\na.png,\n'
    )
    report = LoadingReport("flawed")
    data = load_captions("table", file, report=report)
    assert data["train"]["captions"][:] == [["A dog that runs", "A dog, brown"]]
    assert [(problem.kind, problem.line) for problem in report.problems] == [
        ("noted", 2),  # a line break in quotes
        ("repaired", 4),  # a comma without quotes
        ("skipped", 5),  # no image
        ("skipped", 7),  # a missing column
        ("skipped", 8),  # an empty caption
        ("skipped", 6),  # the image does not exist
    ]
    file.unlink()
    (tmp_path / "captions.jsonl").write_text('{"image": "a.png", "caption": "A dog"}\n{oops\n[1]\n')
    with pytest.raises(ValueError, match=r"(?s)jsonl:2: skipped: not JSON.*jsonl:3: skipped: .*object"):
        load_captions("table", tmp_path, strict=True)
    (tmp_path / "captions.jsonl").write_text('{"picture": "a.png", "caption": "A dog"}\n')
    with pytest.raises(ValueError, match="expected an image column"):
        load_captions("table", tmp_path)


def test_images_within_parquet(tmp_path):
    image = draw(tmp_path / "a.png", "blue").read_bytes()
    (tmp_path / "a.png").unlink()
    rows = [{"image": {"bytes": image, "path": "a.png"}, "captions": ["A dog", "Brown"]}]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "captions.parquet")
    (row,) = load_captions("table", tmp_path, check_images=True)["train"]
    assert row["captions"] == ["A dog", "Brown"] and row["image"].getpixel((0, 0)) == (0, 0, 255)


def test_a_dataset_by_name(tmp_path):
    """A local folder in the format of the Hub, loaded with `load_dataset`."""
    draw(tmp_path / "train" / "a.png")
    (tmp_path / "train" / "metadata.jsonl").write_text('{"file_name": "a.png", "caption": "A dog"}\n')
    data = load_captions(str(tmp_path))
    assert data["train"][0]["captions"] == ["A dog"] and data["train"][0]["image"].size == (8, 6)


def test_numbered_caption_columns(never_decoded):
    data = datasets.Dataset.from_dict(
        {"image": ["a.png"], "caption_0": ["A dog"], "caption_1": ["Brown"], "image_id": [7]},
        features=datasets.Features(
            image=datasets.Image(),
            caption_0=datasets.Value("string"),
            caption_1=datasets.Value("string"),
            image_id=datasets.Value("int64"),
        ),
    )
    data = to_caption_schema(data).remove_columns("image")
    assert data[0] == {"image_id": "7", "captions": ["A dog", "Brown"]}


def test_one_caption_a_row(flickr, never_decoded):
    data = load_captions("flickr8k", flickr)["train"]
    tokenizer = train_word_tokenizer(["a brown dog", "a cat"])
    rows = one_caption_a_row(data, tokenizer).remove_columns("image")
    assert rows.to_dict() == {
        "image_id": ["b.jpg", "a.jpg", "a.jpg"],
        "captions": [["A cat ."], ["A dog ."], ["A brown dog ."]],
        "length": [3, 3, 4],  # with the end token
    }
    assert one_caption_a_row(data, tokenizer, max_words=2)["length"][:] == [3, 3]
    with pytest.raises(ValueError, match="no caption.* 1 words"):
        one_caption_a_row(data, tokenizer, max_words=1)


def test_what_a_dataset_lacks_is_held_out(tmp_path, capsys):
    for index in range(40):
        draw(tmp_path / f"{index}.png")
    rows = "\n".join(f"{index}.png,image {index}" for index in range(40))
    (tmp_path / "captions.csv").write_text(f"image,caption\n{rows}\n")
    args = CaptionDataArguments(dataset="table", data_dir=str(tmp_path))
    data = load_caption_data(args)
    train, validation = (set(data[split]["image_id"]) for split in ("train", "validation"))
    assert len(train) == 38 and len(validation) == 2 and not train & validation
    assert data["test"]["image_id"][:] == data["validation"]["image_id"][:]
    assert [split_name(data, split) for split in data] == ["train", "validation", "validation"]
    said = capsys.readouterr().out
    assert "table: 40 train images, 40 train captions" in said and "2 training images are held out" in said
    assert load_caption_data(args)["validation"]["image_id"][:] == data["validation"]["image_id"][:]
    args.num_train_images = 5
    args.num_eval_images = 1
    data = load_caption_data(args)
    assert len(data["train"]) == 5 and len(data["test"]) == 1 and split_name(data) == "validation"
    said = capsys.readouterr().out
    assert "the first 1 of 2 images of the validation split" in said and "of the test split" not in said


def test_a_share_of_the_training_images_holds_smaller_shares():
    args = CaptionDataArguments(num_train_images=40, num_eval_images=2, image_size=32)
    every = load_caption_data(args)["train"]["image_id"][:]
    shares = {}
    for args.train_share in (1.0, 0.5, 0.25, 0.001):
        shares[args.train_share] = load_caption_data(args)["train"]["image_id"][:]
    assert shares[1.0] == every
    assert [len(shares[share]) for share in (0.5, 0.25, 0.001)] == [20, 10, 1]
    assert set(shares[0.001]) < set(shares[0.25]) < set(shares[0.5]) < set(every)
    assert shares[0.5] != every[:20] and shares[0.5] == [image for image in every if image in shares[0.5]]
    for args.train_share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"`train_share` must be .* got {args.train_share}"):
            load_caption_data(args)


def test_other_encodings(tmp_path):
    file = tmp_path / "text.txt"
    for encoding, content, kinds in (
        ("utf-8", "é\nü", {}),
        ("utf-8-sig", "é\nü", {}),
        ("utf-8", "é\rü", {}),
        ("utf-8", "é\r\nü", {}),
        ("utf-16", "é\nü", {"repaired": 1}),
        ("utf-32", "é\nü", {"repaired": 1}),
        ("cp1252", "é\nü’", {"repaired": 2}),
    ):
        file.write_bytes(content.encode(encoding))
        report = LoadingReport("text")
        assert read_text(file, report).split("\n") == content.splitlines()
        assert report.kinds == kinds


def test_a_long_report_is_cut_where_it_is_shown_only(caplog):
    report = LoadingReport("many")
    report.count("images", 3000)
    for line in range(1, 101):
        report.skip("file", line, "bad")
    report.finish()
    assert "3,000 images, 100 rows skipped" in caplog.text and "... and 80 more skipped" in caplog.text
    assert "file:20:" in caplog.text and "file:21:" not in caplog.text
    assert "file:100: skipped: bad" in str(report)


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs Flickr8k in ../shared/data, beside the repository")
def test_real_flickr8k(never_decoded):
    report = LoadingReport("flickr8k")
    data = load_captions("flickr8k", REAL_DATA, strict=True, report=report)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 5997, "validation": 1000}
    assert all(len(captions) == 5 for rows in data.values() for captions in rows["captions"])


def test_captions_that_are_cut_or_left_out_are_counted(capsys):
    captions = ["a dog", "a dog runs", "a big dog runs fast", "a big dog runs very fast"]
    tokenizer = train_word_tokenizer(captions, max_length=6)  # including the end token
    say_long_captions(captions, tokenizer)
    assert capsys.readouterr().out == "1 of 4 captions are cut to 5 words.\n"
    say_long_captions(captions, tokenizer, max_words=2)
    assert capsys.readouterr().out == "3 of 4 captions have more than 2 words and are left out.\n"
    say_long_captions(captions[:2], tokenizer, max_words=3)
    say_long_captions([], tokenizer)
    assert capsys.readouterr().out == ""
