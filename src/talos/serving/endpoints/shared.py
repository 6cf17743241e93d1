"""What endpoints have in common: the types of their parameters, ids in paths, and the form of answers."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
import orjson
from fastapi import Depends, Query, Request
from fastapi.responses import Response
from numpy.typing import NDArray

from talos.data.vocabulary import Vocabulary
from talos.serving import schemas
from talos.serving.feedback import Id
from talos.serving.runs import ServedRun, encode
from talos.serving.service import RequestError, Service

__all__ = [
    "ERRORS",
    "Length",
    "Name",
    "Offset",
    "Run",
    "Several",
    "Shares",
    "decoded",
    "head",
    "json_answer",
    "position_of",
    "service_of",
]

Name: TypeAlias = Annotated[str | None, Query(alias="model", max_length=4096)]
Length: TypeAlias = Annotated[int | None, Query(ge=1, le=schemas.MOST)]
Offset: TypeAlias = Annotated[int, Query(ge=0, le=schemas.MOST)]
Shares: TypeAlias = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Several: TypeAlias = Annotated[list[str], Query(max_length=1000)]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 503, 504)
}


def service_of(request: Request) -> Service:
    """The service that a request was sent to."""
    service: Service = request.app.state.service
    return service


async def _run_of(request: Request, model: Name = None) -> ServedRun:
    return service_of(request).run(model)


Run: TypeAlias = Annotated[ServedRun, Depends(_run_of)]


def decoded(part: str, field: str) -> str:
    """An id from a path, where it stands percent-encoded."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise RequestError(400, "is not UTF-8", field) from None


def position_of(ids: Vocabulary, one: Id, kind: str, degrees: NDArray[np.int64] | None = None) -> int:
    """The position of an id; 404 if it is unknown, or has no training events (`degrees`). `kind` says of what."""
    code = int(encode(ids, [one])[0])
    if code < 0:
        raise RequestError(404, f"no {kind} {one!r}", kind)
    if degrees is not None and not degrees[code]:
        raise RequestError(404, f"{kind} {one!r} has no training events", kind)
    return code


def head(run: ServedRun) -> dict[str, Any]:
    """What every answer about a run begins with."""
    return {"model": run.name, "version": run.version}


def json_answer(values: dict[str, Any]) -> Response:
    """An answer with these values, as they are: checking them against the schema would cost more than a list does."""
    return Response(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
