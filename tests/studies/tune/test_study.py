"""Whole studies on small data: they can be continued, prune, repeat lost trials, and count every trial once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import talos
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError
from talos.studies.tune import FitParts, Tuned, open_study, run_study
from talos.studies.tune.study import open_storage, parse_storage, retry
from talos.studies.tune.trial import fit
from talos.training import InterruptedRunError


def values(tuned: Tuned) -> list[Any]:
    return [(row.parameters, row.value, row.epoch) for row in tuned.rows]


def test_one_worker_gives_the_same_trials_whether_stopped_or_not(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings(
        {"loss": {"tau": {"low": 0.05, "high": 0.4}}, "optimizer": {"weight_decay": [0.0, 1e-6]}}
    )
    whole = run_study(search, parts, tmp_path / "whole", trials=13)
    for trials in (4, 11, 13):
        halting = run_study(search, parts, tmp_path / "halting", trials=trials)
        assert len(halting.rows) == trials
    assert values(halting) == values(whole)
    assert whole.rows[0].parameters == {
        "loss.tau": 0.1,
        "optimizer.weight_decay": 0.0,
    }  # the defaults
    assert whole.value >= whole.rows[0].value
    assert 10 < whole.peak_mb < 10_000
    table = (tmp_path / "whole" / "trials.csv").read_text().splitlines()
    assert len(table) == 14
    best = talos.Recommender(config=whole.config).fit(*parts)
    assert best.model is not None
    assert best.model.metadata["valid"]["precision@5"] == pytest.approx(whole.value)
    assert f"tau = {whole.config.loss.options['tau']}" in (tmp_path / "whole" / "run.toml").read_text()


def test_trials_share_their_start_and_end_with_the_same_bytes(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings({"loss": {"tau": [0.1, 0.2, 0.3]}}, **{"training.init": "als"})
    tuned = run_study(search, parts, tmp_path / "out")
    kept = list((tmp_path / "out" / "data").glob("start-*.safetensors"))
    assert len(kept) == 1  # one start for all temperatures
    for row in tuned.rows:
        alone = fit(search.config.with_values(row.parameters), parts, lambda epoch, value: "go on")
        assert (alone["value"], alone["epoch"]) == (row.value, row.epoch)
    kept[0].write_bytes(b"damaged")
    again = fit(search.config, parts, lambda epoch, value: "go on", shared=kept[0].parent)
    assert again["value"] == next(row.value for row in tuned.rows if row.parameters["loss.tau"] == 0.1)


def test_a_grid_ends(settings, parts: FitParts, tmp_path: Path) -> None:
    search = settings({"loss": {"tau": [0.1, 0.2, 0.3]}})
    said: list[str] = []
    tuned = run_study(search, parts, tmp_path / "grid", trials=10, notify=said.append)
    assert sorted(row.parameters["loss.tau"] for row in tuned.rows) == [0.1, 0.2, 0.3]
    assert "the grid has 3 points" in said[0]


def test_trials_that_lag_behind_are_pruned(settings, parts: FitParts, tmp_path: Path) -> None:
    for pruner in ("median", "asha"):
        search = settings(
            {"optimizer": {"lr": {"low": 1e-6, "high": 0.3, "log": True}}},
            pruner=pruner,
            sampler="random",
            # averaged weights would hide for some epochs who learns nothing
            **{
                "training.epochs": 9,
                "training.patience": 99,
                "training.init": "random",
                "training.averaging": 1.0,
            },
        )
        tuned = run_study(search, parts, tmp_path / pruner, trials=14)
        counts = tuned.counts
        assert counts["pruned"] >= 1
        assert counts["complete"] >= 1
        assert all(row.epochs < 9 for row in tuned.rows if row.state == "pruned")
        assert tuned.best.state == "complete"


def test_a_budget_ends_the_search(settings, parts: FitParts, tmp_path: Path) -> None:
    search = settings(**{"training.epochs": 100_000, "training.patience": 100_000})
    tuned = run_study(search, parts, tmp_path / "out", budget=1.0)
    assert tuned.counts["complete"] == 1  # the only one, ended early with its best value so far
    assert tuned.study.trials[0].user_attrs["outcome"]["ended"] == "out of time"
    again = run_study(search, parts, tmp_path / "out", budget=1.0)
    assert again.counts["complete"] == 2


def test_an_error_in_a_trial_is_written_down_and_not_repeated(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings({"optimizer": {"lr": [0.1, 3e38]}})
    tuned = run_study(search, parts, tmp_path / "out")
    assert tuned.counts == {"complete": 1, "pruned": 0, "failed": 1}
    failed = next(row for row in tuned.rows if row.state == "failed")
    assert failed.runs == 1
    assert "learning rate" in failed.error
    assert tuned.config.optimizer.lr == 0.1
    only_bad = settings({"optimizer": {"lr": [3e38]}})
    with pytest.raises(DataError, match=r"no trial has a value yet.*learning rate"):
        run_study(only_bad, parts, tmp_path / "bad")


def test_a_folder_of_other_settings_is_refused(settings, parts: FitParts, tmp_path: Path) -> None:
    run_study(settings(), parts, tmp_path / "out", trials=1)
    with pytest.raises(ConfigError, match=r"loss\.tau\.high: 0\.4 there, 0\.5 now"):
        run_study(settings({"loss": {"tau": {"low": 0.05, "high": 0.5}}}), parts, tmp_path / "out", trials=1)
    with pytest.raises(ConfigError, match="pruner: none there, median now"):
        run_study(settings(pruner="median"), parts, tmp_path / "out", trials=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not empty"):
        run_study(settings(), parts, tmp_path / "full", trials=1)
    for wrong in ({"trials": 0}, {"budget": -1.0}, {"workers": 0}):
        with pytest.raises(ArgumentError):
            run_study(settings(), parts, tmp_path / "new", **wrong)
    with pytest.raises(ArgumentError, match="did you mean 'median'"):
        settings(pruner="medium")
    with pytest.raises(ConfigError, match=r"loss\.tau: is a range"):
        settings(sampler="grid")
    manifest = tmp_path / "out" / "tune.json"
    manifest.write_text(manifest.read_text().replace('"none"', '"asha"'))
    with pytest.raises(DataError, match=r"tune\.json: is damaged"):
        run_study(settings(), parts, tmp_path / "out", trials=1)


def test_the_prepared_data_know_nothing_of_test(split: Split, parts: FitParts) -> None:
    alone = split.test.where(~((split.train.item_degrees + split.valid.item_degrees) > 0)[split.test.indices])
    seen = set(parts[0].item_ids.ids)
    assert not seen & set(alone.item_ids.decode(alone.indices))
    assert seen == set(split.train.union(split.valid).compact().item_ids.ids)


def test_python_gives_study_and_recommender(split: Split) -> None:
    study, model = talos.tune(
        split,
        {"loss": {"tau": [0.1, 0.2]}},
        k=5,
        loss="sl",
        dim=4,
        epochs=3,
        evaluate_every=1,
        metric="recall",
    )
    assert isinstance(study, optuna.Study)
    assert study.best_value == pytest.approx(model.model.metadata["valid"]["recall@5"])
    assert model.config.loss.name == "sl"
    assert len(model.recommend(k=3)) > 0
    with pytest.raises(ArgumentError, match="data"):
        talos.tune("clicks.csv")
    with pytest.raises(DataError, match="no validation part"):
        talos.tune((split.train, None))


# --------------------------------------------------------------------- workers that die

LONG = {"training.epochs": 30, "training.patience": 1000}


class Running:
    """A study that another thread runs, and its worker processes."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def workers(self) -> list[int]:
        children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        found = [int(one) for place in children for one in place.read_text().split()]
        return [one for one in found if b"talos.studies.tune" in Path(f"/proc/{one}/cmdline").read_bytes()]

    def wait_for_epochs(self, count: int, limit: float = 120.0) -> None:
        """Wait until the trials have reported so many epochs."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            with (
                contextlib.suppress(sqlite3.OperationalError),
                contextlib.closing(
                    sqlite3.connect(f"file:{self.out}/study.db?mode=ro", uri=True)
                ) as database,
            ):
                found = database.execute("SELECT count(*) FROM trial_intermediate_values").fetchone()[0]
                if found >= count:
                    return
            time.sleep(0.02)
        raise AssertionError("no trial was begun in time")


def test_the_trial_of_a_killed_worker_is_run_again(settings, parts: FitParts, tmp_path: Path) -> None:
    running, killed = Running(tmp_path), list[int]()

    def kill() -> None:
        for count in (5, 70):
            running.wait_for_epochs(count)
            for one in running.workers()[:1]:
                os.kill(one, signal.SIGKILL)
                killed.append(one)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    tuned = run_study(settings(**LONG), parts, tmp_path, trials=6, workers=2)
    killer.join(timeout=150)
    assert len(killed) == 2
    assert tuned.counts == {"complete": 6, "pruned": 0, "failed": 0}
    assert tuned.open == 0
    begun = tuned.study.get_trials(deepcopy=False)
    lost = [trial for trial in begun if trial.state == TrialState.FAIL]
    assert 1 <= len(lost) <= 2  # a kill may hit a worker between two trials
    assert sum(row.runs - 1 for row in tuned.rows) == len(lost)
    again = [row.parameters for row in tuned.rows if row.runs > 1]
    assert all(trial.params in again for trial in lost)


def test_a_trial_that_its_worker_never_survives_is_given_up(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    """As one that needs more memory than there is: it is run four times, and the search goes on."""
    running = Running(tmp_path)
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            for one in running.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        with pytest.raises(DataError, match="its worker died too often"):
            run_study(settings({"loss": {"tau": [0.1, 0.2]}}, **LONG), parts, tmp_path, workers=2)
    finally:
        over.set()
        killer.join(timeout=30)


def test_what_a_killed_process_was_running_is_run_again_at_once(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings()
    whole = run_study(search, parts, tmp_path / "whole", trials=3)
    run_study(search, parts, tmp_path / "out", trials=1)
    _, study = open_storage(parse_storage(None, tmp_path / "out"), search.study_name)
    with pytest.warns(UserWarning, match="Heartbeat"):
        study.ask()  # by a process that then dies
    tuned = run_study(search, parts, tmp_path / "out", trials=3)
    assert values(tuned) == values(whole)
    assert [row.runs for row in tuned.rows] == [1, 2, 1]


def test_a_trial_of_a_silent_machine_is_run_again_by_another(
    settings, parts: FitParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders, as on two machines, that share a storage; one of them sends no heartbeats any more."""
    search, storage = settings(), tmp_path / "shared.db"
    monkeypatch.setattr("talos.studies.tune.study._GRACE", 3)
    database, study = open_storage(parse_storage(str(storage), tmp_path), search.study_name)
    with pytest.warns(UserWarning, match="Heartbeat"):
        trial = study.ask()
    database.record_heartbeat(trial._trial_id)
    began = time.monotonic()
    tuned = run_study(search, parts, tmp_path / "b", trials=2, storage=str(storage))
    assert time.monotonic() - began > 2
    assert tuned.counts["complete"] == 2
    assert sorted(row.runs for row in tuned.rows) == [1, 2]
    with pytest.raises(ConfigError, match="which a study does not open by itself"):
        open_study(tmp_path / "b")


def test_a_result_that_comes_too_late_does_not_count(settings, parts: FitParts, tmp_path: Path) -> None:
    """A machine that was silent too long finds that its trial was given to another, and goes on with the next."""
    search, stolen = settings(**LONG), list[int]()
    _, other = open_storage(parse_storage(str(tmp_path / "shared.db"), tmp_path), search.study_name)

    def steal(line: str) -> None:
        """After the first trial, take the second one away as soon as it has begun."""
        if not stolen:
            stolen.append(1)
            threading.Thread(target=take, daemon=True).start()

    def take() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for trial in other.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                with contextlib.suppress(ValueError, RuntimeError):
                    if not trial.intermediate_values:
                        continue
                    retry(other, other.tell(trial.number, state=TrialState.FAIL))
                    return
            time.sleep(0.001)

    tuned = run_study(
        search, parts, tmp_path / "out", trials=4, storage=str(tmp_path / "shared.db"), notify=steal
    )
    assert tuned.counts["complete"] == 4
    assert sorted(row.runs for row in tuned.rows) == [1, 1, 1, 2]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stopped_in_a_trial_the_search_goes_on_with_it(
    settings, parts: FitParts, tmp_path: Path, workers: int
) -> None:
    search = settings(**LONG)
    running = Running(tmp_path / "out")

    def stop() -> None:
        running.wait_for_epochs(5)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    with pytest.raises(InterruptedRunError, match=r"stopped after \d of 3 trials; run it again to continue"):
        run_study(search, parts, tmp_path / "out", trials=3, workers=workers)
    stopper.join(timeout=30)
    assert not running.workers()
    tuned = run_study(search, parts, tmp_path / "out", trials=3)
    assert tuned.counts["complete"] == 3
    if workers == 1:
        whole = run_study(search, parts, tmp_path / "whole", trials=3)
        assert values(tuned) == values(whole)


def test_a_postgresql_server_serves_two_machines(
    postgres: str, settings, parts: FitParts, tmp_path: Path
) -> None:
    """Two folders, as on two machines, that know nothing of each other but the server."""
    search = settings(**{"training.epochs": 30, "training.patience": 1000})
    found: dict[str, Tuned] = {}

    def machine(name: str) -> None:
        found[name] = run_study(search, parts, tmp_path / name, trials=8, storage=postgres)

    others = threading.Thread(target=machine, args=("b",))
    others.start()
    machine("a")
    others.join(timeout=300)
    assert set(found) == {"a", "b"}
    assert values(found["a"]) == values(found["b"])
    # each may begin the last trial before it sees that the other one has
    assert 8 <= found["a"].counts["complete"] <= 9
    assert "secret" not in (tmp_path / "a" / "tune.json").read_text()
