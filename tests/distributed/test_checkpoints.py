"""Checkpoints of a group: each rank its rows, any number of ranks to go on with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "shared": {"negatives": "shared:16/4", "threshold.name": "regression", "threshold.lr": 0.05,
               "optimizer.rows": "touched"},
    "running": {"negatives": "shared:16/4"},
    "lightgcn": {"backbone.name": "lightgcn", "backbone.dim": 8},
    "positions": {"backbone.name": "gru_backbone:GRU", "backbone.dim": 8, "training.batch_size": 24,
                  "optimizer.lr": 0.003},
    "items": {"training.parallel": "items"},
    "items to users": {"training.parallel": "items"},
    "users to items": {"training.parallel": "users"},
}  # fmt: skip
# Runs that go on divided in another way than they began.
AFTERWARDS: dict[str, dict[str, Any]] = {
    "items to users": {"training.parallel": "users"},
    "users to items": {"training.parallel": "items"},
}


def jobs(way: str, **more: Any) -> list[dict[str, Any]]:
    changes = AFTERWARDS if more.get("resume") else {}
    return [{"name": f"{name} {way}", "folder": f"{name} {way}", "values": values | changes.get(name, {}), **more}
            for name, values in SETTINGS.items()]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, launched: Callable[..., Any]) -> Path:
    """Runs of one process without a stop, and of several that stop in the middle and go on with other numbers."""
    out = tmp_path_factory.mktemp("resumed")
    launched(1, out, [*jobs("whole"), *jobs("1-stopped", stop=14)])
    launched(2, out, jobs("2-stopped", stop=14))
    for way in ("2-3", "2-1", "1-2"):
        for name in SETTINGS:
            shutil.copytree(out / f"{name} {way[0]}-stopped", out / f"{name} {way}")
        launched(int(way[-1]), out, jobs(way, resume=True))
    return out


@pytest.mark.parametrize("way", ["2-3", "2-1", "1-2"])
@pytest.mark.parametrize("name", SETTINGS)
def test_going_on_with_another_number_of_ranks(
    folder: Path, outcome: Callable[..., Any], name: str, way: str
) -> None:
    found = outcome(folder)
    for rank in range(int(way[0])):
        assert (
            "InterruptedRunError: stopped in epoch 2"
            in found.facts(f"{name} {way[0]}-stopped", rank)["error"]
        )
    facts, whole = found.facts(f"{name} {way}"), found.facts(f"{name} whole")
    assert facts["resumed"]
    assert facts["position"]["best_metrics"] == pytest.approx(whole["position"]["best_metrics"], rel=1e-6)
    alone, together = found.tensors(f"{name} whole"), found.tensors(f"{name} {way}")
    for part in ("users", "items", "thresholds"):
        assert (alone[part] - together[part]).norm() / alone[part].norm() < 1e-5, part


def rows_of(folder: Path) -> dict[str, dict[str, int]]:
    """How many rows of which tables each file of the newest checkpoint has."""
    found = {}
    for path in sorted(folder.glob("0*"))[-1].glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names = [one for one in file.keys() if "backbone" in one and not one.endswith(".step")]  # noqa: SIM118
            found[path.name] = {name: len(file.get_tensor(name)) for name in names}
    return found


def tables(of: str, rows: int) -> dict[str, int]:
    table = f"{of.removesuffix('s')}_table"
    moments = f"optimizer.backbone.{table}.exp_avg"
    names = f"objective.backbone.{table}", f"average.backbone.{table}", moments, f"{moments}_sq"
    return dict.fromkeys(names, rows)


def test_each_rank_writes_its_users_and_the_first_one_the_items(folder: Path) -> None:
    assert rows_of(folder / "exact 2-3") == {
        "state.safetensors": tables("items", 31),
        "state.users-0-17.safetensors": tables("users", 17),
        "state.users-17-35.safetensors": tables("users", 18),
        "state.users-35-53.safetensors": tables("users", 18),
    }


def test_each_rank_writes_the_rows_of_its_items_alone(folder: Path) -> None:
    assert rows_of(folder / "users to items 2-3") == {
        "state.safetensors": {},
        "state.users-0-17.safetensors": tables("users", 17),
        "state.users-17-35.safetensors": tables("users", 18),
        "state.users-35-53.safetensors": tables("users", 18),
        "state.items-0-10.safetensors": tables("items", 10),
        "state.items-10-20.safetensors": tables("items", 10),
        "state.items-20-31.safetensors": tables("items", 11),
    }


def test_a_part_that_cannot_be_written_stops_all_ranks(group_run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where the folder should be")
    found = group_run(2, [{"name": "blocked", "folder": "blocked"}])
    for rank in range(2):
        assert "could not be written" in found.facts("blocked", rank)["error"]
