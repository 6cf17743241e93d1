"""What a PATH is, decided once (`Source`); its rows in blocks (`Pass`); and the interactions they make.

Ids become codes as they come, and the text of repeated ids is never held.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from talos.checks import require
from talos.data import catalogue
from talos.data.arrays import Growing
from talos.data.databases import is_database_url
from talos.data.interactions import Interactions, Provenance, titles_by_item
from talos.data.options import SourceOptions
from talos.data.read.base import Reader
from talos.data.read.clean import BadBlockError, Block, clean_ids, polars_errors
from talos.data.read.database import Database
from talos.data.read.delimited import Delimited, LightGCN
from talos.data.read.frames import Frame, Parquet
from talos.data.read.json_lines import JSONLines
from talos.data.read.text import File
from talos.data.vocabulary import IdColumn
from talos.errors import DataError, nearest
from talos.files import expanded
from talos.progress import Progress

__all__ = [
    "FORMATS",
    "READERS",
    "Pass",
    "Source",
    "encoded",
    "existing_path",
    "id_columns",
    "read_parts",
    "read_table",
    "read_through",
]

# The readers of files; the first that recognises a file reads it.
READERS: tuple[type[Reader], ...] = (Parquet, JSONLines, LightGCN, Delimited)

# The values of `format=`; `text` has any separator, `amazon` and `movielens` have no header.
FORMATS = tuple(sorted(name for reader in READERS for name in reader.formats))

SHARDS = "shards.json"
ROWS_AT_ONCE = 1 << 20
# The words in the names of files that say which part of a split they are.
_PARTS: Mapping[str, set[str]] = {
    "train": {"train", "training"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test", "testing"},
}
_SUFFIXES = {
    *(".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter"),
    *(".parquet", ".pq", ".json", ".jsonl", ".ndjson"),
}
# The names of the file of interactions in folders of published datasets, which hold other files too.
_INTERACTIONS = {"interactions", "ratings", "events", "clicks", "u.data"}
_NEVER = {"split.json", "readme.txt", "dataset_info.json", "metadata.json", "planted.json"}

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """What a PATH, a URL or an object in memory is.

    Attributes:
        kind: `file`, `table` for a folder whose files are one table, `parts` for one with a train file and others, …
        name: what messages call it.
        parts: the files of each part; of a file or table the one part "all".
        notes: remarks for people.
        data: the object in memory, or what the catalogue says about a dataset.

    >>> Source.of("movielens-100k").kind
    'dataset'
    """

    kind: Literal["file", "table", "parts", "shards", "dataset", "database", "memory"]
    name: str
    parts: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    data: Any = None

    @classmethod
    def of(cls, source: object) -> Source:
        """Decide what a source is; an error if it is a path that does not exist, or a folder that cannot be read."""
        if isinstance(source, Source):
            return source
        if not isinstance(source, str | os.PathLike):
            return cls(kind="memory", name=type(source).__name__, data=source)
        name = os.fspath(source)
        if is_database_url(name):
            return cls(kind="database", name=name)
        if name in (info.name for info in catalogue.available()) and not expanded(name).exists():
            return cls(kind="dataset", name=name, data=catalogue.info(name))
        path = existing_path(name)
        if path.is_file():
            return cls(kind="file", name=name, parts={"all": [path]})
        # a pipe can be read only once, and a device may have no end
        require(path.is_dir(), "is a pipe or a device", where=name, expected="a file", error=DataError)
        if (path / SHARDS).is_file():
            return cls(kind="shards", name=name)
        with polars_errors(name):
            return _folder(name, path)


def existing_path(name: str | os.PathLike[str]) -> Path:
    """The path of a file or folder that exists, else a `DataError` with the nearest name."""
    path = expanded(name)
    with polars_errors(str(name)):
        if os.fspath(name) and path.exists():  # an empty one would be the current folder
            return path
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    known = [info.name for info in catalogue.available()]
    hint = nearest(path.name, [*known, *beside])
    raise DataError(
        "no such file, folder or dataset",
        where=str(name),
        hint=hint if hint.startswith("did") else f"datasets: {', '.join(known)}",
        commands=[("talos data list", "the data sets that can be used by name")],
    )


def _folder(name: str, folder: Path) -> Source:
    """A folder of a train file and others, or one whose files are one table."""
    parts = _part_files(folder)
    if "train" in parts and len(parts) > 1:
        used = list(parts.values())
        tables = {part: _table(one) if one.is_dir() else [one] for part, one in parts.items()}
        together = f"union of {', '.join(one.name for one in used)}"
    else:
        used = _table(folder)
        tables = {"all": used}
        together = f"{len(used)} files of the folder read as one table"
    others = ", ".join(one.name for one in _readable(folder) if one not in used)
    notes = [together] if len(used) > 1 else []
    if others:
        notes.append(f"other files there were ignored: {others}")
    return Source(kind="parts" if "train" in tables else "table", name=name, parts=tables, notes=tuple(notes))


def _readable(folder: Path) -> list[Path]:
    """The files of a folder that have a suffix of data, sorted by name."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and path.name[0] not in "._"
        and path.name.lower() not in _NEVER
        and _suffix(path) in _SUFFIXES
    ]


def _part_files(folder: Path) -> dict[str, Path]:
    """The train, valid and test files of a folder; a part may be a folder of files that are one table."""
    files, parts = _readable(folder), dict[str, Path]()
    folders = [one for one in sorted(folder.iterdir()) if one.is_dir()]
    for part, words in _PARTS.items():
        found = [
            *(one for one in files if words & {*one.name.lower().split(".")}),
            *(one for one in folders if one.name.lower() in words and _readable(one)),
        ]
        require(
            len(found) < 2,
            f"{' and '.join(one.name for one in found)} could each be the {part} part",
            where=str(folder),
            expected="one file per part",
            error=DataError,
        )
        if found:
            parts[part] = found[0]
    return parts


def _table(folder: Path) -> list[Path]:
    """The files that make up the one table of a folder."""
    files = _readable(folder)
    named = [one for one in files if _INTERACTIONS & {one.name.lower(), one.name.lower().split(".")[0]}]
    chosen = [one for one in files if _suffix(one) == ".inter"] or named or files
    check = partial(require, where=str(folder), error=DataError)
    check(bool(chosen), "nothing readable in this folder", expected="csv, parquet, … files")
    kinds = sorted({_suffix(one) for one in chosen})
    check(
        len(kinds) == 1,
        f"files of several kinds ({', '.join(kinds)})",
        expected="parts of one table, or train and test files, or the path of one file",
    )
    return chosen


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


# ------------------------------------------------------------------ rows in blocks


@dataclass
class Pass:
    """One pass over the rows of a source; afterwards `provenance` says what was read.

    Attributes:
        source: what is read.
        options: how.
        wanted: role → name of the columns to look for.
        rows: the largest block.
        progress: called with the number of rows read and about how many there are.
        careful_from: the number of the first file whose rows are looked at one by one.
    """

    source: Source
    options: SourceOptions
    wanted: Mapping[str, str | None]
    rows: int = ROWS_AT_ONCE
    progress: Progress | None = None
    careful_from: int = sys.maxsize
    number: int = 0  # of the file that is being read
    expected: int = 0  # rows, estimated from the first file
    text: bool = False  # whether ids of the current file may be integers written as text
    read: list[tuple[str, Provenance]] = field(default_factory=list)  # part and provenance of each file

    def __iter__(self) -> Iterator[tuple[str, Block]]:
        report = self.progress or (lambda done, expected: None)
        done = 0
        for number, (part, reader) in enumerate(self._readers()):
            self.number, self.text, rows, kept = number, reader.text, 0, 0
            self.expected = self.expected or reader.rows
            careful = self.number >= self.careful_from
            with polars_errors(reader.file.name):
                for block in reader.careful(self.rows) if careful else _ahead(reader.quick(self.rows)):
                    yield part, block
                    rows, kept, done = rows + block.rows, kept + len(block.frame), done + block.rows
                    report(min(done, self.expected), self.expected)
            require(
                kept > 0,
                f"no usable row: all {rows:,} are bad" if rows else "has no rows",
                where=reader.file.name,
                expected="one interaction per row",
                error=DataError,
            )
            self.read.append((part, replace(reader.provenance, rows=rows, bad_rows=rows - kept)))
        report(done, done)

    def _readers(self) -> Iterator[tuple[str, Reader]]:
        source, options = self.source, self.options
        known = options.format
        require(
            not known or known in FORMATS,
            repr(known),
            where="format",
            expected=" or ".join(FORMATS),
            hint=nearest(known or "", FORMATS),
        )
        if source.kind == "memory":
            yield "all", Frame(source.data, options, self.wanted)
        if source.kind == "database":
            yield "all", Database(source.name, options, self.wanted)
        size = sum(path.stat().st_size for files in source.parts.values() for path in files)
        for part, files in source.parts.items():
            for path in files:
                file = File(path, source.name if source.kind == "file" else str(path), options.max_bytes)
                with polars_errors(file.name):
                    found = (
                        one for one in READERS if known in one.formats or (not known and one.recognises(file))
                    )
                    reader = next(found)(file, options, self.wanted)
                self.expected = self.expected or round(reader.rows * size / path.stat().st_size)
                # later files may have lines too short to be recognised
                if reader.provenance.format == "lightgcn":
                    known = "lightgcn"
                yield part, reader

    def provenance(self, part: str | None = None) -> Provenance:
        """Where the rows of a part, or of all parts, came from."""
        read = [one for name, one in self.read if part in (None, name)]
        notes = self.source.notes if part is None else ()
        if len(read) == 1:
            return replace(read[0], notes=notes)
        return Provenance(
            source=self.source.name if part is None else str(self.source.parts[part][0].parent),
            format=" + ".join(dict.fromkeys(one.format for one in read)),
            rows=sum(one.rows for one in read),
            bad_rows=sum(one.bad_rows for one in read),
            notes=notes,
            guesses="; ".join(dict.fromkeys(one.guesses for one in read if one.guesses)),
            unused=read[0].unused,
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
    columns = asdict(options.columns) if wanted is None else wanted
    quick = Pass(source, options, columns, rows, progress)
    try:
        return into(quick)
    except BadBlockError:
        careful_from = quick.number
    return into(Pass(source, options, columns, rows, progress, careful_from))


# ------------------------------------------------------------------ interactions


def read_parts(
    source: Source, options: SourceOptions, progress: Progress | None = None, *, whole: bool = False
) -> Mapping[str, Interactions]:
    """Each part of a source, over shared vocabularies; or all rows as one part "all"."""
    return read_through(source, options, partial(encoded, whole=whole), progress=progress)


def read_table(
    source: Source, options: SourceOptions, wanted: Mapping[str, str | None]
) -> tuple[pl.DataFrame, Provenance]:
    """The wanted columns of a source, row by row as they are."""

    def collected(one: Pass) -> tuple[pl.DataFrame, Provenance]:
        columns = id_columns(one)
        frames = []
        for _, block in one:
            for role, column in columns.items():
                column.add(block.frame[role], text=one.text)
            frames.append(block.frame.drop("user", "item"))
        table = pl.concat(frames, how="diagonal_relaxed")
        for role, column in columns.items():
            vocabulary, codes = column.finish()
            table = table.with_columns(vocabulary.decode(codes).alias(role))
        return table, one.provenance()

    return read_through(source, options, collected, wanted=wanted)


def id_columns(one: Pass) -> dict[str, IdColumn]:
    """The columns of ids of a pass; ids that are bad or have blanks around them need the careful pass."""

    def check(ids: pl.Series) -> None:
        if clean_ids(ids, "ids").ne_missing(ids).any():
            raise BadBlockError

    return {
        role: IdColumn(role, as_strings=one.options.ids == "string", check=check) for role in ("user", "item")
    }


def encoded(one: Pass, *, whole: bool) -> dict[str, Interactions]:
    """The interactions of each part of a source, or of all parts together as "all"."""
    columns = id_columns(one)
    values: dict[str, dict[str, Growing]] = {}  # part → times and ratings
    ends: dict[str, int] = {}  # part → the row after its last one
    titles: list[pl.DataFrame] = []
    done = titled = 0
    with ThreadPoolExecutor(2) as pool:
        for read_from, block in one:
            part, frame = "all" if whole else read_from, block.frame
            # Two tables on two threads: the look-ups wait for memory most of the time.
            tasks = [
                pool.submit(column.add, frame[role], text=one.text, expected=one.expected)
                for role, column in columns.items()
            ]
            if "title" in frame.columns:
                shown = frame.select("item", "title").with_row_index("row", done)
                titles.append(shown.unique("item", keep="last").drop("item"))
                titled += len(frame)
            kept = values.setdefault(part, {})
            for column in frame.drop("user", "item", "title", strict=False):
                kept.setdefault(f"{column.name}s", Growing()).add(column.to_numpy(), one.expected)
            for task in tasks:
                task.result()
            done += len(frame)
            ends[part] = done
    # A column is dropped as soon as it is finished: its table of ids takes memory.
    user_ids, user_codes = columns.pop("user").finish()
    item_ids, item_codes = columns.pop("item").finish()
    item_titles = None
    if titled == done:
        last = pl.concat(titles).sort("row")
        item_titles = titles_by_item(item_codes[last["row"].to_numpy()], len(item_ids), last["title"])
    parts, start = {}, 0
    for part, end in ends.items():
        kept = values.pop(part)  # of which only the columns that all blocks have are used
        parts[part] = Interactions.from_codes(
            user_codes[start:end],
            item_codes[start:end],
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=item_titles,
            provenance=one.provenance(None if whole else part),
            in_place=True,
            **{name: found.values for name, found in kept.items() if len(found.values) == end - start},
        )
        start = end
    return parts
