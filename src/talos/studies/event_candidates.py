"""The weights of interactions that a race tries: half-lives, ratings and repeats, where the data have them."""

from __future__ import annotations

import numpy as np

from talos.config import EventsConfig
from talos.data.event_weights import in_seconds
from talos.data.interactions import Interactions

__all__ = ["event_candidates"]

# Half-lives that are worth a try, as shares of the time that the interactions of train span.
_SHARES_OF_SPAN = (0.5, 0.25, 0.125)
# A validation part is later than train if so much of it is later than all that its user has in train.
_LATER = 0.9
_DAY = 86_400.0


def event_candidates(train: Interactions, valid: Interactions, events: EventsConfig) -> list[dict[str, str]]:
    """Weights that validation can choose between, as values of the section `events`; what is given is not among them.

    - A half-life, if `valid` is later than `train`: on a part drawn at random old and new interactions are equally
      worth predicting, so forgetting could only lose.
    - Ratings, where they differ and all are above 0; and repeats, where pairs occurred more than once.

    >>> train = Interactions.from_ids([1, 1, 2], [7, 8, 8], timestamps=[0, 86_400, 691_200], ratings=[1, 5, 3])
    >>> later = Interactions.from_ids([1, 2], [9, 7], timestamps=[700_000, 700_000])
    >>> event_candidates(train, later, EventsConfig(weights="rating"))
    [{'half_life': '4d'}, {'half_life': '2d'}, {'half_life': '1d'}]
    >>> event_candidates(train, train, EventsConfig())
    [{'weights': 'rating'}]
    """
    found: list[dict[str, str]] = []
    if events.half_life is None and _is_later(valid, train):
        assert train.timestamps is not None
        seconds = in_seconds(train.timestamps)
        known = seconds[seconds >= 0]
        span = float(np.ptp(known)) / _DAY if len(known) else 0.0
        lives = [f"{span * share:.3g}d" for share in _SHARES_OF_SPAN]
        # a span of a few minutes has no such half-lives, and one of centuries is written in powers of ten
        found += [{"half_life": life} for life in lives if "e" not in life and life != "0d"]
    if events.weights == "equal":
        if train.ratings is not None and len(train) and 0 < train.ratings.min() < train.ratings.max():
            found.append({"weights": "rating"})
        if train.repeats is not None and train.repeats.max(initial=1) > 1:
            found.append({"weights": "repeats"})
    return found


def _is_later(valid: Interactions, train: Interactions) -> bool:
    """Whether most of `valid` happened after all that the same users have in `train`."""
    valid, _ = valid.aligned_to(train)
    if train.timestamps is None or valid.timestamps is None or not len(valid):
        return False
    before, newest = in_seconds(train.timestamps), np.full(train.num_users, -np.inf)
    np.maximum.at(newest, train.rows, np.where(np.isfinite(before), before, -np.inf))
    return bool(np.mean(in_seconds(valid.timestamps) > newest[valid.rows]) >= _LATER)
