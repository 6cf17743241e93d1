"""Read sources larger than memory: clean rows a block at a time, with the ids, types and errors of `read`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Unpack

import polars as pl

from talos.data.interactions import Provenance
from talos.data.readers.cleaning import BadValues, clean_columns, clean_rows, drop_bad_rows, polars_errors
from talos.data.readers.delimited import DelimitedFile
from talos.data.readers.dispatch import (
    TEXT_READERS,
    existing_path,
    file_errors,
    inspect_file,
    mixed_ids_error,
    no_rows_error,
)
from talos.data.readers.folders import files_of, part_files
from talos.data.readers.frames import WHOLE_PARQUET, scan_parquet
from talos.data.readers.options import FileKeywords, ReadOptions
from talos.errors import DataError

__all__ = ["BlockSink", "read_blocks"]


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
    source: str | os.PathLike[str], sink: BlockSink, *, rows: int, **options: Unpack[FileKeywords]
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
    files: list[Path] = [path]
    notes: tuple[str, ...] = ()
    if path.is_dir():
        if part_files(path) is not None:
            raise DataError(
                "is split already",
                where=str(source),
                expected="a file, or a folder of files that are one table",
            )
        files, notes = files_of(path)
    names = [str(source)] if files == [path] else list(map(str, files))
    try:
        read = _read_files(files, names, reading, sink, rows)
    except _MixedIdsError:  # read again instead of casting, so that every id keeps its spelling
        sink.take_back(everything=True)
        read = _read_files(files, names, replace(reading, ids="string"), sink, rows)
    return Provenance(
        source=str(source),
        format=" + ".join(dict.fromkeys(one.format for one in read)),
        rows=sum(one.rows for one in read),
        bad_rows=sum(one.bad_rows for one in read),
        notes=notes,
    )


class _MixedIdsError(Exception):
    """Ids are integers in one file and strings in another."""


class _NotIntegersError(Exception):
    """A later block of a file has ids that are not integers; the argument is the role of the column."""


@dataclass
class _FileCounts:
    """The format of a file that was read, and its numbers of rows."""

    format: str
    rows: int = 0
    bad_rows: int = 0


def _read_files(
    files: Sequence[Path], names: Sequence[str], options: ReadOptions, sink: BlockSink, rows: int
) -> list[_FileCounts]:
    done: list[_FileCounts] = []
    types: dict[str, pl.DataType] = {}
    for file, name in zip(files, names, strict=True):
        reader = _FileReader(file, name, options, sink, rows)
        while True:
            try:
                counts = reader.read()
                break
            except _NotIntegersError as error:
                sink.take_back()
                reader = replace(reader, strings=reader.strings | {str(error)}, types={})
        if not reader.kept:
            raise no_rows_error(name, counts.rows, counts.bad_rows)
        done.append(counts)
        for role, kind in reader.types.items():
            if types.setdefault(role, kind) != kind:
                if options.ids == "string" or any(one.format in ("parquet", "jsonl") for one in done):
                    raise mixed_ids_error(role, names)
                raise _MixedIdsError
        sink.commit()
        if counts.format == "lightgcn":  # files that follow may have lines too short to be recognised
            options = replace(options, format="lightgcn")
    return done


@dataclass
class _FileReader:
    """Reads one file into the sink."""

    path: Path
    name: str
    options: ReadOptions
    sink: BlockSink
    rows: int
    strings: frozenset[str] = frozenset()  # roles whose ids stay strings although some of them are integers
    types: dict[str, pl.DataType] = field(default_factory=dict)
    kept: int = 0

    def read(self) -> _FileCounts:
        """Read the file; the rows and errors are those of `talos.data.readers.read`."""
        self.kept = 0
        with file_errors(self.name):
            kind, text = inspect_file(self.path, self.name, self.options)
            if text is not None and kind != "delimited":
                table = TEXT_READERS[kind](text, self.options)
            elif text is not None:
                file, sampled = DelimitedFile.inspect(text, self.options)
        if text is None:
            return self._parquet()
        if kind == "delimited":
            return self._delimited(file, sampled)
        for block in table.frame.iter_slices(self.rows):
            self._keep(block)
        return _FileCounts(table.format, table.rows, table.bad_rows)

    def _keep(self, block: pl.DataFrame) -> None:
        for role in ("user", "item"):
            kind = block[role].dtype
            if len(block) and self.types.setdefault(role, kind) != kind:
                raise _NotIntegersError(role)
        if len(block):
            self.kept += len(block)
            self.sink.add(block)

    def _parquet(self) -> _FileCounts:
        scan, columns = scan_parquet(self.path, self.name, self.options)
        wanted = scan.select([pl.col(column).alias(role) for role, column in columns.items()])
        counts = _FileCounts("parquet")
        for block in _blocks(wanted, self.rows, self.name, WHOLE_PARQUET):
            start = counts.rows
            with polars_errors(self.name, WHOLE_PARQUET):
                cleaned, bad = clean_rows(
                    block,
                    columns,
                    self.options,
                    where=self.name,
                    text=False,
                    place=lambda row, start=start: f"{self.name}, row {start + row} (counting from 0)",  # type: ignore[misc]
                )
            self._keep(cleaned)
            counts.rows, counts.bad_rows = counts.rows + len(block), counts.bad_rows + bad
        return counts

    def _delimited(self, file: DelimitedFile, sampled: Sequence[Sequence[str]]) -> _FileCounts:
        """The three attempts of `talos.data.readers.delimited`, each a block at a time."""
        for dtypes in (file.guess_dtypes(sampled), dict.fromkeys(file.found, pl.String())):
            done = self._by_polars(file, {**dtypes, **dict.fromkeys(self.strings, pl.String())})
            if done is not None:
                return done
            self.sink.take_back()
            self.types, self.kept = {}, 0
        return self._row_by_row(file)

    def _by_polars(self, file: DelimitedFile, dtypes: Mapping[str, pl.DataType]) -> _FileCounts | None:
        counts = _FileCounts(file.layout.format)
        try:
            for block in _blocks(file.scan(dtypes), self.rows, self.name, project=False):
                with polars_errors(self.name):
                    cleaned, problems = self._cleaned(block, file)
                if problems:
                    return None
                self._keep(cleaned)
                counts.rows += len(block)
        except DataError:
            return None  # the next attempt says better what is wrong
        return counts if counts.rows else None

    def _row_by_row(self, file: DelimitedFile) -> _FileCounts:
        counts = _FileCounts(file.layout.format)
        frames: list[pl.DataFrame] = []
        lines: list[int] = []

        def flush() -> None:
            if frames:
                cleaned, problems = self._cleaned(pl.concat(frames), file)
                cleaned, bad = drop_bad_rows(
                    cleaned,
                    problems,
                    file.columns,
                    self.options,
                    lambda row: f"{self.name}, line {lines[row]}",
                )
                self._keep(cleaned)
                counts.bad_rows += bad
            frames.clear()
            lines.clear()

        for chunk in file.chunks(min(self.rows, 1 << 17)):
            if len(lines) + len(chunk.lines) > self.rows:
                flush()
            frame = pl.DataFrame(chunk.values, schema=dict.fromkeys(file.found, pl.String))
            frames.append(frame)
            lines.extend(chunk.lines)
            counts.rows += len(frame) + chunk.bad
            counts.bad_rows += chunk.bad
            if chunk.fault is not None and self.options.on_bad_row == "raise":
                flush()  # a row before it may be bad as well, and is named first
                raise chunk.fault
        flush()
        return counts

    def _cleaned(self, frame: pl.DataFrame, file: DelimitedFile) -> tuple[pl.DataFrame, list[BadValues]]:
        """`clean_columns`, with the ids of the roles in `self.strings` kept strings."""
        columns, problems = [], []
        for strings in (False, True):
            names = [name for name in frame.columns if (name in self.strings) == strings]
            options = replace(self.options, ids="string") if strings else self.options
            part, bad = clean_columns(frame.select(names), file.columns, options, where=self.name, text=True)
            columns += part.get_columns()
            problems += bad
        return pl.DataFrame(columns).select(frame.columns), problems


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
