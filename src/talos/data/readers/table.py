"""What every reader returns before it becomes Interactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl

from talos.errors import DataError

__all__ = ["Table", "polars_errors"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Clean columns named by role, and how they came about."""

    frame: pl.DataFrame
    source: str
    format: str
    rows: int
    bad_rows: int = 0
    notes: tuple[str, ...] = ()


@contextmanager
def polars_errors(where: str, expected: str = "data that can be parsed") -> Iterator[None]:
    """Turn whatever polars raises, panics included, into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        ValueError,
        TypeError,
        OverflowError,
    ) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise DataError(f"cannot be read ({reason})", where=where, expected=expected) from error
