"""Sort rows by user on disk.

Each block of rows is sorted by user and written as a run. A sample of all users then says where to cut them into
ranges, and each range is read from all runs; since a run is sorted, only its row groups within the range are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from talos.data.id_column import are_integers, mixed_ids
from talos.data.parquet import scan_file
from talos.data.read.clean import BadBlockError, unusual_ids

__all__ = ["ExternalSort"]

# One user in so many rows of a run is in the sample.
_SAMPLED = 256
_ROW_GROUP = 1 << 16


class ExternalSort:
    """Rows by user: blocks go in as they come, and buckets of consecutive users come out.

    Args:
        folder: a folder for the runs; its files are removed.
        as_strings: whether integers become strings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = ExternalSort(Path(folder))
    ...     runs.add(pl.DataFrame({"user": ["b", "a"], "item": [1, 2]}))
    ...     runs.add(pl.DataFrame({"user": ["a"], "item": [3]}))
    ...     [bucket.rows() for bucket in runs.buckets(100)]
    [[('a', 2), ('a', 3), ('b', 1)]]
    """

    def __init__(self, folder: Path, *, as_strings: bool = False) -> None:
        self.folder, self.as_strings = folder, as_strings
        for file in folder.iterdir():
            file.unlink()
        self.samples: list[pl.Series] = []  # users of each run, one in `_SAMPLED`
        self.columns: list[str] | None = None  # those that all blocks have
        self.titles: pl.DataFrame | None = None
        self.kinds: dict[str, set[str]] = {"user": set(), "item": set()}

    def add(self, block: pl.DataFrame, *, text: bool = False) -> None:
        """Write one run; the rows of a user stay in their order. Ids of a `text` may be integers in the end."""
        for role in self.kinds:
            block = self._with_ids(block, role, text=text)
        if "title" in block.columns:
            known = [] if self.titles is None else [self.titles]
            both = pl.concat([*known, block.select("item", "title")])
            self.titles = both.unique("item", keep="last", maintain_order=True)
        self.columns = [c for c in self.columns or block.columns if c in block.columns]
        self.samples.append(pl.Series())
        self._write(len(self.samples) - 1, block.drop("title", strict=False))

    def _with_ids(self, block: pl.DataFrame, role: str, *, text: bool) -> pl.DataFrame:
        """A block with ids of the type that those before have; these become strings if the block has strings."""
        ids, kinds = block[role], self.kinds[role]
        kind = "integer" if ids.dtype != pl.String else "text" if text else "string"
        if kind != "integer" and unusual_ids(ids):
            raise BadBlockError
        if self.as_strings:
            return block.with_columns(ids.cast(pl.String))
        spelled = bool(kinds & {"string", "words"})
        if kind == "text" and not are_integers(ids):
            kind = "words"  # text, and no integers
        kinds.add(kind)
        if kinds >= {"integer", "string"} or kinds >= {"integer", "words"}:
            raise mixed_ids(role)
        if kinds & {"string", "words"}:
            if not spelled:
                self._spell(role)
            return block
        return block.with_columns(ids.cast(pl.Int64))

    def _spell(self, role: str) -> None:
        """Strings in place of the integers so far."""
        as_text = pl.col(role).cast(pl.String)
        for number in range(len(self.samples)):
            self._write(number, scan_file(self._path(number)).collect().with_columns(as_text))
        if role == "item" and self.titles is not None:
            self.titles = self.titles.with_columns(as_text)

    def _write(self, number: int, rows: pl.DataFrame) -> None:
        run = rows.sort("user", maintain_order=True)
        run.write_parquet(self._path(number), row_group_size=_ROW_GROUP, compression="lz4")
        self.samples[number] = run["user"].gather_every(_SAMPLED)

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
