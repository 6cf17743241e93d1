"""Measure top-K lists on a test set: ranking and metrics combined into a `Report`.

Metrics are means over the users who have at least one test item. Per-user values are kept, so that
`talos.significance` can compare two reports user by user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.checks import is_integer, require
from talos.data.interactions import Interactions, gini
from talos.data.vocabulary import as_id_series
from talos.distributed import SINGLE_PROCESS, Group, current
from talos.errors import ConfigError, DataError, nearest
from talos.evaluation.metrics import (
    RANKING_METRICS,
    Dialect,
    auc,
    llpauc,
    popularity_ranks,
    ranking_metrics,
)
from talos.evaluation.ranking import DEFAULT_BUDGET, FixedScores, Scorer, mask_seen, top_k

if TYPE_CHECKING:
    from talos.distributed.share import Share

__all__ = ["DEFAULT_KS", "DEFAULT_METRICS", "Report", "evaluate", "evaluate_lists", "popularity_report"]

DEFAULT_KS = (10, 20, 50)
DEFAULT_METRICS = tuple(RANKING_METRICS)
# α and β are those that the authors of LLPAUC found best on average.
FULL_RANKING_METRICS: Mapping[str, Callable[..., Tensor]] = {
    "auc": auc,
    "llpauc": partial(llpauc, alpha=0.7, beta=0.1),
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Metrics of one set of lists on one test set; prints as a table, `as_dict` for JSON.

    Attributes:
        metrics: means over users, by names such as `precision@20`.
        per_user: one value for each of `user_ids`; metrics of the lists as a whole (coverage, popularity) have none.
        user_ids: the users with test items. In a group, `user_ids` and `per_user` are those of this process.
        dialect: the definitions of the metrics, see `talos.metrics`.
        users_without_list: users with test items who have no list; they count as zero.
        notes: remarks, such as the number of interactions left out.
        exposure: how many lists each item is in; None if it was not counted.
        total_users: the number of users of all processes, over whom `metrics` are means; None: those of `user_ids`.
    """

    metrics: dict[str, float]
    per_user: dict[str, NDArray[np.float64]] = field(repr=False)
    user_ids: pl.Series = field(repr=False)
    dialect: Dialect
    users_without_list: int = 0
    notes: tuple[str, ...] = ()
    exposure: NDArray[np.int64] | None = field(default=None, repr=False)
    total_users: int | None = None

    @property
    def num_users(self) -> int:
        """The number of users that the means are over."""
        return len(self.user_ids) if self.total_users is None else self.total_users

    def with_note(self, note: str) -> Report:
        """The same report with one more note."""
        return replace(self, notes=(*self.notes, note))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "metrics": dict(self.metrics),
            "users": self.num_users,
            "users_without_list": self.users_without_list,
            "dialect": self.dialect,
            "notes": list(self.notes),
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table with one row for each metric and one column for each K."""
        at_k = [key.split("@") for key in self.metrics if "@" in key]
        ks = sorted({int(k) for _, k in at_k})
        names = list(dict.fromkeys(name for name, _ in at_k))
        rows = [[name, *(_number(self.metrics.get(f"{name}@{k}")) for k in ks)] for name in names]
        rows += [
            [key, _number(value), *[""] * (len(ks) - 1)]
            for key, value in self.metrics.items()
            if "@" not in key
        ]
        return ["metric", *(f"@{k}" for k in ks)], rows

    def __str__(self) -> str:
        header, rows = self.table()
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        pad = ["<", *[">"] * (len(header) - 1)]
        lines = [
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, pad, widths, strict=True))
            for row in [header, *rows]
        ]
        return "\n".join([*lines, f"({self.num_users:,} users, {self.dialect} dialect)", *self.notes])


def evaluate(
    scorer: Scorer,
    test: Interactions,
    *,
    seen: Interactions | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    dialect: Dialect = "standard",
    popularity: NDArray[Any] | None = None,
    budget: int = DEFAULT_BUDGET,
    group: Group = SINGLE_PROCESS,
) -> Report:
    """Rank all items for every user with test items and measure the lists.

    Args:
        scorer: the model's scores.
        test: the test interactions.
        seen: interactions whose items are masked in their users' lists; in the `standard` dialect train and
            validation, in `paper` train alone.
        ks: list lengths.
        metrics: any of `precision, recall, ndcg, mrr, hit_rate, map`, and `auc`, `llpauc`, which need a second
            pass over all scores.
        dialect: the definitions of the metrics, see `talos.metrics`.
        popularity: train interactions per item; adds coverage, popularity rank and exposure Gini of the lists
            at the largest K.
        budget: bytes that a chunk of scores may take.
        group: the processes that evaluate together. Each passes the scores and interactions of its own users, or of
            none. Sums are all-reduced, so every process gets the metrics of all users.

    >>> from talos.evaluation.ranking import FixedScores
    >>> train = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> test = train.where(np.array([True, False, False]))
    >>> evaluate(FixedScores(torch.tensor([1.0, 2.0])), test, ks=[1, 2], metrics=["recall"]).metrics
    {'recall@1': 0.0, 'recall@2': 1.0}
    """
    ks = check_ks(ks, scorer.num_items)
    known = (*RANKING_METRICS, *FULL_RANKING_METRICS)
    for name in metrics:
        if name not in known:
            raise ConfigError(f"no metric {name!r}", where="metrics", hint=nearest(name, known))
    users = np.flatnonzero(test.user_degrees)
    num_users, interactions = group.all_reduce_(torch.tensor([len(users), len(test)])).tolist()
    if not num_users:
        users_with_tests(test)  # raises the error
    items = top_k(scorer, users, k=ks[-1], seen=seen, budget=budget).items
    per_user = measure_lists(items, users, test, ks, [m for m in metrics if m in RANKING_METRICS], dialect)
    if dialect == "paper":  # `mrr_paper` knows the interactions of this process only
        scale = num_users * len(test) / (interactions * max(len(users), 1))
        per_user |= {name: scale * values for name, values in per_user.items() if name.startswith("mrr@")}
    if full := {name: of for name, of in FULL_RANKING_METRICS.items() if name in metrics}:
        order = _negatives_above(scorer, test, users, seen, budget)
        per_user |= {name: of(*order).numpy() for name, of in full.items()}
    sums = torch.tensor([values.sum() for values in per_user.values()], dtype=torch.float64)
    means = dict(zip(per_user, (group.all_reduce_(sums) / num_users).tolist(), strict=True))
    exposure = None
    if popularity is not None:
        shown = torch.bincount(torch.from_numpy(items[items >= 0]), minlength=scorer.num_items)
        exposure = group.all_reduce_(shown).numpy()
        means |= _exposure_metrics(exposure, popularity, ks[-1])
    return Report(
        metrics=means,
        per_user=per_user,
        user_ids=test.user_ids.decode(users),
        dialect=dialect,
        exposure=exposure,
        total_users=num_users,
    )


def _exposure_metrics(exposure: NDArray[np.int64], popularity: NDArray[Any], k: int) -> dict[str, float]:
    """Metrics of all lists together, from the number of lists that each item is in."""
    ranks = popularity_ranks(torch.as_tensor(popularity)).numpy()
    return {
        f"coverage@{k}": int((exposure > 0).sum()) / len(exposure),
        f"popularity_rank@{k}": float(ranks @ exposure) / max(int(exposure.sum()), 1) / len(ranks),
        f"exposure_gini@{k}": gini(exposure),
    }


def popularity_report(
    train: Interactions | Share,
    test: Interactions | Share,
    *,
    seen: Interactions,
    **options: Any,
) -> Report:
    """Metrics of ranking items by their popularity in `train`: the baseline that every model must beat.

    With a `Share`, all processes of the group that was started call this together, each with its own users in `seen`.
    The options are those of `evaluate`.
    """
    scores = FixedScores(torch.tensor(train.item_degrees))
    own, group = (test, SINGLE_PROCESS) if isinstance(test, Interactions) else (test.own, current())
    return evaluate(scores, own, seen=seen, group=group, **options)


def evaluate_lists(
    lists: pl.DataFrame,
    test: Interactions,
    *,
    ks: Sequence[int] = DEFAULT_KS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    dialect: Dialect = "standard",
) -> Report:
    """Measure given lists: rows of `user_id`, `item_id`, `rank` (1 is best).

    A user with test items and no list counts as zero; the report has the number of such users. Lists of users without
    test items are ignored. An item that is not in the test set's vocabulary is a miss.

    >>> lists = pl.DataFrame({"user_id": ["a", "a"], "item_id": ["x", "y"], "rank": [1, 2]})
    >>> test = Interactions.from_ids(["a", "b"], ["y", "x"])
    >>> report = evaluate_lists(lists, test, ks=[2], metrics=["recall"])
    >>> report.metrics, report.users_without_list
    ({'recall@2': 0.5}, 1)
    """
    ks = check_ks(ks, None)
    users = users_with_tests(test)
    codes = {}
    for column, vocabulary in (("user_id", test.user_ids), ("item_id", test.item_ids)):
        ids = as_id_series(lists[column], column)
        codes[column] = vocabulary.encode(ids)
        require(  # "07" is not the integer 7
            ids.dtype == vocabulary.ids.dtype or bool((codes[column] >= 0).all()),
            f"{ids.dtype} ids in the lists, {vocabulary.ids.dtype} ids in the test set, and some do not match",
            where=f"column {column}",
            expected="ids of one type",
            error=DataError,
        )
    row_of_user = np.full(
        test.num_users + 1, -1, np.int64
    )  # the last is that of unknown users, whose code is -1
    row_of_user[users] = np.arange(len(users))
    row = row_of_user[codes["user_id"]]
    missing = len(users) - len(np.unique(row[row >= 0]))
    require(
        missing < len(users),
        "no list is of a user with test items",
        where="lists",
        expected="user ids of the test set",
        error=DataError,
    )
    rank = lists["rank"].to_numpy()
    counted = (row >= 0) & (rank <= ks[-1])
    items = np.full((len(users), ks[-1]), -1, np.int64)
    items[row[counted], rank[counted] - 1] = codes["item_id"][counted]
    per_user = measure_lists(items, users, test, ks, metrics, dialect)
    notes = (
        [f"{missing:,} of {len(users):,} users with test items have no list and count as zero"]
        if missing
        else []
    )
    if not any(values.any() for values in per_user.values()):
        notes.append(
            "no list has a test item: lists for a test part must not leave its items out (--for-test)"
        )
    return Report(
        metrics={name: float(values.mean()) for name, values in per_user.items()},
        per_user=per_user,
        user_ids=test.user_ids.decode(users),
        dialect=dialect,
        users_without_list=missing,
        notes=tuple(notes),
    )


def measure_lists(
    items: NDArray[np.int64],
    users: NDArray[np.int64],
    test: Interactions,
    ks: Sequence[int],
    metrics: Sequence[str],
    dialect: Dialect,
) -> dict[str, NDArray[np.float64]]:
    """Per-user ranking metrics of lists (users, length) of item codes, -1 for padding."""
    # a binary search over (user, item) keys finds whether each listed item is one of its user's test items
    keys = test.rows.astype(np.int64) * test.num_items + test.indices
    listed = np.where(items >= 0, users[:, None] * test.num_items + items, -1)
    found = keys[np.minimum(np.searchsorted(keys, listed), len(keys) - 1)]
    hits, relevant = torch.from_numpy(found == listed), torch.from_numpy(test.user_degrees[users])
    values = ranking_metrics(hits, relevant, ks, names=metrics, dialect=dialect)
    return {name: value.numpy() for name, value in values.items()}


def users_with_tests(test: Interactions) -> NDArray[np.int64]:
    """Codes of the users with test items; an error if there are none."""
    users = np.flatnonzero(test.user_degrees)
    require(
        len(users) > 0,
        "no user has a test item",
        where=test.provenance.source,
        expected="a test set that is not empty",
        error=DataError,
    )
    return users


def check_ks(ks: Sequence[int], num_items: int | None) -> tuple[int, ...]:
    """The list lengths in ascending order without repetition; an error unless each is 1 to `num_items`."""
    require(len(ks) > 0, "none given", where="k", expected="at least one list length", error=ConfigError)
    limit = "1 or more" if num_items is None else f"1 to {num_items:,}, the number of items"
    for k in ks:
        require(is_integer(k), f"{k!r}", where="k", expected="whole numbers", error=ConfigError)
        require(
            k >= 1 and (num_items is None or k <= num_items),
            f"{k}",
            where="k",
            expected=limit,
            error=ConfigError,
        )
    return tuple(sorted(set(ks)))


def _negatives_above(
    scorer: Scorer, test: Interactions, users: NDArray[np.int64], seen: Interactions | None, budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments `above`, `rows` and `negatives` of `auc`."""
    above: list[float] = []
    negatives: list[int] = []
    chunk = max(1, min(len(users), budget // (4 * scorer.num_items)))
    buffer = torch.empty(chunk, scorer.num_items, device=scorer.device)
    for start in range(0, len(users), chunk):
        block = users[start : start + chunk]
        scores = buffer[: len(block)]
        scorer.scores(torch.from_numpy(block).to(scorer.device), scores)
        rows, items = test.pairs_of(block)
        positives = scores[torch.from_numpy(rows), torch.from_numpy(items.astype(np.int64))].cpu().numpy()
        if seen is not None:
            mask_seen(scores, seen, block)
        mask_seen(scores, test, block)  # a user's test items are not each other's negatives
        table = scores.cpu().numpy()
        for row, score in zip(rows, positives, strict=True):  # faster row by row than at once in torch
            others = table[row]
            above.append((np.count_nonzero(others > score) + np.count_nonzero(others >= score)) / 2)
        negatives += [int((row > -np.inf).sum()) for row in table]
    return torch.tensor(above), torch.from_numpy(test.pairs_of(users)[0]), torch.tensor(negatives).long()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
