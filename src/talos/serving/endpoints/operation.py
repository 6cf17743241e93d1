"""Feedback, versions, health and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from talos.errors import TalosError
from talos.serving import schemas
from talos.serving.book import RunBook
from talos.serving.endpoints.shared import ERRORS, Served, head, json_answer
from talos.serving.feedback import Event
from talos.serving.runs import ServedRun, encode
from talos.serving.service import RequestError

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/feedback", response_model=schemas.FeedbackAnswer, responses=ERRORS)
async def feedback(service: Served, body: schemas.FeedbackBody) -> Response:
    """Write events to the log; the answer comes when they are on the disk, and the next list knows them."""
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
        fresh = await asyncio.shield(asyncio.to_thread(log.append, events))
    except TalosError as error:
        raise RequestError(503, str(error)) from error
    run = service.run(None)
    accepted, repeated = len(fresh), len(events) - len(fresh)
    unknown = int((encode(run.items, [event.item for event in fresh]) < 0).sum())
    service.metrics.count("feedback_events", accepted)
    service.metrics.count("feedback_repeated", repeated)
    service.metrics.count("unknown_items", unknown)
    return json_answer({"accepted": accepted, "repeated": repeated, "unknown_items": unknown})


@router.get("/v1/model", response_model=schemas.ModelsAnswer, responses=ERRORS)
async def models(service: Served) -> Response:
    """The runs that are served."""
    found = [await asyncio.to_thread(_facts, run, service.book) for run in service.book.runs.values()]
    return json_answer({"models": found})


def _facts(run: ServedRun, book: RunBook) -> dict[str, Any]:
    model = run.model
    return {
        **head(run),
        "default": run.name == book.default,
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
        "reload_error": book.errors.get(run.name),
    }


@router.post("/v1/model/reload", response_model=schemas.ReloadAnswer, responses=ERRORS)
async def reload(service: Served, body: schemas.ReloadBody | None = None) -> Response:
    """Load runs anew; one that cannot be used leaves the old one in place (409)."""
    name = None if body is None else body.model
    service.run(name)
    try:
        done = await asyncio.shield(asyncio.to_thread(service.book.reload, name))
    except TalosError as error:
        raise RequestError(409, str(error), "model") from error
    return json_answer({"reloaded": done})


@router.get("/livez", response_model=schemas.HealthAnswer)
@router.get("/readyz", response_model=schemas.HealthAnswer)
async def health(service: Served, request: Request) -> Response:
    """Whether lists can be made, of which versions, and which reloads have failed."""
    book, live = service.book, request.scope["path"] == "/livez"
    status = "ok" if live else "ready"
    return json_answer({"status": status, "models": book.versions, "reload_errors": dict(book.errors)})


@router.get("/metrics", response_class=PlainTextResponse, responses={401: {"model": schemas.ErrorAnswer}})
async def metrics(service: Served) -> Response:
    """Counters in the text format of Prometheus."""
    text = service.metrics.text(service.book.versions)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
