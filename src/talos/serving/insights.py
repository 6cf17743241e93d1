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
from numpy.typing import NDArray

from talos.model.measures import by_activity, by_popularity, make_lists, principal_axes
from talos.model.query import ListQuery, answer
from talos.serving.runs import ServedRun

__all__ = ["exposure", "item_map", "quality"]

MOST_ON_MAP = 100_000
# Scores that are computed for a sample of users; their number is this divided by the number of items.
_BUDGET = 100_000_000
_FEWEST_USERS = 200
_MOST_USERS = 50_000
_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50)
_BY_USER, _BY_LISTS = ("precision", "recall", "ndcg", "mrr"), ("coverage", "popularity_rank", "gini")
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
    ids = run.items.decode(shown)
    titles = None if run.titles is None else run.titles.gather(shown).str.slice(0, _LONGEST_TITLE)
    body = orjson.dumps(
        {
            "model": run.name,
            "version": run.version,
            "total": len(run.items),
            "variance": shares.tolist(),
            "items": ids.to_list(),
            "titles": None if titles is None else titles.to_list(),
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
    model, k = run.model, run.k
    test = model.test
    found: dict[str, Any] = {
        "k": k, "metrics": run.metrics, "users": 0, "of_users": 0, "curves": [], "by_activity": [],
        "by_popularity": [],
    }  # fmt: skip
    if test is None or len(test) == 0:
        return found
    longest = min(max(k, _KS[-1]), len(run.items))
    ks = sorted({at for at in (*_KS, k) if at <= longest})
    lists, popular = make_lists(model, test, ks=ks, most_users=_sample_size(run), seed=0)
    both = (lists, popular)
    found["users"], found["of_users"] = len(lists.users), int((test.user_degrees > 0).sum())
    values = {name: [[one.mean(f"{name}@{at}") for at in ks] for one in both] for name in _BY_USER}
    values |= {name: [list(map(float, getattr(one, name))) for one in both] for name in _BY_LISTS}
    found["curves"] = [
        {"metric": name, "ks": ks, "model": ours, "popularity": theirs}
        for name, (ours, theirs) in values.items()
    ]
    at = min(k, longest)
    for name, members in by_activity(model.train.user_degrees[lists.users]):
        means = [float(one.per_user[f"recall@{at}"][members].mean()) for one in both]
        found["by_activity"].append(_slice(name, int(members.sum()), means))
    for name, _, pairs, shares in by_popularity(model.train.item_degrees, both, test, at):
        found["by_popularity"].append(_slice(name, pairs, shares))
    return found


def _slice(name: str, size: int, values: Sequence[float]) -> dict[str, Any]:
    return {"name": name, "size": size, "model": values[0], "popularity": values[1]}


def exposure(run: ServedRun) -> tuple[NDArray[np.int64], int]:
    """In how many lists of a sample of users each item is (items,), and how many lists these are."""
    users = np.flatnonzero(run.seen.user_degrees)
    if len(users) > _sample_size(run):
        chosen = np.random.default_rng(0).choice(users, _sample_size(run), replace=False)
        users = np.sort(chosen)
    if len(users) == 0:
        return np.zeros(len(run.items), np.int64), 0
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
    text = [] if attributes is None else [
        name for name, dtype in attributes.schema.items() if dtype in (pl.String, pl.List(pl.String))
    ]  # fmt: skip
    if attributes is None or not text:
        return None, [], None
    column = "category" if "category" in text else text[0]
    values = attributes[column].gather(shown).alias("value")
    if values.dtype != pl.String:
        values = values.list.first()
    # by number, then by name: equal runs give equal maps
    counts = values.drop_nulls().value_counts(name="count").sort(["count", "value"], descending=[True, False])
    names = counts["value"].head(_MOST_GROUPS).to_list()
    place = {name: at for at, name in enumerate(names)}
    group = np.array([place.get(value, len(names)) for value in values.to_list()], np.int64)
    return group, [str(name)[:_LONGEST_TITLE] for name in names], column
