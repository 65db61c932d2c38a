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
"""The command line."""

import importlib
import json
import os
import re
import shlex
import shutil
import sys

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import pipeline

from hf_vg.cli import main
from hf_vg.cli.inputs import ImageInputs
from hf_vg.cli.program import parser
from hf_vg.data.images import open_image
from hf_vg.evaluation import caption_metrics
from hf_vg.pipelines import EmbeddingSpace
from tests.checkpoints import (
    save_captioner,
    save_detector,
    save_encoder,
    save_regions,
    save_scnlm,
    save_space,
    save_spatial,
)
from tests.common import random_images
from tests.pipelines.dual_encoders import dual_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with photos, a broken one among them, and other files."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "photos" / "more").mkdir(parents=True)
    for number, image in enumerate(random_images(3, size=24)):
        image.save(folder / "photos" / ("more" if number == 2 else "") / f"{number}.png")
    (folder / "photos" / "notes.txt").write_text("no image")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    return folder


@pytest.fixture(scope="module")
def captioner(folder):
    return save_captioner(folder / "captioner")


@pytest.fixture(scope="module")
def models(folder):
    savers = {
        "spatial": save_spatial, "scnlm": save_scnlm, "space": save_space, "regions": save_regions,
        "encoder": save_encoder, "detector": save_detector,
    }  # fmt: skip
    return {name: save(folder / name) for name, save in savers.items()}


def run(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def run_json(capsys, *arguments) -> list[dict]:
    code, out, err = run(capsys, *arguments, "--json", "--quiet")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_every_command_has_examples():
    commands = parser()._subparsers._group_actions[0].choices
    assert set(commands) == {"caption", "explain", "search", "ground", "evaluate", "app", "examples"}
    for command in commands.values():
        examples = re.findall(r"^  hf-vg .*(?:\n {6}.*)*", command.epilog, flags=re.M)
        assert len(examples) >= 2
        for example in examples:
            parser().parse_args(shlex.split(example.replace("\\\n", " ").split("|")[0])[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["describe", "a.jpg"],
        ["caption", "a.jpg", "--examples"],
        ["caption", "a.jpg", "--model", "m", "--num_beams", "0"],
        ["caption", "--model", "m"],
        ["evaluate", "captions.jsonl"],
    ],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("hf-vg") and "error:" in err and err.count("\n") == 1


def test_captions_of_files_folders_and_patterns(capsys, folder, captioner):
    photos = folder / "photos"
    records = run_json(capsys, "caption", photos, "--model", captioner, "--batch_size", 2)
    assert [record["image"] for record in records] == [str(photos / name) for name in ("0.png", "1.png", "more/2.png")]
    assert all(record["caption"] for record in records)
    code, out, err = run(capsys, "caption", f"{photos}/*.png", photos / "0.png", "--model", captioner)
    assert code == 0 and err == ""  # progress is only shown in a terminal
    assert out.splitlines() == [f"{record['image']}\t{record['caption']}" for record in records[:2]]
    (record,) = run_json(capsys, "caption", photos / "1.png", "--model", captioner, "--num_captions", 3)
    assert len(set(record["captions"])) == 3 and record["caption"] == record["captions"][0]


def test_what_fails_is_named_and_the_rest_is_done(capsys, folder, captioner):
    inputs = [folder / "broken.jpg", folder / "photos" / "0.png", folder / "missing.jpg", f"{folder}/*.webp"]
    code, out, err = run(capsys, "caption", *inputs, "--model", captioner, "--quiet")
    assert code == 1
    assert out.startswith(str(folder / "photos" / "0.png")) and out.count("\n") == 1
    for name, problem in (
        ("broken.jpg", "cannot identify image file"),
        ("missing.jpg", "there is no such file or folder"),
        ("*.webp", "no file matches this pattern"),
    ):
        assert re.search(rf"hf-vg: .*{re.escape(name)}: .*{problem}", err), err
    assert "hf-vg: 3 inputs failed." in err


def test_captions_are_those_of_the_pipeline(capsys, folder, captioner, models):
    """Without flags, the generation settings of the checkpoint are used."""
    photo = folder / "photos" / "0.png"
    for name, model in (("captioner", captioner), ("spatial", models["spatial"]), ("scnlm", models["scnlm"])):
        settings = transformers.GenerationConfig.from_pretrained(model)
        for beams in (1, 4) if name != "scnlm" else (None,):
            settings.num_beams = beams
            settings.save_pretrained(model)
            torch.manual_seed(0)
            expected = pipeline("image-to-text", model=model)(str(photo))[0]["generated_text"]
            torch.manual_seed(0)
            (record,) = run_json(capsys, "caption", photo, "--model", model)
            assert record["caption"] == expected
    code, _, err = run(capsys, "caption", photo, "--model", models["scnlm"], "--num_beams", 3)
    assert code == 2 and "has no beams" in err
    records = run_json(capsys, "caption", photo, "--model", models["scnlm"], "--num_captions", 2)
    assert len(set(records[0]["captions"])) == 2


def test_models_that_cannot_be_used_end_with_2(capsys, folder, captioner, models, tmp_path):
    photo = folder / "photos" / "0.png"
    cases = (
        (("caption", photo, "--model", folder / "nothing"), "there is no folder .*nothing"),
        (("caption", photo, "--model", models["space"]), "does not write captions; use `hf-vg search`"),
        (("caption", photo, "--model", models["regions"]), "does not write captions; use `hf-vg ground`"),
        (("explain", photo, "--model", models["space"]), "does not write captions; use `hf-vg search`"),
        (("search", photo, "--model", captioner, "--query", "a"), "use `hf-vg caption`"),
        (("ground", photo, "--model", captioner, "--text", "a"), "is a show_attend_tell"),
        (
            ("ground", photo, "--model", models["regions"], "--text", "a", "--detector", captioner),
            "not detect objects",
        ),
        (("explain", photo, "--model", captioner, "--text", "a"), "pass images and no --text"),
        (("explain", photo, "--model", models["regions"]), "pass images and --text"),
        (("explain", photo, "--model", models["encoder"], "--text", "a"), "pass --text and no images"),
    )
    for arguments, message in cases:
        output = ("--output", tmp_path / "x") if arguments[0] == "explain" else ()
        code, out, err = run(capsys, *arguments, *output)
        assert code == 2 and out == "" and re.search(message, err) and err.count("\n") == 1, err


@pytest.mark.parametrize("damage", ["missing", "not finite", "truncated", "no tokenizer"])
def test_damaged_checkpoints_are_refused(damage, capsys, folder, tmp_path):
    model = save_captioner(tmp_path)
    file = tmp_path / "model.safetensors"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "no tokenizer":
        (tmp_path / "tokenizer.json").write_text("{")
    else:
        weights = load_file(file)
        name = next(name for name in weights if "lm_head" in name)
        if damage == "missing":
            del weights[name]
        else:
            weights[name][0] = float("nan")
        save_file(weights, file, {"format": "pt"})
    code, out, err = run(capsys, "caption", folder / "photos", "--model", model)
    assert code == 2 and out == "" and err.startswith("hf-vg: error: ") and "Traceback" not in err, err


def test_checks_come_before_models_are_loaded(capsys, folder, captioner, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    code, _, err = run(capsys, "caption", tmp_path / "missing.jpg", "--model", captioner)
    assert code == 1 and "missing.jpg: there is no such file" in err
    (tmp_path / "file").write_text("")
    for output in (tmp_path, tmp_path / "file" / "page.html"):
        code, _, err = run(capsys, "explain", folder / "photos", "--model", captioner, "--output", output)
        assert code == 2 and "--output" in err
    code, _, err = run(
        capsys, "ground", folder / "photos", "--model", "m", "--text", "a", "--output", tmp_path / "file"
    )
    assert code == 2 and "--output" in err


def test_debug_shows_where(capsys, folder, tmp_path):
    arguments = ["caption", str(folder / "photos"), "--model", str(tmp_path / "nothing")]
    assert main(arguments) == 2
    with pytest.raises(FileNotFoundError):
        main([*arguments, "--debug"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt, 130, ""),
        (PermissionError(13, "Permission denied", "a\x1b/b"), 2, "hf-vg: error: a\\x1b/b: Permission denied\n"),
        (ValueError("first line\nsecond line"), 2, "hf-vg: error: first line\n"),
        (KeyError("x"), 2, "hf-vg: error: KeyError: 'x'\nhf-vg: use --debug to see the traceback.\n"),
    ],
)
def test_exit_codes(error, code, message, capsys, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("hf_vg.cli.captioning.run", fail)
    assert run(capsys, "caption", "a.jpg", "--model", "m") == (code, "", message)


def test_remote_code_needs_the_flag(capsys, folder, tmp_path, monkeypatch):
    """Also if standard input contains an answer to transformers' question."""
    model = tmp_path / "remote"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}, "architectures": ["Mine"]})
    )
    (model / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for command in (["caption"], ["explain", "--output", tmp_path / "x"], ["search", "--query", "a"]):
        code, _, err = run(capsys, command[0], folder / "photos", "--model", model, *command[1:])
        assert code == 2 and "--trust_remote_code" in err
    code, _, err = run(capsys, "ground", folder / "photos", "--model", model, "--text", "a", "--output", tmp_path)
    assert code == 2 and not (tmp_path / "ran").exists()


def test_names_are_printed_safely(capsys, folder, captioner, tmp_path):
    name = "a\x1b[31m\n\udce9\u202e.png"
    random_images(1, size=24)[0].save(tmp_path / "plain.png")
    os.rename(tmp_path / "plain.png", tmp_path / name)
    code, out, err = run(capsys, "caption", tmp_path, tmp_path / f"no{name}", "--model", captioner)
    assert code == 1 and out.count("\n") == 1 and "a\\x1b[31m\\n\\udce9\\u202e.png\t" in out
    assert r"noa\x1b[31m\n\udce9\u202e.png: no file matches" in err
    code, out, _ = run(capsys, "caption", tmp_path, "--model", captioner, "--json")
    assert out.count("\n") == 1 and out.isascii() and "\x1b" not in out
    assert json.loads(out)["image"] == str(tmp_path / name)


def test_one_file_that_needs_too_much_memory(capsys, folder, captioner, monkeypatch):
    photos = folder / "photos"

    def hungry(path, *args, **kwargs):
        if path.endswith("1.png"):
            raise MemoryError
        return open_image(path, *args, **kwargs)

    monkeypatch.setattr("hf_vg.cli.inputs.open_image", hungry)
    code, out, err = run(capsys, "caption", photos, "--model", captioner)
    assert code == 1 and out.count("\n") == 2 and "1.png: MemoryError" in err


def test_a_batch_that_fails_is_tried_one_by_one(folder, capsys):
    def hungry(images):
        if len(images) > 1 or images[0].getpixel((0, 0)) == first:
            raise RuntimeError("can't allocate memory: you tried to allocate 9 bytes")
        return [len(images)]

    inputs = ImageInputs(quiet=True)
    paths = inputs.paths([str(folder / "photos")])
    first = random_images(3, size=24)[0].getpixel((0, 0))
    results = list(inputs.results(hungry, paths, "Trying", batch_size=3))
    assert [path for path, _, _ in results] == paths[1:] and inputs.failures == 1
    assert "0.png: can't allocate memory" in capsys.readouterr().err


def test_explanations_of_every_kind(capsys, folder, captioner, models, tmp_path):
    photo, output = folder / "photos" / "0.png", tmp_path / "page.html"
    for arguments, shown in (
        ((photo, "--model", captioner), '"grid":[4,4]'),
        ((photo, "--model", models["scnlm"]), '"candidates":[{"words":'),
        ((photo, "--model", models["regions"], "--text", "a red circle"), '"boxes":[[0.0,0.0,1.0,1.0]'),
        (("--model", models["encoder"], "--text", "a red circle"), '"words":["a","red","circle"'),
    ):
        (record,) = run_json(capsys, "explain", *arguments, "--output", output)
        assert record["file"] == str(output) and record["words"]
        assert shown in output.read_text(encoding="utf-8")
        output.unlink()
        if "candidates" in record:
            assert len(record["candidates"]) == 3
            assert all(len(c["words"]) == len(c["tags"]) for c in record["candidates"])
    code, out, _ = run(capsys, "explain", photo, "--model", models["scnlm"], "--output", output)
    assert code == 0 and len(re.findall(r"^-?\d\.\d{3}\t(\S+/\S+ ?)+$", out, flags=re.M)) == 3


def test_search_by_sentence_and_by_sums(capsys, folder, models):
    space, photos = models["space"], folder / "photos"
    hits = run_json(capsys, "search", photos, "--model", space, "--query", "a red circle", "--top", 2)
    assert [hit["rank"] for hit in hits] == [1, 2] and hits[0]["score"] >= hits[1]["score"]
    # An image is nearest to itself. Adding and subtracting the same words changes nothing.
    sums = ("--image", photos / "1.png", "--plus", "red", "--minus", "red")
    code, out, _ = run(capsys, "search", photos, "--model", space, *sums)
    assert code == 0 and out.splitlines()[0] == f"1.0000\t{photos / '1.png'}"
    code, _, err = run(capsys, "search", photos, "--model", space)
    assert code == 2 and "Pass either --query or --image" in err
    code, _, err = run(capsys, "search", photos, "--model", space, "--image", folder / "broken.jpg")
    assert code == 2 and "broken.jpg" in err


def test_search_with_clip(capsys, folder, tmp_path, monkeypatch):
    for part in dual_encoder("clip"):
        part.save_pretrained(tmp_path / "clip")
    arguments = ("--model", tmp_path / "clip", "--query", "a red circle", "--index", tmp_path / "index")
    hits = run_json(capsys, "search", folder / "photos", *arguments)
    space = EmbeddingSpace(*dual_encoder("clip"))
    for hit in hits:
        score = space.search("a red circle", space.encode_images([hit["image"]]))[0]["score"]
        assert hit["score"] == pytest.approx(score, abs=1e-4)
    # The second search encodes no images.
    monkeypatch.setattr(EmbeddingSpace, "encode_images", None)
    assert run_json(capsys, "search", folder / "photos", *arguments) == hits
    for database in (("--qdrant", tmp_path / "qdrant"), ("--faiss",)):
        found = run_json(capsys, "search", folder / "photos", *arguments, *database)
        assert [hit["image"] for hit in found] == [hit["image"] for hit in hits]


@pytest.mark.parametrize("name", ["siglip", "align"])
def test_search_with_other_dual_encoders(capsys, folder, tmp_path, name):
    for part in dual_encoder(name):
        part.save_pretrained(tmp_path / name)
    arguments = (
        "--model",
        tmp_path / name,
        "--image",
        folder / "photos" / "1.png",
        "--minus",
        "a dog",
        "--plus",
        "a dog",
    )
    hits = run_json(capsys, "search", folder / "photos", *arguments, "--index", tmp_path / "index")
    assert len(hits) == 3 and hits[0]["image"].endswith("1.png") and hits[0]["score"] == pytest.approx(1, abs=1e-3)


def test_search_in_odd_folders(capsys, folder, tmp_path):
    for part in dual_encoder("clip"):
        part.save_pretrained(tmp_path / "clip")
    photos = tmp_path / "photos"
    photos.mkdir()
    arguments = ("--query", "a red circle", "--index", tmp_path / "index")
    search = ("search", photos, "--model", tmp_path / "clip", *arguments)
    code, out, err = run(capsys, *search)
    assert code == 1 and out == "" and "there are no images in this folder" in err
    random_images(1)[0].save(photos / "0.png")
    (one,) = run_json(capsys, *search)
    # A broken image is named, and the others are found.
    shutil.copy(folder / "broken.jpg", photos / "broken.jpg")
    code, out, err = run(capsys, *search)
    assert code == 1 and "broken.jpg" in err and "0.png" in out and "broken.jpg" not in out
    (photos / "broken.jpg").unlink()
    # A file that changed is encoded again, one that vanished is forgotten, and a new one is found.
    random_images(9)[8].save(photos / "0.png")
    (changed,) = run_json(capsys, *search)
    assert changed["score"] != one["score"]
    random_images(1)[0].save(photos / "1.png")
    (photos / "0.png").unlink()
    (moved,) = run_json(capsys, *search)
    assert moved["image"].endswith("1.png") and moved["score"] == one["score"]
    # The index of another model is not read, also of one that has the same sizes.
    model, processor = dual_encoder("clip")
    model.visual_projection.weight.data.neg_()
    for part in (model, processor):
        part.save_pretrained(tmp_path / "other")
    (other,) = run_json(capsys, "search", photos, "--model", tmp_path / "other", *arguments)
    assert other["score"] == pytest.approx(-moved["score"], abs=2e-4)


def test_search_with_a_model_of_sentence_transformers(capsys, folder, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs hf-vg[sentences]")
    for part in dual_encoder("clip"):
        part.save_pretrained(tmp_path / "clip")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "clip"))
    # Which transformers would not load: what follows the dual encoder counts as well.
    model.append(importlib.import_module("sentence_transformers.models").Dense(8, 4, bias=False))
    model.save_pretrained(str(tmp_path / "model"))
    arguments = ("--model", tmp_path / "model", "--query", "a red circle", "--index", tmp_path / "index")
    hits = run_json(capsys, "search", folder / "photos", *arguments)
    images = [open_image(hit["image"]) for hit in hits]
    scores = model.similarity(model.encode(["a red circle"]), model.encode(images))[0].tolist()
    assert [hit["score"] for hit in hits] == pytest.approx(scores, abs=1e-3) and len(hits) == 3


def test_grounding(capsys, folder, models, tmp_path):
    regions, photo = models["regions"], folder / "photos" / "0.png"
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"0.png": [[0, 0, 12, 12], [6, 6, 24, 24]]}))
    text = ("--model", regions, "--text", "a red circle is above", "--output", tmp_path / "drawn")
    arguments = (*text, "--phrase", "red circle", "--boxes", boxes)
    (record,) = run_json(capsys, "ground", photo, *arguments, "--top", 5)
    assert record["phrase"] == "red circle" and len(record["regions"]) == 2
    assert record["regions_from"] == "the given boxes"
    assert sum(region["score"] for region in record["regions"]) == pytest.approx(1, abs=1e-3)
    drawing = Image.open(record["file"])
    # The winning box is outlined on the enlarged image.
    scale = drawing.width // 24
    left, top, right, bottom = (round(side * scale) for side in record["regions"][0]["box"])
    assert drawing.getpixel((min(right, drawing.width) - 1, (top + bottom) // 2)) == (255, 90, 31)
    code, out, err = run(capsys, "ground", photo, *text)
    drawn = re.escape(str(tmp_path / "drawn" / "0.png"))
    assert code == 0 and re.fullmatch(rf"{re.escape(str(photo))}\t0\.\d+\t\d+ \d+ \d+ \d+\t{drawn}\n", out)
    assert "3 x 3 grid" in err
    code, out, err = run(
        capsys, "ground", folder / "photos", *text, "--detector", models["detector"], "--threshold", 0
    )
    assert code == 0 and "5 detected objects" in err and len(out.splitlines()) == 3
    code, _, err = run(capsys, "ground", photo, *text, "--detector", models["detector"], "--threshold", 1)
    assert code == 0 and "3 x 3 grid" in err and "detector" in err
    code, _, err = run(capsys, "ground", photo, *text, "--phrase", "dog")
    assert code == 2 and "'dog' is not in the text" in err
    code, _, err = run(capsys, "ground", folder / "photos" / "1.png", *arguments)
    assert code == 1 and "has no boxes for this image" in err


def test_scores_of_what_caption_writes(capsys, folder, captioner, tmp_path, monkeypatch):
    code, out, _ = run(capsys, "caption", folder / "photos", "--model", captioner, "--json")
    captions = tmp_path / "captions.jsonl"
    captions.write_text(out)
    written = {f"{number}.png": ["a red circle", "two blue squares"] for number in range(3)}
    as_json, as_flickr = tmp_path / "references.json", tmp_path / "token.txt"
    as_json.write_text(json.dumps(written))
    as_flickr.write_text("".join(f"{n}#{i}\t{text}\n" for n, texts in written.items() for i, text in enumerate(texts)))
    (scores,) = run_json(capsys, "evaluate", captions, "--references", as_json)
    predicted = [json.loads(line)["caption"] for line in out.splitlines()]
    assert scores == {"images": 3, **caption_metrics(predicted, list(written.values()))}
    assert run_json(capsys, "evaluate", captions, "--references", as_flickr) == [scores]
    monkeypatch.setattr("sys.stdin", captions.open())
    code, out, _ = run(capsys, "evaluate", "-", "--references", as_json, "--metrics", "diversity")
    assert code == 0 and re.match(r"3 images\ndistinct words in all captions\t\d+\.\d%\n", out)

    captions.write_text(captions.read_text() + '{"image": "9.png", "caption": "a"}\nnot json\n')
    code, out, err = run(capsys, "evaluate", captions, "--references", as_json)
    assert code == 1 and out.startswith("3 images")
    assert "9.png: " in err and "captions.jsonl:5: expected an object" in err
    code, _, err = run(capsys, "evaluate", captions, "--references", as_json, "--metrics", "spice")
    assert code == 2 and "unknown metric 'spice'" in err
    captions.write_text("")
    code, _, err = run(capsys, "evaluate", captions, "--references", as_json)
    assert code == 2 and "There are no captions in" in err


def test_app_says_what_it_needs(capsys, tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="the web demo needs Gradio: `pip install hf-vg[demo]`")
    code, _, err = run(capsys, "app", "--images", tmp_path)
    assert code == 2 and "There are no images in" in err
    for name in [name for name in sys.modules if name.startswith("hf_vg.app")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, _, err = run(capsys, "app")
    assert code == 2 and "pip install hf-vg[demo]" in err
