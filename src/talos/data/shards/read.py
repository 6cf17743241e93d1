"""Read a folder of shards: all users as a split, or some consecutive users as one process's share of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes
from talos.data.interactions import Interactions, values_in
from talos.data.parquet import scan_file
from talos.data.read.clean import polars_errors
from talos.data.shards.index import AS_WRITTEN, Shard, ShardIndex
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, DataError

__all__ = ["ShardColumns", "Share", "SplitShare", "read_fit_shards", "read_shards", "read_share"]

_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ShardColumns:
    """Reads columns of the users × items matrix, that is the interactions of all users with some items.

    Every shard is scanned, and only what is asked for is kept in memory.
    """

    index: ShardIndex
    part: str

    def of_items(self, items: range) -> tuple[NDArray[np.int64], Codes]:
        """All users × consecutive items as CSR: (num_users + 1,) row ends, and items counted from the first of them."""
        indptr = np.zeros(self.index.num_users + 1, np.int64)
        found: list[NDArray[np.int32]] = []
        inside = pl.col("item").is_between(items.start, items.stop - 1)
        for scan in self._scans():
            rows = scan.filter(inside).select("user", "item").collect()
            indptr[1:] += np.bincount(rows["user"].to_numpy(), minlength=self.index.num_users)
            found.append(rows["item"].to_numpy() - np.int32(items.start))
        return np.cumsum(indptr), np.concatenate(found)

    def user_degrees(self) -> NDArray[np.int64]:
        """Interactions of every user, (num_users,)."""
        degrees = np.zeros(self.index.num_users, np.int64)
        for scan in self._scans():
            for block in scan.select("user").collect_batches(chunk_size=_ROWS_AT_ONCE):
                users = block["user"].to_numpy()
                if len(users):
                    counts = np.bincount(users - users[0])
                    degrees[users[0] : users[0] + len(counts)] += counts
        return degrees

    def _scans(self) -> list[pl.LazyFrame]:
        scans = []
        for shard in self.index.shards:
            path = self.index.check(f"{shard.folder}/{self.part}.parquet", shard.checksums[self.part])
            with polars_errors(str(path)):
                scans.append(scan_file(path))
        return scans


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """One part (train, validation or test) as one process has it: its own users' interactions, and totals over all.

    It stands in for `Interactions` in a training loop: sizes, `len`, `active_users`, `item_degrees` and the fingerprint
    are those of all users.

    Attributes:
        own: the interactions of this process's users, (own users × all items).
        users: which of all users these are.
        num_users: number of all users.
        total: interactions of all users.
        active_users: how many of all users have interactions.
        item_degrees: interactions of all users per item; None if not known.
        whole: the fingerprint of the interactions of all users.
        columns: reads the interactions of all users with some items; None if there are no shards to read them from.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> share = Share.of(data, range(1, 2))
    >>> len(share.own), len(share), share.num_users, share.user_range(range(1, 2)).to_polars().rows()
    (1, 3, 2, [(2, 8)])
    """

    own: Interactions
    users: range
    num_users: int
    total: int
    active_users: int
    item_degrees: NDArray[np.int64] | None
    whole: str
    columns: ShardColumns | None = None

    @classmethod
    def of(cls, data: Interactions, users: range) -> Share:
        """The share of some users, from the interactions of all users."""
        return cls(
            own=data.user_range(users),
            users=users,
            num_users=data.num_users,
            total=len(data),
            active_users=data.active_users,
            item_degrees=data.item_degrees,
            whole=data.fingerprint(),
        )

    def __len__(self) -> int:
        return self.total

    @property
    def num_items(self) -> int:
        """Items in the vocabulary."""
        return self.own.num_items

    def user_range(self, users: range) -> Interactions:
        """`own`; `users` must be the users of this share."""
        if users != self.users:
            raise ArgumentError(
                f"users {users.start:,} to {users.stop:,}",
                where="users",
                expected=f"the users of this share, {self.users.start:,} to {self.users.stop:,}",
            )
        return self.own

    def fingerprint(self) -> str:
        """The fingerprint of the interactions of all users."""
        return self.whole


@dataclass(frozen=True, kw_only=True)
class SplitShare:
    """This process's part of a `Split`: a share of train, of validation (None if there is none) and of test."""

    train: Share
    valid: Share | None
    test: Share


def read_shards(source: str | Path | ShardIndex) -> Split:
    """Read all shards as one `Split`.

    Raises:
        DataError: a file is missing, was changed, or disagrees with `shards.json`.

    >>> import tempfile
    >>> from talos.data.shards import write_shards
    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_shards(data, Path(folder, "out"), shards=2)
    ...     read_shards(Path(folder, "out"))
    Split(train 11, valid 1, test 3; 2 users × 10 items)
    """
    index = ShardIndex.of(source)
    parts = _Reader(index, range(index.num_users)).parts()
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how=dict(index.how))


def read_fit_shards(source: str | Path | ShardIndex) -> tuple[Interactions, Interactions | None]:
    """Read train and, if there is one, validation, without opening the files of the test part."""
    index = ShardIndex.of(source)
    parts = _Reader(index, range(index.num_users)).parts("train", "valid")
    return parts["train"], parts.get("valid")


def read_share(source: str | Path | ShardIndex, users: range, *, extras: bool = False) -> SplitShare:
    """Read the interactions of consecutive users; of other users, at most the rest of a row group is read.

    Args:
        source: the folder, or its index.
        users: their positions among all users.
        extras: whether to read timestamps and ratings, if there are any.

    >>> import tempfile
    >>> from talos.data.shards import write_shards
    >>> data = Interactions.from_ids([1] * 10 + [2] * 5, [*range(10), *range(5)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_shards(data, Path(folder, "out"), shards=1)
    ...     share = read_share(Path(folder, "out"), range(1, 2))
    >>> share.train.own, len(share.train)
    (Interactions(1 users × 10 items, 4 pairs), 11)
    """
    index = ShardIndex.of(source)
    if not 0 <= users.start <= users.stop <= index.num_users:
        raise ArgumentError(f"{users}", where="users", expected=f"within {index.num_users:,} users")
    reader = _Reader(index, users, extras=extras)
    parts = {
        name: Share(
            own=part,
            users=users,
            num_users=index.num_users,
            total=int(index.parts[name]["interactions"]),
            active_users=int(index.parts[name]["users"]),
            item_degrees=reader.train_degrees if name == "train" else None,
            whole=str(index.parts[name]["fingerprint"]),
            columns=ShardColumns(index=index, part=name),
        )
        for name, part in reader.parts().items()
    }
    return SplitShare(train=parts["train"], valid=parts.get("valid"), test=parts["test"])


class _Reader:
    """Reads and checks the rows of consecutive users."""

    def __init__(self, index: ShardIndex, users: range, *, extras: bool = True) -> None:
        self.index, self.users = index, users
        self.columns = index.columns if extras else ()
        for name, checksum in index.checksums.items():
            index.check(name, checksum)
        ids = self._table("users.parquet", ["user_id"], index.num_users, users)
        items = self._table("items.parquet", None, index.num_items, range(index.num_items))
        self.user_ids = self._vocabulary("users.parquet", ids, "user_id")
        self.item_ids = self._vocabulary("items.parquet", items, "item_id")
        self.titles = items["title"] if "title" in items.columns else None
        self.train_degrees = items["train_interactions"].to_numpy().astype(np.int64)

    def parts(self, *names: str) -> dict[str, Interactions]:
        """The parts of these names, if they exist; all parts if no name is given."""
        return {name: self._part(name) for name in self.index.parts if not names or name in names}

    def _part(self, part: str) -> Interactions:
        frames = [frame for shard in self.index.shards if (frame := self._rows(shard, part)) is not None]
        indptr = np.zeros(len(self.users) + 1, np.int64)
        indices, values = np.empty(0, np.int32), dict[str, Any]()
        if frames:
            rows = pl.concat(frames)
            users = rows["user"].to_numpy() - np.int32(self.users.start)
            np.cumsum(np.bincount(users, minlength=len(self.users)), out=indptr[1:])
            indices, values = rows["item"].to_numpy(), values_in(rows)
        return Interactions(
            indptr=indptr,
            indices=indices,
            user_ids=self.user_ids,
            item_ids=self.item_ids,
            item_titles=self.titles,
            provenance=self.index.provenance,
            **values,
        )

    def _rows(self, shard: Shard, part: str) -> pl.DataFrame | None:
        """A shard's rows of the wanted users; None if it has none of these users."""
        low, high = max(shard.users.start, self.users.start), min(shard.users.stop, self.users.stop)
        if low >= high:
            return None
        path = self.index.check(f"{shard.folder}/{part}.parquet", shard.checksums[part])
        with polars_errors(str(path), AS_WRITTEN):
            scan = scan_file(path)
            if range(low, high) != shard.users:
                scan = scan.filter(pl.col("user").is_between(low, high - 1))
            rows = scan.select(["user", "item", *self.columns]).collect()
        users, items = rows["user"].to_numpy(), rows["item"].to_numpy()
        if users.dtype != np.int32 or items.dtype != np.int32:
            raise DataError("positions of another type", where=str(path), expected="32-bit integers")
        if range(low, high) == shard.users and len(rows) != shard.interactions[part]:
            raise DataError(
                f"{len(rows):,} interactions", where=str(path), expected=f"{shard.interactions[part]:,}"
            )
        pairs = users.astype(np.int64) * self.index.num_items + items
        inside = len(rows) == 0 or (
            low <= int(users[0])
            and int(users[-1]) < high
            and 0 <= items.min() <= items.max() < self.index.num_items
        )
        if not inside or not (np.diff(pairs) > 0).all():
            raise DataError("rows out of order or out of range", where=str(path), expected=AS_WRITTEN)
        return rows

    def _table(self, name: str, columns: list[str] | None, count: int, rows: range) -> pl.DataFrame:
        path = self.index.folder / name
        with polars_errors(str(path), AS_WRITTEN):
            scan = scan_file(path)
            found = int(scan.select(pl.len()).collect().item())
            if found != count:
                raise DataError(
                    f"{found:,} rows", where=str(path), expected=f"{count:,}, as shards.json says"
                )
            scan = scan if columns is None else scan.select(columns)
            return scan.slice(rows.start, len(rows)).collect()

    def _vocabulary(self, name: str, table: pl.DataFrame, column: str) -> Vocabulary:
        path = str(self.index.folder / name)
        ids = table[column] if column in table.columns else None
        if (
            ids is None
            or ids.dtype not in (pl.String, pl.Int64)
            or ids.null_count()
            or not bool((ids[1:] > ids[:-1]).all())
        ):
            raise DataError(
                f"{column} is not a list of distinct ascending ids", where=path, expected=AS_WRITTEN
            )
        return Vocabulary(ids)
