"""What leaves the library: lists of every user, vectors, a Faiss index, an ONNX graph.

`write_lists` streams the best items of all users to a file or into a database table and can be interrupted;
`export` writes the model itself for other programs. Everything gets its name only when it is whole.
"""

from __future__ import annotations

from talos.exports.formats import FORMATS, export
from talos.exports.lists import InterruptedExportError, write_lists
from talos.exports.progress import Progress, progress

__all__ = ["FORMATS", "InterruptedExportError", "Progress", "export", "progress", "write_lists"]
