"""`ReadOptions`: how a source is to be read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from talos.data.readers.columns import WantedColumn
from talos.errors import ArgumentError, nearest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import scipy.sparse

__all__ = ["FORMATS", "IdMode", "ListOptions", "ReadKeywords", "ReadOptions", "Source", "TableKeywords"]

Source: TypeAlias = "str | os.PathLike[str] | pl.DataFrame | pd.DataFrame | scipy.sparse.sparray"
"""What `read` and `read_lists` take."""

OnBadRow = Literal["raise", "skip"]
IdMode = Literal["auto", "string"]

FORMATS = ("amazon", "csv", "inter", "jsonl", "lightgcn", "movielens", "parquet", "text", "tsv")
"""The values of `format=`; `text` has any separator, `amazon` and `movielens` have no header."""

_ALIASES = {"json": "jsonl", "ndjson": "jsonl"}


class TableKeywords(TypedDict, total=False):
    """The keyword arguments of every reader, as described at `ReadOptions`."""

    user: str | None
    item: str | None
    format: str | None
    query: str | None
    table: str | None
    on_bad_row: OnBadRow
    ids: IdMode
    max_bytes: int


class ReadKeywords(TableKeywords, total=False):
    """The keyword arguments of readers of interactions."""

    timestamp: str | None
    rating: str | None
    title: str | None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a source of interactions is to be read: the keyword arguments of `read`, checked on construction.

    The `ArgumentError` about a wrong value has the name of the field as its `where`. Errors found later, in the data,
    name the file; where an option would help, they spell it as Python does: `user='NAME'`, `ids='string'`.

    Attributes:
        user: name of the user column; None (or empty) to guess it from the usual names. The columns of a file without
            header are called "1", "2", ….
        item: name of the item column, guessed likewise.
        timestamp: name of the time column, guessed likewise, "" to leave it out. Numbers are kept, dates become
            seconds since 1970.
        rating: name of the rating column, guessed likewise, "" to leave it out.
        title: name of the column with the item's title, guessed likewise, "" to leave it out.
        format: one of `FORMATS`; None (or empty) to guess it from the file's name and content.
        query: SQL that selects the rows, for a database.
        table: the table to read, for a database with several.
        on_bad_row: "raise" an error for the first row with too few or too many fields, or with an id, timestamp or
            rating that cannot be used; or "skip" such rows and count them.
        ids: "auto" for integers where a column holds nothing else, or "string" to keep all ids strings.
        max_bytes: how large a compressed file may become; 8 GiB unless given.
        string_roles: of "user" and "item", those whose ids stay strings whatever `ids` says.

    >>> ReadOptions(format="ndjson").format
    'jsonl'
    >>> ReadOptions(format="cvs")
    Traceback (most recent call last):
    talos.errors.ArgumentError: format: 'cvs'; expected amazon or csv or ... (did you mean 'csv'...)
    """

    user: str | None = None
    item: str | None = None
    timestamp: str | None = None
    rating: str | None = None
    title: str | None = None
    format: str | None = None
    query: str | None = None
    table: str | None = None
    on_bad_row: OnBadRow = "raise"
    ids: IdMode = "auto"
    max_bytes: int = 8 << 30
    string_roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", _ALIASES.get(self.format or "", self.format) or None)
        choices = {
            "format": (self.format, FORMATS),
            "on_bad_row": (self.on_bad_row, ("raise", "skip")),
            "ids": (self.ids, ("auto", "string")),
        }
        for name, (value, known) in choices.items():
            if value is not None and value not in known:
                raise ArgumentError(
                    repr(value), where=name, expected=" or ".join(known), hint=nearest(str(value), known)
                )
        if self.max_bytes < 1:
            raise ArgumentError(str(self.max_bytes), where="max_bytes", expected="a positive number")

    def ids_of(self, role: str) -> IdMode:
        """`ids` for one role."""
        return "string" if role in self.string_roles else self.ids

    @property
    def wanted(self) -> tuple[WantedColumn, ...]:
        """The columns to look for."""
        return (
            WantedColumn(role="user", kind="id", given=self.user or None, required=True),
            WantedColumn(role="item", kind="id", given=self.item or None, required=True),
            WantedColumn(role="timestamp", kind="time", given=self.timestamp),
            WantedColumn(role="rating", kind="number", given=self.rating),
            WantedColumn(role="title", kind="text", given=self.title),
        )


@dataclass(frozen=True, kw_only=True)
class ListOptions(ReadOptions):
    """How recommendation lists are to be read: with a rank or a score instead of times, ratings and titles.

    Attributes:
        rank: name of the rank column; None to guess it, "" to leave it out.
        score: name of the score column; None to guess it (unless `rank` is given), "" to leave it out.
    """

    timestamp: str | None = field(init=False, default=None)
    rating: str | None = field(init=False, default=None)
    title: str | None = field(init=False, default=None)
    rank: str | None = None
    score: str | None = None

    @property
    def wanted(self) -> tuple[WantedColumn, ...]:
        """The columns to look for."""
        user, item, *_ = super().wanted
        score = "" if self.rank and self.score is None else self.score
        return (
            user,
            item,
            WantedColumn(role="rank", kind="number", given=self.rank),
            WantedColumn(role="score", kind="number", given=score),
        )
