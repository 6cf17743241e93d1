"""Find out what a source is, and read it with the reader for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl

from talos.data.databases import is_database_url
from talos.data.interactions import Provenance
from talos.data.readers.cleaning import CleanTable, polars_errors
from talos.data.readers.database import read_database
from talos.data.readers.delimited import read_delimited, read_lightgcn
from talos.data.readers.folders import files_of, part_files, readable_files
from talos.data.readers.frames import from_memory, read_parquet
from talos.data.readers.json_lines import looks_like_json, read_json
from talos.data.readers.options import ReadOptions
from talos.data.readers.text import TextFile, lines_are_ragged, open_text
from talos.errors import DataError, nearest

__all__ = [
    "TEXT_READERS",
    "existing_path",
    "file_errors",
    "inspect_file",
    "load_parts",
    "load_table",
    "no_rows_error",
    "union_of",
    "with_string_ids",
]

TEXT_READERS: Mapping[str, Callable[[TextFile, ReadOptions], CleanTable]] = {
    "delimited": read_delimited,
    "jsonl": read_json,
    "lightgcn": read_lightgcn,
}
"""The reader of each kind of text file."""


def load_table(source: object, options: ReadOptions) -> CleanTable:
    """Read any source as one table."""
    if isinstance(source, str) and is_database_url(source):
        return read_database(source, options)
    if not isinstance(source, (str, os.PathLike)):
        return _with_rows(from_memory(source, options))
    path = existing_path(source)
    if not path.is_dir():
        return _with_rows(_load_file(path, str(source), options))
    files = part_files(path)
    if files is None:
        several, notes = files_of(path)
        return _union(_load_files(several, options), str(source), notes)
    others = [other.name for other in readable_files(path) if other not in files.values()]
    notes = (f"union of {', '.join(file.name for file in files.values())}",)
    if others:
        notes += (f"other files there were ignored: {', '.join(others)}",)
    return _union(list(load_parts(files, options).values()), str(source), notes)


def load_parts(files: Mapping[str, Path], options: ReadOptions) -> dict[str, CleanTable]:
    """Read the file of each part (train, valid, test); ids are of one type in all of them."""
    return dict(zip(files, _load_files(list(files.values()), options), strict=True))


def inspect_file(path: Path, name: str, options: ReadOptions) -> tuple[str, TextFile | None]:
    """What a file is: "parquet" (and no text), or the text and its reader's key in `TEXT_READERS`."""
    with path.open("rb") as stream:
        magic = stream.read(4)
    if not magic:
        raise DataError("is empty", where=name, expected="one interaction per line")
    format = options.format  # noqa: A001
    named_parquet = any(suffix.lower() in (".parquet", ".pq") for suffix in path.suffixes)
    if format == "parquet" or (format is None and (magic == b"PAR1" or named_parquet)):
        return "parquet", None
    text = open_text(path, name, options.max_bytes)
    if format == "jsonl" or (format is None and looks_like_json(text)):
        return "jsonl", text
    if format == "lightgcn" or (format is None and lines_are_ragged(text)):
        return "lightgcn", text
    return "delimited", text


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Turn whatever is raised while a file is read into a `DataError`."""
    try:
        with polars_errors(name):
            yield
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", where=name, expected="a readable file"
        ) from error
    except MemoryError as error:
        raise DataError("does not fit into memory", where=name, expected="a smaller file") from error


def _load_file(path: Path, name: str, options: ReadOptions) -> CleanTable:
    with file_errors(name):
        kind, text = inspect_file(path, name, options)
        return read_parquet(path, name, options) if text is None else TEXT_READERS[kind](text, options)


def _load_files(files: Sequence[Path], options: ReadOptions) -> list[CleanTable]:
    tables: list[CleanTable] = []
    for file in files:
        table = _with_rows(_load_file(file, str(file), options))
        tables.append(table)
        if (
            table.provenance.format == "lightgcn"
        ):  # files that follow may have lines too short to be recognised
            options = replace(options, format="lightgcn")
    for role in ("user", "item"):
        if len({table.frame[role].dtype for table in tables}) > 1:
            read = [table.provenance for table in tables]
            return _load_files(files, with_string_ids(options, role, list(map(str, files)), read))
    return tables


def with_string_ids(
    options: ReadOptions, role: str, names: Sequence[str], read: Sequence[Provenance]
) -> ReadOptions:
    """Options for reading files again that have ids of different types, or an error if that cannot help.

    Reading again instead of casting lets every id keep its spelling.
    """
    if options.ids == "string" or any(one.format in ("parquet", "jsonl") for one in read):
        raise DataError(
            f"{role} ids are strings in one file and integers in another",
            where=", ".join(names[:3]),
            expected="ids of one type",
            hint="ids='string' makes them all strings",
        )
    return replace(options, ids="string")


def _union(tables: Sequence[CleanTable], source: str, notes: tuple[str, ...]) -> CleanTable:
    common = [
        name for name in tables[0].frame.columns if all(name in table.frame.columns for table in tables)
    ]
    with polars_errors(source):
        frame = pl.concat([table.frame.select(common) for table in tables], how="vertical_relaxed")
    return CleanTable(frame, union_of([table.provenance for table in tables], source, notes))


def union_of(files: Sequence[Provenance], source: str, notes: tuple[str, ...]) -> Provenance:
    """The provenance of files that are read as one table."""
    return Provenance(
        source=source,
        format=" + ".join(dict.fromkeys(one.format for one in files)),
        rows=sum(one.rows for one in files),
        bad_rows=sum(one.bad_rows for one in files),
        notes=notes + tuple(note for one in files for note in one.notes),
    )


def _with_rows(table: CleanTable) -> CleanTable:
    if len(table.frame):
        return table
    raise no_rows_error(table.provenance)


def no_rows_error(read: Provenance) -> DataError:
    """The error for a source without a single usable row."""
    what = f"no usable row: all {read.rows:,} are bad" if read.bad_rows else "has no rows"
    return DataError(what, where=read.source, expected="one interaction per row")


def existing_path(source: str | os.PathLike[str]) -> Path:
    """The path of a file or folder that exists, else a `DataError` with the nearest name."""
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
