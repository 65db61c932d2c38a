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
"""
The import graph of the rooms: a room imports only from rooms before it, also inside functions.

`python -m tests.test_import_graph` prints the graph.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

from tests.common import ROOT


# The allowed imports of each room. `models` imports no other room: a published checkpoint runs without them.
STREAM = {
    "_compat": set(),
    "examples": set(),
    "resampling": set(),
    "models": set(),
    "loading": {"examples", "models"},
    "data": {"loading", "models", "_compat"},
    "errors": {"data", "loading"},
    "interpretation": {"data", "loading", "models", "resampling"},
    "evaluation": {"data", "interpretation", "loading", "models", "resampling"},
    "pipelines": {"data", "interpretation", "loading", "models", "_compat"},
    "auto": {"_compat", "models", "pipelines"},
    "reports": {"data", "evaluation", "interpretation", "loading", "models", "pipelines"},
    "hf_vg": {"auto", "data", "evaluation", "examples", "interpretation", "models", "pipelines"},  # the package itself
    "hub": {"data", "errors", "hf_vg", "loading", "models", "reports"},
    "training": {
        *("data", "errors", "evaluation", "hf_vg", "hub", "interpretation", "loading", "models"),
        *("pipelines", "reports"),
    },
    "app": {
        *("data", "evaluation", "examples", "hf_vg", "hub", "interpretation", "loading", "models"),
        *("pipelines", "reports", "training"),
    },
}
STREAM["cli"] = STREAM["app"] | {"app", "errors"}
SHARED_BY_MODELS = {
    *("attention", "attention_supervision", "configuration", "distributed", "generation", "image_encoder"),
    *("processing", "publishing", "vgg"),
}
LIBRARIES_OF_MODELS = {"huggingface_hub", "numpy", "torch", "transformers"}


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "hf_vg").rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Returns the modules that a module imports, also inside functions. Code in strings is not searched."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base)
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def graph() -> dict[str, set[str]]:
    """Returns the rooms that each room imports."""
    known, edges = modules(), defaultdict(set)
    for name, path in known.items():
        for imported in imports(name, path, known):
            if imported.partition(".")[0] == "hf_vg" and room(imported) != room(name):
                edges[room(name)].add(room(imported))
    return edges


def test_no_module_imports_against_the_stream():
    known, against = modules(), []
    for name, path in known.items():
        for imported in imports(name, path, known):
            top = imported.partition(".")[0]
            allowed = STREAM[room(name)] | {room(name)}
            if top == "hf_vg" and room(imported) not in allowed:
                against.append(f"{name} imports {imported}")
    assert not against


def test_the_stream_has_no_cycle():
    """Returns the rooms in an order in which each imports only from those before it."""
    placed = set()
    while len(placed) < len(STREAM):
        ready = {name for name, allowed in STREAM.items() if name not in placed and allowed <= placed}
        assert ready, f"a cycle among {sorted(set(STREAM) - placed)}"
        placed |= ready


def test_no_cycle_among_modules():
    """Imports inside functions count too: they often hide a cycle."""
    known = modules()
    edges = {name: imports(name, path, known) & set(known) - {name} for name, path in known.items()}
    for name, path in known.items():
        if path.name == "__init__.py":  # it collects the names of its folder, and no file there imports it
            edges[name] = {other for other in edges[name] if not other.startswith(f"{name}.")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for imported in sorted(edges[name]):
                visit(imported, (*trail, name))
            done.add(name)

    for name in sorted(known):
        visit(name, ())


def test_a_model_imports_its_own_folder_the_shared_files_and_torch():
    known = modules()
    for name, path in known.items():
        for imported in imports(name, path, known) if name.startswith("hf_vg.models.") else ():
            top = imported.partition(".")[0]
            if top == "hf_vg":
                part = imported.split(".")[2]
                assert part in SHARED_BY_MODELS | {name.split(".")[2]}, f"{name} imports {imported}"
            else:
                assert top in LIBRARIES_OF_MODELS | sys.stdlib_module_names, f"{name} imports {imported}"


def drawn() -> str:
    edges = graph()
    imported = {name: [other for other in STREAM if other in edges[name]] for name in STREAM}
    return "\n".join(f"{name:16} <- {', '.join(others) or '-'}" for name, others in imported.items())


def test_contributors_see_the_graph_as_it_is():
    assert f"```\n{drawn()}\n```" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(drawn())
