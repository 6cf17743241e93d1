"""Find out what a source is, and read it with the reader for it: as a whole, or a block at a time."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Unpack

import polars as pl

from talos.data.databases import is_database_url
from talos.data.interactions import Provenance
from talos.data.readers.cleaning import Cleaner, CleanTable, polars_errors, union_of
from talos.data.readers.database import read_database
from talos.data.readers.delimited import DelimitedFile, read_delimited, read_lightgcn
from talos.data.readers.encoded import EncodedTables, read_encoded
from talos.data.readers.folders import files_of, part_files, readable_files
from talos.data.readers.frames import ROW, WHOLE_PARQUET, from_memory, read_parquet, scan_parquet
from talos.data.readers.json_lines import looks_like_json, read_json
from talos.data.readers.options import ReadKeywords, ReadOptions
from talos.data.readers.text import TextFile, lines_are_ragged, open_text
from talos.errors import DataError, nearest
from talos.files import expanded
from talos.progress import Progress

__all__ = [
    "BlockSink",
    "existing_path",
    "load_encoded",
    "load_encoded_parts",
    "load_parts",
    "load_table",
    "read_blocks",
]

_TEXT_READERS: Mapping[str, Callable[[TextFile, ReadOptions], CleanTable]] = {
    "delimited": read_delimited,
    "jsonl": read_json,
    "lightgcn": read_lightgcn,
}


def load_table(source: object, options: ReadOptions) -> CleanTable:
    """Read any source as one table."""
    if isinstance(source, str) and is_database_url(source):
        return read_database(source, options)
    if not isinstance(source, (str, os.PathLike)):
        return _with_rows(from_memory(source, options))
    path = existing_path(source)
    if not path.is_dir():
        with _as_file(path, str(source), options) as file:
            return _with_rows(_load_file(file, str(source), options))
    files = part_files(path)
    if files is None:
        several, notes = files_of(path)
        return _union(_load_files(several, options), str(source), notes)
    others = [other.name for other in readable_files(path) if other not in files.values()]
    notes = (f"union of {', '.join(file.name for file in files.values())}",)
    if others:
        notes += (f"other files there were ignored: {', '.join(others)}",)
    return _union(list(load_parts(files, options).values()), str(source), notes)


def load_encoded(
    source: object, options: ReadOptions, progress: Progress | None = None
) -> EncodedTables | None:
    """Read a file or a folder of files the quick way, as the one part "all"; None if that cannot be done."""
    if not isinstance(source, (str, os.PathLike)) or (isinstance(source, str) and is_database_url(source)):
        return None
    path = expanded(source)
    notes: tuple[str, ...] = ()
    try:
        if not path.is_dir():
            files = [(str(source), path)]
        elif part_files(path) is None:
            several, notes = files_of(path)
            files = [(str(file), file) for file in several]
        else:
            return None
    except (DataError, OSError, ValueError):
        return None
    found = read_encoded({"all": files}, options, _inspect_file, progress)
    if found is None or not path.is_dir():
        return found
    part = found.parts["all"]
    part = replace(part, provenance=replace(part.provenance, source=str(source), notes=notes))
    return replace(found, parts={"all": part})


def load_encoded_parts(
    files: Mapping[str, Path], options: ReadOptions, progress: Progress | None = None
) -> EncodedTables | None:
    """Read the file or the folder of files of each part the quick way; None if that cannot be done."""
    named = {part: [(str(file), file) for file in _files_of_part(path)] for part, path in files.items()}
    found = read_encoded(named, options, _inspect_file, progress)
    if found is None:
        return None
    parts = {
        part: replace(own, provenance=replace(own.provenance, source=str(files[part])))
        for part, own in found.parts.items()
    }
    return replace(found, parts=parts)


def _files_of_part(path: Path) -> list[Path]:
    return files_of(path)[0] if path.is_dir() else [path]


def load_parts(files: Mapping[str, Path], options: ReadOptions) -> dict[str, CleanTable]:
    """Read the file or the folder of files of each part (train, valid, test); ids are of one type in all of them."""
    several = {part: _files_of_part(path) for part, path in files.items()}
    tables = iter(_load_files([file for some in several.values() for file in some], options))
    found: dict[str, CleanTable] = {}
    for part, some in several.items():
        own = [next(tables) for _ in some]
        found[part] = own[0] if len(own) == 1 else _union(own, str(files[part]), ())
    return found


def _inspect_file(path: Path, name: str, options: ReadOptions) -> tuple[str, TextFile | None]:
    """What a file is: "parquet" (and no text), or the text and its reader's key in `_TEXT_READERS`."""
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
def _file_errors(name: str) -> Iterator[None]:
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


@contextmanager
def _as_file(path: Path, name: str, options: ReadOptions) -> Iterator[Path]:
    """A path that can be read more than once: a pipe is copied to a temporary file, a device is refused."""
    with _file_errors(name):
        kind = path.stat().st_mode
    if stat.S_ISREG(kind):
        yield path
        return
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise DataError("is a device", where=name, expected="a file, a folder or a pipe")
    with tempfile.TemporaryDirectory(prefix="talos-") as folder:
        copy = Path(folder) / path.name  # its suffix may say what it is
        with _file_errors(name), path.open("rb") as pipe, copy.open("wb") as file:
            while block := pipe.read(1 << 20):
                file.write(block)
                if file.tell() > options.max_bytes:
                    raise DataError(
                        f"more than {options.max_bytes:,} bytes", where=name, expected="less through a pipe"
                    )
        yield copy


def _load_file(path: Path, name: str, options: ReadOptions) -> CleanTable:
    with _file_errors(name):
        kind, text = _inspect_file(path, name, options)
        return read_parquet(path, name, options) if text is None else _TEXT_READERS[kind](text, options)


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
            return _load_files(files, _with_string_ids(options, role, list(map(str, files)), read))
    return tables


def _with_string_ids(
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


def _with_rows(table: CleanTable) -> CleanTable:
    if len(table.frame):
        return table
    raise _no_rows_error(table.provenance)


def _no_rows_error(read: Provenance) -> DataError:
    """The error for a source without a single usable row."""
    what = f"no usable row: all {read.rows:,} are bad" if read.bad_rows else "has no rows"
    return DataError(what, where=read.source, expected="one interaction per row")


def existing_path(source: str | os.PathLike[str]) -> Path:
    """The path of a file or folder that exists, else a `DataError` with the nearest name."""
    path = expanded(source)
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


# ----------------------------------------------------------------------- blocks


class BlockSink(Protocol):
    """Where `read_blocks` puts rows; it takes rows back if a file turns out late to need another way of reading."""

    def add(self, block: pl.DataFrame) -> None:
        """Add rows; columns are named by role: `user`, `item`, and `timestamp`, `rating`, `title` if there are any."""
        ...

    def commit(self) -> None:
        """Keep what was added so far."""
        ...

    def take_back(self, *, everything: bool = False) -> None:
        """Drop what was added since the last commit, or everything."""
        ...


def read_blocks(
    source: str | os.PathLike[str], sink: BlockSink, *, rows: int, **options: Unpack[ReadKeywords]
) -> Provenance:
    r"""Read a file, or a folder of files that are one table, into a sink, `rows` rows at a time.

    Parquet and delimited text are never held in memory as a whole; gzipped text, JSON lines and LightGCN lines are
    held one file at a time. The options are those of `read` for files, and so are the errors.

    >>> import tempfile
    >>> class Counter:
    ...     rows = 0
    ...     def add(self, block): self.rows += len(block)
    ...     def commit(self): ...
    ...     def take_back(self, *, everything=False): self.rows = 0
    >>> counter = Counter()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "clicks.csv").write_text("user,item\n1,7\n2,8\n")
    ...     read_blocks(folder, counter, rows=1).rows, counter.rows
    (2, 2)
    """
    reading = ReadOptions(**options)
    path = existing_path(source)
    notes: tuple[str, ...] = ()
    if path.is_dir():
        if part_files(path) is not None:
            raise DataError(
                "is split already",
                where=str(source),
                expected="a file, or a folder of files that are one table",
            )
        several, notes = files_of(path)
        files = {str(file): file for file in several}
        return union_of(_read_files(files, reading, sink, rows), str(source), notes)
    with _as_file(path, str(source), reading) as file:
        return union_of(_read_files({str(source): file}, reading, sink, rows), str(source), notes)


class _NotIntegersError(Exception):
    """A later block of a file has ids that are not integers; the argument is the role of the column."""


def _read_files(
    files: Mapping[str, Path], options: ReadOptions, sink: BlockSink, rows: int
) -> list[Provenance]:
    done: list[Provenance] = []
    types: dict[str, pl.DataType] = {}
    now = options
    for name, file in files.items():
        reader = _FileReader(file, name, now, sink, rows)
        while True:
            try:
                read = reader.read()
                break
            except _NotIntegersError as error:
                sink.take_back()
                strings = reader.options.string_roles | {str(error)}
                reader = _FileReader(file, name, replace(now, string_roles=strings), sink, rows)
        if not reader.kept:
            raise _no_rows_error(read)
        done.append(read)
        for role, kind in reader.types.items():
            if types.setdefault(role, kind) != kind:
                options = _with_string_ids(options, role, list(files), done)
                sink.take_back(everything=True)
                return _read_files(files, options, sink, rows)
        sink.commit()
        if read.format == "lightgcn":  # files that follow may have lines too short to be recognised
            now = replace(options, format="lightgcn")
    return done


@dataclass
class _FileReader:
    """Reads one file into the sink; the rows and errors are those of `talos.data.readers.read`."""

    path: Path
    name: str
    options: ReadOptions
    sink: BlockSink
    rows: int
    types: dict[str, pl.DataType] = field(default_factory=dict)
    kept: int = 0

    def read(self) -> Provenance:
        with _file_errors(self.name):
            kind, text = _inspect_file(self.path, self.name, self.options)
            if text is not None and kind != "delimited":
                table = _TEXT_READERS[kind](text, self.options)
            elif text is not None:
                file = DelimitedFile.inspect(text, self.options)
        if text is None:
            return self._parquet()
        if kind == "delimited":
            return self._delimited(file)
        for block in table.frame.iter_slices(self.rows):
            self._keep(block)
        return table.provenance

    def _keep(self, block: pl.DataFrame) -> None:
        if not len(block):
            return
        for role in ("user", "item"):
            kind = block[role].dtype
            if self.types.setdefault(role, kind) != kind:
                raise _NotIntegersError(role)
        self.kept += len(block)
        self.sink.add(block)

    def _parquet(self) -> Provenance:
        scan, columns = scan_parquet(self.path, self.name, self.options)
        cleaner = Cleaner(self.name, columns, self.options, text=False)
        wanted = scan.select([pl.col(column).alias(role) for role, column in columns.items()])
        rows = bad_rows = 0
        for block in _blocks(wanted, self.rows, self.name, WHOLE_PARQUET):
            with polars_errors(self.name, WHOLE_PARQUET):
                cleaned, bad = cleaner.clean_rows(block, range(rows, rows + len(block)), ROW)
            self._keep(cleaned)
            rows, bad_rows = rows + len(block), bad_rows + bad
        return cleaner.provenance("parquet", rows, bad_rows)

    def _delimited(self, file: DelimitedFile) -> Provenance:
        """The three attempts of `talos.data.readers.delimited`, each a block at a time."""
        for dtypes in file.attempts():
            if self._by_polars(file, dtypes):
                return file.provenance(self.kept)
            self.sink.take_back()
            self.types, self.kept = {}, 0
        rows = bad_rows = 0
        for block, count, bad in file.row_by_row(self.rows):
            self._keep(block)
            rows, bad_rows = rows + count, bad_rows + bad
        return file.provenance(rows, bad_rows)

    def _by_polars(self, file: DelimitedFile, dtypes: Mapping[str, pl.DataType]) -> bool:
        """Whether there are rows and nothing is wrong with any."""
        cleaner = file.cleaner.again()
        try:
            for block in _blocks(file.scan(dtypes), self.rows, self.name, project=False):
                with polars_errors(self.name):
                    cleaned = cleaner.clean(block)
                if cleaned is None:
                    return False
                self._keep(cleaned)
        except DataError:
            return False  # the next attempt says better what is wrong
        return self.kept > 0


def _blocks(
    scan: pl.LazyFrame,
    rows: int,
    where: str,
    expected: str = "data that can be parsed",
    *,
    project: bool = True,
) -> Iterator[pl.DataFrame]:
    """The rows of a scan, `rows` at a time; what polars raises becomes a `DataError`.

    With `project=False` unwanted columns are parsed as well, so that a text row with too many fields is noticed.
    """
    flags = pl.QueryOptFlags(projection_pushdown=project)
    with polars_errors(where, expected):
        batches = iter(scan.collect_batches(chunk_size=rows, maintain_order=True, optimizations=flags))
    while True:
        with polars_errors(where, expected):
            block = next(batches, None)
        if block is None:
            return
        yield block
