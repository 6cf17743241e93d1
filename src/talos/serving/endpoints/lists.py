"""Lists: recommended, ranked, popular and similar items, and similar users."""

from __future__ import annotations

import time

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from talos.model.query import nearest_to
from talos.serving import schemas
from talos.serving.endpoints.shared import (
    ERRORS,
    Length,
    Name,
    Offset,
    Several,
    Shares,
    decoded,
    head,
    json_answer,
    position_of,
    service_of,
)
from talos.serving.ranking import ListRequest
from talos.serving.runs import encode
from talos.serving.service import RequestError, Service

__all__ = ["router"]

router = APIRouter()


async def _lists(service: Service, request: ListRequest) -> Response:
    began = time.perf_counter()
    results = await service.ranker.lists(request)
    took = round(1000 * (time.perf_counter() - began), 3)
    return json_answer({**head(request.run), "took_ms": took, "results": results})


@router.get("/v1/recommend/{user}", response_model=schemas.ListsAnswer, responses=ERRORS)
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
    service = service_of(request)
    run = service.run(model)
    wanted = ListRequest(
        run=run,
        users=[decoded(user, "user")],
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


@router.post("/v1/recommend", response_model=schemas.ListsAnswer, responses=ERRORS)
async def recommend(request: Request, body: schemas.RecommendBody) -> Response:
    """Lists of users, or of one history."""
    service, limits = service_of(request), service_of(request).settings
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


@router.post("/v1/rank", response_model=schemas.RankAnswer, responses=ERRORS)
async def rank(request: Request, body: schemas.RankBody) -> Response:
    """Given items in the order of a user's or a history's scores."""
    service = service_of(request)
    run, began = service.run(body.model), time.perf_counter()
    if body.user is None and body.history is None:
        raise RequestError(422, "is missing; expected a user or a history", "user")
    for name in ("history", "items"):
        service.check_count(name, getattr(body, name), service.settings.max_items)

    codes = encode(run.items, body.items)
    unknown = [item for item, code in zip(body.items, codes, strict=True) if code < 0]
    wanted = ListRequest(
        run=run,
        users=() if body.user is None else (body.user,),
        history=body.history,
        k=max(1, len(np.unique(codes[codes >= 0]))),
        candidates=body.items,
        filter_seen=False,
        explain=body.explain,
    )
    (found,) = await service.ranker.lists(wanted)
    took = round(1000 * (time.perf_counter() - began), 3)
    answer = {"source": found["source"], "items": found["items"], "unknown": unknown}
    return json_answer({**head(run), "took_ms": took, **answer})


@router.get("/v1/popular", response_model=schemas.SimilarItemsAnswer, responses=ERRORS)
async def popular(
    request: Request,
    model: Name = None,
    k: Length = None,
    offset: Offset = 0,
    category: Several = [],  # noqa: B006
) -> Response:
    """The most popular items; the score is the popularity, 0 to 1."""
    service = service_of(request)
    run = service.run(model)
    wanted = ListRequest(
        run=run,
        history=(),
        k=service.length(run, k),
        offset=offset,
        filter={"must": {"category": category}} if category else None,
    )
    (found,) = await service.ranker.lists(wanted)
    return json_answer({**head(run), "items": found["items"]})


@router.get("/v1/items/{item}/similar", response_model=schemas.SimilarItemsAnswer, responses=ERRORS)
async def similar_items(request: Request, item: str, model: Name = None, k: Length = None) -> Response:
    """The items nearest to an item, by the cosine of their vectors or by the weights between items."""
    service = service_of(request)
    run = service.run(model)
    one = run.items.ids[position_of(run.items, decoded(item, "item"), "item", run.degrees)]
    lists = await service.ranker.call(lambda: nearest_to(run.model, "item", one, service.length(run, k)))
    held = lists.items[0] >= 0
    scores = enumerate(lists.scores[0][held].tolist(), 1)
    named = zip(run.describe(lists.items[0][held]), scores, strict=True)
    found = [{**one, "score": score, "rank": rank} for one, (rank, score) in named]
    return json_answer({**head(run), "items": found})


@router.get("/v1/users/{user}/similar", response_model=schemas.SimilarUsersAnswer, responses=ERRORS)
async def similar_users(request: Request, user: str, model: Name = None, k: Length = None) -> Response:
    """The users nearest to a user, by the cosine of their vectors."""
    service = service_of(request)
    run = service.run(model)
    degrees = run.model.train.user_degrees
    one = run.users.ids[position_of(run.users, decoded(user, "user"), "user", degrees)]
    lists = await service.ranker.call(lambda: nearest_to(run.model, "user", one, service.length(run, k)))
    held = lists.items[0] >= 0
    ids, scores = run.users.decode(lists.items[0][held]).to_list(), lists.scores[0][held].tolist()
    found = [
        {"user": one, "score": score, "rank": rank}
        for rank, (one, score) in enumerate(zip(ids, scores, strict=True), 1)
    ]
    return json_answer({**head(run), "users": found})
