"""Read data with types of its own: polars and pandas frames, scipy matrices, parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from talos.data.interactions import Provenance
from talos.data.parquet import scan_file
from talos.data.readers.cleaning import Cleaner, CleanTable, polars_errors
from talos.data.readers.columns import find_columns
from talos.data.readers.options import ReadOptions
from talos.errors import ArgumentError, DataError

__all__ = ["ROW", "WHOLE_PARQUET", "from_frame", "from_memory", "read_parquet", "scan_parquet"]

WHOLE_PARQUET = "a whole parquet file"
"""What the errors about a parquet file say was expected."""

ROW = "row {} (counting from 0)"
"""What the errors call a row that has no line."""


def from_frame(frame: pl.DataFrame, options: ReadOptions, source: str, format: str) -> CleanTable:  # noqa: A002
    """Read a polars frame; `source` is what messages call it."""
    found = find_columns(options.wanted, frame.columns, source)
    columns = {role: frame.columns[position] for role, position in found.items()}
    if not len(frame):
        raise DataError("has no rows", where=source, expected="one interaction per row")
    cleaner = Cleaner(source, columns, options, text=False)
    with polars_errors(source):
        wanted = frame.select([pl.col(column).alias(role) for role, column in columns.items()])
        cleaned, bad = cleaner.clean_rows(wanted, range(len(frame)), ROW)
    return CleanTable(cleaned, cleaner.provenance(format, len(frame), bad))


def from_memory(data: object, options: ReadOptions) -> CleanTable:
    """Read a polars or pandas frame or a scipy matrix, without importing pandas or scipy to tell them apart."""
    if isinstance(data, pl.LazyFrame):
        with polars_errors("polars frame"):
            data = data.collect()
    if isinstance(data, pl.DataFrame):
        return from_frame(data, options, source="polars frame", format="polars")
    package = type(data).__module__.partition(".")[0]
    if package == "pandas" and hasattr(data, "columns"):
        return from_frame(_from_pandas(data, options), options, source="pandas frame", format="pandas")
    if package == "scipy" and hasattr(data, "tocoo"):
        return _from_scipy(data, options)
    raise ArgumentError(
        f"a {type(data).__name__}",
        where="source",
        expected="a path, a database URL, a polars or pandas frame, or a scipy sparse matrix",
    )


def _from_pandas(frame: Any, options: ReadOptions) -> pl.DataFrame:
    names = [str(name) for name in frame.columns]
    found = find_columns(options.wanted, names, "pandas frame")
    columns: dict[str, pl.Series] = {}
    for position in found.values():
        name, values = names[position], frame.iloc[:, position]
        place = f"pandas frame, column {name!r}"
        if values.dtype.kind in "iufbM" and type(values.dtype).__module__.startswith("numpy"):
            columns[name] = pl.Series(name, values.to_numpy())
            continue
        plain = [None if _is_missing(value) else value for value in values.tolist()]
        types = sorted({type(value).__name__ for value in plain if value is not None})
        if values.dtype == object and len(types) > 1:
            raise DataError(f"mixed types {', '.join(types)}", where=place, expected="one type")
        with polars_errors(place):
            columns[name] = pl.Series(name, plain, strict=True)
    return pl.DataFrame(columns)


def _is_missing(value: object) -> bool:
    """Missing in the ways pandas has: None, NaN, NaT, pd.NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _from_scipy(matrix: Any, options: ReadOptions) -> CleanTable:
    """Read a sparse matrix: entries other than 0 are interactions, and ratings unless all of them are 1."""
    import numpy as np

    if len(matrix.shape) != 2:
        raise DataError(
            f"a sparse array of shape {matrix.shape}", where="scipy matrix", expected="users × items"
        )
    cells = matrix.tocoo()
    keep = cells.data != 0
    if not keep.any():
        raise DataError("has no entries", where="scipy matrix", expected="one interaction per entry")
    values = np.asarray(cells.data[keep])
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise DataError("values that are not finite numbers", where="scipy matrix", expected="finite numbers")
    users, items = (np.asarray(axis)[keep].astype(np.int64) for axis in cells.coords)
    frame = pl.DataFrame({"user": users, "item": items})
    if (values != 1).any():
        frame = frame.with_columns(pl.Series("rating", values.astype(np.float64)).cast(pl.Float32))
    if options.ids == "string":
        frame = frame.with_columns(pl.col("user", "item").cast(pl.String))
    return CleanTable(frame, Provenance(source="scipy matrix", format="scipy", rows=len(frame)))


def scan_parquet(path: Path, name: str, options: ReadOptions) -> tuple[pl.LazyFrame, dict[str, str]]:
    """A scan of a parquet file's wanted columns, and what the file calls the column of each role."""
    with polars_errors(name, WHOLE_PARQUET):
        scan = scan_file(path)
        names = scan.collect_schema().names()
    columns = {role: names[place] for role, place in find_columns(options.wanted, names, name).items()}
    return scan.select(list(columns.values())), columns


def read_parquet(path: Path, name: str, options: ReadOptions) -> CleanTable:
    """Read the wanted columns of a parquet file."""
    scan, columns = scan_parquet(path, name, options)
    with polars_errors(name, WHOLE_PARQUET):
        rows = int(scan.select(pl.len()).collect().item())
    if rows * 8 * len(columns) > options.max_bytes:
        raise DataError(
            f"{rows:,} rows exceed {options.max_bytes:,} bytes when decompressed",
            where=name,
            expected="less",
            hint="raise max_bytes if you trust it",
        )
    with polars_errors(name, WHOLE_PARQUET):
        frame = scan.collect()
    return from_frame(frame, options, source=name, format="parquet")
