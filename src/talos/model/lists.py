"""Between the caller's ids and the model's positions: which items may be recommended, and lists as frames."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.vocabulary import Ids, Vocabulary, as_id_series
from talos.errors import ArgumentError, MissingExtraError
from talos.evaluation.ranking import TopK

__all__ = ["FrameKind", "OnUnknown", "banned_items", "list_frame", "positions", "to_frame"]

OnUnknown: TypeAlias = Literal["raise", "skip", "popular"]
FrameKind: TypeAlias = Literal["polars", "pandas"]


def positions(
    ids: Vocabulary, wanted: Ids, *, kind: str, where: str, on_unknown: OnUnknown = "raise"
) -> NDArray[np.int64]:
    """The position of each wanted id, -1 for an unknown one unless `on_unknown` is `raise`.

    The error says `kind` (user or item) and `where`, the caller's argument.

    >>> items = Vocabulary.of(["jam", "tea"])
    >>> positions(items, ["tea", "rye"], kind="item", where="exclude", on_unknown="skip").tolist()
    [1, -1]
    >>> positions(items, ["tea", "rye"], kind="item", where="exclude")
    Traceback (most recent call last):
    talos.errors.ArgumentError: exclude: no item 'rye'; expected items that were trained on
    """
    codes = ids.encode(wanted)
    if on_unknown == "raise" and (codes < 0).any():
        first = as_id_series(wanted, where).filter(pl.Series(codes < 0))[0]
        raise ArgumentError(f"no {kind} {first!r}", where=where, expected=f"{kind}s that were trained on")
    return codes


def banned_items(
    ids: Vocabulary,
    candidates: Ids | None,
    exclude: Ids | None,
    on_unknown: OnUnknown = "raise",
    *,
    filtered: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64] | None:
    """Positions of the items that may not be recommended; None if all may.

    `filtered` (items,) says which items a filter lets through.

    >>> banned_items(Vocabulary.of(["fig", "jam", "tea"]), ["jam", "tea"], ["tea"]).tolist()
    [0, 2]
    """
    allowed = np.full(len(ids), candidates is None)
    for where, wanted, flag in (("candidates", candidates, True), ("exclude", exclude, False)):
        if wanted is not None:
            codes = positions(ids, wanted, kind="item", where=where, on_unknown=on_unknown)
            allowed[codes[codes >= 0]] = flag
    if filtered is not None:
        allowed &= filtered
    return None if allowed.all() else np.flatnonzero(~allowed)


def list_frame(lists: TopK, users: pl.Series, item_ids: Vocabulary) -> pl.DataFrame:
    """Lists as one row per recommendation, without padding: columns user_id, item_id, score, rank.

    `users` (B,) has the id of each list's user.

    >>> from talos.evaluation.ranking import FixedScores, top_k
    >>> import torch
    >>> lists = top_k(FixedScores(torch.tensor([0.5, 0.75])), np.array([0]), k=2, banned=np.array([0]))
    >>> list_frame(lists, pl.Series(["ann"]), Vocabulary.of(["jam", "tea"])).rows()
    [('ann', 'tea', 0.75, 1)]
    """
    rows, columns = np.nonzero(lists.items >= 0)
    items, scores = item_ids.decode(lists.items[rows, columns]), lists.scores[rows, columns]
    return pl.DataFrame(
        {"user_id": users.gather(rows), "item_id": items, "score": scores, "rank": columns + 1}
    )


def to_frame(table: pl.DataFrame, kind: FrameKind) -> Any:
    """A polars frame as a frame of the library that the caller wants.

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
