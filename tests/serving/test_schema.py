"""Requests made from `/openapi.json`: no 500, and every answer fits its schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

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


def ask(api: Any, examples: int) -> int:
    """Send so many requests to each operation and check the answers; returns how many operations there are."""
    checks = (
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    )
    how = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    operations = [found.ok() for found in api.get_all_operations()]
    for operation in operations:

        @how
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            case.call_and_validate(checks=checks)

        one()
    return len(operations)


def test_no_request_breaks_it(api: Any) -> None:
    assert ask(api, 8) >= 15


@pytest.mark.slow
def test_ten_thousand_requests(api: Any) -> None:
    assert ask(api, 700) >= 15
