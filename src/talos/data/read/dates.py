"""The ways in which files write dates."""

from __future__ import annotations

import polars as pl

__all__ = ["parsed_dates"]

_TIME_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    # Dates with dots have the day first everywhere; dates with slashes are ambiguous.
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
)


def parsed_dates(text: pl.Series) -> pl.Series:
    """Seconds since 1970 of each date in a column of text; null where there is none."""
    seconds = pl.repeat(None, len(text), dtype=pl.Int64, eager=True)
    for layout in _TIME_FORMATS:
        parsed = text.str.to_datetime(layout, strict=False, time_unit="us", ambiguous="null")
        seconds = seconds.fill_null(parsed.dt.epoch("s").cast(pl.Int64))
        if seconds.null_count() == 0:
            break
    return seconds
