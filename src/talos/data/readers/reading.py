"""The front of the readers: any source, or a folder of parts, as `Interactions`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from talos.data.interactions import Interactions, Provenance
from talos.data.readers.columns import Role, make_roles
from talos.data.readers.folders import part_files
from talos.data.readers.load import existing, load_parts, load_table
from talos.data.readers.options import DEFAULT_MAX_BYTES, Options
from talos.data.readers.table import Table
from talos.data.readers.values import IdMode, OnBadRow
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse

__all__ = [
    "Parts",
    "Source",
    "is_parts",
    "read",
    "read_fit_parts",
    "read_parts",
]

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
    options = Options(
        format=format, query=query, table=table, on_bad_row=on_bad_row, ids=ids, max_bytes=max_bytes
    )
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
    options = Options(format=format, on_bad_row=on_bad_row, ids=ids, max_bytes=max_bytes)
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
    options = Options(query=None, table=None, **columns)
    files.pop("test", None)
    parts = _parts_of(files, make_roles(**given), options)
    return parts["train"], parts.get("valid")


def _parts_of(files: dict[str, Path], roles: Sequence[Role], options: Options) -> dict[str, Interactions]:
    """The interactions of each file, over vocabularies that they share."""
    tables = load_parts(files, roles, options)
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
