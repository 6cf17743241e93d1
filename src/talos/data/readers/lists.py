"""Read recommendation lists that any system made, to evaluate them."""

from __future__ import annotations

import polars as pl

from talos.data.readers.dispatch import load_table
from talos.data.readers.options import DEFAULT_MAX_BYTES, IdMode, ListOptions, OnBadRow, Source
from talos.errors import DataError

__all__ = ["read_lists"]


def read_lists(
    source: Source,
    *,
    user: str | None = None,
    item: str | None = None,
    rank: str | None = None,
    score: str | None = None,
    format: str | None = None,  # noqa: A002
    query: str | None = None,
    table: str | None = None,
    on_bad_row: OnBadRow = "raise",
    ids: IdMode = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> pl.DataFrame:
    """Read recommendation lists: one row per item of a user's list, with its rank or its score.

    Sources and arguments are those of `read`, with columns for rank and score. Lists are ordered by rank if there is
    one, else by descending score; equal values keep the order of the source. Ranks need not start at 1, and may have
    gaps. `rank=""` leaves the rank column out; the score column is not looked for if `rank` is given.

    Returns:
        user_id, item_id, rank: ranks 1, 2, … for each user, users in the order of the source.

    Raises:
        DataError: a column is missing, neither rank nor score is there, or an item is twice in a list.

    >>> lists = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "score": [0.1, 0.9, 0.5]})
    >>> read_lists(lists).rows()
    [(1, 8, 1), (1, 7, 2), (2, 7, 1)]
    """
    options = ListOptions(
        user=user,
        item=item,
        rank=rank,
        score=score,
        format=format,
        query=query,
        table=table,
        on_bad_row=on_bad_row,
        ids=ids,
        max_bytes=max_bytes,
    )
    found = load_table(source, options)
    frame = found.frame
    if "rank" not in frame.columns and "score" not in frame.columns:
        raise DataError("neither ranks nor scores", where=found.source, expected="a column 'rank' or 'score'")
    twice = frame.select(pl.struct("user", "item").is_duplicated().alias("twice"))["twice"]
    if twice.any():
        pair = frame.row(int(twice.arg_max() or 0), named=True)
        raise DataError(
            f"item {pair['item']!r} is more than once in the list of user {pair['user']!r}",
            where=found.source,
            expected="each item once",
        )
    by_rank = "rank" in frame.columns
    order = frame.with_row_index("_row").with_columns(pl.col("_row").min().over("user").alias("_first"))
    order = order.sort(
        "_first", "rank" if by_rank else "score", "_row", descending=[False, not by_rank, False]
    )
    return order.select(
        pl.col("user").alias("user_id"),
        pl.col("item").alias("item_id"),
        (pl.int_range(pl.len()).over("user") + 1).alias("rank"),
    )
