"""What every reader is told."""

from __future__ import annotations

from dataclasses import dataclass

from talos.data.readers.values import IdMode, OnBadRow
from talos.errors import ArgumentError, nearest

__all__ = ["DEFAULT_MAX_BYTES", "FORMATS", "Options"]

DEFAULT_MAX_BYTES = 8 << 30
"""How large a compressed file may become by default: 8 GiB."""

FORMATS = ("amazon", "csv", "inter", "jsonl", "lightgcn", "movielens", "parquet", "text", "tsv")
"""The formats that can be named; `text` is any separator, `amazon` and `movielens` have no header."""

_ALIASES = {"json": "jsonl", "ndjson": "jsonl"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller asked for, apart from columns; checked when it is made.

    >>> Options(format="ndjson").format
    'jsonl'
    >>> Options(format="cvs")
    Traceback (most recent call last):
    talos.errors.ArgumentError: format: 'cvs'; expected amazon or csv or ... (did you mean 'csv'...)
    """

    format: str | None = None
    query: str | None = None
    table: str | None = None
    on_bad_row: OnBadRow = "raise"
    ids: IdMode = "auto"
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        # an empty name is none
        named = _ALIASES.get(self.format, self.format) if self.format else None
        object.__setattr__(self, "format", named)
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
