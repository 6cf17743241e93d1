"""Recommendation lists made by anybody, for measuring them here."""

from __future__ import annotations

import polars as pl

from talos.data.readers.columns import Role
from talos.data.readers.load import load_table
from talos.data.readers.options import DEFAULT_MAX_BYTES, Options
from talos.data.readers.reading import Source
from talos.data.readers.values import IdMode, OnBadRow
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
    """Read recommendation lists: one row an item of a user's list, with its rank or its score.

    The arguments are those of `read`; any of its sources will do. Where there is a rank it counts, else the
    descending score; equal values keep the order of the file. Ranks need not begin at 1 nor be dense.

    Returns:
        user_id, item_id, rank: the rank dense from 1 for each user, users in the order of the source.

    Raises:
        DataError: a column is missing, neither rank nor score is there, or an item is twice in a list.

    >>> lists = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "score": [0.1, 0.9, 0.5]})
    >>> read_lists(lists).rows()
    [(1, 8, 1), (1, 7, 2), (2, 7, 1)]
    """
    roles = [
        Role(name="user", kind="id", given=user or None, required=True),
        Role(name="item", kind="id", given=item or None, required=True),
        Role(name="rank", kind="number", given=rank),
        Role(name="score", kind="number", given="" if rank and score is None else score),
    ]
    options = Options(
        format=format, query=query, table=table, on_bad_row=on_bad_row, ids=ids, max_bytes=max_bytes
    )
    found = load_table(source, roles, options)
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
