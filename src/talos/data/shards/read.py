"""Read a folder of shards: all users as a split, or some consecutive users as a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talos.data.interactions import Interactions
from talos.data.readers import polars_errors
from talos.data.shards.index import AS_WRITTEN, Shard, ShardIndex
from talos.data.shards.share import ShardColumns, Share, SplitShare
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, DataError

__all__ = ["read_fit_shards", "read_shards", "read_share"]


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
    Split(train 10, valid 2, test 3; 2 users × 10 items)
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
    (Interactions(1 users × 10 items, 3 pairs), 10)
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
        rows = pl.concat(frames) if frames else None
        indptr = np.zeros(len(self.users) + 1, np.int64)
        indices = np.empty(0, np.int32)
        extras: dict[str, Any] = {}
        if rows is not None:
            users = rows["user"].to_numpy() - np.int32(self.users.start)
            np.cumsum(np.bincount(users, minlength=len(self.users)), out=indptr[1:])
            indices = np.array(rows["item"].to_numpy())
            extras = {name: np.array(rows[name].to_numpy()) for name in self.columns}
        return Interactions(
            indptr=indptr,
            indices=indices,
            user_ids=self.user_ids,
            item_ids=self.item_ids,
            timestamps=extras.get("timestamp"),
            ratings=extras.get("rating"),
            item_titles=self.titles,
            provenance=self.index.provenance,
        )

    def _rows(self, shard: Shard, part: str) -> pl.DataFrame | None:
        """A shard's rows of the wanted users; None if it has none of these users."""
        low, high = max(shard.users.start, self.users.start), min(shard.users.stop, self.users.stop)
        if low >= high:
            return None
        path = self.index.check(f"{shard.folder}/{part}.parquet", shard.checksums[part])
        with polars_errors(str(path), AS_WRITTEN):
            scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
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
            scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
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
