"""From a PATH to interactions or a split: the one way in for the command line, studies and Python.

A PATH is a file, a folder with train/valid/test files, a folder of shards, a dataset's name or a database URL.
Nothing is printed: messages, such as a dataset's licence, go to `notify`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from talos.checks import require
from talos.data import datasets, splits
from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.options import Cleaning, SourceOptions, Splitting
from talos.data.shards import (
    DEFAULT_ROWS,
    read_fit_shards,
    read_shards,
    write_shards,
)
from talos.data.source import Source, read_parts, read_table
from talos.data.splits import Split
from talos.errors import ConfigError, DataError
from talos.progress import Progress

__all__ = [
    "SourceOptions",
    "open_fit_parts",
    "open_interactions",
    "open_split",
    "read",
    "read_lists",
    "write_shards_from",
]

Location: TypeAlias = str | os.PathLike[str]
Notify: TypeAlias = Callable[[str], None]


def read(source: Any, *, progress: Progress | None = None, **options: Any) -> Interactions:
    """Read interactions from a file, a folder, a named dataset, a frame, a matrix or a database.

    Files may be csv, tsv or text with another separator, parquet, JSON lines, RecBole `.inter`, MovieLens
    `u.data` or `ratings.dat`, Amazon `ratings_X.csv` and `reviews_X.json.gz`, or LightGCN lines `u i1 i2 …`; any
    text may be gzipped. A folder with train and test files is read as their union, any other as one table in
    several files. A name such as "movielens-100k", where no file has that name, is a dataset as published, from
    the cache or the network. A database is `sqlite:///FILE` or `postgresql://…`, which may end in `?table=…` or
    `?query=…`.

    A pair that occurs more than once is kept once, with its latest timestamp, and counted in `provenance`. Ids are
    integers if a column holds nothing but integers without leading zeros, anywhere in the file, and strings otherwise:
    `0005080789` stays a string. Blanks around a value are dropped.

    Args:
        source: a path, a dataset's name, a database URL, a polars or pandas frame, an arrow table, or a scipy sparse
            matrix.
        progress: called with the number of rows read and about how many there are; `talos.progress.counter` makes one.
        **options: how to read it, by the names of `talos.data.options.SourceOptions`: `user`, `item`, `timestamp`,
            `rating` and `title` name columns (found if None; "" leaves out one of the last three), `format`, `query`,
            `table`, `on_bad_row="skip"`, `ids="string"`, `max_bytes`.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.
        DownloadError: a dataset is not in the cache and none of its sources answered.
        MissingExtraError: PostgreSQL without its driver.

    >>> read(pl.DataFrame({"user": ["ann", "bob", "ann"], "movie_id": [7, 7, 9]}))
    Interactions(2 users × 2 items, 3 pairs)
    >>> read(pl.DataFrame({"usr": ["ann"], "movie_id": [7]}), user="user")
    Traceback (most recent call last):
    talos.errors.DataError: polars frame: no column 'user'; expected the name of the user column (did ...
    >>> read("movielens-10k")
    Traceback (most recent call last):
    talos.errors.DataError: movielens-10k: no such file, folder or dataset (did you mean 'movielens-100k'...)
    """
    return open_interactions(
        Source.of(source), SourceOptions.of(**{**options, "raw": True}), progress=progress
    )


def open_interactions(
    path: Location | Source,
    options: SourceOptions | None = None,
    *,
    notify: Notify | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Interactions:
    """All interactions of a PATH, cleaned but not split.

    A named dataset gets the paper's clean-up unless `raw=True`; a folder of parts or shards is read as their union.
    Options may be given as an object, by name, or both; names win.
    """
    source, options = Source.of(path), SourceOptions.of(options, **changes)
    if source.kind == "dataset":
        data = datasets.load(source.data, notify=notify)
    elif source.kind == "shards":
        data = reduce(Interactions.union, read_shards(source.name).parts.values())
    else:
        data = read_parts(source, options, progress, whole=True)["all"]
    _say_guesses(data, notify)
    clean = options.clean
    usual = source.data if source.kind == "dataset" and not clean.raw else Cleaning()
    min_rating = usual.min_rating if clean.min_rating is None else clean.min_rating
    k_core = usual.k_core if clean.k_core is None else clean.k_core
    applied = []
    if min_rating is not None and (source.kind != "dataset" or data.ratings is not None):
        data = splits.min_rating(data, min_rating)
        applied.append(f"ratings of {min_rating:g} and higher")
    if k_core is not None:
        data = splits.k_core(data, k_core)
        applied.append(f"{k_core}-core")
    notes = [f"clean-up: {', '.join(applied)}"] if applied else []
    if usual is source.data and (min_rating, k_core) == (usual.min_rating, usual.k_core):
        notes += usual.differences(data)
    return replace(data, provenance=replace(data.provenance, notes=(*data.provenance.notes, *notes)))


def open_split(
    path: Location | Source,
    options: SourceOptions | None = None,
    *,
    notify: Notify | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Split:
    r"""Train, validation and test of a PATH.

    A folder with train and test files, or one of shards, is taken as it was split; anything else is cleaned and
    split by the options.

    Args:
        path: a file, a folder, a dataset's name or a database URL.
        options: how to read, clean and split it.
        notify: called with one line of text for each message.
        progress: called with the number of rows read and about how many there are.
        **changes: options by name, such as `user="who"` or `by="time"`; see `SourceOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "clicks.csv")
    ...     _ = file.write_text("who,what\n" + "".join(f"ann,{item}\n" for item in range(10)))
    ...     open_split(file, user="who", item="what")
    Split(train 7, valid 1, test 2; 1 users × 10 items)
    """
    source, options = _to_split(path, options, changes, notify)
    if source.kind == "shards":
        return read_shards(source.name)
    if source.kind == "parts":
        require(
            "test" in source.parts,
            "has a train file and no test file",
            where=source.name,
            expected="a test set",
            error=DataError,
        )
        parts = read_parts(source, options, progress)
        _say_guesses(parts["train"], notify)
        return splits.predefined(parts["train"], parts.get("valid"), parts["test"])
    how, data = options.split, open_interactions(source, options, notify=notify, progress=progress)
    return splits.split(data, by=how.by, test=how.test, valid=how.valid, seed=how.split_seed)


def open_fit_parts(
    path: Location | Source,
    options: SourceOptions | None = None,
    *,
    notify: Notify | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> tuple[Interactions, Interactions | None]:
    """Train and validation of a PATH, for searches, which must not see the test part.

    A test file is not opened and need not exist; where the PATH is split here, the test part is dropped.
    """
    source, options = _to_split(path, options, changes, notify)
    if source.kind == "shards":
        return read_fit_shards(source.name)
    if source.kind == "parts":
        files = {part: files for part, files in source.parts.items() if part != "test"}
        parts = read_parts(replace(source, parts=files), options, progress)
        _say_guesses(parts["train"], notify)
        return parts["train"], parts.get("valid")
    made = open_split(source, options, notify=notify, progress=progress)
    return made.train, made.valid


def _to_split(
    path: Location | Source, options: SourceOptions | None, changes: Mapping[str, Any], notify: Notify | None
) -> tuple[Source, SourceOptions]:
    """What a PATH is and how to split it, with a warning if it is split already and options have no effect."""
    source, options = Source.of(path), SourceOptions.of(options, **changes)
    chosen = (options.split, options.clean) != (Splitting(), Cleaning())
    if notify is not None and chosen and source.kind in ("parts", "shards"):
        notify("this folder is already split: options for the clean-up and the split have no effect")
    return source, options


def read_lists(
    source: Any, *, rank: str | None = None, score: str | None = None, **options: Any
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
    how = SourceOptions.of(**options)
    score = "" if rank and score is None else score
    wanted = {"user": how.columns.user, "item": how.columns.item, "rank": rank, "score": score}
    frame, provenance = read_table(Source.of(source), how, wanted)
    require(
        not {"rank", "score"}.isdisjoint(frame.columns),
        "neither ranks nor scores",
        where=provenance.source,
        expected="a column 'rank' or 'score'",
        error=DataError,
    )
    twice = frame.filter(pl.struct("user", "item").is_duplicated())
    if len(twice):
        user, item = twice.select("user", "item").row(0)
        raise DataError(
            f"item {item!r} is more than once in the list of user {user!r}",
            where=provenance.source,
            expected="each item once",
        )
    place = pl.col("rank") if "rank" in frame.columns else -pl.col("score")
    return (
        frame.with_row_index("_row")
        .sort(pl.col("_row").min().over("user"), place, "_row")
        .select(
            pl.col("user").alias("user_id"),
            pl.col("item").alias("item_id"),
            (pl.int_range(pl.len()).over("user") + 1).alias("rank"),
        )
    )


def write_shards_from(
    path: Location,
    out: Path,
    *,
    shards: int,
    options: SourceOptions | None = None,
    rows_at_once: int | None = None,
    notify: Notify | None = None,
) -> dict[str, Any]:
    """Split a PATH into a folder of shards: files of any size a block at a time, anything else through memory.

    Returns what `shards.json` holds, as `talos.data.shards.write_shards` does.
    """
    source, options = _to_split(path, options, {}, notify)
    data: Source | Interactions = source
    min_rating = None if source.kind == "parts" else options.clean.min_rating
    require(
        source.kind != "shards",
        "is divided into shards already",
        where=source.name,
        expected="the data it was made from",
        error=DataError,
    )
    in_memory = source.kind in ("dataset", "database")
    require(
        in_memory or options.clean.k_core is None,
        "needs all interactions in memory, and shards are written a block at a time",
        where="k_core",
        expected="data that are clean already, or a split without shards",
        error=ConfigError,
    )
    if in_memory:
        data, min_rating = open_interactions(source, options, notify=notify), None
    return write_shards(
        data,
        out,
        shards=shards,
        by=options.split.by,
        test=options.split.test,
        valid=options.split.valid,
        seed=options.split.split_seed,
        min_rating=min_rating,
        rows_at_once=DEFAULT_ROWS if rows_at_once is None else rows_at_once,
        name=without_password(os.fspath(path)),
        notify=notify or (lambda line: None),
        options=options,
    )


def _say_guesses(data: Interactions, notify: Notify | None) -> None:
    """Say which columns were taken for what, where that was a guess that may be wrong."""
    if notify is not None and data.provenance.guesses:
        notify(f"{data.provenance.source}: {data.provenance.guesses}")
