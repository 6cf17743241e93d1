"""Sort rows by user on disk.

Each block of rows is sorted by user and written as a run. A sample of all users then says where to cut them into
ranges, and each range is read from all runs; since a run is sorted, only its row groups within the range are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from talos.data.parquet import scan_file

__all__ = ["ExternalSort"]

# One user in so many rows of a run is in the sample.
_SAMPLED = 256
_ROW_GROUP = 1 << 16


class ExternalSort:
    """A `talos.data.readers.BlockSink` that returns its rows sorted by user, and the title of each item.

    Args:
        folder: an empty folder for the runs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = ExternalSort(Path(folder))
    ...     runs.add(pl.DataFrame({"user": ["b", "a"], "item": [1, 2]}))
    ...     runs.add(pl.DataFrame({"user": ["a"], "item": [3]}))
    ...     [bucket.rows() for bucket in runs.buckets(100)]
    [[('a', 2), ('a', 3), ('b', 1)]]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples: list[pl.Series] = []  # users of each run, one in `_SAMPLED`
        self.columns: list[str] | None = None  # those that all blocks have
        self.titles: pl.DataFrame | None = None
        self.types: dict[str, pl.DataType] = {}  # of the ids of the last block
        self.saved: tuple[int, list[str] | None, pl.DataFrame | None] = (0, None, None)  # by the last commit

    def add(self, block: pl.DataFrame) -> None:
        """Write one run; the rows of a user stay in their order."""
        if "title" in block.columns:
            known = [] if self.titles is None else [self.titles]
            both = pl.concat([*known, block.select("item", "title")])
            self.titles = both.unique("item", keep="last", maintain_order=True)
        self.columns = [c for c in self.columns or block.columns if c in block.columns]
        self.types = {role: block[role].dtype for role in ("user", "item")}
        run = block.drop("title", strict=False).sort("user", maintain_order=True)
        run.write_parquet(self._path(len(self.samples)), row_group_size=_ROW_GROUP, compression="lz4")
        self.samples.append(run["user"].gather_every(_SAMPLED))

    def commit(self) -> None:
        """Keep what was added so far."""
        self.saved = (len(self.samples), self.columns, self.titles)

    def take_back(self, *, everything: bool = False) -> None:
        """Drop what was added since the last commit, or everything."""
        runs, self.columns, self.titles = (0, None, None) if everything else self.saved
        self.saved = (runs, self.columns, self.titles)
        del self.samples[runs:]

    def titles_of(self, items: pl.Series) -> pl.Series | None:
        """The title of each item, from its last row; None if some rows had no title column."""
        if self.titles is None or "title" not in (self.columns or []):
            return None
        wanted = items.rename("item").to_frame()
        return wanted.join(self.titles, on="item", how="left", maintain_order="left")["title"]

    def buckets(self, rows: int) -> Iterator[pl.DataFrame]:
        """All rows, sorted by user, in buckets of about `rows`; all rows of a user are in one bucket.

        The rows of a user are in the order in which they were added.
        """
        cuts, columns = self._cuts(rows), [c for c in self.columns or [] if c != "title"]
        for low, high in zip([None, *cuts], [*cuts, None], strict=True):
            user = pl.col("user")
            inside = pl.lit(True) if low is None else user >= low
            inside = inside if high is None else inside & (user < high)
            parts = [
                scan_file(self._path(run)).filter(inside).select(columns).collect()
                for run in range(len(self.samples))
            ]
            bucket = pl.concat(parts, how="vertical_relaxed")
            if len(bucket):
                yield bucket.sort("user", maintain_order=True)

    def _cuts(self, rows: int) -> list[str | int]:
        """The first user of each bucket but the first."""
        sample = pl.concat(self.samples).sort()
        every = max(1, rows // _SAMPLED)
        return sample.gather_every(every).unique(maintain_order=True).to_list()[1:]

    def _path(self, run: int) -> Path:
        return self.folder / f"run-{run:06d}.parquet"
