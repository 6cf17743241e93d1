"""Ids that a caller gives → positions in what the model knows."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.vocabulary import Ids, Vocabulary, as_id_series
from talos.errors import ArgumentError

__all__ = ["OnUnknown", "banned_items", "known_codes", "look_up"]

OnUnknown: TypeAlias = Literal["raise", "skip", "popular"]


def look_up(ids: Vocabulary, wanted: Ids, name: str, on_unknown: OnUnknown) -> NDArray[np.int64]:
    """Positions of ids, -1 for those that are not there and may be.

    >>> look_up(Vocabulary.of(["jam", "tea"]), ["tea", "rye"], "item", "skip").tolist()
    [1, -1]
    >>> look_up(Vocabulary.of(["jam", "tea"]), ["tea", "rye"], "item", "raise")
    Traceback (most recent call last):
    talos.errors.ArgumentError: item: no item 'rye'; expected ids that were trained on
    """
    codes = ids.encode(wanted)
    if (codes < 0).any() and on_unknown == "raise":
        first = as_id_series(wanted, name).filter(pl.Series(codes < 0))[0]
        raise ArgumentError(f"no {name} {first!r}", where=name, expected="ids that were trained on")
    return codes


def known_codes(ids: Vocabulary, wanted: Ids, name: str, on_unknown: OnUnknown) -> NDArray[np.int64]:
    """Positions of those ids that are there.

    >>> known_codes(Vocabulary.of(["jam", "tea"]), ["tea", "rye"], "item", "skip").tolist()
    [1]
    """
    codes = look_up(ids, wanted, name, on_unknown)
    return codes[codes >= 0]


def banned_items(
    ids: Vocabulary, candidates: Ids | None, exclude: Ids | None, on_unknown: OnUnknown
) -> NDArray[np.int64] | None:
    """Items that nobody gets; None if there are none.

    >>> banned_items(Vocabulary.of(["fig", "jam", "tea"]), ["jam", "tea"], ["tea"], "raise").tolist()
    [0, 2]
    """
    if candidates is None and exclude is None:
        return None
    allowed = np.full(len(ids), candidates is None)
    if candidates is not None:
        allowed[known_codes(ids, candidates, "candidates", on_unknown)] = True
    if exclude is not None:
        allowed[known_codes(ids, exclude, "exclude", on_unknown)] = False
    return np.flatnonzero(~allowed)
