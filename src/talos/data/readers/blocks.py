"""Read sources larger than memory: clean rows a block at a time, with the ids, types and errors of `read`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Unpack

import polars as pl

from talos.data.interactions import Provenance
from talos.data.readers.cleaning import Cleaner, polars_errors
from talos.data.readers.delimited import DelimitedFile
from talos.data.readers.dispatch import (
    TEXT_READERS,
    existing_path,
    file_errors,
    inspect_file,
    no_rows_error,
    union_of,
    with_string_ids,
)
from talos.data.readers.folders import files_of, part_files
from talos.data.readers.frames import ROW, WHOLE_PARQUET, scan_parquet
from talos.data.readers.options import ReadKeywords, ReadOptions
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
    files = {str(source): path}
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


class _NotIntegersError(Exception):
    """A later block of a file has ids that are not integers; the argument is the role of the column."""


def _read_files(
    files: Mapping[str, Path], options: ReadOptions, sink: BlockSink, rows: int
) -> list[Provenance]:
    done: list[Provenance] = []
    types: dict[str, pl.DataType] = {}
    for name, file in files.items():
        reader = _FileReader(file, name, options, sink, rows)
        while True:
            try:
                read = reader.read()
                break
            except _NotIntegersError as error:
                sink.take_back()
                strings = reader.options.string_roles | {str(error)}
                reader = _FileReader(file, name, replace(options, string_roles=strings), sink, rows)
        if not reader.kept:
            raise no_rows_error(read)
        done.append(read)
        for role, kind in reader.types.items():
            if types.setdefault(role, kind) != kind:
                options = with_string_ids(options, role, list(files), done)
                sink.take_back(everything=True)
                return _read_files(files, options, sink, rows)
        sink.commit()
        if read.format == "lightgcn":  # files that follow may have lines too short to be recognised
            options = replace(options, format="lightgcn")
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
        return Provenance(source=self.name, format="parquet", rows=rows, bad_rows=bad_rows)

    def _delimited(self, file: DelimitedFile, sampled: Sequence[Sequence[str]]) -> Provenance:
        """The three attempts of `talos.data.readers.delimited`, each a block at a time."""
        for dtypes in file.attempts(sampled):
            if self._by_polars(file, dtypes):
                return Provenance(source=self.name, format=file.layout.format, rows=self.kept)
            self.sink.take_back()
            self.types, self.kept = {}, 0
        rows = bad_rows = 0
        for block, count, bad in file.row_by_row(self.rows):
            self._keep(block)
            rows, bad_rows = rows + count, bad_rows + bad
        return Provenance(source=self.name, format=file.layout.format, rows=rows, bad_rows=bad_rows)

    def _by_polars(self, file: DelimitedFile, dtypes: Mapping[str, pl.DataType]) -> bool:
        """Whether there are rows and nothing is wrong with any."""
        try:
            for block in _blocks(file.scan(dtypes), self.rows, self.name, project=False):
                with polars_errors(self.name):
                    cleaned = file.cleaner.clean(block)
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
