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
"""The command line, as it is typed."""

import json
import re
import sys

import pytest

from hf_vg.cli import main
from hf_vg.cli.program import parser
from hf_vg.evaluation import caption_metrics
from tests.checkpoints import save_captioner, save_encoder, save_regions, save_space
from tests.common import random_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos, one of them broken, among other files."""
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
    assert set(commands) == {"caption", "explain", "search", "ground", "evaluate", "app"}
    epilogs = [command.epilog for command in commands.values()]
    assert all("examples:" in epilog for epilog in epilogs)
    assert sum(epilog.count("  hf-vg ") for epilog in epilogs) >= 12


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["describe", "a.jpg"],
        ["caption", "a.jpg"],
        ["caption", "a.jpg", "--model", "m", "--num_beams", "0"],
        ["caption", "--model", "m"],
        ["evaluate", "captions.jsonl"],
    ],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: hf-vg")


def test_captions_of_files_folders_and_patterns(capsys, folder, captioner):
    photos = folder / "photos"
    records = run_json(capsys, "caption", photos, "--model", captioner, "--batch_size", 2)
    assert [record["image"] for record in records] == [str(photos / name) for name in ("0.png", "1.png", "more/2.png")]
    assert all(record["caption"] for record in records)
    code, out, err = run(capsys, "caption", f"{photos}/*.png", photos / "0.png", "--model", captioner)
    assert code == 0 and "Captioning" in err  # progress
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
        ("*.webp", "no file matches this"),
    ):
        assert re.search(rf"hf-vg: .*{re.escape(name)}: .*{problem}", err), err
    assert "hf-vg: 3 failed." in err


def test_models_that_can_not_be_used_end_with_2(capsys, folder, captioner):
    photo = folder / "photos" / "0.png"
    code, _, err = run(capsys, "caption", photo, "--model", folder / "nothing")
    assert code == 2 and "nothing' can not be loaded" in err
    code, _, err = run(capsys, "search", photo, "--model", captioner, "--query", "a")
    assert code == 2 and "is a 'show_attend_tell'; search needs a 'vse_scnlm'" in err
    code, _, err = run(capsys, "ground", photo, "--model", captioner, "--text", "a")
    assert code == 2 and "regions need a 'grounded_visual_bert'" in err
    code, _, err = run(capsys, "explain", photo, "--model", captioner, "--text", "a")
    assert code == 2 and "give images, and no --text" in err


def test_explanations_of_every_kind(capsys, folder, captioner, tmp_path):
    photo, regions = folder / "photos" / "0.png", save_regions(tmp_path / "regions")
    encoder = save_encoder(tmp_path / "encoder")
    output = tmp_path / "page.html"
    for arguments, shown in (
        ((photo, "--model", captioner), '"grid":[4,4]'),
        ((photo, "--model", regions, "--text", "a red circle"), '"boxes":[[0.0,0.0,1.0,1.0]'),
        (("--model", encoder, "--text", "a red circle"), '"words":["a","red","circle"'),
    ):
        (record,) = run_json(capsys, "explain", *arguments, "--output", output)
        assert record["file"] == str(output) and record["words"]
        assert shown in output.read_text(encoding="utf-8")
        output.unlink()


def test_search_by_sentence_and_by_sums(capsys, folder, tmp_path):
    space, photos = save_space(tmp_path), folder / "photos"
    hits = run_json(capsys, "search", photos, "--model", space, "--query", "a red circle", "--top", 2)
    assert [hit["rank"] for hit in hits] == [1, 2] and hits[0]["score"] >= hits[1]["score"]
    # An image is nearest to itself, and what is added and taken away again changes nothing.
    sums = ("--image", photos / "1.png", "--plus", "red", "--minus", "red")
    code, out, _ = run(capsys, "search", photos, "--model", space, *sums)
    assert code == 0 and out.splitlines()[0] == f"1.0000\t{photos / '1.png'}"
    code, _, err = run(capsys, "search", photos, "--model", space)
    assert code == 2 and "Give one of --query and --image" in err
    code, _, err = run(capsys, "search", photos, "--model", space, "--image", folder / "broken.jpg")
    assert code == 2 and "broken.jpg" in err


def test_grounding(capsys, folder, tmp_path):
    regions, photo = save_regions(tmp_path), folder / "photos" / "0.png"
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"0.png": [[0, 0, 12, 12], [6, 6, 24, 24]]}))
    arguments = ("--model", regions, "--text", "a red circle is above", "--phrase", "red circle", "--boxes", boxes)
    (record,) = run_json(capsys, "ground", photo, *arguments, "--top", 5)
    assert record["phrase"] == "red circle" and len(record["regions"]) == 2
    assert sum(region["score"] for region in record["regions"]) == pytest.approx(1, abs=1e-3)
    code, out, _ = run(capsys, "ground", photo, "--model", regions, "--text", "a circle")
    assert code == 0 and re.fullmatch(rf"{re.escape(str(photo))}\t0\.\d+\t\d+ \d+ \d+ \d+\n", out)
    code, _, err = run(capsys, "ground", photo, *arguments[:4], "--phrase", "dog")
    assert code == 2 and "'dog' is not in the text" in err
    code, _, err = run(capsys, "ground", folder / "photos" / "1.png", *arguments)
    assert code == 2 and "has no boxes of" in err


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
    assert code == 0 and out.startswith("3 images\ndistinct1\t")

    captions.write_text(captions.read_text() + '{"image": "9.png", "caption": "a"}\nnot json\n')
    code, out, err = run(capsys, "evaluate", captions, "--references", as_json)
    assert code == 1 and out.startswith("3 images")
    assert "9.png: there are no captions of this image" in err and "captions.jsonl:5: no object" in err
    code, _, err = run(capsys, "evaluate", captions, "--references", as_json, "--metrics", "spice")
    assert code == 2 and "no metric 'spice'" in err
    captions.write_text("")
    code, _, err = run(capsys, "evaluate", captions, "--references", as_json)
    assert code == 2 and "There are no captions in" in err


def test_app_says_what_it_needs(capsys, tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="the web demo needs Gradio: `pip install hf-vg[demo]`")
    code, _, err = run(capsys, "app", "--images", tmp_path)
    assert code == 2 and "There are no images in" in err
    for name in ("hf_vg.app", "hf_vg.app.demo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, _, err = run(capsys, "app")
    assert code == 2 and "pip install hf-vg[demo]" in err
