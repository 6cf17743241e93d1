"""Readers: csv, tsv, parquet, JSON lines, RecBole, MovieLens, Amazon, LightGCN, frames, SQL."""

from __future__ import annotations

from talos.readers._lists import read_lists
from talos.readers._options import DEFAULT_MAX_BYTES, FORMATS
from talos.readers._read import Parts, Source, is_parts, read, read_fit_parts, read_parts
from talos.readers._stream import BlockSink, read_blocks
from talos.readers._table import polars_errors

__all__ = [
    "DEFAULT_MAX_BYTES",
    "FORMATS",
    "BlockSink",
    "Parts",
    "Source",
    "is_parts",
    "polars_errors",
    "read",
    "read_blocks",
    "read_fit_parts",
    "read_lists",
    "read_parts",
]
