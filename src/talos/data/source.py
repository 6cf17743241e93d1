"""`Source`: what a PATH is, decided once, and its rows in blocks."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from talos.data import catalogue
from talos.data.databases import is_database_url
from talos.data.interactions import Provenance
from talos.data.options import SourceOptions
from talos.data.read.base import Reader
from talos.data.read.clean import BadBlockError, Block, polars_errors
from talos.data.read.delimited import Delimited, LightGCN
from talos.data.read.frames import DatabaseRows, Frame, Parquet
from talos.data.read.json_lines import JSONLines
from talos.data.read.text import File
from talos.errors import ArgumentError, DataError, nearest
from talos.files import expanded
from talos.progress import Progress

__all__ = ["FORMATS", "READERS", "Pass", "Source", "existing_path", "read_through"]

READERS: tuple[type[Reader], ...] = (Parquet, JSONLines, LightGCN, Delimited)
"""The readers of files; the first that recognises a file reads it."""

FORMATS = tuple(sorted(name for reader in READERS for name in reader.formats))
"""The values of `format=`; `text` has any separator, `amazon` and `movielens` have no header."""

ROWS_AT_ONCE = 1 << 20
_PARTS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
_SUFFIXES = {
    *(".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter"),
    *(".parquet", ".pq", ".json", ".jsonl", ".ndjson"),
}
# The names of the file of interactions in folders of published datasets, which hold other files too.
_INTERACTIONS = ("interactions", "ratings", "events", "clicks", "u.data")
_NEVER = {"split.json", "readme.txt", "dataset_info.json", "metadata.json", "planted.json"}
SHARDS = "shards.json"

T = TypeVar("T")
Kind = Literal["table", "parts", "shards", "dataset", "database", "memory"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """What a PATH, a URL or an object in memory is.

    Attributes:
        kind: `table` for a file or the files of one table, `parts` for a folder with a train file and others, …
        name: what messages call it.
        parts: the files of each part; of a table the one part "all".
        notes: remarks for people.
        data: the object in memory.

    >>> Source.of("movielens-100k").kind
    'dataset'
    """

    kind: Kind
    name: str
    parts: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    data: Any = None
    copies: dict[Path, Path] = field(default_factory=dict)  # of pipes

    @classmethod
    def of(cls, source: object) -> Source:
        """Decide what a source is; an error if it is a path that does not exist, or a folder that cannot be read."""
        if not isinstance(source, str | os.PathLike):
            return cls(kind="memory", name=type(source).__name__, parts={"all": ()}, data=source)
        name = os.fspath(source)
        if is_database_url(name):
            return cls(kind="database", name=name, parts={"all": ()}, data=name)
        if not name:
            expected = "a file, a folder, a dataset's name or a database URL"
            raise DataError("is empty", where="PATH", expected=expected)
        if name in (info.name for info in catalogue.available()) and not expanded(name).exists():
            return cls(kind="dataset", name=name, data=catalogue.info(name))
        path = existing_path(name)
        if not path.is_dir():
            return cls(kind="table", name=name, parts={"all": (path,)})
        if (path / SHARDS).is_file():
            return cls(kind="shards", name=name)
        parts = _part_files(path)
        if "train" in parts and len(parts) > 1:
            several = {part: _table(one)[0] if one.is_dir() else [one] for part, one in parts.items()}
            used = [one.name for one in parts.values()]
            others = [other.name for other in _readable(path) if other.name not in used]
            notes: tuple[str, ...] = (f"union of {', '.join(used)}",)
            if others:
                notes += (f"other files there were ignored: {', '.join(others)}",)
            return cls(kind="parts", name=name, parts=several, notes=notes, data=parts)
        files, notes = _table(path)
        return cls(kind="table", name=name, parts={"all": files}, notes=notes)

    def only(self, *parts: str) -> Source:
        """This source with those of its parts that are named."""
        return replace(self, parts={part: files for part, files in self.parts.items() if part in parts})

    def file(self, path: Path, max_bytes: int) -> File:
        """A file that can be read more than once: a pipe is copied to a temporary file, a device is refused."""
        name = self.name if len(self.parts) == 1 and self.parts.get("all") == (path,) else str(path)
        with _file_errors(name):
            kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            return File(path, name, max_bytes)
        if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
            raise DataError("is a device", where=name, expected="a file, a folder or a pipe")
        if path not in self.copies:
            folder = Path(tempfile.mkdtemp(prefix="talos-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            with _file_errors(name), path.open("rb") as pipe, (folder / path.name).open("wb") as copy:
                while block := pipe.read(1 << 20):
                    copy.write(block)
                    if copy.tell() > max_bytes:
                        what = f"more than {max_bytes:,} bytes"
                        raise DataError(what, where=name, expected="less through a pipe")
            self.copies[path] = folder / path.name
        return File(self.copies[path], name, max_bytes)


@dataclass
class Pass:
    """One pass over the rows of a source; afterwards `provenance` says what was read.

    Attributes:
        source: what is read.
        options: how.
        wanted: role → name of the columns to look for.
        rows: the largest block.
        careful_from: the number of the first file whose rows are looked at one by one.
        progress: called with the number of rows read and about how many there are.
    """

    source: Source
    options: SourceOptions
    wanted: Mapping[str, str | None]
    rows: int = ROWS_AT_ONCE
    careful_from: int = sys.maxsize
    progress: Progress | None = None
    number: int = 0  # of the file that is being read
    expected: int = 0  # rows, estimated from the first file
    text: bool = False  # whether ids of the current file may be integers written as text
    read: dict[str, list[Provenance]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, Block]]:
        done = 0
        for number, (part, reader) in enumerate(self._readers()):
            self.number, rows, kept = number, 0, 0
            self.text = reader.text
            careful = self.number >= self.careful_from
            with _file_errors(reader.file.name):
                for block in reader.careful(self.rows) if careful else _ahead(reader.quick(self.rows)):
                    yield part, block
                    rows, kept, done = rows + block.rows, kept + len(block.frame), done + block.rows
                    if self.progress is not None:
                        self.progress(min(done, self.expected), self.expected)
            if not kept:
                what = f"no usable row: all {rows:,} are bad" if rows else "has no rows"
                raise DataError(what, where=reader.file.name, expected="one interaction per row")
            one = Provenance(
                source=reader.file.name,
                format=reader.format,
                rows=rows,
                bad_rows=rows - kept,
                guesses=reader.guesses,
                unused=reader.unused,
            )
            self.read.setdefault(part, []).append(one)
        if self.progress is not None:
            self.progress(done, done)

    def _readers(self) -> Iterator[tuple[str, Reader]]:
        if self.source.kind in ("memory", "database"):
            kind = Frame if self.source.kind == "memory" else DatabaseRows
            reader: Reader = kind(self.source.data, self.options, self.wanted)
            self.expected = reader.rows
            yield "all", reader
            return
        options, sizes = self.options, 0
        for files in self.source.parts.values():
            sizes += sum(path.stat().st_size for path in files)
        for part, files in self.source.parts.items():
            for path in files:
                file = self.source.file(path, options.max_bytes)
                with _file_errors(file.name):
                    reader = _reader_of(file, options.format)(file, options, self.wanted)
                self.expected = self.expected or round(
                    reader.rows * max(1.0, sizes / file.path.stat().st_size)
                )
                if reader.format == "lightgcn":  # files that follow may have lines too short to be recognised
                    options = replace(options, format="lightgcn")
                yield part, reader

    def provenance(self, part: str | None = None) -> Provenance:
        """Where the rows of a part, or of all parts, came from."""
        parts = self.source.data if self.source.kind == "parts" else {}
        if part is not None:
            read = self.read[part]
            return read[0] if len(read) == 1 else union_of(read, str(parts.get(part, self.source.name)))
        read = [one for several in self.read.values() for one in several]
        return (
            read[0]
            if len(read) == 1 and not self.source.notes
            else union_of(read, self.source.name, self.source.notes)
        )


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same blocks, each read on a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, blocks, None)
            yield block


def read_through(
    source: Source,
    options: SourceOptions,
    into: Callable[[Pass], T],
    *,
    wanted: Mapping[str, str | None] | None = None,
    rows: int = ROWS_AT_ONCE,
    progress: Progress | None = None,
) -> T:
    """What `into` makes of the blocks of a source.

    A block that is wrong ends the pass. Everything is then read once more, from the file with that block on by the
    careful pass, which knows the line of each row: `into` starts again from nothing.
    """
    careful_from = sys.maxsize
    while True:
        columns = asdict(options.columns) if wanted is None else wanted
        one = Pass(source, options, columns, rows, careful_from, progress)
        try:
            return into(one)
        except BadBlockError:
            if careful_from <= one.number:
                raise
            careful_from = one.number


def union_of(files: Sequence[Provenance], source: str = "", notes: tuple[str, ...] = ()) -> Provenance:
    """The provenance of files that are read as one table."""
    return Provenance(
        source=source,
        format=" + ".join(dict.fromkeys(one.format for one in files)),
        rows=sum(one.rows for one in files),
        bad_rows=sum(one.bad_rows for one in files),
        notes=notes + tuple(note for one in files for note in one.notes),
        guesses="; ".join(dict.fromkeys(one.guesses for one in files if one.guesses)),
        unused=files[0].unused,
    )


def existing_path(name: str | os.PathLike[str]) -> Path:
    """The path of a file or folder that exists, else a `DataError` with the nearest name."""
    path = expanded(name)
    try:
        if path.exists():
            return path
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot be read ({reason})", where=str(name), expected="a file or a folder"
        ) from error
    known = [info.name for info in catalogue.available()]
    hint = nearest(path.name, [*known, *beside])
    raise DataError(
        "no such file, folder or dataset",
        where=str(name),
        hint=hint if hint.startswith("did") else f"datasets: {', '.join(known)}",
        commands=[("talos data list", "the data sets that can be used by name")],
    )


def _reader_of(file: File, format: str | None) -> type[Reader]:  # noqa: A002
    if not format:
        return next(reader for reader in READERS if reader.recognises(file))
    if format not in FORMATS:
        raise ArgumentError(
            repr(format), where="format", expected=" or ".join(FORMATS), hint=nearest(format, FORMATS)
        )
    return next(reader for reader in READERS if format in reader.formats)


@contextmanager
def _file_errors(name: str) -> Iterator[None]:
    """Turn the errors of the disk, of memory and of polars into a `DataError`."""
    try:
        with polars_errors(name):
            yield
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", where=name, expected="a readable file"
        ) from error
    except MemoryError as error:
        raise DataError("does not fit into memory", where=name, expected="a smaller file") from error


def _readable(folder: Path) -> list[Path]:
    """The files of a folder that have a suffix of data, sorted by name."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"cannot be listed ({error.strerror})", where=str(folder)) from error
    return [
        path
        for path in entries
        if path.is_file()
        and path.name[0] not in "._"
        and path.name.lower() not in _NEVER
        and _suffix(path) in _SUFFIXES
    ]


def _part_files(folder: Path) -> dict[str, Path]:
    """The train, valid and test files of a folder; a part may be a folder of files that are one table."""
    parts: dict[str, Path] = {}
    names = {name for several in _PARTS.values() for name in several}
    folders = [
        one
        for one in sorted(folder.iterdir())
        if one.name.lower() in names and one.is_dir() and _readable(one)
    ]
    for path in [*_readable(folder), *folders]:
        words = [path.name.lower()] if path.is_dir() else path.name.lower().split(".")[:-1]
        for part, several in _PARTS.items():
            if any(word in several for word in words):
                if part in parts:
                    what = f"both {parts[part].name} and {path.name} could be the {part} part"
                    raise DataError(what, where=str(folder), expected="one file per part")
                parts[part] = path
    return {part: parts[part] for part in _PARTS if part in parts}


def _table(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The files that make up the one table of a folder, and notes on what was left out."""
    files = _readable(folder)
    if not files:
        raise DataError(
            "nothing readable in this folder", where=str(folder), expected="csv, parquet, … files"
        )
    if len(files) == 1:
        return files, ()
    chosen = [path for path in files if _suffix(path) == ".inter"] or [
        path
        for path in files
        if path.name.lower() == "u.data" or path.name.lower().split(".")[0] in _INTERACTIONS
    ]
    if len(chosen) == 1:
        others = ", ".join(path.name for path in files if path != chosen[0])
        return chosen, (f"read {chosen[0].name}; other files there were ignored: {others}",)
    kinds = sorted({_suffix(path) for path in files})
    if len(kinds) > 1:
        raise DataError(
            f"files of several kinds ({', '.join(kinds)})",
            where=str(folder),
            expected="parts of one table, or train and test files, or the path of one file",
        )
    return files, (f"{len(files)} files of the folder read as one table",)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""
