"""Data with types of their own: parquet, frames of polars, pandas and arrow, scipy matrices, rows of a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from talos.data.options import SourceOptions
from talos.data.parquet import scan_file
from talos.data.read.base import Reader
from talos.data.read.clean import Block, polars_errors
from talos.data.read.columns import find_columns
from talos.data.read.database import Database
from talos.data.read.text import File
from talos.errors import ArgumentError, DataError, Option

__all__ = ["WHOLE_PARQUET", "DatabaseRows", "Frame", "Parquet"]

WHOLE_PARQUET = "a whole parquet file"
"""What the errors about a parquet file say was expected."""

_ROW = "row {} (counting from 0)"
_SAMPLED = 100


class _Typed(Reader):
    """Rows that come as frames, and are named by their number."""

    expected = "data that can be parsed"

    def frames(self, rows: int) -> Iterator[pl.DataFrame]:
        """The wanted columns by their own names, at most `rows` rows at a time."""
        raise NotImplementedError

    def find(self, names: Sequence[str], sample: pl.DataFrame, format: str) -> None:  # noqa: A002
        found = find_columns(self.wanted, names, self.file.name, lambda place: sample[names[place]])
        self.take_columns(names, found, format, _ROW)

    def quick(self, rows: int) -> Iterator[Block]:
        """All rows in blocks."""
        for frame in self._by_role(rows):
            yield self.cleaner.quick(frame)

    def careful(self, rows: int) -> Iterator[Block]:
        """All rows in blocks, each looked at."""
        done = 0
        for frame in self._by_role(rows):
            with polars_errors(self.file.name, self.expected):
                yield self.cleaner.careful(frame, range(done, done + len(frame)))
            done += len(frame)

    def _by_role(self, rows: int) -> Iterator[pl.DataFrame]:
        columns = [pl.col(name).alias(role) for role, name in self.cleaner.columns.items()]
        frames = self.frames(rows)
        while True:
            with polars_errors(self.file.name, self.expected):
                frame = next(frames, None)
                if frame is None:
                    return
                frame = frame.select(columns)
            yield frame


class Parquet(_Typed):
    """A parquet file."""

    formats = ("parquet",)
    expected = WHOLE_PARQUET

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether the first bytes or the name say so."""
        suffixes = {suffix.lower() for suffix in file.path.suffixes}
        return file.magic.startswith(b"PAR1") or bool(suffixes & {".parquet", ".pq"})

    def open(self) -> None:
        """Find the columns and count the rows."""
        with polars_errors(self.file.name, WHOLE_PARQUET):
            self.scan = scan_file(self.file.path)
            names = self.scan.collect_schema().names()
            sample = self.scan.head(_SAMPLED).collect()
            self.rows = int(self.scan.select(pl.len()).collect().item())
        self.find(names, sample, "parquet")
        if self.rows * 8 * len(self.cleaner.columns) > self.file.max_bytes:
            raise DataError(
                f"{self.rows:,} rows exceed {self.file.max_bytes:,} bytes when decompressed",
                where=self.file.name,
                expected="less",
                option=Option("max_bytes", self.rows * 64, "allows it"),
            )

    def frames(self, rows: int) -> Iterator[pl.DataFrame]:
        """Blocks of the wanted columns."""
        wanted = self.scan.select(list(self.cleaner.columns.values()))
        yield from wanted.collect_batches(chunk_size=rows, maintain_order=True)


class Frame(_Typed):
    """A frame in memory; `file.name` is what messages call it."""

    formats = ()

    def __init__(self, frame: Any, options: SourceOptions, wanted: Mapping[str, str | None]) -> None:
        self.data = frame
        super().__init__(_named(name_of(frame), options), options, wanted)

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Never: a frame is no file."""
        return False

    def open(self) -> None:
        """Find the columns by the first rows, and take them alone."""
        sample = plain_frame(self.data, rows=_SAMPLED)
        self.find(sample.columns, sample, self.file.name.partition(" ")[0])
        self.frame = plain_frame(self.data, list(self.cleaner.columns.values()))
        self.rows = len(self.frame)
        if not self.rows:
            raise DataError("has no rows", where=self.file.name, expected="one interaction per row")

    def frames(self, rows: int) -> Iterator[pl.DataFrame]:
        """The frame in slices."""
        return self.frame.iter_slices(rows)


class DatabaseRows(_Typed):
    """The rows of a table or a query."""

    formats = ()

    def __init__(self, url: str, options: SourceOptions, wanted: Mapping[str, str | None]) -> None:
        self.database = Database(url, query=options.query, table=options.table)
        super().__init__(_named(self.database.where, options), options, wanted)

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Never: a database is named by its URL."""
        return False

    def open(self) -> None:
        """Find the columns by the first rows."""
        with self.database as database:
            sample = database.sample()
            self.find(sample.columns, sample, database.format)
        self.rows = 0
        if not len(sample):
            raise DataError("has no rows", where=self.file.name, expected="one interaction per row")

    def frames(self, rows: int) -> Iterator[pl.DataFrame]:
        """Blocks of the wanted columns."""
        with self.database as database:
            yield from database.frames(list(self.cleaner.columns.values()), rows)


def _named(name: str, options: SourceOptions) -> File:
    return File(Path(), name, options.max_bytes)


def name_of(data: object) -> str:
    """What messages call data in memory; an error if they are of no known kind.

    Neither pandas, arrow nor scipy is imported to tell them apart.
    """
    package = type(data).__module__.partition(".")[0]
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return "polars frame"
    if package == "pandas" and hasattr(data, "columns"):
        return "pandas frame"
    if package == "scipy" and hasattr(data, "tocoo"):
        return "scipy matrix"
    if hasattr(data, "__arrow_c_stream__"):
        return "arrow table"
    raise ArgumentError(
        f"a {type(data).__name__}",
        where="source",
        expected="a path, a database URL, a polars or pandas frame, an arrow table, or a scipy sparse matrix",
    )


def plain_frame(data: Any, columns: Sequence[str] | None = None, *, rows: int | None = None) -> pl.DataFrame:
    """Data in memory as a polars frame: the named columns in full, or the first rows of all columns."""
    name = name_of(data)
    if name == "pandas frame":
        return _from_pandas(data if rows is None else data.head(rows), columns)
    if name == "scipy matrix":
        return _from_scipy(data)
    with polars_errors(name):
        frame = data.collect() if isinstance(data, pl.LazyFrame) else pl.DataFrame(data)
        return frame.head(rows or 0) if columns is None else frame.select(columns)


def _from_pandas(frame: Any, wanted: Sequence[str] | None) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {}
    for position, name in enumerate(map(str, frame.columns)):
        if wanted is not None and name not in wanted:
            continue
        values = frame.iloc[:, position]
        if values.dtype.kind in "iufbM" and type(values.dtype).__module__.startswith("numpy"):
            columns[name] = pl.Series(name, values.to_numpy())
            continue
        place = f"pandas frame, column {name!r}"
        plain = [None if _is_missing(value) else value for value in values.tolist()]
        types = sorted({type(value).__name__ for value in plain if value is not None})
        mixed = values.dtype == object and len(types) > 1
        if mixed and wanted is not None:
            raise DataError(f"mixed types {', '.join(types)}", where=place, expected="one type")
        with polars_errors(place, "values of one type", TypeError, ValueError, OverflowError):
            columns[name] = (
                pl.Series(name, plain, dtype=pl.Object) if mixed else pl.Series(name, plain, strict=True)
            )
    return pl.DataFrame(columns)


def _is_missing(value: object) -> bool:
    """Missing in the ways that pandas has: None, NaN, NaT, pd.NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _from_scipy(matrix: Any) -> pl.DataFrame:
    """The entries of a sparse matrix other than 0, which are ratings unless all of them are 1."""
    import numpy as np

    if len(matrix.shape) != 2:
        what = f"a sparse array of shape {matrix.shape}"
        raise DataError(what, where="scipy matrix", expected="users × items")
    cells = matrix.tocoo()
    keep = cells.data != 0
    if not keep.any():
        raise DataError("has no entries", where="scipy matrix", expected="one interaction per entry")
    values = np.asarray(cells.data[keep])
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise DataError("values that are not finite numbers", where="scipy matrix", expected="finite numbers")
    users, items = (np.asarray(axis)[keep].astype(np.int64) for axis in cells.coords)
    frame = pl.DataFrame({"user": users, "item": items})
    return frame if (values == 1).all() else frame.with_columns(rating=values.astype(np.float64))
