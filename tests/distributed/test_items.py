"""Items divided among ranks as well as users: the same batches, and so the same vectors as one process has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

SETTINGS: dict[str, dict[str, Any]] = {
    "talos": {},
    "talos, mean over users": {"training.reduction": "users"},
    "talos, random start": {"training.init": "random", "optimizer.weight_decay": 0.001},
    "talos, one number for all": {"threshold.name": "fixed", "threshold.value": 0.3},
    "talos, long lists": {"k": 12},  # more than a rank of four has items
    "softmax": {"loss.name": "sl"},
    "softmax, mean over users": {"loss.name": "sl", "training.reduction": "users"},
    "bilateral softmax": {"loss.name": "bsl"},
    "softmax at k": {"loss.name": "sl@k"},
    "softmax at k, mean over users": {"loss.name": "sl@k", "training.reduction": "users"},
    "accuracy at the top": {"loss.name": "aatp"},
    "partial auc": {"loss.name": "llpauc"},
    "touched rows": {"optimizer.rows": "touched"},
}
# Once more by the readable kernel.
IN_TORCH = ("talos", "softmax at k, mean over users", "accuracy at the top")
# On four ranks, one of each kind.
ON_FOUR = ("talos", "talos, long lists", "softmax at k", "partial auc", "talos in torch")
ALL = {**SETTINGS, **{f"{name} in torch": SETTINGS[name] for name in IN_TORCH}}
CASES = [(name, size) for name in ALL for size in (2, 4) if size == 2 or name in ON_FOUR]
USERS, ITEMS = 53, 31


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, launched: Callable[..., Any]) -> dict[int, Any]:
    found = {}
    for size in (1, 2, 4):
        jobs = [
            {
                "name": name,
                "values": {**values, "training.parallel": "items"},
                "kernel": "torch" if name.endswith("in torch") else "auto",
            }
            for name, values in ALL.items()
            if size < 4 or name in ON_FOUR
        ]
        found[size] = launched(size, tmp_path_factory.mktemp(f"ranks{size}"), jobs)
    return found


@pytest.mark.parametrize(("name", "size"), CASES)
def test_vectors_and_thresholds_of_one_process(outcomes: dict[int, Any], name: str, size: int) -> None:
    alone, together = outcomes[1].tensors(name), outcomes[size].tensors(name)
    for part in ("users", "items", "thresholds"):
        assert (part in alone) == (part in together)
        if part in alone:
            distance = (alone[part] - together[part]).norm() / alone[part].norm()
            assert distance < 1e-5, part


@pytest.mark.parametrize(("name", "size"), CASES)
def test_validation_and_where_it_stops_are_those_of_one_process(
    outcomes: dict[int, Any], name: str, size: int
) -> None:
    alone = outcomes[1].facts(name)
    for rank in range(size):
        here = outcomes[size].facts(name, rank)
        assert here["position"]["best_metrics"] == pytest.approx(alone["position"]["best_metrics"], rel=1e-6)
        assert here["position"]["best_epoch"] == alone["position"]["best_epoch"]
        assert here["threshold_error"] == pytest.approx(alone["threshold_error"], abs=1e-5)
    assert outcomes[size].facts(name)["losses"] == pytest.approx(alone["losses"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_has_rows_of_its_own_users_and_items_alone(outcomes: dict[int, Any], size: int) -> None:
    parts = [outcomes[size].tensors("talos", rank) for rank in range(size)]
    assert torch.equal(torch.cat([part["own"] for part in parts]), parts[0]["users"])
    assert all(
        torch.equal(part["own_items"], parts[0]["items"]) for part in parts
    )  # gathered for the results
    for rank in range(size):
        rows = sum(count * (rank + 1) // size - count * rank // size for count in (USERS, ITEMS))
        assert outcomes[size].facts("talos", rank)["numbers"] == rows * 8
