"""Read a table of items: ids, titles and attributes such as categories, from csv, tsv, parquet or JSON lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl

from talos.checks import require
from talos.data.parquet import scan_file
from talos.data.read.clean import EXPECTED_ID, BadRow, clean_ids, polars_errors
from talos.data.read.columns import find_columns
from talos.data.read.delimited import csv_rows
from talos.data.read.frames import Parquet
from talos.data.read.text import File, guess_layout
from talos.data.source import existing_path
from talos.data.vocabulary import are_integers
from talos.errors import DataError, nearest

__all__ = ["read_items"]

_MOST_BYTES = 8 << 30
_SEVERAL = "|"  # between the values of a text column that has several for one item


def read_items(
    source: str | os.PathLike[str] | pl.DataFrame,
    *,
    item: str | None = None,
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    r"""Read a table of items: `item_id`, `title` if there is one, and the other columns as attributes.

    Columns of text become integers or numbers if all their values are. A text column in which a value contains `|` has
    several values an item, as in `Comedy|Drama`, and becomes a list column. Empty text is a missing value.

    Args:
        source: a csv, tsv, parquet or JSON-lines file (text may be gzipped), or a polars frame.
        item: name of the column of ids; guessed from the usual names if None.
        columns: the attributes to keep; all if None.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "items.csv")
    ...     _ = file.write_text("item_id,title,genre\n7,Heat,Crime|Drama\n8,Big,Comedy\n")
    ...     read_items(file).rows()
    [(7, 'Heat', ['Crime', 'Drama']), (8, 'Big', ['Comedy'])]
    """
    if isinstance(source, pl.DataFrame):
        where, table = "polars frame", source
    else:
        where, table = str(source), _load(existing_path(source), str(source))
    table = table.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    roles = find_columns({"item": item, "title": None}, table.columns, where)
    for name in columns or ():
        require(
            name in table.columns,
            f"no column {name!r}",
            where=where,
            hint=nearest(name, table.columns),
            error=DataError,
        )
    ids = table.to_series(roles["item"])
    found = [_ids(ids, where)]
    if "title" in roles:
        titles = table.to_series(roles["title"])
        require(
            not isinstance(
                titles.dtype, pl.List | pl.Struct | pl.Array | pl.Binary | pl.Duration | pl.Object
            ),
            f"titles are {titles.dtype}",
            where=f"{where}, column {titles.name!r}",
            expected="text",
            error=DataError,
        )
        found.append(_without_blanks(titles.cast(pl.String)).rename("title"))
    for position, column in enumerate(table):
        if position not in roles.values() and (columns is None or column.name in columns):
            require(
                column.name not in ("item_id", "title"),
                f"column {column.name!r} besides the column {ids.name!r}",
                where=where,
                expected="other names for attributes",
                error=DataError,
            )
            found.append(_attribute(column, f"{where}, column {column.name!r}"))
    return pl.DataFrame(found)


def _load(path: Path, where: str) -> pl.DataFrame:
    """The table of a file; columns of text files are strings."""
    check = partial(require, where=where, error=DataError)
    check(not path.is_dir(), "is a folder", expected="a csv, parquet or JSON-lines file")
    file = File(path, where, _MOST_BYTES)
    if Parquet.recognises(file):
        with polars_errors(where):
            return scan_file(path).collect()
    if file.head.lstrip().startswith("{"):
        with polars_errors(where, "one JSON object per line"), file.open() as stream:
            return pl.read_ndjson(stream.read(), infer_schema_length=None)
    layout = guess_layout(file)
    names = layout.names
    check(
        bool(layout.skip_lines) and layout.separator != "::",
        "has no header",
        expected="a first line with the names of the columns",
    )
    check(
        len(set(names)) == len(names),
        f"two columns {max(names, key=names.count)!r}",
        expected="different names",
    )
    rows: list[list[str]] = []
    for line, row in csv_rows(file, layout, range(len(names)), fewest=len(names)):
        if isinstance(row, BadRow):
            raise row.error(f"{where}, line {line}")
        rows.append(row)
    check(len(rows) > 0, "has a header and no rows", expected="one item per line")
    return pl.DataFrame(rows, dict.fromkeys(names, pl.String), orient="row")


def _ids(column: pl.Series, where: str) -> pl.Series:
    place = f"{where}, column {column.name!r}"
    ids = clean_ids(column, place)
    row = ids.is_null().index_of(True)
    if row is not None:
        what = f"{column[row]!r} as the" if column[row] not in (None, "") else "no"
        raise DataError(f"{what} id in row {row}", where=place, expected=EXPECTED_ID)
    if ids.dtype == pl.String and are_integers(ids):
        ids = ids.cast(pl.Int64)
    return ids.rename("item_id")


def _without_blanks(column: pl.Series) -> pl.Series:
    """Text without blanks around it; empty text is missing."""
    text = column.str.strip_chars()
    return text.set(text == "", None)


def _attribute(column: pl.Series, place: str) -> pl.Series:
    """A column of one of the types that filters know."""
    if isinstance(column.dtype, pl.Date | pl.Datetime | pl.Time | pl.Null):
        column = column.cast(pl.String)
    dtype = column.dtype
    if dtype == pl.Boolean:
        return column
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.String | pl.Enum | pl.Categorical):
        return column.cast(pl.List(pl.String))
    if dtype.is_integer():
        whole = column.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == column.null_count() else column.cast(pl.Float64)
    if dtype.is_float() or dtype.is_decimal():
        return column.cast(pl.Float64)
    require(
        dtype == pl.String,
        f"is {dtype}",
        where=place,
        expected="text, lists of text, numbers or truth values",
        error=DataError,
    )
    text = _without_blanks(column)
    values = text.drop_nulls()
    if values.str.contains(_SEVERAL, literal=True).any():
        return text.str.split(_SEVERAL).list.eval(pl.element().str.strip_chars().filter(pl.element() != ""))
    numbers = text.cast(pl.Int64 if are_integers(values) else pl.Float64, strict=False)
    return numbers if numbers.is_finite().sum() == len(values) > 0 else text
