"""What every request passes before it is parsed: host, key, size, concurrency, deadline; and the access log."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fastapi.responses import Response

from talos.serving.metrics import Metrics
from talos.serving.settings import Keys, Settings, is_loopback

__all__ = ["Guard", "error_answer"]

Scope: TypeAlias = Any
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]

# The name of a route for the metrics: few, whatever is asked for.
_ROUTE = re.compile(
    r"(?P<health>/livez|/readyz|/metrics)|(?P<page>/|/page/[a-z]+\.[a-z]+)|(?P<reload>/v1/model/reload)"
    r"|(?P<insights>/v1/(?:map|quality|items/[^/]*/exposure))|(?P<similar>/v1/(?:items|users)/[^/]*/similar)"
    r"|(?P<recommend>/v1/recommend(?:/.*)?)|(?P<rank>/v1/rank)|(?P<popular>/v1/popular)|(?P<model>/v1/model)"
    r"|(?P<feedback>/v1/feedback)|(?P<items>/v1/items(?:/.*)?)|(?P<users>/v1/users(?:/.*)?)"
)
_WITHOUT_KEY = {"/livez", "/readyz", "/openapi.json"}
_ADMIN = {"feedback", "reload"}
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|$)")


def error_answer(
    status: int, error: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer to whatever is not 2xx; text that cannot be encoded is replaced."""
    clean = [None if text is None else text.encode("utf-8", "replace").decode() for text in (error, field)]
    body = json.dumps({"error": clean[0], "field": clean[1]}, ensure_ascii=False)
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

    def __init__(self, app: Any, *, settings: Settings, keys: Keys, metrics: Metrics) -> None:
        self.settings = settings
        self._app, self._keys, self._metrics = app, keys, metrics
        self._in_flight = 0
        # Without keys the service trusts every process that can connect. A foreign page that is open in a browser on
        # this machine can connect too; its requests carry its own name as host or origin.
        self._check_host = is_loopback(settings.host) and settings.needs_no_key

    @property
    def busy(self) -> bool:
        """Whether the next request would be one too many."""
        return self._in_flight >= self.settings.max_concurrency

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
        elif self.busy:
            await _BUSY(scope, receive, answer.send)
        else:
            self._in_flight += 1
            try:
                with self._metrics.in_flight.track_inprogress():
                    await self._bounded(scope, receive, answer)
            finally:
                self._in_flight -= 1
        seconds = time.perf_counter() - began
        self._metrics.observe(route, answer.status, seconds)
        if self.settings.access_log:
            line = {
                "time": round(time.time(), 3),
                "method": scope["method"],
                "path": path,
                "query": scope["query_string"].decode("latin-1"),
                "status": answer.status,
                "ms": round(1000 * seconds, 3),
                "bytes": answer.bytes,
                "client": (scope.get("client") or [None])[0],
            }
            print(json.dumps(line), file=sys.stderr, flush=True)

    def _refusal(self, scope: Scope, route: str) -> Response | None:
        """The answer to a request that goes no further; None if it may."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._check_host:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
            if name and not is_loopback(name):
                text = f"host {host!r}: without keys only requests to a loopback address are answered"
                return error_answer(421, text, "host")
            origin = headers.get(b"origin", b"").decode("latin-1").lower()
            if origin not in ("", f"http://{host}", f"https://{host}"):
                text = f"origin {origin!r}: requests of other pages are not answered"
                return error_answer(403, text, "origin")
        if route != "page" and scope["path"] not in _WITHOUT_KEY:
            key = headers.get(b"x-api-key")
            scheme, _, rest = headers.get(b"authorization", b"").partition(b" ")
            if key is None and scheme.lower() == b"bearer":
                key = rest.strip()
            if not self._keys.allow(key, admin=route in _ADMIN):
                wanted = {"www-authenticate": "Bearer"}
                return error_answer(401, "a key is missing or wrong", "authorization", wanted)
        size = int(headers.get(b"content-length", b"0"))  # digits, or the server has refused the request
        if size > self.settings.max_body:
            return error_answer(
                413, f"the body has {size:,} bytes; at most {self.settings.max_body:,}", "body"
            )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and size > 0 and kind != b"application/json":
            return error_answer(415, "the body must be application/json", "content-type")
        return None

    def refuse_early(self, data: bytes) -> bytes | None:
        """The refusal of a request by its bytes, in a busy service; None if the request has to be parsed.

        Parsing a request costs ten times what refusing it does. Only what is plainly one whole request is refused
        like this.
        """
        if not self.busy or self.settings.access_log:
            return None
        head, end, body = data.partition(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        words, rest = first.split(b" "), rest.lower()
        if not end or len(words) != 3 or words[2] != b"HTTP/1.1" or not words[1].startswith(b"/v1/"):
            return None
        lengths = _LENGTH.findall(b"\r\n" + rest)
        size = int(lengths[0]) if lengths else 0
        if len(lengths) > (words[0] == b"POST") or size != len(body) or words[0] not in (b"GET", b"POST"):
            return None
        if b"transfer-encoding" in rest or b"\nconnection: close" in rest or b"\nhost:" not in b"\n" + rest:
            return None
        self._metrics.observe(_route(words[1].partition(b"?")[0].decode("latin-1")), 503, 0.0)
        return _BUSY_BYTES

    async def _bounded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Run the endpoint with a limit to its body and its time."""
        limit, received, complete = self.settings.max_body, 0, scope["method"] == "GET"

        async def refuse(status: int, error: str, field: str | None = None, *, close: bool = False) -> None:
            if not answer.status:
                response = error_answer(status, error, field, {"connection": "close"} if close else None)
                await response(scope, receive, answer.send)
                answer.over = True

        async def counted() -> Any:
            nonlocal received, complete
            message = await receive()
            received += len(message.get("body", b""))
            complete = complete or not message.get("more_body", False)
            if received > limit:
                await refuse(413, f"the body has more than {limit:,} bytes", "body", close=True)
                return {"type": "http.disconnect"}  # the endpoint's own answer is dropped
            return message

        try:
            async with asyncio.timeout(self.settings.deadline):
                await self._app(scope, counted, answer.send)
        except TimeoutError:
            if complete:
                await refuse(504, f"not done within {self.settings.deadline:g} s")
            else:
                await refuse(408, "the body did not arrive in time", "body", close=True)
        except Exception as error:
            # the log names the fault, the answer does not
            line = {"event": "error", "path": scope["path"], "error": repr(error)}
            print(json.dumps(line), file=sys.stderr)
            await refuse(500, "internal error")


class _Answer:
    """What is sent as an answer: its status and size, and nothing once it is `over`."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.bytes, self.over = send, 0, 0, False

    async def send(self, message: Any) -> None:
        if self.over:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
            message = {**message, "headers": headers}
        self.bytes += len(message.get("body", b""))
        await self._send(message)


def _route(path: str) -> str:
    match = _ROUTE.fullmatch(path)
    return (match and match.lastgroup) or "other"
