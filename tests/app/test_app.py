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
"""The web demo and the page of an explanation, in a browser."""

import shutil
import tomllib
from pathlib import Path

import pytest

from hf_vg.data import load_scenes
from hf_vg.interpretation import save_html
from tests.checkpoints import save_captioner, save_encoder, save_regions, save_space, save_spatial
from tests.common import ROOT, random_images


gr = pytest.importorskip("gradio", reason="the web demo needs Gradio: `pip install hf-vg[demo]`")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WAIT = 120  # seconds


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    savers = {"captioner": save_captioner, "spatial": save_spatial, "space": save_space, "regions": save_regions}
    return {name: save(folder / name) for name, save in savers.items()}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: `pip install hf-vg[dev]`")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    # High enough for all that is pointed at: after scrolling, the driver misses what is in a frame by some pixels.
    options.binary_location = programs["chromium"]
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,2400"]:
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=programs["chromedriver"])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def wait_for(browser, selector: str, condition=bool):
    """The elements that are found once `condition` holds of them."""
    from selenium.webdriver.support.ui import WebDriverWait

    def found(driver):
        elements = driver.find_elements("css selector", selector)
        return elements if elements and condition(elements) else False

    return WebDriverWait(browser, WAIT, ignored_exceptions=()).until(found, f"nothing is at {selector}")


def hover(browser, word) -> None:
    """Points at a word until that is seen: what is still being laid out may move away from under the pointer."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    def pointed(driver):
        ActionChains(driver).move_to_element_with_offset(word, 0, -200).move_to_element(word).perform()
        return word.text in readout.text

    readout = word.find_element("xpath", "ancestor::section").find_element("css selector", ".readout")
    WebDriverWait(browser, WAIT).until(pointed, f"nothing happens at {word.text}")


def drawn(browser, card: int = 0) -> str:
    """What is drawn over the picture of a card."""
    return browser.execute_script(
        f"return document.querySelectorAll('.card')[{card}].querySelector('canvas').toDataURL()"
    )


@pytest.fixture(scope="module")
def address(models):
    from hf_vg.app import build

    blocks = build(list(models.values())).queue()
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", server_port=None)
    yield url
    blocks.close()


def test_upload_caption_and_hover(browser, address, tmp_path):
    """An image is uploaded, its caption appears, and pointing at a word changes the map."""
    random_images(1, size=40)[0].save(tmp_path / "photo.png")
    browser.get(address)
    (upload,) = wait_for(browser, "#caption_image input[type=file]")
    upload.send_keys(str(tmp_path / "photo.png"))
    # It is shown before it has arrived; then it is shown from the server.
    wait_for(browser, "#caption_image img", lambda images: images[0].get_attribute("src").startswith("http"))
    browser.find_element("id", "caption_run").click()
    (frame,) = wait_for(browser, "#caption_shown iframe")
    browser.switch_to.frame(frame)
    wait_for(browser, ".picture img", lambda images: images[0].get_property("complete"))
    assert len(browser.find_elements("css selector", ".card")) == 3  # as many as beams
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
    """Mouse, keyboard and choices of a page that is opened from disk, without an error or a request."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select
    from transformers import AutoModel, AutoProcessor, pipeline

    from hf_vg.interpretation import attention_of_sentences, caption_examples, load_region_model, regions_of_words

    image = random_images(1, size=40)[0]
    encoder = save_encoder(tmp_path / "encoder")
    tokenizer = AutoProcessor.from_pretrained(encoder).tokenizer
    examples = [
        caption_examples(pipeline("image-to-text", model=models["spatial"]), [image])[0][0],
        {**regions_of_words(*load_region_model(models["regions"]), image, "a red circle"), "name": "<i>&amp;"},
        *attention_of_sentences(AutoModel.from_pretrained(encoder).eval(), tokenizer, "a red circle"),
    ]
    browser.get_log("browser")  # of pages before
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
    # On a phone nothing sticks out.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture(scope="module")
def demo(models):
    from hf_vg.app.demo import Demo

    return Demo([*models.values(), "/no/such/model"])


def test_checkpoints_are_offered_where_they_serve(demo, models):
    from hf_vg.app.demo import CAPTIONERS, REGION_MODELS, SPACES

    offered = [[Path(name).name for name in demo.of(types)] for types in (CAPTIONERS, SPACES, REGION_MODELS)]
    assert offered == [["captioner", "spatial"], ["space"], ["regions"]]
    assert "/no/such/model" not in demo.types


def test_search_by_sentence_and_by_arithmetic(demo, models):
    found = demo.search(models["space"], "a red circle", None, None, None, 5)
    assert len(found) == 5 and [float(score) for _, score in found] == sorted((float(s) for _, s in found))[::-1]
    found = demo.search(models["space"], "", demo.images[3], "red", "red", 1)
    assert found[0][0] is demo.images[3] and found[0][1] == "1.000"
    plus = demo.search(models["space"], "a circle", None, "red, blue", "two", 5)
    assert [score for _, score in plus] != [s for _, s in demo.search(models["space"], "a circle", None, "", "", 5)]


def test_grounding(demo, models):
    boxes = demo.boxes[0]
    frame, rows = demo.ground(models["regions"], demo.images[0], "a red circle", "red", str(boxes))
    assert "<iframe" in frame and sorted(row[1:] for row in rows) == sorted([round(s, 1) for s in b] for b in boxes)
    _, rows = demo.ground(models["regions"], demo.images[0], "a red circle", None, None)
    assert len(rows) == 9  # of a grid


def test_mistakes_are_told(demo, models):
    from hf_vg.app.demo import caption

    image = demo.images[0]
    for call, message in (
        (lambda: caption("", image, 1), "Choose a checkpoint first"),
        (lambda: caption(models["captioner"], None, 1), "Upload an image"),
        (lambda: caption("/no/such/model", image, 1), "/no/such/model can not be loaded here"),
        (lambda: caption(models["regions"], image, 1), "can not be loaded here"),
        (lambda: demo.search(models["space"], "", None, "", "", 5), "Write a sentence"),
        (lambda: demo.ground(models["regions"], image, "", "", ""), "Give an image and a text"),
        (lambda: demo.ground(models["regions"], image, "a circle", "dog", ""), "'dog' is not in the text"),
        (lambda: demo.ground(models["regions"], image, "a circle", "", "[1"), "Expecting"),
        (lambda: demo.ground(models["captioner"], image, "a circle", "", ""), "regions need"),
    ):
        with pytest.raises(gr.Error, match=message):
            call()


def test_images_of_a_folder(tmp_path, models):
    from hf_vg.app.demo import Demo

    scene = load_scenes(1, 1, 1, 32)["test"][0]["image"]
    scene.save(tmp_path / "one.png")
    demo = Demo([models["space"]], str(tmp_path))
    assert len(demo.images) == 1
    with pytest.raises(ValueError, match="no images in"):
        Demo([], str(tmp_path / "nothing"))


def test_space_asks_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set(project["dependencies"]) | set(project["optional-dependencies"]["demo"])
    lines = (ROOT / "recipes" / "space" / "requirements.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == wanted
