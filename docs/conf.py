"""How Sphinx builds the pages of this folder (`make docs`): nothing is fetched, by it or a page."""

from pathlib import Path
from re import search

project = "penstock"
author = "the authors of penstock"
_VERSION = (Path(__file__).parents[1] / "proxy" / "__init__.py").read_text()
_found = search(r'__version__ = "(.+?)"', _VERSION)
assert _found is not None
release = _found[1]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"penstock {release}"
html_show_copyright = False
html_show_sphinx = False
# So that `page.md#heading` is a link that is checked.
myst_heading_anchors = 3
