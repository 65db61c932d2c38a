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
"""Docstrings are complete, their examples run, and texts contain no clipped or inverted English."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, ProcessorMixin


ROOT = Path(__file__).parents[1]

# Wordings to avoid, and what to write instead.
A_UNIT = "an? (batch|box|caption|channel|image|location|region|row|sentence|step|token|word)"
NOT_A_NOUN = "(and|as|at|by|for|from|has|if|in|is|of|or|over|to|when|where|with)"
A_THING = "(argument|box|caption|config|file|folder|image|map|model|number|text|words?)"
CLIPPED = {
    r"\bcan not\b": "cannot",
    r"\bwhich see\b": "see ...",
    r"\b(goes|go|going|gone|went) on (from|after|where)\b": "resumes from, continues after",
    rf"\b(one|two|three|\d+) (?!{NOT_A_NOUN}\b)\w+ {A_UNIT}\b": "one map per word",
    rf"(?<!\bthere )\b(is|are|was|were) no {A_THING}\b": "is not a file",
    r"\b(?-i:Who) (ask|give|has|have|load|need|read|run|see|train|use|want|write)s?\b": "If you ..., To ...",
    r"(^|[.:!?] |\"|# )(?-i:Of) (a|all|an|each|every|its|odd|the|their|these|those|what)\b": "put the subject first",
    r"\bof which\b": "two sentences",
    r"\bwithout trust\b": "without `trust_remote_code`",
    r"\bby the installed code\b": "the installed code is used",
    r"\bas a whole, or\b": "it succeeds completely or changes nothing",
    r"\bas a coin decides\b": "at random",
    r"\bthe \w+ more that\b": "one extra epoch",
    r"\bso many different\b": "the number of distinct captions",
    r"\btold to be\b": "caption-image matching accuracy",
    r"\bof (a|its|the|their) users?'s?(?! \w)": "the user's file",
    r"\b(do|does|did|done|take|takes) besides\b": "name it",
    r"\bhands? [^.]{0,60}\bthrough to\b": "passes ... to",
    r"\bwhat (it|this|a model) sees once\b": "caches the features",
    r"\bsays which, and stops\b": "lists the differences and exits",
    r"\bis given, which\b": "unknown argument --name",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(ROOT.glob("hf_vg/**/*.py"))
# hf_vg, its rooms and its model folders, and the modules with examples. Nothing is imported before a test asks for it.
PACKAGES = [module_name(path) for path in FILES if path.name == "__init__.py"]
WITH_EXAMPLES = [module_name(path) for path in FILES if ">>> " in path.read_text(encoding="utf-8")]


def exported(name: str) -> dict[str, Any]:
    """The public classes and functions of a package, by full name."""
    package = importlib.import_module(name)
    names = getattr(package, "__all__", None) or [key for key in vars(package) if not key.startswith("_")]
    objects = [getattr(package, key) for key in names]
    objects = [obj for obj in objects if inspect.isclass(obj) or inspect.isfunction(obj)]
    objects = [obj for obj in objects if obj.__module__.startswith("hf_vg.")]
    return {f"{obj.__module__}.{obj.__qualname__}": obj for obj in objects}


def undocumented(function: Any) -> list[str]:
    """The arguments of a function that have no entry in its docstring."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    doc = inspect.getdoc(function) or ""
    return [name for name in names if not re.search(rf"^ +{name} \([`\[*]", doc, flags=re.MULTILINE)]


def gaps(name: str, obj: Any) -> list[str]:
    """What the docstring of a public class or function lacks."""
    doc = vars(obj).get("__doc__") if inspect.isclass(obj) else obj.__doc__
    if not (doc and doc.strip()):
        return [f"{name} has no docstring"]
    found = []
    if ">>> " not in doc and not name.endswith(("PreTrainedModel", "Output")):
        found.append(f"{name} has no example")
    methods = [obj] if inspect.isfunction(obj) else []
    if inspect.isclass(obj) and issubclass(obj, PreTrainedModel):
        methods = [vars(obj)[key] for key in ("forward", "generate") if key in vars(obj)]
    if inspect.isclass(obj) and issubclass(obj, ProcessorMixin):
        methods = [obj.__call__]
    for method in methods:
        found += [f"{name}: {method.__name__} does not describe {argument}" for argument in undocumented(method)]
        returns = inspect.signature(method).return_annotation
        if returns not in (None, inspect.Signature.empty) and not re.search("(Returns|Yields):", method.__doc__):
            found.append(f"{name}: {method.__name__} does not describe what it returns")
        if inspect.getdoc(method).startswith("Args:"):
            found.append(f"{name}: {method.__name__} has no summary")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_documented(package):
    assert importlib.import_module(package).__doc__, f"{package} has no docstring"
    found = [gap for name, obj in exported(package).items() for gap in gaps(name, obj)]
    assert not found, "\n".join(found)


class Parser(doctest.DocTestParser):
    """Reads examples in fenced blocks: the closing fence is not expected output."""

    def parse(self, string, name="<string>"):
        return super().parse(re.sub(r"^ *```.*$", "", string, flags=re.MULTILINE), name)


class Finder(doctest.DocTestFinder):
    """Also finds decorated methods, such as `forward` under `can_return_tuple`."""

    def _from_module(self, module, object):
        return isinstance(object, property) or getattr(object, "__module__", None) == module.__name__


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    tests = Finder(parser=Parser()).find(importlib.import_module(module), globs={})
    tests = [test for test in tests if test.examples]
    assert tests
    failures = []
    for test in tests:
        torch.manual_seed(0)
        doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


def clipped(text: str) -> list[str]:
    """The wordings of `CLIPPED` in a text, also where they span two lines of a paragraph or a comment."""
    text = re.sub(r"[ \t]*\n[ \t]*(# ?)?(?=\S)", " ", text)
    return [
        f"{match[0]!r}: write {instead!r}"
        for pattern, instead in CLIPPED.items()
        for match in re.finditer(pattern, text, flags=re.IGNORECASE | re.MULTILINE)
    ]


def test_texts_are_plain():
    files = [path for room in ("hf_vg", "recipes", "docs", "benchmarks") for path in sorted((ROOT / room).rglob("*"))]
    files = [*ROOT.glob("*.md"), *files]
    kinds = (".py", ".md", ".yaml", ".html", ".sh", ".ipynb")
    texts = [path for path in files if path.suffix in kinds and "_build" not in path.parts]
    assert len(texts) > 50
    found = [f"{path.relative_to(ROOT)}: {line}" for path in texts for line in clipped(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "one map a word",
        "It can not\n    # be loaded",
        "Who has torch writes",
        '"""Of odd files it makes RGB',
        "of\nwhich",
    ],
)
def test_clipped_wordings_are_found(text):
    assert clipped(text)
