"""Write a folder of shards from interactions larger than memory, split into train, validation and test.

Rows become codes on disk, sorted by user (`CodedRows`); then distinct pairs, in pieces of consecutive users (`_Pairs`);
then pairs with the number of the part that each belongs to; and then the files of the shards.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes
from talos.data.interactions import Interactions, values_in
from talos.data.options import SourceOptions, SplitBy
from talos.data.parquet import scan_file
from talos.data.shards.coded_rows import CodedRows
from talos.data.shards.index import FORMAT, INDEX, PARTS
from talos.data.shards.streaming_split import StreamingSplit
from talos.data.source import Source, read_through
from talos.data.splits import how_to_split, no_timestamps
from talos.data.vocabulary import Vocabulary, add_ids
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
    found = source if isinstance(source, Interactions | Source) else Source.of(source)
    split_already = isinstance(found, Source) and found.kind == "parts"
    if isinstance(found, Source) and split_already and "test" not in found.parts:
        raise DataError("has a train file and no test file", where=found.name, expected="a test set")
    how = {"by": "predefined"} if split_already else how_to_split(by, test, valid, seed)
    for option, number in (("shards", shards), ("rows_at_once", rows_at_once)):
        if number < 1:
            raise ArgumentError(f"{number}", where=option, expected="1 or more")
    _check_out(out)
    with (
        _disk_errors(out),
        locked_folder(out, purpose="writing shards") as staging,
        tempfile.TemporaryDirectory(dir=staging) as scratch,
    ):
        _check_out(out)  # again: another process may have finished in between
        folder = Path(scratch)
        if isinstance(found, Interactions):
            rows = CodedRows.of(found, folder)
        else:
            into = partial(CodedRows.read, folder=folder)
            rows = read_through(found, SourceOptions.of(options, **changes), into, rows=rows_at_once)
        origin = rows.provenance
        if origin.guesses:
            notify(f"{origin.source}: {origin.guesses}")
        notify(f"{origin.rows:,} rows read")
        pairs = _Pairs.of(rows, folder, rows_at_once, min_rating)
        if not split_already and by != "user" and "timestamp" not in pairs.columns:
            raise no_timestamps(origin, by)
        users = len(pairs.user_ids)
        if shards > users:
            raise ConfigError(f"{shards}", where="shards", expected=f"at most {users:,}, the number of users")
        notify(f"{pairs.number:,} interactions of {users:,} users are sorted")
        splitter = StreamingSplit(
            by=by, test=test, valid=valid, seed=seed, total=pairs.number, stamps=pairs.stamps, folder=folder
        )
        files, user_degrees, item_degrees = _divide(pairs, folder, None if split_already else splitter.of)
        in_train, *_, in_test = user_degrees > 0
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
                "duplicates": origin.duplicates + pairs.duplicates,
                "notes": list(origin.notes),
            },
            "how": how,
            "cleaned": {} if min_rating is None else {"min_rating": min_rating},
            "users": users,
            "items": len(pairs.item_ids),
            "columns": pairs.columns,
            **_write_parts(pairs, files, user_degrees, item_degrees, shards, staging),
        }
        write_sealed(staging / INDEX, record)
    return record


def _check_out(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("exists and is not empty", where=str(out), expected="a new or empty folder")


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into a `TalosError`; errors in the source are `DataError`s already."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)[:160]})") from error


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The distinct pairs on disk, in pieces of consecutive users.

    Attributes:
        files: with columns `user`, `item`, `source_row` and others, sorted by user and item.
        columns: `timestamp` and `rating`, if the files have them.
        user_codes: the position among `user_ids` of each user in the files.
        item_codes: the position among `item_ids` of each item in the files.
        user_ids: of users with a pair.
        item_ids: of items with a pair.
        titles: of these items, None if there are none.
        number: of pairs.
        duplicates: rows that were dropped because their pair occurred before or after.
    """

    files: Sequence[Path]
    columns: Sequence[str]
    user_codes: Codes
    item_codes: Codes
    user_ids: pl.Series
    item_ids: pl.Series
    titles: pl.Series | None
    number: int
    duplicates: int

    @classmethod
    def of(cls, rows: CodedRows, folder: Path, size: int, min_rating: float | None) -> _Pairs:
        """Keep each pair once, as `Interactions` does, and drop low ratings."""
        source = rows.provenance.source
        if min_rating is not None and "rating" not in rows.columns:
            raise DataError("no ratings", where=source, expected="a rating column to filter by")
        files, number, duplicates = list[Path](), 0, 0
        with_user, with_item = np.zeros(len(rows.user_ids), bool), np.zeros(len(rows.item_ids), bool)
        for users, bucket in rows.buckets(size):
            data = _interactions(bucket, users, len(rows.item_ids))
            duplicates += data.provenance.duplicates
            pairs = data.to_frame(
                user=data.rows + np.int32(users.start),
                item=data.indices,
                source_row=pl.Series(data.source_rows),
            )
            if "part" in rows.columns:
                if bucket.n_unique(["user", "item", "part"]) > len(pairs):
                    raise _in_two_parts(bucket, rows)
                pairs = pairs.with_columns(bucket["part"].gather(data.source_rows))
            if min_rating is not None:
                pairs = pairs.filter(pairs["rating"] >= min_rating)
            if len(pairs):
                files.append(folder / f"pairs-{len(files):06d}.parquet")
                pairs.write_parquet(files[-1], compression="lz4")
                number += len(pairs)
                with_user[pairs["user"]] = True
                with_item[pairs["item"]] = True
        if not files:
            raise DataError(f"no rating of {min_rating:g} or higher", where=source, expected="at least one")
        return cls(
            files=files,
            columns=[name for name in ("timestamp", "rating") if name in rows.columns],
            user_codes=np.cumsum(with_user, dtype=np.int32) - np.int32(1),
            item_codes=np.cumsum(with_item, dtype=np.int32) - np.int32(1),
            user_ids=rows.user_ids.ids.filter(with_user),
            item_ids=rows.item_ids.ids.filter(with_item),
            titles=None if rows.titles is None else rows.titles.filter(with_item),
            number=number,
            duplicates=duplicates,
        )

    def stamps(self) -> Iterator[NDArray[Any]]:
        """All timestamps, a piece at a time."""
        for file in self.files:
            yield scan_file(file).select("timestamp").collect()["timestamp"].to_numpy()


def _interactions(rows: pl.DataFrame, users: range, num_items: int) -> Interactions:
    """Rows of consecutive users; codes stand for ids."""
    return Interactions.from_codes(
        rows["user"].to_numpy() - np.int32(users.start),
        rows["item"].to_numpy(),
        user_ids=Vocabulary(pl.int_range(len(users), eager=True)),
        item_ids=Vocabulary(pl.int_range(num_items, eager=True)),
        source_rows=rows["source_row"].to_numpy() if "source_row" in rows.columns else None,
        **values_in(rows),
    )


def _in_two_parts(bucket: pl.DataFrame, rows: CodedRows) -> DataError:
    pairs = bucket.unique(["user", "item", "part"])
    pair = pairs.filter(pairs.select("user", "item").is_duplicated()).sort("user", "item").row(0, named=True)
    user, item = rows.user_ids.ids[pair["user"]], rows.item_ids.ids[pair["item"]]
    return DataError(
        f"user {user!r} and item {item!r} are together in two parts",
        where=rows.provenance.source,
        expected="every pair in one part",
    )


def _divide(
    pairs: _Pairs, folder: Path, part_of: Callable[[Interactions], NDArray[np.int8]] | None
) -> tuple[list[Path], Degrees, Degrees]:
    """Files of pairs with the part of each, by `part_of` or as the source has it; and degrees of users and items."""
    files: list[Path] = []
    user_degrees = np.zeros((len(PARTS), len(pairs.user_ids)), np.int64)
    item_degrees = np.zeros((len(PARTS), len(pairs.item_ids)), np.int64)
    for number, file in enumerate(pairs.files):
        rows = scan_file(file).collect()
        rows = rows.with_columns(user=pairs.user_codes[rows["user"]], item=pairs.item_codes[rows["item"]])
        users = range(rows["user"][0], rows["user"][-1] + 1)
        if part_of is not None:
            rows = rows.with_columns(part=part_of(_interactions(rows, users, len(pairs.item_ids))))
        for (code,), some in rows.partition_by("part", as_dict=True).items():
            of_users = np.bincount(some["user"].to_numpy() - users.start, minlength=len(users))
            user_degrees[code, users.start : users.stop] = of_users
            item_degrees[code] += np.bincount(some["item"].to_numpy(), minlength=len(pairs.item_ids))
        files.append(folder / f"divided-{number:06d}.parquet")
        rows.write_parquet(files[-1], row_group_size=_ROW_GROUP, compression="lz4")
    return files, user_degrees, item_degrees


def _write_parts(
    pairs: _Pairs, files: Sequence[Path], user_degrees: Degrees, item_degrees: Degrees, shards: int, out: Path
) -> dict[str, Any]:
    """Write the files of all shards; returns what `shards.json` says about them."""
    record: dict[str, Any] = {"parts": {}, "cold": {}, "shards": [], "checksums": {}}
    # as in `talos.data.splits.split`, there is no empty validation part
    codes = {part: code for code, part in enumerate(PARTS) if part != "valid" or user_degrees[code].any()}
    # a user belongs to the shard that the number of interactions of all users before falls into
    degrees = user_degrees.sum(axis=0)
    shard_of = np.minimum((np.cumsum(degrees) - degrees) * shards // pairs.number, shards - 1)
    ends = np.searchsorted(shard_of, np.arange(shards), side="right").tolist()
    for users in starmap(range, pairwise([0, *ends])):
        folder = out / f"shard-{len(record['shards']):04d}"
        folder.mkdir()
        parts = {}
        for part, code in codes.items():
            inside = pl.col("user").is_between(users.start, users.stop - 1) & (pl.col("part") == code)
            rows = scan_file(files).filter(inside).select("user", "item", *pairs.columns)
            file = folder / f"{part}.parquet"
            rows.sink_parquet(file, row_group_size=_ROW_GROUP)
            number = int(user_degrees[code, users.start : users.stop].sum())
            parts[part] = {"interactions": number, "checksum": checksum_of(file)}
        record["shards"].append({"folder": folder.name, "users": [users.start, users.stop], "parts": parts})
    items = pl.DataFrame({"item_id": pairs.item_ids, "train_interactions": item_degrees[0]})
    if pairs.titles is not None:
        items = items.with_columns(title=pairs.titles)
    users_and_items = {"users.parquet": pl.DataFrame({"user_id": pairs.user_ids}), "items.parquet": items}
    for name, table in users_and_items.items():
        table.write_parquet(out / name, row_group_size=_ROW_GROUP)
        record["checksums"][name] = checksum_of(out / name)
    for part, code in codes.items():
        of_users, of_items = user_degrees[code], item_degrees[code]
        record["parts"][part] = {
            "users": int(np.count_nonzero(of_users)),
            "items": int(np.count_nonzero(of_items)),
            "interactions": int(of_users.sum()),
            "fingerprint": _fingerprint(pairs, of_users, sorted(out.glob(f"*/{part}.parquet"))),
        }
        if part != "train":
            cold_users, cold_items = of_users[user_degrees[0] == 0], of_items[item_degrees[0] == 0]
            record["cold"][part] = {
                "users": int(np.count_nonzero(cold_users)),
                "items": int(np.count_nonzero(cold_items)),
                "interactions_of_cold_users": int(cold_users.sum()),
                "interactions_of_cold_items": int(cold_items.sum()),
            }
    return record


def _fingerprint(pairs: _Pairs, user_degrees: NDArray[np.int64], files: Sequence[Path]) -> str:
    """`Interactions.fingerprint` of a whole part."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.append(0, np.cumsum(user_degrees)).data)
    for block in (
        scan_file(files).select("item").collect_batches(chunk_size=DEFAULT_ROWS, maintain_order=True)
    ):
        digest.update(np.ascontiguousarray(block["item"].to_numpy()).data)
    for ids in (pairs.user_ids, pairs.item_ids):
        blocks = ids.to_frame().iter_slices(DEFAULT_ROWS)
        add_ids(digest, ids.dtype, (block.to_series() for block in blocks))
    return digest.hexdigest()
