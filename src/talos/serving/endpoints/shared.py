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

__all__ = ["ERRORS", "Run", "Served", "decoded", "head", "json_answer", "position_of"]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 503, 504)
}


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served: TypeAlias = Annotated[Service, Depends(_service_of)]


async def _run_of(service: Served, model: Annotated[str | None, Query(max_length=4096)] = None) -> ServedRun:
    return service.run(model)


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
