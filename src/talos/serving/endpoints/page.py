"""The files of the page, and the figures about a run as a whole that it shows."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from talos.serving import insights, schemas
from talos.serving.endpoints.shared import (
    ERRORS,
    Name,
    decoded,
    head,
    json_answer,
    position_of,
    service_of,
)
from talos.serving.page_files import PAGE_HEADERS
from talos.serving.service import RequestError

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/items/{item}/exposure", response_model=schemas.ExposureAnswer, responses=ERRORS)
async def exposure(request: Request, item: str, model: Name = None) -> Response:
    """In how many of the users' lists an item is; the first request to a run counts for all items."""
    service = service_of(request)
    run = service.run(model)
    code = position_of(run.items, decoded(item, "item"), "item")
    counts, lists = await service.insight(run, insights.exposure)
    held = int(counts[code])
    facts = {"k": min(run.k, len(run.items)), "lists": held, "of_lists": lists, "share": held / max(1, lists)}
    return json_answer({**head(run), "item": run.describe([code])[0]["item"], **facts})


@router.get("/v1/map", response_model=schemas.MapAnswer, responses=ERRORS)
async def item_map(request: Request, model: Name = None) -> Response:
    """All items on a plane, by the two main axes of their vectors; the first request to a run computes it."""
    service = service_of(request)
    found = await service.insight(service.run(model), insights.item_map)
    headers = {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.compressed, headers=headers, media_type="application/json")
    return Response(found.plain, headers=headers, media_type="application/json")


@router.get("/v1/quality", response_model=schemas.QualityAnswer, responses=ERRORS)
async def quality(request: Request, model: Name = None) -> Response:
    """Metrics by list length and by slice; the first request to a run measures them."""
    service = service_of(request)
    run = service.run(model)
    return json_answer({**head(run), **await service.insight(run, insights.quality)})


@router.get("/", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page(request: Request) -> Response:
    """A file of the page."""
    file = service_of(request).page.get(request.scope["path"])
    if file is None:
        raise RequestError(404, "no such file of the page", "path")
    headers = {**PAGE_HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
