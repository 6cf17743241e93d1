"""Any source to a table: what is it, and which reader reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from talos.data.readers.columns import Role
from talos.data.readers.database import is_database_url, read_database
from talos.data.readers.delimited import read_delimited, read_lightgcn
from talos.data.readers.folders import files_of, part_files, readable_files
from talos.data.readers.frames import from_memory, read_parquet
from talos.data.readers.json_lines import looks_like_json, read_json
from talos.data.readers.options import Options
from talos.data.readers.table import Table, polars_errors
from talos.data.readers.text import lines_are_ragged, open_text
from talos.errors import DataError, nearest

__all__ = ["existing", "is_parquet", "load_parts", "load_table", "mixed_ids", "without_rows"]


def load_table(source: object, roles: Sequence[Role], options: Options) -> Table:
    """Clean columns from any source."""
    if isinstance(source, str) and is_database_url(source):
        return read_database(source, roles, options)
    if not isinstance(source, (str, os.PathLike)):
        return _checked(from_memory(source, roles, options))
    path = existing(source)
    if not path.is_dir():
        return _checked(_load_file(path, str(source), roles, options))
    files = part_files(path)
    if files is not None:
        tables = list(load_parts(files, roles, options).values())
        others = [other.name for other in readable_files(path) if other not in files.values()]
        notes = [f"union of {', '.join(file.name for file in files.values())}"]
        if others:
            notes.append(f"other files there were ignored: {', '.join(others)}")
        return _union(tables, str(source), tuple(notes))
    several, notes_on_files = files_of(path)
    return _union(_load_files(several, roles, options), str(source), notes_on_files)


def _load_file(path: Path, name: str, roles: Sequence[Role], options: Options) -> Table:
    try:
        if is_parquet(path, name, options):
            return read_parquet(path, name, roles, options)
        text = open_text(path, name, options.max_bytes)
        # What still goes wrong in here is polars (or Python's decoder) choking on garbage.
        with polars_errors(name):
            if options.format == "jsonl" or (options.format is None and looks_like_json(text)):
                return read_json(text, roles, options)
            if options.format == "lightgcn" or (options.format is None and lines_are_ragged(text)):
                return read_lightgcn(text, roles, options)
            return read_delimited(text, roles, options)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", where=name, expected="a readable file"
        ) from error
    except MemoryError as error:
        raise DataError("does not fit into memory", where=name, expected="a smaller file") from error


def is_parquet(path: Path, name: str, options: Options) -> bool:
    """Whether a file is to be read as parquet, by what was asked for, its beginning or its name; empty is an error."""
    with path.open("rb") as stream:
        magic = stream.read(4)
    if not magic:
        raise DataError("is empty", where=name, expected="one interaction a line")
    if options.format is not None:
        return options.format == "parquet"
    return magic == b"PAR1" or any(suffix.lower() in (".parquet", ".pq") for suffix in path.suffixes)


def _load_files(files: Sequence[Path], roles: Sequence[Role], options: Options) -> list[Table]:
    tables: list[Table] = []
    for file in files:
        table = _checked(_load_file(file, str(file), roles, options))
        tables.append(table)
        if table.format == "lightgcn":  # its short lines alone could be anything
            options = replace(options, format="lightgcn")
    for role in ("user", "item"):
        if len({table.frame[role].dtype for table in tables}) > 1:
            if options.ids == "string" or any(table.format in ("parquet", "jsonl") for table in tables):
                raise mixed_ids(role, list(map(str, files)))
            # Read anew and not cast, so that every id keeps its spelling.
            return _load_files(files, roles, replace(options, ids="string"))
    return tables


def mixed_ids(role: str, files: Sequence[str]) -> DataError:
    """The error for files that disagree about what ids are.

    >>> print(mixed_ids("user", ["a.csv", "b.csv"]))
    a.csv, b.csv: user ids are strings in one file and integers in another; expected ids of one type (ids=...)
    """
    return DataError(
        f"{role} ids are strings in one file and integers in another",
        where=", ".join(files[:3]),
        expected="ids of one type",
        hint="ids='string' makes them all strings",
    )


def load_parts(files: Mapping[str, Path], roles: Sequence[Role], options: Options) -> dict[str, Table]:
    """A table of each file, by the name of its part; ids are of one type in all."""
    return dict(zip(files, _load_files(list(files.values()), roles, options), strict=True))


def _union(tables: Sequence[Table], source: str, notes: tuple[str, ...]) -> Table:
    common = [
        name for name in tables[0].frame.columns if all(name in table.frame.columns for table in tables)
    ]
    with polars_errors(source):
        frame = pl.concat([table.frame.select(common) for table in tables], how="vertical_relaxed")
    return Table(
        frame=frame,
        source=source,
        format=" + ".join(dict.fromkeys(table.format for table in tables)),
        rows=sum(table.rows for table in tables),
        bad_rows=sum(table.bad_rows for table in tables),
        notes=notes + tuple(note for table in tables for note in table.notes),
    )


def _checked(table: Table) -> Table:
    if len(table.frame):
        return table
    raise without_rows(table.source, table.rows, table.bad_rows)


def without_rows(where: str, rows: int, bad_rows: int) -> DataError:
    """The error for a source that leaves nothing to go on with.

    >>> print(without_rows("a.csv", 3, 3))
    a.csv: no usable row: all 3 are bad; expected one interaction a row
    """
    what = f"no usable row: all {rows:,} are bad" if bad_rows else "has no rows"
    return DataError(what, where=where, expected="one interaction a row")


def existing(source: str | os.PathLike[str]) -> Path:
    """The path, if there is something."""
    path = Path(source).expanduser()
    try:
        if path.exists():
            return path
        folder = path.parent
        names = [entry.stem for entry in folder.iterdir()] if folder.is_dir() else []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot be read ({reason})", where=str(source), expected="a file or a folder"
        ) from error
    hint = nearest(path.stem, names) if names else ""
    raise DataError(
        "no such file or folder",
        where=str(source),
        expected="a file, a folder or a database URL",
        hint=hint if hint.startswith("did") else None,
    )
