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
"""The web app and explanation pages in a browser."""

import html
import json
import os
import re
import runpy
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from unittest.mock import MagicMock

import httpx
import pytest
from PIL import Image
from transformers import pipeline

from hf_vg.data import load_scenes
from hf_vg.examples import CHECKPOINTS
from hf_vg.interpretation import save_html
from hf_vg.pipelines import load_captioner
from tests.checkpoints import (
    save_captioner,
    save_detector,
    save_encoder,
    save_regions,
    save_scnlm,
    save_space,
    save_spatial,
)
from tests.common import ROOT, random_images
from tests.interpretation.any_processors import save


gr = pytest.importorskip("gradio", reason="the web demo needs Gradio: `pip install hf-vg[demo]`")
from hf_vg.app import find_checkpoints, launch, page  # noqa: E402
from hf_vg.app.checkpoints import Checkpoints  # noqa: E402
from hf_vg.app.demo import Demo  # noqa: E402


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WAIT = 120  # seconds


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    savers = {
        "captioner": save_captioner, "spatial": save_spatial, "scnlm": save_scnlm, "space": save_space,
        "regions": save_regions, "encoder": save_encoder,
    }  # fmt: skip
    return {name: save(folder / name) for name, save in savers.items()}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: `pip install hf-vg[dev]`")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    # The window is tall enough to need no scrolling: after scrolling, the driver misses elements in frames by pixels.
    options.binary_location = programs["chromium"]
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,2400"]:
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=programs["chromedriver"])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def wait_for(browser, selector: str, condition=bool):
    """Waits until `condition` is true for the elements, and returns them."""
    from selenium.webdriver.support.ui import WebDriverWait

    def found(driver):
        elements = driver.find_elements("css selector", selector)
        return elements if elements and condition(elements) else False

    return WebDriverWait(browser, WAIT, ignored_exceptions=()).until(found, f"nothing is at {selector}")


def hover(browser, word) -> None:
    """Hovers over a word until the page reacts: elements may still move while the page is laid out."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    def pointed(driver):
        ActionChains(driver).move_to_element_with_offset(word, 0, -200).move_to_element(word).perform()
        return word.text in readout.text

    readout = word.find_element("xpath", "ancestor::section").find_element("css selector", ".readout")
    WebDriverWait(browser, WAIT).until(pointed, f"nothing happens at {word.text}")


def drawn(browser, card: int = 0) -> str:
    """Returns the overlay of a card's picture."""
    return browser.execute_script(
        f"return document.querySelectorAll('.card')[{card}].querySelector('canvas').toDataURL()"
    )


@pytest.fixture(scope="module")
def address(models):
    flags = {"prevent_thread_lock": True, "quiet": True, "port": None, "max_file_size": "100kb"}
    app, url, _ = launch(list(models.values()), any_model=False, **flags)
    yield url
    app.blocks.close()


def test_main_buttons_are_in_view_and_errors_are_toasts(browser, address):
    browser.get(address)
    browser.set_window_size(1280, 800)
    try:
        wait_for(browser, "#caption_run")
        for tab, button in (("Caption", "caption_run"), ("Search", "search_run"), ("Ground", "ground_run"),
                            ("Sentences", "sentences_run")):  # fmt: skip
            (label,) = [t for t in wait_for(browser, "button[role=tab]") if t.text == tab]
            label.click()
            (run,) = wait_for(browser, f"#{button}", lambda found: found[0].is_displayed())
            bottom, height = browser.execute_script(
                "return [arguments[0].getBoundingClientRect().bottom, window.innerHeight]", run
            )
            assert bottom <= height, tab
        run.click()
        wait_for(browser, ".toast-body", lambda toasts: "Write a sentence" in toasts[0].text)
    finally:
        browser.set_window_size(1280, 2400)


def test_upload_caption_and_hover(browser, address, tmp_path):
    """Upload an image: its caption appears, and hovering over a word changes the map."""
    random_images(1, size=40)[0].save(tmp_path / "photo.png")
    browser.get(address)
    (upload,) = wait_for(browser, "#caption_image input[type=file]")
    upload.send_keys(str(tmp_path / "photo.png"))
    # The preview is shown before the upload ends. Then the page shows the image from the server.
    wait_for(browser, "#caption_image img", lambda images: images[0].get_attribute("src").startswith("http"))
    browser.find_element("id", "caption_run").click()
    (frame,) = wait_for(browser, "#caption_shown iframe")
    browser.switch_to.frame(frame)
    wait_for(browser, ".picture img", lambda images: images[0].get_property("complete"))
    assert len(browser.find_elements("css selector", ".card")) == 1
    words = browser.find_elements("css selector", ".card:first-child .words button")
    assert len(words) > 1 and all(word.text for word in words)
    before = drawn(browser)
    maps = []
    for word in words[:2]:
        hover(browser, word)
        assert [other.get_attribute("aria-pressed") for other in words] == [str(w == word).lower() for w in words]
        maps.append(drawn(browser))
    assert len({before, *maps}) == 3
    browser.switch_to.default_content()
    assert browser.find_element("css selector", "#caption_shown iframe").size["height"] > 300


def test_page_of_every_kind(browser, tmp_path, models):
    """Mouse, keyboard and menus of a page opened from disk, without errors or requests."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select
    from transformers import AutoModel, AutoProcessor, pipeline

    from hf_vg.interpretation import attention_of_sentences, caption_examples, load_region_model, regions_of_words

    image = random_images(1, size=40)[0]
    encoder = models["encoder"]
    tokenizer = AutoProcessor.from_pretrained(encoder).tokenizer
    examples = [
        caption_examples(pipeline("image-to-text", model=models["spatial"]), [image])[0][0],
        {**regions_of_words(*load_region_model(models["regions"]), image, "a red circle"), "name": "<i>&amp;"},
        *attention_of_sentences(AutoModel.from_pretrained(encoder).eval(), tokenizer, "a red circle"),
    ]
    browser.get_log("browser")  # from earlier pages
    browser.get(save_html(examples, tmp_path / "page.html").as_uri())
    cards = wait_for(browser, ".card", lambda cards: len(cards) == 3)
    assert cards[1].find_element("css selector", ".name").text == "<i>&amp;"
    for number in range(2):
        words = cards[number].find_elements("css selector", ".words button")
        assert [word.text for word in words] == examples[number]["words"]
        hover(browser, words[0])
        first = drawn(browser, number)
        layers, heads = cards[number].find_elements("css selector", "select")
        assert not heads.is_enabled()
        Select(layers).select_by_index(2)
        Select(heads).select_by_index(1)
        words[0].click()
        assert drawn(browser, number) != first
        words[0].send_keys(Keys.ARROW_RIGHT)
        assert [word.get_attribute("aria-pressed") for word in words[:2]] == ["false", "true"]
        words[1].send_keys(Keys.ESCAPE)
        assert "looking" not in cards[number].find_element("css selector", ".picture").get_attribute("class")
    hover(browser, cards[2].find_elements("css selector", ".words button")[1])
    assert "“red”" in cards[2].find_element("css selector", ".readout").text
    # On a phone, nothing overflows.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture(scope="module")
def demo(models):
    return Demo(Checkpoints([*models.values(), "/no/such/model"]))


def names(paths) -> list[str]:
    return [Path(path).name for path in paths]


def test_checkpoints_are_offered_where_they_serve(demo):
    offered = {task: names(demo.checkpoints.of(task)) for task in ("captions", "search", "regions", "sentences")}
    assert offered == {
        "captions": ["captioner", "spatial", "scnlm"], "search": ["scnlm", "space"], "regions": ["regions"],
        "sentences": ["encoder"],
    }  # fmt: skip
    assert "/no/such/model" not in demo.checkpoints.names


def test_a_checkpoint_with_a_config_out_of_range_is_not_offered(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "show_attend_tell", "hidden_size": -1}')
    assert Checkpoints([str(tmp_path)]).names == []
    assert "hidden_size must be from 1 to" in capsys.readouterr().err
    with pytest.raises(gr.Error, match="hidden_size must be from 1 to"):
        Checkpoints([], any_model=True).load(load_captioner, str(tmp_path))


def test_newest_checkpoints_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("outputs/newest", "checkpoints/middle", "outputs/oldest", "outputs/no_checkpoint")):
        (tmp_path / name).mkdir(parents=True)
        if name != "outputs/no_checkpoint":
            (tmp_path / name / "config.json").write_text("{}")
            os.utime(tmp_path / name / "config.json", (1e9 - age, 1e9 - age))
    assert names(find_checkpoints()) == ["newest", "middle", "oldest"]


@pytest.mark.parametrize(
    "host, share, given, is_open, offered",
    [
        ("127.0.0.1", False, None, True, ["mine", "found", *CHECKPOINTS]),
        ("::1", False, None, True, ["mine", "found", *CHECKPOINTS]),
        ("localhost", False, None, True, ["mine", "found", *CHECKPOINTS]),
        ("0.0.0.0", False, None, False, ["mine"]),
        ("192.168.1.2", False, None, False, ["mine"]),
        ("127.0.0.1", True, None, False, ["mine"]),
        ("0.0.0.0", False, True, True, ["mine", "found", *CHECKPOINTS]),
        ("127.0.0.1", False, False, False, ["mine"]),
    ],
)
def test_who_may_name_any_model(host, share, given, is_open, offered, monkeypatch):
    seen = {}
    monkeypatch.setattr(page, "find_checkpoints", lambda: ["found"])
    monkeypatch.setattr(page, "Checkpoints", lambda names, any_model, trust: seen.update(names=names, open=any_model))
    monkeypatch.setattr(page, "Demo", lambda *_: None)
    blocks = MagicMock()
    monkeypatch.setattr(page, "build", lambda *_: blocks)
    launch(["mine"], host=host, share=share, any_model=given, max_queue=7, concurrency=3, max_file_size="1mb")
    assert seen == {"names": offered, "open": is_open}
    blocks.queue.assert_called_once_with(api_open=False, max_size=7, default_concurrency_limit=3)
    assert blocks.queue().launch.call_args.kwargs["max_file_size"] == "1mb"


def test_the_space_is_strict(monkeypatch, tmp_path):
    called = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_vg.app.launch", lambda models, *_, **kwargs: called.update(kwargs, models=models))
    monkeypatch.setenv("HF_VG_MODELS", "me/one, me/two")
    runpy.run_path(str(ROOT / "recipes" / "space" / "app.py"), run_name="__main__")
    assert called["any_model"] is False and called["models"] == ["me/one", "me/two"]


def test_strict_mode_tells_nothing_of_files(demo, models, tmp_path):
    """Every name that is not in the list gets the same answer: checkpoints, folders, files and missing paths."""
    copy = save_captioner(tmp_path / "copy")
    told = set()
    for name in (copy, str(tmp_path), __file__, "/no/such/model", "/etc/passwd", "gpt2", "a\0b", "../" * 9, 5, ["x"]):
        with pytest.raises(gr.Error) as error:
            demo.caption(name, demo.images[0], 1)
        told.add(str(error.value.message))
    assert told == {"Choose one of the checkpoints in the list.", "Choose a checkpoint first."}
    open_demo = Checkpoints([], any_model=True)
    assert open_demo.load(lambda name, trust: name, copy) == copy
    with pytest.raises(gr.Error, match="there is no folder"):
        open_demo.load(load_captioner, "/no/such/model")


def test_captions_are_the_pipelines(demo, models):
    """One caption with the checkpoint's settings by default, for all three captioners."""
    for name in ("captioner", "spatial"):
        shown = html.unescape(demo.caption(models[name], demo.images[0], 1))
        text = pipeline("image-to-text", model=models[name])(demo.images[0])[0]["generated_text"]
        assert json.loads(re.search(r'id="data">(.*?)</script>', shown).group(1))[0]["words"] == text.split()
    shown = html.unescape(demo.caption(models["scnlm"], demo.images[0], 2))
    (example,) = json.loads(re.search(r'id="data">(.*?)</script>', shown).group(1))
    assert len(example["candidates"]) == 2 and example["candidates"][0]["tags"]


def test_the_caption_tab_asks_any_chat_model(demo, models, tmp_path):
    folder = save("qwen2_5_vl", tmp_path / "chat")
    chat = Demo(Checkpoints([folder]))
    assert chat.checkpoints.of("captions") == [folder]
    shown = html.unescape(chat.caption(folder, demo.images[0], 2, "What is it?"))
    examples = json.loads(re.search(r'id="data">(.*?)</script>', shown).group(1))
    assert [(example["layers"], example["heads"]) for example in examples] == [(2, 4)] * 2 and examples[0]["words"]
    with pytest.raises(gr.Error, match="leave the prompt empty"):
        demo.caption(models["scnlm"], demo.images[0], 1, "a")


def test_search_by_sentence_and_by_arithmetic(demo, models):
    found = demo.search(models["space"], "a red circle", None, None, None, 5)
    assert len(found) == 5 and [float(score) for _, score in found] == sorted((float(s) for _, s in found))[::-1]
    found = demo.search(models["space"], "", demo.images[3], "red", "red", 1)
    assert found[0][1] == "1.000"
    assert Image.open(found[0][0]).tobytes() == demo.images[3].tobytes()  # it was not compressed as JPEG
    plus = demo.search(models["space"], "a circle", None, "red, blue", "two", 5)
    assert [score for _, score in plus] != [s for _, s in demo.search(models["space"], "a circle", None, "", "", 5)]


def test_grounding_is_drawn(demo, models, tmp_path):
    boxes = demo.boxes[0]
    drawn, source, frame, rows = demo.ground(models["regions"], demo.images[0], "a red circle", "red", str(boxes))
    assert "<iframe" in frame and sorted(row[1:] for row in rows) == sorted([round(s, 1) for s in b] for b in boxes)
    assert (255, 90, 31) in {
        color for _, color in Image.open(drawn).getcolors(1 << 20)
    } and source == "The regions are the given boxes."
    _, source, _, rows = demo.ground(models["regions"], demo.images[0], "a red circle", None, None)
    assert len(rows) == 9 and source == "The regions are a 3 x 3 grid."
    detecting = Demo(demo.checkpoints, detector=save_detector(tmp_path))
    _, source, _, _ = detecting.ground(models["regions"], demo.images[0], "a red circle", None, None)
    assert source == "The regions are 5 detected objects."


def test_sentences(demo, models):
    shown, rows = demo.sentences(models["encoder"], "a red circle", "two blue squares\n\na red circle\n")
    assert "<iframe" in shown and rows[0] == [1.0, "a red circle"] and len(rows) == 2
    assert demo.sentences(models["encoder"], "a red circle", None)[1] == []


def test_parallel_requests_equal_serial_ones(demo, models):
    def ask(number):
        image = demo.images[number % 5]
        return (
            demo.caption(models["captioner"], image, 1 + number % 3),
            [score for _, score in demo.search(models["space"], "a red circle", image, "", "", 3)],
        )

    serial = [ask(number) for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(20))) == serial


def test_a_request_ends_in_time(models, monkeypatch):
    demo = Demo(Checkpoints([models["captioner"]]), time_limit=0.2)
    release = Event()
    monkeypatch.setattr(demo.checkpoints, "load", lambda *_: release.wait(60))
    with pytest.raises(gr.Error, match="took longer than 0.2 seconds"):
        demo.caption(models["captioner"], demo.images[0], 1)
    release.set()


def test_uploads_and_queues_are_limited(address):
    """Files that are too large raise an error, and so do requests if too many wait."""
    large = httpx.post(f"{address}gradio_api/upload", files={"files": ("a.png", bytes(200_000))}, timeout=60)
    assert large.status_code == 413
    small = httpx.post(f"{address}gradio_api/upload", files={"files": ("a.png", bytes(2_000))}, timeout=60)
    assert small.status_code == 200
    config = httpx.get(f"{address}config", timeout=60).json()
    names = {dependency["api_name"] for dependency in config["dependencies"]}
    assert {"caption", "search", "ground", "sentences"} <= names


def ask(address: str, name: str, data: list, session: str) -> tuple[str, str]:
    """Sends a request over HTTP. Returns the answer, an error message, or neither if the connection is closed."""
    ids = {d["api_name"]: d["id"] for d in httpx.get(f"{address}config", timeout=60).json()["dependencies"]}
    body = {"data": data, "fn_index": ids[name], "session_hash": session}
    joined = httpx.post(f"{address}gradio_api/queue/join", json=body, timeout=60)
    if joined.status_code != 200:
        return "refused", joined.json()["detail"]
    stream = httpx.stream("GET", f"{address}gradio_api/queue/data", params={"session_hash": session}, timeout=120)
    with stream as events:
        for line in events.iter_lines():
            event = json.loads(line[5:]) if line.startswith("data:") else {}
            if event.get("msg") == "process_completed":
                output = event["output"]
                return ("answered", str(output["data"])) if event["success"] else ("refused", output["error"])
    return "cut off", ""


@pytest.fixture(scope="module")
def uploaded(address, tmp_path_factory) -> dict:
    """Returns a photo in the format that the page sends."""
    file = tmp_path_factory.mktemp("upload") / "photo.png"
    random_images(1, size=40)[0].save(file)
    answer = httpx.post(f"{address}gradio_api/upload", files={"files": ("photo.png", file.read_bytes())}, timeout=60)
    return {"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}}


def test_every_one_of_many_requests_is_answered_or_refused(address, models, uploaded):
    """100 requests at once exceed the queue. None is cut off, and all answers equal those of a single visitor."""

    def caption(number):
        return ask(address, "caption", [models["captioner"], uploaded, 1 + number % 2, ""], f"many{number}")

    alone = [caption(number) for number in (1000, 1001)]
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(caption, range(100)))
    kinds = [kind for kind, _ in answers]
    assert {*kinds} <= {"answered", "refused"} and kinds.count("answered") >= 20
    assert all(answer == alone[number % 2] for number, answer in enumerate(answers) if answer[0] == "answered")
    assert {text for kind, text in answers if kind == "refused"} <= {"Queue is full. Max size is 64 and size is 64."}


@pytest.mark.parametrize(
    "image",
    [
        {"path": "/etc/hostname"}, {"path": "../../etc/hostname"}, {"path": __file__}, {"path": "{model}/config.json"},
        {"path": "http://127.0.0.1:1/a.png"}, {"path": "", "url": "http://127.0.0.1:1/a.png"}, {"path": None}, 5, "x",
    ],
    ids=str,
)  # fmt: skip
def test_files_that_were_not_uploaded_are_not_read(image, address, models):
    if isinstance(image, dict):
        path = image["path"] and image["path"].format(model=models["captioner"])
        image = {**image, "path": path, "meta": {"_type": "gradio.FileData"}}
    kind, told = ask(address, "caption", [models["captioner"], image, 1, ""], f"file{image}"[:50])
    assert kind == "refused" and "Traceback" not in str(told)


@pytest.mark.parametrize(
    "body",
    [
        {"data": [], "fn_index": 9999}, {"data": [], "fn_index": -1}, {"data": [], "fn_index": 10**30},
        {"data": [], "fn_index": "x"}, {"data": [], "fn_index": None}, {"data": None, "fn_index": 1},
        {"data": "x", "fn_index": 1}, {"data": {}, "fn_index": 1}, {"data": [], "fn_index": 1}, {}, [], None,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("route", ["queue/join", "run/predict", "run/nothing", "call/caption", "call/nothing"])
def test_malformed_requests_are_refused(body, route, address):
    """Malformed requests get a status below 500."""
    body = {**body, "session_hash": "malformed"} if isinstance(body, dict) else body
    answer = httpx.post(f"{address}gradio_api/{route}", json=body, timeout=60)
    assert answer.status_code < 500 and "Traceback" not in answer.text


def test_5000_boxes_are_refused_over_http(address, models, uploaded):
    boxes = json.dumps([[0, 0, 9, 9]] * 5000)
    kind, told = ask(address, "ground", [models["regions"], uploaded, "a red circle", "", boxes], "boxes")
    assert kind == "refused" and "limit is 1,000" in told


def test_requests_beyond_the_queue_are_refused(models, monkeypatch):
    """While one request runs, five of 30 others may wait. The rest are asked to try again."""
    release = Event()

    class Slow(Demo):
        def search(self, *args):
            release.wait(60)
            return []

    monkeypatch.setattr(page, "Demo", Slow)
    flags = {"any_model": False, "port": None, "prevent_thread_lock": True, "quiet": True}
    app, url, _ = launch([models["space"]], max_queue=5, concurrency=1, **flags)
    try:
        (search,) = [d["id"] for d in app.blocks.config["dependencies"] if d["api_name"] == "search"]

        def join(number):
            body = {"data": [models["space"], "a", None, "", "", 1], "fn_index": search, "session_hash": f"s{number}"}
            return httpx.post(f"{url}gradio_api/queue/join", json=body, timeout=60)

        answers = [join(number) for number in range(31)]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 5 <= len(answers) - len(refused) <= 6
        assert {answer.status_code for answer in refused} == {503} and "full" in refused[0].text.lower()
    finally:
        release.set()
        app.blocks.close()


def test_images_of_a_folder(tmp_path, models):
    scene = load_scenes(1, 1, 1, 32)["test"][0]["image"]
    scene.save(tmp_path / "one.png")
    assert len(Demo(Checkpoints([models["space"]]), str(tmp_path)).images) == 1
    with pytest.raises(ValueError, match="no images in"):
        Demo(Checkpoints([]), str(tmp_path / "nothing"))


BROKEN = "damaged, too large or too thin"
BAD_REQUESTS = {
    "no checkpoint": (lambda demo, m, i: demo.caption("", i, 1), "Choose a checkpoint first"),
    "no checkpoint at all": (lambda demo, m, i: demo.caption(None, i, 1), "Choose a checkpoint first"),
    "no image": (lambda demo, m, i: demo.caption(m["captioner"], None, 1), "Upload an image"),
    "wrong checkpoint": (lambda demo, m, i: demo.caption(m["regions"], i, 1), "cannot be loaded"),
    "missing file": (lambda demo, m, i: demo.caption(m["captioner"], "/no/such.png", 1), BROKEN),
    "no image file": (lambda demo, m, i: demo.caption(m["captioner"], __file__, 1), BROKEN),
    "not a number": (lambda demo, m, i: demo.caption(m["captioner"], i, float("nan")), "a number from 1 to 8"),
    "text as a number": (lambda demo, m, i: demo.caption(m["captioner"], i, "9"), "a number from 1 to 8"),
    "nothing to search": (lambda demo, m, i: demo.search(m["space"], "", None, "", "", 5), "Write a sentence"),
    "only spaces": (lambda demo, m, i: demo.search(m["space"], " \n", None, " ", ",", 5), "Write a sentence"),
    "long query": (lambda demo, m, i: demo.search(m["space"], "a " * 9999, None, "", "", 5), "characters; at most"),
    "wrong space": (lambda demo, m, i: demo.search(m["captioner"], "a", None, "", "", 5), "cannot be loaded"),
    "no text": (lambda demo, m, i: demo.ground(m["regions"], i, "", "", ""), "Write a text"),
    "no image to ground": (lambda demo, m, i: demo.ground(m["regions"], None, "a", "", ""), "Upload an image"),
    "phrase elsewhere": (lambda demo, m, i: demo.ground(m["regions"], i, "a circle", "dog", ""), "not in the text"),
    "boxes not JSON": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[1"), "not JSON"),
    "deep JSON": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[" * 99999), "not JSON|must be"),
    "one number": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "5"), "must be a list"),
    "no boxes": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[]"), "must be a list"),
    "pairs": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[[1,2],[3,4]]"), "four finite numbers"),
    "infinite": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[[0,0,1e999,1]]"), "four finite numbers"),
    "huge": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", f"[[0,0,{'9' * 400},1]]"), "four finite"),
    "text boxes": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", '["abcd"]'), "four finite numbers"),
    "empty box": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", "[[5,5,5,5]]"), "no area"),
    "5,000 boxes": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", str([[0, 0, 9, 9]] * 5000)), "limit is"),
    "boxes without end": (lambda demo, m, i: demo.ground(m["regions"], i, "a", "", " " * 9**6), "at most"),
    "wrong regions": (lambda demo, m, i: demo.ground(m["captioner"], i, "a", "", ""), "cannot be loaded"),
    "no sentence": (lambda demo, m, i: demo.sentences(m["encoder"], "", "a"), "Write a sentence"),
    "many sentences": (lambda demo, m, i: demo.sentences(m["encoder"], "a", "a\n" * 501), "at most 500 sentences"),
    "wrong encoder": (lambda demo, m, i: demo.sentences(m["space"], "a", "a"), "cannot be loaded"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_mistakes_are_told(case, demo, models):
    call, message = BAD_REQUESTS[case]
    with pytest.raises(gr.Error) as error:
        call(demo, models, demo.images[0])
    assert re.search(message, error.value.message), error.value.message
    assert "/no/such" not in error.value.message and not error.value.print_exception


@pytest.mark.parametrize("text", ["\ud800 red", "$ x^", "\0", "a\u202eb", "🙂" * 100])
def test_odd_texts_are_texts(text, demo, models):
    assert demo.search(models["space"], text, None, "", "", 1)
    assert demo.ground(models["regions"], demo.images[0], text + " a", "", "")[3]
    assert demo.sentences(models["encoder"], text, text)[1]


def test_space_asks_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set(project["dependencies"]) | set(project["optional-dependencies"]["demo"])
    lines = (ROOT / "recipes" / "space" / "requirements.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == wanted
