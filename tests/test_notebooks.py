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
"""The notebooks of the documentation run from top to bottom, offline."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.common import ROOT


pytest.importorskip("myst_nb")
# One of them runs with the fast tests.
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=[] if path.stem == "explain" else pytest.mark.slow)
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.md"))
    if path.stem != "index"
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs(path, tmp_path, monkeypatch):
    from myst_nb.core.read import read_myst_markdown_notebook

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    notebook = read_myst_markdown_notebook(path.read_text(encoding="utf-8"), path=str(path))
    assert not [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in printed if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in printed) or path.stem == "compare"
    nbformat.validate(notebook)
