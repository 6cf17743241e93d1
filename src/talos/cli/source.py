"""PATH, as every command understands it: a file, a folder, a dataset's name or a database URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from talos.cli.output import say
from talos.errors import ConfigError, DataError

if TYPE_CHECKING:
    from talos.data.datasets import DatasetInfo
    from talos.data.interactions import Interactions
    from talos.data.shards import SplitShare
    from talos.data.splits import Split
    from talos.distributed import Group

__all__ = [
    "Columns",
    "SplitOptions",
    "load",
    "load_share",
    "load_split",
    "test_part",
    "write_shards",
]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How to read a source: the options that every command with a PATH shares."""

    user: str | None = None
    item: str | None = None
    timestamp: str | None = None
    rating: str | None = None
    title: str | None = None
    format: str | None = None
    query: str | None = None
    on_bad_row: str = "raise"

    def for_files(self) -> dict[str, Any]:
        """As arguments of a reader of files: all but the query, which is for databases.

        >>> Columns(user="who", query="SELECT 1").for_files()["user"]
        'who'
        """
        return {name: value for name, value in vars(self).items() if name != "query"}


def load(
    path: str,
    columns: Columns,
    *,
    min_rating: float | None = None,
    k_core: int | None = None,
    raw: bool = False,
) -> Interactions:
    """Interactions from a PATH, cleaned up as asked; a named dataset brings the paper's clean-up unless `raw`."""
    from talos.data import datasets, splits

    info = _named(path)
    data = _read(path, columns) if info is None else datasets.load(info, notify=say)
    if info is not None and not raw:
        min_rating = info.min_rating if min_rating is None else min_rating
        k_core = info.k_core if k_core is None else k_core
    applied = []
    if min_rating is not None and (info is None or data.ratings is not None):
        data = splits.min_rating(data, min_rating)
        applied.append(f"ratings of {min_rating:g} and higher")
    if k_core is not None:
        data = splits.k_core(data, k_core)
        applied.append(f"{k_core}-core")
    notes = [f"clean-up: {', '.join(applied)}"] if applied else []
    if info is not None and (min_rating, k_core) == (info.min_rating, info.k_core):
        notes += info.differences(data)
    return replace(data, provenance=replace(data.provenance, notes=(*data.provenance.notes, *notes)))


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How a PATH that is not split yet is cleaned and split."""

    by: Literal["user", "time", "last"] = "user"
    test: float = 0.2
    valid: float = 0.1
    split_seed: int = 0
    min_rating: float | None = None
    k_core: int | None = None
    raw: bool = False


def load_split(path: str, columns: Columns, options: SplitOptions) -> Split:
    """A split from a PATH: as it is, if the PATH holds train/valid/test files or shards, else made as asked."""
    from talos.data import readers, shards, splits

    split_already = (
        _named(path) is None and "://" not in path and (shards.is_shards(path) or readers.is_parts(path))
    )
    if split_already and options != SplitOptions():
        say("this folder is already split: options for the clean-up and the split have no effect")
    if split_already and shards.is_shards(path):
        return shards.read_shards(Path(path).expanduser())
    if split_already:
        parts = readers.read_parts(path, **columns.for_files())
        return splits.predefined(parts.train, parts.valid, parts.test)
    data = load(path, columns, min_rating=options.min_rating, k_core=options.k_core, raw=options.raw)
    return splits.split(data, by=options.by, test=options.test, valid=options.valid, seed=options.split_seed)


def load_share(path: str, group: Group) -> SplitShare | None:
    """What this process of a group needs of a folder of shards; None if the PATH is none, or nobody else is there."""
    from talos.data import shards
    from talos.distributed import all_or_none

    if group.size == 1 or not shards.is_shards(path):
        return None

    def read() -> SplitShare:
        index = shards.ShardIndex.read(Path(path).expanduser())
        return shards.read_share(index, group.share(index.num_users))

    return all_or_none(group, read, path)


def write_shards(
    path: str,
    columns: Columns,
    options: SplitOptions,
    out: Path,
    shards: int,
    rows_at_once: int | None = None,
) -> dict[str, Any]:
    """A PATH as a folder of shards: files of any size a block at a time, anything else by way of memory."""
    from talos.data import shards as talos_shards

    how: dict[str, Any] = {
        "shards": shards,
        "by": options.by,
        "test": options.test,
        "valid": options.valid,
        "seed": options.split_seed,
        "name": path,
        "notify": say,
        "rows_at_once": talos_shards.DEFAULT_ROWS if rows_at_once is None else rows_at_once,
    }
    if talos_shards.is_shards(path):
        raise DataError("is divided into shards already", where=path, expected="the data it was made from")
    if _named(path) is not None or "://" in path:
        data = load(path, columns, min_rating=options.min_rating, k_core=options.k_core, raw=options.raw)
        return talos_shards.write_shards(data, out, **how)
    if options.k_core is not None:
        raise ConfigError(
            "does not go with --shards",
            where="--k-core",
            expected="data that are clean already",
            hint="it needs all interactions in memory: split without --shards",
        )
    _check_exists(path)
    return talos_shards.write_shards(path, out, **how, min_rating=options.min_rating, **columns.for_files())


def test_part(run: Path, facts: Mapping[str, Any], path: str | None) -> Interactions:
    """What a run is measured on: PATH if there is one, else the test part that its `model.json` points to."""
    source = facts.get("source")
    if path is not None:
        return load(path, Columns())
    if source is None:
        raise ConfigError(
            "the run does not say what it was tested on", where=str(run), expected="a PATH after it"
        )
    return load_split(source["path"], Columns(**source["columns"]), SplitOptions(**source["split"])).test


def _named(path: str) -> DatasetInfo | None:
    """The named dataset that PATH means, if it is one; a file or folder of that name comes first."""
    from talos.data import datasets

    if Path(path).exists() or "://" in path:
        return None
    return next((info for info in datasets.available() if info.name == path), None)


def _check_exists(path: str) -> None:
    from talos.data import datasets
    from talos.errors import nearest

    if not Path(path).expanduser().exists():
        names = [info.name for info in datasets.available()]
        raise DataError(
            "no such file, folder or dataset", where=path, hint=f"datasets: {nearest(path, names)}"
        )


def _read(path: str, columns: Columns) -> Interactions:
    from talos.data import readers, shards

    if "://" not in path:
        _check_exists(path)
        if shards.is_shards(path):
            parts = shards.read_shards(Path(path).expanduser())
            both = parts.train.union(parts.test)
            return both if parts.valid is None else both.union(parts.valid)
    return readers.read(path, **vars(columns))
