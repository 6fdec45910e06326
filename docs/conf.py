"""Sphinx configuration."""

from simulator import __version__

project = "distributed-training-simulator"
author = "the distributed-training-simulator authors"
project_copyright = "the distributed-training-simulator authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_mock_imports = ["torch"]
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False
# keys of answers may have the names of builtin types ("bytes"), which annotations then find twice
suppress_warnings = ["ref.python"]
