"""Items and users: search, and what is known about one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import polars as pl
from fastapi import APIRouter, Query
from fastapi.responses import Response

from talos.serving import schemas
from talos.serving.endpoints.shared import (
    ERRORS,
    Run,
    Served,
    decoded,
    head,
    json_answer,
    position_of,
)
from talos.serving.runs import ServedRun
from talos.serving.service import RequestError

__all__ = ["router"]

_HISTORY_SHOWN = 1000

router = APIRouter()


@router.get("/v1/items", response_model=schemas.ItemsAnswer, responses=ERRORS)
async def items(service: Served, query: Annotated[schemas.SearchQuery, Query()]) -> Response:
    """Items whose id or title contains a text, in the order of their ids."""
    run = service.run(query.model)
    codes, cursor = await asyncio.to_thread(_search, run, lambda: run.item_texts, query)
    return json_answer({**head(run), "items": run.describe(codes), "cursor": cursor})


@router.get("/v1/users", response_model=schemas.UsersAnswer, responses=ERRORS)
async def users(service: Served, query: Annotated[schemas.SearchQuery, Query()]) -> Response:
    """Users of the run whose id contains a text, in the order of their ids."""
    run = service.run(query.model)
    codes, cursor = await asyncio.to_thread(_search, run, lambda: run.user_texts, query)
    named = zip(run.users.decode(codes).to_list(), run.seen.user_degrees[codes].tolist(), strict=True)
    found = [{"user": one, "interactions": count} for one, count in named]
    return json_answer({**head(run), "users": found, "cursor": cursor})


def _search(
    run: ServedRun, texts: Callable[[], pl.Series], query: schemas.SearchQuery
) -> tuple[list[int], str | None]:
    """Positions of the rows that contain the text of a search, and the cursor for those that follow."""
    version, _, place = (query.cursor or "").partition("-")
    if query.cursor is not None and (not place.isascii() or not place.isdigit() or len(place) > 15):
        raise RequestError(422, "is not one that was answered", "cursor")
    start = int(place) if version == run.version else 0  # positions of another version mean nothing here
    wanted = query.q.encode("utf-8", "replace").decode().lower()
    found = texts().slice(start).str.contains(wanted, literal=True).arg_true().head(query.limit + 1)
    codes = [start + place for place in found.to_list()]
    more = f"{run.version}-{codes[query.limit - 1] + 1}" if len(codes) > query.limit else None
    return codes[: query.limit], more


@router.get("/v1/items/{item}", response_model=schemas.ItemAnswer, responses=ERRORS)
async def one_item(item: str, run: Run) -> Response:
    """What is known about an item."""
    code = position_of(run.items, decoded(item, "item"), "item")
    degree = int(run.degrees[code])
    facts = {
        "attributes": {} if run.model.attributes is None else run.model.attributes.row(code, named=True),
        "interactions": degree,
        "popularity_rank": int((run.degrees > degree).sum()) + 1,
    }
    return json_answer({**head(run), **run.describe([code])[0], **facts})


@router.get("/v1/users/{user}", response_model=schemas.UserAnswer, responses=ERRORS)
async def one_user(user: str, run: Run) -> Response:
    """A user's history, with the items of new events; a user without any is 404."""
    asked = decoded(user, "user")
    (known,), codes = run.find_users([asked])
    history = await asyncio.to_thread(run.histories, [known], codes)
    if codes[0] < 0 and history is None:
        raise RequestError(404, f"no user {asked!r}", "user")
    learnt = run.seen.pairs_of(codes[codes >= 0])[1]
    past = learnt if history is None else history.indices
    facts = {
        "user": known,
        "source": "model" if history is None else "folded",
        "interactions": len(past),
        "new_events": len(past) - len(learnt),
        "history": run.describe(past[:_HISTORY_SHOWN]),
    }
    return json_answer({**head(run), **facts})
