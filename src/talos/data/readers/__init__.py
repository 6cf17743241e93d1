"""Readers: csv, tsv, parquet, JSON lines, RecBole, MovieLens, Amazon, LightGCN, frames, SQL."""

from __future__ import annotations

from talos.data.readers.lists import read_lists
from talos.data.readers.options import DEFAULT_MAX_BYTES, FORMATS
from talos.data.readers.reading import Parts, Source, is_parts, read, read_fit_parts, read_parts
from talos.data.readers.stream import BlockSink, read_blocks
from talos.data.readers.table import polars_errors

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
