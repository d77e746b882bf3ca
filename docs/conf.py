"""How Sphinx builds these pages: `python -m sphinx -W --keep-going -b html docs docs/_build`, with what `pip install -e ".[docs]"` installs.

The pages are Markdown and can be read as they are; `api.md` alone is made from docstrings, which needs TensorFlow.
"""

import os
import pathlib
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from terra.version import __version__  # noqa: E402

project = "Terra"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"Terra {release}"

myst_heading_anchors = 4  # links to headings, as in the pages as they are
myst_fence_as_directive = ["mermaid"]

default_role = "code"  # what stands in single backticks in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # terra/__init__.pyi has the types

_FIELD = re.compile(r"(Returns|Raises|[a-z_]+): ")


def _with_fields(app, what, name, obj, options, lines):
    """Makes lists of the lines of a docstring that say what an option is, what is returned and what is raised: they begin with a word and a colon."""
    made, within = [], False
    for line in lines:
        is_field = _FIELD.match(line) is not None
        if is_field and not within and made and made[-1]:
            made.append("")
        if within and not is_field:
            within = bool(line)
            line = "    " + line.strip() if line else line
        made.append(":" + line if is_field else line)
        within = within or is_field
    lines[:] = made


def setup(app):
    app.connect("autodoc-process-docstring", _with_fields)
