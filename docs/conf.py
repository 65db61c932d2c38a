"""Settings of the documentation site: `make docs` builds it."""

import os
import re
import sys
from pathlib import Path


sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "_ext")]

import hf_vg  # noqa: E402


project = "hf_vg"
author = "The hf_vg maintainers"
copyright = "2026, The hf_vg maintainers"
version = release = hf_vg.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "markdown_docstrings",
    "mathml",
]
exclude_patterns = ["_build", "_ext"]

# Markdown
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 3

# Notebooks are text in git. They run when the site is built, and again only if they have changed.
nb_execution_mode = os.environ.get("HF_VG_NOTEBOOKS", "cache")
nb_execution_in_temp = True  # notebooks write files
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars and warnings of other libraries
nb_custom_formats: dict = {}

# API reference
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings tell types, with shapes
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "py:obj"
python_display_short_literal_types = True

# Looks
html_theme = "furo"
html_title = f"hf_vg {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp, .go"


# Files at the top of the repository that are pages of the site too. Links between them hold in both places.
PAGES = {
    "changelog": "CHANGELOG.md",
    "code_of_conduct": "CODE_OF_CONDUCT.md",
    "contributing": "CONTRIBUTING.md",
    "results": "RESULTS.md",
    "security": "SECURITY.md",
}


def read_page(app, docname, source):
    """Takes the text of such a page from its file, and points links at pages of the site."""
    root = Path(__file__).parents[1]
    if docname in PAGES:
        file = root / PAGES[docname]
        app.env.note_dependency(str(file))
        source[0] = re.sub(r"\]\((?!\w+:|#|docs/)", "](../", file.read_text("utf-8")).replace("](docs/", "](")
    source[0] = re.sub("<!-- results: (.+) -->", results, source[0])
    for page, file in PAGES.items():
        source[0] = source[0].replace(f"](../{file}", f"]({page}.md").replace(f"](../../{file}", f"](../{page}.md")


def results(match):
    """A section of RESULTS.md, for a page of `systems`."""
    text = (Path(__file__).parents[1] / "RESULTS.md").read_text("utf-8")
    section = re.search(rf"^## {re.escape(match[1])}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if section is None:
        raise ValueError(f"RESULTS.md has no section {match[1]!r}")
    return re.sub(r"\]\((?!\w+:|#|docs/)", "](../../", section[1]).replace("](docs/", "](../")


def setup(app):
    app.connect("source-read", read_page)
