"""The endpoints; each function is one."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Annotated, Any, Literal, TypeAlias, cast
from urllib.parse import unquote

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from numpy.typing import NDArray

from talos.data.vocabulary import Vocabulary
from talos.errors import TalosError
from talos.model.query import nearest_to
from talos.serving import insights, schemas
from talos.serving.batcher import ListRequest, numbered
from talos.serving.guard import RequestError
from talos.serving.runs import ServedRun, encode
from talos.serving.service import Service

__all__ = ["router"]

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 503, 504)
}
router = APIRouter(responses=_ERRORS)


async def _service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


Served: TypeAlias = Annotated[Service, Depends(_service_of)]


async def _run_of(service: Served, model: Annotated[str | None, Query(max_length=4096)] = None) -> ServedRun:
    return service.run(model)


Run: TypeAlias = Annotated[ServedRun, Depends(_run_of)]


def _decoded(part: str, field: str) -> str:
    """An id from a path, where it stands percent-encoded."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(400, "is not UTF-8", field) from None


def _position_of(ids: Vocabulary, part: str, kind: str, degrees: NDArray[np.int64] | None = None) -> int:
    """The position of the id in a path; 404 if it is unknown, or has no training events (`degrees`)."""
    one = _decoded(part, kind)
    code = int(encode(ids, [one])[0])
    if code < 0:
        raise RequestError(404, f"no {kind} {one!r}", kind)
    if degrees is not None and not degrees[code]:
        raise RequestError(404, f"{kind} {one!r} has no training events", kind)
    return code


def _json(run: ServedRun | None = None, **values: Any) -> Response:
    """An answer, which begins with the run that it is about.

    The values are written as they are: checking them against the schema would cost more than a list does.
    """
    head = {} if run is None else {"model": run.name, "version": run.version}
    body = orjson.dumps({**head, **values}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


# ------------------------------------------------------------------- lists


async def _lists(service: Service, run: ServedRun, body: schemas.RecommendBody, k: int) -> dict[str, Any]:
    """The lists that a body asks for, and how long they took."""
    began = time.perf_counter()
    results = await service.batcher.lists(ListRequest(run, body, k))
    return {"took_ms": round(1000 * (time.perf_counter() - began), 3), "results": results}


@router.get("/v1/recommend/{user}", response_model=schemas.ListsAnswer)
async def recommend_one(
    service: Served, user: str, query: Annotated[schemas.RecommendQuery, Query()]
) -> Response:
    """The list of one user."""
    run, k = service.chosen(query)
    return _json(run, **await _lists(service, run, query.body(users=[_decoded(user, "user")]), k))


@router.post("/v1/recommend", response_model=schemas.ListsAnswer)
async def recommend(service: Served, body: schemas.RecommendBody) -> Response:
    """Lists of users, or of one history."""
    run, k = service.chosen(body)
    if body.users is None and body.history is None:
        raise RequestError(422, "is missing; expected users or a history", "users")
    return _json(run, **await _lists(service, run, body, k))


@router.post("/v1/rank", response_model=schemas.RankAnswer)
async def rank(service: Served, body: schemas.RankBody) -> Response:
    """Given items in the order of a user's or a history's scores."""
    run, _ = service.chosen(body)
    if body.user is None and body.history is None:
        raise RequestError(422, "is missing; expected a user or a history", "user")
    codes = encode(run.items, body.items)
    wanted = schemas.RecommendBody.model_construct(
        users=None if body.user is None else [body.user],
        history=body.history,
        candidates=body.items,
        filter_seen=False,
        explain=body.explain,
    )
    made = await _lists(service, run, wanted, len(codes))
    unknown = [item for item, code in zip(body.items, codes, strict=True) if code < 0]
    return _json(run, **made["results"][0], took_ms=made["took_ms"], unknown=unknown)


@router.get("/v1/popular", response_model=schemas.SimilarItemsAnswer)
async def popular(service: Served, query: Annotated[schemas.RecommendQuery, Query()]) -> Response:
    """The most popular items; the score is the popularity, 0 to 1."""
    run, k = service.chosen(query)
    made = await _lists(service, run, query.body(history=[]), k)
    return _json(run, items=made["results"][0]["items"])


@router.get("/v1/items/{item}/similar", response_model=schemas.SimilarItemsAnswer)
async def similar_items(service: Served, item: str, query: Annotated[schemas.Choice, Query()]) -> Response:
    """The items nearest to an item, by the cosine of their vectors or by the weights between items."""
    return await _nearest(service, "item", item, query)


@router.get("/v1/users/{user}/similar", response_model=schemas.SimilarUsersAnswer)
async def similar_users(service: Served, user: str, query: Annotated[schemas.Choice, Query()]) -> Response:
    """The users nearest to a user, by the cosine of their vectors."""
    return await _nearest(service, "user", user, query)


async def _nearest(
    service: Service, kind: Literal["user", "item"], part: str, query: schemas.Choice
) -> Response:
    """The items or users nearest to the one that a part of the path names."""
    run, k = service.chosen(query)
    ids, degrees = (run.items, run.degrees) if kind == "item" else (run.users, run.model.train.user_degrees)
    one = ids.ids[_position_of(ids, part, kind, degrees)]
    lists = await asyncio.get_running_loop().run_in_executor(
        service.batcher.thread, nearest_to, run.model, kind, one, k
    )
    codes = lists.items[0][lists.items[0] >= 0]
    named = run.describe(codes) if kind == "item" else [{"user": user} for user in ids.decode(codes)]
    return _json(run, **{f"{kind}s": numbered(named, lists.scores[0][: len(codes)].tolist())})


# ------------------------------------------------------------------- items and users

_HISTORY_SHOWN = 1000


@router.get("/v1/items", response_model=schemas.ItemsAnswer)
async def items(service: Served, query: Annotated[schemas.SearchQuery, Query()]) -> Response:
    """Items whose id or title contains a text, in the order of their ids."""
    run = service.run(query.model)
    codes, cursor = await asyncio.to_thread(_search, run, query, run.items.ids, run.titles)
    return _json(run, items=run.describe(codes), cursor=cursor)


@router.get("/v1/users", response_model=schemas.UsersAnswer)
async def users(service: Served, query: Annotated[schemas.SearchQuery, Query()]) -> Response:
    """Users of the run whose id contains a text, in the order of their ids."""
    run = service.run(query.model)
    codes, cursor = await asyncio.to_thread(_search, run, query, run.users.ids)
    named = zip(run.users.decode(codes).to_list(), run.seen.user_degrees[codes].tolist(), strict=True)
    return _json(run, users=[{"user": one, "interactions": count} for one, count in named], cursor=cursor)


def _search(
    run: ServedRun, query: schemas.SearchQuery, ids: pl.Series, titles: pl.Series | None = None
) -> tuple[list[int], str | None]:
    """Positions of the ids and titles that contain the text of a search, and the cursor for those that follow."""
    version, _, place = (query.cursor or "").partition("-")
    start = int(place) if version == run.version else 0  # positions of another version mean nothing here
    text = ids.slice(start).cast(pl.String)
    if titles is not None:
        text += "\n" + titles.slice(start).fill_null("")
    found = text.str.to_lowercase().str.contains(query.q.lower(), literal=True)
    codes = [start + place for place in found.arg_true().head(query.limit + 1).to_list()]
    more = f"{run.version}-{codes[query.limit - 1] + 1}" if len(codes) > query.limit else None
    return codes[: query.limit], more


@router.get("/v1/items/{item}", response_model=schemas.ItemAnswer)
async def one_item(item: str, run: Run) -> Response:
    """What is known about an item."""
    code, attributes = _position_of(run.items, item, "item"), run.model.attributes
    degree = run.degrees[code]
    return _json(
        run,
        **run.describe([code])[0],
        attributes={} if attributes is None else attributes.row(code, named=True),
        interactions=degree,
        popularity_rank=(run.degrees > degree).sum() + 1,
    )


@router.get("/v1/users/{user}", response_model=schemas.UserAnswer)
async def one_user(user: str, run: Run) -> Response:
    """A user's history, with the items of new events; a user without any is 404."""
    asked = _decoded(user, "user")
    (known,), codes = run.find_users([asked])
    history = await asyncio.to_thread(run.histories, [known], codes)
    if codes[0] < 0 and history is None:
        raise RequestError(404, f"no user {asked!r}", "user")
    learnt = run.seen.pairs_of(codes[codes >= 0])[1]
    past = learnt if history is None else history.indices
    return _json(
        run,
        user=known,
        source="model" if history is None else "folded",
        interactions=len(past),
        new_events=len(past) - len(learnt),
        history=run.describe(past[:_HISTORY_SHOWN]),
    )


# ------------------------------------------------------------------- operation


@router.post("/v1/feedback", response_model=schemas.FeedbackAnswer)
async def feedback(service: Served, body: schemas.FeedbackBody) -> Response:
    """Write events to the log; the answer comes when they are on the disk, and the next list knows them."""
    log = service.log
    if log is None:
        raise RequestError(409, "this service was started without a log of feedback", "events")
    try:
        # shielded: an event that is written is counted, whether or not the sender still waits
        fresh = await asyncio.shield(asyncio.to_thread(log.append, body.events))
    except TalosError as error:
        raise RequestError(503, str(error)) from error
    accepted, repeated = len(fresh), len(body.events) - len(fresh)
    unknown = int((encode(service.run(None).items, [event.item for event in fresh]) < 0).sum())
    service.metrics.count(feedback_events=accepted, feedback_repeated=repeated, unknown_items=unknown)
    return _json(accepted=accepted, repeated=repeated, unknown_items=unknown)


@router.get("/v1/model", response_model=schemas.ModelsAnswer)
async def models(service: Served) -> Response:
    """The runs that are served."""
    return _json(models=[await asyncio.to_thread(_facts, run, service) for run in service.runs.values()])


def _facts(run: ServedRun, service: Service) -> dict[str, Any]:
    model = run.model
    return {
        "model": run.name,
        "version": run.version,
        "default": run is service.run(None),
        "loaded_at": run.loaded_at,
        "users": len(run.users),
        "items": len(run.items),
        "dim": model.vectors.items.shape[1] if model.has_vectors else 0,
        "k": run.k,
        "loss": model.method,
        "backbone": model.config.backbone.name if model.config.baseline is None else "none",
        "attributes": [] if model.attributes is None else model.attributes.columns,
        "metrics": run.metrics,
        **run.event_counts(),
        "reload_error": service.errors.get(run.name),
    }


@router.post("/v1/model/reload", response_model=schemas.ReloadAnswer)
async def reload(service: Served, body: schemas.ReloadBody | None = None) -> Response:
    """Load runs anew; one that cannot be used leaves the old one in place (409)."""
    names = list(service.runs) if body is None or body.model is None else [service.run(body.model).name]
    try:
        done = [await asyncio.shield(asyncio.to_thread(service.reload, name)) for name in names]
    except TalosError as error:
        raise RequestError(409, str(error), "model") from error
    return _json(reloaded=done)


@router.get("/livez", response_model=schemas.HealthAnswer)
@router.get("/readyz", response_model=schemas.HealthAnswer)
async def health(service: Served, request: Request) -> Response:
    """Whether lists can be made, of which versions, and which reloads have failed."""
    status = "ok" if request.scope["path"] == "/livez" else "ready"
    return _json(
        status=status,
        models={name: run.version for name, run in service.runs.items()},
        reload_errors=dict(service.errors),
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Served) -> Response:
    """Counters in the text format of Prometheus."""
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


# ------------------------------------------------------------------- the page

# Nothing inline, nothing from elsewhere, and no way from text to HTML: ids and titles stay text whatever they contain.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for again each time, and answered with 304 if nothing has changed
}


_FILES = StaticFiles(packages=[("talos.serving", "page")])


@router.get("/", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page(request: Request, name: str = "index.html") -> Response:
    """A file of the page."""
    response = await _FILES.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response


@router.get("/v1/items/{item}/exposure", response_model=schemas.ExposureAnswer)
async def exposure(service: Served, item: str, run: Run) -> Response:
    """In how many of the users' lists an item is; the first request to a run counts for all items."""
    code = _position_of(run.items, item, "item")
    counts, lists = await service.insight(run, insights.exposure)
    return _json(
        run,
        item=run.items.ids[code],
        k=min(run.k, len(run.items)),
        lists=counts[code],
        of_lists=lists,
        share=counts[code] / max(1, lists),
    )


@router.get("/v1/map", response_model=schemas.MapAnswer)
async def item_map(request: Request, service: Served, run: Run) -> Response:
    """All items on a plane, by the two main axes of their vectors; the first request to a run computes it."""
    found = await service.insight(run, insights.item_map)
    headers = {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        found = gzip.decompress(found)
    return Response(found, headers=headers, media_type="application/json")


@router.get("/v1/quality", response_model=schemas.QualityAnswer)
async def quality(service: Served, run: Run) -> Response:
    """Metrics by list length and by slice; the first request to a run measures them."""
    return _json(run, **await service.insight(run, insights.quality))
