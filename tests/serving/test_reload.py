"""Runs are replaced while requests go on: no request fails, no answer mixes versions, a bad run leaves the old one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.model.recommender import Recommender

from .conftest import copied, until

Client = Callable[..., Any]


def test_the_endpoint_loads_what_was_saved(client: Client, saved: dict[str, Path], run: Path) -> None:
    service = client(run)
    before = service.get("/v1/recommend/user20", params={"k": 5}).json()
    copied(saved["second"], run)
    done = service.post("/v1/model/reload").json()["reloaded"]
    after = service.get("/v1/recommend/user20", params={"k": 5}).json()
    assert done == [{"model": "run", "version": after["version"], "before": before["version"]}]
    assert after["version"] != before["version"]
    right = Recommender.load(saved["second"]).recommend(["user20"], k=5)["item_id"].to_list()
    assert [item["item"] for item in after["results"][0]["items"]] == right
    assert service.post("/v1/model/reload", json={"model": "zz"}).status_code == 404


def test_a_bad_run_leaves_the_old_one(client: Client, saved: dict[str, Path], run: Path) -> None:
    service = client(run)
    before = service.get("/v1/recommend/user20").json()
    (run / "model.safetensors").write_bytes(b"broken")
    answer = service.post("/v1/model/reload")
    assert answer.status_code == 409
    assert "model.safetensors" in answer.json()["error"]
    assert "model.safetensors" in service.get("/readyz").json()["reload_errors"]["run"]
    assert service.get("/v1/model").json()["models"][0]["reload_error"]
    after = service.get("/v1/recommend/user20").json()
    assert (after["version"], after["results"]) == (before["version"], before["results"])
    copied(saved["second"], run)
    assert service.post("/v1/model/reload").status_code == 200
    assert service.get("/readyz").json()["reload_errors"] == {}
    assert "talos_failed_reloads_total 1" in service.get("/metrics").text


def test_watching(client: Client, saved: dict[str, Path], run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talos.serving.service._SECONDS_BETWEEN_LOOKS", 0.01)
    service = client(run, watch=True)
    before = service.get("/readyz").json()["models"]["run"]
    copied(saved["second"], run)
    until(lambda: service.get("/readyz").json()["models"]["run"] != before)
    (run / "model.json").write_text("{")
    until(lambda: service.get("/readyz").json()["reload_errors"])
    assert service.get("/v1/recommend/user20").status_code == 200


def test_feedback_stays_after_a_reload(
    client: Client, saved: dict[str, Path], run: Path, tmp_path: Path
) -> None:
    service = client(run, feedback=str(tmp_path / "log"))
    service.post("/v1/feedback", json={"events": [{"user": "eve", "item": "item30"}]})
    copied(saved["second"], run)
    service.post("/v1/model/reload")
    mine = service.get("/v1/recommend/eve", params={"k": 5}).json()["results"][0]
    right = Recommender.load(saved["second"]).recommend(history=["item30"], k=5)["item_id"].to_list()
    assert [item["item"] for item in mine["items"]] == right
