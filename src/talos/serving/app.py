"""The ASGI application of one worker: the endpoints, the errors they end with, and the guard before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from talos.errors import InputError
from talos.serving.endpoints import router
from talos.serving.guard import Guard, error_answer
from talos.serving.service import Service
from talos.serving.settings import Keys, Settings

__all__ = ["create_app"]

# The field that is named for a request that reaches no endpoint.
_FIELDS = {400: "body", 404: "path", 405: "method"}


def create_app(settings: Settings) -> Guard:
    """The ASGI application of one worker."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        following = asyncio.create_task(service.follow())
        yield {"guard": guard}  # the state of the lifespan, which the server's protocol reads
        following.cancel()
        await asyncio.to_thread(service.close)

    service = Service(settings)
    app = FastAPI(
        title="Talos",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={
            RequestValidationError: _invalid,
            HTTPException: _http_error,
            InputError: _input_error,
        },
    )
    app.state.service = service
    app.include_router(router)
    guard = Guard(app, settings=settings, keys=Keys.load(settings), metrics=service.metrics)
    return guard


async def _invalid(request: Request, error: Any) -> Response:
    """The first fault of a request; what was sent is not repeated, for it may be anything."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return error_answer(422, "the body is not JSON", "body")
    kept = [part for part in place[1:] if not part.startswith(("constrained", "function-", "[key]"))]
    return error_answer(422, str(first["msg"])[:500], ".".join(kept)[:500] or place[0])


async def _http_error(request: Request, error: Any) -> Response:
    return error_answer(
        error.status_code,
        str(error.detail),
        getattr(error, "field", None) or _FIELDS.get(error.status_code),
        error.headers,
    )


async def _input_error(request: Request, error: Any) -> Response:
    return error_answer(422, str(error), error.where)
