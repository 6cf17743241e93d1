"""The documentation site: `make docs` builds it into build/site, without a network and with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

import talos

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Talos"
author = "The Talos authors"
project_copyright = author
version = release = talos.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "plain_docstrings",
    "mathml",
    "root_pages",
    "command_line",
]
# Anything below docs/results that is not a page is offered for download where a page links to it.
exclude_patterns = ["_ext", "**/.ipynb_checkpoints"]

# Pages: plain Markdown that reads well on GitHub too. `[text](page.md#heading)` is checked, heading included.
myst_enable_extensions = ["dollarmath", "attrs_block"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # the pages of docs/results go from a title straight to the third level

# Notebooks: executed once, and again when their text changes. A cell that fails fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "notebooks")
# A notebook that fails is a warning, which `make docs` treats as an error after it has looked at the other pages. As an
# exception it would end the build with a line that does not say what went wrong.
nb_execution_show_tb = True
nb_execution_timeout = 600  # seconds a cell may take on a busy machine
nb_execution_in_temp = True
nb_merge_streams = True
nb_render_markdown_format = "myst"

# The reference, from docstrings.
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
add_module_names = False

# Formulas become MathML, which browsers draw themselves: no script and no font to fetch.
html_math_renderer = "mathml"

html_theme = "furo"
html_title = f"Talos {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Excerpts would be fetched page by page, which browsers refuse for files on a disk.
html_show_search_summary = False
html_theme_options = {"top_of_page_buttons": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
