"""`talos train` with the flags of the loggers; what each logs is tested in tests/training/test_loggers.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Talos = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--dim", 4, "--epochs", 2, "--k", 3, "--effort", "quick")


@pytest.mark.parametrize(
    ("name", "title"),
    [("mlflow", "MLflow"), ("wandb", "Weights & Biases"), ("tensorboard", "TensorBoard")],
)
def test_a_missing_package_is_named_and_nothing_is_left(
    talos: Talos, clicks: Path, monkeypatch: pytest.MonkeyPatch, name: str, title: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks a module that cannot be imported
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    done = talos("train", clicks, "-o", "run", f"--{name}", *QUICK)
    assert done.returncode == 2
    assert f"error: {title} needs an optional package: pip install 'talos-rec[{name}]'" in done.stderr
    assert not Path("run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_all_loggers_at_once_and_again_for_a_refit(
    talos: Talos, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "wandb", "tensorboard"):
        pytest.importorskip(name, reason=f"{name} is not installed (extra `{name}`)")
    import mlflow

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').absolute()}")
    done = talos("train", clicks, "-o", "run", "--mlflow", "--wandb", "--tensorboard", "--refit", *QUICK)
    assert done.returncode == 0, done.stderr
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("talos").experiment_id])
    ids = {Path("run", "mlflow", *refit, "run_id").read_text().strip() for refit in ((), ("refit",))}
    assert {run.info.run_id for run in runs} == ids
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(list(Path("run", "wandb").rglob("*.wandb"))) == 2
    assert len(list(Path("run", "tensorboard").rglob("events.*"))) == 2
    assert talos("recommend", "run", "-u", "user01").returncode == 0
