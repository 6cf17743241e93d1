"""Links to the pages at the root of the repository lead to their copies on the site."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

__all__ = ["setup"]

_COPIES = {"CONTRIBUTING.md": "extending.md", "SECURITY.md": "reporting.md", "CHANGELOG.md": "changes.md"}


def _retarget(app: Sphinx, name: str, content: list[str]) -> None:
    up = "../" * name.count("/")
    for page, copy in _COPIES.items():
        content[0] = re.sub(rf"\]\((?:\.\./)+{re.escape(page)}", f"]({up}{copy}", content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Change the links of a page when it is read."""
    app.connect("source-read", _retarget)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
