"""One thread makes all lists of a worker: requests that wait together become one batch with one product."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from talos.data.item_rows import ItemRows
from talos.model.explain import shares_of
from talos.model.query import ListQuery, answer, banned_items, sources_of
from talos.serving.feedback import Id
from talos.serving.metrics import Metrics
from talos.serving.runs import ServedRun, encode
from talos.serving.schemas import RecommendBody

__all__ = ["ListRequest", "Ranker", "numbered"]

_REASONS = 3

_Result = TypeVar("_Result")
_Lists: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class ListRequest:
    """The lists that a body asks for, their length, and the run that makes them, whatever replaces it meanwhile."""

    run: ServedRun
    body: RecommendBody
    k: int

    @property
    def users(self) -> Sequence[Id | None]:
        """The user of each list; None is a visitor."""
        return self.body.users or (None,)

    @property
    def group(self) -> tuple[Any, ...]:
        """Requests with the same one are ranked together: they differ in users, history, exclude and k alone."""
        body = self.body
        alone = id(self) if body.candidates is not None else None
        k = (self.k, body.offset) if body.diversity else None  # the items to choose from depend on it
        return id(self.run), body.filter_json, body.diversity, body.popularity, body.filter_seen, k, alone


class Ranker:
    """The ranking thread, and the requests that wait for it.

    Args:
        metrics: counts batches and lists.
        max_rows: most lists in a batch.
    """

    def __init__(self, metrics: Metrics, *, max_rows: int) -> None:
        self._metrics, self._max_rows = metrics, max_rows
        self._thread = ThreadPoolExecutor(1, "ranking")
        self._waiting: deque[tuple[ListRequest, asyncio.Future[_Lists]]] = deque()
        self._draining: asyncio.Task[None] | None = None

    async def lists(self, request: ListRequest) -> _Lists:
        """The results of a request, ranked together with those that wait at the same time."""
        future: asyncio.Future[_Lists] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await future

    async def call(self, work: Callable[[], _Result]) -> _Result:
        """Do something else in the ranking thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Finish what was begun and stop."""
        self._thread.shutdown()

    async def _drain(self) -> None:
        while self._waiting:
            batch, rows = [], 0
            while self._waiting and rows < self._max_rows:
                request, future = self._waiting.popleft()
                if not future.done():  # else its request was given up while it waited
                    batch.append((request, future))
                    rows += len(request.users)
            outcomes = await self.call(partial(self._outcomes, [request for request, _ in batch]))
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _outcomes(self, requests: Sequence[ListRequest]) -> list[_Lists | Exception]:
        """The results of each request, or its error."""
        self._metrics.count("batches")
        self._metrics.count("batched_requests", len(requests))
        groups: dict[Any, list[ListRequest]] = defaultdict(list)
        for request in requests:
            groups[request.group].append(request)
        made = {key: iter(self._of_group(group)) for key, group in groups.items()}
        return [next(made[request.group]) for request in requests]

    def _of_group(self, group: Sequence[ListRequest]) -> Sequence[_Lists | Exception]:
        try:
            return self._lists(group)
        except Exception as error:
            if len(group) == 1:
                return [error]
        return [outcome for one in group for outcome in self._of_group([one])]  # one of them is to blame

    def _lists(self, requests: Sequence[ListRequest]) -> list[_Lists]:
        """The results of requests that are ranked together."""
        run, body = requests[0].run, requests[0].body
        rows = [request for request in requests for _ in request.users]
        users, codes = run.find_users([user for request in requests for user in request.users])
        visits = _items_by_row(run, requests, [request.body.history or () for request in requests])
        excluded = _items_by_row(run, requests, [request.body.exclude for request in requests])
        query = ListQuery(
            users=codes,
            histories=run.histories(users, codes, visits),
            k=min(max(request.k + request.body.offset for request in requests), len(run.items)),
            mask="known" if body.filter_seen else "nothing",
            masked=_joined(excluded, len(run.items)) if any(map(len, excluded)) else None,
            banned=_banned(run, body),
            diversity=body.diversity,
            popularity=body.popularity,
            alone=True,
        )
        lists, sources = answer(run.model, query), sources_of(run.model, query)
        self._metrics.count("lists", len(rows))
        self._metrics.count("folded_users", sources.count("folded"))
        cuts = [slice(request.body.offset, request.body.offset + request.k) for request in rows]
        places = [items[cut][items[cut] >= 0] for items, cut in zip(lists.items, cuts, strict=True)]
        # names of all lists at once: looking them up costs as much for one item as for a thousand
        named = iter(run.describe(np.concatenate(places)))
        results: dict[int, _Lists] = {id(request): [] for request in requests}
        for row, (request, held, cut) in enumerate(zip(rows, places, cuts, strict=True)):
            scores = lists.scores[row][cut][: len(held)].tolist()
            items = numbered(list(islice(named, len(held))), scores, cut.start + 1)
            if request.body.explain:
                reasons = _reasons(run, query.block(range(row, row + 1)), sources[row], held)
                items = [{**one, "reasons": why} for one, why in zip(items, reasons, strict=True)]
            results[id(request)].append({"user": users[row], "source": sources[row], "items": items})
        return list(results.values())


def numbered(
    named: Sequence[dict[str, Any]], scores: Sequence[float], first: int = 1
) -> list[dict[str, Any]]:
    """Items or users with their scores and ranks."""
    pairs = enumerate(zip(named, scores, strict=True), first)
    return [{**one, "score": score, "rank": rank} for rank, (one, score) in pairs]


def _items_by_row(
    run: ServedRun, requests: Sequence[ListRequest], wanted: Sequence[Sequence[Id]]
) -> list[NDArray[np.int64]]:
    """The positions of the distinct items that each request names, for each of its rows."""
    codes = [np.unique(encode(run.items, items)) for items in wanted]
    known = [one[one >= 0] for one in codes]
    return [one for one, request in zip(known, requests, strict=True) for _ in request.users]


def _joined(rows: Sequence[NDArray[np.int64]], num_items: int) -> ItemRows:
    owner = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    return ItemRows.of(owner, np.concatenate(rows), num_rows=len(rows), num_items=num_items)


def _banned(run: ServedRun, body: RecommendBody) -> NDArray[np.int64] | None:
    if body.candidates is None:
        return run.banned(body.filter_json)
    wanted = json.loads(body.filter_json) or None
    return banned_items(run.model, candidates=body.candidates, filter=wanted, on_unknown="skip")


def _reasons(run: ServedRun, query: ListQuery, source: str, places: NDArray[np.int64]) -> list[_Lists]:
    """The few strongest reasons for each item of one row: item, title and share; none where the model knows none."""
    explains = run.model.config.baseline is None or not run.model.has_vectors
    folded = query.histories if source == "folded" else None
    known = query.users[query.users >= 0]
    _, past = run.seen.pairs_of(known) if folded is None else folded.pairs_of(np.zeros(1, np.int64))
    if source == "popular" or not len(past) or not len(places) or not explains:
        return [[] for _ in places]
    shares = shares_of(run.model, query, past.astype(np.int64), places)
    best = shares.topk(min(_REASONS, len(past)), dim=0)
    found = []
    for codes, values in zip(best.indices.T.numpy(), best.values.T.tolist(), strict=True):
        strong = [n for n, value in enumerate(values) if value > 0]
        named = run.describe(past[codes[strong]])
        found.append([{**one, "share": values[n]} for one, n in zip(named, strong, strict=True)])
    return found
