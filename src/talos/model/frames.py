"""Lists as frames, in the library that the caller works with."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, MissingExtraError
from talos.evaluation.ranking import TopK

__all__ = ["FrameKind", "rows_of", "to_frame"]

FrameKind: TypeAlias = Literal["polars", "pandas"]


def rows_of(lists: TopK, users: pl.Series, item_ids: Vocabulary) -> pl.DataFrame:
    """One row a recommendation: columns user_id, item_id, score, rank; padding is left out.

    >>> from talos.evaluation.ranking import FixedScores, top_k
    >>> import torch
    >>> lists = top_k(FixedScores(torch.tensor([0.5, 0.75])), np.array([0]), k=2, banned=np.array([0]))
    >>> rows_of(lists, pl.Series(["ann"]), Vocabulary.of(["jam", "tea"])).rows()
    [('ann', 'tea', 0.75, 1)]
    """
    rows, columns = np.nonzero(lists.items >= 0)
    values = {
        "user_id": users.gather(rows),
        "item_id": item_ids.decode(lists.items[rows, columns]),
        "score": lists.scores[rows, columns],
        "rank": columns + 1,
    }
    return pl.DataFrame(values)


def to_frame(table: pl.DataFrame, kind: FrameKind) -> Any:
    """The table as a frame of that library.

    >>> to_frame(pl.DataFrame({"rank": [1]}), "spark")
    Traceback (most recent call last):
    talos.errors.ArgumentError: frame: 'spark'; expected polars or pandas
    """
    if kind == "polars":
        return table
    if kind != "pandas":
        raise ArgumentError(f"{kind!r}", where="frame", expected="polars or pandas")
    try:
        return table.to_pandas()
    except ImportError:
        raise MissingExtraError("pandas frames", extra="pandas") from None
