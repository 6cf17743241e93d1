"""Rows of any number on disk, by user, with codes in place of ids; the ids themselves are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.arrays import Codes
from talos.data.encode import id_columns
from talos.data.interactions import Interactions, Provenance, titles_by_item, values_in
from talos.data.parquet import scan_file
from talos.data.shards.index import PARTS
from talos.data.source import Pass
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError

__all__ = ["CodedRows", "interactions", "rewrite"]

# Small, because all row groups with a user of a bucket are decoded.
_ROW_GROUP = 1 << 16


@dataclass(frozen=True, kw_only=True)
class CodedRows:
    """Rows in files that are sorted by user; the rows of a user are in the order of the source, file after file.

    Attributes:
        folder: of the files.
        files: with columns `user` and `item`, which are codes, and others.
        columns: those that all files have.
        user_ids: the id of each code.
        item_ids: the id of each code.
        titles: the title of each item, None if there are none.
        provenance: of the source.

    >>> import tempfile
    >>> data = Interactions.from_ids(["b", "a", "a"], [1, 2, 3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = CodedRows.of(data, Path(folder))
    ...     [(users, bucket.rows()) for users, bucket in rows.buckets(1)]
    [(range(0, 1), [(0, 1), (0, 2)]), (range(1, 2), [(1, 0)])]
    """

    folder: Path
    files: Sequence[Path]
    columns: Sequence[str]
    user_ids: Vocabulary
    item_ids: Vocabulary
    titles: pl.Series | None
    provenance: Provenance

    @classmethod
    def read(cls, one: Pass, folder: Path) -> CodedRows:
        """The rows of a pass, each with the number of its `part` where the source is split already."""
        ids = id_columns(one, drained=True)
        files, columns = list[Path](), list[str]()
        titles = pl.DataFrame(schema={"item": pl.Int32, "title": pl.String})
        for part, block in one:
            rows = block.frame
            if rows.is_empty():
                continue
            for role, column in ids.items():
                column.add(rows[role], text=one.text)
                rows = rows.with_columns(pl.Series(role, column.drain()))
            if one.source.kind == "parts":
                rows = rows.with_columns(part=pl.lit(PARTS.index(part), pl.Int8))
            columns = [name for name in (columns if files else rows.columns) if name in rows.columns]
            if "title" in columns:
                titles = titles.vstack(rows.select("item", "title")).unique("item", keep="last")
            files.append(folder / f"rows-{len(files):06d}.parquet")
            rows = rows.drop("title", strict=False).with_columns(pl.col("^rating$").cast(pl.Float32))
            rewrite(rows, files[-1])
        (user_ids, user_codes), (item_ids, item_codes) = (column.order() for column in ids.values())
        for file in files:
            _recode(file, user_codes, item_codes)
        by_item = None
        if "title" in columns:
            columns.remove("title")
            by_item = titles_by_item(item_codes[titles["item"]], len(item_ids), titles["title"])
        return cls(
            folder=folder,
            files=files,
            columns=columns,
            user_ids=user_ids,
            item_ids=item_ids,
            titles=by_item,
            provenance=one.provenance(),
        )

    @classmethod
    def of(cls, data: Interactions, folder: Path) -> CodedRows:
        """The rows of interactions that are in memory."""
        rows, file = data.to_frame(user=data.rows, item=data.indices), folder / "rows.parquet"
        if data.source_rows is not None:
            rows = rows[np.lexsort((data.source_rows, data.rows))]
        rewrite(rows, file)
        return cls(
            folder=folder,
            files=[file],
            columns=rows.columns,
            user_ids=data.user_ids,
            item_ids=data.item_ids,
            titles=data.item_titles,
            provenance=data.provenance,
        )

    def __len__(self) -> int:
        return int(scan_file(self.files).select(pl.len()).collect().item())

    def timestamps(self) -> Iterator[NDArray[Any]]:
        """All timestamps, those of a file at a time."""
        for file in self.files:
            yield scan_file(file).select("timestamp").collect()["timestamp"].to_numpy()

    def buckets(self, size: int) -> Iterator[tuple[range, pl.DataFrame]]:
        """All rows in buckets of consecutive users, with about `size` rows each: these users, and their rows."""
        degrees = np.zeros(len(self.user_ids), np.int64)
        for file in self.files:
            some, counts = np.unique(scan_file(file).select("user").collect(), return_counts=True)
            degrees[some] += counts
        upto = np.cumsum(degrees)
        full = np.searchsorted(upto, np.arange(size, upto[-1], size)) + 1
        for users in starmap(range, pairwise(np.unique([0, *full, len(upto)]).tolist())):
            inside = pl.col("user").is_between(users.start, users.stop - 1)
            rows = [scan_file(file).filter(inside).select(self.columns).collect() for file in self.files]
            yield users, pl.concat(rows, how="vertical_relaxed")

    def distinct(self, size: int, min_rating: float | None) -> CodedRows:
        """Each pair once, as in `Interactions`, without low ratings, and without ids that have no pair left.

        Every file has all rows of consecutive users, about `size` of them, sorted by user and item.
        """
        source = self.provenance.source
        if min_rating is not None and "rating" not in self.columns:
            raise DataError("no ratings", where=source, expected="a rating column to filter by")
        files, duplicates = list[Path](), 0
        with_user, with_item = np.zeros(len(self.user_ids), bool), np.zeros(len(self.item_ids), bool)
        for users, bucket in self.buckets(size):
            data = interactions(bucket, users, len(self.item_ids))
            if "part" in self.columns and bucket.n_unique(["user", "item", "part"]) > len(data):
                raise self._in_two_parts(bucket)
            assert data.source_rows is not None
            pairs = bucket.with_row_index("source_row")[data.source_rows]
            duplicates += len(bucket) - len(pairs)
            if data.ratings is not None and min_rating is not None:
                pairs = pairs.filter(data.ratings >= min_rating)
            if len(pairs):
                files.append(self.folder / f"pairs-{len(files):06d}.parquet")
                rewrite(pairs, files[-1])
            with_user[pairs["user"]] = True
            with_item[pairs["item"]] = True
        if not files:
            raise DataError(f"no rating of {min_rating:g} or higher", where=source, expected="at least one")
        if not (with_user.all() and with_item.all()):
            for file in files:
                _recode(
                    file, np.cumsum(with_user, dtype=np.int32) - 1, np.cumsum(with_item, dtype=np.int32) - 1
                )
        return replace(
            self,
            files=files,
            user_ids=Vocabulary(self.user_ids.ids.filter(with_user)),
            item_ids=Vocabulary(self.item_ids.ids.filter(with_item)),
            titles=None if self.titles is None else self.titles.filter(with_item),
            provenance=replace(self.provenance, duplicates=self.provenance.duplicates + duplicates),
        )

    def _in_two_parts(self, bucket: pl.DataFrame) -> DataError:
        pairs = bucket.unique(["user", "item", "part"])
        user, item, *_ = (
            pairs.filter(pairs.select("user", "item").is_duplicated()).sort("user", "item").row(0)
        )
        return DataError(
            f"user {self.user_ids.ids[user]!r} and item {self.item_ids.ids[item]!r} are together in two parts",
            where=self.provenance.source,
            expected="every pair in one part",
        )


def interactions(rows: pl.DataFrame, users: range, num_items: int) -> Interactions:
    """Rows of consecutive users, with codes for ids."""
    return Interactions.from_codes(
        rows["user"].to_numpy() - np.int32(users.start),
        rows["item"].to_numpy(),
        user_ids=Vocabulary(pl.int_range(len(users), eager=True)),
        item_ids=Vocabulary(pl.int_range(num_items, eager=True)),
        source_rows=rows["source_row"].to_numpy() if "source_row" in rows.columns else None,
        **values_in(rows),
    )


def rewrite(rows: pl.DataFrame, file: Path) -> None:
    """Replace a file, of which the rows may be a view."""
    file.unlink(missing_ok=True)
    rows.write_parquet(file, row_group_size=_ROW_GROUP, compression="lz4")


def _recode(file: Path, user_codes: Codes, item_codes: Codes) -> None:
    """Replace the codes of a file, and sort it by user."""
    rows = scan_file(file).collect()
    rows = rows.with_columns(user=user_codes[rows["user"]], item=item_codes[rows["item"]])
    rewrite(rows.sort("user", maintain_order=True), file)
