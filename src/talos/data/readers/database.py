"""Read interactions from a SQLite file or a PostgreSQL server."""

from __future__ import annotations

import polars as pl

from talos.data.read.database import Database
from talos.data.readers.cleaning import CleanTable
from talos.data.readers.columns import find_columns
from talos.data.readers.frames import from_frame
from talos.data.readers.options import ReadOptions

__all__ = ["read_database"]

_ROWS_AT_ONCE = 100_000


def read_database(source: str, options: ReadOptions) -> CleanTable:
    """Read a table or the rows of a query; never writes, and never creates a missing file."""
    with Database(source, query=options.query, table=options.table) as database:
        names = database.sample().columns
        chosen = [names[at] for at in find_columns(options.wanted, names, database.where).values()]
        frames = [pl.DataFrame(schema=chosen), *database.frames(chosen, _ROWS_AT_ONCE)]
    frame = pl.concat(frames, how="vertical_relaxed")
    return from_frame(frame, options, source=database.where, format=database.format)
