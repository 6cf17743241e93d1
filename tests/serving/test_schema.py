"""Requests made from `/openapi.json`: no 500, and every answer fits its schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

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


schema = schemathesis.pytest.from_fixture("api")
quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check(case: Any) -> None:
    checks = (
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    )
    case.call_and_validate(checks=checks)


@schema.parametrize()
@quick
def test_no_request_breaks_it(case: Any) -> None:
    check(case)


@pytest.mark.slow
@schema.parametrize()
@settings(quick, max_examples=700)  # 15 operations: 10,000 requests
def test_ten_thousand_requests(case: Any) -> None:
    check(case)
