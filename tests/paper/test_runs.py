"""Runs: kept once, never repeated, going on in the middle; a search never looks at the test part."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from talos.errors import DataError
from talos.files import digest_of, sealed_text
from talos.training import Trainer
from talos_paper import datasets
from talos_paper.measurements import new_tests
from talos_paper.recipes import EXPERIMENTS, OptionSearch, Recipe, recipe
from talos_paper.reproduce import Selection, reproduce, status
from talos_paper.results import ResultStore, run_name
from talos_paper.runs import OutOfTimeError, Runner, fresh_threshold_error


def test_a_run_is_kept_and_not_made_again(runner: Runner, store: ResultStore, short: Recipe) -> None:
    first = runner.run(short, 0)
    path = store.path("runs")
    written = path.stat().st_mtime_ns
    assert runner.run(short, 0) == first == store.run(short, 0)
    assert path.stat().st_mtime_ns == written
    assert first.epochs == 6
    assert first.metrics["recall@20"] > 0
    assert first.stderr["recall@20"] > 0
    assert [epoch for epoch, _, _ in first.curve] == [2, 4, 6]
    assert "error" in first.metrics
    assert not list((runner.work / "runs" / "beauty").iterdir()), "checkpoints go when the result is kept"


def test_a_run_that_was_stopped_goes_on_to_the_same_result(
    runner: Runner, short: Recipe, store: ResultStore, tmp_path: Path
) -> None:
    whole = runner.run(short, 0)
    other = Runner(ResultStore(tmp_path / "other"), tmp_path / "other-work", runner.data)
    stops = 0
    while other.store.run(short, 0) is None:
        other.deadline = time.monotonic()  # over at the first step
        try:
            other.run(short, 0)
        except OutOfTimeError:
            stops += 1
    assert stops > 5
    again = other.store.run(short, 0)
    assert again is not None
    known = {"cpu_seconds": 0.0}
    assert replace(again, **known) == replace(whole, **known)


def test_a_search_is_decided_by_validation_and_kept(
    runner: Runner, store: ResultStore, short: Recipe
) -> None:
    searched = replace(short, search=({"loss.tau": 0.5}, {"loss.tau": 0.05}, {"loss.tau": 0.1}))
    assert store.resolved(searched) is None
    chosen = runner.resolve(searched)
    kept = store.search(searched)
    assert kept is not None
    values = [trial["precision@20"] for trial in kept["trials"]]
    assert values[kept["best"]] == max(values)
    assert chosen.settings["loss.tau"] == (0.5, 0.05, 0.1)[kept["best"]]
    assert store.resolved(searched) == chosen
    run = runner.run(searched, 0)
    assert run.valid["precision@20"] == pytest.approx(max(values), abs=1e-6)
    assert not any("recall@50" in trial for trial in kept["trials"]), "nothing of the test part"


def resolve_with_stops(runner: Runner, searched: Recipe) -> int:
    """Make a search whose time is always over at the first step; returns how often it was stopped."""
    stops = 0
    while runner.store.search(searched) is None:
        runner.deadline = time.monotonic()
        try:
            runner.resolve(searched)
        except OutOfTimeError:
            stops += 1
    return stops


def test_a_search_that_runs_out_of_time_has_no_losers(
    runner: Runner, store: ResultStore, short: Recipe, tmp_path: Path
) -> None:
    searched = replace(short, search=({"loss.tau": 0.5}, {"loss.tau": 0.1}))
    whole = runner.resolve(searched)
    other = Runner(ResultStore(tmp_path / "other"), tmp_path / "other-work", runner.data)
    stops = resolve_with_stops(other, searched)
    assert stops > 5
    assert other.store.resolved(searched) == whole
    kept = other.store.search(searched)
    assert kept is not None
    assert not any("failed" in trial for trial in kept["trials"])


def test_a_search_by_options_is_continued_by_the_run(
    runner: Runner, store: ResultStore, short: Recipe, tmp_path: Path
) -> None:
    grid = {"optimizer.lr": (0.1, 0.001), "loss.tau": (0.5, 0.05, 0.1)}
    searched = replace(short, options=OptionSearch(grid=grid, settings=4, epochs=(2, 4, 6)))
    assert store.resolved(searched) is None
    chosen = runner.resolve(searched)
    kept = store.search(searched)
    assert kept is not None
    tried, trials = kept["candidates"], kept["trials"]
    assert len(tried) == 4
    assert all(trial["epochs"] == (2, 4, 6)[trial["leg"]] for trial in trials)
    assert {name: chosen.settings[name] for name in grid} == tried[kept["best"]]
    assert trials[kept["best"]]["precision@20"] == max(
        trial["precision@20"] for trial in trials if trial["leg"] == 2
    )
    assert store.resolved(searched) == chosen
    # what the search began is finished, to the result of a run that was made in one piece
    alone = Runner(ResultStore(tmp_path / "other"), tmp_path / "other-work", runner.data).run(chosen, 0)
    known = {"cpu_seconds": 0.0}
    assert replace(runner.run(searched, 0), **known) == replace(alone, **known)


def test_a_search_by_options_goes_on_after_a_stop(
    runner: Runner, store: ResultStore, short: Recipe, tmp_path: Path
) -> None:
    searched = replace(short, options=OptionSearch(grid={"loss.tau": (0.5, 0.1)}, epochs=(1, 2, 3)))
    runner.resolve(searched)
    other = Runner(ResultStore(tmp_path / "other"), tmp_path / "other-work", runner.data)
    stops = resolve_with_stops(other, searched)
    assert stops > 2
    first, again = store.search(searched), other.store.search(searched)
    assert first is not None
    assert again is not None
    for one in (*first["trials"], *again["trials"]):
        del one["cpu_seconds"]
    assert first == again


def test_a_candidate_that_diverges_has_lost(runner: Runner, store: ResultStore, short: Recipe) -> None:
    searched = replace(short, search=({"optimizer.lr": 1e38}, {"loss.tau": 0.1}))
    assert runner.resolve(searched).settings["optimizer.lr"] == short.settings["optimizer.lr"]
    kept = store.search(searched)
    assert kept is not None
    assert "finite" in kept["trials"][0]["failed"]


def test_mean_scores_are_recorded_where_asked_for(runner: Runner, short: Recipe) -> None:
    run = runner.run(replace(short, probe=True), 0)
    assert len(run.scores) == 6
    positive, everything, threshold = run.scores[-1]
    assert positive > everything
    assert threshold > everything


def test_fresh_thresholds_are_measured_on_vectors_that_stay(runner: Runner, short: Recipe) -> None:
    split = runner.data("beauty", "iid")
    trainer = Trainer(short.config(0), split.train, split.valid)
    trainer.fit()
    before, old = trainer.vectors(), trainer.threshold_error()
    fresh = fresh_threshold_error(trainer)
    assert old is not None
    assert fresh is not None
    assert fresh < 1e-6
    assert old < 1e-6  # exact thresholds are those of the final vectors
    for left, right in zip(before, trainer.vectors(), strict=True):
        assert torch.equal(left, right)
    run = runner.run(short, 0)
    assert (run.metrics["error"], run.metrics["fresh error"]) == (round(old, 6), round(fresh, 6))


def test_a_loss_without_thresholds_has_no_fresh_error(runner: Runner, short: Recipe) -> None:
    run = runner.run(recipe("beauty", "mf", "bpr", changes={"training.epochs": 1}), 0)
    assert not {"error", "fresh error"} & set(run.metrics)


@pytest.mark.parametrize("damage", ["metric", "seed", "name", "hash", "cut", "not-json"])
def test_a_line_that_was_changed_is_refused(
    runner: Runner, store: ResultStore, short: Recipe, damage: str
) -> None:
    runner.run(short, 0)
    runner.run(short, 1)
    path = store.path("runs")
    first, second = path.read_text().splitlines()
    values = json.loads(second)
    if damage == "metric":
        values["metrics"]["recall@20"] = 0.9
    elif damage == "seed":
        values["seed"] = 7
    elif damage == "name":
        values["name"] = "beauty/another"
    elif damage == "hash":
        del values["sha256"]
    text = json.dumps(values)
    path.write_text(f"{first}\n" + {"cut": text[: len(text) // 2], "not-json": "hello"}.get(damage, text))
    for read in (lambda: store.run(short, 0), lambda: store.names("runs")):
        with pytest.raises(DataError, match=r"runs.jsonl:2: .*\(delete the line"):
            read()


def test_a_line_that_was_only_laid_out_anew_is_accepted(
    runner: Runner, store: ResultStore, short: Recipe
) -> None:
    kept = runner.run(short, 0)
    path = store.path("runs")
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert store.run(short, 0) == kept
    assert store.names("runs") == [run_name(short, 0)]


def test_stores_of_one_folder_see_what_the_other_saved(tmp_path: Path) -> None:
    one, other = ResultStore(tmp_path), ResultStore(tmp_path)
    for place in range(5):
        (one, other)[place % 2].save_measurement(f"number-{place}", {"value": place, "word": "τ\u2028"})
    assert one.names("measurements") == other.names("measurements") == [f"number-{n}" for n in range(5)]
    lines = [json.loads(line) for line in (tmp_path / "measurements.jsonl").read_text().split("\n")[:-1]]
    for line in lines:
        assert line.pop("sha256") == digest_of(line)


def test_results_hold_no_paths(runner: Runner, store: ResultStore, short: Recipe, small_data: Path) -> None:
    text = json.dumps(asdict(runner.run(short, 0)))
    assert str(small_data) not in text
    assert str(runner.work) not in text


def test_the_budget_ends_a_call_and_the_next_goes_on(
    store: ResultStore, tmp_path: Path, small_data: Path
) -> None:
    asked = Selection(tables=["inflation"], dataset="beauty")
    options = {"work": tmp_path / "work", "folder": small_data}
    stopped = reproduce(asked, store, budget=0.05, **options)  # type: ignore[arg-type]
    assert (stopped["made"], stopped["left"]) == (0, 2)
    done = reproduce(asked, store, **options)  # type: ignore[arg-type]
    assert (done["made"], done["found"], done["left"]) == (2, 0, 0)
    again = reproduce(asked, store, **options)  # type: ignore[arg-type]
    assert (again["made"], again["found"], again["left"]) == (0, 2, 0)
    (line,) = status(asked, store)
    assert (line["done"], line["missing"]) == (2, [])


def test_data_that_are_not_there_are_skipped_with_the_reason(
    store: ResultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALOS_DATA", raising=False)
    done = reproduce(Selection(tables=["inflation"]), store, work=tmp_path / "work", folder=tmp_path)
    assert done["made"] == 0
    assert "no folder beauty/" in done["skipped"]["beauty (iid)"]


def test_a_temporal_split_is_by_time_and_warm(small_data: Path) -> None:
    found = datasets.load("beauty", "temporal", folder=small_data)
    train, test = found.train, found.test
    assert train.timestamps is not None
    assert test.timestamps is not None
    assert train.timestamps.max() < test.timestamps.min()
    assert (train.item_degrees[test.indices] > 0).all()


def test_a_checkpoint_of_other_settings_is_left_and_the_run_begins_anew(
    runner: Runner, short: Recipe, tmp_path: Path
) -> None:
    whole = runner.run(short, 0)
    said: list[str] = []
    other = Runner(
        ResultStore(tmp_path / "other"), tmp_path / "other-work", runner.data, time.monotonic(), said.append
    )
    with pytest.raises(OutOfTimeError):
        other.run(short, 0)
    (state,) = other.work.rglob("state.json")
    facts = json.loads(state.read_text())
    facts["config"]["training"]["patience"] = 3
    state.write_text(sealed_text(facts))
    other.deadline = math.inf
    assert other.run(short, 0).metrics == whole.metrics
    assert "starts from the beginning" in said[0]


def test_tests_against_rivals_are_made_once_and_found_by_their_recipes(
    runner: Runner, store: ResultStore, tmp_path: Path
) -> None:
    changes = {"training.epochs": 2, "backbone.dim": 8, "negatives": "8"}
    talos, sl, psl = (
        replace(
            EXPERIMENTS["ablation"].rows("beauty")[0],
            method=loss,
            recipe=recipe("beauty", "mf", loss, fidelity="paper", changes=changes),
        )
        for loss in ("talos", "sl", "psl")
    )
    for row in (talos, sl, psl):
        runner.run(row.recipe, 0)
    found = new_tests([talos, sl, psl], store, runner, {})
    assert set(found) == {f"{talos.recipe.key} {row.recipe.key}" for row in (sl, psl)}
    one = found[f"{talos.recipe.key} {sl.recipe.key}"]
    runs = [store.run(row.recipe, 0) for row in (talos, sl)]
    means = [run.metrics["recall@20"] for run in runs if run is not None]
    assert one["recall@20"]["difference"] == pytest.approx(means[0] - means[1], abs=2e-6)
    assert one["runs"] == [[run_name(row.recipe, 0)] for row in (talos, sl)]

    assert new_tests([talos, sl, psl], store, runner, found) == {}, "nothing is new"
    empty = replace(runner, work=tmp_path / "empty")
    assert new_tests([talos, sl, psl], store, empty, {}) == {}, "there are no metrics of users"
    runner.run(sl.recipe, 1)
    again = new_tests([talos, sl, psl], store, runner, found)
    assert {key: len(test["runs"][1]) for key, test in again.items()} == {
        f"{talos.recipe.key} {sl.recipe.key}": 2
    }, "one more run"
    other = replace(psl, recipe=psl.recipe.with_settings({"loss.tau": 0.3}))
    runner.run(other.recipe, 0)
    assert set(new_tests([talos, other], store, runner, found)) == {f"{talos.recipe.key} {other.recipe.key}"}
