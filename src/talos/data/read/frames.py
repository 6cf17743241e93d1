"""Data with types of their own: parquet files, frames of polars, pandas and arrow, scipy matrices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talos.checks import require
from talos.data.options import SourceOptions
from talos.data.parquet import scan_file
from talos.data.read.base import Reader
from talos.data.read.clean import Block, polars_errors
from talos.data.read.columns import find_columns
from talos.data.read.text import File
from talos.errors import DataError, Option

__all__ = ["SAMPLED", "Frame", "Parquet", "Typed"]

SAMPLED = 100  # rows by which columns are found
# What messages call data in memory, the package of its class, and what the class has: none of them is imported here.
_IN_MEMORY = (
    ("polars frame", "polars", "collect_schema"),
    ("pandas frame", "pandas", "columns"),
    ("scipy matrix", "scipy", "tocoo"),
    ("arrow table", "", "__arrow_c_stream__"),
)


class Typed(Reader):
    """Rows that come as frames, and are named by their number."""

    @abstractmethod
    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Some columns of all rows, at most `rows` rows at a time."""

    def quick(self, rows: int) -> Iterator[Block]:
        """All rows in blocks."""
        return map(self.cleaner.quick, self._by_role(rows))

    def careful(self, rows: int) -> Iterator[Block]:
        """All rows in blocks, each looked at."""
        done = 0
        for frame in self._by_role(rows):
            yield self.cleaner.careful(frame, range(done, done + len(frame)))
            done += len(frame)

    def find(self, sample: pl.DataFrame, format: str) -> None:  # noqa: A002
        """Find the columns by their names and some rows."""
        names = sample.columns
        found = find_columns(self.wanted, names, self.file.name, lambda place: sample[names[place]])
        self.take_columns(names, found, format, "row {} (counting from 0)")

    def _by_role(self, rows: int) -> Iterator[pl.DataFrame]:
        roles = {name: role for role, name in self.cleaner.columns.items()}
        return (frame.rename(roles) for frame in self.frames(list(roles), rows))


class Parquet(Typed):
    """A parquet file."""

    formats = ("parquet",)

    @classmethod
    def recognises(cls, file: File) -> bool:
        """Whether the first bytes or the name say so; an empty file is left to a reader that says so."""
        suffixes = {suffix.lower() for suffix in file.path.suffixes}
        return file.magic.startswith(b"PAR1") or bool(file.magic and suffixes & {".parquet", ".pq"})

    def open(self) -> None:
        """Find the columns and count the rows."""
        self.scan = scan_file(self.file.path)
        self.rows = int(self.scan.select(pl.len()).collect().item())
        self.find(self.scan.head(SAMPLED).collect(), "parquet")
        require(
            self.rows * 8 * len(self.cleaner.columns) <= self.file.max_bytes,
            f"{self.rows:,} rows exceed {self.file.max_bytes:,} bytes when decompressed",
            where=self.file.name,
            expected="less",
            option=Option("max_bytes", self.rows * 64, "allows it"),
            error=DataError,
        )

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Some columns of all rows."""
        return self.scan.select(columns).collect_batches(chunk_size=rows, maintain_order=True)


class Frame(Typed):
    """A frame or matrix in memory; `file.name` is what messages call it."""

    def __init__(self, data: Any, options: SourceOptions, wanted: Mapping[str, str | None]) -> None:
        kinds = (
            name
            for name, package, attribute in _IN_MEMORY
            if type(data).__module__.startswith(package) and hasattr(data, attribute)
        )
        name = next(kinds, "")
        require(
            bool(name),
            f"a {type(data).__name__}",
            where="source",
            expected="a path, a database URL, a polars or pandas frame, an arrow table, or a scipy sparse matrix",
        )
        self.data = _from_scipy(data) if name == "scipy matrix" else data
        super().__init__(File(Path(), name, options.max_bytes), options, wanted)

    def open(self) -> None:
        """Find the columns by the first rows, and take them alone."""
        self.find(self._plain(None), self.file.name.partition(" ")[0])
        self.frame = self._plain(list(self.cleaner.columns.values()))
        self.rows = len(self.frame)

    def frames(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """The frame in slices."""
        return self.frame.select(columns).iter_slices(rows)

    def _plain(self, columns: Sequence[str] | None) -> pl.DataFrame:
        """The named columns in full, or the first rows of all columns if None."""
        if self.file.name == "pandas frame":
            return _from_pandas(self.data if columns else self.data.head(SAMPLED), columns)
        with polars_errors(self.file.name):
            frame = self.data if isinstance(self.data, pl.LazyFrame) else pl.DataFrame(self.data).lazy()
            return (frame.select(columns) if columns else frame.head(SAMPLED)).collect()


def _from_pandas(frame: Any, wanted: Sequence[str] | None) -> pl.DataFrame:
    """The wanted columns of a pandas frame; all if None, in which values of several types may become missing."""
    columns: dict[str, pl.Series] = {}
    for label, values in frame.items():
        name = str(label)
        if wanted is None or name in wanted:
            plain: Any = values.to_numpy()
            if not isinstance(values.dtype, np.dtype) or values.dtype.kind not in "iufbM":
                plain = values.astype(object).where(values.notna(), None).tolist()
            place = f"pandas frame, column {name!r}"
            with polars_errors(place, "values of one type", TypeError, ValueError, OverflowError):
                columns[name] = pl.Series(name, plain, strict=wanted is not None)
    return pl.DataFrame(columns)


def _from_scipy(matrix: Any) -> pl.DataFrame:
    """The entries of a sparse matrix other than 0, which are ratings unless all of them are 1."""
    require(
        len(matrix.shape) == 2 and matrix.dtype.kind in "biuf",
        f"a sparse array of shape {matrix.shape} and type {matrix.dtype}",
        where="scipy matrix",
        expected="users × items, with numbers",
        error=DataError,
    )
    cells = matrix.tocoo()
    keep = cells.data != 0
    users, items = (axis[keep].astype(np.int64) for axis in cells.coords)
    frame = pl.DataFrame({"user": users, "item": items, "rating": cells.data[keep].astype(np.float64)})
    return frame.drop("rating") if (frame["rating"] == 1).all() else frame
