"""Readers: csv, tsv, parquet, JSON lines, RecBole, MovieLens, Amazon, LightGCN, frames, SQL.

`api` has the public functions, which turn their arguments into `ReadOptions`. `dispatch` finds out what a source is and
calls the reader for it: `delimited`, `json_lines`, `frames` or `database`; for sources larger than memory, a block at a
time. Each finds its columns by `columns` and cleans their values by `cleaning`.
"""

from __future__ import annotations

from talos.data.readers.api import is_parts, read, read_fit_parts, read_lists, read_parts
from talos.data.readers.cleaning import polars_errors
from talos.data.readers.dispatch import BlockSink, read_blocks
from talos.data.readers.items import read_items
from talos.data.readers.options import FORMATS, ReadKeywords, ReadOptions, Source

__all__ = [
    "FORMATS",
    "BlockSink",
    "ReadKeywords",
    "ReadOptions",
    "Source",
    "is_parts",
    "polars_errors",
    "read",
    "read_blocks",
    "read_fit_parts",
    "read_items",
    "read_lists",
    "read_parts",
]
