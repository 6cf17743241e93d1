"""Sources larger than memory: clean rows a block at a time, with the ids, types and errors of `read`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import polars as pl

from talos.data.interactions import Provenance
from talos.data.readers.columns import Role, make_roles, resolve
from talos.data.readers.delimited import Job, job_of
from talos.data.readers.folders import files_of, part_files
from talos.data.readers.json_lines import looks_like_json
from talos.data.readers.load import existing, is_parquet, load_table, mixed_ids, without_rows
from talos.data.readers.options import DEFAULT_MAX_BYTES, Options
from talos.data.readers.table import Table, polars_errors
from talos.data.readers.text import lines_are_ragged, open_text
from talos.data.readers.values import IdMode, OnBadRow, clean, settle
from talos.errors import DataError

__all__ = ["BlockSink", "read_blocks"]


class BlockSink(Protocol):
    """Where blocks of rows go. A reader may find out late that a file has to be read in another way."""

    def add(self, block: pl.DataFrame) -> None:
        """Keep some rows; columns are named by role: `user`, `item`, and of the others those that are there."""
        ...

    def commit(self) -> None:
        """What was added so far stays."""
        ...

    def take_back(self, *, everything: bool = False) -> None:
        """Forget what was added since the last commit, or from the beginning."""
        ...


def read_blocks(
    source: str | os.PathLike[str],
    sink: BlockSink,
    *,
    rows: int,
    user: str | None = None,
    item: str | None = None,
    timestamp: str | None = None,
    rating: str | None = None,
    title: str | None = None,
    format: str | None = None,  # noqa: A002
    on_bad_row: OnBadRow = "raise",
    ids: IdMode = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Provenance:
    r"""Read a file, or a folder of files that are one table, into a sink, `rows` rows at a time.

    Parquet and delimited text are never held as a whole; gzipped text, JSON lines and LightGCN lines are held one
    file at a time. The other arguments are those of `read`, and so are the errors. Returns what was read.

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
    roles = make_roles(user, item, timestamp, rating, title)
    options = Options(format=format, on_bad_row=on_bad_row, ids=ids, max_bytes=max_bytes)
    path = existing(source)
    files: list[Path] = [path]
    notes: tuple[str, ...] = ()
    if path.is_dir():
        if part_files(path) is not None:
            raise DataError(
                "is split already",
                where=str(source),
                expected="interactions that are not, in a file or in parts of one table",
            )
        files, notes = files_of(path)
    names = [str(source)] if files == [path] else list(map(str, files))
    try:
        read = _read_files(files, names, roles, options, sink, rows)
    except _MixedIdsError:
        # as `read` does: every id keeps its spelling, which is why they are read anew
        sink.take_back(everything=True)
        read = _read_files(files, names, roles, replace(options, ids="string"), sink, rows)
    return Provenance(
        source=str(source),
        format=" + ".join(dict.fromkeys(one.format for one in read)),
        rows=sum(one.rows for one in read),
        bad_rows=sum(one.bad_rows for one in read),
        notes=notes,
    )


class _MixedIdsError(Exception):
    """Ids are integers in one file and strings in another."""


class _SpellingError(Exception):
    """Ids that looked like integers turned out to be strings within a file; has the name of their role."""


@dataclass
class _Done:
    """What is known about a file that was read."""

    format: str
    rows: int = 0
    bad_rows: int = 0


def _read_files(
    files: Sequence[Path],
    names: Sequence[str],
    roles: Sequence[Role],
    options: Options,
    sink: BlockSink,
    rows: int,
) -> list[_Done]:
    done: list[_Done] = []
    types: dict[str, pl.DataType] = {}
    for file, name in zip(files, names, strict=True):
        reading = _Reading(file, name, roles, options, sink, rows)
        while True:
            try:
                one = reading.run()
                break
            except _SpellingError as spelling:
                sink.take_back()
                reading = replace(reading, strings=reading.strings | {str(spelling)}, types={})
        if not reading.kept:
            raise without_rows(name, one.rows, one.bad_rows)
        done.append(one)
        for role, kind in reading.types.items():
            if types.setdefault(role, kind) != kind:
                if options.ids == "string" or any(one.format in ("parquet", "jsonl") for one in done):
                    raise mixed_ids(role, names)
                raise _MixedIdsError
        sink.commit()
        if one.format == "lightgcn":  # its short lines alone could be anything
            options = replace(options, format="lightgcn")
    return done


@dataclass
class _Reading:
    """One file on its way into the sink."""

    path: Path
    name: str
    roles: Sequence[Role]
    options: Options
    sink: BlockSink
    rows: int
    strings: frozenset[str] = frozenset()  # roles whose ids stay strings although some are integers
    types: dict[str, pl.DataType] = field(default_factory=dict)
    kept: int = 0

    def run(self) -> _Done:
        """Read it, as `read` would."""
        self.kept = 0
        try:
            if is_parquet(self.path, self.name, self.options):
                return self._parquet()
            wanted = self.options.format
            if wanted not in ("jsonl", "lightgcn"):
                text = open_text(self.path, self.name, self.options.max_bytes)
                with polars_errors(self.name):
                    plain = wanted is not None or not (looks_like_json(text) or lines_are_ragged(text))
                    job, sampled = job_of(text, self.roles, self.options) if plain else (None, [])
                if job is not None and job.layout.format != "lightgcn":
                    return self._delimited(job, sampled)
        except OSError as error:
            raise DataError(
                f"cannot be read ({error.strerror})", where=self.name, expected="a readable file"
            ) from error
        return self._whole()

    def _keep(self, block: pl.DataFrame) -> None:
        for role in ("user", "item"):
            kind = block[role].dtype
            if len(block) and self.types.setdefault(role, kind) != kind:
                raise _SpellingError(role)
        if len(block):
            self.kept += len(block)
            self.sink.add(block)

    def _whole(self) -> _Done:
        """A format that is read in one go."""
        table: Table = load_table(self.path, self.roles, self.options)
        for block in table.frame.iter_slices(self.rows):
            self._keep(block)
        return _Done(table.format, table.rows, table.bad_rows)

    def _parquet(self) -> _Done:
        expected = "a whole parquet file"
        with polars_errors(self.name, expected):
            scan = pl.scan_parquet(self.path, glob=False, hive_partitioning=False)
            names = scan.collect_schema().names()
        columns = {role: names[place] for role, place in resolve(self.roles, names, self.name).items()}
        wanted = scan.select([pl.col(column).alias(role) for role, column in columns.items()])
        done = _Done("parquet")
        for block in _blocks(wanted, self.rows, self.name, expected):
            start = done.rows
            with polars_errors(self.name, expected):
                cleaned, problems = clean(
                    block, self.roles, columns, where=self.name, text=False, ids=self.options.ids
                )
                cleaned, bad = settle(
                    cleaned,
                    problems,
                    columns,
                    self.options.on_bad_row,
                    lambda row, start=start: f"{self.name}, row {start + row} (counting from 0)",  # type: ignore[misc]
                )
            self._keep(cleaned)
            done.rows, done.bad_rows = done.rows + len(block), done.bad_rows + bad
        return done

    def _delimited(self, job: Job, sampled: Sequence[Sequence[str]]) -> _Done:
        """The three attempts of `read`, each a block at a time."""
        for dtypes in (job.dtypes(sampled), dict.fromkeys(job.found, pl.String())):
            done = self._by_polars(job, {**dtypes, **dict.fromkeys(self.strings, pl.String())})
            if done is not None:
                return done
            self.sink.take_back()
            self.types, self.kept = {}, 0
        return self._row_by_row(job)

    def _by_polars(self, job: Job, dtypes: Mapping[str, pl.DataType]) -> _Done | None:
        done = _Done(job.layout.format)
        try:
            for block in _blocks(job.scan(dtypes), self.rows, self.name, project=False):
                with polars_errors(self.name):
                    cleaned, bad = self._cleaned(block, job)
                if bad:
                    return None
                self._keep(cleaned)
                done.rows += len(block)
        except DataError:
            return None  # the next attempt says better what is wrong
        return done if done.rows else None

    def _row_by_row(self, job: Job) -> _Done:
        done = _Done(job.layout.format)
        frames: list[pl.DataFrame] = []
        lines: list[int] = []

        def flush() -> None:
            if frames:
                cleaned, bad = self._cleaned(pl.concat(frames), job, lines)
                self._keep(cleaned)
                done.bad_rows += bad
            frames.clear()
            lines.clear()

        for chunk in job.chunks(min(self.rows, 1 << 17)):
            if len(lines) + len(chunk.lines) > self.rows:
                flush()
            frame = pl.DataFrame(chunk.values, schema=dict.fromkeys(job.found, pl.String))
            frames.append(frame)
            lines.extend(chunk.lines)
            done.rows += len(frame) + chunk.bad
            done.bad_rows += chunk.bad
            if chunk.fault is not None and self.options.on_bad_row == "raise":
                flush()  # an earlier row may be bad as well
                raise chunk.fault
        flush()
        return done

    def _cleaned(
        self, frame: pl.DataFrame, job: Job, lines: Sequence[int] | None = None
    ) -> tuple[pl.DataFrame, int]:
        """Clean columns, and how many rows were left out; where `lines` are known, bad rows may be raised for."""
        columns, problems = [], []
        for names, ids in (
            ([name for name in frame.columns if name not in self.strings], self.options.ids),
            ([name for name in frame.columns if name in self.strings], "string"),
        ):
            part, found = clean(
                frame.select(names),
                self.roles,
                job.columns,
                where=self.name,
                text=True,
                ids="string" if ids == "string" else "auto",
            )
            columns += part.get_columns()
            problems += found
        cleaned = pl.DataFrame(columns).select(frame.columns)
        if lines is None:
            return cleaned, len(problems)
        mode = self.options.on_bad_row
        return settle(cleaned, problems, job.columns, mode, lambda row: f"{self.name}, line {lines[row]}")


def _blocks(
    scan: pl.LazyFrame,
    rows: int,
    where: str,
    expected: str = "data that can be parsed",
    *,
    project: bool = True,
) -> Iterator[pl.DataFrame]:
    """The rows of a scan, some at a time; what polars raises on the way is raised as a `DataError`.

    Unless it may `project`, columns that nobody wants are parsed as well: a text row with too many fields is noticed.
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
