"""Blocks of rows become `Interactions`: ids become codes as they come, and the text of repeated ids is never held."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.id_column import Growing, IdColumn
from talos.data.interactions import Interactions, Provenance, titles_by_item
from talos.data.options import SourceOptions
from talos.data.read.clean import BadBlockError, unusual_ids
from talos.data.source import Pass, Source, read_through
from talos.progress import Progress

__all__ = ["encoded", "read_parts", "read_table", "read_whole"]


def read_whole(source: Source, options: SourceOptions, progress: Progress | None = None) -> Interactions:
    """All rows of a source as one table."""
    return read_through(source, options, partial(encoded, whole=True), progress=progress)["all"]


def read_parts(
    source: Source, options: SourceOptions, progress: Progress | None = None
) -> Mapping[str, Interactions]:
    """Each part of a source, over shared vocabularies."""
    return read_through(source, options, partial(encoded, whole=False), progress=progress)


def read_table(
    source: Source, options: SourceOptions, wanted: Mapping[str, str | None]
) -> tuple[pl.DataFrame, Provenance]:
    """The wanted columns of a source, row by row as they are."""

    def collected(one: Pass) -> tuple[pl.DataFrame, Provenance]:
        columns = _columns(one)
        frames = []
        for _, block in one:
            for role, column in columns.items():
                column.add(block.frame[role], text=one.text)
            frames.append(block.frame.drop("user", "item"))
        table = pl.concat(frames, how="diagonal_relaxed")
        for place, (role, column) in enumerate(columns.items()):
            vocabulary, codes = column.finish()
            table.insert_column(place, vocabulary.decode(codes).alias(role))
        return table, one.provenance()

    return read_through(source, options, collected, wanted=wanted)


def _columns(one: Pass) -> dict[str, IdColumn]:
    """The columns of ids of a pass; ids that are bad or have blanks around them need the careful pass."""

    def check(ids: pl.Series) -> None:
        if unusual_ids(ids):
            raise BadBlockError

    as_strings = one.options.ids == "string"
    return {role: IdColumn(role, as_strings=as_strings, check=check) for role in ("user", "item")}


def encoded(one: Pass, *, whole: bool) -> dict[str, Interactions]:
    """The interactions of each part of a source, or of all parts together as "all"."""
    users, items = (columns := _columns(one))["user"], columns["item"]
    values: dict[str, _Values] = {}
    ends: dict[str, int] = {}
    titles: list[pl.DataFrame] | None = []
    with ThreadPoolExecutor(2) as pool:
        for read_from, block in one:
            part, frame = "all" if whole else read_from, block.frame
            if titles is not None and "title" in frame.columns:
                last = (
                    frame.select("item", "title")
                    .with_row_index("row", len(items))
                    .unique("item", keep="last")
                )
                titles.append(last.select("row", "title"))
            else:
                titles = None
            # Two tables on two threads: the look-ups wait for memory most of the time.
            tasks = [
                pool.submit(column.add, frame[role], text=one.text, expected=one.expected)
                for role, column in columns.items()
            ]
            values.setdefault(part, _Values()).add(
                frame.drop("user", "item", "title", strict=False), one.expected
            )
            for task in tasks:
                task.result()
            ends[part] = len(users)
    (user_ids, user_codes), (item_ids, item_codes) = users.finish(), items.finish()
    shown = None
    if titles:
        last = pl.concat(titles).sort("row")
        shown = titles_by_item(item_codes[last["row"].to_numpy()], len(item_ids), last["title"])
    found, start = {}, 0
    for part, end in ends.items():
        found[part] = Interactions.from_codes(
            user_codes[start:end],
            item_codes[start:end],
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=shown,
            provenance=one.provenance(None if whole else part),
            in_place=True,
            **values.pop(part).finish(),
        )
        start = end
    return found


class _Values:
    """Timestamps and ratings, block after block: the columns that all blocks have."""

    def __init__(self) -> None:
        self._columns: dict[str, Growing] | None = None

    def add(self, block: pl.DataFrame, expected: int) -> None:
        """Take the next block."""
        if self._columns is None:
            self._columns = {name: Growing(expected, block[name].to_numpy().dtype) for name in block.columns}
        self._columns = {name: column for name, column in self._columns.items() if name in block.columns}
        for name, column in self._columns.items():
            values = block[name].to_numpy()
            if values.dtype != column.values.dtype:  # whole times in one block, fractions in another
                column.convert(np.float64)
            column.room(len(block))[:] = values

    def finish(self) -> dict[str, NDArray[Any]]:
        """The columns as arguments of `Interactions`."""
        return {f"{name}s": column.values for name, column in (self._columns or {}).items()}
