"""The files of the page, and the figures about a run as a whole that it shows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

from talos.serving import insights, schemas
from talos.serving.endpoints.shared import (
    ERRORS,
    Run,
    Served,
    decoded,
    head,
    json_answer,
    position_of,
)

__all__ = ["router"]

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

router = APIRouter()


class _Files(StaticFiles):
    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(_HEADERS)
        return response


_FILES = _Files(packages=[("talos.serving", "page")])


@router.get("/", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page(request: Request, name: str = "index.html") -> Response:
    """A file of the page."""
    return await _FILES.get_response(name, request.scope)


@router.get("/v1/items/{item}/exposure", response_model=schemas.ExposureAnswer, responses=ERRORS)
async def exposure(service: Served, item: str, run: Run) -> Response:
    """In how many of the users' lists an item is; the first request to a run counts for all items."""
    code = position_of(run.items, decoded(item, "item"), "item")
    counts, lists = await service.insight(run, insights.exposure)
    held = int(counts[code])
    facts = {"k": min(run.k, len(run.items)), "lists": held, "of_lists": lists, "share": held / max(1, lists)}
    return json_answer({**head(run), "item": run.describe([code])[0]["item"], **facts})


@router.get("/v1/map", response_model=schemas.MapAnswer, responses=ERRORS)
async def item_map(request: Request, service: Served, run: Run) -> Response:
    """All items on a plane, by the two main axes of their vectors; the first request to a run computes it."""
    found = await service.insight(run, insights.item_map)
    headers = {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.compressed, headers=headers, media_type="application/json")
    return Response(found.plain, headers=headers, media_type="application/json")


@router.get("/v1/quality", response_model=schemas.QualityAnswer, responses=ERRORS)
async def quality(service: Served, run: Run) -> Response:
    """Metrics by list length and by slice; the first request to a run measures them."""
    return json_answer({**head(run), **await service.insight(run, insights.quality)})
