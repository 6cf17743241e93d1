"""Lists: recommended, ranked, popular and similar items, and similar users."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response

from talos.evaluation.ranking import DotScores, top_k
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
from talos.serving.ranking import ListRequest, reasons_of
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
            scorer = run.model.prior_scores.of(row.vector.unsqueeze(0), np.array([row.events]))
            scores = scorer.item_vectors[places] @ scorer.user_vectors[0]
        order = scores.argsort(descending=True, stable=True).numpy()
        items = run.describe(codes[order])
        why = reasons_of(run, row.vector, row.past, codes[order]) if body.explain else None
        for place, item in enumerate(items):
            item["score"], item["rank"] = float(scores[int(order[place])]), place + 1
            if why is not None:
                item["reasons"] = why[place]
        return {"source": row.source, "items": items, "unknown": unknown}

    found = await service.ranker.call(work)
    return json_answer({**head(run), "took_ms": round(1000 * (time.perf_counter() - began), 3), **found})


@router.get("/v1/popular", response_model=schemas.SimilarItemsAnswer, responses=ERRORS)
async def popular(
    request: Request,
    model: Name = None,
    k: Length = None,
    offset: Offset = 0,
    category: Several = [],  # noqa: B006
) -> Response:
    """The most popular items; the score is the number of interactions."""
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
    """The items nearest to an item, by the cosine of their vectors."""
    service = service_of(request)
    run = service.run(model)
    degrees = run.degrees
    code = position_of(run.items, decoded(item, "item"), "item", degrees)
    length = min(service.length(run, k), len(run.items))

    def work() -> list[dict[str, Any]]:
        codes, scores = _nearest(run.model.item_vectors, run.item_norms, degrees, code, length)
        found = run.describe(codes)
        for place, (one, score) in enumerate(zip(found, scores, strict=True), 1):
            one["score"], one["rank"] = score, place
        return found

    return json_answer({**head(run), "items": await service.ranker.call(work)})


@router.get("/v1/users/{user}/similar", response_model=schemas.SimilarUsersAnswer, responses=ERRORS)
async def similar_users(request: Request, user: str, model: Name = None, k: Length = None) -> Response:
    """The users nearest to a user, by the cosine of their vectors."""
    service = service_of(request)
    run = service.run(model)
    degrees = run.model.train.user_degrees
    code = position_of(run.users, decoded(user, "user"), "user", degrees)
    length = min(service.length(run, k), len(run.users))

    def work() -> list[dict[str, Any]]:
        codes, scores = _nearest(run.model.user_vectors, run.user_norms, degrees, code, length)
        ids = run.users.decode(codes).to_list()
        return [
            {"user": one, "score": score, "rank": place}
            for place, (one, score) in enumerate(zip(ids, scores, strict=True), 1)
        ]

    return json_answer({**head(run), "users": await service.ranker.call(work)})


def _nearest(vectors: Any, norms: Any, degrees: Any, code: int, k: int) -> tuple[Any, list[float]]:
    """Positions and cosines of the rows nearest to one row, among those with training events."""
    cosines = (vectors @ vectors[code]) / (norms * norms[code])
    banned = np.union1d(np.flatnonzero(degrees == 0), [code])
    lists = top_k(DotScores(torch.ones(1, 1), cosines.unsqueeze(1)), k=k, banned=banned)
    held = lists.items[0] >= 0
    return lists.items[0][held], lists.scores[0][held].tolist()
