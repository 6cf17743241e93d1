"""How much each interaction counts: by its rating, by how often it occurred, by its age, or all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from talos.checks import require
from talos.config import EventsConfig, parse_half_life
from talos.data.interactions import Interactions
from talos.errors import DataError

__all__ = ["event_columns", "event_weights", "in_seconds"]

# The oldest event of a long history still counts this much of the newest.
_LEAST = 1e-4
# The quantile of times from which ages count.
_NEWEST = 0.99
# Seconds: a date before March 1973 among others in a finer unit is taken for one in seconds.
_EARLIEST = 1e8
# The error about data without a column: where, what, expected.
_MISSING = {
    "ratings": ("events.weights", "the data have no ratings", "a column of ratings"),
    "repeats": ("events.weights", "no pair of user and item occurs twice", "events that repeat"),
    "timestamps": ("events.half_life", "the data have no timestamps", "a column of timestamps"),
}


def event_columns(events: EventsConfig) -> tuple[str, ...]:
    """The attributes of `Interactions` that the weights are computed from: whoever keeps interactions keeps these.

    >>> event_columns(EventsConfig(weights="repeats", half_life="30d")), event_columns(EventsConfig())
    (('repeats', 'timestamps'), ())
    """
    by_value = {"rating": ("ratings",), "repeats": ("repeats",), "equal": ()}[events.weights]
    return by_value if events.half_life is None else (*by_value, "timestamps")


def event_weights(train: Interactions, events: EventsConfig) -> NDArray[np.float32] | None:
    """The weight of each interaction (P,), with mean 1; None if all count the same.

    - `weights = "rating"`: in proportion to the rating, which must be above 0. A column of weights is read as ratings.
    - `weights = "repeats"`: 1 + log n for a pair that occurred n times: the hundredth play says less than the second.
    - `half_life = "30d"`: 2^(-age/half-life). The age counts from the 99 % quantile of times and is 0 for later
      interactions, so that a few wrong dates change nothing. An interaction whose time is unknown (below 0) counts
      like the mean of the others.

    Both together multiply.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8], timestamps=[0, 86_400, 86_400])
    >>> event_weights(data, EventsConfig(half_life="1d")).round(2).tolist()
    [0.6..., 1.2..., 1.2...]
    """
    columns: dict[str, Any] = {name: getattr(train, name) for name in event_columns(events)}
    for name, values in columns.items():
        where, what, expected = _MISSING[name]
        require(values is not None, what, where=where, expected=expected, error=DataError)
    weights: NDArray[np.float64] = np.ones(len(train))
    if events.weights == "rating":
        weights = columns["ratings"].astype(np.float64)
        least = weights.min(initial=np.inf)
        require(
            least > 0,
            f"a rating of {least:g}",
            where="events.weights",
            expected="ratings above 0",
            error=DataError,
        )
    if events.weights == "repeats":
        weights = 1 + np.log(columns["repeats"])
    if events.half_life is not None:
        seconds, life = in_seconds(columns["timestamps"]), parse_half_life(events.half_life)
        known = np.isfinite(seconds) & (seconds >= 0)
        newest = np.quantile(seconds[known], _NEWEST, method="higher") if known.any() else 0.0
        decay = np.maximum(np.exp2(np.where(known, np.minimum(seconds - newest, 0.0), 0.0) / life), _LEAST)
        decay[~known] = decay[known].mean() if known.any() else 1.0
        weights = weights * decay
    if not len(weights) or not columns:
        return None
    return np.asarray(weights / weights.mean(), np.float32)


def in_seconds(stamps: NDArray[Any]) -> NDArray[np.float64]:
    """Timestamps in seconds; numbers too large to be seconds of this millennium are milli-, micro- or nanoseconds.

    >>> in_seconds(np.array([1_700_000_000_000])).tolist()
    [1700000000.0]
    >>> in_seconds(np.array([1_700_000_000_000, 1_700_000_000]))
    Traceback (most recent call last):
    talos.errors.DataError: timestamps: 1 of 2 are in another unit than 1700000000000, ...
    """
    if stamps.dtype.kind == "M":
        return stamps.astype("datetime64[us]").astype(np.int64) / 1e6
    values = stamps.astype(np.float64)
    largest = np.nanmax(values, initial=0.0)
    unit = next((unit for unit in (1e9, 1e6, 1e3) if largest > _EARLIEST * unit), None)
    if unit is None:
        return values
    other = (values > 0) & (values / unit < _EARLIEST)
    require(
        not other.any(),
        f"{int(other.sum()):,} of {len(values):,} are in another unit than {largest:.0f}, "
        f"such as {values[other.argmax()]:.0f}",
        where="timestamps",
        expected="one unit",
        error=DataError,
    )
    return values / unit
