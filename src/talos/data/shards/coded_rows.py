"""All rows of a source on disk, sorted by user, with codes in place of ids; the ids themselves are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path

import numpy as np
import polars as pl

from talos.data.encode import id_columns
from talos.data.interactions import Interactions, Provenance, titles_by_item
from talos.data.parquet import scan_file
from talos.data.shards.index import PARTS
from talos.data.source import Pass
from talos.data.vocabulary import Vocabulary

__all__ = ["CodedRows"]

# Small, because all row groups with a user of a bucket are decoded.
_ROW_GROUP = 1 << 16


@dataclass(frozen=True, kw_only=True)
class CodedRows:
    """Rows in files that are sorted by user; the rows of a user are in the order of the source, file after file.

    Attributes:
        files: with columns `user` and `item`, which are codes, and others.
        columns: those that all files have.
        user_ids: the ids of the codes.
        item_ids: the ids of the codes.
        titles: the title of each item, None if there are none.
        provenance: of the source.

    >>> import tempfile
    >>> data = Interactions.from_ids(["b", "a", "a"], [1, 2, 3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = CodedRows.of(data, Path(folder))
    ...     [(users, bucket.rows()) for users, bucket in rows.buckets(1)]
    [(range(0, 1), [(0, 1), (0, 2)]), (range(1, 2), [(1, 0)])]
    """

    files: Sequence[Path]
    columns: Sequence[str]
    user_ids: Vocabulary
    item_ids: Vocabulary
    titles: pl.Series | None
    provenance: Provenance

    @classmethod
    def read(cls, one: Pass, folder: Path) -> CodedRows:
        """The rows of a pass, each with the number of its `part` where the source is split already."""
        columns = id_columns(one, drained=True)
        blocks, common = list[Path](), list[str]()
        titles = pl.DataFrame(schema={"item": pl.Int32, "title": pl.String})
        for part, block in one:
            rows = block.frame
            if rows.is_empty():
                continue
            for role, column in columns.items():
                column.add(rows[role], text=one.text)
                rows = rows.with_columns(pl.Series(role, column.drain()))
            if one.source.kind == "parts":
                rows = rows.with_columns(part=pl.lit(PARTS.index(part), pl.Int8))
            common = [name for name in (common if blocks else rows.columns) if name in rows.columns]
            if "title" in common:
                titles = titles.vstack(rows.select("item", "title")).unique("item", keep="last")
            blocks.append(folder / f"block-{len(blocks):06d}.parquet")
            rows.drop("title", strict=False).write_parquet(blocks[-1], compression="lz4")
        (user_ids, user_codes), (item_ids, item_codes) = (column.order() for column in columns.values())
        files = [block.with_suffix(".sorted") for block in blocks]
        for unsorted, file in zip(blocks, files, strict=True):
            rows = scan_file(unsorted).collect()
            rows = rows.with_columns(user=user_codes[rows["user"]], item=item_codes[rows["item"]])
            _write(rows.sort("user", maintain_order=True), file)
            unsorted.unlink()
        shown = None
        if "title" in common:
            shown = titles_by_item(item_codes[titles["item"]], len(item_ids), titles["title"])
        return cls(
            files=files,
            columns=[name for name in common if name != "title"],
            user_ids=user_ids,
            item_ids=item_ids,
            titles=shown,
            provenance=one.provenance(),
        )

    @classmethod
    def of(cls, data: Interactions, folder: Path) -> CodedRows:
        """The rows of interactions that are in memory."""
        rows, file = data.to_frame(user=data.rows, item=data.indices), folder / "all.sorted"
        if data.source_rows is not None:
            rows = rows[np.lexsort((data.source_rows, data.rows))]
        _write(rows, file)
        return cls(
            files=[file],
            columns=rows.columns,
            user_ids=data.user_ids,
            item_ids=data.item_ids,
            titles=data.item_titles,
            provenance=data.provenance,
        )

    def buckets(self, rows: int) -> Iterator[tuple[range, pl.DataFrame]]:
        """All rows in buckets of consecutive users, with about so many rows each: these users, and their rows."""
        degrees = np.zeros(len(self.user_ids), np.int64)
        for file in self.files:
            users, counts = np.unique(scan_file(file).select("user").collect(), return_counts=True)
            degrees[users] += counts
        upto = np.cumsum(degrees)
        full = np.searchsorted(upto, np.arange(rows, upto[-1], rows)) + 1
        for users in starmap(range, pairwise(np.unique([0, *full, len(upto)]).tolist())):
            inside = pl.col("user").is_between(users.start, users.stop - 1)
            found = [scan_file(file).filter(inside).select(self.columns).collect() for file in self.files]
            yield users, pl.concat(found, how="vertical_relaxed")


def _write(rows: pl.DataFrame, file: Path) -> None:
    rows.write_parquet(file, row_group_size=_ROW_GROUP, compression="lz4")
