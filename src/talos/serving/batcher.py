"""One thread makes all lists of a worker: requests that wait together become one question to `talos.model.query`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import ItemRows
from talos.model.explain import shares_of
from talos.model.query import ListQuery, answer, banned_items, sources_of
from talos.serving.metrics import Metrics
from talos.serving.runs import ServedRun, encode
from talos.serving.schemas import IdField, RecommendBody

__all__ = ["Batcher", "ListRequest", "numbered"]

_REASONS = 3

_Lists: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class ListRequest:
    """The lists that a body asks for, their length, and the run that makes them even if it is replaced meanwhile."""

    run: ServedRun
    body: RecommendBody
    k: int

    @property
    def users(self) -> Sequence[IdField | None]:
        """The user of each list; None is a visitor."""
        return self.body.users or (None,)

    @property
    def group(self) -> tuple[Any, ...]:
        """Requests with the same one are ranked together: they differ in users, history, exclude and k alone."""
        body = self.body
        alone = id(self) if body.candidates is not None else None
        k = (self.k, body.offset) if body.diversity else None  # the items to choose from depend on it
        return id(self.run), body.filter_json, body.diversity, body.popularity, body.filter_seen, k, alone


class Batcher:
    """The ranking thread, and the requests that wait for it.

    Args:
        metrics: counts batches and lists.
        max_rows: most lists in a batch.

    Attributes:
        thread: the ranking thread.
    """

    def __init__(self, metrics: Metrics, *, max_rows: int) -> None:
        self._metrics, self._max_rows = metrics, max_rows
        self.thread = ThreadPoolExecutor(1, "ranking")
        self._waiting: dict[Future[_Lists], ListRequest] = {}

    async def lists(self, request: ListRequest) -> _Lists:
        """The results of a request, ranked together with those of its group that wait at the same time."""
        future: Future[_Lists] = Future()
        self._waiting[future] = request
        self.thread.submit(self._work)
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        """Answer the request that has waited longest, if any does, and with it those of its group."""
        batch: dict[Future[_Lists], ListRequest] = {}
        group, rows = None, 0
        for future, request in list(self._waiting.items()):
            if rows < self._max_rows and group in (None, request.group):
                del self._waiting[future]
                if future.set_running_or_notify_cancel():  # else it was given up while it waited
                    batch[future], group, rows = request, request.group, rows + len(request.users)
        if batch:
            self._metrics.count(batches=1, batched_requests=len(batch))
            self._answer(batch)

    def _answer(self, batch: dict[Future[_Lists], ListRequest]) -> None:
        try:
            for future, lists in zip(batch, self._lists(list(batch.values())), strict=True):
                future.set_result(lists)
        except Exception as error:
            for future, request in batch.items():
                if len(batch) == 1:
                    future.set_exception(error)
                else:  # one of them is to blame
                    self._answer({future: request})

    def _lists(self, requests: Sequence[ListRequest]) -> list[_Lists]:
        """The results of requests that are ranked together."""
        run, body = requests[0].run, requests[0].body
        owner = np.repeat(np.arange(len(requests)), [len(request.users) for request in requests])
        users, codes = run.find_users([user for request in requests for user in request.users])
        visits = _items_by_row(run, [request.body.history or () for request in requests], owner)
        excluded = _items_by_row(run, [request.body.exclude for request in requests], owner)
        banned = run.banned(body.filter_json)
        if body.candidates is not None:  # these requests are alone in their batch
            wanted = json.loads(body.filter_json) or None
            banned = banned_items(run.model, candidates=body.candidates, filter=wanted, on_unknown="skip")
        query = ListQuery(
            users=codes,
            histories=run.histories(users, codes, visits),
            k=min(max(request.k + request.body.offset for request in requests), len(run.items)),
            mask="known" if body.filter_seen else "nothing",
            masked=excluded,
            banned=banned,
            diversity=body.diversity,
            popularity=body.popularity,
            alone=True,
        )
        lists, sources = answer(run.model, query), sources_of(run.model, query)
        self._metrics.count(lists=len(owner), folded_users=sources.count("folded"))
        rows = [requests[number] for number in owner.tolist()]
        cuts = [slice(request.body.offset, request.body.offset + request.k) for request in rows]
        places = [items[cut][items[cut] >= 0] for items, cut in zip(lists.items, cuts, strict=True)]
        # names of all lists at once: looking them up costs as much for one item as for a thousand
        named = iter(run.describe(np.concatenate(places)))
        found: list[_Lists] = [[] for _ in requests]
        for row, (held, cut) in enumerate(zip(places, cuts, strict=True)):
            scores = lists.scores[row][cut][: len(held)].tolist()
            items = numbered(list(islice(named, len(held))), scores, cut.start + 1)
            if rows[row].body.explain:
                reasons = _reasons(run, query.block(range(row, row + 1)), sources[row], held)
                items = [{**one, "reasons": why} for one, why in zip(items, reasons, strict=True)]
            found[owner[row]].append({"user": users[row], "source": sources[row], "items": items})
        return found


def numbered(
    named: Sequence[dict[str, Any]], scores: Sequence[float], first: int = 1
) -> list[dict[str, Any]]:
    """Items or users with their scores and ranks."""
    return [
        {**one, "score": score, "rank": rank}
        for rank, (one, score) in enumerate(zip(named, scores, strict=True), first)
    ]


def _items_by_row(
    run: ServedRun, wanted: Sequence[Sequence[IdField]], owner: NDArray[np.int64]
) -> ItemRows | None:
    """The items that the request of each row names, without unknown ones; None if there are none."""
    if not any(wanted):
        return None
    codes = encode(run.items, list(chain.from_iterable(wanted)))
    which, count = np.repeat(np.arange(len(wanted)), list(map(len, wanted))), len(run.items)
    by_request = ItemRows.of(which[codes >= 0], codes[codes >= 0], num_rows=len(wanted), num_items=count)
    return ItemRows.of(*by_request.pairs_of(owner), num_rows=len(owner), num_items=count)


def _reasons(run: ServedRun, query: ListQuery, source: str, places: NDArray[np.int64]) -> list[_Lists]:
    """The few strongest reasons for each item of one row: item, title and share; none where the model knows none."""
    explains = run.model.config.baseline is None or not run.model.has_vectors
    if source == "folded" and query.histories is not None:
        _, past = query.histories.pairs_of(np.zeros(1, np.int64))
    else:
        _, past = run.seen.pairs_of(query.users[query.users >= 0])
    if source == "popular" or not len(past) or not len(places) or not explains:
        return [[] for _ in places]
    shares = shares_of(run.model, query, past.astype(np.int64), places)
    best, named = shares.topk(min(_REASONS, len(past)), dim=0), run.describe(past)
    return [
        [{**named[code], "share": value} for code, value in zip(*column, strict=True) if value > 0]
        for column in zip(best.indices.T.tolist(), best.values.T.tolist(), strict=True)
    ]
