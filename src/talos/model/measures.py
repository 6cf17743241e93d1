"""The numbers behind the plots and the map of a run; no users × items matrix is ever in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.checks import require
from talos.data.interactions import Interactions
from talos.evaluation.evaluate import measure_lists, users_with_tests
from talos.evaluation.metrics import RANKING_METRICS, coverage, exposure_gini, mean_popularity_rank
from talos.evaluation.ranking import DEFAULT_BUDGET, DotScores, FixedScores, Scorer, TopK, is_masked, top_k
from talos.model.model import Model
from talos.model.query import ListQuery, answer

__all__ = [
    "Lists",
    "ScoreSample",
    "by_activity",
    "by_popularity",
    "make_lists",
    "principal_axes",
    "sample_scores",
    "some_of",
]

_Pairs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

# Numbers of train interactions at which the groups of users with few begin, and those of all others.
_FEW = (1, 2, 3, 6, 11)
# Borders of the popularity groups as shares of the catalogue; narrow at the top, where most interactions are.
POPULARITY_SHARES = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)

# Rows of vectors that are copied at a time.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Lists(TopK):
    """Top-K lists of some test users by one scorer, as long as the longest K, and their metrics at each K."""

    ks: tuple[int, ...]
    per_user: dict[str, NDArray[np.float64]]  # recall@20, …: (U,)
    exposure: dict[str, list[float]]  # coverage, popularity_rank and gini: at each K

    def mean(self, metric: str) -> float:
        """The mean of a metric over the users."""
        return float(self.per_user[metric].mean())


def make_lists(
    model: Model, test: Interactions, *, ks: Sequence[int], most_users: int, seed: int
) -> tuple[Lists, Lists]:
    """Lists of the model and of ranking by popularity for the users of `test`, or a random sample of `most_users`.

    The items that a user has seen are masked.
    """
    users = users_with_tests(test)
    users = users[some_of(np.random.default_rng(seed), len(users), most_users)]
    popularity = torch.tensor(model.train.item_degrees)

    def measured(lists: TopK) -> Lists:
        shown = [torch.from_numpy(lists.items[:, :k]) for k in ks]
        return Lists(
            users,
            lists.items,
            lists.scores,
            ks=tuple(ks),
            per_user=measure_lists(lists.items, users, test, ks, tuple(RANKING_METRICS), "standard"),
            exposure={
                "coverage": [coverage(head, test.num_items) for head in shown],
                "popularity_rank": [mean_popularity_rank(head, popularity) for head in shown],
                "gini": [exposure_gini(head, test.num_items) for head in shown],
            },
        )

    by_model = answer(model, ListQuery(users=users, k=ks[-1], mask="trained"))
    by_popularity = top_k(FixedScores(popularity), users, k=ks[-1], seen=model.seen)
    return measured(by_model), measured(by_popularity)


@dataclass(frozen=True)
class ScoreSample:
    """Scores of sampled users, each minus its user's exact threshold; and the thresholds of these users."""

    train: NDArray[np.float64]
    test: NDArray[np.float64]
    negatives: NDArray[np.float64]
    exact: NDArray[np.float64]  # one for each user
    learned: NDArray[np.float64] | None  # one for each user; None for a loss without thresholds


def sample_scores(
    model: Model,
    test: Interactions,
    users: NDArray[np.int64],
    *,
    k: int,
    most_users: int = 1000,
    negatives: int = 100,
    most_scores: int = 50_000,
    seed: int = 0,
) -> ScoreSample:
    """Scores of train items, test items and random other items, relative to the K-th best score over all items.

    At most `most_users` users with `negatives` other items each are sampled, so the cost does not grow with the data.
    """
    rng = np.random.default_rng(seed)
    users = users[model.train.user_degrees[users] > 0]  # the others were not trained on
    users = users[some_of(rng, len(users), most_users)]
    owner = np.repeat(np.arange(len(users)), negatives)
    drawn = rng.integers(0, model.train.num_items, (len(users), negatives))
    other = ~(is_masked(model.seen, users, drawn) | is_masked(test, users, drawn)).ravel()
    found = model.train.pairs_of(users), test.pairs_of(users), (owner[other], drawn.ravel()[other])
    pairs = []
    for owner, items in found:
        some = some_of(rng, len(owner), most_scores)
        pairs.append((owner[some], items[some].astype(np.int64)))
    # without the prior: thresholds are of the scores that were trained
    scorer = DotScores(model.vectors.users, model.vectors.items) if model.has_vectors else model.scorer()
    exact, (of_train, of_test, of_others) = _exact_and_centred(scorer, users, k, pairs)
    learned = model.vectors.thresholds if model.has_vectors else None
    return ScoreSample(
        train=of_train,
        test=of_test,
        negatives=of_others,
        exact=exact,
        learned=None if learned is None else learned[torch.from_numpy(users)].double().numpy(),
    )


def some_of(rng: np.random.Generator, count: int, most: int) -> NDArray[np.int64]:
    """The positions of at most so many of `count`, drawn at random, ascending."""
    return np.sort(rng.choice(count, most, replace=False)) if count > most else np.arange(count)


def _exact_and_centred(
    scorer: Scorer, users: NDArray[np.int64], k: int, pairs: Sequence[_Pairs]
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """The K-th best score of each user, and the scores of (position in `users`, item) pairs minus that of their user.

    Users are scored some at a time; the owners of pairs ascend.
    """
    exact = np.empty(len(users))
    centred = [np.empty(len(owner)) for owner, _ in pairs]
    chunk = max(1, DEFAULT_BUDGET // (4 * scorer.num_items))
    for start in range(0, len(users), chunk):
        block = users[start : start + chunk]
        scores = torch.empty(len(block), scorer.num_items, device=scorer.device)
        scorer.scores(torch.from_numpy(block).to(scorer.device), scores)
        exact[start : start + chunk] = scores.topk(k).values[:, -1].cpu().numpy()
        rows = scores.cpu().numpy()
        for (owner, items), found in zip(pairs, centred, strict=True):
            here = slice(*np.searchsorted(owner, [start, start + len(block)]))
            found[here] = rows[owner[here] - start, items[here]] - exact[owner[here]]
    return exact, centred


def by_activity(degrees: NDArray[np.int64], groups: int = 5) -> list[tuple[str, NDArray[np.bool_]]]:
    """Users in groups by their number of train interactions: label and mask of each group.

    Users with few have groups of their own: 0, 1, 2, 3 to 5, 6 to 10. All others are in groups of about equal size, as
    many as are left of `groups`, at least one.

    >>> [(name, int(who.sum())) for name, who in by_activity(np.array([0, 1, 1, 4, 5, 20, 30, 40, 50]))]
    [('0', 1), ('1', 2), ('4–5', 2), ('20–30', 2), ('40–50', 2)]
    """
    edges = np.array(_FEW)
    many = degrees[degrees >= _FEW[-1]]
    if len(many):
        few = np.unique(np.searchsorted(edges, degrees[degrees < _FEW[-1]], side="right"))
        shares = np.linspace(0, 1, max(1, groups - len(few)) + 1)[1:-1]
        edges = np.unique([*edges, *np.quantile(many, shares, method="higher")])
    place = np.searchsorted(edges, degrees, side="right")
    found = []
    for group in np.unique(place):
        who = place == group
        low, high = int(degrees[who].min()), int(degrees[who].max())
        found.append((f"{low:,}" if low == high else f"{low:,}–{high:,}", who))
    return found


def by_popularity(
    popularity: NDArray[np.int64], lists: Sequence[Lists], test: Interactions, k: int
) -> list[tuple[str, int, int, list[float]]]:
    """Test interactions in groups by their item's popularity rank.

    Returns for each group its label, its items, its test interactions, and for each of `lists` the share of these
    interactions that is in the first `k` of its user's list.
    """
    rank = np.empty(len(popularity), np.int64)
    rank[np.argsort(-popularity, kind="stable")] = np.arange(len(popularity))
    ends = np.ceil(np.array(POPULARITY_SHARES) * len(popularity) - 1e-9).astype(np.int64)
    wanted = rank[test.pairs_of(lists[0].users)[1]]
    shown = [one.items[:, :k] for one in lists]
    hits = [rank[top[is_masked(test, one.users, top)]] for one, top in zip(lists, shown, strict=True)]
    groups = []
    for low, high, start, end in zip(POPULARITY_SHARES, POPULARITY_SHARES[1:], ends, ends[1:], strict=False):
        inside, *found = (int(((places >= start) & (places < end)).sum()) for places in (wanted, *hits))
        if inside:
            name = f"top {high:.0%}" if low == 0 else f"{low * 100:g}–{high * 100:g}"
            groups.append((name, int(end - start), inside, [count / inside for count in found]))
    return groups


@torch.no_grad()
def principal_axes(vectors: Tensor, axes: int = 2) -> tuple[Tensor, Tensor]:
    """Coordinates (N, axes) of unit vectors on the axes along which they vary most, and each axis's share of variance.

    Rows are scaled to length 1 first, so that near points have a large cosine; a row of zeros stays one. This is
    principal component analysis from the d × d covariance: rows are read some at a time. The sign of an axis
    is such that its largest weight is positive: equal vectors give equal maps. Axes beyond the vectors' dimension, or
    without variance, are all zeros.

    Args:
        vectors: (N, d).
        axes: how many.

    >>> points, shares = principal_axes(torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 0.1]]))
    >>> [f"{point:.2f}" for point in points[:, 0].tolist()], [f"{share:.2f}" for share in shares.tolist()]
    (['0.71', '0.71', '-0.71', '-0.71'], ['1.00', '0.00'])
    """
    require(
        vectors.ndim == 2 and len(vectors) > 0,
        f"shape {tuple(vectors.shape)}",
        where="vectors",
        expected="(N, d) with N ≥ 1",
    )

    def unit() -> Iterator[Tensor]:
        return (F.normalize(rows.cpu().double()) for rows in torch.split(vectors, _CHUNK))

    mean = torch.stack([rows.sum(0) for rows in unit()]).sum(0) / len(vectors)
    covariance = torch.stack([(rows - mean).T @ (rows - mean) for rows in unit()]).sum(0) / len(vectors)
    values, weights = (found.flip(-1)[..., :axes] for found in torch.linalg.eigh(covariance))
    varied = values > 1e-12
    weights = weights * weights.gather(0, weights.abs().argmax(0, keepdim=True)).sign() * varied
    missing = (0, max(0, axes - len(values)))
    points = F.pad(torch.cat([(rows - mean) @ weights for rows in unit()]), missing)
    shares = F.pad(values * varied / covariance.trace().clamp(min=1e-12), missing)
    return points.float(), shares.float()
