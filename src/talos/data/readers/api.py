"""The public readers: sources as `Interactions`, folders of train and test files as a `Split`, recommendation lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import polars as pl

from talos.data.interactions import Interactions, titles_by_item, values_in
from talos.data.readers.dispatch import (
    existing_path,
    load_encoded,
    load_encoded_parts,
    load_parts,
    load_table,
)
from talos.data.readers.encoded import EncodedTables
from talos.data.readers.folders import part_files
from talos.data.readers.options import ListOptions, ReadKeywords, ReadOptions, Source, TableKeywords
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import expanded
from talos.progress import Progress

__all__ = ["is_parts", "read", "read_fit_parts", "read_lists", "read_parts"]


def read(
    source: Source, *, progress: Progress | None = None, **options: Unpack[ReadKeywords]
) -> Interactions:
    """Read interactions from a file, a folder, a frame, a matrix or a database: `talos.read`, but for named datasets.

    A pair that occurs more than once is kept once, with its latest timestamp, and counted in `provenance`. Ids are
    integers if a column holds nothing but integers without leading zeros, anywhere in the file, and strings otherwise:
    `0005080789` stays a string. Blanks around a value are dropped. A database URL may end in `?table=…`
    or `?query=…` instead of the options of these names.

    Args:
        source: a path, a database URL, a polars or pandas frame, or a scipy sparse matrix.
        progress: called with the number of rows read and of all rows, for files that are read in blocks.
        **options: the fields of `ReadOptions`.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.
        MissingExtraError: the driver of PostgreSQL is not installed.

    >>> data = read(pl.DataFrame({"user": ["ann", "bob", "ann"], "movie_id": [7, 7, 9]}))
    >>> data
    Interactions(2 users × 2 items, 3 pairs)
    >>> read(pl.DataFrame({"usr": ["ann"], "movie_id": [7]}), user="user")
    Traceback (most recent call last):
    talos.errors.DataError: polars frame: no column 'user'; expected the name of the user column (did ...
    """
    reading = ReadOptions(**options)
    encoded = load_encoded(source, reading, progress)
    if encoded is not None:
        return _interactions(encoded, "all")
    frame, provenance = load_table(source, reading)
    titles = frame["title"] if "title" in frame.columns else None
    return Interactions.from_ids(
        frame["user"], frame["item"], titles=titles, provenance=provenance, **values_in(frame)
    )


def _interactions(encoded: EncodedTables, part: str) -> Interactions:
    """One part of encoded tables, which is removed from them."""
    own = encoded.parts.pop(part)
    return Interactions.from_codes(
        own.users,
        own.items,
        user_ids=encoded.user_ids,
        item_ids=encoded.item_ids,
        provenance=own.provenance,
        in_place=True,
        timestamps=own.values.get("timestamps"),
        ratings=own.values.get("ratings"),
    )


def read_parts(
    directory: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[ReadKeywords],
) -> Split:
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
    parts = _read_part_files(files, ReadOptions(**options), progress)
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how={"by": "predefined"})


def read_fit_parts(
    directory: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[ReadKeywords],
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
    folder = expanded(directory)
    if not folder.is_dir():
        return None
    files = part_files(folder, required=("train",))
    if files is None or len(files) < 2:
        return None
    files.pop("test", None)
    parts = _read_part_files(files, ReadOptions(**options), progress)
    return parts["train"], parts.get("valid")


def _read_part_files(
    files: Mapping[str, Path], options: ReadOptions, progress: Progress | None
) -> dict[str, Interactions]:
    """The interactions of each file, over shared vocabularies."""
    encoded = load_encoded_parts(files, options, progress)
    if encoded is not None:
        return {part: _interactions(encoded, part) for part in files}
    tables = load_parts(files, options)
    frames = [table.frame for table in tables.values()]
    user_ids, users = Vocabulary.encoding(pl.concat([frame["user"] for frame in frames]))
    item_ids, items = Vocabulary.encoding(pl.concat([frame["item"] for frame in frames]))
    titles = None
    if all("title" in frame.columns for frame in frames):
        titles = titles_by_item(items, len(item_ids), pl.concat([frame["title"] for frame in frames]))
    parts: dict[str, Interactions] = {}
    start = 0
    for part, (frame, provenance) in tables.items():
        here = slice(start, start + len(frame))
        start = here.stop
        parts[part] = Interactions.from_codes(
            users[here],
            items[here],
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=titles,
            provenance=provenance,
            **values_in(frame),
        )
    return parts


def is_parts(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with train and test files, which `read_parts` can read.

    Raises:
        DataError: two files of the folder could be the same part, or the folder cannot be listed.

    >>> is_parts("no/such/folder")
    False
    """
    folder = expanded(path)
    try:
        if not folder.is_dir():
            return False
    except (OSError, ValueError):
        return False
    return part_files(folder) is not None


def read_lists(
    source: Source, *, rank: str | None = None, score: str | None = None, **options: Unpack[TableKeywords]
) -> pl.DataFrame:
    """Read recommendation lists: one row per item of a user's list, with its rank or its score.

    Sources and arguments are those of `read`, with columns for rank and score. Lists are ordered by rank if there is
    one, else by descending score; equal values keep the order of the source. Ranks need not start at 1, and may have
    gaps. `rank=""` leaves the rank column out; the score column is not looked for if `rank` is given.

    Returns:
        user_id, item_id, rank: ranks 1, 2, … for each user, users in the order of the source.

    Raises:
        DataError: a column is missing, neither rank nor score is there, or an item is twice in a list.

    >>> lists = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "score": [0.1, 0.9, 0.5]})
    >>> read_lists(lists).rows()
    [(1, 8, 1), (1, 7, 2), (2, 7, 1)]
    """
    frame, provenance = load_table(source, ListOptions(rank=rank, score=score, **options))
    if "rank" not in frame.columns and "score" not in frame.columns:
        raise DataError(
            "neither ranks nor scores", where=provenance.source, expected="a column 'rank' or 'score'"
        )
    twice = frame.select(pl.struct("user", "item").is_duplicated().alias("twice"))["twice"]
    if twice.any():
        pair = frame.row(int(twice.arg_max() or 0), named=True)
        raise DataError(
            f"item {pair['item']!r} is more than once in the list of user {pair['user']!r}",
            where=provenance.source,
            expected="each item once",
        )
    by_rank = "rank" in frame.columns
    order = frame.with_row_index("_row").with_columns(pl.col("_row").min().over("user").alias("_first"))
    order = order.sort(
        "_first", "rank" if by_rank else "score", "_row", descending=[False, not by_rank, False]
    )
    return order.select(
        pl.col("user").alias("user_id"),
        pl.col("item").alias("item_id"),
        (pl.int_range(pl.len()).over("user") + 1).alias("rank"),
    )
