"""Items and users: search, and what is known about one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from talos.serving import schemas
from talos.serving.endpoints.shared import (
    ERRORS,
    Run,
    decoded,
    head,
    json_answer,
    position_of,
    service_of,
)
from talos.serving.runs import ServedRun, encode
from talos.serving.service import RequestError

__all__ = ["router"]

_HISTORY_SHOWN = 1000

Text: TypeAlias = Annotated[str, Query(max_length=1000)]
Cursor: TypeAlias = Annotated[str | None, Query(max_length=40)]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=1000)]

router = APIRouter()


@router.get("/v1/items", response_model=schemas.ItemsAnswer, responses=ERRORS)
async def items(run: Run, q: Text = "", cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Items whose id or title contains a text, in the order of their ids."""
    codes, after = await _search(run, lambda: run.search_text, q, cursor, limit)
    return json_answer({**head(run), "items": run.describe(codes), "cursor": after})


@router.get("/v1/users", response_model=schemas.UsersAnswer, responses=ERRORS)
async def users(run: Run, q: Text = "", cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Users of the run whose id contains a text, in the order of their ids."""
    codes, after = await _search(run, lambda: run.user_text, q, cursor, limit)
    counts = run.seen.user_degrees[codes].tolist()
    named = zip(run.users.decode(codes).to_list(), counts, strict=True)
    found = [{"user": one, "interactions": count} for one, count in named]
    return json_answer({**head(run), "users": found, "cursor": after})


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


@router.get("/v1/items/{item}", response_model=schemas.ItemAnswer, responses=ERRORS)
async def one_item(item: str, run: Run) -> Response:
    """What is known about an item."""
    code = position_of(run.items, decoded(item, "item"), "item")
    degree = int(run.degrees[code])
    rank_ = int((run.degrees > degree).sum()) + 1
    return json_answer(
        {
            **head(run),
            **run.describe([code])[0],
            "attributes": run.attributes_of(code),
            "interactions": degree,
            "popularity_rank": rank_,
        }
    )


@router.get("/v1/users/{user}", response_model=schemas.UserAnswer, responses=ERRORS)
async def one_user(request: Request, user: str, run: Run) -> Response:
    """A user's history, with the items of new events; a user without any is 404."""
    asked = decoded(user, "user")

    def work() -> dict[str, Any]:
        run.catch_up()
        code = int(encode(run.users, [asked])[0])
        known = run.user_id(asked)
        if code < 0 and not run.has_events(known):
            raise RequestError(404, f"no user {asked!r}", "user")
        past = run.history(known, code).items
        trained = int(run.seen.user_degrees[code]) if code >= 0 else 0
        return {
            **head(run),
            "user": known,
            "source": "folded" if run.has_events(known) else "model",
            "interactions": len(past),
            "new_events": len(past) - trained,
            "history": run.describe(past[:_HISTORY_SHOWN]),
        }

    return json_answer(await service_of(request).ranker.call(work))
