"""The files of the page: plain HTML, CSS and JavaScript in the folder `page`, read once and served from memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

__all__ = ["PAGE_HEADERS", "PageFile", "page_files"]

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Nothing inline, nothing from elsewhere, and no way from text to HTML: whatever an id or a title contains stays text.
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for again each time, and answered with 304 if nothing has changed
}


@dataclass(frozen=True)
class PageFile:
    """A file, its media type, and the tag by which a browser knows whether it has changed."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, PageFile]:
    """The files by the path they are served at: `/` and `/page/NAME`.

    >>> sorted(page_files())[:2]
    ['/', '/page/api.js']
    """
    found = {}
    for file in (resources.files("talos.serving") / "page").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _KINDS:
            content = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path] = PageFile(content, _KINDS[ending], tag)
    return found
