"""Rows in any order to all rows of some users at a time, by way of the disk.

Each block of rows is sorted by user and written as a run. A sample of all users then says where to cut, and a
range of users is read from all the runs: only the pieces that hold it are touched, because each run is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

__all__ = ["UserRuns"]

# Every so many rows of a run one user is remembered.
_SAMPLED = 256
# Rows that are read together from a run.
_PIECE = 1 << 16


class UserRuns:
    """A `talos.readers.BlockSink` that gives the rows back by user, and knows the title of each item.

    Args:
        folder: an empty one for the runs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = UserRuns(Path(folder))
    ...     runs.add(pl.DataFrame({"user": ["b", "a"], "item": [1, 2]}))
    ...     runs.add(pl.DataFrame({"user": ["a"], "item": [3]}))
    ...     [bucket.rows() for bucket in runs.buckets(100)]
    [[('a', 2), ('a', 3), ('b', 1)]]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.take_back(everything=True)

    def add(self, block: pl.DataFrame) -> None:
        """Write one run; rows of a user stay in the order in which they came."""
        if "title" in block.columns:
            self._titles.append(block.select("item", "title").unique("item", keep="last"))
            block = block.drop("title")
        else:
            self._titled = False
        common = block.columns if self.columns is None else [c for c in self.columns if c in block.columns]
        self.columns = common
        run = block.sort("user", maintain_order=True)
        run.write_parquet(self._path(self.runs), row_group_size=_PIECE)
        self._samples.append(run["user"].gather_every(_SAMPLED))
        self.runs, self.rows = self.runs + 1, self.rows + len(run)

    def commit(self) -> None:
        """What was added so far stays."""
        if self._titled and len(self._titles) > 1:
            self._titles = [pl.concat(self._titles).unique("item", keep="last", maintain_order=True)]
        self._kept = (self.runs, self.rows, self.columns, self._titled, len(self._titles))

    def take_back(self, *, everything: bool = False) -> None:
        """Forget what was added since the last commit, or from the beginning."""
        if everything:
            self._kept: tuple[int, int, list[str] | None, bool, int] = (0, 0, None, True, 0)
            self._samples: list[pl.Series] = []
            self._titles: list[pl.DataFrame] = []
        self.runs, self.rows, self.columns, self._titled, titles = self._kept
        del self._samples[self.runs :], self._titles[titles:]

    def titles_of(self, items: pl.Series) -> pl.Series | None:
        """The title of each item, that of its last row; None where the source has none."""
        if not self._titled or not self._titles:
            return None
        known = pl.concat(self._titles).unique("item", keep="last", maintain_order=True)
        wanted = items.rename("item").to_frame()
        return wanted.join(known, on="item", how="left", maintain_order="left")["title"]

    def buckets(self, rows: int) -> Iterator[pl.DataFrame]:
        """All rows of consecutive users, about `rows` at a time and users ascending; a user is never cut.

        Users are in order within a bucket, and a user's rows are in the order in which they were added.
        """
        cuts = self._cuts(rows)
        for low, high in zip([None, *cuts], [*cuts, None], strict=True):
            user = pl.col("user")
            inside = pl.lit(True) if low is None else user >= low
            inside = inside if high is None else inside & (user < high)
            parts = [
                pl.scan_parquet(self._path(run), glob=False, hive_partitioning=False)
                .filter(inside)
                .select(self.columns or [])
                .collect()
                for run in range(self.runs)
            ]
            bucket = pl.concat(parts, how="vertical_relaxed")
            if len(bucket):
                yield bucket.sort("user", maintain_order=True)

    def _cuts(self, rows: int) -> list[str | int]:
        """Users at which a bucket begins."""
        sample = pl.concat(self._samples).sort()
        every = max(1, rows // _SAMPLED)
        return sample.gather_every(every).unique(maintain_order=True).to_list()[1:]

    def _path(self, run: int) -> Path:
        return self.folder / f"run-{run:06d}.parquet"
