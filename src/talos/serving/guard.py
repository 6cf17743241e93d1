"""What every request passes before it is parsed: host, key, size, concurrency, deadline; and the access log."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping

from fastapi import HTTPException
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from talos.serving.metrics import Metrics, log_line
from talos.serving.settings import Keys, Settings, is_loopback

__all__ = ["Guard", "RequestError", "error_answer"]

# The names of routes for the metrics, of which there are few; any other path is `other`.
_ROUTE = re.compile(
    r"(?P<health>/livez|/readyz|/metrics)|(?P<page>/|/page/[a-z]+\.[a-z]+)|(?P<reload>/v1/model/reload)"
    r"|(?P<insights>/v1/(?:map|quality|items/[^/]*/exposure))|(?P<similar>/v1/(?:items|users)/[^/]*/similar)"
    r"|(?P<recommend>/v1/recommend(?:/.*)?)|(?P<rank>/v1/rank)|(?P<popular>/v1/popular)|(?P<model>/v1/model)"
    r"|(?P<feedback>/v1/feedback)|(?P<items>/v1/items(?:/.*)?)|(?P<users>/v1/users(?:/.*)?)"
)
_WITHOUT_KEY = {"/livez", "/readyz", "/openapi.json"}
_ADMIN = {"feedback", "reload"}
# One whole request, as far as its bytes say plainly.
_WHOLE = re.compile(rb"(GET|POST) (/v1/[^ ?\r\n]*)[^ \r\n]* HTTP/1\.1(\r\n.*?\r\n)\r\n(.*)", re.DOTALL)
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n)")
_PARSED = (b"transfer-encoding", b"\nconnection: close")
_CLOSE = {"connection": "close"}


class RequestError(HTTPException):
    """A request that cannot be answered: the status, what is wrong, and with which field."""

    def __init__(
        self, status: int, error: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, error, headers)
        self.field = field


def error_answer(
    status: int, error: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer with an error; text that cannot be encoded is replaced."""
    body = json.dumps({"error": error, "field": field}, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers=headers, media_type="application/json")


_BUSY = error_answer(
    503, "too many requests at a time", None, {"retry-after": "1", "x-content-type-options": "nosniff"}
)
_BUSY_BYTES = b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n%b" % (
    b"".join(b"%b: %b\r\n" % pair for pair in _BUSY.raw_headers),
    bytes(_BUSY.body),
)


class Guard:
    """ASGI middleware around the endpoints.

    Args:
        app: the endpoints.
        settings: limits and addresses.
        keys: who may do what.
        metrics: counts requests.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, keys: Keys, metrics: Metrics) -> None:
        self.settings = settings
        self._app, self._keys, self._metrics = app, keys, metrics
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        # Without keys the service trusts every process that can connect. A foreign page that is open in a browser on
        # this machine can connect too; its requests carry its own name as host or origin.
        self._check_host = is_loopback(settings.host) and settings.needs_no_key

    @property
    def busy(self) -> bool:
        """Whether the next request would be one too many."""
        return self._slots.locked()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, path = time.perf_counter(), scope["path"]
        answer = _Answer(send)
        # ids may contain any character, also '/': they stay encoded until an endpoint takes them
        scope = {**scope, "path": scope.get("raw_path", path.encode()).decode("latin-1")}
        route = _route(scope["path"])
        if (refusal := self._refusal(scope, route)) is not None:
            await refusal(scope, receive, answer.send)
        elif route == "health":  # whatever the load is
            await self._app(scope, receive, answer.send)
        else:
            async with self._slots:
                with self._metrics.in_flight.track_inprogress():
                    await self._bounded(scope, receive, answer)
        seconds = time.perf_counter() - began
        self._metrics.observe(route, answer.status, seconds)
        if self.settings.access_log:
            log_line(
                method=scope["method"],
                path=path,
                query=scope["query_string"].decode("latin-1"),
                status=answer.status,
                ms=round(1000 * seconds, 3),
                bytes=answer.bytes,
                client=(scope.get("client") or [None])[0],
            )

    def _refusal(self, scope: Scope, route: str) -> Response | None:
        """The answer to a request that goes no further; None if it may."""
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._check_host and name and not is_loopback(name):
            return error_answer(
                421, f"host {host!r}: without keys only requests to a loopback address are answered", "host"
            )
        if self._check_host and origin not in ("", f"http://{host}", f"https://{host}"):
            return error_answer(403, f"origin {origin!r}: requests of other pages are not answered", "origin")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        key = headers.get(b"x-api-key", token.strip() if scheme.lower() == b"bearer" else None)
        is_open = route == "page" or scope["path"] in _WITHOUT_KEY
        if not is_open and not self._keys.allow(key, admin=route in _ADMIN):
            return error_answer(
                401, "a key is missing or wrong", "authorization", {"www-authenticate": "Bearer"}
            )
        size = int(headers.get(b"content-length", b"0"))  # digits, or the server has refused the request
        if size > self.settings.max_body:
            return error_answer(
                413, f"the body has {size:,} bytes; at most {self.settings.max_body:,}", "body"
            )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and size > 0 and kind != b"application/json":
            return error_answer(415, "the body must be application/json", "content-type")
        return _BUSY if self.busy and route != "health" else None

    def refuse_early(self, data: bytes) -> bytes | None:
        """The refusal of a request by its bytes, if the service is busy; None if the request has to be parsed.

        Parsing a request costs ten times what refusing it does. Only what is plainly one whole request is refused
        like this.
        """
        found = None if self.settings.access_log else _WHOLE.fullmatch(data)
        if found is None:
            return None
        method, path, head, body = found.groups()
        lengths = _LENGTH.findall(head := head.lower())
        whole = len(lengths) <= (method == b"POST") and sum(map(int, lengths)) == len(body)
        if not whole or b"\nhost:" not in head or any(one in head for one in _PARSED):
            return None
        self._metrics.observe(_route(path.decode("latin-1")), 503, 0.0)
        return _BUSY_BYTES

    async def _bounded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Run the endpoint with a limit to its body and its time."""
        limit, received, complete = self.settings.max_body, 0, scope["method"] == "GET"

        async def counted() -> Message:
            nonlocal received, complete
            message = await receive()
            received += len(message.get("body", b""))
            complete = complete or not message.get("more_body", False)
            if received > limit:
                raise RequestError(413, f"the body has more than {limit:,} bytes", "body", _CLOSE)
            return message

        try:
            async with asyncio.timeout(self.settings.deadline):
                await self._app(scope, counted, answer.send)
        except TimeoutError:
            late = (
                error_answer(504, f"not done within {self.settings.deadline:g} s")
                if complete
                else error_answer(408, "the body did not arrive in time", "body", _CLOSE)
            )
            if not answer.status:
                await late(scope, receive, answer.send)
        except Exception as error:  # the log names the fault, the answer does not
            log_line(event="error", path=scope["path"], error=repr(error))


class _Answer:
    """What is sent as an answer: its status and size."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.bytes = send, 0, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
            message = {**message, "headers": headers}
        self.bytes += len(message.get("body", b""))
        await self._send(message)


def _route(path: str) -> str:
    match = _ROUTE.fullmatch(path)
    return (match and match.lastgroup) or "other"
