"""Sphinx: `make docs` builds this site into docs/_build, and treats warnings as errors."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import command_reference

project = "haloctl"
author = "the haloctl authors"
copyright = "the haloctl authors, Apache 2.0"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "haloctl"
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Write the generated pages before Sphinx looks for files."""
    command_reference.write(Path(app.srcdir, "reference", "commands.md"))
