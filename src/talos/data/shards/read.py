"""Read a folder of shards: its index, all users as a split, or some consecutive users as one process's share of it."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from talos.checks import require
from talos.data.arrays import Codes
from talos.data.interactions import Interactions, Provenance, values_in
from talos.data.parquet import scan_file
from talos.data.read.clean import polars_errors
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import checksum_of, expanded, read_sealed

__all__ = [
    "FORMAT",
    "INDEX",
    "PARTS",
    "ShardColumns",
    "ShardIndex",
    "Share",
    "SplitShare",
    "is_shards",
    "read_fit_shards",
    "read_shards",
    "read_share",
]

FORMAT = 2
INDEX = "shards.json"
PARTS = ("train", "valid", "test")
_AS_WRITTEN = "the file as it was written"


class ShardPart(BaseModel, frozen=True):
    """The file of one part of a shard."""

    interactions: int
    checksum: str


class Shard(BaseModel, frozen=True):
    """One shard: its folder, the first of its users and the end of them, and the file of each part."""

    folder: Annotated[str, StringConstraints(pattern=r"^shard-\d+$")]
    users: tuple[int, int]
    parts: Mapping[str, ShardPart]


class ShardIndex(BaseModel, frozen=True):
    """The content of `shards.json`.

    Attributes:
        folder: the folder of shards.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: `timestamp` and `rating`, if the parts have them.
        parts: `interactions`, `users` (those with interactions) and `fingerprint` of each part.
        shards: in the order of their users; together they have all users.
        checksums: of `users.parquet` and `items.parquet`.
        how: how the split was made, as in `talos.data.splits.Split.how`.
        provenance: of the source.
    """

    folder: Path
    num_users: int = Field(alias="users")
    num_items: int = Field(alias="items")
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[Shard, ...]
    checksums: Mapping[str, str]
    how: Mapping[str, Any]
    provenance: Provenance = Field(alias="source")

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check `shards.json`; a `DataError` if it was edited or is damaged."""
        folder = expanded(folder)
        path = folder / INDEX
        record = read_sealed(path, hint="write the shards again", format=FORMAT)
        try:
            index = cls.model_validate({**record, "folder": folder})
        except ValidationError as error:
            first = error.errors()[0]
            what = f"has a wrong value at {'.'.join(map(str, first['loc']))} ({first['msg']})"
            raise DataError(what, where=str(path), expected=_AS_WRITTEN) from None
        provenance = replace(index.provenance, source=str(folder), format="shards")
        return index.model_copy(update={"provenance": provenance})

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        edges = [0, *(edge for shard in self.shards for edge in shard.users), self.num_users]
        names = set(self.parts)
        if (
            edges != sorted(edges)
            or edges[::2] != edges[1::2]
            or not {"train", "test"} <= names <= set(PARTS)
            or any(set(shard.parts) != names for shard in self.shards)
            or not {"users.parquet", "items.parquet"} <= set(self.checksums)
        ):
            raise ValueError("users, parts or checksums are missing")
        return self

    def check_part(self, shard: Shard, part: str) -> Path:
        """The path of the file of one part of a shard, once its checksum is found to be right."""
        return self.check(f"{shard.folder}/{part}.parquet", shard.parts[part].checksum)

    def check(self, name: str, checksum: str) -> Path:
        """The path of a file of the folder, once its checksum is found to be right."""
        path = self.folder / name
        try:
            found = checksum_of(path)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise DataError(what, where=str(path), expected="a whole folder of shards") from None
        if found != checksum:
            raise DataError("differs from its checksum in shards.json", where=str(path), expected=_AS_WRITTEN)
        return path


def is_shards(path: str | Path) -> bool:
    """Whether a path is a folder of shards.

    >>> is_shards("no/such/folder")
    False
    """
    return os.path.isfile(expanded(path) / INDEX)  # noqa: PTH113  # no error for what is not a path at all


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
            counts = scan.group_by("user").len().collect(engine="streaming")
            degrees[counts["user"]] = counts["len"]
        return degrees

    def _scans(self) -> list[pl.LazyFrame]:
        return [scan_file(self.index.check_part(shard, self.part)) for shard in self.index.shards]


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
        require(
            users == self.users,
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


def read_shards(folder: str | Path) -> Split:
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
    index = ShardIndex.read(folder)
    parts, _ = _read(index, range(index.num_users), index.parts, index.columns)
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how=dict(index.how))


def read_fit_shards(folder: str | Path) -> tuple[Interactions, Interactions | None]:
    """Read train and, if there is one, validation, without opening the files of the test part."""
    index = ShardIndex.read(folder)
    names = [name for name in index.parts if name != "test"]
    parts, _ = _read(index, range(index.num_users), names, index.columns)
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
    index = source if isinstance(source, ShardIndex) else ShardIndex.read(source)
    require(
        0 <= users.start <= users.stop <= index.num_users,
        f"{users}",
        where="users",
        expected=f"within {index.num_users:,} users",
    )
    own, items = _read(index, users, index.parts, index.columns if extras else ())
    parts = {
        name: Share(
            own=part,
            users=users,
            num_users=index.num_users,
            total=int(index.parts[name]["interactions"]),
            active_users=int(index.parts[name]["users"]),
            item_degrees=items["train_interactions"].to_numpy() if name == "train" else None,
            whole=str(index.parts[name]["fingerprint"]),
            columns=ShardColumns(index=index, part=name),
        )
        for name, part in own.items()
    }
    return SplitShare(train=parts["train"], valid=parts.get("valid"), test=parts["test"])


def _read(
    index: ShardIndex, users: range, names: Iterable[str], columns: Sequence[str]
) -> tuple[dict[str, Interactions], pl.DataFrame]:
    """Some parts of the interactions of consecutive users, and the table of items."""
    items = _table(index, "item", index.num_items, range(index.num_items))
    shared = {
        "user_ids": Vocabulary(_table(index, "user", index.num_users, users)["user_id"]),
        "item_ids": Vocabulary(items["item_id"]),
        "item_titles": items["title"] if "title" in items.columns else None,
        "provenance": index.provenance,
    }
    return {name: _part(index, name, users, columns, shared) for name in names}, items


def _part(
    index: ShardIndex, name: str, users: range, columns: Sequence[str], shared: Mapping[str, Any]
) -> Interactions:
    nothing = pl.DataFrame(schema={"user": pl.Int32, "item": pl.Int32})
    found = [_rows(index, shard, name, users, columns) for shard in index.shards]
    rows = pl.concat([nothing, *(some for some in found if some is not None)], how="diagonal")
    degrees = np.bincount(rows["user"].to_numpy() - np.int32(users.start), minlength=len(users))
    return Interactions(
        indptr=np.append(0, np.cumsum(degrees)), indices=rows["item"].to_numpy(), **values_in(rows), **shared
    )


def _rows(
    index: ShardIndex, shard: Shard, part: str, users: range, columns: Sequence[str]
) -> pl.DataFrame | None:
    """A shard's rows of the wanted users; None if it has none of these users."""
    low, high = max(shard.users[0], users.start), min(shard.users[1], users.stop)
    if low >= high:
        return None
    path, whole = index.check_part(shard, part), (low, high) == shard.users
    with polars_errors(str(path), _AS_WRITTEN):
        scan = scan_file(path)
        if not whole:
            scan = scan.filter(pl.col("user").is_between(low, high - 1))
        rows = scan.select("user", "item", *columns).collect()
    user, item = rows["user"].to_numpy(), rows["item"].to_numpy()
    pairs = user.astype(np.int64) * index.num_items + item
    if (
        not user.dtype == item.dtype == np.int32
        or (whole and len(rows) != shard.parts[part].interactions)
        or item.min(initial=0) < 0
        or item.max(initial=0) >= index.num_items
        or not (np.diff(pairs) > 0).all()
        or (len(rows) and not low <= user[0] <= user[-1] < high)
    ):
        what = "rows of another number, type, order or range than shards.json says"
        raise DataError(what, where=str(path), expected=_AS_WRITTEN)
    return rows


def _table(index: ShardIndex, kind: str, count: int, rows: range) -> pl.DataFrame:
    """Some rows of `users.parquet` or `items.parquet`."""
    path = index.check(f"{kind}s.parquet", index.checksums[f"{kind}s.parquet"])
    with polars_errors(str(path), _AS_WRITTEN):
        scan = scan_file(path)
        table, found = scan.slice(rows.start, len(rows)).collect(), scan.select(pl.len()).collect().item()
        ids = table[f"{kind}_id"]
    ascending = ids.dtype in (pl.String, pl.Int64) and not ids.null_count() and (ids[1:] > ids[:-1]).all()
    if found != count or not ascending:
        raise DataError(f"not {count:,} distinct ascending ids", where=str(path), expected=_AS_WRITTEN)
    return table
