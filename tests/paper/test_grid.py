"""The grid: the best of it never depends on test, stopped calls continue, and the page shows both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos.errors import ConfigError, DataError
from talos.model.recommender import Recommender
from talos_paper import grid
from talos_paper.grid import run_grid, stored_name
from talos_paper.grid_page import grid_page
from talos_paper.results import ResultStore

QUICK = {
    "backbone.dim": 8,
    "training.epochs": 40,
    "training.evaluate_every": 5,
    "training.batch_size": 16,
    "training.checkpoint_every": 1000,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A public split, small, with two tastes."""
    rng = np.random.default_rng(0)
    place = tmp_path / "data" / "gowalla-lightgcn"
    place.mkdir(parents=True)
    rows: dict[str, list[str]] = {"train": [], "test": []}
    for user in range(40):
        for number, item in enumerate(rng.permutation(30)[:12] + 30 * (user % 2)):
            rows["test" if number < 3 else "train"].append(f"{user}\t{item}")
    for part, lines in rows.items():
        (place / f"{part}.tsv").write_text("\n".join(["user_id\titem_id", *lines]) + "\n")
    return tmp_path / "data"


def _run(store: ResultStore, folder: Path, **options: Any) -> dict[str, Any]:
    run_grid(store, datasets=["gowalla-lightgcn"], folder=folder, settings=QUICK, **options)
    result = store.measurement(stored_name("gowalla-lightgcn"))
    assert result is not None
    return result


def test_the_best_of_the_grid_is_measured_beside_the_default(folder: Path, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "out")
    result = _run(store, folder, work=tmp_path / "work")
    steps = result["steps"]
    assert [len(steps[name]) for name in ("temperatures", "powers", "best", "default")] == [5, 8, 1, 1]
    best = max([*steps["temperatures"], *steps["powers"]], key=lambda one: one["valid"]["recall@20"])
    measured = result["test"]["grid"]["trial"]
    assert measured == steps["best"][0]
    assert measured["config"]["loss"] == best["config"]["loss"]
    assert {one["config"]["training"]["epochs"] for one in steps["temperatures"]} == {30}
    assert measured["config"]["training"]["epochs"] == QUICK["training.epochs"]
    assert "race" in steps["default"][0]
    assert all("race" not in one for one in steps["temperatures"])
    # the measured model is the one that was fitted, not one more
    split = grid.load("gowalla-lightgcn", folder)
    config = result["test"]["grid"]["trial"]["config"]
    again = Recommender(config=grid.RunConfig.from_dict(config)).fit(split.train, split.valid)
    found = again.evaluate(split.test, k=20, metrics=("recall",)).metrics["recall@20"]
    assert result["test"]["grid"]["metrics"]["recall@20"] == round(found, 6)
    page = grid_page(store)
    assert page is not None
    share = result["test"]["default"]["metrics"]["recall@20"] / result["test"]["grid"]["metrics"]["recall@20"]
    assert f"**{share:.3f}**" in page
    assert "Not run yet: MovieLens-100K, Beauty" in page


def test_a_stopped_grid_continues_and_reads_test_at_the_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _run(ResultStore(tmp_path / "whole"), folder, work=tmp_path / "work-whole")
    seen: list[str] = []
    measure = grid.measure

    def stop(line: str) -> None:
        seen.append(line)
        if len(seen) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(grid, "measure", lambda model, test: pytest.fail("test was read before the end"))
    store = ResultStore(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        _run(store, folder, work=tmp_path / "work", notify=stop)
    monkeypatch.setattr(grid, "measure", measure)
    rest: list[str] = []
    result = _run(store, folder, work=tmp_path / "work", notify=rest.append)
    assert len(rest) == 15 + 1 - 7
    for side in ("grid", "default"):
        assert result["test"][side]["metrics"] == whole["test"][side]["metrics"]


def test_a_name_or_a_file_of_another_grid_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path / "out")
    with pytest.raises(ConfigError, match="gowalla-lightgcn"):
        run_grid(store, datasets=["gowalla-lightgnc"], folder=folder)
    store.save_measurement(stored_name("gowalla-lightgcn"), {"protocol": {}, "steps": {}})
    with pytest.raises(DataError, match="another grid"):
        _run(store, folder)
