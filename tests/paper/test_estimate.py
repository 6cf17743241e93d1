"""Estimates: an epoch is timed by its first steps, and a page says what every cell will cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from talos.data.splits import Split
from talos_paper.equal import equal_recipe
from talos_paper.estimate import EPOCHS_OF_A_FIT, epoch_seconds, estimate, estimate_page
from talos_paper.recipes import LOSSES
from talos_paper.reproduce import Selection
from talos_paper.results import ResultStore

TINY = {"k": 5, "backbone.dim": 4, "training.batch_size": 8}


def test_the_first_steps_stand_for_the_epoch(planted: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of one second a step an epoch takes as many seconds as it has steps, however few were timed."""
    made = equal_recipe("beauty", "mf", "sl")
    recipe = replace(made, settings={**made.settings, **TINY})
    ticks = iter(range(10**6))
    monkeypatch.setattr("talos_paper.estimate.time.process_time", lambda: float(next(ticks)))
    steps = -(-planted.train.num_users // TINY["training.batch_size"])
    for seconds in (2.0, 1e9):
        monkeypatch.setattr("talos_paper.estimate._SECONDS", seconds)
        assert epoch_seconds(recipe, planted) == steps


def test_every_row_has_a_cell(planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talos_paper.estimate.epoch_seconds", lambda recipe, split: 36.0)
    selection = Selection(tables=["equal"], dataset="beauty", backbone="mf")
    cells = estimate(selection, ResultStore(tmp_path), lambda dataset, scenario: planted)
    assert [cell.method for cell in cells] == list(LOSSES)
    talos = cells[0]
    made = equal_recipe("beauty", "mf", "talos")
    assert made.options is not None
    # the best one goes on as the first fit
    assert talos.search_epochs == made.options.total_epochs(made.settings) - made.options.epochs[-1]
    assert talos.hours == pytest.approx((talos.search_epochs + 3 * EPOCHS_OF_A_FIT) / 100)
    page = estimate_page([*cells, replace(talos, dataset="games", done=True)])
    assert (
        f"| beauty | mf | {talos.method} | 36.0 | {talos.search_epochs} | 3 | 70 | {talos.hours:.2f} |"
        in page
    )
    assert f"beauty: {sum(cell.hours for cell in cells):.1f} h" in page
    assert f"games: {talos.hours:.1f} h, of which 0.0 h are left." in page


def test_a_rate_that_falls_fast_makes_short_fits(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talos_paper.estimate.epoch_seconds", lambda recipe, split: 1.0)
    selection = Selection(tables=["equal"], dataset="gowalla", backbone="mf", losses=["sl"])
    (cell,) = estimate(selection, ResultStore(tmp_path), lambda dataset, scenario: planted)
    assert cell.fit_epochs == EPOCHS_OF_A_FIT * 2 // 3
