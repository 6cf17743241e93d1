"""Read a folder of shards: its index, all users as a split, or the interactions of some consecutive users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator

from talos.checks import require
from talos.data.interactions import Interactions, Provenance, values_in
from talos.data.parquet import scan_file
from talos.data.read.clean import polars_errors
from talos.data.source import SHARDS
from talos.data.splits import Split
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import checksum_of, expanded, read_sealed

__all__ = [
    "FORMAT",
    "PARTS",
    "ShardIndex",
    "part_file",
    "read_fit_shards",
    "read_shards",
]

FORMAT = 2
PARTS = ("train", "valid", "test")
_AS_WRITTEN = "the file as it was written"


def part_file(shard: int, part: str) -> str:
    """The name of the file that holds a shard's interactions of a part."""
    return f"shard-{shard:04d}/{part}.parquet"


class ShardFile(BaseModel, frozen=True):
    """A parquet file of the folder."""

    rows: int
    checksum: str


class ShardIndex(BaseModel, frozen=True):
    """The content of `shards.json`.

    Attributes:
        folder: the folder of shards.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: `timestamp` and `rating`, if the parts have them.
        parts: `interactions`, `users` (those with interactions) and `fingerprint` of each part.
        shards: the first of each shard's users and the end of them; together the shards have all users, in order.
        files: all files, by their names within the folder.
        how: how the split was made, as in `talos.data.splits.Split.how`.
        provenance: of the source.
    """

    folder: Path
    num_users: int = Field(alias="users")
    num_items: int = Field(alias="items")
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[tuple[int, int], ...]
    files: Mapping[str, ShardFile]
    how: Mapping[str, Any]
    provenance: Provenance = Field(alias="source")

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check `shards.json`; a `DataError` if it was edited or is damaged."""
        folder = expanded(folder)
        path = folder / SHARDS
        record = read_sealed(path, hint="write the shards again", format=FORMAT)
        try:
            index = cls.model_validate({**record, "folder": folder})
        except ValidationError as error:
            raise DataError(
                f"is damaged: {error.errors()[0]['msg']}", where=str(path), expected=_AS_WRITTEN
            ) from None
        provenance = replace(index.provenance, source=str(folder), format="shards")
        return index.model_copy(update={"provenance": provenance})

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        edges = [0, *(edge for users in self.shards for edge in users), self.num_users]
        files = {part_file(shard, part) for shard in range(len(self.shards)) for part in self.parts}
        if (
            edges != sorted(edges)
            or edges[::2] != edges[1::2]
            or not {"train", "test"} <= set(self.parts) <= set(PARTS)
            or set(self.files) != {"users.parquet", "items.parquet", *files}
            or self.files["users.parquet"].rows != self.num_users
            or self.files["items.parquet"].rows != self.num_items
        ):
            raise ValueError("users, items, parts or files are missing")
        return self

    def collect(self, name: str, query: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        """What a query gives for a file, once its checksum and its number of rows are found to be right."""
        path, written = self.folder / name, self.files[name]
        check = partial(require, where=str(path), error=DataError)
        with polars_errors(str(path), _AS_WRITTEN):
            unchanged = checksum_of(path) == written.checksum
            check(unchanged, "differs from its checksum in shards.json", expected=_AS_WRITTEN)
            scan = scan_file(path)
            rows = scan.select(pl.len()).collect().item()
            check(rows == written.rows, f"{rows:,} rows", expected=f"{written.rows:,}")
            return query(scan).collect()

    def table(self, kind: str, rows: range | None = None) -> pl.DataFrame:
        """Consecutive rows of `users.parquet` or `items.parquet`; all if None."""
        name = f"{kind}s.parquet"
        rows = range(self.files[name].rows) if rows is None else rows
        table = self.collect(name, lambda scan: scan.slice(rows.start, len(rows)))
        ids = table[f"{kind}_id"]
        require(
            ids.dtype in (pl.String, pl.Int64) and not ids.null_count() and (ids[1:] > ids[:-1]).all(),
            "ids that are not distinct and ascending",
            where=str(self.folder / name),
            expected=_AS_WRITTEN,
            error=DataError,
        )
        return table

    def matrix(
        self, part: str, users: range, items: range, columns: Sequence[str] = ()
    ) -> tuple[NDArray[np.int64], pl.DataFrame]:
        """Consecutive users × consecutive items of a part as CSR.

        Of other users, at most the rest of a row group is read.

        Returns:
            (users + 1,) row ends; and a table of `item`, counted from the first of all items, and the given columns.
        """
        indptr = np.zeros(len(users) + 1, np.int64)
        found = [pl.DataFrame(schema={"item": pl.Int32})]
        in_items = pl.lit(items == range(self.num_items)) | pl.col("item").is_between(
            items.start, items.stop - 1
        )
        for shard, (first, end) in enumerate(self.shards):
            low, high = max(first, users.start), min(end, users.stop)
            if low >= high:
                continue
            whole = (low, high) == (first, end)
            wanted = in_items if whole else in_items & pl.col("user").is_between(low, high - 1)
            name = part_file(shard, part)
            rows = self.collect(name, lambda scan: scan.filter(wanted).select("user", "item", *columns))  # noqa: B023
            user, item = rows["user"].to_numpy(), rows["item"].to_numpy()
            require(
                user.dtype == item.dtype == np.int32
                and 0 <= item.min(initial=0) <= item.max(initial=0) < self.num_items
                and bool((np.diff(user.astype(np.int64) * self.num_items + item) > 0).all())
                and (rows.is_empty() or low <= user[0] <= user[-1] < high),
                "rows of another type, order or range than shards.json says",
                where=str(self.folder / name),
                expected=_AS_WRITTEN,
                error=DataError,
            )
            indptr[1:] += np.bincount(user - np.int32(users.start), minlength=len(users))
            found.append(rows.drop("user"))
        return np.cumsum(indptr), pl.concat(found, how="diagonal")

    def interactions(
        self, names: Iterable[str], users: range, columns: Sequence[str] = ()
    ) -> dict[str, Interactions]:
        """Some parts of the interactions of consecutive users, over shared vocabularies."""
        items = self.table("item")
        user_ids, item_ids = Vocabulary(self.table("user", users)["user_id"]), Vocabulary(items["item_id"])
        parts = {}
        for name in names:
            indptr, rows = self.matrix(name, users, range(self.num_items), columns)
            parts[name] = Interactions(
                indptr=indptr,
                indices=rows["item"].to_numpy(),
                user_ids=user_ids,
                item_ids=item_ids,
                item_titles=items["title"] if "title" in items.columns else None,
                provenance=self.provenance,
                **values_in(rows),
            )
        return parts


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
    parts = index.interactions(index.parts, range(index.num_users), index.columns)
    return Split(train=parts["train"], valid=parts.get("valid"), test=parts["test"], how=dict(index.how))


def read_fit_shards(folder: str | Path) -> tuple[Interactions, Interactions | None]:
    """Read train and, if there is one, validation, without opening the files of the test part."""
    index = ShardIndex.read(folder)
    parts = index.interactions(index.parts.keys() - {"test"}, range(index.num_users), index.columns)
    return parts["train"], parts.get("valid")
