"""From a PATH to interactions or a split: the one way in for the command line, studies and Python.

A PATH is a file, a folder with train/valid/test files, a folder of shards, a dataset's name or a database URL.
Nothing is printed: messages, such as a dataset's licence, go to `notify`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from talos.data import datasets, readers, splits
from talos.data.databases import DatabaseURL, without_password, without_passwords
from talos.data.datasets import DatasetInfo
from talos.data.interactions import Interactions
from talos.data.options import Cleaning, SourceOptions, Splitting
from talos.data.readers import ReadKeywords, Source
from talos.data.readers.folders import part_files
from talos.data.shards import (
    DEFAULT_ROWS,
    ShardIndex,
    SplitShare,
    is_shards,
    read_fit_shards,
    read_shards,
    read_share,
    write_shards,
)
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, nearest
from talos.files import expanded
from talos.progress import Progress

__all__ = [
    "SourceOptions",
    "check_unchanged",
    "fingerprints_of",
    "open_fit_parts",
    "open_interactions",
    "open_recorded",
    "open_share",
    "open_split",
    "open_test",
    "read",
    "record_of",
    "write_shards_from",
]

Location: TypeAlias = str | os.PathLike[str]
Notify: TypeAlias = Callable[[str], None]


def read(
    source: Source, *, progress: Progress | None = None, **options: Unpack[ReadKeywords]
) -> Interactions:
    """Read interactions from a file, a folder, a named dataset, a frame, a matrix or a database.

    Files may be csv, tsv or text with another separator, parquet, JSON lines, RecBole `.inter`, MovieLens
    `u.data` or `ratings.dat`, Amazon `ratings_X.csv` and `reviews_X.json.gz`, or LightGCN lines `u i1 i2 …`; any
    text may be gzipped. A folder with train and test files is read as their union, any other as one table in
    several files. A name such as "movielens-100k", where no file has that name, is a dataset as published, from
    the cache or the network. A database is `sqlite:///FILE` or `postgresql://…`.

    Args:
        source: a path, a dataset's name, a database URL, a polars or pandas frame, or a scipy sparse matrix.
        progress: called with the number of rows read and of all rows, for files that are read in blocks;
            `talos.progress.counter` makes one.
        **options: how to read it; a named dataset needs none. `user`, `item`, `timestamp`, `rating` and `title`
            name columns (guessed if None; "" leaves out one of the last three), `format` is one of
            `talos.data.readers.FORMATS`, `query` or `table` choose the rows of a database, `on_bad_row="skip"`
            drops and counts bad rows, `ids="string"` keeps ids of digits as strings, and `max_bytes` limits the
            size of an unpacked file. `talos.data.readers.ReadOptions` describes each of them.

    Raises:
        DataError: with the file, the line or column, what was found and what was expected.
        DownloadError: a dataset is not in the cache and none of its sources answered.
        MissingExtraError: PostgreSQL without its driver.

    >>> read("movielens-10k")
    Traceback (most recent call last):
    talos.errors.DataError: movielens-10k: no such file, folder or dataset ...(did you mean 'movielens-100k'...)
    """
    if isinstance(source, str | os.PathLike):
        found = _dataset(os.fspath(source))
        if found is not None:
            return datasets.load(found)
        _check_exists(os.fspath(source))
    return readers.read(source, progress=progress, **options)


def open_interactions(
    path: Location,
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
    path, options = os.fspath(path), SourceOptions.of(options, **changes)
    found = _dataset(path)
    if found is None:
        data = _read_whole(path, options, progress)
        _say_guesses(data, notify)
    else:
        data = datasets.load(found, notify=notify)
    min_rating, k_core = options.clean.min_rating, options.clean.k_core
    if found is not None and not options.clean.raw:
        min_rating = found.min_rating if min_rating is None else min_rating
        k_core = found.k_core if k_core is None else k_core
    applied = []
    if min_rating is not None and (found is None or data.ratings is not None):
        data = splits.min_rating(data, min_rating)
        applied.append(f"ratings of {min_rating:g} and higher")
    if k_core is not None:
        data = splits.k_core(data, k_core)
        applied.append(f"{k_core}-core")
    notes = [f"clean-up: {', '.join(applied)}"] if applied else []
    if found is not None and (min_rating, k_core) == (found.min_rating, found.k_core):
        notes += found.differences(data)
    return replace(data, provenance=replace(data.provenance, notes=(*data.provenance.notes, *notes)))


def open_split(
    path: Location,
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
        progress: called with the number of rows read and of all rows.
        **changes: options by name, such as `user="who"` or `by="time"`; see `SourceOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "clicks.csv")
    ...     _ = file.write_text("who,what\n" + "".join(f"ann,{item}\n" for item in range(10)))
    ...     open_split(file, user="who", item="what")
    Split(train 7, valid 1, test 2; 1 users × 10 items)
    """
    path, options = os.fspath(path), SourceOptions.of(options, **changes)
    if is_shards(path):
        _warn_split_already(options, notify)
        return read_shards(path)
    if readers.is_parts(path):
        _warn_split_already(options, notify)
        parts = readers.read_parts(path, progress=progress, **_reading(options))
        _say_guesses(parts.train, notify)
        return splits.predefined(parts.train, parts.valid, parts.test)
    return _split(open_interactions(path, options, notify=notify, progress=progress), options)


def open_fit_parts(
    path: Location,
    options: SourceOptions | None = None,
    *,
    notify: Notify | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> tuple[Interactions, Interactions | None]:
    """Train and validation of a PATH, for whoever must not see the test part.

    A test file is not opened and need not exist; where the PATH is split here, the test part is dropped.
    """
    path, options = os.fspath(path), SourceOptions.of(options, **changes)
    if is_shards(path):
        _warn_split_already(options, notify)
        return read_fit_shards(path)
    found = readers.read_fit_parts(path, progress=progress, **_reading(options))
    if found is not None:
        _warn_split_already(options, notify)
        _say_guesses(found[0], notify)
        return found
    parts = _split(open_interactions(path, options, notify=notify, progress=progress), options)
    return parts.train, parts.valid


def open_share(path: Location, users_of: Callable[[int], range]) -> SplitShare:
    """The part of a folder of shards that one of several processes needs.

    Args:
        path: the folder.
        users_of: called with the number of users, returns those of this process.
    """
    index = ShardIndex.read(os.fspath(path))
    return read_share(index, users_of(index.num_users))


def open_test(
    source: Mapping[str, Any] | None,
    path: str,
    options: SourceOptions | None = None,
    *,
    notify: Notify | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """A test set for a run; of a PATH that is split already, a folder with a train file or shards, the test part.

    Args:
        source: the run's record of its data, whose columns and format are used except where `options` differ.
        path: the test set.
        options: how to read and clean the PATH.
        notify: called with one line of text for each message.
        progress: called with the number of rows read and of all rows.
    """
    options = options or SourceOptions()
    if source is not None:
        options = SourceOptions.from_dict(source).for_other_data(options)
    if _is_split(path):
        if notify is not None:
            notify(f"{path} is split: measuring its test part")
        return open_split(path, options, progress=progress).test
    return open_interactions(path, options, notify=notify, progress=progress)


def open_recorded(
    source: Mapping[str, Any] | None,
    *,
    run: Location,
    data: str | None = None,
    options: SourceOptions | None = None,
    notify: Notify | None = None,
    progress: Progress | None = None,
) -> Split:
    """The split that a run or a study was made with, from the record it has of its data.

    A record may be a stranger's. It never opens a database by itself and its SQL is never run: for data in a database
    `data` names the URL again, and `options.query` the query. Data that are not those of the record are refused,
    because another split would put what was trained on into the test part.

    Args:
        source: the record, see `record_of`; None if there is none.
        run: the run or study, as an error calls it.
        data: where the data are now; where the record says if None.
        options: how to read `data`, where it differs from the record.
        notify: called with one line of text for each message.
        progress: called with the number of rows read and of all rows.

    Raises:
        ConfigError: there is no record, or the data are in a database that `data` does not name.
        DataError: the data have changed, or cannot be read.
    """
    if source is None:
        raise ConfigError(
            "the run does not say what it was tested on",
            where=os.fspath(run),
            expected="a PATH to measure it on",
        )
    recorded, asked = SourceOptions.from_dict(source), options or SourceOptions()
    path = str(source["path"]) if data is None else data
    if data is None and "://" in path:
        raise ConfigError(
            f"its data are in a database ({without_passwords(path)}), and a run does not open one by itself",
            where=os.fspath(run),
            expected="data='URL' to name it again" + (" and query='SQL'" if recorded.query else ""),
        )
    if data is not None and recorded.query and not asked.query and DatabaseURL.parse(data).query is None:
        raise ConfigError(
            "its data are the rows of a query, and a run's SQL is not run by itself",
            where=os.fspath(run),
            expected=f"query='SQL'; the run has {recorded.query!r}",
        )
    if data is None and _exists(path) and not expanded(path).is_dir():
        _check_still_there(path, os.fspath(run))
    options = SourceOptions.of(recorded, **{**asked.given(), "query": asked.query})
    parts = open_split(path, options, notify=notify, progress=progress)
    check_unchanged(source, parts, run=run, path=path)
    return parts


def record_of(path: str, options: SourceOptions, parts: Split | SplitShare) -> dict[str, Any]:
    """What a run stores about its data under `source`: where they are, how they were split, and what was in them."""
    return {**options.as_dict(path), "fingerprints": fingerprints_of(parts)}


def fingerprints_of(parts: Split | SplitShare) -> dict[str, str]:
    """The fingerprint of each part of a split, by name."""
    named = {"train": parts.train, "valid": parts.valid, "test": parts.test}
    return {name: part.fingerprint() for name, part in named.items() if part is not None}


def check_unchanged(
    source: Mapping[str, Any], parts: Split | SplitShare, *, run: Location, path: str | None = None
) -> None:
    """Refuse a split whose parts are not those of a record; a record without fingerprints is taken as it is."""
    stored = source.get("fingerprints")
    if not isinstance(stored, Mapping) or dict(stored) == fingerprints_of(parts):
        return
    found = fingerprints_of(parts)
    changed = [name for name in ("train", "valid", "test") if stored.get(name) != found.get(name)]
    if changed:
        raise DataError(
            f"not the data of {os.fspath(run)}: another {' and '.join(changed)} part than at training",
            where=without_passwords(str(source.get("path")) if path is None else path),
            expected="the file as it was, so that nothing that was trained on is measured as test",
            hint="a test set of its own can be measured as PATH",
        )


def _check_still_there(path: str, run: str) -> None:
    if not expanded(path).is_file():
        raise DataError(
            f"the data of {run} came from a pipe or a device",
            where=path,
            expected="data='PATH' to name a file",
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
    path, options = os.fspath(path), options or SourceOptions()
    how: dict[str, Any] = {
        "shards": shards,
        "by": options.split.by,
        "test": options.split.test,
        "valid": options.split.valid,
        "seed": options.split.split_seed,
        "name": without_password(path),
        "rows_at_once": DEFAULT_ROWS if rows_at_once is None else rows_at_once,
        **({} if notify is None else {"notify": notify}),
    }
    if is_shards(path):
        raise DataError("is divided into shards already", where=path, expected="the data it was made from")
    if _dataset(path) is not None or "://" in path:
        return write_shards(open_interactions(path, options, notify=notify), out, **how)
    if options.clean.k_core is not None:
        raise ConfigError(
            "needs all interactions in memory, and shards are written a block at a time",
            where="k_core",
            expected="data that are clean already, or a split without shards",
        )
    _check_exists(path)
    if readers.is_parts(path):
        _warn_split_already(options, notify)
        return write_shards(path, out, **how, **_reading(options))
    return write_shards(path, out, **how, min_rating=options.clean.min_rating, **_reading(options))


def _dataset(path: str) -> DatasetInfo | None:
    """The named dataset that a PATH means, if it is one; a file or folder of that name comes first."""
    if "://" in path or _exists(path):
        return None
    return next((info for info in datasets.available() if info.name == path), None)


def _is_split(path: str) -> bool:
    """Whether a PATH has a train and a test part; an error if it has a train part alone."""
    if "://" in path:
        return False
    folder = expanded(path)
    if is_shards(path) or not folder.is_dir():
        return is_shards(path)
    files = part_files(folder, required=("train",))
    if files is not None and "test" not in files:
        raise DataError("has a train file and no test file", where=path, expected="a test set")
    return files is not None


def _exists(path: str) -> bool:
    try:
        return expanded(path).exists()
    except (OSError, ValueError):
        return True


def _check_exists(path: str) -> None:
    if not path:
        raise DataError(
            "is empty", where="PATH", expected="a file, a folder, a dataset's name or a database URL"
        )
    if "://" in path or _exists(path):
        return
    folder, known = expanded(path).parent, [info.name for info in datasets.available()]
    try:
        beside = [entry.name for entry in folder.iterdir() if entry.exists()]
    except OSError:
        beside = []
    hint = nearest(Path(path).name, [*known, *beside])
    raise DataError(
        "no such file, folder or dataset",
        where=path,
        hint=hint if hint.startswith("did") else f"datasets: {', '.join(known)}",
        commands=[("talos data list", "the data sets that can be used by name")],
    )


def _read_whole(path: str, options: SourceOptions, progress: Progress | None) -> Interactions:
    _check_exists(path)
    if is_shards(path):
        parts = read_shards(path)
        both = parts.train.union(parts.test)
        return both if parts.valid is None else both.union(parts.valid)
    return readers.read(path, progress=progress, **_reading(options))


def _split(data: Interactions, options: SourceOptions) -> Split:
    how = options.split
    return splits.split(data, by=how.by, test=how.test, valid=how.valid, seed=how.split_seed)


def _say_guesses(data: Interactions, notify: Notify | None) -> None:
    """Say which columns were taken for what, where that was a guess that may be wrong."""
    if notify is not None and data.provenance.guesses:
        notify(f"{data.provenance.source}: {data.provenance.guesses}")


def _warn_split_already(options: SourceOptions, notify: Notify | None) -> None:
    if notify is not None and (options.split, options.clean) != (Splitting(), Cleaning()):
        notify("this folder is already split: options for the clean-up and the split have no effect")


def _reading(options: SourceOptions) -> dict[str, Any]:
    names = ("format", "query", "table", "ids", "on_bad_row", "max_bytes")
    return {**asdict(options.columns), **{name: getattr(options, name) for name in names}}
