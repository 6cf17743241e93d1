"""One thread makes all lists of a worker: requests that wait together become one batch with one product."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.evaluation.ranking import FixedScores, TopK
from talos.model.explain import reasons
from talos.model.rerank import lists_of
from talos.serving.feedback import Id
from talos.serving.metrics import Metrics
from talos.serving.runs import ServedRun, encode

__all__ = ["ListRequest", "Ranker", "Row", "reasons_of"]

_REASONS = 3


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """Lists for some users, or for one history.

    Attributes:
        run: the run that makes them, whatever replaces it meanwhile.
        users: ids; with none, `history` is the only list.
        history: items of a visitor, and of every user that the run does not know.
        k: length of the lists.
        offset: how many of the best are left out.
        exclude: items that are left out.
        candidates: the only items that may be in a list; None for all.
        filter: conditions on attributes.
        diversity: 0 to 1.
        popularity: 0 to 1.
        filter_seen: leave out what the user has.
        explain: add reasons.
    """

    run: ServedRun
    users: Sequence[Id] = ()
    history: Sequence[Id] | None = None
    k: int = 10
    offset: int = 0
    exclude: Sequence[Id] = ()
    candidates: Sequence[Id] | None = None
    filter: dict[str, Any] | None = None
    diversity: float = 0.0
    popularity: float = 0.0
    filter_seen: bool = True
    explain: bool = False

    @property
    def rows(self) -> int:
        """How many lists it asks for."""
        return max(1, len(self.users))


@dataclass
class Row:
    """One list to make.

    Attributes:
        user: for whom; None for a history.
        source: what makes it, as answers say it.
        vector: None for the most popular items.
        past: positions of the items that the vector was made from: what reasons are about.
        events: how many events the vector was made from.
        known: positions of all items that the user is known to have, which no list offers.
    """

    user: Id | None
    source: str
    vector: Tensor | None
    past: NDArray[np.int64]
    known: NDArray[np.int64]
    events: int = 0


@dataclass
class _Job:
    work: Callable[[], Any] | ListRequest
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class _Masks:
    """The items that are masked in each row; stands in for `Interactions` where lists are made."""

    owner: NDArray[np.int64]  # ascending
    items: NDArray[np.int64]
    num_items: int

    def pairs_of(self, codes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs of consecutive rows."""
        low, high = np.searchsorted(self.owner, [codes[0], codes[-1] + 1]) if len(codes) else (0, 0)
        return self.owner[low:high] - (codes[0] if len(codes) else 0), self.items[low:high]


class Ranker:
    """The ranking thread and its queue.

    Args:
        metrics: counts batches and lists.
        max_rows: most lists in a batch.
    """

    def __init__(self, metrics: Metrics, *, max_rows: int = 1024) -> None:
        self._metrics, self._max_rows = metrics, max_rows
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ranking", daemon=True)
        self._thread.start()

    async def lists(self, request: ListRequest) -> list[dict[str, Any]]:
        """The results of a request, ranked together with those that wait at the same time."""
        results: list[dict[str, Any]] = await self._submit(request)
        return results

    async def call(self, work: Callable[[], Any]) -> Any:
        """Do something else in the ranking thread, which alone may touch the users with events."""
        return await self._submit(work)

    def close(self) -> None:
        """Finish what is queued and stop."""
        self._queue.put(None)
        self._thread.join()

    async def _submit(self, work: Callable[[], Any] | ListRequest) -> Any:
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop)
        self._queue.put(job)
        return await job.future

    def _run(self) -> None:
        open_ = True
        while open_:
            jobs, rows = [], 0
            job = self._queue.get()
            while True:
                if job is None:
                    open_ = False
                elif not job.future.cancelled():  # its request was given up while it waited
                    jobs.append(job)
                    rows += job.work.rows if isinstance(job.work, ListRequest) else 1
                if not open_ or rows >= self._max_rows:
                    break
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
            if jobs:
                self._work(jobs)

    def _work(self, jobs: list[_Job]) -> None:
        self._metrics.count("batches")
        self._metrics.count("batched_requests", len(jobs))
        asked = [job for job in jobs if isinstance(job.work, ListRequest)]
        groups: dict[Any, list[tuple[_Job, ListRequest]]] = defaultdict(list)
        for job in asked:
            request = job.work
            assert isinstance(request, ListRequest)
            alone = id(job) if request.candidates is not None else None
            # with diversity, the items to choose from depend on k
            k = (request.k, request.offset) if request.diversity else None
            wanted = json.dumps(request.filter, sort_keys=True) if request.filter else None
            groups[(id(request.run), request.diversity, request.popularity, k, wanted, alone)].append(
                (job, request)
            )
        for job in jobs:
            if not isinstance(job.work, ListRequest):
                _answer(job, job.work)
        for group in groups.values():
            if len(group) == 1:
                _answer(group[0][0], partial(self._alone, group[0][1]))
                continue
            try:
                results = self._lists([request for _, request in group])
            except Exception:  # one of them is to blame: each gets its own answer
                for job, request in group:
                    _answer(job, partial(self._alone, request))
                continue
            for (job, _), result in zip(group, results, strict=True):
                _answer(job, partial(list, result))

    # ------------------------------------------------------------------- lists

    def _alone(self, request: ListRequest) -> list[dict[str, Any]]:
        return self._lists([request])[0]

    def _lists(self, requests: Sequence[ListRequest]) -> list[list[dict[str, Any]]]:
        """The results of requests to one run with equal filters, diversity and popularity."""
        run, first = requests[0].run, requests[0]
        run.catch_up()
        rows: list[Row] = []
        for request in requests:
            rows += self.rows(run, request)
        owners = [place for place, request in enumerate(requests) for _ in range(request.rows)]
        banned = run.banned(first.filter)
        if first.candidates is not None:
            allowed = np.zeros(len(run.items), bool)
            codes = encode(run.items, first.candidates)
            allowed[codes[codes >= 0]] = True
            if banned is not None:
                allowed[banned] = False
            banned = np.flatnonzero(~allowed)
        excluded = [encode(run.items, request.exclude) for request in requests]
        excluded = [codes[codes >= 0] for codes in excluded]
        length = min(max(request.k + request.offset for request in requests), len(run.items))
        places: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(rows)
        scores: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(rows)
        for popular in (False, True):
            chosen = [n for n, row in enumerate(rows) if (row.vector is None) == popular]
            if not chosen:
                continue
            masks = [
                np.concatenate(
                    [
                        rows[n].known if requests[owners[n]].filter_seen else rows[n].known[:0],
                        excluded[owners[n]],
                    ]
                )
                for n in chosen
            ]
            seen = _Masks(
                np.repeat(np.arange(len(chosen)), [len(mask) for mask in masks]),
                np.concatenate(masks),
                len(run.items),
            )
            if popular:
                scorer: Any = FixedScores(torch.tensor(run.degrees))
            else:
                vectors = torch.stack([vector for n in chosen if (vector := rows[n].vector) is not None])
                events = np.array([rows[n].events for n in chosen])
                scorer = run.model.prior_scores.of(vectors, events)
            found: TopK = lists_of(
                scorer,
                np.arange(len(chosen)),
                k=length,
                seen=seen,
                banned=banned,
                item_vectors=run.model.item_vectors,
                item_degrees=run.degrees,
                diversity=first.diversity,
                popularity=0.0 if popular else first.popularity,
            )
            for n, items, values in zip(chosen, found.items, found.scores, strict=True):
                places[n], scores[n] = items, values
        self._metrics.count("lists", len(rows))
        cut = [slice(requests[owner].offset, requests[owner].offset + requests[owner].k) for owner in owners]
        places = [items[part][items[part] >= 0] for items, part in zip(places, cut, strict=True)]
        # names of all lists at once: looking them up costs as much for one item as for a thousand
        named = iter(run.describe(np.concatenate(places)))
        results: list[list[dict[str, Any]]] = [[] for _ in requests]
        for row, owner, codes, values, part in zip(rows, owners, places, scores, cut, strict=True):
            items = [
                {**next(named), "score": score, "rank": rank}
                for rank, score in enumerate(values[part][: len(codes)].tolist(), part.start + 1)
            ]
            if requests[owner].explain:
                for item, why in zip(items, reasons_of(run, row.vector, row.past, codes), strict=True):
                    item["reasons"] = why
            results[owner].append({"user": row.user, "source": row.source, "items": items})
        return results

    def rows(self, run: ServedRun, request: ListRequest) -> list[Row]:
        """What each list of a request is made from; for the ranking thread."""
        visitor = None
        if request.history is not None:
            codes = encode(run.items, request.history)
            past = np.unique(codes[codes >= 0])
            if len(past):
                self._metrics.count("folded_users")
                visitor = Row(None, "folded", run.fold_in(past), past, past, len(past))
        nothing = np.empty(0, np.int64)
        if not request.users:
            return [visitor or Row(None, "popular", None, nothing, nothing)]
        codes = encode(run.users, request.users)
        rows: list[Row] = []
        live: list[tuple[int, Id, NDArray[np.int64]]] = []
        trained: list[int] = []
        for place, (asked, code) in enumerate(zip(request.users, codes.tolist(), strict=True)):
            user = run.user_id(asked)
            if run.has_events(user):
                past = run.history(user, code)
                live.append((place, user, past))
                rows.append(Row(user, "folded", None, past, run.known_items(user, code), len(past)))
            elif code >= 0 and (events := int(run.model.train.user_degrees[code])):
                trained.append(place)
                past, known = run.history(user, code), run.known_items(user, code)
                rows.append(Row(user, "model", None, past, known, events))
            elif visitor is not None:
                known = np.union1d(visitor.known, run.known_items(user, code))
                rows.append(replace(visitor, user=user, known=known))
            else:  # unknown, or without training events
                known = run.known_items(user, code)
                rows.append(Row(user, "popular", None, nothing, known))
        if trained:
            # all at once: every operation of torch lets go of the interpreter, which a busy event loop then holds
            vectors = run.model.user_vectors[torch.from_numpy(codes[trained])]
            for place, vector in zip(trained, vectors.unbind(), strict=True):
                rows[place].vector = vector
        if live:
            self._metrics.count("folded_users", len(live))
            for (place, _, _), vector in zip(live, run.vectors_of([one[1:] for one in live]), strict=True):
                rows[place].vector = vector
        return rows


def reasons_of(
    run: ServedRun, vector: Tensor | None, past: NDArray[np.int64], places: NDArray[np.int64]
) -> list[list[dict[str, Any]]]:
    """The few strongest reasons for each item: item, title and share."""
    if vector is None or not len(past) or not len(places):
        return [[] for _ in places]
    shares = reasons(
        vector, run.model.item_vectors, torch.from_numpy(past), torch.from_numpy(places), run.loss, k=run.k
    )
    best = shares.topk(min(_REASONS, len(past)), dim=0)
    found = []
    for codes, values in zip(best.indices.T.numpy(), best.values.T.tolist(), strict=True):
        strong = [n for n, value in enumerate(values) if value > 0]
        named = run.describe(past[codes[strong]])
        found.append([{**one, "share": values[n]} for one, n in zip(named, strong, strict=True)])
    return found


def _answer(job: _Job, work: Callable[[], Any]) -> None:
    """Do the work of a job and hand the result, or the error, to whoever waits for it."""
    try:
        result, error = work(), None
    except Exception as caught:
        result, error = None, caught

    def hand_over() -> None:
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    job.loop.call_soon_threadsafe(hand_over)
