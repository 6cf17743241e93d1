"""Exports: lists for all users, and the model's vectors, a Faiss index or an ONNX graph for other programs.

`write_lists` streams the best items of all users to a file or a database table and can be resumed if it is interrupted;
`export` writes the model itself. A file, folder or table appears under its name only when it is complete.
"""

from __future__ import annotations

from talos.exports.formats import FORMATS, export
from talos.exports.lists import InterruptedExportError, write_lists

__all__ = ["FORMATS", "InterruptedExportError", "export", "write_lists"]
