"""The front of the readers: what is it, read it, make it `Interactions`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from talos.errors import ArgumentError, DataError, nearest
from talos.interactions import Interactions, Provenance, Vocabulary
from talos.readers._columns import Role
from talos.readers._database import is_database_url, read_database
from talos.readers._delimited import read_delimited, read_lightgcn
from talos.readers._folders import files_of, part_files, readable_files
from talos.readers._frames import from_memory, read_parquet
from talos.readers._json import looks_like_json, read_json
from talos.readers._table import Options, Table, polars_errors
from talos.readers._text import lines_are_ragged, open_text
from talos.readers._values import IdMode, OnBadRow

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse

__all__ = [
    "DEFAULT_MAX_BYTES",
    "FORMATS",
    "Parts",
    "Source",
    "existing",
    "is_parts",
    "load_table",
    "make_options",
    "make_roles",
    "read",
    "read_fit_parts",
    "read_parts",
]

DEFAULT_MAX_BYTES = 8 << 30
"""How large a compressed file may become by default: 8 GiB."""

FORMATS = ("amazon", "csv", "inter", "jsonl", "lightgcn", "movielens", "parquet", "text", "tsv")
"""The formats that can be named; `text` is any separator, `amazon` and `movielens` have no header."""

Source: TypeAlias = "str | os.PathLike[str] | pl.DataFrame | pd.DataFrame | scipy.sparse.sparray"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Data that came already split, over one vocabulary of users and one of items.

    `valid` is None where there is no such part.

    >>> one = Interactions.from_ids([1], [2])
    >>> Parts(train=one, valid=None, test=one).test
    Interactions(1 users × 1 items, 1 pairs)
    """

    train: Interactions
    valid: Interactions | None
    test: Interactions


def read(
    source: Source,
    *,
    user: str | None = None,
    item: str | None = None,
    timestamp: str | None = None,
    rating: str | None = None,
    title: str | None = None,
    format: str | None = None,  # noqa: A002
    query: str | None = None,
    table: str | None = None,
    on_bad_row: OnBadRow = "raise",
    ids: IdMode = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Interactions:
    """Read interactions from a file, a folder, a frame, a matrix or a database.

    Files may be csv, tsv or text with another separator, parquet, JSON lines, RecBole `.inter`, MovieLens
    `u.data` or `ratings.dat`, Amazon `ratings_X.csv` and `reviews_X.json.gz`, or LightGCN lines `u i1 i2 …`;
    any text may be gzipped. A folder with train and test files is read as the union of its parts, any other
    as one table in several files. A database is `sqlite:///FILE` or `postgresql://…`, with `?table=…` or
    `?query=…` at the end or as arguments.

    A pair that occurs more than once is kept once, with its latest timestamp, and counted in `provenance`.
    Ids are integers if a column holds nothing but integers as computers write them, and strings otherwise:
    `0005080789` stays a string. In a text file of more than 768 KB the first try is made from samples of the
    beginning, the middle and the end, so a lone id with leading zeros elsewhere would be taken for a number;
    `ids="string"` rules that out. Spaces around a value of a text file are not part of it.

    Args:
        source: a path, a database URL, a polars or pandas frame, or a scipy sparse matrix.
        user: name of the user column; guessed from the usual names if None. The columns of a file without
            header are called "1", "2", ….
        item: name of the item column, guessed likewise.
        timestamp: name of the time column, guessed likewise, "" to leave it out. Numbers are kept, dates
            become seconds since 1970.
        rating: name of the rating column, guessed likewise, "" to leave it out.
        title: name of a column with the item's title, guessed likewise, "" to leave it out.
        format: one of `FORMATS`, if the guess from name and content is wrong.
        query: SQL that gives the rows.
        table: the table to read, if the database has several.
        on_bad_row: "skip" leaves out and counts rows with too few or too many fields, or with an id,
            timestamp or rating that cannot be used, instead of raising.
        ids: "string" to keep ids strings even if all are integers.
        max_bytes: how large a compressed file may become.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.
        MissingExtraError: PostgreSQL without its driver.

    >>> data = read(pl.DataFrame({"user": ["ann", "bob", "ann"], "movie_id": [7, 7, 9]}))
    >>> data
    Interactions(2 users × 2 items, 3 pairs)
    >>> read(pl.DataFrame({"usr": ["ann"], "movie_id": [7]}), user="user")
    Traceback (most recent call last):
    talos.errors.DataError: polars frame: no column 'user'; expected the user column, ...(did you mean 'usr'?)
    """
    roles = make_roles(user, item, timestamp, rating, title)
    options = make_options(format, query, table, on_bad_row, ids, max_bytes)
    return _interactions(load_table(source, roles, options))


def read_parts(
    directory: str | os.PathLike[str],
    *,
    user: str | None = None,
    item: str | None = None,
    timestamp: str | None = None,
    rating: str | None = None,
    title: str | None = None,
    format: str | None = None,  # noqa: A002
    on_bad_row: OnBadRow = "raise",
    ids: IdMode = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Parts:
    r"""Read a folder with train, test and perhaps validation files, over shared vocabularies.

    The arguments are those of `read`. A file belongs to a part if its name is `train`, `valid`, `validation`,
    `val`, `dev` or `test` before the suffix, or has it between dots (`ml.train.inter`).

    Raises:
        DataError: there is no train or no test file, or one cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "train.csv").write_text("user,item\n1,7\n2,8\n")
    ...     _ = Path(folder, "test.csv").write_text("user,item\n1,9\n")
    ...     parts = read_parts(folder)
    >>> parts.train.num_items, len(parts.train), parts.valid, len(parts.test)
    (3, 2, None, 1)
    """
    roles = make_roles(user, item, timestamp, rating, title)
    options = make_options(format, None, None, on_bad_row, ids, max_bytes)
    folder = existing(directory)
    files = part_files(folder) if folder.is_dir() else None
    if files is None:
        raise DataError("no train and test files", where=str(directory), expected="a folder with both")
    parts = _parts_of(files, roles, options)
    return Parts(train=parts["train"], valid=parts.get("valid"), test=parts["test"])


def read_fit_parts(
    directory: str | os.PathLike[str], **columns: Any
) -> tuple[Interactions, Interactions | None] | None:
    r"""Read the train file of a folder and, if there is one, its validation file, and nothing else.

    A test file is not opened and need not be there. None if the path is no folder with a train file and one
    of the two others. The options are those of `read_parts`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "train.csv").write_text("user,item\n1,7\n2,8\n")
    ...     _ = Path(folder, "valid.csv").write_text("user,item\n1,8\n")
    ...     train, valid = read_fit_parts(folder)
    >>> len(train), len(valid)
    (2, 1)
    """
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        return None
    files = part_files(folder, required=("train",))
    if files is None or len(files) < 2:
        return None
    given = {name: columns.pop(name, None) for name in ("user", "item", "timestamp", "rating", "title")}
    defaults: dict[str, Any] = {
        "format": None,
        "on_bad_row": "raise",
        "ids": "auto",
        "max_bytes": DEFAULT_MAX_BYTES,
    }
    options = make_options(query=None, table=None, **{**defaults, **columns})
    files.pop("test", None)
    parts = _parts_of(files, make_roles(**given), options)
    return parts["train"], parts.get("valid")


def _parts_of(files: dict[str, Path], roles: Sequence[Role], options: Options) -> dict[str, Interactions]:
    """The interactions of each file, over vocabularies that they share."""
    tables = _part_tables(files, roles, options)
    users, items, titles = _shared(list(tables.values()))
    parts: dict[str, Interactions] = {}
    start = 0
    for part, one in tables.items():
        here = slice(start, start + len(one.frame))
        start = here.stop
        parts[part] = Interactions.from_codes(
            users[1][here],
            items[1][here],
            user_ids=users[0],
            item_ids=items[0],
            timestamps=_column(one.frame, "timestamp"),
            ratings=_column(one.frame, "rating"),
            item_titles=titles,
            provenance=_provenance(one),
        )
    return parts


def is_parts(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder that `read_parts` can read: one with train and test files.

    >>> is_parts("no/such/folder")
    False
    """
    folder = Path(path).expanduser()
    try:
        return folder.is_dir() and part_files(folder) is not None
    except (OSError, ValueError):
        return False


# ------------------------------------------------------------------ any source to a table


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
        tables = list(_part_tables(files, roles, options).values())
        others = [other.name for other in readable_files(path) if other not in files.values()]
        notes = [f"union of {', '.join(file.name for file in files.values())}"]
        if others:
            notes.append(f"other files there were ignored: {', '.join(others)}")
        return _union(tables, str(source), tuple(notes))
    several, notes_on_files = files_of(path)
    return _union(_load_files(several, roles, options), str(source), notes_on_files)


def _load_file(path: Path, name: str, roles: Sequence[Role], options: Options) -> Table:
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
        if not magic:
            raise DataError("is empty", where=name, expected="one interaction a line")
        is_parquet = magic == b"PAR1" or any(
            suffix.lower() in (".parquet", ".pq") for suffix in path.suffixes
        )
        if options.format == "parquet" or (options.format is None and is_parquet):
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
                raise DataError(
                    f"{role} ids are strings in one file and integers in another",
                    where=", ".join(map(str, files[:3])),
                    expected="ids of one type",
                    hint="ids='string' makes them all strings",
                )
            # Read anew and not cast, so that every id keeps its spelling.
            return _load_files(files, roles, replace(options, ids="string"))
    return tables


def _part_tables(files: dict[str, Path], roles: Sequence[Role], options: Options) -> dict[str, Table]:
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
    what = f"no usable row: all {table.rows:,} are bad" if table.bad_rows else "has no rows"
    raise DataError(what, where=table.source, expected="one interaction a row")


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


# ------------------------------------------------------------------ a table to interactions


def _interactions(table: Table) -> Interactions:
    frame = table.frame
    return Interactions.from_ids(
        frame["user"],
        frame["item"],
        timestamps=_column(frame, "timestamp"),
        ratings=_column(frame, "rating"),
        titles=frame["title"] if "title" in frame.columns else None,
        provenance=_provenance(table),
    )


def _shared(
    tables: Sequence[Table],
) -> tuple[tuple[Vocabulary, np.ndarray], tuple[Vocabulary, np.ndarray], pl.Series | None]:
    users = Vocabulary.encoding(pl.concat([table.frame["user"] for table in tables]))
    items = Vocabulary.encoding(pl.concat([table.frame["item"] for table in tables]))
    if not all("title" in table.frame.columns for table in tables):
        return users, items, None
    titles = pl.concat([table.frame["title"] for table in tables])
    row_of_item = np.zeros(len(items[0]), np.int64)
    row_of_item[items[1]] = np.arange(len(titles))
    return users, items, titles.gather(row_of_item)


def _column(frame: pl.DataFrame, name: str) -> np.ndarray | None:
    return frame[name].to_numpy() if name in frame.columns else None


def _provenance(table: Table) -> Provenance:
    return Provenance(
        source=table.source, format=table.format, rows=table.rows, bad_rows=table.bad_rows, notes=table.notes
    )


def make_roles(
    user: str | None, item: str | None, timestamp: str | None, rating: str | None, title: str | None
) -> list[Role]:
    """What a reader of interactions looks for."""
    return [
        Role(name="user", kind="id", given=user or None, required=True),
        Role(name="item", kind="id", given=item or None, required=True),
        Role(name="timestamp", kind="time", given=timestamp),
        Role(name="rating", kind="number", given=rating),
        Role(name="title", kind="text", given=title),
    ]


def make_options(
    format: str | None,  # noqa: A002
    query: str | None,
    table: str | None,
    on_bad_row: OnBadRow,
    ids: IdMode,
    max_bytes: int,
) -> Options:
    """Options, checked."""
    aliases = {"json": "jsonl", "ndjson": "jsonl"}
    format = aliases.get(format, format) if format else None  # noqa: A001
    choices = {
        "format": (format, FORMATS),
        "on_bad_row": (on_bad_row, ("raise", "skip")),
        "ids": (ids, ("auto", "string")),
    }
    for name, (value, known) in choices.items():
        if value is not None and value not in known:
            raise ArgumentError(
                repr(value), where=name, expected=" or ".join(known), hint=nearest(str(value), known)
            )
    if max_bytes < 1:
        raise ArgumentError(str(max_bytes), where="max_bytes", expected="a positive number")
    return Options(
        format=format, query=query, table=table, on_bad_row=on_bad_row, ids=ids, max_bytes=max_bytes
    )
