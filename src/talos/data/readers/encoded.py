"""The quick way to read large files: ids become codes block by block, and the text of the ids is never held.

It reads parquet and delimited text in which nothing is wrong. Ids are looked at once each instead of once a row.
Whatever is unusual — a missing id, blanks around one, another type in a later file, titles — is left to the readers
that look at every row, and that know what to say about it: then the result is None.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data import compiled
from talos.data.arrays import Codes, in_threads
from talos.data.interactions import Provenance
from talos.data.readers.cleaning import Cleaner, are_integers, polars_errors, union_of, unusual_ids
from talos.data.readers.delimited import DelimitedFile
from talos.data.readers.frames import scan_parquet
from talos.data.readers.options import ReadOptions
from talos.data.readers.text import TextFile
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.progress import Progress

__all__ = ["EncodedPart", "EncodedTables", "read_encoded"]

Inspect = Callable[[Path, str, ReadOptions], tuple[str, TextFile | None]]
_ROWS_AT_ONCE = 1 << 20


class _UnusualError(Exception):
    """Something that the other readers have to look at."""


@dataclass(frozen=True)
class EncodedPart:
    """The rows of one part: codes of users and items, and timestamps and ratings where there are any."""

    users: Codes
    items: Codes
    values: dict[str, NDArray[Any]]
    provenance: Provenance


@dataclass(frozen=True)
class EncodedTables:
    """Parts over shared vocabularies."""

    user_ids: Vocabulary
    item_ids: Vocabulary
    parts: dict[str, EncodedPart]


def read_encoded(
    parts: Mapping[str, Sequence[tuple[str, Path]]],
    options: ReadOptions,
    inspect: Inspect,
    progress: Progress | None = None,
) -> EncodedTables | None:
    """Read the files of each part, named as messages call them; None if they have to be read the careful way.

    Args:
        parts: name and path of every file of each part.
        options: how to read them.
        inspect: finds out what a file is: "parquet" and no text, or a text and its kind.
        progress: called with the number of rows read and the number of all rows, which is estimated for text.
    """
    if not compiled.available() or options.ids != "auto" or options.string_roles:
        return None
    reading = _Reading(options, inspect, progress or (lambda done, total: None))
    try:
        with polars_errors("the files"):
            return reading.read(parts)
    except (_UnusualError, DataError, OSError):
        return None


@dataclass(frozen=True)
class _Reading:
    options: ReadOptions
    inspect: Inspect
    show: Progress

    def read(self, parts: Mapping[str, Sequence[tuple[str, Path]]]) -> EncodedTables:
        sources = {part: [self._source(name, path) for name, path in files] for part, files in parts.items()}
        total, done = sum(source.rows for several in sources.values() for source in several), 0
        users, items = _IdColumn(total), _IdColumn(total)
        ends, columns, provenances = {}, {}, {}
        with ThreadPoolExecutor(2) as pool:
            for part, several in sources.items():
                columns[part], found = _ValueColumns(sum(source.rows for source in several)), []
                for source in several:
                    rows = 0
                    for block in source.blocks():
                        # two tables on two threads: the look-ups wait for memory most of the time
                        tasks = [
                            pool.submit(column.add, block[role], source.cleaner.text)
                            for column, role in ((users, "user"), (items, "item"))
                        ]
                        columns[part].add(_cleaned(source.cleaner, block.drop("user", "item")))
                        for task in tasks:
                            task.result()
                        rows, done = rows + len(block), done + len(block)
                        self.show(min(done, total), total)
                    if not rows:
                        raise _UnusualError("no rows")
                    found.append(source.cleaner.provenance(source.format, rows))
                provenances[part] = found
                ends[part] = len(users)
        self.show(total, total)
        user_ids, user_codes = users.finish()
        item_ids, item_codes = items.finish()
        if len({column.names for column in columns.values()}) > 1:
            raise _UnusualError("parts with different columns")
        tables, start = {}, 0
        for part, end in ends.items():
            here, start = slice(start, end), end
            read = provenances[part]
            one = read[0] if len(read) == 1 else union_of(read)
            tables[part] = EncodedPart(user_codes[here], item_codes[here], columns[part].finish(), one)
        return EncodedTables(user_ids, item_ids, tables)

    def _source(self, name: str, path: Path) -> _Source:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _UnusualError("not a file")
        kind, text = self.inspect(path, name, self.options)
        if text is None:
            scan, columns = scan_parquet(path, name, self.options)
            schema = scan.collect_schema()
            rows = int(scan.select(pl.len()).collect().item())
            ids = [schema[columns[role]] for role in ("user", "item")]
            if "title" in columns or rows * 8 * len(columns) > self.options.max_bytes:
                raise _UnusualError("titles, or too large")
            if not all(dtype == pl.String or dtype in _INTEGERS for dtype in ids):
                raise _UnusualError("ids of another type")
            wanted = scan.select([pl.col(column).alias(role) for role, column in columns.items()])
            cleaner = Cleaner(name, columns, self.options, text=False)
            return _Source(name, "parquet", wanted, cleaner, rows, project=True)
        if kind != "delimited" or text.data is not None:
            raise _UnusualError("a text of another kind")
        file = DelimitedFile.inspect(text, self.options)
        if "title" in file.found:
            raise _UnusualError("titles")
        dtypes = next(file.attempts(), None)
        if dtypes is None:
            raise _UnusualError("quotes")
        lines = sum(sample.count("\n") for sample in text.samples)
        letters = sum(len(sample) for sample in text.samples)
        about = round(text.size * lines / max(letters, 1))
        return _Source(
            name, file.layout.format, file.scan(dtypes), file.cleaner.again(), about, project=False
        )


_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


@dataclass(frozen=True)
class _Source:
    """One file, ready to be read in blocks."""

    name: str
    format: str
    scan: pl.LazyFrame  # columns are called by role
    cleaner: Cleaner
    rows: int
    project: bool  # False: parse all columns of a text, so that a row with too many fields is noticed

    def blocks(self) -> Iterator[pl.DataFrame]:
        flags = pl.QueryOptFlags(projection_pushdown=self.project)
        yield from self.scan.collect_batches(
            chunk_size=_ROWS_AT_ONCE, maintain_order=True, optimizations=flags
        )


def _cleaned(cleaner: Cleaner, block: pl.DataFrame) -> pl.DataFrame:
    if not block.width:
        return block
    found = cleaner.clean(block)
    if found is None:
        raise _UnusualError("a bad value")
    return found


class _Growing:
    """An array that is filled block by block; it is made for as many values as are expected, and grows if need be."""

    def __init__(self, expected: int, dtype: Any) -> None:
        self._array = np.empty(max(expected, 1), dtype)
        self.length = 0

    def room(self, count: int) -> NDArray[Any]:
        """The place for the next values."""
        start, self.length = self.length, self.length + count
        if self.length > len(self._array):
            larger = np.empty(max(self.length, len(self._array) * 9 // 8), self._array.dtype)
            larger[:start] = self._array[:start]
            self._array = larger
        return self._array[start : self.length]

    @property
    def values(self) -> NDArray[Any]:
        """What was filled in so far."""
        return self._array[: self.length]


class _IdColumn:
    """The ids of users or items as they come, as codes or as small integers, and in the end as a vocabulary.

    Integers are kept as they are, in 32 bits, until their range is known: then a table of that range takes the place of
    a hash table.
    """

    def __init__(self, expected: int) -> None:
        self._codes = _Growing(expected, np.int32)
        self._fresh: list[pl.Series] = []
        self._encoder: compiled.IdEncoder | None = None
        self._dtype: pl.DataType | None = None
        self._text = False

    def __len__(self) -> int:
        return self._codes.length

    def add(self, ids: pl.Series, text: bool) -> None:
        """Take the next block."""
        if ids.dtype != pl.String:
            ids = ids.cast(pl.Int64)
        if self._dtype is None:
            self._dtype = ids.dtype
        if ids.dtype != self._dtype or ids.null_count():
            raise _UnusualError("another type, or a missing id")
        self._text |= text
        if len(ids) == 0:
            return
        if self._encoder is None:
            bounds = (ids.min(), ids.max()) if ids.dtype == pl.Int64 else (-(2**63), 2**63)
            if min(bounds) >= -(2**31) and max(bounds) < 2**31:  # type: ignore[type-var,operator]  # not empty
                self._codes.room(len(ids))[:] = ids.to_numpy()
                return
            self._encode_integers()
        self._encode(ids, self._codes.room(len(ids)))

    def _encode(self, ids: pl.Series, out: Codes) -> None:
        assert self._encoder is not None
        found = self._encoder.encode(ids, out)
        if found is None:
            raise _UnusualError("a missing id")
        if len(found[1]):
            new = ids.gather(found[1])
            if new.dtype == pl.String and unusual_ids(new):
                raise _UnusualError("an unusual id")
            self._fresh.append(new)

    def _encode_integers(self) -> None:
        """Codes in place of the integers so far."""
        self._encoder = compiled.IdEncoder()
        values = self._codes.values
        for start in range(0, len(values), _ROWS_AT_ONCE):
            some = values[start : start + _ROWS_AT_ONCE]
            self._encode(pl.Series(some.astype(np.int64)), some)

    def finish(self) -> tuple[Vocabulary, Codes]:
        """The vocabulary, ascending, and the code of each row."""
        codes = self._codes.values
        if self._encoder is None:
            low = int(codes.min())
            width = int(codes.max()) - low + 1
            if width <= max(4 * len(codes), 1 << 16):
                return self._by_table(codes, low, width)
            self._encode_integers()
        distinct = pl.concat(self._fresh)
        if distinct.dtype == pl.String and self._text and are_integers(distinct):
            raise _UnusualError("integers that were read as strings")
        # sorting and looking up the codes again takes a fifth of the time of finding the order
        ascending = distinct.sort()
        assert self._encoder is not None
        found = self._encoder.encode(ascending)
        assert found is not None
        position = np.empty(len(ascending), np.int32)
        position[found[0]] = np.arange(len(ascending), dtype=np.int32)
        self._encoder, self._fresh = None, []
        compiled.remap_(codes, position)
        return Vocabulary(ascending.rename("")), codes

    def _by_table(self, codes: Codes, low: int, width: int) -> tuple[Vocabulary, Codes]:
        """From integers within a narrow range to codes, by a table of that range."""
        present = np.zeros(width, bool)

        def mark(start: int) -> None:
            present[codes[start : start + _ROWS_AT_ONCE].astype(np.int64) - low] = True

        in_threads(mark, range(0, len(codes), _ROWS_AT_ONCE))
        position = np.cumsum(present, dtype=np.int32)
        position -= 1
        compiled.remap_(codes, position, low)
        return Vocabulary(pl.Series(np.flatnonzero(present).astype(np.int64) + low)), codes


class _ValueColumns:
    """Timestamps and ratings, block after block."""

    def __init__(self, expected: int) -> None:
        self.names: tuple[str, ...] | None = None
        self._expected = expected
        self._columns: dict[str, _Growing] = {}
        self._dtypes: dict[str, pl.DataType] = {}

    def add(self, block: pl.DataFrame) -> None:
        """Take the next block."""
        names = tuple(block.columns)
        if self.names is None:
            self.names, self._dtypes = names, dict(block.schema)
            for name in names:
                self._columns[name] = _Growing(self._expected, block[name].to_numpy().dtype)
        if names != self.names or dict(block.schema) != self._dtypes:
            raise _UnusualError("files with different columns, or values of different types")
        for name, column in self._columns.items():
            column.room(len(block))[:] = block[name].to_numpy()

    def finish(self) -> dict[str, NDArray[Any]]:
        """The columns as arguments of `Interactions`."""
        return {f"{name}s": column.values for name, column in self._columns.items()}
