"""One thread makes all lists of a worker: requests that wait together become one batch with one product."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talos.evaluation.ranking import ItemRows
from talos.model.explain import shares_of
from talos.model.query import ListQuery, answer, banned_items, sources_of
from talos.serving.feedback import Id
from talos.serving.metrics import Metrics
from talos.serving.runs import Past, ServedRun, encode

__all__ = ["ListRequest", "Ranker"]

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
class _Job:
    work: Callable[[], Any] | ListRequest
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    began: float = field(default_factory=time.perf_counter)


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
            shared = (request.diversity, request.popularity, request.filter_seen)
            groups[(id(request.run), *shared, k, wanted, alone)].append((job, request))
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
        """The results of requests to one run that differ in users, exclusions and, without diversity, in k alone."""
        run, first = requests[0].run, requests[0]
        run.catch_up()
        users, pasts, owners = [], [], []
        for place, request in enumerate(requests):
            for user, past in self._rows(run, request):
                users.append(user)
                pasts.append(past)
                owners.append(place)
        codes = [-1 if user is None else int(encode(run.users, [user])[0]) for user in users]
        query = ListQuery(
            users=np.array(codes, np.int64),
            histories=run.histories(pasts),
            k=min(max(request.k + request.offset for request in requests), len(run.items)),
            mask="known" if first.filter_seen else "nothing",
            masked=_excluded(run, [requests[owner].exclude for owner in owners]),
            banned=self._banned(run, first),
            diversity=first.diversity,
            popularity=first.popularity,
            alone=True,
        )
        lists = answer(run.model, query)
        self._metrics.count("lists", len(users))
        self._metrics.count("folded_users", int(query.has_history.sum()))
        cut = [slice(requests[owner].offset, requests[owner].offset + requests[owner].k) for owner in owners]
        places = [items[part][items[part] >= 0] for items, part in zip(lists.items, cut, strict=True)]
        # names of all lists at once: looking them up costs as much for one item as for a thousand
        named = iter(run.describe(np.concatenate(places)))
        results: list[list[dict[str, Any]]] = [[] for _ in requests]
        sources = sources_of(run.model, query)
        for row, (owner, held, part) in enumerate(zip(owners, places, cut, strict=True)):
            scores = lists.scores[row][part][: len(held)].tolist()
            items = [
                {**next(named), "score": score, "rank": rank}
                for rank, score in enumerate(scores, part.start + 1)
            ]
            if requests[owner].explain:
                past, user = pasts[row], users[row]
                if sources[row] == "model" and user is not None:
                    past = run.history(user, int(query.users[row]))
                reasons = _reasons(run, query.block(range(row, row + 1)), past, held)
                for item, why in zip(items, reasons, strict=True):
                    item["reasons"] = why
            results[owner].append({"user": users[row], "source": sources[row], "items": items})
        return results

    def _rows(self, run: ServedRun, request: ListRequest) -> list[tuple[Id | None, Past | None]]:
        """Whose each list of a request is, and the history it is made from; None if from what was trained."""
        visitor = None
        if request.history is not None:
            codes = encode(run.items, request.history)
            visitor = Past.of(np.unique(codes[codes >= 0]))
        if not request.users:
            return [(None, visitor)]
        rows: list[tuple[Id | None, Past | None]] = []
        for asked, code in zip(request.users, encode(run.users, request.users).tolist(), strict=True):
            user = run.user_id(asked)
            if run.has_events(user):
                rows.append((user, run.history(user, code)))
            elif code >= 0 and run.model.train.user_degrees[code]:
                rows.append((user, None))
            else:
                rows.append((user, visitor))
        return rows

    def _banned(self, run: ServedRun, request: ListRequest) -> NDArray[np.int64] | None:
        banned = run.banned(request.filter)
        if request.candidates is None:
            return banned
        allowed = np.ones(len(run.items), bool)
        allowed[[] if banned is None else banned] = False
        return banned_items(run.model, candidates=request.candidates, allowed=allowed, on_unknown="skip")


def _excluded(run: ServedRun, wanted: Sequence[Sequence[Id]]) -> ItemRows | None:
    """The items that each row leaves out by request."""
    codes = [encode(run.items, items) for items in wanted]
    if not any(map(len, codes)):
        return None
    owner, items = np.repeat(np.arange(len(codes)), list(map(len, codes))), np.concatenate(codes)
    return ItemRows.of(owner[items >= 0], items[items >= 0], num_rows=len(codes), num_items=len(run.items))


def _reasons(
    run: ServedRun, query: ListQuery, past: Past | None, places: NDArray[np.int64]
) -> list[list[dict[str, Any]]]:
    """The few strongest reasons for each item of one row: item, title and share; none where the model knows none."""
    explains = run.model.config.baseline is None or not run.model.has_vectors
    if past is None or not len(past.items) or not len(places) or not explains:
        return [[] for _ in places]
    shares = shares_of(run.model, query, past.items, places)
    best = shares.topk(min(_REASONS, len(past.items)), dim=0)
    found = []
    for codes, values in zip(best.indices.T.numpy(), best.values.T.tolist(), strict=True):
        strong = [n for n, value in enumerate(values) if value > 0]
        named = run.describe(past.items[codes[strong]])
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
