"""The one ranking path: a `ListQuery` in, top-K lists out, for every kind of model.

`Recommender.recommend`, exports, reports and the service state for whom, among which items and how lists are made, and
add nothing to the ranking. A list is made in this order: a vector or a history for every row, scores, popularity
blended in, known and banned items masked, the best selected, similar ones kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.checks import one_of, positive_integer, require
from talos.data.event_weights import event_columns, event_weights
from talos.data.interactions import Interactions, ItemRows
from talos.data.vocabulary import Ids, Vocabulary, as_id_series
from talos.errors import ArgumentError, DataError, MissingExtraError
from talos.evaluation.popularity import popularity_scores
from talos.evaluation.ranking import DEFAULT_BUDGET, FixedScores, Masks, Scorer, TopK, iter_top_k, top_k
from talos.model.attributes import Filter, allowed_items
from talos.model.fold_in import fold_in
from talos.model.model import Mask, Model

__all__ = [
    "BlendedScores",
    "FrameKind",
    "ListQuery",
    "OnUnknown",
    "answer",
    "banned_items",
    "codes_of",
    "diversify",
    "histories_of",
    "iter_answers",
    "latest_items",
    "list_frame",
    "list_query",
    "masks_of",
    "nearest_to",
    "row_vectors",
    "sources_of",
    "to_frame",
]

OnUnknown: TypeAlias = Literal["raise", "skip", "popular"]
FrameKind: TypeAlias = Literal["polars", "pandas"]

# Rows whose vectors and masks are in memory at a time.
_ROWS = 8192
# Vectors of single histories that a model remembers.
_MOST_FOLDED = 100_000
# Diversity chooses among the best this many times K items, and among no fewer than the second number.
_POOL_PER_PLACE = 5
_SMALLEST_POOL = 100
# What the vector of a history depends on; of a backbone that encodes histories also their order.
_COLUMNS = ("indices", "timestamps", "ratings", "repeats")


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """A question: top-K lists for B rows, in positions of the model. `list_query` makes one from ids.

    Attributes:
        users: (B,) the position of each row's user; -1 for a person the model does not know.
        k: list length.
        histories: B rows of items over the model's items. A row with items gets a vector folded in from these; one
            without is ranked by its user's own vector, or by popularity if the user is -1 or has no training events.
        mask: items no list offers: all that a user is `known` to have, those of train and validation (`trained`), or
            `nothing`. The items of a history are masked unless it is `nothing`.
        masked: further items to mask, by row.
        banned: items to mask in every row.
        diversity: 0 (the best scores) to 1, see `diversify`.
        popularity: 0 (the model alone) to 1 (popularity alone), see `BlendedScores`.
        alone: fold in every history by itself and remember its vector, so that the vector does not depend on the
            other rows in its last digits; otherwise all in one batch, which is faster for many.
    """

    users: NDArray[np.int64]
    k: int
    histories: Interactions | None = None
    mask: Mask = "known"
    masked: ItemRows | None = None
    banned: NDArray[np.int64] | None = None
    diversity: float = 0.0
    popularity: float = 0.0
    alone: bool = False

    def __post_init__(self) -> None:
        for name in ("diversity", "popularity"):
            value = getattr(self, name)
            require(
                isinstance(value, int | float | np.floating)
                and not isinstance(value, bool)
                and bool(0 <= value <= 1),
                f"{value!r}",
                where=name,
                expected="a number from 0 to 1",
            )

    def block(self, rows: range) -> ListQuery:
        """The same question about consecutive rows."""
        if rows == range(len(self.users)):
            return self
        return replace(
            self,
            users=self.users[rows.start : rows.stop],
            histories=None if self.histories is None else self.histories.user_range(rows),
            masked=None if self.masked is None else self.masked.user_range(rows),
        )

    @property
    def given(self) -> NDArray[np.int64]:
        """(B,) how many items the history of each row has."""
        return np.zeros(len(self.users), np.int64) if self.histories is None else self.histories.user_degrees


def answer(model: Model, query: ListQuery) -> TopK:
    """The lists of a question in one piece; `users` of the result are the positions of its rows.

    >>> from talos.model.model import Vectors
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> model = Model(scored_by=Vectors(torch.eye(2), torch.eye(2)), train=data)
    >>> answer(model, ListQuery(users=np.array([0, -1]), k=1, mask="nothing")).items.tolist()
    [[0], [0]]
    """
    return TopK.joined(iter_answers(model, query), query.k)


def iter_answers(model: Model, query: ListQuery) -> Iterator[TopK]:
    """The same, some rows at a time: memory does not grow with the number of rows."""
    most = model.train.num_items
    require(1 <= query.k <= most, f"{query.k}", where="k", expected=f"1 to {most:,}, the number of items")
    weights = model.scored_by
    vectors = weights if isinstance(weights, ItemWeights) else model.vectors.items.detach()
    for start in range(0, len(query.users), _ROWS):
        block = query.block(range(start, min(start + _ROWS, len(query.users))))
        scorer: Scorer = _scorer(model, block)
        if query.popularity:
            scorer = BlendedScores(scorer, model.item_degrees, query.popularity)
        length = max(_POOL_PER_PLACE * query.k, _SMALLEST_POOL) if query.diversity else query.k
        rows = np.arange(len(block.users))
        for lists in iter_top_k(
            scorer, rows, k=min(length, most), seen=masks_of(model, block), banned=query.banned
        ):
            chosen = diversify(lists, vectors, k=query.k, diversity=query.diversity)
            yield replace(chosen, users=chosen.users + start)


def row_vectors(model: Model, query: ListQuery) -> tuple[Tensor, NDArray[np.int64]]:
    """The vector of each row (B, d), zero where there is none, and the number of events it was made from (B,)."""
    events, table = _events(model, query), model.vectors.users.detach()
    vectors = table.new_zeros(len(events), table.shape[1])
    trained = np.flatnonzero((query.given == 0) & (events > 0))
    vectors[trained] = table[query.users[trained]]
    rows = np.flatnonzero(query.given)
    if query.histories is not None and len(rows):
        fold = _fold_alone if query.alone else _fold_together
        vectors[rows] = fold(model, query.histories, rows).to(table)
    return vectors, events


def _events(model: Model, query: ListQuery) -> NDArray[np.int64]:
    """How many events each row is ranked by (B,): those of its history, or those its user was trained on."""
    events, own = query.given.copy(), (query.given == 0) & (query.users >= 0)
    events[own] = model.train.user_degrees[query.users[own]]
    return events


def _scorer(model: Model, query: ListQuery) -> Scorer:
    """The scores of the rows of a question."""
    if model.has_vectors:
        return model.prior_scores.of(*row_vectors(model, query))
    learnt = model.train, np.where(query.given > 0, -1, query.users)
    return model.history_scores(_joined(model, query, learnt, query.histories))


def masks_of(model: Model, query: ListQuery) -> ItemRows:
    """The items that are masked in each row of a question."""
    seen = model.masked(query.mask)
    past = [] if seen is None else [(seen, query.users), query.histories]
    return _joined(model, query, *past, query.masked)


def _joined(
    model: Model, query: ListQuery, *sources: Masks | tuple[Masks, NDArray[np.int64]] | None
) -> ItemRows:
    """Items of each row, united over the sources: a source by row, or with the code of each row's user (-1: none)."""
    every = np.arange(len(query.users))
    owners, found = [every[:0]], [np.empty(0, np.int64)]
    for source in (one for one in sources if one is not None):
        masks, codes = source if isinstance(source, tuple) else (source, every)
        rows = np.flatnonzero(codes >= 0)
        owner, items = masks.pairs_of(codes[rows])
        owners.append(rows[owner])
        found.append(np.asarray(items, np.int64))
    return ItemRows.of(
        np.concatenate(owners), np.concatenate(found), num_rows=len(every), num_items=model.train.num_items
    )


# ------------------------------------------------------------------- folding in


def _fold_together(model: Model, histories: Interactions, rows: NDArray[np.int64]) -> Tensor:
    """A vector for the history of each of some rows, by the backbone, the baseline's own means or the loss of training.

    In the loss, items count by age, rating or repeats as in training, where the histories have these columns.
    """
    if model.encoder is not None:
        return model.encoded(latest_items(histories, rows, model.encoder.history))
    places, device = torch.from_numpy(rows), model.vectors.items.device
    indptr = torch.tensor(histories.indptr, device=device)
    indices = torch.tensor(histories.indices, dtype=torch.int64, device=device)
    baseline = model.vector_baseline()
    if baseline is not None:
        return baseline.fold_in(model.vectors.items, indptr, indices)[places]
    weights, events = None, model.config.events
    columns = [getattr(histories, name, None) for name in event_columns(events)]
    if all(column is not None for column in columns):
        weights = event_weights(histories, events)
    with torch.enable_grad():  # some losses take their gradient by autograd
        return fold_in(
            model.vectors.items.detach(),
            indptr,
            indices,
            model.loss(),
            k=model.config.k,
            mean=model.mean_item,
            weights=None if weights is None else torch.from_numpy(weights).to(device),
        ).detach()[places]


def _fold_alone(model: Model, histories: Interactions, rows: NDArray[np.int64]) -> Tensor:
    """The vectors of some rows, each folded in by itself."""
    found = []
    for row in rows.tolist():
        one = histories.user_range(range(row, row + 1))
        order = None if model.encoder is None else one.in_time_order()[0]
        columns = (*(getattr(one, name) for name in _COLUMNS), order)
        key = tuple(None if column is None else column.tobytes() for column in columns)
        vector = model.folded.get(key)
        if vector is None:
            vector = model.folded[key] = _fold_together(model, one, np.zeros(1, np.int64))[0]
            while len(model.folded) > _MOST_FOLDED:
                model.folded.popitem(last=False)
        found.append(vector)
    return torch.stack(found)


def latest_items(histories: Interactions, rows: NDArray[np.int64], count: int) -> Tensor:
    """The last `count` items of some rows in order of time, the latest last, padded with -1 at the front.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8], timestamps=[9, 5, 5])
    >>> latest_items(data, np.array([0, 1]), 3).tolist()
    [[-1, 1, 0], [-1, -1, 1]]
    """
    order, _ = histories.in_time_order()
    places = histories.indptr[rows + 1, None] - np.arange(count, 0, -1)
    items = histories.indices[order[np.maximum(places, 0)]].astype(np.int64)
    return torch.from_numpy(np.where(places < histories.indptr[rows, None], -1, items))


# ------------------------------------------------------------------- popularity and diversity


class BlendedScores:
    """Scores with popularity blended in: (1 - w)·(s - min)/(max - min) + w·log(1 + n)/log(1 + max n).

    s are the scores of one user for all items, n the interactions of each item; both are scaled to 0 … 1, so that w
    means the same for every model. With w = 1 only popularity counts. The scale is taken over all items, masked or
    not: a filter does not change the blend of the items that it leaves.

    >>> from talos.evaluation.ranking import DotScores, top_k
    >>> scorer = DotScores(torch.tensor([[1.0]]), torch.tensor([[0.0], [0.9], [1.0]]))
    >>> top_k(BlendedScores(scorer, np.array([9, 5, 0]), 0.5), [0], k=3).items.tolist()
    [[1, 0, 2]]
    """

    def __init__(self, scorer: Scorer, item_degrees: NDArray[np.integer[Any]], weight: float) -> None:
        self.scorer, self.weight = scorer, weight
        self.num_items, self.device = scorer.num_items, scorer.device
        self.popularity = popularity_scores(item_degrees).to(scorer.device)

    def scores(self, users: Tensor, out: Tensor) -> None:
        """Write the blended scores of `users` (B,) for every item into `out` (B, num_items)."""
        self.scorer.scores(users, out)
        low, high = out.aminmax(dim=1, keepdim=True)
        out.sub_(low).mul_((1 - self.weight) / (high - low).clamp(min=1e-12)).add_(
            self.popularity, alpha=self.weight
        )


def diversify(lists: TopK, item_vectors: Tensor | ItemWeights, *, k: int, diversity: float) -> TopK:
    """Choose `k` items of each list so that they differ: maximal marginal relevance (MMR).

    The first item stays the best one. Each next one has the largest (1 - λ)·r - λ·max_j cos(v, v_j), where λ is
    `diversity`, r the score scaled to 0 … 1 over the list, and j runs over the items chosen so far. Scores stay those
    of the lists, so they need not descend. With λ = 0 the lists are cut at `k` and nothing else.

    Args:
        lists: the pool to choose from, best first; padded with item -1, score -inf.
        item_vectors: (items, d), of any length; or weights between items, whose rows are their vectors.
        k: length of the result.
        diversity: λ, from 0 to 1.

    >>> pool = TopK(np.array([0]), np.array([[0, 1, 2]]), np.array([[1.0, 0.9, 0.5]], np.float32))
    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> diversify(pool, vectors, k=2, diversity=0.5).items.tolist()
    [[0, 2]]
    """
    if diversity == 0.0:
        return TopK(lists.users, lists.items[:, :k], lists.scores[:, :k])
    width = lists.items.shape[1]
    dim = item_vectors.num_items if isinstance(item_vectors, ItemWeights) else item_vectors.shape[1]
    chunk = max(1, DEFAULT_BUDGET // (4 * max(1, width * dim)))
    blocks = (slice(low, low + chunk) for low in range(0, len(lists.items), chunk))
    parts = (TopK(lists.users[one], lists.items[one], lists.scores[one]) for one in blocks)
    return TopK.joined((_diversify(part, item_vectors, k, diversity) for part in parts), min(k, width))


def _diversify(lists: TopK, vectors: Tensor | ItemWeights, k: int, diversity: float) -> TopK:
    """The chosen items of lists that are in memory at a time."""
    items, scores = lists.items, lists.scores
    device = vectors.device if isinstance(vectors, Tensor) else torch.device("cpu")
    pool = F.normalize(vectors[torch.from_numpy(np.maximum(items, 0)).to(device)], dim=-1)  # (B, P, d)
    held = torch.from_numpy(items >= 0).to(device)
    values = torch.from_numpy(scores).to(device).double()
    high = values[:, :1]  # lists are best first
    low = torch.where(held, values, torch.inf).amin(1, keepdim=True)
    relevance = (1 - diversity) * (values - low) / (high - low).clamp(min=1e-12)
    gain = torch.where(held, relevance, -torch.inf)
    nearest = torch.full_like(gain, -torch.inf)
    rows, places = torch.arange(len(items), device=device), []
    for _ in range(min(k, items.shape[1])):
        best = gain.argmax(1)
        places.append(torch.where(gain[rows, best] > -torch.inf, best, -1))
        similar = torch.bmm(pool, pool[rows, best].unsqueeze(-1)).squeeze(-1).double()
        nearest = torch.maximum(nearest, similar)
        held[rows, best] = False
        gain = torch.where(held, relevance - diversity * nearest, -torch.inf)
    chosen = torch.stack(places, 1).cpu().numpy()  # -1 where a list has no more
    found, chosen = chosen >= 0, np.maximum(chosen, 0)
    items = np.where(found, np.take_along_axis(items, chosen, 1), -1)
    scores = np.where(found, np.take_along_axis(scores, chosen, 1), np.float32(-np.inf))
    return TopK(lists.users, items, scores)


# ------------------------------------------------------------------- ids


def codes_of(
    ids: Vocabulary, wanted: Ids | str | int, *, kind: str, where: str, on_unknown: OnUnknown = "raise"
) -> NDArray[np.int64]:
    """The position of each wanted id, or of a single one; -1 for an unknown one unless `on_unknown` is `raise`.

    An integer and the string it is printed as are one id, whichever of them the vocabulary has.

    Args:
        ids: all users or items.
        wanted: ids; they may be of both types.
        kind: user or item, for the error.
        where: the caller's argument, for the error.
        on_unknown: an error for an unknown id (`raise`), or -1.

    >>> items = Vocabulary.of(["jam", "tea"])
    >>> codes_of(items, ["tea", "rye"], kind="item", where="exclude", on_unknown="skip").tolist()
    [1, -1]
    >>> codes_of(Vocabulary.of([5, 7]), ["7", 5, "07", 2**80], kind="item", where="", on_unknown="skip").tolist()
    [1, 0, -1, -1]
    >>> codes_of(items, "rye", kind="item", where="exclude")
    Traceback (most recent call last):
    talos.errors.ArgumentError: exclude: no item 'rye'; expected items that were trained on
    """
    series = _as_ids(wanted, where)
    codes = ids.encode(series)
    if on_unknown == "raise" and (codes < 0).any():
        first = series[int(np.argmax(codes < 0))]
        integers = ids.ids.dtype.is_integer() and isinstance(first, str)
        raise ArgumentError(
            f"no {kind} {first!r}",
            where=where,
            expected=f"{kind}s that were trained on{', which are integers' if integers else ''}",
        )
    return codes


def _as_ids(wanted: Ids | str | int, where: str) -> pl.Series:
    """Ids, or a single one, as a series; as strings if they are of both types or beyond 64 bits."""
    listed: Any = wanted
    if not isinstance(wanted, pl.Series | np.ndarray):
        known = isinstance(wanted, str | int | np.integer | Iterable)
        require(known, f"a {type(wanted).__name__}", where=where, expected="an id, or several")
        listed = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    try:
        return as_id_series(listed, where)
    except DataError:
        if not isinstance(listed, list) or not all(isinstance(one, str | int) for one in listed):
            raise
        return as_id_series([str(one) for one in listed], where)


def banned_items(
    model: Model,
    *,
    candidates: Ids | None = None,
    exclude: Ids | None = None,
    filter: Filter | None = None,  # noqa: A002
    on_unknown: OnUnknown = "raise",
) -> NDArray[np.int64] | None:
    """Positions of the items that may not be recommended; None if all may."""
    ids = model.train.item_ids
    free = np.full(len(ids), candidates is None)
    for where, wanted, flag in (("candidates", candidates, True), ("exclude", exclude, False)):
        if wanted is not None:
            codes = codes_of(ids, wanted, kind="item", where=where, on_unknown=on_unknown)
            free[codes[codes >= 0]] = flag
    if filter is not None:
        free &= allowed_items(model.attributes, model.train.item_titles, filter)
    return None if free.all() else np.flatnonzero(~free)


def histories_of(model: Model, history: Ids | Interactions, on_unknown: OnUnknown = "raise") -> Interactions:
    """Histories as interactions with the model's items; items alone are one history, of a user named `history`."""
    people, items, columns = Vocabulary.of(["history"]), history, dict[str, Any]()
    if isinstance(history, Interactions):
        people, items = history.user_ids, history.item_ids.decode(history.indices)
        columns = {name: getattr(history, name) for name in (*_COLUMNS[1:], "source_rows")}
    ids = model.train.item_ids
    codes = codes_of(ids, cast(Ids, items), kind="item", where="history", on_unknown=on_unknown)
    rows = history.rows if isinstance(history, Interactions) else np.zeros(len(codes), np.int32)
    found = codes >= 0
    columns = {name: values[found] for name, values in columns.items() if values is not None}
    return Interactions.from_codes(rows[found], codes[found], user_ids=people, item_ids=ids, **columns)


def list_query(
    model: Model,
    users: Ids | str | int | None = None,
    *,
    k: int | None = None,
    history: Ids | Interactions | None = None,
    candidates: Ids | None = None,
    exclude: Ids | None = None,
    filter: Filter | None = None,  # noqa: A002
    diversity: float = 0.0,
    popularity: float = 0.0,
    filter_seen: bool = True,
    for_test: bool = False,
    on_unknown: OnUnknown = "raise",
) -> tuple[ListQuery, pl.Series]:
    """A question in the caller's ids, as `Recommender.recommend` takes it, and the id of each row."""
    require(users is None or history is None, "both given", where="users, history", expected="one of them")
    require(filter_seen or not for_test, "without filter_seen", where="for_test", expected="one of them")
    one_of("on_unknown", on_unknown, get_args(OnUnknown))
    k = model.config.k if k is None else positive_integer("k", k)
    known, histories = model.train.user_ids, None
    if history is not None:
        histories = histories_of(model, history, on_unknown)
        codes, named = np.full(histories.num_users, -1, np.int64), histories.user_ids.ids
    elif users is None:
        codes, named = np.arange(len(known)), known.ids
    else:
        named = _as_ids(users, "users")
        codes = codes_of(known, named, kind="user", where="users", on_unknown=on_unknown)
        codes = codes[codes >= 0] if on_unknown == "skip" else codes
        # in the model's type if they are its users
        named = known.decode(codes) if (codes >= 0).all() else named
    query = ListQuery(
        users=codes,
        k=k,
        histories=histories,
        mask="trained" if for_test else "known" if filter_seen else "nothing",
        banned=banned_items(
            model, candidates=candidates, exclude=exclude, filter=filter, on_unknown=on_unknown
        ),
        diversity=diversity,
        popularity=popularity,
    )
    return query, named


# ------------------------------------------------------------------- results


def list_frame(lists: TopK, users: pl.Series, item_ids: Vocabulary) -> pl.DataFrame:
    """Lists as one row per recommendation, without padding: columns user_id, item_id, score, rank.

    `users` has the id of each row of the question.

    >>> lists = TopK(np.array([0]), np.array([[1, -1]]), np.array([[0.75, -np.inf]], np.float32))
    >>> list_frame(lists, pl.Series(["ann"]), Vocabulary.of(["jam", "tea"])).rows()
    [('ann', 'tea', 0.75, 1)]
    """
    rows, columns = np.nonzero(lists.items >= 0)
    return pl.DataFrame(
        {
            "user_id": users.gather(lists.users[rows]),
            "item_id": item_ids.decode(lists.items[rows, columns]),
            "score": lists.scores[rows, columns],
            "rank": columns + 1,
        }
    )


def to_frame(table: pl.DataFrame, kind: FrameKind) -> Any:
    """A polars frame as a frame of the library that the caller wants.

    >>> to_frame(pl.DataFrame({"rank": [1]}), "spark")
    Traceback (most recent call last):
    talos.errors.ArgumentError: frame: 'spark'; expected polars or pandas
    """
    require(kind in ("polars", "pandas"), f"{kind!r}", where="frame", expected="polars or pandas")
    try:
        return table if kind == "polars" else table.to_pandas()
    except ImportError:
        raise MissingExtraError("pandas frames", extra="pandas") from None


def nearest_to(model: Model, kind: Literal["user", "item"], one: str | int, k: int) -> TopK:
    """The users or items nearest to one, by the cosine of their vectors: one list.

    In a model of weights between items, the items that this item alone speaks for most.
    """
    positive_integer("k", k)
    ids = model.train.user_ids if kind == "user" else model.train.item_ids
    (code,) = codes_of(ids, one, kind=kind, where=kind)
    degrees = model.train.user_degrees if kind == "user" else model.item_degrees
    require(
        degrees[code] > 0,
        f"{kind} {one!r} has no training events",
        where=kind,
        expected=f"a {kind} that was trained on",
    )
    k = min(k, len(ids))
    if kind == "item" and not model.has_vectors:
        return answer(model, ListQuery(users=np.array([-1]), histories=histories_of(model, [one]), k=k))
    vectors = (model.vectors.users if kind == "user" else model.vectors.items).detach()
    baseline = model.vector_baseline()
    require(
        baseline is None or baseline.compares_items,
        f"the vectors of {type(baseline).__name__} say nothing about similar {kind}s",
        where=f"similar_{kind}s",
        expected="another model",
    )
    lengths = model.lengths[kind]
    cosines = (vectors @ vectors[code]) / (lengths * lengths[code])
    return top_k(FixedScores(cosines), [0], k=k, banned=np.union1d(np.flatnonzero(degrees == 0), [code]))


def sources_of(model: Model, query: ListQuery) -> list[str]:
    """What each row is ranked by: `folded` from its history, the `model`'s own vector, or as `popular`."""
    found = np.select([query.given > 0, _events(model, query) > 0], ["folded", "model"], "popular")
    return list(map(str, found))
