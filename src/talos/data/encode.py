"""Blocks of rows become `Interactions`: ids become codes as they come, and the text of repeated ids is never held."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import polars as pl

from talos.data.id_column import Growing, IdColumn
from talos.data.interactions import Interactions, Provenance, titles_by_item
from talos.data.options import SourceOptions
from talos.data.read.clean import BadBlockError, clean_ids
from talos.data.source import Pass, Source, read_through
from talos.progress import Progress

__all__ = ["encoded", "id_columns", "read_parts", "read_table", "read_whole"]


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
        columns = id_columns(one)
        frames = []
        for _, block in one:
            for role, column in columns.items():
                column.add(block.frame[role], text=one.text)
            frames.append(block.frame.drop("user", "item"))
        table = pl.concat(frames, how="diagonal_relaxed")
        ids = {role: column.finish() for role, column in columns.items()}
        decoded = {role: vocabulary.decode(codes) for role, (vocabulary, codes) in ids.items()}
        return table.with_columns(**decoded), one.provenance()

    return read_through(source, options, collected, wanted=wanted)


def id_columns(one: Pass) -> dict[str, IdColumn]:
    """The columns of ids of a pass; ids that are bad or have blanks around them need the careful pass."""

    def check(ids: pl.Series) -> None:
        if clean_ids(ids, "ids").ne_missing(ids).any():
            raise BadBlockError

    as_strings = one.options.ids == "string"
    return {role: IdColumn(role, as_strings=as_strings, check=check) for role in ("user", "item")}


def encoded(one: Pass, *, whole: bool) -> dict[str, Interactions]:
    """The interactions of each part of a source, or of all parts together as "all"."""
    columns = id_columns(one)
    values: dict[str, dict[str, Growing]] = {}
    ends: dict[str, int] = {}
    titles: list[pl.DataFrame] | None = []
    with ThreadPoolExecutor(2) as pool:
        for read_from, block in one:
            part, frame = "all" if whole else read_from, block.frame
            if titles is not None and "title" in frame.columns:
                rows = frame.select("item", "title").with_row_index("row", len(columns["item"]))
                titles.append(rows.unique("item", keep="last").select("row", "title"))
            else:
                titles = None
            # Two tables on two threads: the look-ups wait for memory most of the time.
            tasks = [
                pool.submit(column.add, frame[role], text=one.text, expected=one.expected)
                for role, column in columns.items()
            ]
            kept = values.setdefault(part, {})
            for column in frame.drop("user", "item", "title", strict=False):  # times and ratings
                kept.setdefault(f"{column.name}s", Growing()).add(column.to_numpy(), one.expected)
            for task in tasks:
                task.result()
            ends[part] = len(columns["user"])
    # A column is dropped as soon as it is finished: its table of ids takes memory.
    user_ids, user_codes = columns.pop("user").finish()
    item_ids, item_codes = columns.pop("item").finish()
    shown = None
    if titles:
        last = pl.concat(titles).sort("row")
        shown = titles_by_item(item_codes[last["row"].to_numpy()], len(item_ids), last["title"])
    parts, start = {}, 0
    for part, end in ends.items():
        kept = values.pop(part)  # of which only the columns that all blocks have are used
        parts[part] = Interactions.from_codes(
            user_codes[start:end],
            item_codes[start:end],
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=shown,
            provenance=one.provenance(None if whole else part),
            in_place=True,
            **{name: column.values for name, column in kept.items() if len(column) == end - start},
        )
        start = end
    return parts
