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

import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from hf_vg.evaluation import caption_metrics, caption_scores, meteor, ptb_tokenize
from hf_vg.evaluation.stemming import stem


FLICKR8K = Path(__file__).resolve().parents[2] / "../shared/data/flickr8k/Flickr8k.token.txt"

needs_java = pytest.mark.skipif(
    not meteor.meteor_java_available(), reason="METEOR 1.5 needs Java and pycocoevalcap, which carries its jar"
)

PREDICTIONS = [
    "a dog runs on the beach",
    "two men are sitting on a bench in the park",
    "a t-shirt isn't worn by the U.S. team",
    "the cat",
    "a person rides a bike down the street",
    "",
]
REFERENCES = [
    ["a dog is running along the shore", "the dog runs on a beach"],
    ["two guys sit on benches at a city park", "men in the park"],
    ["the team of the U.S. does n't wear t-shirts"],
    ["the cat", "a cat sat"],
    ["a man riding a bicycle down a road", "a cyclist on the street"],
    ["something"],
]


def words(captions):
    return [ptb_tokenize(caption) for caption in captions]


def flickr8k(num_images: int) -> tuple[list[list[str]], list[list[list[str]]]]:
    """The first caption of each image against its other four; every second one against those of another image."""
    if not FLICKR8K.is_file():
        pytest.skip("the Flickr8k captions are not in ../shared/data/flickr8k")
    captions = [line.split("\t")[1] for line in FLICKR8K.read_text(encoding="utf-8").splitlines()]
    images = [words(captions[start : start + 5]) for start in range(0, 5 * num_images, 5)]
    predictions = [images[index - index % 2][0] for index in range(num_images)]
    return predictions, [image[1:] for image in images]


def java_scores(predictions, references, stages: str, weights: str, folder: Path) -> tuple[float, list[float]]:
    """The Java program with some of its stages. Without paraphrases it starts in a second."""
    most = max(map(len, references))
    (folder / "predictions").write_text("".join(" ".join(sentence) + "\n" for sentence in predictions))
    rows = [(others * most)[:most] for others in references]
    (folder / "references").write_text("".join(" ".join(sentence) + "\n" for row in rows for sentence in row))
    command = ["java", "-Xmx1G", "-jar", str(meteor._jar_path()), "predictions", "references", "-l", "en", "-norm"]
    command += ["-r", str(most), "-m", stages, "-w", weights]
    output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    scores = [float(line.split()[-1]) for line in output if line.startswith("Segment")]
    total = [float(line.split()[-1]) for line in output if line.startswith("Final score")]
    assert len(scores) == len(predictions) and len(total) == 1
    return total[0], scores


@pytest.fixture
def no_synonyms(monkeypatch):
    def forget():
        meteor._senses.cache_clear()
        meteor._stages.cache_clear()

    monkeypatch.setattr(meteor, "_synsets", dict)
    forget()
    yield
    forget()


@needs_java
@pytest.mark.parametrize("synonyms", [False, True])
def test_python_equals_java_without_paraphrases(synonyms, tmp_path, request):
    if not synonyms:
        request.getfixturevalue("no_synonyms")
    predictions, references = words(PREDICTIONS), [words(captions) for captions in REFERENCES]
    stages, weights = ("exact stem synonym", "1.0 0.6 0.8") if synonyms else ("exact stem", "1.0 0.6")
    total, scores = java_scores(predictions, references, stages, weights, tmp_path)
    ours, ours_each = meteor.meteor_python(predictions, references)
    assert ours_each == pytest.approx(scores, abs=1e-9)
    assert ours == pytest.approx(total, abs=1e-9)
    assert scores[3] == 1.0 and scores[5] == 0.0 and 0.1 < scores[1] < 0.9


@needs_java
def test_python_equals_java_on_flickr8k(tmp_path):
    predictions, references = flickr8k(400)
    total, scores = java_scores(predictions, references, "exact stem synonym", "1.0 0.6 0.8", tmp_path)
    ours, ours_each = meteor.meteor_python(predictions, references)
    assert ours_each == pytest.approx(scores, abs=1e-9)
    assert ours == pytest.approx(total, abs=1e-9)


def restated_meteor(matches: int, chunks: int, length: int, reference_length: int) -> float:
    """The formula for exact matches of content words."""
    precision, recall = matches / length, matches / reference_length
    f_mean = precision * recall / (0.85 * precision + 0.15 * recall)
    return f_mean * (1 - 0.6 * (chunks / matches) ** 0.2)


def test_python_formula():
    def score(prediction, reference):
        return meteor.meteor_python([prediction.split()], [[reference.split()]])[0]

    assert score("red dogs chase cats", "red dogs chase cats") == 1
    assert score("red dogs", "blue horses") == 0
    assert score("red dogs chase", "red dogs jump fences") == pytest.approx(restated_meteor(2, 1, 3, 4))
    assert score("cats chase red dogs", "red dogs watch cats") == pytest.approx(restated_meteor(3, 2, 4, 4))
    # A match by stem counts 0.6 on both sides.
    assert score("happiness", "happy") == pytest.approx(0.6)
    # The best reference counts.
    predictions, references = [["red", "dogs"]], [[["blue"], ["red", "dogs"], ["dogs"]]]
    assert meteor.meteor_python(predictions, references)[0] == 1
    # Function words count a quarter, other words three quarters.
    precision = recall = 0.25 / (0.25 + 0.75)
    f_mean = precision * recall / (0.85 * precision + 0.15 * recall)
    assert score("the dog", "the cat") == pytest.approx(f_mean * (1 - 0.6))


def test_metric_names_say_which_program(monkeypatch):
    warnings = []
    monkeypatch.setattr("hf_vg.evaluation.captions.logger.warning_once", warnings.append)
    monkeypatch.setattr("hf_vg.evaluation.captions.meteor_java_available", lambda: False)
    assert list(caption_metrics(["a dog"], [["a dog"]], "meteor")) == ["meteor_python"]
    assert len(warnings) == 1 and "needs Java" in warnings[0]
    assert list(caption_scores(["a dog"], [["a dog"]], "meteor")) == ["meteor_python"]
    monkeypatch.setattr("hf_vg.evaluation.captions.meteor_java_available", lambda: True)
    monkeypatch.setattr("hf_vg.evaluation.captions.meteor_java", lambda *captions: (0.5, np.array([0.5])))
    assert caption_metrics(["a dog"], [["a dog"]], "meteor") == {"meteor": 0.5}
    assert list(caption_metrics(["a dog"], [["a dog"]], "meteor_python")) == ["meteor_python"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("running", "run"),
        ("dogs", "dog"),
        ("skies", "sky"),
        ("happily", "happili"),
        ("hopping", "hop"),
        ("hoping", "hope"),
        ("played", "play"),
        ("boy", "boy"),
        ("cries", "cri"),
        ("ties", "tie"),
        ("agreed", "agre"),
        ("sensational", "sensat"),
        ("usefulness", "use"),
        ("generously", "generous"),
        ("relational", "relat"),
        ("controlling", "control"),
        ("gas", "gas"),
        ("as", "as"),
        ("earring", "earring"),
        ("dog's", "dog"),
        ("youthful", "youth"),
    ],
)
def test_stem(word, expected):
    assert stem(word) == expected


@needs_java
def test_stems_equal_those_of_java():
    inflected = [
        "",
        "s",
        "es",
        "ed",
        "ing",
        "ly",
        "er",
        "est",
        "ness",
        "ful",
        "fully",
        "ation",
        "ational",
        "ize",
        "'s",
    ]
    roots = "walk skip hope play cry agree happi gentl nation relat commun gener arsen control tie sky bus fizz y say"
    vocabulary = [root + ending for root in roots.split() for ending in inflected]
    command = ["java", "-cp", str(meteor._jar_path()), "Stemmer", "en"]
    stems = subprocess.run(command, input="\n".join(vocabulary), capture_output=True, text=True, check=True).stdout
    assert [stem(word) for word in vocabulary] == stems.split()


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """Puts a shell script named `java` first on the path, and counts how often it starts."""

    def install(*script: str) -> Path:
        program, starts = tmp_path / "java", tmp_path / "starts"
        program.write_text("\n".join(["#!/bin/sh", f"echo >> '{starts}'", *script]) + "\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        jar = tmp_path / "meteor-1.5.jar"
        jar.touch()
        monkeypatch.setattr(meteor, "_jar_path", lambda: jar)
        return starts

    yield install
    meteor._close_shared()


# Answers SCORE with statistics, and EVAL for one caption with its score and the score of the set.
SCORING = 'while read line; do case "$line" in SCORE*) echo 1.0 2.0;; EVAL*) echo 0.25; echo 0.5;; esac; done'


def test_java_starts_once_and_is_closed(fake_java):
    starts = fake_java(SCORING)
    for _ in range(3):
        total, scores = meteor.meteor_java([["a"]], [[["a"], ["b"]]])
        assert total == 0.5 and list(scores) == [0.25]
    assert len(starts.read_text().splitlines()) == 1
    process = meteor._shared._process
    assert process.poll() is None
    meteor._close_shared()
    assert process.poll() == 0


def test_context_manager_ends_java(fake_java):
    fake_java(SCORING)
    with meteor.MeteorJar() as jar:
        assert jar.alive
        assert jar.score([["a"]], [[["a"]]])[0] == 0.5
    assert not jar.alive


def test_java_that_does_not_end_is_killed(fake_java, monkeypatch):
    fake_java("trap '' TERM", "exec sleep 60")
    jar = meteor.MeteorJar()
    monkeypatch.setattr(meteor, "CLOSE_TIMEOUT", 0.2)
    start = time.monotonic()
    jar.close()
    assert time.monotonic() - start < 10 and not jar.alive


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Could not reserve enough space' >&2; exit 1", "exit code 1.*reserve enough space"),
        ("read line; echo 'Error: no reference'; sleep 60", "Error: no reference"),
        ("read line; echo 1.0 2.0; exit 3", "exit code 3"),
    ],
)
def test_dead_java_is_an_error_and_the_next_call_starts_anew(fake_java, script, message):
    starts = fake_java(script)
    for attempt in (1, 2):
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=f"METEOR's Java process failed.*{message}"):
            meteor.meteor_java([["a"], ["b"]], [[["a"]], [["b"]]])
        assert time.monotonic() - begin < 10
        assert len(starts.read_text().splitlines()) == attempt


def test_without_java_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="`java` .*`pip install pycocoevalcap`"):
        meteor.MeteorJar()


def test_field_cannot_break_the_line_protocol():
    assert meteor._as_field(["a", "|||", "b\nSCORE", "c|||d"]) == "a b SCORE c d"


@needs_java
@pytest.mark.slow
def test_java_equals_pycocoevalcap():
    from pycocoevalcap.meteor.meteor import Meteor

    predictions, references = flickr8k(100)
    predictions[3] = []
    theirs = Meteor()
    try:
        total, scores = theirs.compute_score(
            {index: [" ".join(sentence) for sentence in others] for index, others in enumerate(references)},
            {index: [" ".join(sentence)] for index, sentence in enumerate(predictions)},
        )
    finally:
        del theirs
    text = [" ".join(sentence) for sentence in predictions]
    text_references = [[" ".join(sentence) for sentence in others] for others in references]
    assert caption_metrics(text, text_references, "meteor", tokenize=str.split)["meteor"] == pytest.approx(total)
    # A second call must not start Java again, which takes many seconds.
    start = time.monotonic()
    each = caption_scores(text, text_references, ("meteor", "meteor_python"), tokenize=str.split)
    assert time.monotonic() - start < 10
    assert each["meteor"] == pytest.approx(scores)
    assert each["meteor"][3] == 0
    # Paraphrases add a little.
    assert np.corrcoef(each["meteor"], each["meteor_python"])[0, 1] > 0.95
    assert 0.9 < each["meteor_python"].mean() / each["meteor"].mean() <= 1
