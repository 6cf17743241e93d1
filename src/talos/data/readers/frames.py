"""Data that is in memory or has types of its own: polars and pandas frames, scipy matrices, parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from talos.data.readers.columns import Role, resolve
from talos.data.readers.options import Options
from talos.data.readers.table import Table, polars_errors
from talos.data.readers.values import clean, settle
from talos.errors import ArgumentError, DataError

__all__ = ["from_frame", "from_memory", "read_parquet"]


def from_frame(
    frame: pl.DataFrame,
    roles: Sequence[Role],
    options: Options,
    *,
    source: str,
    format: str,  # noqa: A002
) -> Table:
    """Read a polars frame."""
    found = resolve(roles, frame.columns, source)
    columns = {name: frame.columns[position] for name, position in found.items()}
    if not len(frame):
        raise DataError("has no rows", where=source, expected="one interaction a row")
    with polars_errors(source):
        chosen = frame.select([pl.col(column).alias(name) for name, column in columns.items()])
        cleaned, problems = clean(chosen, roles, columns, where=source, text=False, ids=options.ids)
        cleaned, bad = settle(
            cleaned,
            problems,
            columns,
            options.on_bad_row,
            lambda row: f"{source}, row {row} (counting from 0)",
        )
    return Table(frame=cleaned, source=source, format=format, rows=len(frame), bad_rows=bad)


def from_memory(data: object, roles: Sequence[Role], options: Options) -> Table:
    """Read a polars or pandas frame or a scipy matrix, told apart without importing any of them."""
    if isinstance(data, pl.LazyFrame):
        with polars_errors("polars frame"):
            data = data.collect()
    if isinstance(data, pl.DataFrame):
        return from_frame(data, roles, options, source="polars frame", format="polars")
    package = type(data).__module__.partition(".")[0]
    if package == "pandas" and hasattr(data, "columns"):
        return from_frame(_from_pandas(data, roles), roles, options, source="pandas frame", format="pandas")
    if package == "scipy" and hasattr(data, "tocoo"):
        return _from_scipy(data, options)
    raise ArgumentError(
        f"a {type(data).__name__}",
        where="source",
        expected="a path, a database URL, a polars or pandas frame, or a scipy sparse matrix",
    )


def _from_pandas(frame: Any, roles: Sequence[Role]) -> pl.DataFrame:
    names = [str(name) for name in frame.columns]
    found = resolve(roles, names, "pandas frame")
    columns: dict[str, pl.Series] = {}
    for position in found.values():
        name, values = names[position], frame.iloc[:, position]
        place = f"pandas frame, column {name!r}"
        if values.dtype == object:
            plain = [None if _is_missing(value) else value for value in values.tolist()]
            types = sorted({type(value).__name__ for value in plain if value is not None})
            if len(types) > 1:
                raise DataError(f"mixed types {', '.join(types)}", where=place, expected="one type")
            with polars_errors(place):
                columns[name] = pl.Series(name, plain, strict=True)
        elif str(values.dtype) == "category":
            with polars_errors(place):
                columns[name] = pl.Series(name, [None if _is_missing(v) else v for v in values.tolist()])
        elif values.dtype.kind in "iufbM" and type(values.dtype).__module__.startswith("numpy"):
            columns[name] = pl.Series(name, values.to_numpy())
        else:  # pandas' own nullable and string types
            with polars_errors(place):
                columns[name] = pl.Series(name, [None if _is_missing(v) else v for v in values.tolist()])
    return pl.DataFrame(columns)


def _is_missing(value: object) -> bool:
    """Missing in the ways pandas has: None, NaN, NaT, pd.NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _from_scipy(matrix: Any, options: Options) -> Table:
    """Each stored value that is not zero is an interaction; values other than 1 are ratings."""
    import numpy as np

    if len(matrix.shape) != 2:
        raise DataError(
            f"a sparse array of shape {matrix.shape}", where="scipy matrix", expected="users × items"
        )
    cells = matrix.tocoo()
    keep = cells.data != 0
    if not keep.any():
        raise DataError("has no entries", where="scipy matrix", expected="one interaction an entry")
    values = np.asarray(cells.data[keep])
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise DataError("values that are not finite numbers", where="scipy matrix", expected="finite numbers")
    users, items = (np.asarray(axis)[keep].astype(np.int64) for axis in cells.coords)
    frame = pl.DataFrame({"user": users, "item": items})
    if (values != 1).any():
        frame = frame.with_columns(pl.Series("rating", values.astype(np.float64)).cast(pl.Float32))
    if options.ids == "string":
        frame = frame.with_columns(pl.col("user", "item").cast(pl.String))
    return Table(frame=frame, source="scipy matrix", format="scipy", rows=len(frame))


def read_parquet(path: Path, name: str, roles: Sequence[Role], options: Options) -> Table:
    """Read the needed columns of a parquet file."""
    expected = "a whole parquet file"
    with polars_errors(name, expected):
        scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = scan.collect_schema().names()
        rows = int(scan.select(pl.len()).collect().item())
    found = resolve(roles, names, name)
    if rows * 8 * len(found) > options.max_bytes:
        raise DataError(
            f"{rows:,} rows exceed {options.max_bytes:,} bytes when decompressed",
            where=name,
            expected="less",
            hint="raise max_bytes if you trust it",
        )
    with polars_errors(name, expected):
        frame = scan.select([names[position] for position in found.values()]).collect()
    return from_frame(frame, roles, options, source=name, format="parquet")
