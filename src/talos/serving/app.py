"""The endpoints."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import numpy as np
import orjson
import polars as pl
import torch
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from talos.errors import InputError, TalosError
from talos.evaluation.ranking import DotScores, top_k
from talos.serving import insights, schemas
from talos.serving.feedback import Event, FeedbackLog, Id
from talos.serving.guard import Guard, error_body
from talos.serving.metrics import Metrics
from talos.serving.page_files import PAGE_HEADERS, page_files
from talos.serving.ranking import ListRequest, Ranker, reasons_of
from talos.serving.runs import RunBook, ServedRun, encode
from talos.serving.settings import Keys, Settings

__all__ = ["Service", "create_app"]

_SECONDS_BETWEEN_LOOKS = 0.5
_HISTORY_SHOWN = 1000

_Result = TypeVar("_Result")

Name: TypeAlias = Annotated[str | None, Query(alias="model", max_length=4096)]
Length: TypeAlias = Annotated[int | None, Query(ge=1, le=schemas.MOST)]
Offset: TypeAlias = Annotated[int, Query(ge=0, le=schemas.MOST)]
Shares: TypeAlias = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Several: TypeAlias = Annotated[list[str], Query(max_length=1000)]

router = APIRouter()
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 503, 504)
}


class RequestError(Exception):
    """A request that cannot be answered: the status, what is wrong, and with which field."""

    def __init__(self, status: int, error: str, field: str | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.field = status, error, field


class Service:
    """Everything that the endpoints of one worker share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control = None if settings.control is None else Path(settings.control)
        self.metrics = Metrics(self.control)
        path = None if settings.feedback is None else Path(settings.feedback)
        self.log = None if path is None else FeedbackLog(path)
        self.book = RunBook([Path(run) for run in settings.runs], path, self._note, self.control)
        self.ranker = Ranker(self.metrics, max_rows=settings.max_rows)
        self.page = page_files()
        self._insight_thread = ThreadPoolExecutor(1, "insights")
        self._closing = threading.Event()
        self._asked = self._reloads_asked()
        self._watcher: threading.Thread | None = None
        if settings.watch or self.control is not None:
            self._watcher = threading.Thread(target=self._watch, name="watching", daemon=True)
            self._watcher.start()

    def run(self, name: str | None) -> ServedRun:
        """The run of this name; 404 if there is none."""
        found = self.book.get(name)
        if found is None:
            raise RequestError(404, f"no model {name!r}; there are {', '.join(self.book.runs)}", "model")
        return found

    async def insight(self, run: ServedRun, compute: Callable[[ServedRun], _Result]) -> _Result:
        """A figure about a run as a whole; one request computes it, and others that ask meanwhile wait.

        It is finished even if the request is given up, so that the next one finds it.
        """
        name = compute.__name__

        def work() -> None:
            if name not in run.insights:
                run.insights[name] = compute(run)

        if name not in run.insights:
            await asyncio.get_running_loop().run_in_executor(self._insight_thread, work)
        found: _Result = run.insights[name]
        return found

    def length(self, run: ServedRun, k: int | None) -> int:
        """A list length within the limits."""
        k = min(run.k, self.settings.max_k) if k is None else k
        if k > self.settings.max_k:
            raise RequestError(422, f"{k}; expected at most {self.settings.max_k}", "k")
        return k

    def check_count(self, field: str, values: Any, most: int) -> None:
        """Refuse a list that is too long."""
        if values is not None and len(values) > most:
            raise RequestError(422, f"{len(values)} of them; expected at most {most}", field)

    def reload(self, name: str | None) -> list[dict[str, str]]:
        """Load one run or all of them anew, here and in the other workers."""
        names = list(self.book.runs) if name is None else [self.run(name).name]
        done = []
        for one in names:
            old, new = self.book.reload(one)
            done.append({"model": one, "version": new.version, "before": old.version})
        if self.control is not None:
            with (self.control / "reloads").open("ab") as file:
                file.write(b".")
            self._asked += 1
        return done

    def close(self) -> None:
        """Finish what was begun."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self.ranker.close()
        self._insight_thread.shutdown(cancel_futures=True)
        if self.log is not None:
            self.log.close()

    def _watch(self) -> None:
        """Reload runs that were saved anew, or that another worker was told to reload."""
        while not self._closing.wait(_SECONDS_BETWEEN_LOOKS):
            asked = self._reloads_asked()
            if asked > self._asked:
                self._asked = asked
                for name in self.book.runs:
                    try:
                        self.book.reload(name)
                    except TalosError:
                        continue
            elif self.settings.watch:
                self.book.reload_changed()

    def _reloads_asked(self) -> int:
        """How many reloads any worker was told to do."""
        if self.control is None:
            return 0
        try:
            return (self.control / "reloads").stat().st_size
        except OSError:
            return 0

    def _note(self, facts: dict[str, Any]) -> None:
        self.metrics.count("failed_reloads" if "error" in facts else "reloads")
        print(json.dumps({"time": round(time.time(), 3), **facts}), file=sys.stderr, flush=True)


def create_app(settings: Settings) -> Guard:
    """The ASGI application of one worker."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service
        yield
        await asyncio.to_thread(service.close)

    service = Service(settings)
    app = FastAPI(
        title="Talos", version="1", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.service = service
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(InputError, _input_error)
    return Guard(app, settings=settings, keys=Keys.load(settings), metrics=service.metrics)


# ----------------------------------------------------------------------------- errors


def _error(status: int, error: str, field: str | None = None, headers: Any = None) -> Response:
    return Response(error_body(error, field), status, headers=headers, media_type="application/json")


async def _invalid(request: Request, error: Any) -> Response:
    """The first fault of a request; what was sent is not repeated, for it may be anything."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return _error(422, "the body is not JSON", "body")
    kept = [part for part in place[1:] if not part.startswith(("constrained", "function-"))]
    return _error(422, str(first["msg"])[:500], ".".join(kept)[:500] or place[0])


async def _refused(request: Request, error: Any) -> Response:
    return _error(error.status, error.error, error.field)


async def _http_error(request: Request, error: Any) -> Response:
    return _error(error.status_code, str(error.detail), None, error.headers)


async def _input_error(request: Request, error: Any) -> Response:
    return _error(422, str(error), error.where)


# ----------------------------------------------------------------------------- helpers


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _decoded(part: str, field: str) -> str:
    """An id from a path, where it stands percent-encoded."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise RequestError(400, "is not UTF-8", field) from None


def _known(ids: Any, one: Id, kind: str) -> int:
    code = int(encode(ids, [one])[0])
    if code < 0:
        raise RequestError(404, f"no {kind} {one!r}", kind)
    return code


def _head(run: ServedRun) -> dict[str, Any]:
    return {"model": run.name, "version": run.version}


def _json(values: dict[str, Any]) -> Response:
    return Response(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def _lists(service: Service, request: ListRequest) -> Response:
    began = time.perf_counter()
    results = await service.ranker.lists(request)
    took = round(1000 * (time.perf_counter() - began), 3)
    return _json({**_head(request.run), "took_ms": took, "results": results})


# ----------------------------------------------------------------------------- lists


@router.get("/v1/recommend/{user}", response_model=schemas.ListsAnswer, responses=_ERRORS)
async def recommend_one(
    request: Request,
    user: str,
    model: Name = None,
    k: Length = None,
    offset: Offset = 0,
    category: Several = [],  # noqa: B006
    exclude: Several = [],  # noqa: B006
    diversity: Shares = 0.0,
    popularity: Shares = 0.0,
    filter_seen: bool = True,
    explain: bool = False,
) -> Response:
    """The list of one user."""
    service = _service(request)
    run = service.run(model)
    wanted = ListRequest(
        run=run,
        users=[_decoded(user, "user")],
        k=service.length(run, k),
        offset=offset,
        exclude=exclude,
        filter={"must": {"category": category}} if category else None,
        diversity=diversity,
        popularity=popularity,
        filter_seen=filter_seen,
        explain=explain,
    )
    return await _lists(service, wanted)


@router.post("/v1/recommend", response_model=schemas.ListsAnswer, responses=_ERRORS)
async def recommend(request: Request, body: schemas.RecommendBody) -> Response:
    """Lists of users, or of one history."""
    service, limits = _service(request), _service(request).settings
    run = service.run(body.model)
    if body.users is None and body.history is None:
        raise RequestError(422, "is missing; expected users or a history", "users")
    service.check_count("users", body.users, limits.max_users)
    for name in ("history", "candidates", "exclude"):
        service.check_count(name, getattr(body, name), limits.max_items)
    if body.explain:
        service.check_count("users", body.users, limits.max_explained)
    wanted = ListRequest(
        run=run,
        users=body.users or (),
        history=body.history,
        k=service.length(run, body.k),
        offset=body.offset,
        exclude=body.exclude,
        candidates=body.candidates,
        filter=None if body.filter is None else body.filter.plain(),
        diversity=body.diversity,
        popularity=body.popularity,
        filter_seen=body.filter_seen,
        explain=body.explain,
    )
    return await _lists(service, wanted)


@router.post("/v1/rank", response_model=schemas.RankAnswer, responses=_ERRORS)
async def rank(request: Request, body: schemas.RankBody) -> Response:
    """Given items in the order of a user's or a history's scores."""
    service = _service(request)
    run, began = service.run(body.model), time.perf_counter()
    if body.user is None and body.history is None:
        raise RequestError(422, "is missing; expected a user or a history", "user")
    for name in ("history", "items"):
        service.check_count(name, getattr(body, name), service.settings.max_items)

    def work() -> dict[str, Any]:
        run.catch_up()
        users = () if body.user is None else (body.user,)
        (row,) = service.ranker.rows(run, ListRequest(run=run, users=users, history=body.history))
        codes = encode(run.items, body.items)
        unknown = [item for item, code in zip(body.items, codes, strict=True) if code < 0]
        _, first = np.unique(codes, return_index=True)
        codes = codes[np.sort(first)]
        codes = codes[codes >= 0]
        places = torch.from_numpy(codes)
        if row.vector is None:
            scores = torch.from_numpy(run.degrees[codes]).float()
        else:
            scores = run.model.item_vectors[places] @ row.vector
        order = scores.argsort(descending=True, stable=True).numpy()
        items = run.describe(codes[order])
        why = reasons_of(run, row.vector, row.past, codes[order]) if body.explain else None
        for place, item in enumerate(items):
            item["score"], item["rank"] = float(scores[int(order[place])]), place + 1
            if why is not None:
                item["reasons"] = why[place]
        return {"source": row.source, "items": items, "unknown": unknown}

    found = await service.ranker.call(work)
    return _json({**_head(run), "took_ms": round(1000 * (time.perf_counter() - began), 3), **found})


@router.get("/v1/popular", response_model=schemas.SimilarItemsAnswer, responses=_ERRORS)
async def popular(
    request: Request,
    model: Name = None,
    k: Length = None,
    offset: Offset = 0,
    category: Several = [],  # noqa: B006
) -> Response:
    """The most popular items; the score is the number of interactions."""
    service = _service(request)
    run = service.run(model)
    wanted = ListRequest(
        run=run,
        history=(),
        k=service.length(run, k),
        offset=offset,
        filter={"must": {"category": category}} if category else None,
    )
    (found,) = await service.ranker.lists(wanted)
    return _json({**_head(run), "items": found["items"]})


@router.get("/v1/items/{item}/similar", response_model=schemas.SimilarItemsAnswer, responses=_ERRORS)
async def similar_items(request: Request, item: str, model: Name = None, k: Length = None) -> Response:
    """The items nearest to an item, by the cosine of their vectors."""
    service = _service(request)
    run = service.run(model)
    code = _known(run.items, _decoded(item, "item"), "item")
    length = min(service.length(run, k), len(run.items))

    def work() -> list[dict[str, Any]]:
        codes, scores = _nearest(run.model.item_vectors, run.item_norms, code, length)
        found = run.describe(codes)
        for place, (one, score) in enumerate(zip(found, scores, strict=True), 1):
            one["score"], one["rank"] = score, place
        return found

    return _json({**_head(run), "items": await service.ranker.call(work)})


@router.get("/v1/users/{user}/similar", response_model=schemas.SimilarUsersAnswer, responses=_ERRORS)
async def similar_users(request: Request, user: str, model: Name = None, k: Length = None) -> Response:
    """The users nearest to a user, by the cosine of their vectors."""
    service = _service(request)
    run = service.run(model)
    code = _known(run.users, _decoded(user, "user"), "user")
    length = min(service.length(run, k), len(run.users))

    def work() -> list[dict[str, Any]]:
        codes, scores = _nearest(run.model.user_vectors, run.user_norms, code, length)
        ids = run.users.decode(codes).to_list()
        return [
            {"user": one, "score": score, "rank": place}
            for place, (one, score) in enumerate(zip(ids, scores, strict=True), 1)
        ]

    return _json({**_head(run), "users": await service.ranker.call(work)})


def _nearest(vectors: Any, norms: Any, code: int, k: int) -> tuple[Any, list[float]]:
    """Positions and cosines of the rows nearest to one row."""
    cosines = (vectors @ vectors[code]) / (norms * norms[code])
    lists = top_k(DotScores(torch.ones(1, 1), cosines.unsqueeze(1)), k=k, banned=np.array([code]))
    held = lists.items[0] >= 0
    return lists.items[0][held], lists.scores[0][held].tolist()


# ----------------------------------------------------------------------------- items and users


@router.get("/v1/items", response_model=schemas.ItemsAnswer, responses=_ERRORS)
async def items(
    request: Request,
    q: Annotated[str, Query(max_length=1000)] = "",
    cursor: Annotated[str | None, Query(max_length=40)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    model: Name = None,
) -> Response:
    """Items whose id or title contains a text, in the order of their ids."""
    service = _service(request)
    run = service.run(model)
    codes, after = await _search(run, lambda: run.search_text, q, cursor, limit)
    return _json({**_head(run), "items": run.describe(codes), "cursor": after})


@router.get("/v1/users", response_model=schemas.UsersAnswer, responses=_ERRORS)
async def users(
    request: Request,
    q: Annotated[str, Query(max_length=1000)] = "",
    cursor: Annotated[str | None, Query(max_length=40)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    model: Name = None,
) -> Response:
    """Users of the run whose id contains a text, in the order of their ids."""
    run = _service(request).run(model)
    codes, after = await _search(run, lambda: run.user_text, q, cursor, limit)
    counts = run.seen.user_degrees[codes].tolist()
    named = zip(run.users.decode(codes).to_list(), counts, strict=True)
    found = [{"user": one, "interactions": count} for one, count in named]
    return _json({**_head(run), "users": found, "cursor": after})


async def _search(
    run: ServedRun, column: Callable[[], pl.Series], q: str, cursor: str | None, limit: int
) -> tuple[list[int], str | None]:
    """Positions of the rows that contain `q`, at most `limit` of them from `cursor` on, and where the rest begins."""
    start = 0
    if cursor is not None:
        version, _, place = cursor.partition("-")
        if not place.isascii() or not place.isdigit() or len(place) > 15:
            raise RequestError(422, "is not one that was answered", "cursor")
        start = int(place) if version == run.version else 0  # positions of another version mean nothing here
    wanted = q.encode("utf-8", "replace").decode().lower()

    def work() -> list[int]:
        text = column()
        if not wanted:
            return list(range(start, min(start + limit + 1, len(text))))
        found = text.slice(start).str.contains(wanted, literal=True).arg_true().head(limit + 1)
        return [start + int(place) for place in found.to_list()]

    codes = await asyncio.to_thread(work)
    return codes[:limit], f"{run.version}-{codes[limit - 1] + 1}" if len(codes) > limit else None


@router.get("/v1/items/{item}", response_model=schemas.ItemAnswer, responses=_ERRORS)
async def one_item(request: Request, item: str, model: Name = None) -> Response:
    """What is known about an item."""
    run = _service(request).run(model)
    code = _known(run.items, _decoded(item, "item"), "item")
    degree = int(run.degrees[code])
    rank_ = int((run.degrees > degree).sum()) + 1
    return _json(
        {
            **_head(run),
            **run.describe([code])[0],
            "attributes": run.attributes_of(code),
            "interactions": degree,
            "popularity_rank": rank_,
        }
    )


@router.get("/v1/items/{item}/exposure", response_model=schemas.ExposureAnswer, responses=_ERRORS)
async def exposure(request: Request, item: str, model: Name = None) -> Response:
    """In how many of the users' lists an item is; the first request to a run counts for all items."""
    service = _service(request)
    run = service.run(model)
    code = _known(run.items, _decoded(item, "item"), "item")
    counts, lists = await service.insight(run, insights.exposure)
    held = int(counts[code])
    facts = {"k": min(run.k, len(run.items)), "lists": held, "of_lists": lists, "share": held / max(1, lists)}
    return _json({**_head(run), "item": run.describe([code])[0]["item"], **facts})


@router.get("/v1/map", response_model=schemas.MapAnswer, responses=_ERRORS)
async def item_map(request: Request, model: Name = None) -> Response:
    """All items on a plane, by the two main axes of their vectors; the first request to a run computes it."""
    service = _service(request)
    found = await service.insight(service.run(model), insights.item_map)
    headers = {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.compressed, headers=headers, media_type="application/json")
    return Response(found.plain, headers=headers, media_type="application/json")


@router.get("/v1/quality", response_model=schemas.QualityAnswer, responses=_ERRORS)
async def quality(request: Request, model: Name = None) -> Response:
    """Metrics by list length and by slice; the first request to a run measures them."""
    service = _service(request)
    run = service.run(model)
    return _json({**_head(run), **await service.insight(run, insights.quality)})


@router.get("/v1/users/{user}", response_model=schemas.UserAnswer, responses=_ERRORS)
async def one_user(request: Request, user: str, model: Name = None) -> Response:
    """A user's history, with the items of new events; a user without any is 404."""
    service = _service(request)
    run, asked = service.run(model), _decoded(user, "user")

    def work() -> dict[str, Any]:
        run.catch_up()
        code = int(encode(run.users, [asked])[0])
        known = run.user_id(asked)
        if code < 0 and not run.has_events(known):
            raise RequestError(404, f"no user {asked!r}", "user")
        past = run.history(known, code)
        trained = int(run.seen.user_degrees[code]) if code >= 0 else 0
        return {
            **_head(run),
            "user": known,
            "source": "folded" if run.has_events(known) else "model",
            "interactions": len(past),
            "new_events": len(past) - trained,
            "history": run.describe(past[:_HISTORY_SHOWN]),
        }

    return _json(await service.ranker.call(work))


# ----------------------------------------------------------------------------- feedback and operation


@router.post("/v1/feedback", response_model=schemas.FeedbackAnswer, responses=_ERRORS)
async def feedback(request: Request, body: schemas.FeedbackBody) -> Response:
    """Write events to the log; the answer comes when they are on the disk, and the next list knows them."""
    service = _service(request)
    log = service.log
    if log is None:
        raise RequestError(409, "this service was started without a log of feedback", "events")
    now = time.time()
    events = [
        Event(one.user, one.item, now if one.timestamp is None else one.timestamp, one.id)
        for one in body.events
    ]
    try:
        # shielded: an event that is written is counted, whether or not the sender still waits
        accepted = await asyncio.shield(asyncio.to_thread(log.append, events))
    except TalosError as error:
        raise RequestError(503, str(error)) from error
    run = service.run(None)
    unknown = int((encode(run.items, [event.item for event in events]) < 0).sum())
    service.metrics.count("feedback_events", accepted)
    service.metrics.count("feedback_repeated", len(events) - accepted)
    service.metrics.count("unknown_items", unknown)
    return _json({"accepted": accepted, "repeated": len(events) - accepted, "unknown_items": unknown})


@router.get("/v1/model", response_model=schemas.ModelsAnswer, responses=_ERRORS)
async def models(request: Request) -> Response:
    """The runs that are served."""
    service = _service(request)

    def work() -> list[dict[str, Any]]:
        found = []
        for run in service.book.runs.values():
            run.catch_up()
            facts, config = run.model.metadata, run.recommender.config
            numbers = {
                name: value for name, value in facts.get("metrics", {}).items() if isinstance(value, float)
            }
            found.append(
                {
                    **_head(run),
                    "default": run.name == service.book.default,
                    "loaded_at": run.loaded_at,
                    "users": len(run.users),
                    "items": len(run.items),
                    "dim": run.model.item_vectors.shape[1],
                    "k": run.k,
                    "loss": config.loss.name,
                    "backbone": config.backbone.name,
                    "attributes": [] if run.model.attributes is None else run.model.attributes.columns,
                    "metrics": numbers,
                    "events": run.events,
                    "users_with_events": run.users_with_events,
                    "unknown_items": sum(run.unknown_items.values()),
                    "reload_error": service.book.errors.get(run.name),
                }
            )
        return found

    return _json({"models": await service.ranker.call(work)})


@router.post("/v1/model/reload", response_model=schemas.ReloadAnswer, responses=_ERRORS)
async def reload(request: Request, body: schemas.ReloadBody | None = None) -> Response:
    """Load runs anew; one that cannot be used leaves the old one in place (409)."""
    service = _service(request)
    name = None if body is None else body.model
    service.run(name)
    try:
        done = await asyncio.shield(asyncio.to_thread(service.reload, name))
    except TalosError as error:
        raise RequestError(409, str(error), "model") from error
    return _json({"reloaded": done})


def _health(service: Service, status: str) -> Response:
    versions = {run.name: run.version for run in service.book.runs.values()}
    return _json({"status": status, "models": versions, "reload_errors": dict(service.book.errors)})


@router.get("/livez", response_model=schemas.HealthAnswer)
async def livez(request: Request) -> Response:
    """Whether the process answers."""
    return _health(_service(request), "ok")


@router.get("/readyz", response_model=schemas.HealthAnswer)
async def readyz(request: Request) -> Response:
    """Whether lists can be made, of which versions, and which reloads have failed."""
    return _health(_service(request), "ready")


@router.get("/metrics", response_class=PlainTextResponse, responses={401: {"model": schemas.ErrorAnswer}})
async def metrics(request: Request) -> Response:
    """Counters in the text format of Prometheus."""
    service = _service(request)
    lines = [
        "# HELP talos_model_info The runs that are served.",
        "# TYPE talos_model_info gauge",
        *(
            f'talos_model_info{{model={json.dumps(run.name)},version="{run.version}"}} 1'
            for run in service.book.runs.values()
        ),
    ]
    return PlainTextResponse(
        service.metrics.text("\n".join(lines) + "\n"), media_type="text/plain; version=0.0.4"
    )


@router.get("/", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page(request: Request) -> Response:
    """A file of the page."""
    file = _service(request).page.get(request.scope["path"])
    if file is None:
        raise RequestError(404, "no such file of the page", "path")
    headers = {**PAGE_HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
