"""Lists: recommended, ranked, popular and similar items, and similar users."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import Response

from talos.model.query import nearest_to
from talos.serving import schemas
from talos.serving.endpoints.shared import ERRORS, Served, decoded, head, json_answer, position_of
from talos.serving.ranking import ListRequest, numbered
from talos.serving.runs import ServedRun, encode
from talos.serving.service import RequestError, Service

__all__ = ["router"]

router = APIRouter()


async def _made(service: Service, run: ServedRun, body: schemas.RecommendBody, k: int) -> dict[str, Any]:
    """The answer with the lists that a body asks for."""
    began = time.perf_counter()
    results = await service.ranker.lists(ListRequest(run, body, k))
    took = round(1000 * (time.perf_counter() - began), 3)
    return {**head(run), "took_ms": took, "results": results}


@router.get("/v1/recommend/{user}", response_model=schemas.ListsAnswer, responses=ERRORS)
async def recommend_one(
    service: Served, user: str, query: Annotated[schemas.RecommendQuery, Query()]
) -> Response:
    """The list of one user."""
    run, k = service.chosen(query)
    return json_answer(await _made(service, run, query.body(users=[decoded(user, "user")]), k))


@router.post("/v1/recommend", response_model=schemas.ListsAnswer, responses=ERRORS)
async def recommend(service: Served, body: schemas.RecommendBody) -> Response:
    """Lists of users, or of one history."""
    run, k = service.chosen(body)
    if body.users is None and body.history is None:
        raise RequestError(422, "is missing; expected users or a history", "users")
    return json_answer(await _made(service, run, body, k))


@router.post("/v1/rank", response_model=schemas.RankAnswer, responses=ERRORS)
async def rank(service: Served, body: schemas.RankBody) -> Response:
    """Given items in the order of a user's or a history's scores."""
    run, _ = service.chosen(body)
    if body.user is None and body.history is None:
        raise RequestError(422, "is missing; expected a user or a history", "user")
    codes = encode(run.items, body.items)
    unknown = [item for item, code in zip(body.items, codes, strict=True) if code < 0]
    wanted = schemas.RecommendBody.model_construct(
        users=None if body.user is None else [body.user],
        history=body.history,
        candidates=body.items,
        filter_seen=False,
        explain=body.explain,
    )
    made = await _made(service, run, wanted, max(1, len(np.unique(codes[codes >= 0]))))
    (found,) = made.pop("results")
    return json_answer({**made, "source": found["source"], "items": found["items"], "unknown": unknown})


@router.get("/v1/popular", response_model=schemas.SimilarItemsAnswer, responses=ERRORS)
async def popular(service: Served, query: Annotated[schemas.PopularQuery, Query()]) -> Response:
    """The most popular items; the score is the popularity, 0 to 1."""
    run, k = service.chosen(query)
    made = await _made(service, run, query.body(history=[]), k)
    return json_answer({**head(run), "items": made["results"][0]["items"]})


@router.get("/v1/items/{item}/similar", response_model=schemas.SimilarItemsAnswer, responses=ERRORS)
async def similar_items(service: Served, item: str, query: Annotated[schemas.Choice, Query()]) -> Response:
    """The items nearest to an item, by the cosine of their vectors or by the weights between items."""
    return await _nearest(service, "item", item, query)


@router.get("/v1/users/{user}/similar", response_model=schemas.SimilarUsersAnswer, responses=ERRORS)
async def similar_users(service: Served, user: str, query: Annotated[schemas.Choice, Query()]) -> Response:
    """The users nearest to a user, by the cosine of their vectors."""
    return await _nearest(service, "user", user, query)


async def _nearest(
    service: Service, kind: Literal["user", "item"], part: str, query: schemas.Choice
) -> Response:
    """The items or users nearest to the one that a part of the path names."""
    run, k = service.chosen(query)
    ids, degrees = (run.items, run.degrees) if kind == "item" else (run.users, run.model.train.user_degrees)
    one = ids.ids[position_of(ids, decoded(part, kind), kind, degrees)]
    lists = await service.ranker.call(partial(nearest_to, run.model, kind, one, k))
    codes = lists.items[0][lists.items[0] >= 0]
    named = run.describe(codes) if kind == "item" else [{"user": user} for user in ids.decode(codes)]
    return json_answer({**head(run), f"{kind}s": numbered(named, lists.scores[0][: len(codes)].tolist())})
