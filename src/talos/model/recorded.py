"""The data of a run or a study: the record it keeps of them, and the way back from that record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from talos.checks import require
from talos.data.databases import DatabaseURL, without_passwords
from talos.data.interactions import Interactions
from talos.data.open import Notify, open_interactions, open_split
from talos.data.options import Cleaning, SourceOptions, Splitting
from talos.data.source import Source
from talos.data.splits import Split
from talos.distributed.share import SplitShare
from talos.errors import ConfigError, DataError, Option
from talos.progress import Progress

__all__ = ["fingerprints_of", "open_recorded", "open_test", "record_of"]


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
        # A query belongs to one database, and a clean-up and a split to one source.
        recorded = SourceOptions.from_dict(source)
        recorded = replace(recorded, query=None, table=None, split=Splitting(), clean=Cleaning())
        options = SourceOptions.of(recorded, **options.given())
    found = Source.of(path)
    if found.kind not in ("shards", "parts"):
        return open_interactions(found, options, notify=notify, progress=progress)
    if notify is not None:
        notify(f"{path} is split: measuring its test part")
    return open_split(found, options, progress=progress).test


def open_recorded(
    source: Mapping[str, Any] | None,
    *,
    run: str | os.PathLike[str],
    data: str | None = None,
    options: SourceOptions | None = None,
    test: Interactions | None = None,
    notify: Notify | None = None,
    progress: Progress | None = None,
) -> Split:
    """The split that a run or a study was made with, from the record it has of its data.

    A record may be a stranger's. It never opens a database by itself and its SQL is never run: for data in a database
    `data` names the URL again, and `options.query` the query. Data that are not those of the record are refused,
    because another split would put what was trained on into the test part. Without a record, `data` are read and split
    by the options alone, and must give the test part that the run carries.

    Args:
        source: the record, see `record_of`; None if there is none.
        run: the run or study, as an error calls it.
        data: where the data are now; where the record says if None.
        options: how to read `data`, where it differs from the record.
        test: the test part that the run carries, for a run without a record.
        notify: called with one line of text for each message.
        progress: called with the number of rows read and of all rows.

    Raises:
        ConfigError: there is neither a record nor a test part, or the data are in a database that `data` does not name.
        DataError: the data have changed, or cannot be read.
    """
    asked, check = options or SourceOptions(), partial(require, where=os.fspath(run), error=ConfigError)
    if source is None:
        check(
            data is not None and test is not None,
            "the run does not say what it was tested on",
            expected="a PATH to measure it on",
        )
        source = asked.as_dict(str(data))
    recorded = SourceOptions.from_dict(source)
    path = str(source["path"]) if data is None else data
    check(
        data is not None or "://" not in path,
        f"its data are in a database ({without_passwords(path)})",
        expected="the URL as PATH, and the query if there is one: a record does not open it by itself",
    )
    check(
        data is None or not recorded.query or bool(asked.query or DatabaseURL.parse(data).query),
        "its data are the rows of a query, and a run's SQL is not run by itself",
        expected=f"the query again; the run has {recorded.query!r}",
        option=Option("query", "SQL", "names it"),
    )
    parts = open_split(
        path, recorded, notify=notify, progress=progress, **{**asked.given(), "query": asked.query}
    )
    stored, found = source.get("fingerprints"), fingerprints_of(parts)
    if not isinstance(stored, Mapping) and test is not None:
        stored = {"test": test.fingerprint()}
        found = {"test": parts.test.aligned_to(test)[0].fingerprint()}
    if isinstance(stored, Mapping) and stored != found:
        changed = [name for name in {**found, **stored} if stored.get(name) != found.get(name)]
        raise DataError(
            f"not the data of {os.fspath(run)}: another {' and '.join(changed)} part than at training",
            where=without_passwords(path),
            expected="the file as it was, so that nothing that was trained on is measured as test",
            hint="a test set of its own can be measured as PATH",
        )
    return parts


def record_of(path: str, options: SourceOptions, parts: Split | SplitShare) -> dict[str, Any]:
    """What a run stores about its data under `source`: where they are, how they were split, and what was in them."""
    return {**options.as_dict(path), "fingerprints": fingerprints_of(parts)}


def fingerprints_of(parts: Split | SplitShare) -> dict[str, str]:
    """The fingerprint of each part of a split, by name."""
    named = {"train": parts.train, "valid": parts.valid, "test": parts.test}
    return {name: part.fingerprint() for name, part in named.items() if part is not None}
