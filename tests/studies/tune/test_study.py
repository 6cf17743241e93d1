"""Whole studies on small data: they can be continued, prune, repeat lost trials, and count every trial once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import talos
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError
from talos.studies.tune import FitParts, Tuned, TuneSettings, run_study
from talos.studies.tune.settings import suggest
from talos.studies.tune.storage import TrialStore, count_trials, open_store, parse_storage
from talos.studies.tune.trial import fit
from talos.studies.tune.workers import Watcher, signature
from talos.training import InterruptedRunError


def values(tuned: Tuned) -> list[Any]:
    return [(row.parameters, row.value, row.epoch) for row in tuned.summary.rows]


def test_one_worker_gives_the_same_trials_whether_stopped_or_not(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings(
        {"loss": {"tau": {"low": 0.05, "high": 0.4}}, "optimizer": {"weight_decay": [0.0, 1e-6]}}
    )
    whole = run_study(search, parts, tmp_path / "whole", trials=13)
    for trials in (4, 11, 13):
        halting = run_study(search, parts, tmp_path / "halting", trials=trials)
        assert len(halting.summary.rows) == trials
    assert values(halting) == values(whole)
    assert whole.summary.rows[0].parameters == {
        "loss.tau": 0.1,
        "optimizer.weight_decay": 0.0,
    }  # the defaults
    assert whole.value >= whole.summary.rows[0].value
    assert 10 < whole.summary.peak_mb < 10_000
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
    for row in tuned.summary.rows:
        alone = fit(search.config.with_values(row.parameters), parts, lambda epoch, value: "go on")
        assert (alone.value, alone.epoch) == (row.value, row.epoch)
    kept[0].write_bytes(b"damaged")
    again = fit(search.config, parts, lambda epoch, value: "go on", shared=kept[0].parent)
    assert again.value == next(row.value for row in tuned.summary.rows if row.parameters["loss.tau"] == 0.1)


def test_a_grid_ends(settings, parts: FitParts, tmp_path: Path) -> None:
    search = settings({"loss": {"tau": [0.1, 0.2, 0.3]}})
    said: list[str] = []
    tuned = run_study(search, parts, tmp_path / "grid", trials=10, notify=said.append)
    assert sorted(row.parameters["loss.tau"] for row in tuned.summary.rows) == [0.1, 0.2, 0.3]
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
        counts = tuned.summary.counts
        assert counts["pruned"] >= 1
        assert counts["complete"] >= 1
        assert all(row.epochs < 9 for row in tuned.summary.rows if row.state == "pruned")
        assert tuned.summary.best.state == "complete"


def test_a_budget_ends_the_search(settings, parts: FitParts, tmp_path: Path) -> None:
    search = settings(**{"training.epochs": 100_000, "training.patience": 100_000})
    tuned = run_study(search, parts, tmp_path / "out", budget=1.0)
    assert tuned.summary.counts["complete"] == 1  # the only one, ended early with its best value so far
    assert tuned.study.trials[0].user_attrs["ended"] == "out of time"
    again = run_study(search, parts, tmp_path / "out", budget=1.0)
    assert again.summary.counts["complete"] == 2


def test_an_error_in_a_trial_is_written_down_and_not_repeated(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings({"optimizer": {"lr": [0.1, 3e38]}})
    tuned = run_study(search, parts, tmp_path / "out")
    assert tuned.summary.counts == {"complete": 1, "pruned": 0, "failed": 1}
    failed = next(row for row in tuned.summary.rows if row.state == "failed")
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
    with pytest.raises(ConfigError, match="did you mean 'median'"):
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


def take(store: TrialStore, number: int, signed: str | None) -> None:
    """What a worker does when it takes a trial, without the rest."""
    store.storage.set_trial_state_values(store.id_of(number), TrialState.RUNNING)
    if signed is not None:
        store.storage.set_trial_user_attr(store.id_of(number), "worker", signed)


def test_a_trial_of_a_dead_process_is_found_at_once_and_run_again(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    search = settings()
    place = parse_storage(None, tmp_path / "out")
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    machine = signature().partition(":")[0]
    store = open_store(place, search.study_name)
    store.study.enqueue_trial({})
    take(store, 0, f"{machine}:{gone.pid}:12345")
    (tmp_path / "out" / "study.journal").rename(tmp_path / "kept.journal")
    (tmp_path / "out" / "study.journal.lock").unlink(missing_ok=True)
    tuned = run_study(search, parts, tmp_path / "out", trials=2, storage=str(tmp_path / "kept.journal"))
    assert [(row.state, row.runs) for row in tuned.summary.rows] == [("complete", 1), ("complete", 2)]
    assert tuned.study.trials[0].state == TrialState.FAIL
    # with one worker, what was lost is proposed again from the same place: the defaults
    again = next(row for row in tuned.summary.rows if row.runs == 2)
    assert again.parameters == {"loss.tau": 0.1}


def test_a_trial_of_another_machine_is_given_time(settings, tmp_path: Path) -> None:
    store = open_store(parse_storage(None, tmp_path), settings().study_name)
    for _ in range(3):
        store.study.enqueue_trial({})
    take(store, 0, "elsewhere:1:1")
    take(store, 1, signature())
    take(store, 2, None)
    now = 0.0
    watcher = Watcher(grace=0.3, clock=lambda: now)

    def gone() -> list[bool]:
        running = count_trials(store.study.get_trials(deepcopy=False)).running
        return [watcher.is_gone(trial) for trial in running]

    assert gone() == [False, False, False]
    now = 0.2
    store.storage.set_trial_user_attr(store.id_of(0), "beat", 1)
    store.storage.set_trial_user_attr(store.id_of(1), "beat", 1)
    assert gone() == [False, False, False]
    now = 0.4
    assert gone() == [False, False, True]  # the unsigned one never had a heartbeat
    now = 0.6
    assert gone() == [True, True, True]


def test_a_late_result_of_a_trial_that_was_given_away_does_not_count(
    settings, parts: FitParts, tmp_path: Path
) -> None:
    """A worker that was silent too long finds that its trial was declared lost, and continues with another one."""
    from talos.studies.tune import workers as module

    search = settings()
    out = tmp_path / "out"
    original = module.fit
    stolen: list[int] = []

    def steal(config, data, report, **options):
        def judged(epoch: int, value: float | None):
            store = open_store(parse_storage(None, out), search.study_name)
            running = count_trials(store.study.get_trials(deepcopy=False)).running
            if not stolen:
                stolen.append(running[0].number)
                store.storage.set_trial_state_values(store.id_of(running[0].number), TrialState.FAIL)
            return report(epoch, value)

        return original(config, data, judged, **options)

    module.fit = steal
    try:
        tuned = run_study(search, parts, out, trials=3)
    finally:
        module.fit = original
    assert tuned.summary.counts["complete"] == 3
    assert sorted(row.runs for row in tuned.summary.rows) == [1, 1, 2]
    assert tuned.study.trials[stolen[0]].state == TrialState.FAIL


class Killer(threading.Thread):
    """Kills workers in the middle of trials, and remembers whom."""

    def __init__(self, search: TuneSettings, place: str | None, out: Path, kills: int) -> None:
        super().__init__(daemon=True)
        self.search, self.place, self.out, self.kills = search, place, out, kills
        self.killed: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        chance, store = random.Random(0), None
        machine = signature().partition(":")[0]
        while len(self.killed) < self.kills and not self.over.wait(0.05):
            if not (self.out / "data" / "valid.indices.npy").exists():
                continue
            store = store or open_store(parse_storage(self.place, self.out), self.search.study_name)
            running = [
                trial
                for trial in count_trials(store.study.get_trials(deepcopy=False)).running
                if str(trial.user_attrs.get("worker", "")).startswith(machine) and trial.intermediate_values
            ]
            if not running:
                continue
            victim = chance.choice(running)
            process = int(victim.user_attrs["worker"].split(":")[1])
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed.append(victim.number)
            while count_trials(store.study.get_trials(deepcopy=False)).running and not self.over.wait(0.05):
                now = store.storage.get_trial(store.id_of(victim.number))
                if now.state.is_finished():
                    break


def survive(search: TuneSettings, parts: FitParts, out: Path, storage: str | None, *, workers: int, trials: int,
            kills: int) -> Tuned:  # fmt: skip
    killer = Killer(search, storage, out, kills)
    killer.start()
    tuned = run_study(search, parts, out, trials=trials, workers=workers, storage=storage)
    killer.over.set()
    killer.join()
    assert len(killer.killed) == kills
    summary = tuned.summary
    assert len(summary.rows) == trials
    assert summary.open == 0
    assert summary.counts["complete"] == trials
    begun = tuned.study.get_trials(deepcopy=False)
    complete = [trial for trial in begun if trial.state == TrialState.COMPLETE]
    assert len(complete) == trials  # none lost, none twice
    lost = {trial.number for trial in begun if trial.state == TrialState.FAIL}
    assert lost <= set(killer.killed)  # nothing but what was killed was lost
    assert sum(row.runs - 1 for row in summary.rows) == len(lost) >= kills - 1  # one may have ended just then
    assert all(row.runs <= 4 for row in summary.rows)
    return tuned


LONG = {"training.epochs": 60, "training.patience": 1000}


def test_a_killed_worker_loses_nothing(settings, parts: FitParts, tmp_path: Path) -> None:
    survive(settings(**LONG), parts, tmp_path / "out", None, workers=2, trials=4, kills=1)


def test_stopped_between_two_values_a_trial_gets_the_same_ones(
    settings, parts: FitParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(folder: str) -> list[dict[str, Any]]:
        study = run_study(settings(), parts, tmp_path / folder, trials=3).study
        trials = study.get_trials(deepcopy=False)
        return [trial.params for trial in trials if trial.state == TrialState.COMPLETE]

    wanted, calls = values("whole"), []

    def stopped(trial: Any, space: Any) -> dict[str, Any]:
        calls.append(trial.number)
        if len(calls) == 3:
            first = dict(list(space.entries.items())[:1])
            suggest(trial, replace(space, entries=first))
            raise KeyboardInterrupt
        return suggest(trial, space)

    monkeypatch.setattr("talos.studies.tune.workers.suggest", stopped)
    with pytest.raises(InterruptedRunError):
        values("stopped")
    assert values("stopped") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_eight_workers_twenty_trials_five_kills(
    scheme: str, settings, parts: FitParts, tmp_path: Path
) -> None:
    storage = f"{scheme}{tmp_path}/study" if scheme else None
    survive(settings(**LONG), parts, tmp_path / "out", storage, workers=8, trials=20, kills=5)


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
    others.join()
    assert set(found) == {"a", "b"}
    assert [row.number for row in found["a"].summary.rows] == [row.number for row in found["b"].summary.rows]
    assert found["a"].summary.counts == {"complete": 8, "pruned": 0, "failed": 0}
    complete = [t for t in found["a"].study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    assert len(complete) == 8
    assert "secret" not in (tmp_path / "a" / "tune.json").read_text()


@pytest.mark.slow
def test_killed_workers_on_a_postgresql_server(
    postgres: str, settings, parts: FitParts, tmp_path: Path
) -> None:
    survive(settings(**LONG, seed=1), parts, tmp_path / "out", postgres, workers=4, trials=8, kills=2)
