"""The compiled core in training: the same runs as in torch, thresholds without a pass of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from talos import kernels
from talos.config import RunConfig
from talos.data.splits import Split
from talos.kernels import core
from talos.training import Callback, InterruptedRunError, Trainer

needs_core = pytest.mark.skipif(not core.levels(), reason="the compiled core was not built")


def config(**values: object) -> RunConfig:
    chosen = {
        "k": 5,
        "backbone.dim": 16,
        "negatives": "all",
        "threshold.name": "exact",
        "training.epochs": 6,
        "training.batch_size": 16,
        "training.arithmetic": "float32",
        "optimizer.lr": 0.05,
    }
    return RunConfig().with_values(chosen | values)


def trained(split: Split, **values: object) -> Trainer:
    trainer = Trainer(config(**values), split.train)
    trainer.fit()
    return trainer


@needs_core
@pytest.mark.parametrize("loss", ["talos", "sl", "bsl", "sl@k", "aatp", "llpauc"])
@pytest.mark.parametrize("negatives", ["all", "shared:24"])
def test_trains_to_the_same_vectors_as_torch(planted, loss, negatives, monkeypatch):
    threshold = "exact" if loss in ("talos", "sl@k", "aatp") else "none"
    values = {"loss.name": loss, "negatives": negatives, "threshold.name": threshold, "training.epochs": 2}
    monkeypatch.setenv("TALOS_KERNEL", "compiled")
    compiled = trained(planted, **values).vectors()
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    plain = trained(planted, **values).vectors()
    for one, other in zip(compiled, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
@pytest.mark.parametrize("averaging", [0.2, 1.0])
def test_thresholds_are_those_of_the_vectors_at_the_end(planted, backbone, averaging):
    """Also of averaged vectors, which no step has seen."""
    trainer = trained(planted, **{"backbone.name": backbone, "training.averaging": averaging})
    users, items = trainer.vectors()
    stored = trainer.objective.threshold.value(torch.arange(len(users)))
    torch.testing.assert_close(stored, (users @ items.T).topk(5).values.amin(1), rtol=1e-4, atol=1e-5)


@needs_core
def test_exact_thresholds_cost_one_pass(planted, monkeypatch):
    calls = []
    found = core.sweep
    monkeypatch.setenv("TALOS_KERNEL", "compiled")
    monkeypatch.setattr(core, "sweep", lambda **kw: calls.append(kw) or found(**kw))
    trainer = trained(planted, **{"training.epochs": 1})
    steps = [call for call in calls if call["kind"]]  # the others are thresholds of the averaged vectors
    assert len(steps) == len(trainer.batches)
    assert len(calls) <= len(steps) + 1
    assert all(call["kth_is_threshold"] for call in steps)


@pytest.mark.parametrize("threshold", ["regression", "monte-carlo", "fixed"])
def test_other_estimators_still_follow(planted, threshold):
    """Regression and Monte Carlo come nearer to the exact thresholds than 0, where they start; a fixed one stays."""
    values = {"threshold.name": threshold, "training.epochs": 5, "optimizer.lr": 1e-30}
    if threshold == "regression":
        values["threshold.lr"] = 0.2
    trainer = trained(planted, **values)
    users, items = trainer.vectors()
    exact = (users @ items.T).topk(5).values.amin(1)
    found = trainer.objective.threshold.value(torch.arange(len(users)))
    if threshold == "fixed":
        assert not found.any()
    else:
        assert (found - exact).abs().mean() < 0.5 * exact.abs().mean()


@pytest.mark.parametrize("choice", ["auto", "torch"])
def test_a_resumed_run_equals_one_without_a_stop(planted, tmp_path: Path, choice, monkeypatch):
    monkeypatch.setenv("TALOS_KERNEL", choice)
    whole = trained(planted).vectors()

    class Stop(Callback):
        def on_step(self, epoch: int, step: int, loss: float) -> None:
            if epoch == 2 and step == 2:
                trainer.stop_requested = True

    trainer = Trainer(config(), planted.train, folder=tmp_path, callbacks=[Stop()])
    with pytest.raises(InterruptedRunError):
        trainer.fit()
    resumed = Trainer(config(), planted.train, folder=tmp_path)
    resumed.resume()
    resumed.fit()
    for one, other in zip(whole, resumed.vectors(), strict=True):
        assert torch.equal(one, other)


def test_status_is_one_line():
    assert "\n" not in kernels.status()
