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


quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def ask_everything(api: Any, examples: int) -> None:
    """Ask every operation as often as that; schemathesis's own way to do so does not work with pytest 9.2."""
    checks = (
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    )
    operations = [found.ok() for found in api.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:

        @settings(quick, max_examples=examples)
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(checks=checks)

        ask()


def test_no_request_breaks_it(api: Any) -> None:
    ask_everything(api, 8)


@pytest.mark.slow
def test_ten_thousand_requests(api: Any) -> None:
    ask_everything(api, 700)  # 15 operations
