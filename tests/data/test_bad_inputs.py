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
"""Bad inputs raise an error or are skipped, with file and line or entry. A bad row does not affect the others."""

import gzip
import json
import os
import re
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image, ImageFile
from torch.utils.data import DataLoader
from transformers import CLIPImageProcessorPil

from hf_vg import ShowAttendTellProcessor
from hf_vg.data import (
    CaptionCollator,
    CaptionerDataArguments,
    LoadingReport,
    captioner_rows,
    load_captions,
    open_image,
    stream_captions,
    train_word_tokenizer,
)
from hf_vg.data.images import _reported, image_problem, readable_rows


def encoded(image: Image.Image, format: str = "PNG", **kwargs) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format, **kwargs)
    return buffer.getvalue()


NOISE = Image.effect_noise((64, 48), 80).convert("RGB")
PNG, JPEG, WEBP, GIF = (encoded(NOISE, format) for format in ("PNG", "JPEG", "WEBP", "GIF"))
EPS = encoded(NOISE, "EPS")
SMALL = encoded(Image.new("RGB", (8, 6), "red"))


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :]


BAD_IMAGES = {
    "empty": b"",
    "one byte": b"\x89",
    "text": b"this is not an image",
    "html": b"<html><body>404 Not Found</body></html>",
    "zeros": bytes(5000),
    "png cut in half": PNG[: len(PNG) // 2],
    "png cut in its header": PNG[:20],
    "png with a wrong checksum": flipped(PNG, len(PNG) // 2),
    "jpeg cut in half": JPEG[: len(JPEG) // 2],
    "jpeg cut in its header": JPEG[:30],
    "webp cut in half": WEBP[: len(WEBP) // 2],
    "gif cut in half": GIF[: len(GIF) // 2],
    "bmp cut in half": encoded(NOISE, "BMP")[:3000],
    "tiff cut in half": encoded(NOISE, "TIFF")[:3000],
    "postscript": EPS,
    "icns": b"icns\x00\x00\x00\x08",
    "psd": b"8BPS\x00\x01" + bytes(100),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    "pdf": b"%PDF-1.7\n",
    "thin and high": encoded(Image.new("1", (1, 300_000))),
    "thin and wide": encoded(Image.new("L", (30_000, 2))),
    "too many pixels": encoded(Image.new("1", (12_000, 12_000))),
}


class TestImages:
    @pytest.mark.parametrize("name", BAD_IMAGES)
    def test_a_bad_file_is_refused_by_name(self, tmp_path, name):
        path = tmp_path / "photo.png"
        path.write_bytes(BAD_IMAGES[name])
        for source in (path, str(path), {"path": str(path), "bytes": None}):
            with pytest.raises(ValueError, match=r"photo\.png' cannot be opened as an image: ."):
                open_image(source)
        # Also without decoding the image.
        assert "photo.png' cannot be opened as an image: " in image_problem(path)
        assert "cannot be opened as an image: " in image_problem(BAD_IMAGES[name])

    @pytest.mark.parametrize("content", [PNG, JPEG, WEBP, GIF, PNG + b"more", JPEG + b"more", PNG[:-12]])
    def test_a_good_file_is_no_problem(self, tmp_path, content):
        path = tmp_path / "photo"
        path.write_bytes(content)
        assert image_problem(path) is None and image_problem(content, decode=True) is None
        assert open_image(path).size == (64, 48)

    def test_most_files_are_checked_without_decoding(self, monkeypatch):
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("an image was decoded"))
        assert all(image_problem(content) is None for content in (PNG, JPEG))

    def test_ghostscript_is_never_started(self, tmp_path, monkeypatch):
        from PIL import EpsImagePlugin

        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: pytest.fail("Ghostscript was started"))
        (tmp_path / "eps.png").write_bytes(EPS)
        (tmp_path / "good.png").write_bytes(PNG)
        (tmp_path / "captions.csv").write_text("image,caption\neps.png,A dog\ngood.png,A cat\n")
        data = load_captions("table", tmp_path)
        assert data["train"]["image_id"][:] == ["good.png"]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
    @pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
    def test_what_is_no_regular_file_is_refused_at_once(self, tmp_path, kind):
        path = {"device": "/dev/zero", "folder": str(tmp_path)}.get(kind, str(tmp_path / "pipe"))
        if kind == "pipe":
            os.mkfifo(path)
        with pytest.raises(ValueError, match="a folder" if kind == "folder" else "not a regular file"):
            open_image(path)

    @pytest.mark.parametrize("source", ["x" * 5000, "a\0b.png", "", "\ud800.png", "gone.png", "photos/gone"])
    def test_a_bad_name_is_an_error(self, source):
        with pytest.raises(ValueError, match="cannot be opened as an image"):
            open_image(source)

    @pytest.mark.parametrize(
        "image", [Image.new("RGB", (1, 400)), np.zeros((400, 1, 3), np.uint8), np.zeros((1, 400), np.uint8)]
    )
    def test_images_in_memory_have_the_same_limits(self, image):
        with pytest.raises(ValueError, match="`max_aspect_ratio` allows 100 to 1"):
            open_image(image)
        assert max(open_image(image, max_aspect_ratio=400).size) == 400
        with pytest.raises(ValueError, match="`max_pixels` is 10"):
            open_image(image, max_pixels=10)

    def test_too_little_memory_is_the_error_of_one_file(self, monkeypatch):
        def fail(self):
            raise MemoryError

        monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
        with pytest.raises(ValueError, match="cannot be opened as an image: MemoryError"):
            open_image(PNG)


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                while not self.server.over.wait(0.02):
                    self.wfile.write(b"x")
            except OSError:
                pass
            return
        if self.path == "/slow%20headers":
            try:
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
                while not self.server.over.wait(0.02):
                    self.wfile.write(b"x")
            except OSError:
                pass
            return
        if self.path in ("/loop", "/moved", "/to-a-file"):
            targets = {"/loop": "/loop", "/moved": "/good", "/to-a-file": "file:///etc/hostname"}
            self.send_response(302)
            self.send_header("Location", targets[self.path])
            self.end_headers()
            return
        body = {"/good": PNG, "/large": bytes(300_000), "/lies": bytes(300_000), "/text": b"hello"}.get(self.path)
        self.send_response(404 if body is None else 200)
        if self.path in ("/good", "/text"):
            self.send_header("Content-Length", str(len(body)))
        if self.path == "/packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            self.wfile.write(body or b"")
        except OSError:
            pass

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.requests, server.over = [], threading.Event()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        server.address = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.over.set()
        server.shutdown()


class TestAddresses:
    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("/large", "larger than `max_bytes`"),
            ("/lies", "larger than `max_bytes`"),
            ("/slow", "takes longer than 0.3 seconds"),
            ("/slow%20headers", "takes longer than 0.3 seconds"),
            ("/loop", "redirects"),
            ("/to-a-file", "file"),
            ("/none", "404"),
            ("/text", "cannot identify image"),
        ],
    )
    def test_bad_answers_are_refused(self, server, path, reason):
        with pytest.raises(ValueError, match=f"(?i){path}' cannot be opened as an image: .*{reason}"):
            open_image(server.address + path, timeout=0.3 if "slow" in path else 10, max_bytes=100_000)

    @pytest.mark.parametrize("path", ["/good", "/moved"])
    def test_good_answers_are_images(self, server, path):
        assert open_image(server.address + path).size == (64, 48)

    def test_nobody_listens(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{unused.getsockname()[1]}/a.png"
        with pytest.raises(ValueError, match="cannot be opened"):
            open_image(address, timeout=1)

    def test_no_data_file_makes_a_request(self, server, tmp_path):
        address = f"{server.address}/good"
        (tmp_path / "good.png").write_bytes(PNG)
        sources = [address, {"path": address, "bytes": None}]
        tables = {
            "csv": f"image,caption\n{address},A dog\ngood.png,A cat\n",
            "jsonl": "".join(json.dumps({"image": s, "caption": "A dog"}) + "\n" for s in [*sources, "good.png"]),
        }
        for suffix, text in tables.items():
            (tmp_path / f"captions.{suffix}").write_text(text)
            data = load_captions("table", tmp_path / f"captions.{suffix}")
            assert data["train"]["image_id"][:] == ["good.png"]
        rows = [{"image": source, "caption": "A dog"} for source in (sources[1], {"path": "good.png", "bytes": PNG})]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        assert len(load_captions("table", tmp_path / "rows.parquet")["train"]) == 1
        stream = stream_captions("parquet", str(tmp_path / "rows.parquet"))
        assert len(list(stream.one_pass())) == 1
        assert "is not inside the file" in stream.report.problems[0].reason
        folder = tmp_path / "dataset"  # like a dataset on the Hub
        folder.mkdir()
        (tmp_path / "rows.parquet").rename(folder / "rows.parquet")
        with pytest.raises(ValueError, match="1 images.* row 0.*'http://127.0.0.1"):
            load_captions(str(folder))
        for source in sources:
            readable_rows([{"image": source}, {"image": NOISE}])
            with pytest.raises(ValueError, match="cannot be opened"):
                readable_rows([{"image": source}], strict=True)
        assert server.requests == []


class TestDatasets:
    """Folders in the format of the Hub, which `datasets` reads."""

    def write(self, folder, images: list[dict]) -> str:
        folder.mkdir()
        rows = [{"image": image, "caption": f"image {number}"} for number, image in enumerate(images)]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
        return str(folder)

    def test_rows_are_checked_as_those_of_any_other_format(self, tmp_path):
        (tmp_path / "outside.png").write_bytes(SMALL)
        images = [{"bytes": content, "path": None} for content in (SMALL, EPS, PNG[:200], BAD_IMAGES["thin and high"])]
        images += [{"bytes": None, "path": str(tmp_path / "outside.png")}, {"bytes": None, "path": None}, None]
        name = self.write(tmp_path / "data", images)
        report = LoadingReport("hub")
        data = load_captions(name, report=report)
        assert data["train"]["captions"][:] == [["image 0"]] and report.kinds["skipped"] == 6
        assert "outside.png' is not one of the dataset's files" in str(report)
        with pytest.raises(ValueError, match="rows skipped"):
            load_captions(name, strict=True)

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            *(
                ({"README.md": f"---\nconfigs:\n- data_files: {names}\n---\n"}, "outside of its folder")
                for names in ("http://127.0.0.1:9/a", "hf://datasets/a/b", "/etc/*", "[a, ../b]", "{train: ../b}")
            ),
            ({"README.md": "---\n[[[\n---\n"}, "README.md: the metadata is not YAML"),
            ({"README.md": "---\na: !!python/object/apply:os.system [x]\n---\n"}, "README.md: the metadata"),
            ({"data.py": "raise SystemExit('code was run')"}, "cannot be loaded as a dataset"),
            ({"a.tar": "no tar"}, "cannot be loaded as a dataset"),
            ({"a.jsonl": "{"}, "cannot be loaded as a dataset"),
            ({"a.csv": "image,caption\n1,2\n"}, "does not contain images|no image with a caption is left"),
        ],
    )
    def test_a_hostile_folder_is_refused(self, tmp_path, files, said, monkeypatch):
        monkeypatch.setattr(socket.socket, "connect", lambda *args: pytest.fail("the network was asked"))
        folder = tmp_path / "data"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_text(content)
        with pytest.raises(ValueError, match=said):
            load_captions(str(folder))

    @pytest.mark.parametrize("captions", [[5, 6], [{"a": 1}, {"a": 2}], [[["a"]], [["b"]]], [" ", None]], ids=str)
    def test_captions_that_are_no_texts(self, tmp_path, captions):
        (tmp_path / "data").mkdir()
        rows = [{"image": {"bytes": SMALL, "path": None}, "caption": caption} for caption in captions]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "rows.parquet")
        with pytest.raises(ValueError, match="the row has no captions"):
            load_captions(str(tmp_path / "data"))

    def test_nothing_left_is_an_error(self, tmp_path):
        with pytest.raises(ValueError, match="no image with a caption is left"):
            load_captions(self.write(tmp_path / "data", [{"bytes": EPS, "path": None}]))


class TestBatches:
    def test_a_broken_image_is_replaced_by_the_next_of_its_batch(self, caplog):
        _reported.clear()
        broken = {"path": "tar: 7", "bytes": PNG[:100]}
        rows = [{"image": broken, "n": 0}, {"image": PNG, "n": 1}, {"image": JPEG, "n": 2}, {"image": broken, "n": 3}]
        assert [row["n"] for row in readable_rows(rows)] == [1, 1, 2, 1]
        assert all(row["image"].mode == "RGB" for row in readable_rows(rows))
        assert caplog.text.count("'tar: 7' cannot be opened") == 1
        with pytest.raises(ValueError, match="tar: 7"):
            readable_rows(rows, strict=True)

    @pytest.mark.parametrize("num_workers", [0, 2])
    @pytest.mark.parametrize("mirror_images", [False, True])
    def test_files_that_break_after_loading_do_not_stop_a_training(self, photos, num_workers, mirror_images):
        rows = "".join(f"{index}.png,image {index}\n" for index in range(8))
        (photos / "captions.csv").write_text(f"image,caption\n{rows}")
        for index in range(8):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(photos / f"{index}.png")
        data = load_captions("table", photos)["train"]
        for index in (0, 5, 6, 7):
            (photos / f"{index}.png").write_bytes(PNG[:200])
        size = {"height": 8, "width": 8}
        image_processor = CLIPImageProcessorPil(size=size, crop_size=size, do_normalize=False)
        processor = ShowAttendTellProcessor(image_processor, train_word_tokenizer(["image"]))
        rows = captioner_rows(CaptionerDataArguments(), data, None, processor, mirror_images=mirror_images)
        batches = list(DataLoader(rows, 4, collate_fn=CaptionCollator(processor), num_workers=num_workers))
        shown = [(batch["pixel_values"][:, 0, 0, 0] * 255).round().int().tolist() for batch in batches]
        assert shown == [[1, 1, 2, 3], [4, 4, 4, 4]]
        with pytest.raises(ValueError, match=r"0\.png' cannot be opened as an image"):
            collator = CaptionCollator(processor, strict=True)
            list(DataLoader(rows, 4, collate_fn=collator, num_workers=num_workers))

    def test_a_batch_of_broken_images_is_grey(self):
        rows = readable_rows([{"image": b"", "n": 0}, {"image": None, "n": 1}])
        assert [row["n"] for row in rows] == [0, 1] and rows[0]["image"].getpixel((0, 0)) == (128, 128, 128)


# Each with the number of captions that remain, and the message in the report.
CSV = {
    "a quote that is not closed": (b'image,caption\na.png,"A dog\nb.png,A cat\n', 1, "csv:2: .*quote is opened"),
    "the same, with quotes after it": (
        b'image,caption\na.png,"A dog\nb.png,"A cat"\nb.png,"A cow"\n',
        2,
        "csv:2: .*quote is opened",
    ),
    "the same, and names without endings": (
        b'image,caption\na.png,One\n0,"A dog\n' + b"1,A cat\n" * 70,
        1,
        "csv:3: .*quote is opened",
    ),
    "captions before images": (b'caption,image\n"A dog,a.png\nA cat,b.png\n', 1, "csv:2: .*quote is opened"),
    "a value with line breaks": (b'image,caption\na.png,"A\ndog\nruns"\n', 1, "csv:2: noted: a value spans 3 lines"),
    "a NUL": (b"image,caption\na.png,A\0dog\nb.png,A cat\n", 1, "csv:2: skipped: the row has NUL"),
    "a huge value": (b"image,caption\na.png," + b"x" * 200_000 + b"\nb.png,A cat\n", 1, "csv:2: .*field larger than"),
    "too few values": (b"image,caption\na.png\nb.png,A cat\n", 1, "csv:2: skipped: expected the 2 columns"),
    "too many values": (b"caption,image\nA,dog,a.png\nA cat,b.png\n", 1, "csv:2: skipped: expected the 2 columns"),
    "latin-1": ("image,caption\na.png,Café\n".encode("latin-1"), 1, "csv:2: repaired: byte 0xe9 is not UTF-8"),
    "UTF-16": (
        "image,caption\na.png,A dog\n".encode("utf-16"),
        1,
        "csv:1: repaired: the file should be UTF-8 but is UTF-16",
    ),
    "no image": (b"image,caption\n,A dog\nb.png,A cat\n", 1, "csv:2: skipped: 'image' is empty"),
    "no caption": (b"image,caption\na.png,\nb.png,A cat\n", 1, "csv:2: skipped: a.png has an empty caption"),
    "a missing image": (b"image,caption\ngone.png,A dog\nb.png,A cat\n", 1, "csv:2: skipped: there is no image"),
    "a name that is too long": (
        b"image,caption\n" + b"x" * 5000 + b".png,A\nb.png,A cat\n",
        1,
        "csv:2: skipped: there is no image .*xxx",
    ),
    "the folder above": (b"image,caption\n../a.png,A dog\nb.png,A cat\n", 1, "csv:2: skipped: .*is outside of"),
    "a detour": (b"image,caption\nx/../../photos2/a.png,A dog\nb.png,A cat\n", 1, "csv:2: skipped: .*is outside of"),
    "an absolute path": (b"image,caption\n/etc/hostname,A dog\nb.png,A cat\n", 1, "csv:2: skipped: .*is outside of"),
    "a terminal's commands": (b"image,caption\n\x1b[2J.png,A dog\nb.png,A cat\n", 1, r"csv:2: skipped: .*\\x1b\[2J"),
    "a broken image": (
        b"image,caption\nbroken.png,A dog\nb.png,A cat\n",
        1,
        "csv:2: skipped: .*broken.png' cannot",
    ),
    "two splits": (
        b"image,caption,split\na.png,A dog,train\na.png,A,test\nb.png,A cat,train\n",
        2,
        "csv:3: skipped: a.png",
    ),
    "quotes in a value": (b'image,caption\na.png,A "big" dog\n', 1, ""),
    "quotes in quotes": (b'image,caption\na.png,"A "big" dog"\n', 1, ""),
    "CRLF": (b'image,caption\r\na.png,A dog\r\nb.png,"A\r\ncat"\r\n', 2, "csv:3: noted"),
    "a byte order mark": (b"\xef\xbb\xbfimage,caption\na.png,A dog\n", 1, ""),
    "empty lines": (b"image,caption\n\n\na.png,A dog\n\n", 1, ""),
}
JSONL = {
    "not JSON": ('{"image": "a.png"', "jsonl:1: skipped: not JSON"),
    "a list": ("[1, 2]", "jsonl:1: skipped: expected an object"),
    "a number": ("7", "jsonl:1: skipped: expected an object"),
    "a huge number": ('{"image": %s}' % ("9" * 6000), "jsonl:1: skipped: not JSON"),
    "deep brackets": ("[" * 100_000, "jsonl:1: skipped: not JSON"),
    "a caption that is a number": (
        '{"image": "a.png", "caption": 7}',
        "jsonl:1: skipped: a.png has a caption that is not a string: 7",
    ),
    "captions that are objects": (
        '{"image": "a.png", "caption": [{}]}',
        "jsonl:1: skipped: a.png has a caption that is not a string",
    ),
    "no caption": ('{"image": "a.png", "caption": null}', "jsonl:1: skipped: a.png has an empty caption"),
    "an image that is a list": ('{"image": ["a.png"], "caption": "A"}', "jsonl:1: skipped: 'image' is empty or no"),
    "an image that is true": ('{"image": {"path": {}}, "caption": "A"}', "jsonl:1: skipped: 'image' is empty or no"),
    "bytes that are text": (
        '{"image": {"bytes": "x", "path": "no.png"}, "caption": "A"}',
        "jsonl:1: skipped: there is no image",
    ),
    "half a surrogate pair": (r'{"image": "a.png", "caption": "A \ud800"}', "jsonl:1: skipped: .*surrogate pair"),
    "a name of half a pair": (r'{"image": "\udfff.png", "caption": "A"}', "jsonl:1: skipped: .*surrogate pair"),
    "a NUL in a name": (r'{"image": "a\u0000.png", "caption": "A"}', "jsonl:1: skipped: there is no image"),
}


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(SMALL)
    (tmp_path / "a.png").write_bytes(SMALL)
    (folder / "broken.png").write_bytes(PNG[:300])
    return folder


class TestTables:
    @pytest.mark.parametrize("name", CSV)
    def test_csv(self, photos, name):
        content, captions, said = CSV[name]
        (photos / "captions.csv").write_bytes(content)
        report = LoadingReport("table")
        data = load_captions("table", photos, report=report)
        assert report.counts["train captions"] == captions == sum(map(len, data["train"]["captions"]))
        if said:
            assert re.search(said, str(report)), str(report)
        else:
            assert not report.problems
        if said and "noted" not in said:
            with pytest.raises(ValueError, match=said):
                load_captions("table", photos, strict=True)

    def test_an_unclosed_quote_in_row_11_costs_one_row_of_500(self, photos):
        rows = [f"a.png,caption {number}" for number in range(500)]
        rows[10] = 'a.png,"caption 10'
        for end in ("\n", "\r\n"):
            (photos / "captions.csv").write_text(end.join(["image,caption", *rows]), newline="")
            report = LoadingReport("table")
            load_captions("table", photos, report=report)
            assert report.counts["train captions"] == 499 and report.problems[0].line == 12

    @pytest.mark.parametrize("name", JSONL)
    def test_jsonl(self, photos, name):
        text, said = JSONL[name]
        (photos / "captions.jsonl").write_text(text + '\n{"image": "b.png", "caption": "A cat"}\n')
        report = LoadingReport("table")
        # The first row has the column names.
        data = load_captions("table", photos, report=report)
        assert data["train"]["captions"][:] == [["A cat"]]
        with pytest.raises(ValueError, match=said):
            load_captions("table", photos, strict=True)

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("captions.parquet", b"", "captions.parquet: cannot be read as Parquet"),
            ("captions.parquet", b"PAR1" + bytes(100) + b"PAR1", "captions.parquet: cannot be read as Parquet"),
            ("captions.csv", b"", "expected an image column|no image with a caption is left"),
            ("captions.csv", b"a.png,A dog\nb.png,A cat\n", "captions.csv: expected an image column"),
            ("captions.csv", "image,caption\na.png,A\n".encode("utf-16-le"), "captions.csv:1: .*NUL characters"),
            ("captions.csv", bytes(range(256)) * 20, "captions.csv"),
            ("captions.csv", b"image,caption\n", "no image with a caption is left"),
            ("captions.jsonl", b"\n\n", "no image with a caption is left"),
        ],
    )
    def test_a_file_that_is_no_table_is_named(self, photos, name, content, said):
        (photos / name).write_bytes(content)
        with pytest.raises(ValueError, match=said):
            load_captions("table", photos)

    def test_a_wrong_parquet_file(self, photos):
        table = pa.table({"image": pa.array([1.5, 2.5]), "caption": ["A", "B"]})
        pyarrow.parquet.write_table(table, photos / "captions.parquet")
        with pytest.raises(ValueError, match="captions.parquet:1: skipped: 'image'"):
            load_captions("table", photos)

    def test_other_columns_of_a_parquet_file_are_not_read(self, photos):
        dates = pa.array([2**31 - 1], pa.date32())  # not a valid date in Python
        table = pa.table({"image": ["a.png"], "caption": ["A"], "when": dates})
        pyarrow.parquet.write_table(table, photos / "captions.parquet")
        assert len(load_captions("table", photos)["train"]) == 1
        pyarrow.parquet.write_table(pa.table({"image": ["a.png"], "caption": dates}), photos / "captions.parquet")
        with pytest.raises(ValueError, match="captions.parquet: cannot be read as Parquet"):
            load_captions("table", photos)

    def test_images_in_a_parquet_file(self, photos):
        """A Parquet file with image files beside it, several rows per image, and unusable rows."""
        image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        images = [
            {"bytes": SMALL, "path": "x.png"}, {"bytes": None, "path": "a.png"}, {"bytes": SMALL, "path": None},
            {"bytes": SMALL, "path": "x.png"}, {"bytes": EPS, "path": "eps.png"}, {"bytes": None, "path": "../a.png"},
            {"bytes": SMALL, "path": "../../up.png"}, {"bytes": b"", "path": "b.png"}, None,
        ]  # fmt: skip
        splits = ["train"] * 6 + ["val"] * 3
        captions = [str(number) for number in range(9)]
        table = pa.table({"image": pa.array(images, image), "caption": captions, "split": splits})
        pyarrow.parquet.write_table(table, photos / "captions.parquet")
        report = LoadingReport("table")
        data = load_captions("table", photos, report=report)
        assert data["train"].select_columns(["image_id", "captions"])[:] == {
            "image_id": ["x.png", "a.png", "row 3"],
            "captions": [["0", "3"], ["1"], ["2"]],
        }
        assert data["validation"]["image_id"][:] == ["../../up.png", "b.png"] and report.kinds["skipped"] == 3
        assert all(row["image"].size == (8, 6) for split in data.values() for row in split)
        struct = pa.table({"image": pa.array([{"bytes": SMALL}]), "caption": ["A"]})
        pyarrow.parquet.write_table(struct, photos / "captions.parquet")
        assert load_captions("table", photos)["train"]["image_id"][:] == ["row 1"]

    def test_images_dir_says_what_may_be_read(self, photos):
        table = photos / "captions.csv"
        table.write_text(f"image,caption\n{photos.parent / 'a.png'},A dog\n")
        with pytest.raises(ValueError, match="is outside of"):
            load_captions("table", table)
        assert len(load_captions("table", table, images_dir=photos.parent)["train"]) == 1

    @pytest.mark.parametrize(
        ("name", "target"),
        [
            ("link.png", "../a.png"),
            ("link.png", "{outside}/a.png"),
            ("link/a.png", ".."),
            ("link/../a.png", "{outside}/other"),  # the absolute path is {outside}/a.png
        ],
    )
    def test_a_link_that_leaves_the_folder_is_refused(self, photos, name, target):
        (photos.parent / "other").mkdir()
        (photos / name.partition("/")[0]).symlink_to(target.format(outside=photos.parent))
        table = photos / "captions.csv"
        table.write_text(f"image,caption\n{name},A dog\nb.png,A cat\n")
        report = LoadingReport("table")
        assert load_captions("table", table, report=report)["train"]["image_id"][:] == ["b.png"]
        assert re.search(r"csv:2: skipped: .* is a link to .*/a\.png, outside of .*`images_dir`", str(report))

    def test_a_link_within_the_folder_is_followed(self, photos):
        (photos / "link.png").symlink_to("a.png")
        (photos / "captions.csv").write_text("image,caption\nlink.png,A dog\n")
        assert len(load_captions("table", photos, strict=True)["train"]) == 1

    def test_a_folder_of_images_elsewhere_must_be_named(self, photos, tmp_path):
        data = tmp_path / "data"
        data.mkdir()
        (data / "captions.csv").write_text("image,caption\na.png,A dog\n")
        (data / "images").symlink_to(photos)
        with pytest.raises(ValueError, match="images is a link to .*photos, outside of .*`images_dir`"):
            load_captions("table", data)
        for folder in (photos, data / "images"):
            assert len(load_captions("table", data, images_dir=folder)["train"]) == 1

    def test_a_snapshot_of_the_hub_is_links(self, photos, tmp_path):
        repository = tmp_path / "datasets--me--photos"
        snapshot = repository / "snapshots" / "0123"
        (snapshot / "images").mkdir(parents=True)
        (repository / "blobs").mkdir()
        (repository / "blobs" / "4567").write_bytes(SMALL)
        (snapshot / "images" / "a.png").symlink_to("../../../blobs/4567")
        (snapshot / "images" / "b.png").symlink_to("../../../../a.png")
        (snapshot / "captions.csv").write_text("image,caption\na.png,A dog\nb.png,A cat\n")
        assert load_captions(None, snapshot)["train"]["image_id"][:] == ["a.png"]

    def test_a_report_of_many_problems_stays_small(self, photos):
        (photos / "captions.csv").write_text("image,caption\na.png,A dog\n" + "gone.png,\n" * 5000)
        report = LoadingReport("table")
        load_captions("table", photos, report=report)
        assert report.kinds["skipped"] == 5001 and len(report.problems) == 1000
        assert "5,001 rows skipped" in report.summary()

    def test_the_summary_is_printed_once_and_says_what_is_left_out(self, photos, caplog):
        (photos / "captions.csv").write_text("image,caption\na.png,A dog\ngone.png,A\n")
        load_captions("table", photos)
        assert caplog.text.count("1 train images") == 1
        assert "2 images without captions" in caplog.text  # b.png and broken.png


ROW = {"filename": "a.png", "split": "train", "sentences": [{"raw": "A dog"}]}
IMAGE, ANNOTATION = {"id": 1, "file_name": "a.png"}, {"id": 1, "image_id": 1, "caption": "A dog"}


class TestJson:
    @pytest.mark.parametrize(
        "row",
        [
            None, 7, "a.png", [ROW], {}, {**ROW, "filename": 7}, {**ROW, "filename": ["a.png"]},
            {**ROW, "filename": ""},
            {**ROW, "split": 7}, {**ROW, "split": None}, {**ROW, "filepath": 7}, {**ROW, "sentences": "A dog"},
            {**ROW, "sentences": {"raw": "A"}}, {**ROW, "sentences": [7]}, {**ROW, "sentences": [{"raw": 7}]},
            {**ROW, "sentences": [{"raw": "\ud800"}]}, {**ROW, "filename": "\ud800.png"},
            {**ROW, "filename": "x" * 5000},
            {**ROW, "filename": "../a.png"}, {**ROW, "filepath": "/etc", "filename": "hostname"},
            {**ROW, "sentences": []},
        ],
        ids=lambda row: str(row)[:60].encode("ascii", "replace").decode(),
    )  # fmt: skip
    def test_karpathy(self, photos, row):
        file = photos / "dataset_mine.json"
        file.write_text(json.dumps({"images": [{**ROW, "filename": "b.png"}, row]}))
        report = LoadingReport("karpathy")
        assert load_captions("karpathy", file, report=report)["train"]["image_id"][:] == ["b.png"]
        assert all("images[1]" in problem.reason for problem in report.problems)
        with pytest.raises(ValueError, match=r"dataset_mine\.json: skipped: images\[1\]"):
            load_captions("karpathy", file, strict=True)

    @pytest.mark.parametrize(
        ("key", "row"),
        [
            *(("images", row) for row in (None, 7, [], {"id": [2], "file_name": "b.png"}, {"id": 2})),
            *(("images", {"id": 2, "file_name": name}) for name in (7, "../a.png", "/etc/hostname", "x" * 5000, "")),
            ("images", {"id": 2, "file_name": "broken.png"}),
            *(("annotations", row) for row in (None, "A dog", {}, {**ANNOTATION, "id": [1]})),
            *(("annotations", {**ANNOTATION, "id": 2, "caption": text}) for text in (None, 7, ["A"], " ", "\udc00")),
            *(("annotations", {**ANNOTATION, "id": 2, "image_id": number}) for number in ([1], {"a": 1}, 99, None)),
        ],
        ids=lambda value: str(value)[:60].encode("ascii", "replace").decode(),
    )  # fmt: skip
    def test_coco(self, photos, key, row):
        content = {"images": [IMAGE], "annotations": [ANNOTATION]}
        content[key] = [*content[key], row]
        if key == "images" and isinstance(row, dict) and isinstance(row.get("id"), int):
            content["annotations"].append({"id": 9, "image_id": row["id"], "caption": "A cat"})
        file = photos / "captions_train2014.json"
        file.write_text(json.dumps(content))
        assert load_captions("coco", photos)["train"]["captions"][:] == [["A dog"]]
        with pytest.raises(ValueError, match=rf"captions_train2014\.json: skipped: {key}\[1\]"):
            load_captions("coco", photos, strict=True)

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "[]", "7", "null", "{}", '{"images": 7}', '{"images": {}}', "[" * 100_000, "\x00"),
            '{"images": %s}' % ("9" * 6000),
        ],
        ids=lambda text: text[:20],
    )  # fmt: skip
    @pytest.mark.parametrize("name", ["dataset_mine.json", "captions_train2014.json"])
    def test_a_file_of_another_shape_is_named(self, photos, name, text):
        (photos / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name}(:\d+)?: (not JSON|expected an object)"):
            load_captions(None, photos)


class TestTokenFiles:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("no tab here", "expected IMAGE#NUMBER<tab>CAPTION"),
            ("#0\tA dog", "expected IMAGE#NUMBER<tab>CAPTION"),
            ("a.png\tA dog", "expected IMAGE#NUMBER<tab>CAPTION"),
            ("b.png#0\tTwice", "appears twice"),
            ("a.png#0\t ", "empty caption"),
            ("gone.png#0\tA dog", "there is no image"),
            ("../a.png#0\tA dog", "is outside of"),
            ("/etc/hostname#0\tA dog", "is outside of"),
            ("x" * 5000 + "#0\tA dog", "there is no image"),
            ("broken.png#0\tA dog", "cannot be opened as an image"),
        ],
    )
    def test_a_bad_line_is_skipped_by_its_number(self, photos, line, said):
        (photos / "Flickr8k.token.txt").write_text(f"b.png#0\tA cat\n{line}\n")
        assert load_captions("flickr8k", photos)["train"]["image_id"][:] == ["b.png"]
        with pytest.raises(ValueError, match=rf"token\.txt:2: skipped: .*{said}"):
            load_captions("flickr8k", photos, strict=True)


def write_tar(path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, BytesIO(content))


BAD_MEMBERS = {
    "no image": {"1.txt": b"A dog"},
    "no image and no caption": {"license.json": b'{"by": "me"}'},
    "two images": {"1.png": PNG, "1.jpg": JPEG, "1.txt": b"A dog"},
    "no text": {"1.png": PNG, "1.txt": b"\xff\xfe\xfa"},
    "no JSON": {"1.png": PNG, "1.json": b'{"caption": '},
    "no object": {"1.png": PNG, "1.json": b"[1]"},
    "deep brackets": {"1.png": PNG, "1.json": b"[" * 100_000},
    "a caption that is a number": {"1.png": PNG, "1.json": b'{"caption": 7}'},
    "a broken image": {"1.png": PNG[:200], "1.txt": b"A dog"},
    "a thin image": {"1.png": BAD_IMAGES["thin and high"], "1.txt": b"A dog"},
    "postscript": {"1.png": EPS, "1.txt": b"A dog"},
    "an empty image": {"1.png": b"", "1.txt": b"A dog"},
    "no caption": {"1.png": PNG, "1.txt": b" \n"},
}


class TestTars:
    @pytest.mark.parametrize("name", BAD_MEMBERS)
    def test_a_bad_member_is_named_by_tar_and_key(self, tmp_path, name, caplog):
        good = {"0.png": PNG, "0.txt": b"A cat"}
        for members in ({**good, **BAD_MEMBERS[name]}, {**BAD_MEMBERS[name], **good}):
            caplog.clear()
            write_tar(tmp_path / "train-0.tar", members)
            stream = stream_captions("webdataset", str(tmp_path / "train-0.tar"))
            assert [row["captions"] for row in stream.one_pass()] == [["A cat"]]
            assert re.search(r"train-0\.tar: (1|license): skipped: ", caplog.text)
        assert load_captions(None, tmp_path)["train"]["captions"][:] == [["A cat"]]
        with pytest.raises(ValueError, match=r"train-0\.tar: (1|license): skipped: "):
            list(stream_captions("webdataset", str(tmp_path / "train-0.tar"), strict=True).one_pass())
        with pytest.raises(ValueError, match=r"train-0\.tar: (1|license): skipped: "):
            load_captions(None, tmp_path, strict=True)

    def test_other_members_are_not_read(self, tmp_path):
        """Pickles, links and compressed files are not read."""
        with tarfile.open(tmp_path / "0.tar", "w") as tar:
            for name, target in (("link.png", "/etc/hostname"), ("link.txt", "/etc/hostname")):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
            members = {"0.png": PNG, "0.json": b'{"caption": "A cat"}', "0.txt": b"A cat\n", "0.pth": b"\x80\x04."}
            for name, content in {**members, "0.txt.gz": b"\x1f\x8b", "0.cls": b"no number", "README": b""}.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
        report = LoadingReport("tar")
        assert load_captions(None, tmp_path, report=report)["train"]["captions"][:] == [["A cat"]]
        assert not report.problems

    def test_a_tar_without_rows_is_named(self, tmp_path):
        write_tar(tmp_path / "0.tar", {"README": b""})
        with pytest.raises(ValueError, match=r"0\.tar: there is no row with an image and a caption"):
            load_captions("webdataset", tmp_path)
        with pytest.raises(ValueError, match=r"0\.tar: there is no row with an image and a caption"):
            list(stream_captions("webdataset", str(tmp_path / "0.tar")).one_pass())

    def test_a_tar_that_changed_is_read_again(self, tmp_path):
        for caption in (b"A cat", b"A dog"):
            write_tar(tmp_path / "0.tar", {"0.png": PNG, "0.txt": caption})
            os.utime(tmp_path / "0.tar", (len(caption), caption[2]))
            assert load_captions(None, tmp_path)["train"]["captions"][:] == [[caption.decode()]]

    @pytest.mark.parametrize("damage", ["empty", "cut in a member", "cut in a header", "text", "packed and cut"])
    def test_a_damaged_tar_is_named(self, tmp_path, damage):
        members = {f"{index}.{kind}": PNG if kind == "png" else b"A" for index in range(8) for kind in ("png", "txt")}
        for name in ("0.tar", "1.tar"):
            write_tar(tmp_path / name, members)
        whole = (tmp_path / "1.tar").read_bytes()
        content = {
            "empty": b"",
            "cut in a member": whole[:60_000],
            "cut in a header": whole[:300],
            "text": b"no" * 999,
            "packed and cut": gzip.compress(whole)[:9_000],
        }
        (tmp_path / "1.tar").write_bytes(content[damage])
        with pytest.raises(ValueError, match=r"1\.tar: the tar file is damaged: ."):
            list(stream_captions("webdataset", str(tmp_path / "*.tar"), shuffle_buffer=1).one_pass())
        with pytest.raises(ValueError, match=r"1\.tar: the tar file is damaged: ."):
            load_captions("webdataset", tmp_path)
