"""The leaderboard: what is chosen never depends on test, stopped calls continue, and the page says it all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from talos.errors import ArgumentError, DataError
from talos.model.recommender import Recommender
from talos_paper.command import leaderboard as command
from talos_paper.leaderboard import (
    LITERATURE,
    METHODS,
    SPLITS,
    candidates_of,
    hold_out,
    leaderboard_page,
    load,
    run_leaderboard,
    stored_name,
)
from talos_paper.results import ResultStore

SMALL: dict[str, dict[str, Any]] = {
    "knn": {
        "name": "knn",
        "title": "KNN",
        "settings": {"baseline.name": "itemknn"},
        "grid": {"baseline.shrinkage": [0.0, 50.0]},
    },
    "talos-8": {
        "name": "talos-8",
        "title": "Talos",
        "settings": {"backbone.dim": 8, "training.epochs": 4, "training.evaluate_every": 2},
        "seeds": 2,
    },
}


@pytest.fixture(autouse=True)
def small_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talos_paper.leaderboard.METHODS", SMALL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Both splits, small, with two tastes."""
    rng = np.random.default_rng(0)
    for name in SPLITS:
        rows: dict[str, list[str]] = {"train": [], "test": []}
        for user in range(40):
            liked = rng.permutation(30)[:15] + 30 * (user % 2)
            for place, item in enumerate(liked):
                rows["test" if place < 3 else "train"].append(f"{user}\t{item}")
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for part, lines in rows.items():
            (folder / f"{part}.tsv").write_text("\n".join(["user_id\titem_id", *lines]) + "\n")
    return tmp_path / "data"


def _run(store: ResultStore, data: Path, **options: Any) -> None:
    run_leaderboard(store, datasets=["gowalla-lightgcn"], methods=list(SMALL), folder=data, **options)


def test_the_result_is_that_of_one_fit_on_all_of_train(data: Path, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "out")
    _run(store, data)
    train, test = load("gowalla-lightgcn", data)
    rest, valid = hold_out(train)
    assert len(rest) + len(valid) == len(train)
    for name in SMALL:
        result = store.measurement(stored_name("gowalla-lightgcn", name))
        assert result is not None
        best = result["trials"][result["best"]]
        assert best["valid"]["recall@20"] == max(trial["valid"]["recall@20"] for trial in result["trials"])
        again = Recommender(config=None, **{"k": 20, "training.metric": "recall"} | best["settings"])
        chosen = again.fit(rest, valid)
        assert chosen.fitted_model().metadata["valid"]["recall@20"] == pytest.approx(
            best["valid"]["recall@20"], abs=1e-6
        )
        for run in result["runs"]:
            if "training" in run["config"] and "epochs" in run["config"]["training"]:
                assert run["config"]["training"]["epochs"] == best["epoch"]
            changes = {"seed": run["seed"]}
            if chosen.config.baseline is None:
                changes["training.epochs"] = best["epoch"]
            final = Recommender(config=chosen.config.with_values(changes)).fit(train)
            found = final.evaluate(test, k=20).metrics
            assert found["recall@20"] == pytest.approx(run["metrics"]["recall@20"], abs=1e-6)
            assert found["ndcg@20"] == pytest.approx(run["metrics"]["ndcg@20"], abs=1e-6)
        assert [run["seed"] for run in result["runs"]] == list(range(SMALL[name].get("seeds", 1)))


def test_a_trained_model_races_and_its_refit_follows_the_winner(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"training.epochs": 20, "training.patience": 4, "training.evaluate_every": 2, "backbone.dim": 4}
    method = {"name": "talos-8", "title": "Talos", "settings": short}
    monkeypatch.setitem(SMALL, "talos-8", method)
    store = ResultStore(tmp_path / "out")
    run_leaderboard(store, datasets=["gowalla-lightgcn"], methods=["talos-8"], folder=data)
    result = store.measurement(stored_name("gowalla-lightgcn", "talos-8"))
    assert result is not None
    (trial,) = result["trials"]
    assert "loss.tau" in trial["race"]["chosen"]
    train, test = load("gowalla-lightgcn", data)
    settings = {"k": 20, "training.metric": "recall"} | short
    model = Recommender(**settings).fit(*hold_out(train)).refit()
    metadata = model.fitted_model().metadata
    assert metadata["chosen_from"]["race"]["path"] == trial["race"]["path"]
    assert model.fitted_model().train.fingerprint() == train.fingerprint()
    assert model.config.as_dict() == result["runs"][0]["config"]
    found = model.evaluate(test, k=20).metrics
    assert found["ndcg@20"] == pytest.approx(result["runs"][0]["metrics"]["ndcg@20"], abs=1e-6)


def test_a_row_may_take_the_loss_that_another_chose(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL["talos-8"]["settings"], "backbone.dim": 16}
    larger = {"name": "talos-16", "title": "Larger", "settings": settings, "loss_of": "talos-8"}
    monkeypatch.setattr("talos_paper.leaderboard.METHODS", {**SMALL, "talos-16": larger})
    store = ResultStore(tmp_path / "out")
    options = {"datasets": ["gowalla-lightgcn"], "folder": data}
    with pytest.raises(DataError, match="talos-8 has no result yet"):
        run_leaderboard(store, methods=["talos-16"], **options)
    run_leaderboard(store, methods=["talos-8", "talos-16"], **options)
    first, second = (
        store.measurement(stored_name("gowalla-lightgcn", name)) for name in ("talos-8", "talos-16")
    )
    assert first is not None
    assert second is not None
    assert "race" not in second["trials"][0]
    assert second["trials"][0]["config"]["loss"] == first["trials"][0]["config"]["loss"]
    assert second["trials"][0]["config"]["backbone"]["dim"] == 16


def test_what_is_chosen_does_not_depend_on_test(data: Path, tmp_path: Path) -> None:
    first, second = ResultStore(tmp_path / "first"), ResultStore(tmp_path / "second")
    _run(first, data)
    path = data / "gowalla-lightgcn" / "test.tsv"
    path.write_text("user_id\titem_id\n" + "".join(f"{user}\t{(user * 7) % 60}\n" for user in range(40)))
    _run(second, data)

    def chosen(store: ResultStore) -> list[Any]:
        results = [store.measurement(stored_name("gowalla-lightgcn", name)) for name in SMALL]
        kept = ("settings", "valid", "epoch", "config")
        return [
            (one["best"], [{key: trial[key] for key in kept} for trial in one["trials"]])
            for one in results
            if one is not None
        ]

    assert chosen(first) == chosen(second)
    assert len(chosen(first)) == 2


def test_a_call_that_was_stopped_continues(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    fits: list[str] = []

    def counted(real: Callable[..., Recommender]) -> Callable[..., Recommender]:
        def call(self: Recommender, *arguments: Any, **options: Any) -> Recommender:
            fits.append(real.__name__)
            return real(self, *arguments, **options)

        return call

    for name in ("fit", "refit"):
        monkeypatch.setattr(Recommender, name, counted(getattr(Recommender, name)))
    store, lines = ResultStore(tmp_path / "out"), 0
    while True:

        def stop_at_once(line: str) -> None:
            raise StopError(line)

        try:
            _run(store, data, work=tmp_path / "work", notify=stop_at_once)
            break
        except StopError:
            lines += 1
            assert lines < 20
    steps = 2 + 1 + 1 + 2  # two candidates and one fit; one candidate and two fits
    assert lines == len(fits) == steps
    assert fits.count("refit") == 3
    whole = ResultStore(tmp_path / "whole")
    _run(whole, data)
    for name in SMALL:
        one, other = (
            [
                run["metrics"]
                for run in (found.measurement(stored_name("gowalla-lightgcn", name)) or {})["runs"]
            ]
            for found in (store, whole)
        )
        assert one == other


def test_other_candidates_or_data_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path / "out")
    _run(store, data)
    path = data / "gowalla-lightgcn" / "train.tsv"
    path.write_text(path.read_text() + "0\t59\n")
    with pytest.raises(DataError, match="was made with other candidates or data"):
        _run(store, data)


def test_wrong_names(data: Path, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "out")
    with pytest.raises(ArgumentError, match="--methods: got 'kn'"):
        run_leaderboard(store, methods=["kn"], folder=data)
    with pytest.raises(ArgumentError, match="--dataset: got 'gowalla'"):
        run_leaderboard(store, datasets=["gowalla"], folder=data)
    with pytest.raises(DataError, match="no folder gowalla-lightgcn/"):
        run_leaderboard(store, folder=tmp_path / "nothing")


def test_the_page_has_ours_and_the_literatures_in_order(data: Path, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "out")
    assert leaderboard_page(store) is None
    _run(store, data)
    text = leaderboard_page(store)
    assert text is not None
    table = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")][1:]
    values = [float(line.split("|")[3].replace("*", "").split("±")[0]) for line in table]
    assert values == sorted(values, reverse=True)
    assert len(table) == len(SMALL) + len(LITERATURE)
    assert text.count("**KNN**") == text.count("**Talos**") == 1
    assert "## Yelp2018" not in text  # nothing was run there
    assert "| MF + BSL | 64 | 0.1882 | 0.1584 | test | the authors' logs |  |" in text


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command()(command)
    runner = CliRunner()
    arguments = ["--data", str(data), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    done = runner.invoke(app, [*arguments, "--dataset", "yelp2018-lightgcn", "--methods", "knn", "--json"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "leaderboard.md").is_file()
    listed = runner.invoke(app, ["--list", "--json"])
    assert list(json.loads(listed.stdout)) == list(SMALL)


def test_candidates_of_the_real_methods_are_valid() -> None:
    from talos.config import RunConfig
    from talos.registry import make_baseline

    for method in METHODS.values():
        for candidate in candidates_of(method):
            config = RunConfig().with_values(candidate)
            if config.baseline is not None:
                make_baseline(config.baseline)
