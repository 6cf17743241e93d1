"""A race offers only candidates that can run with the config's negatives, and its memory is known beforehand."""

from __future__ import annotations

import pytest

from talos import Recommender
from talos.config import RunConfig
from talos.data.splits import Split
from talos.errors import ConfigError
from talos.studies.race import make_trainer, plan_of_run, stages_of
from talos.training import check_memory, plan_for


@pytest.mark.parametrize("effort", ["normal", "high"])
@pytest.mark.parametrize(
    ("negatives", "offered"), [("24", False), ("shared:24", True), ("all", True), ("auto", True)]
)
def test_positive_power_is_raced_where_it_can_run(effort: str, negatives: str, offered: bool) -> None:
    config = RunConfig().with_values({"negatives": negatives, "training.effort": effort})
    stages = stages_of(config)
    assert any("loss.positive_power" in one for stage in stages for one in stage) == offered
    assert all({} in stage for stage in stages[1:2])


def test_positive_power_is_refused_with_negatives_per_positive(planted: Split) -> None:
    values = {"k": 5, "loss.positive_power": 0.2, "negatives": "24"}
    refused = "loss.positive_power: 0.2 with '24' negatives .*expected 0, or negatives = 'all' or 'shared:N'"
    with pytest.raises(ConfigError, match=refused):
        plan_for(RunConfig().with_values(values), planted.train)
    for negatives in ("all", "shared:24"):
        plan_for(RunConfig().with_values(values | {"negatives": negatives}), planted.train)


def test_a_race_with_negatives_per_positive_ends(planted: Split) -> None:
    """All candidates can run, those of losses with another kind of threshold too."""
    values = {"k": 5, "negatives": "24", "backbone.dim": 8, "training.epochs": 30, "training.effort": "high"}
    trainer, race = make_trainer(RunConfig().with_values(values), planted.train, planted.valid)
    assert race.chosen
    assert "positive_power" not in trainer.config.loss.options


def test_the_plan_before_a_race_leaves_the_temperature_open(planted: Split) -> None:
    config = RunConfig().with_values({"k": 5})
    before, without = plan_of_run(config, planted.train, planted.valid), plan_of_run(config, planted.train)
    assert before.raced == "tau: raced on validation, starting from 0.045 to 0.2"
    assert before.config.loss.options["tau"] == "auto"
    assert (without.raced, type(without.config.loss.options["tau"])) == ("", float)
    assert set(without.notes) - set(before.notes) == {
        note for note in without.notes if note.startswith("tau ")
    }


def test_memory_counts_the_candidates_and_the_tables_of_a_loss(planted: Split) -> None:
    config = RunConfig().with_values({"k": 5, "backbone.dim": 16})
    alone, raced = plan_for(config, planted.train), plan_of_run(config, planted.train, planted.valid)
    table = 4 * alone.parameters
    candidates = len(stages_of(config)[0])
    assert candidates > 2
    assert raced.memory - alone.memory == 6 * (candidates - 1) * table
    adversary = plan_for(config.with_values({"loss.name": "advinfonce"}), planted.train)
    assert adversary.memory - alone.memory == 8 * 4 * 64 * (planted.train.num_users + planted.train.num_items)


def test_processes_divide_the_memory_of_tables_and_not_of_graphs(
    planted: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig().with_values({"k": 5, "backbone.dim": 64})
    plan = plan_for(config, planted.train)
    there = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": plan.memory // 2 + 1}
    monkeypatch.setattr("os.sysconf", there.__getitem__)
    check_memory(plan, 2)
    with pytest.raises(ConfigError, match=r"backbone.dim: training would take .* GB; expected at most"):
        check_memory(plan)
    with pytest.raises(ConfigError, match="training would take"):
        check_memory(plan_for(config.with_values({"backbone.name": "lightgcn"}), planted.train), 2)
    als = RunConfig().with_values({"k": 5, "baseline.name": "als", "baseline.dim": 4096})
    with pytest.raises(ConfigError, match=r"baseline.dim: ALS would take"):
        Recommender(config=als).fit(planted.train)
