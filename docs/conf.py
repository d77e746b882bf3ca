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

_PART = re.compile(r"(Returns|Raises|[a-z_]+|`[a-z_]+`(?:, `[a-z_]+`)*): ")


def _with_lists(app, what, name, obj, options, lines):
    """Makes lists of the lines of a docstring that begin with a name and a colon: what an option is, what is returned, what is raised."""
    made, within = [], False
    for line in lines:
        begun = _PART.match(line)
        if begun:
            if made and made[-1]:
                made.append("")
            word = begun[1]
            line = f":{line}" if word.istitle() else f"- {line}" if "`" in word else f"- `{word}`: {line[begun.end():]}"
        elif within and line:
            line = "  " + line.strip()
        within = begun is not None or within and bool(line)
        made.append(line)
    lines[:] = made


def setup(app):
    app.connect("autodoc-process-docstring", _with_lists)
