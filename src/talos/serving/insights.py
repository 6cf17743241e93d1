"""What the page shows about a run as a whole: a map of its items, who is in its lists, how good they are.

Each is computed once for a run, when it is first asked for, with a cost that is bounded where the data are large. That
takes up to a few seconds, so it is not done in the thread that makes lists.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from talos.model.measures import by_activity, by_popularity, make_lists, principal_axes, some_of
from talos.model.query import ListQuery, answer
from talos.serving.runs import ServedRun

__all__ = ["exposure", "item_map", "quality"]

MOST_ON_MAP = 100_000
# Scores that are computed for a sample of users; their number is this divided by the number of items.
_BUDGET = 100_000_000
_FEWEST_USERS = 200
_MOST_USERS = 50_000
_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50)
_BY_USER = ("precision", "recall", "ndcg", "mrr")
_LONGEST_TITLE = 100
_MOST_GROUPS = 6  # as many as the page has colours for, beside that of all others
_GRID = 65_535  # coordinates are whole numbers from 0 to this


def item_map(run: ServedRun) -> bytes:
    """Where each item is on the plane, how popular it is, and to which group it belongs: JSON, compressed by gzip."""
    shown = np.arange(len(run.items))
    if len(shown) > MOST_ON_MAP:  # the most popular ones
        shown = np.sort(np.argsort(-run.degrees, kind="stable")[:MOST_ON_MAP])
    points, shares = principal_axes(run.model.vectors.items)
    places = points.numpy()[shown]
    low, high = places.min(0), places.max(0)
    # one scale for both axes, so that distances mean the same in every direction
    scale = _GRID / max(float((high - low).max()), 1e-12)
    x, y = np.ascontiguousarray(np.rint((places - low) * scale).astype(np.int64).T)
    group, names, column = _groups(run.model.attributes, shown)
    titles = None if run.titles is None else run.titles.gather(shown).str.slice(0, _LONGEST_TITLE).to_list()
    body = orjson.dumps(
        {
            "model": run.name,
            "version": run.version,
            "total": len(run.items),
            "variance": shares.tolist(),
            "items": run.items.decode(shown).to_list(),
            "titles": titles,
            "x": x,
            "y": y,
            "popularity": np.ascontiguousarray(run.degrees[shown]),
            "column": column,
            "groups": names,
            "group": group,
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    return gzip.compress(body, 5, mtime=0)


def quality(run: ServedRun) -> dict[str, Any]:
    """Metrics by list length, by activity of users and by popularity of items, on what was held back from the run."""
    test, train = run.model.test, run.model.train
    stored = {"k": run.k, "metrics": run.metrics}
    if not test:
        return {**stored, "users": 0, "of_users": 0, "curves": [], "by_activity": [], "by_popularity": []}
    longest = min(max(run.k, _KS[-1]), len(run.items))
    ks, at = sorted({k for k in (*_KS, run.k) if k <= longest}), min(run.k, longest)
    both = make_lists(run.model, test, ks=ks, most_users=_sample_size(run), seed=0)
    users = both[0].users
    curves = {name: [[one.mean(f"{name}@{k}") for k in ks] for one in both] for name in _BY_USER}
    curves |= {name: [one.exposure[name] for one in both] for name in both[0].exposure}
    recalls = [one.per_user[f"recall@{at}"] for one in both]
    return {
        **stored,
        "users": len(users),
        "of_users": (test.user_degrees > 0).sum(),
        "curves": [
            {"metric": name, "ks": ks, "model": ours, "popularity": theirs}
            for name, (ours, theirs) in curves.items()
        ],
        "by_activity": [
            _slice(name, members.sum(), [recall[members].mean() for recall in recalls])
            for name, members in by_activity(train.user_degrees[users])
        ],
        "by_popularity": [
            _slice(name, size, shares)
            for name, _, size, shares in by_popularity(train.item_degrees, both, test, at)
        ],
    }


def _slice(name: str, size: int, values: Sequence[float]) -> dict[str, Any]:
    return {"name": name, "size": size, "model": values[0], "popularity": values[1]}


def exposure(run: ServedRun) -> tuple[NDArray[np.int64], int]:
    """In how many lists of a sample of users each item is (items,), and how many lists these are."""
    users = np.flatnonzero(run.seen.user_degrees)
    users = users[some_of(np.random.default_rng(0), len(users), _sample_size(run))]
    lists = answer(run.model, ListQuery(users=users, k=min(run.k, len(run.items))))
    return np.bincount(lists.items[lists.items >= 0], minlength=len(run.items)), len(users)


def _sample_size(run: ServedRun) -> int:
    return int(np.clip(_BUDGET // len(run.items), _FEWEST_USERS, _MOST_USERS))


def _groups(
    attributes: pl.DataFrame | None, shown: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, list[str], str | None]:
    """The group of each item, the names of the groups, and the attribute that they are values of.

    The attribute is `category`, or else the first one that is text. Groups are its most frequent values; the last
    group, which has no name, is of items with another value or none. An item with several values counts by the first.
    """
    table = (
        pl.DataFrame()
        if attributes is None
        else attributes.select(cs.string() | cs.by_dtype(pl.List(pl.String)))
    )
    if not table.width:
        return None, [], None
    column = "category" if "category" in table.columns else table.columns[0]
    values = table[column].gather(shown).alias("value")
    values = values if values.dtype == pl.String else values.list.first()
    # by number, then by name: equal runs give equal maps
    counts = values.drop_nulls().value_counts(name="count").sort(["count", "value"], descending=[True, False])
    names = counts["value"].head(_MOST_GROUPS).to_list()
    group = values.replace_strict(names, range(len(names)), default=len(names), return_dtype=pl.Int64)
    return group.to_numpy(), [name[:_LONGEST_TITLE] for name in names], column
