"""Users divided among ranks: the same batches, and so the same vectors as one process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

SETTINGS: dict[str, dict[str, Any]] = {
    "talos": {},
    "talos, random start": {"training.init": "random"},
    "mean over users": {"training.reduction": "users"},
    "softmax": {"loss.name": "sl"},
    "partial auc": {"loss.name": "llpauc"},
    "list": {"loss.name": "smoothi@k", "negatives": "all"},
    "list with an adversary": {
        "loss.name": "advinfonce", "loss.adv_every": 2, "loss.adv_epochs": 1, "negatives": "all",
    },
    "weight decay": {"optimizer.weight_decay": 0.001},
    "shared": {"negatives": "shared:8/3"},
    "shared, touched rows": {"negatives": "shared:8/3", "optimizer.rows": "touched"},
    "regression": {"negatives": "shared:16/4", "threshold.name": "regression", "threshold.lr": 0.05},
    "touched rows": {"optimizer.rows": "touched"},
    "lightgcn": {"backbone.name": "lightgcn", "backbone.dim": 8},
    "positions": {"backbone.name": "gru_backbone:GRU", "backbone.dim": 8, "optimizer.lr": 0.003},
    "xsimgcl without contrast": {
        "backbone.name": "xsimgcl", "backbone.dim": 8, "backbone.contrast_weight": 0.0, "negatives": "shared:8/3",
    },
}  # fmt: skip
# Draws for each positive are each rank's own: with many of them the differences nearly cancel.
OWN_DRAWS: dict[str, dict[str, Any]] = {
    "sampled": {"negatives": "4096", "loss.name": "sl", "training.batch_size": 64},
    "mean over users, sampled": {
        "negatives": "4096", "loss.name": "sl", "training.reduction": "users", "training.batch_size": 64,
    },
    "advinfonce": {
        "loss.name": "advinfonce", "loss.adv_every": 2, "loss.adv_epochs": 1, "negatives": "2048",
        "training.batch_size": 64,
    },
}  # fmt: skip
# One draw a positive, a contrast within each rank's part of a batch, or roundings that a last bit decides: other
# numbers, lists as good.
AS_GOOD: dict[str, dict[str, Any]] = {
    "bpr": {"loss.name": "bpr", "training.batch_size": 32, "optimizer.lr": 0.05, "training.epochs": 12},
    "xsimgcl": {"backbone.name": "xsimgcl", "backbone.dim": 8, "training.epochs": 12},
    "bfloat16": {"training.arithmetic": "bfloat16"},
}
ALL = {**SETTINGS, **OWN_DRAWS, **AS_GOOD}
# On four ranks, where some often have nobody in a batch, one of each kind.
ON_FOUR = (
    "talos",
    "mean over users",
    "list with an adversary",
    "shared, touched rows",
    "regression",
    "lightgcn",
    "positions",
    "sampled",
)


def cases(names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, size) for name in names for size in (2, 4) if size == 2 or name in ON_FOUR]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, launched: Callable[..., Any]) -> dict[int, Any]:
    found = {}
    for size in (1, 2, 4):
        jobs = [
            {"name": name, "values": values} for name, values in ALL.items() if size < 4 or name in ON_FOUR
        ]
        found[size] = launched(size, tmp_path_factory.mktemp(f"ranks{size}"), jobs)
    return found


@pytest.mark.parametrize(("name", "size"), cases(SETTINGS))
def test_vectors_and_thresholds_of_one_process(outcomes: dict[int, Any], name: str, size: int) -> None:
    alone, together = outcomes[1].tensors(name), outcomes[size].tensors(name)
    for part in ("users", "items", "thresholds"):
        assert (part in alone) == (part in together)
        if part in alone:
            distance = (alone[part] - together[part]).norm() / alone[part].norm()
            assert distance < 1e-5, part


@pytest.mark.parametrize(("name", "size"), cases(SETTINGS))
def test_validation_and_where_it_stops_are_those_of_one_process(
    outcomes: dict[int, Any], name: str, size: int
) -> None:
    alone = outcomes[1].facts(name)
    for rank in range(size):
        here = outcomes[size].facts(name, rank)
        assert here["position"]["best_metrics"] == pytest.approx(alone["position"]["best_metrics"], rel=1e-6)
        assert here["position"]["best_epoch"] == alone["position"]["best_epoch"]
        assert here["threshold_error"] == pytest.approx(alone["threshold_error"], abs=1e-5)


@pytest.mark.parametrize(("name", "size"), cases(ALL))
def test_every_rank_has_the_same_items_to_the_bit_and_its_own_users(
    outcomes: dict[int, Any], name: str, size: int
) -> None:
    parts = [outcomes[size].tensors(name, rank) for rank in range(size)]
    assert all(torch.equal(parts[0]["items"], part["own_items"]) for part in parts)
    assert torch.equal(torch.cat([part["own"] for part in parts]), parts[0]["users"])


@pytest.mark.parametrize(("name", "size"), cases(OWN_DRAWS))
def test_many_own_draws_nearly_agree(outcomes: dict[int, Any], name: str, size: int) -> None:
    alone, together = outcomes[1].tensors(name), outcomes[size].tensors(name)
    for part in ("users", "items"):
        distance = (alone[part] - together[part]).norm() / alone[part].norm()
        assert 0 < distance < 0.1, part


@pytest.mark.parametrize(("name", "size"), cases(AS_GOOD))
def test_other_numbers_are_as_good(outcomes: dict[int, Any], name: str, size: int) -> None:
    alone, together = (outcomes[n].facts(name)["position"]["best_metrics"] for n in (1, size))
    # other draws, and for XSimGCL a contrast within each rank's part: some noise is to be expected of so few users
    assert together["recall@5"] > 0.75 * alone["recall@5"]


def test_a_rank_has_rows_of_its_own_users_alone(outcomes: dict[int, Any]) -> None:
    for size in (1, 2, 4):
        for rank in range(size):
            users = 53 * (rank + 1) // size - 53 * rank // size
            assert outcomes[size].facts("talos", rank)["numbers"] == (users + 31) * 8
            assert outcomes[size].facts("lightgcn", rank)["numbers"] == (53 + 31) * 8
