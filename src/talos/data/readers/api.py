"""Read any source as `Interactions`, and a folder of train, valid and test files as a `Split`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from talos.data.interactions import Interactions, Provenance, titles_by_item
from talos.data.readers.cleaning import CleanTable
from talos.data.readers.dispatch import existing_path, load_parts, load_table
from talos.data.readers.folders import part_files
from talos.data.readers.options import (
    DEFAULT_MAX_BYTES,
    FileKeywords,
    IdMode,
    OnBadRow,
    ReadOptions,
    Source,
)
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError

__all__ = ["is_parts", "read", "read_fit_parts", "read_parts"]


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
    any text may be gzipped. A folder with train and test files is read as their union, any other folder as one
    table in several files. A database is `sqlite:///FILE` or `postgresql://…`, with `?table=…` or `?query=…` at the
    end or as arguments.

    A pair that occurs more than once is kept once, with its latest timestamp, and counted in `provenance`. Ids are
    integers if a column holds nothing but integers without leading zeros, and strings otherwise: `0005080789` stays a
    string. The types of a text file of more than 768 KB are guessed from its beginning, middle and end, so a single id
    with leading zeros elsewhere would be read as a number; `ids="string"` prevents that. Spaces around a value of a
    text file are dropped.

    Args:
        source: a path, a database URL, a polars or pandas frame, or a scipy sparse matrix.
        user: name of the user column; guessed from the usual names if None. The columns of a file without
            header are called "1", "2", ….
        item: name of the item column, guessed likewise.
        timestamp: name of the time column, guessed likewise, "" to leave it out. Numbers are kept, dates
            become seconds since 1970.
        rating: name of the rating column, guessed likewise, "" to leave it out.
        title: name of the column with the item's title, guessed likewise, "" to leave it out.
        format: one of `FORMATS`; guessed from the file's name and content if None.
        query: SQL that selects the rows, for a database.
        table: the table to read, for a database with several.
        on_bad_row: "skip" to leave out and count rows with too few or too many fields, or with an id,
            timestamp or rating that cannot be used, instead of raising an error.
        ids: "string" to keep ids strings even if all are integers.
        max_bytes: how large a compressed file may become.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.
        MissingExtraError: the driver of PostgreSQL is not installed.

    >>> data = read(pl.DataFrame({"user": ["ann", "bob", "ann"], "movie_id": [7, 7, 9]}))
    >>> data
    Interactions(2 users × 2 items, 3 pairs)
    >>> read(pl.DataFrame({"usr": ["ann"], "movie_id": [7]}), user="user")
    Traceback (most recent call last):
    talos.errors.DataError: polars frame: no column 'user'; expected the user column, ...(did you mean 'usr'?)
    """
    options = ReadOptions(
        user=user,
        item=item,
        timestamp=timestamp,
        rating=rating,
        title=title,
        format=format,
        query=query,
        table=table,
        on_bad_row=on_bad_row,
        ids=ids,
        max_bytes=max_bytes,
    )
    table_read = load_table(source, options)
    frame = table_read.frame
    return Interactions.from_ids(
        frame["user"],
        frame["item"],
        titles=frame["title"] if "title" in frame.columns else None,
        **_extras(table_read),
    )


def read_parts(directory: str | os.PathLike[str], **options: Unpack[FileKeywords]) -> Split:
    r"""Read a folder with train, test and perhaps validation files as a split over shared vocabularies.

    The options are those of `read` for files. A file belongs to a part if its name is `train`, `valid`,
    `validation`, `val`, `dev` or `test` before the suffix, or has it between dots (`ml.train.inter`).

    Raises:
        DataError: there is no train or no test file, or one cannot be read. That train and test have users in
            common is not checked here, but by `talos.data.splits.predefined`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "train.csv").write_text("user,item\n1,7\n2,8\n")
    ...     _ = Path(folder, "test.csv").write_text("user,item\n1,9\n")
    ...     read_parts(folder)
    Split(train 2, test 1; 2 users × 3 items)
    """
    folder = existing_path(directory)
    files = part_files(folder) if folder.is_dir() else None
    if files is None:
        raise DataError("no train and test files", where=str(directory), expected="a folder with both")
    parts = _read_part_files(files, ReadOptions(**options))
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how={"by": "predefined"})


def read_fit_parts(
    directory: str | os.PathLike[str], **options: Unpack[FileKeywords]
) -> tuple[Interactions, Interactions | None] | None:
    r"""Read the train file of a folder and, if there is one, its validation file, and nothing else.

    A test file is not opened and need not exist. Returns None if the path is not a folder with a train file and at
    least one of the two others. The options are those of `read_parts`.

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
    files.pop("test", None)
    parts = _read_part_files(files, ReadOptions(**options))
    return parts["train"], parts.get("valid")


def _read_part_files(files: Mapping[str, Path], options: ReadOptions) -> dict[str, Interactions]:
    """The interactions of each file, over shared vocabularies."""
    tables = load_parts(files, options)
    frames = [table.frame for table in tables.values()]
    user_ids, users = Vocabulary.encoding(pl.concat([frame["user"] for frame in frames]))
    item_ids, items = Vocabulary.encoding(pl.concat([frame["item"] for frame in frames]))
    titles = None
    if all("title" in frame.columns for frame in frames):
        titles = titles_by_item(items, len(item_ids), pl.concat([frame["title"] for frame in frames]))
    parts: dict[str, Interactions] = {}
    start = 0
    for part, table in tables.items():
        here = slice(start, start + len(table.frame))
        start = here.stop
        parts[part] = Interactions.from_codes(
            users[here],
            items[here],
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=titles,
            **_extras(table),
        )
    return parts


def _extras(table: CleanTable) -> dict[str, Any]:
    """Timestamps, ratings and provenance of a table, as arguments of `Interactions`."""
    frame = table.frame
    return {
        "timestamps": frame["timestamp"].to_numpy() if "timestamp" in frame.columns else None,
        "ratings": frame["rating"].to_numpy() if "rating" in frame.columns else None,
        "provenance": Provenance(
            source=table.source,
            format=table.format,
            rows=table.rows,
            bad_rows=table.bad_rows,
            notes=table.notes,
        ),
    }


def is_parts(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with train and test files, which `read_parts` can read.

    >>> is_parts("no/such/folder")
    False
    """
    folder = Path(path).expanduser()
    try:
        return folder.is_dir() and part_files(folder) is not None
    except (OSError, ValueError):
        return False
