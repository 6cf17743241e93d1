"""What every request passes before it is parsed: host, key, size, concurrency, deadline; and the access log."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from talos.serving.metrics import Metrics
from talos.serving.page_files import page_files
from talos.serving.settings import Keys, Settings, is_loopback

__all__ = ["Guard", "error_body"]

Scope: TypeAlias = Any
Receive: TypeAlias = Callable[[], Any]
Send: TypeAlias = Callable[[Any], Any]

# Answered whatever the load is.
_ALWAYS = {"/livez", "/readyz", "/metrics"}
_PAGE = frozenset(page_files())
_WITHOUT_KEY = {"/livez", "/readyz", "/openapi.json", *_PAGE}
_ADMIN = {"/v1/feedback", "/v1/model/reload"}
_NAMES = {
    "recommend": "recommend",
    "rank": "rank",
    "popular": "popular",
    "feedback": "feedback",
    "model": "model",
    "map": "insights",
    "quality": "insights",
}


def error_body(error: str, field: str | None = None) -> bytes:
    """The body of every answer that is not 2xx; text that cannot be encoded is replaced."""
    clean = [None if text is None else text.encode("utf-8", "replace").decode() for text in (error, field)]
    return json.dumps({"error": clean[0], "field": clean[1]}, ensure_ascii=False).encode()


_BUSY = "too many requests at a time"
_BUSY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"x-content-type-options: nosniff\r\ncontent-length: %d\r\n\r\n%b"
) % (len(error_body(_BUSY)), error_body(_BUSY))
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|$)")


class Guard:
    """ASGI middleware around the endpoints.

    Args:
        app: the endpoints.
        settings: limits and addresses.
        keys: who may do what.
        metrics: counts requests.
    """

    def __init__(self, app: Any, *, settings: Settings, keys: Keys, metrics: Metrics) -> None:
        self._app, self._settings, self._keys, self._metrics = app, settings, keys, metrics
        self._in_flight = 0
        # Without keys the service trusts whoever can connect. A page of somebody else's, open in a browser on this
        # machine, can connect too; its requests carry its own name as host or origin.
        self._check_host = is_loopback(settings.host) and not (
            settings.read_key_file or settings.admin_key_file
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
                return
            await self._app(scope, receive, send)
            return
        began, path = time.perf_counter(), scope["path"]
        state = _State(send)
        # ids may contain any character, also '/': they stay encoded until an endpoint takes them
        scope = {**scope, "path": scope.get("raw_path", path.encode()).decode("latin-1")}
        refusal = self._refusal(scope, path)
        if refusal is not None:
            await state.answer(*refusal)
        elif path in _ALWAYS:
            await self._app(scope, receive, state.send)
        elif self.busy:
            await state.answer(503, _BUSY, None, {b"retry-after": b"1"})
        else:
            self._in_flight += 1
            self._metrics.count("in_flight")
            try:
                await self._bounded(scope, receive, state)
            finally:
                self._in_flight -= 1
                self._metrics.count("in_flight", -1)
        seconds = time.perf_counter() - began
        self._metrics.observe(_route(path), state.status, seconds)
        if self._settings.access_log:
            line = {
                "time": round(time.time(), 3),
                "method": scope["method"],
                "path": path,
                "query": scope["query_string"].decode("latin-1"),
                "status": state.status,
                "ms": round(1000 * seconds, 3),
                "bytes": state.bytes,
                "client": (scope.get("client") or [None])[0],
            }
            print(json.dumps(line), file=sys.stderr, flush=True)

    def _refusal(self, scope: Scope, path: str) -> tuple[Any, ...] | None:
        """Status, error, field and headers for a request that goes no further; None if it may."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._check_host:
            named = headers.get(b"host", b"").decode("latin-1").lower()
            name = named.rsplit(":", 1)[0] if not named.endswith("]") else named
            if name and not is_loopback(name):
                return (
                    421,
                    f"host {named!r}: without keys only requests to a loopback address are answered",
                    "host",
                )
            origin = headers.get(b"origin", b"").decode("latin-1").lower()
            if origin not in ("", f"http://{named}", f"https://{named}"):
                return 403, f"origin {origin!r}: requests of other pages are not answered", "origin"
        if path not in _WITHOUT_KEY:
            given = headers.get(b"x-api-key")
            scheme, _, rest = headers.get(b"authorization", b"").partition(b" ")
            if given is None and scheme.lower() == b"bearer":
                given = rest.strip()
            if not self._keys.allow(given, admin=path in _ADMIN):
                return 401, "a key is missing or wrong", "authorization", {b"www-authenticate": b"Bearer"}
        size = headers.get(b"content-length", b"0")
        if not size.isdigit():
            return 400, "content-length is not a number", "content-length"
        if int(size[:20]) > self._settings.max_body:
            return 413, f"the body has {int(size[:20]):,} bytes; at most {self._settings.max_body:,}", "body"
        if scope["method"] == "POST" and int(size[:20]) > 0:
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                return 415, "the body must be application/json", "content-type"
        return None

    @property
    def busy(self) -> bool:
        """Whether the next request would be one too many."""
        return self._in_flight >= self._settings.max_concurrency

    def refuse_early(self, data: bytes) -> bytes | None:
        """The answer to a request that comes while the service is busy, by its bytes alone; None to parse them.

        Refusing then costs a fraction of what answering does, so that a service with four times the requests that it
        can carry answers nearly as many as without them. Only what is plainly one whole request is refused like this.
        """
        if not self.busy or self._settings.access_log:
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
        return _BUSY_ANSWER

    async def _bounded(self, scope: Scope, receive: Receive, state: _State) -> None:
        """Run the endpoint with a limit to its body and its time."""
        limit, received, complete = self._settings.max_body, 0, False

        async def counted() -> Any:
            nonlocal received, complete
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > limit:
                    text = f"the body has more than {limit:,} bytes"
                    await state.answer(413, text, "body", {b"connection": b"close"})
                    return {"type": "http.disconnect"}  # the endpoint has nobody to answer any more
            return message

        try:
            async with asyncio.timeout(self._settings.deadline):
                await self._app(scope, counted, state.send)
        except TimeoutError:
            if complete or scope["method"] == "GET":
                await state.answer(504, f"not done within {self._settings.deadline:g} s", None)
            else:
                await state.answer(408, "the body did not arrive in time", "body", {b"connection": b"close"})
        except Exception as error:
            # whatever goes wrong is named in the log and not shown to the caller
            print(
                json.dumps({"event": "error", "path": scope["path"], "error": repr(error)}), file=sys.stderr
            )
            await state.answer(500, "internal error", None)


class _State:
    """What has been answered so far."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.bytes, self.answered = send, 0, 0, False

    async def send(self, message: Any) -> None:
        if not self.answered:
            await self._pass_on(message)

    async def _pass_on(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {
                **message,
                "headers": [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")],
            }
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)

    async def answer(
        self, status: int, error: str, field: str | None, headers: dict[bytes, bytes] | None = None
    ) -> None:
        """A whole answer, if nothing has been sent yet."""
        if self.status:
            return
        self.answered = True  # by this, and by nothing after it
        body = error_body(error, field)
        start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headed = [*start, *(headers or {}).items()]
        await self._pass_on({"type": "http.response.start", "status": status, "headers": headed})
        await self._pass_on({"type": "http.response.body", "body": body})


def _route(path: str) -> str:
    """The name of a route for the metrics: few, whatever is asked for."""
    if path in _ALWAYS:
        return "health"
    if path in _PAGE:
        return "page"
    if path == "/v1/model/reload":
        return "reload"
    parts = path.split("/")
    if len(parts) < 3 or parts[1] != "v1":
        return "other"
    if parts[2] in ("items", "users"):
        last = parts[-1] if len(parts) > 4 else ""
        return {"similar": "similar", "exposure": "insights"}.get(last, parts[2])
    return _NAMES.get(parts[2], "other")
