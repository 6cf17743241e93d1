"""Requests made from `/openapi.json`: no 500, and every answer fits its schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .conftest import times

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture
def api(client: Callable[..., Any], saved: dict[str, Path], tmp_path: Path) -> Any:
    log = str(tmp_path / "log")
    service = client(saved["first"], saved["numbers"], feedback=log, host="0.0.0.0", without_keys=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """The service without its start and end, which a client of schemathesis would ask for with every request."""
        if scope["type"] != "lifespan":
            await service.app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    return schemathesis.openapi.from_asgi("/openapi.json", app)


def ask(api: Any, wanted: int) -> tuple[int, int]:
    """Send so many requests, shared out among the operations, and check the answers; how many operations and requests.

    An operation with few different requests is exhausted before its share; the others make up for it.
    """
    checks = (
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    )
    sent = 0
    operations = [found.ok() for found in api.get_all_operations()]
    # those with fewest parameters first: they are exhausted soonest
    order = sorted(operations, key=lambda one: len(list(one.iter_parameters())) + 100 * bool(len(one.body)))
    for place, operation in enumerate(order):
        share = -(-(wanted - sent) // (len(order) - place))

        @settings(
            max_examples=max(1, share),
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            nonlocal sent
            sent += 1
            case.call_and_validate(checks=checks)

        one()
    return len(operations), sent


def test_no_request_breaks_it(api: Any) -> None:
    """As many cases as `TALOS_TORTURE_CASES` says, 10,000 by `make torture`."""
    wanted = times("cases", 130, 10_000)
    operations, sent = ask(api, wanted)
    print(f"\nschemathesis: {sent} cases for {operations} operations")
    assert operations >= 15
    assert sent >= wanted
