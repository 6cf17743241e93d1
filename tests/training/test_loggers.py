"""Loggers, each with the package it logs to: a local MLflow store, Weights & Biases offline, TensorBoard files."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from talos.data.splits import Split
from talos.errors import MissingExtraError, TalosError
from talos.model.recommender import Recommender
from talos.training import LOGGERS, Callback, InterruptedRunError, MLflow, Records, TensorBoard, WandB

EXTRA = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
# Packages that we only call: what they warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


def need(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed (extra `{EXTRA[package]}`)")


def fit(split: Split, callbacks: Sequence[Callback], *, epochs: int = 4) -> list[dict[str, Any]]:
    """Trains a little; returns what the callbacks were told of the epochs."""
    records = Records()
    model = Recommender(k=5, dim=8, epochs=epochs, evaluate_every=2, effort="quick", init="random")
    model.fit(split.train, split.valid, callbacks=[records, *callbacks])
    return records.lines


class Breaks(Callback):
    """Stops training after its second epoch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_epoch(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise self.error


@pytest.mark.parametrize("name", list(LOGGERS))
def test_the_package_is_imported_late_and_named_if_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import sys, talos.training; assert {name!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks a module that cannot be imported
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'talos-rec\[{name}\]'"):
        LOGGERS[name](tmp_path)


def test_tensorboard(planted: Split, tmp_path: Path) -> None:
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = fit(planted, [TensorBoard(tmp_path)])
    found = EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in found.Scalars("loss")]
    assert losses == [(line["epoch"], pytest.approx(line["loss"], rel=1e-6)) for line in lines]
    assert [event.step for event in found.Scalars("recall_at_5")] == [2, 4]


# ------------------------------------------------------------------------------------------------- MLflow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an MLflow store in a file of its own."""
    mlflow = need("mlflow")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed (extra `mlflow`)")
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.set_tracking_uri(address)
    return mlflow.MlflowClient()


def only_run(store: Any, experiment: str = "talos") -> Any:
    (run,) = store.search_runs([store.get_experiment_by_name(experiment).experiment_id])
    return run


def test_mlflow_has_what_was_trained(store: Any, planted: Split, tmp_path: Path) -> None:
    """Settings, every epoch, how it ended; training that goes on later continues the same run."""
    lines = fit(planted, [MLflow(tmp_path / "kept", name="first")])
    run = only_run(store)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["k"] == "5"
    assert run.data.params["loss.name"] == "talos"
    assert "auto" not in (run.data.params["loss.tau"], run.data.params["optimizer.lr"])
    logged = store.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in logged] == [(line["epoch"], line["loss"]) for line in lines]
    recall = {one.step: one.value for one in store.get_metric_history(run.info.run_id, "recall_at_5")}
    assert recall == {line["epoch"]: line["metrics"]["recall@5"] for line in lines if line["metrics"]}

    fit(planted, [MLflow(tmp_path / "kept")], epochs=6)  # another setting, which MLflow does not let change
    again = only_run(store)
    assert again.info.run_id == run.info.run_id
    assert max(one.step for one in store.get_metric_history(run.info.run_id, "loss")) == 6


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("broken"), "FAILED"), (InterruptedRunError("stop"), "KILLED")]
)
def test_mlflow_says_how_training_ended(
    store: Any, planted: Split, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    with pytest.raises(type(error)):
        fit(planted, [MLflow(), Breaks(error)])
    assert only_run(store, "ours").info.status == status


def test_mlflow_logs_to_the_active_run_and_leaves_it_open(store: Any, planted: Split) -> None:
    mlflow = need("mlflow")
    with mlflow.start_run(run_name="of the caller") as active:
        fit(planted, [MLflow()])
        assert store.get_run(active.info.run_id).info.status == "RUNNING"
    assert "loss" in store.get_run(active.info.run_id).data.metrics


def test_the_example_of_the_page_is_true(store: Any, planted: Split) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ecosystem.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    small = code.replace("Recommender(k=20)", "Recommender(k=5, epochs=2, effort='quick')").replace(
        "k=20", "k=5"
    )
    exec(small, {"split": planted})
    (run,) = store.search_runs(["0"])  # MLflow's own default experiment, as `start_run` was not told another
    assert run.info.run_name == "first try"
    assert {"loss", "recall_at_5", "precision_at_5"} <= set(run.data.metrics)


def test_a_store_that_fails_stops_nothing_but_itself(store: Any, planted: Split) -> None:
    class Unplug(Callback):
        def on_epoch(self, record: dict[str, Any]) -> None:
            if record["epoch"] == 2:
                store.delete_run(logger.run_id)  # what is deleted takes no metrics

    logger = MLflow()
    with pytest.warns(RuntimeWarning, match="MLflow failed, training goes on without it"):
        assert len(fit(planted, [Unplug(), logger])) == 4
    # none that can be begun is an error, before anything is trained
    mlflow = need("mlflow")
    mlflow.set_tracking_uri("nowhere://at/all")
    records = Records()
    with pytest.raises(TalosError, match="MLflow cannot begin a run"):
        fit(planted, [records, MLflow()])
    assert records.lines == []


# --------------------------------------------------------------------------------------- Weights & Biases


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Weights & Biases without network: it writes the files that `wandb sync` would send."""
    wandb = need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "of wandb"))
    (tmp_path / "of wandb").mkdir()
    yield wandb
    wandb.teardown()


def offline_records(folder: Path) -> list[Any]:
    """What the files under a folder hold: protocol buffers in pieces, as LevelDB writes a log."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(folder.rglob("*.wandb")):
        content, place, whole = file.read_bytes(), 7, b""
        assert content.startswith(b":W&B")
        while place + 7 <= len(content):
            if 2**15 - place % 2**15 < 7:  # the rest of a block is too short for a piece
                place += 2**15 - place % 2**15
            length, kind = struct.unpack_from("<HB", content, place + 4)
            whole += content[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # the only piece of a record, or its last
                found.append(wandb_internal_pb2.Record.FromString(whole))
                whole = b""
    return found


def test_wandb_offline_has_what_was_trained(offline: Any, planted: Split, tmp_path: Path) -> None:
    lines = fit(planted, [WandB(tmp_path / "kept", name="first")])
    records = offline_records(tmp_path / "kept")
    begun = [one.run for one in records if one.WhichOneof("record_type") == "run"]
    assert {(one.project, one.display_name) for one in begun} == {("talos", "first")}
    assert {one.run_id for one in begun} == {(tmp_path / "kept" / "run_id").read_text().strip()}
    settings: dict[str, Any] = {}
    for one in records:
        changes = one.run.config if one.WhichOneof("record_type") == "run" else one.config
        settings |= {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in changes.update
        }
    assert settings["k"] == 5
    assert settings["loss"]["name"] == "talos"
    history = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in one.history.item}
        for one in records
        if one.WhichOneof("record_type") == "history"
    ]
    assert [(row["epoch"], row["loss"]) for row in history] == [
        (line["epoch"], line["loss"]) for line in lines
    ]
    assert [row["recall_at_5"] for row in history if "recall_at_5" in row] == [
        line["metrics"]["recall@5"] for line in lines if line["metrics"]
    ]
    (ended,) = [one.exit for one in records if one.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 0

    fit(planted, [WandB(tmp_path / "kept")])  # training that goes on later continues the same run
    ids = {
        one.run.run_id for one in offline_records(tmp_path / "kept") if one.WhichOneof("record_type") == "run"
    }
    assert len(ids) == 1


def test_wandb_logs_to_the_active_run_and_leaves_it_open(
    offline: Any, planted: Split, tmp_path: Path
) -> None:
    with offline.init(project="ours", dir=str(tmp_path)) as active:
        fit(planted, [WandB()])
        assert offline.run is active
        assert active.summary["epoch"] == 4
