"""Write a folder of shards from interactions larger than memory, split into train, validation and test.

Rows become codes in files sorted by user, then distinct pairs in files of consecutive users (`CodedRows`). Each pair
gets the number of its part, and the pairs are written once more, shard by shard and part by part.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.options import SourceOptions, SplitBy
from talos.data.parquet import scan_file
from talos.data.shards.coded_rows import CodedRows, interactions, rewrite
from talos.data.shards.index import FORMAT, INDEX, PARTS
from talos.data.shards.streaming_split import StreamingSplit
from talos.data.source import Source, read_through
from talos.data.splits import how_to_split, no_timestamps
from talos.data.vocabulary import add_ids
from talos.errors import ArgumentError, ConfigError, DataError, TalosError, first_line
from talos.files import checksum_of, locked_folder, write_sealed

__all__ = ["DEFAULT_ROWS", "write_shards"]

DEFAULT_ROWS = 1 << 20
"""Rows held in memory at a time."""

# Rows per row group: at each end of its range a process reads up to so many rows of other users.
_ROW_GROUP = 1 << 16

Degrees: TypeAlias = NDArray[np.int64]
"""Interactions of each user or item in each part, (3, number of users or items)."""


def write_shards(
    source: str | Path | Source | Interactions,
    out: Path,
    *,
    shards: int,
    by: SplitBy = "user",
    test: float = 0.2,
    valid: float = 0.1,
    seed: int = 0,
    min_rating: float | None = None,
    rows_at_once: int = DEFAULT_ROWS,
    name: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    options: SourceOptions | None = None,
    **changes: Any,
) -> dict[str, Any]:
    r"""Split interactions into train, validation and test, and write them as shards.

    A folder with train and test files is split already: its parts stay as they are, and `by`, `test`, `valid` and
    `seed` have no effect. No pair may be in two of them.

    Holds about `rows_at_once` rows in memory, and the ids of users and items with a few numbers each; everything else
    goes through temporary files beside `out`. Ids, duplicates and errors are those of `talos.read`. The split depends
    on the data and the seed, not on the number of shards. By `user`, `last` and `future` it is that of
    `talos.data.splits.split`; by `time` the test part is the same, and validation is another random draw of the same
    size.

    The folder appears under its name only when it is complete. It has `shards.json`, `users.parquet` and
    `items.parquet` (positions are row numbers), and `shard-0000/train.parquet`, … with user and item positions,
    sorted. A shard has consecutive users, and all have about the same number of interactions.

    Args:
        source: a file, a folder of files that are one table, a folder of train and test files, or interactions.
        out: the folder to write; must not exist or be empty.
        shards: how many shards.
        by: `user`, `time` or `last`, see `talos.data.splits.split`.
        test: share for test.
        valid: share of the rest for validation.
        seed: of the random draws.
        min_rating: drop ratings below this.
        rows_at_once: rows held in memory at a time.
        name: what `shards.json` calls the source; its path if None.
        notify: called with a line on the progress.
        options: how to read the source.
        **changes: options by name, as in `talos.read`.

    Returns:
        The content of `shards.json`.

    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = write_shards(data, Path(folder, "out"), shards=2)
    >>> [shard["users"] for shard in record["shards"]], record["parts"]["test"]["interactions"]
    ([[0, 1], [1, 2]], 3)
    """
    found = source if isinstance(source, Source) else Source.of(source)
    split_already = found.kind == "parts"
    if split_already and "test" not in found.parts:
        raise DataError("has a train file and no test file", where=found.name, expected="a test set")
    how = {"by": "predefined"} if split_already else how_to_split(by, test, valid, seed)
    for option, number in (("shards", shards), ("rows_at_once", rows_at_once)):
        if number < 1:
            raise ArgumentError(f"{number}", where=option, expected="1 or more")
    with (
        _disk_errors(out),
        locked_folder(out, purpose="writing shards", new=True) as staging,
        tempfile.TemporaryDirectory(dir=staging) as scratch,
    ):
        folder = Path(scratch)
        if isinstance(found.data, Interactions):
            rows = CodedRows.of(found.data, folder)
        else:
            into = partial(CodedRows.read, folder=folder)
            rows = read_through(found, SourceOptions.of(options, **changes), into, rows=rows_at_once)
        if rows.provenance.guesses:
            notify(f"{rows.provenance.source}: {rows.provenance.guesses}")
        notify(f"{rows.provenance.rows:,} rows read")
        pairs = rows.distinct(rows_at_once, min_rating)
        number, users, origin = len(pairs), len(pairs.user_ids), pairs.provenance
        if not split_already and by != "user" and "timestamp" not in pairs.columns:
            raise no_timestamps(origin, by)
        if shards > users:
            raise ConfigError(f"{shards}", where="shards", expected=f"at most {users:,}, the number of users")
        notify(f"{number:,} interactions of {users:,} users are sorted")
        part_of = None
        if not split_already:
            part_of = StreamingSplit(
                by=by, test=test, valid=valid, seed=seed, total=number, stamps=pairs.timestamps, folder=folder
            ).of
        user_degrees, item_degrees = _divide(pairs, part_of)
        in_train, in_test = user_degrees[0] > 0, user_degrees[-1] > 0
        if in_test.any() and not (in_train & in_test).any():
            raise DataError(
                "the test part has no user in common with train",
                where=origin.source,
                expected="at least one user of train",
            )
        record: dict[str, Any] = {
            "format": FORMAT,
            "source": {
                "path": name or origin.source,
                "format": origin.format,
                "rows": origin.rows,
                "bad_rows": origin.bad_rows,
                "duplicates": origin.duplicates,
                "notes": list(origin.notes),
            },
            "how": how,
            "cleaned": {} if min_rating is None else {"min_rating": min_rating},
            "users": users,
            "items": len(pairs.item_ids),
            "columns": [name for name in ("timestamp", "rating") if name in pairs.columns],
            **_write_parts(pairs, user_degrees, item_degrees, shards, staging),
        }
        write_sealed(staging / INDEX, record)
    return record


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into a `TalosError`; errors in the source are `DataError`s already."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)[:160]})") from error


def _divide(
    pairs: CodedRows, part_of: Callable[[Interactions], NDArray[np.int8]] | None
) -> tuple[Degrees, Degrees]:
    """Write beside each pair which part it belongs to, unless that is there; returns degrees of users and items."""
    user_degrees = np.zeros((len(PARTS), len(pairs.user_ids)), np.int64)
    item_degrees = np.zeros((len(PARTS), len(pairs.item_ids)), np.int64)
    for file in pairs.files:
        rows = scan_file(file).collect()
        users = range(rows["user"][0], rows["user"][-1] + 1)
        if part_of is not None:
            rows = rows.with_columns(part=part_of(interactions(rows, users, len(pairs.item_ids))))
            rewrite(rows, file)
        for (code,), some in rows.partition_by("part", as_dict=True).items():
            counts = np.bincount(some["user"].to_numpy() - users.start, minlength=len(users))
            user_degrees[code, users.start : users.stop] = counts
            item_degrees[code] += np.bincount(some["item"].to_numpy(), minlength=len(pairs.item_ids))
    return user_degrees, item_degrees


def _write_parts(
    pairs: CodedRows, user_degrees: Degrees, item_degrees: Degrees, shards: int, out: Path
) -> dict[str, Any]:
    """Write the files of all shards; returns what `shards.json` says about them."""
    record: dict[str, Any] = {"parts": {}, "cold": {}, "shards": [], "checksums": {}}
    # as in `talos.data.splits.split`, there is no empty validation part
    codes = {part: code for code, part in enumerate(PARTS) if part != "valid" or user_degrees[code].any()}
    files: dict[str, list[Path]] = {part: [] for part in codes}
    # a user belongs to the shard that the number of interactions of all users before falls into
    degrees = user_degrees.sum(axis=0)
    before = np.cumsum(degrees) - degrees
    ends = np.searchsorted(before * shards, np.arange(1, shards + 1) * degrees.sum()).tolist()
    for number, users in enumerate(starmap(range, pairwise([0, *ends]))):
        folder, parts = out / f"shard-{number:04d}", {}
        folder.mkdir()
        for part, code in codes.items():
            inside = pl.col("user").is_between(users.start, users.stop - 1) & (pl.col("part") == code)
            rows, file = scan_file(pairs.files).filter(inside), folder / f"{part}.parquet"
            rows.drop("part", "source_row").sink_parquet(file, row_group_size=_ROW_GROUP)
            files[part].append(file)
            count = int(user_degrees[code, users.start : users.stop].sum())
            parts[part] = {"interactions": count, "checksum": checksum_of(file)}
        record["shards"].append({"folder": folder.name, "users": [users.start, users.stop], "parts": parts})
    user_ids, item_ids = pairs.user_ids.ids, pairs.item_ids.ids
    items = pl.DataFrame({"item_id": item_ids, "train_interactions": item_degrees[0]})
    if pairs.titles is not None:
        items = items.with_columns(title=pairs.titles)
    for name, table in (("users.parquet", pl.DataFrame({"user_id": user_ids})), ("items.parquet", items)):
        table.write_parquet(out / name, row_group_size=_ROW_GROUP)
        record["checksums"][name] = checksum_of(out / name)
    for part, code in codes.items():
        of_users, of_items = user_degrees[code], item_degrees[code]
        record["parts"][part] = {
            "users": int((of_users > 0).sum()),
            "items": int((of_items > 0).sum()),
            "interactions": int(of_users.sum()),
            "fingerprint": _fingerprint(of_users, files[part], (user_ids, item_ids)),
        }
        if part != "train":
            cold_users, cold_items = of_users[user_degrees[0] == 0], of_items[item_degrees[0] == 0]
            record["cold"][part] = {
                "users": int((cold_users > 0).sum()),
                "items": int((cold_items > 0).sum()),
                "interactions_of_cold_users": int(cold_users.sum()),
                "interactions_of_cold_items": int(cold_items.sum()),
            }
    return record


def _fingerprint(degrees: NDArray[np.int64], files: Sequence[Path], ids: Iterable[pl.Series]) -> str:
    """`Interactions.fingerprint` of a whole part."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.append(0, np.cumsum(degrees)).data)
    for block in (
        scan_file(files).select("item").collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True)
    ):
        digest.update(np.ascontiguousarray(block["item"].to_numpy()).data)
    for column in ids:
        blocks = column.to_frame().iter_slices(DEFAULT_ROWS)
        add_ids(digest, column.dtype, (block.to_series() for block in blocks))
    return digest.hexdigest()
