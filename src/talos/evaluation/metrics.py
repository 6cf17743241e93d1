"""Top-K metrics as pure functions of hits.

Every ranking metric takes

- `hits` (users, L): whether the item at rank 1, 2, …, L of a user's list is one of the user's test items;
  lists with fewer items are padded with `False`;
- `relevant` (users,): how many test items each user has;
- `k`: the length of the list that counts, at most L;

and returns one float64 value for each user.
A user without test items gets 0 and should be left out of a mean, as `talos.evaluate` does.

A dialect defines the names. `standard` has the textbook definitions. `paper` has the definitions of the tables of the
Talos paper. They differ in MRR@K (see `mrr_paper`) and in the items that are masked in the lists: `paper` masks train,
`standard` masks train and validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from talos.checks import require
from talos.errors import ConfigError, nearest

__all__ = [
    "DIALECTS",
    "RANKING_METRICS",
    "Dialect",
    "auc",
    "average_precision",
    "coverage",
    "exposure_gini",
    "hit_rate",
    "llpauc",
    "mean_popularity_rank",
    "mrr",
    "mrr_paper",
    "ndcg",
    "popularity_ranks",
    "precision",
    "ranking_metrics",
    "recall",
]

Dialect: TypeAlias = Literal["standard", "paper"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
Metric: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


def precision(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Precision@K = hits among the first K / K, also where the list is shorter than K.

    >>> precision(torch.tensor([[True, False, True]]), torch.tensor([5]), k=2)
    tensor([0.5000], dtype=torch.float64)
    """
    return _head(hits, relevant, k).sum(1) / k


def recall(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Recall@K = hits among the first K / number of test items.

    >>> recall(torch.tensor([[True, False, True]]), torch.tensor([5]), k=3)
    tensor([0.4000], dtype=torch.float64)
    """
    return _head(hits, relevant, k).sum(1) / relevant.clamp(min=1)


def hit_rate(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """HitRate@K = 1 if any of the first K is a hit, else 0.

    >>> hit_rate(torch.tensor([[False, True], [False, False]]), torch.tensor([1, 1]), k=2)
    tensor([1., 0.], dtype=torch.float64)
    """
    return _head(hits, relevant, k).amax(1)


def ndcg(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """NDCG@K = Σ_{hits at rank r ≤ K} 1/log2(r+1)  /  Σ_{r ≤ min(test items, K)} 1/log2(r+1).

    >>> ndcg(torch.tensor([[False, True]]), torch.tensor([1]), k=2)
    tensor([0.6309], dtype=torch.float64)
    """
    discount = 1 / torch.log2(_ranks(k, hits) + 1)
    ideal = discount.cumsum(0)[relevant.clamp(1, k) - 1]
    return _head(hits, relevant, k) @ discount / ideal


def mrr(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """MRR@K = 1 / rank of the first hit, 0 if none of the first K is one.

    >>> mrr(torch.tensor([[False, True, True]]), torch.tensor([2]), k=3)
    tensor([0.5000], dtype=torch.float64)
    """
    return (_head(hits, relevant, k) / _ranks(k, hits)).amax(1)


def mrr_paper(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """MRR@K of the paper's tables: Σ over all hits of 1/rank, over all users, / number of test interactions.

    The per-user values are scaled by users/interactions, so that their mean is that ratio. The rows must therefore
    be all users of the mean, without those who have no test item.

    >>> mrr_paper(torch.tensor([[True, True], [False, True]]), torch.tensor([2, 1]), k=2).mean()  # 2 / 3
    tensor(0.6667, dtype=torch.float64)
    """
    scale = len(relevant) / max(int(relevant.sum()), 1)
    return (_head(hits, relevant, k) / _ranks(k, hits)).sum(1) * scale


def average_precision(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """AP@K = Σ_{hits at rank r ≤ K} Precision@r  /  min(test items, K); its mean over users is MAP@K.

    >>> average_precision(torch.tensor([[True, False, True]]), torch.tensor([2]), k=3)
    tensor([0.8333], dtype=torch.float64)
    """
    head = _head(hits, relevant, k)
    return (head * head.cumsum(1) / _ranks(k, hits)).sum(1) / relevant.clamp(1, k)


RANKING_METRICS: dict[str, Metric] = {
    "precision": precision,
    "recall": recall,
    "ndcg": ndcg,
    "mrr": mrr,
    "hit_rate": hit_rate,
    "map": average_precision,
}
_PAPER: dict[str, Metric] = {**RANKING_METRICS, "mrr": mrr_paper}


def ranking_metrics(
    hits: Tensor,
    relevant: Tensor,
    ks: Sequence[int],
    *,
    names: Sequence[str] = tuple(RANKING_METRICS),
    dialect: Dialect = "standard",
) -> dict[str, Tensor]:
    """Per-user values of several metrics at several K, by `name@k`.

    >>> hits, relevant = torch.tensor([[True, False]]), torch.tensor([1])
    >>> values = ranking_metrics(hits, relevant, ks=(1, 2), names=["precision"])
    >>> {name: value.item() for name, value in values.items()}
    {'precision@1': 1.0, 'precision@2': 0.5}
    """
    require(
        dialect in DIALECTS,
        f"{dialect!r}",
        where="dialect",
        expected="a dialect",
        hint=nearest(dialect, DIALECTS),
        error=ConfigError,
    )
    functions = _PAPER if dialect == "paper" else RANKING_METRICS
    for name in names:
        require(
            name in functions,
            f"no metric {name!r}",
            where="metrics",
            hint=nearest(name, functions),
            error=ConfigError,
        )
    return {f"{name}@{k}": functions[name](hits, relevant, k) for name in names for k in ks}


def auc(above: Tensor, rows: Tensor, negatives: Tensor) -> Tensor:
    """AUC per user: the fraction of (test item, negative) pairs that are in the right order.

    Args:
        above: (P,) for each test item, how many of its user's negatives score higher, ties counting half.
        rows: (P,) the user of each test item, 0 … users-1.
        negatives: (users,) how many negatives (neither masked nor test items) each user has.

    A user without negatives has every pair in order (1); a user without test items gets 0.

    >>> auc(torch.tensor([0.0, 3.0]), torch.tensor([0, 0]), torch.tensor([4]))
    tensor([0.6250], dtype=torch.float64)
    """
    in_order = 1 - above.double() / negatives.clamp(min=1)[rows]
    sums = torch.zeros(len(negatives), dtype=torch.float64).index_add_(0, rows, in_order)
    return sums / torch.bincount(rows, minlength=len(negatives)).clamp(min=1)


def llpauc(
    above: Tensor, rows: Tensor, negatives: Tensor, *, alpha: float, beta: float, normalise: bool = True
) -> Tensor:
    """Lower-left partial AUC per user (Shi et al., WWW'24): the corner TPR ≤ α, FPR ≤ β of the ROC curve.

    Only the best ⌈α·n⁺⌉ test items and the best ⌈β·n⁻⌉ negatives are compared. The result is divided by the number
    of those pairs, so that a perfect list has 1; with `normalise=False` by all n⁺·n⁻ pairs, as in the definition.
    Arguments as in `auc`; LLPAUC(1, 1) is AUC.

    >>> above, rows, negatives = torch.tensor([0.0, 3.0]), torch.tensor([0, 0]), torch.tensor([4])
    >>> llpauc(above, rows, negatives, alpha=0.5, beta=0.5)
    tensor([1.], dtype=torch.float64)
    """
    for name, fraction in (("alpha", alpha), ("beta", beta)):
        require(0 < fraction <= 1, f"{fraction}", where=name, expected="a fraction above 0, at most 1")
    positives = torch.bincount(rows, minlength=len(negatives))
    best_positives = torch.ceil(alpha * positives - 1e-9).long()
    best_negatives = torch.ceil(beta * negatives - 1e-9)
    order = torch.argsort(above, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]  # by user, the best test items first
    rows, above = rows[order], above[order].double()
    rank = torch.arange(len(above)) - (positives.cumsum(0) - positives)[rows]
    beaten = (best_negatives[rows] - above).clamp(min=0) * (rank < best_positives[rows])
    right = torch.zeros(len(negatives), dtype=torch.float64).index_add_(0, rows, beaten)
    pairs = best_positives * best_negatives if normalise else positives * negatives
    return torch.where((pairs == 0) & (positives > 0), 1.0, right / pairs.clamp(min=1))


def coverage(items: Tensor, num_items: int) -> float:
    """Fraction of the catalogue that is in at least one list; negative entries are padding.

    >>> coverage(torch.tensor([[0, 1], [1, -1]]), num_items=4)
    0.5
    """
    return len(torch.unique(items[items >= 0])) / num_items


def exposure_gini(items: Tensor, num_items: int) -> float:
    """Gini coefficient of the number of lists each item is in: 0 if all are equal, near 1 if a few items dominate.

    >>> exposure_gini(torch.tensor([[0, 1], [2, 3]]), num_items=4)
    0.0
    """
    from talos.data.interactions import gini  # which loads polars

    counts = torch.bincount(items[items >= 0].flatten().long(), minlength=num_items)
    return gini(counts.cpu().numpy())


def mean_popularity_rank(items: Tensor, popularity: Tensor) -> float:
    """Mean popularity rank of recommended items as a fraction of the catalogue; near 0 if all are popular.

    `popularity` (items,) counts train interactions; equal counts get their mean rank.

    >>> mean_popularity_rank(torch.tensor([[0, 1]]), torch.tensor([9, 5, 1, 1]))
    0.375
    """
    recommended = items[items >= 0].long()
    if len(recommended) == 0:
        return 0.0
    return float(popularity_ranks(popularity)[recommended].mean().item() / len(popularity))


def popularity_ranks(popularity: Tensor) -> Tensor:
    """The rank of each item, 1 for the most popular; equal counts get their mean rank.

    >>> popularity_ranks(torch.tensor([9, 1, 5, 1])).tolist()
    [1.0, 3.5, 2.0, 3.5]
    """
    _, level, sizes = torch.unique(-popularity, return_inverse=True, return_counts=True)
    ranks: Tensor = (sizes.cumsum(0) - (sizes - 1) / 2).double()[level]
    return ranks


def _head(hits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """The first k columns as float64, after checking the shapes."""
    require(
        hits.dim() == 2 and relevant.shape == hits.shape[:1],
        f"shapes {tuple(hits.shape)} and {tuple(relevant.shape)}",
        where="hits, relevant",
        expected="(users, length) and (users,)",
    )
    require(
        1 <= k <= hits.shape[1], f"{k}", where="k", expected=f"1 to {hits.shape[1]}, the length of the lists"
    )
    return hits[:, :k].double()


def _ranks(k: int, like: Tensor) -> Tensor:
    return torch.arange(1, k + 1, dtype=torch.float64, device=like.device)
