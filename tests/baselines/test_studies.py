"""Baselines in comparisons and in tuning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from talos import registry
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ConfigError
from talos.model import fitting
from talos.model.recommender import Recommender
from talos.report import comparison_report
from talos.studies.compare import compare, load
from talos.studies.compare import run as comparison
from talos.studies.tune import finalize, tune
from talos.studies.tune.space import check_space, default_point, default_space

NAMES = registry.names("baseline")


@pytest.fixture
def split(random_data: Callable[..., Interactions]) -> Split:
    return random_data(users=50, items=30, density=0.25).split(test=0.2, valid=0.1, seed=1)


def _configs(*names: str) -> dict[str, RunConfig]:
    return {name: RunConfig().with_values({"k": 5, "baseline.name": name}) for name in names}


def test_a_comparison_measures_what_the_recommender_does(split: Split, tmp_path: Path) -> None:
    small = {"k": 5, "backbone.dim": 4, "training.epochs": 2}
    models = {"talos": RunConfig().with_values(small), **_configs(*NAMES)}
    table = compare(split, models, 2, out=tmp_path / "out")
    for row in table.rows[1:]:
        alone = [
            Recommender(config=models[row.model], seed=seed)
            .fit(split.train, split.valid)
            .evaluate(split.test, k=5)
            for seed in (0, 1)
        ]
        for metric, mean in row.means.items():
            assert mean == pytest.approx(sum(report.metrics[metric] for report in alone) / 2)
        assert (row.loss, row.backbone, row.epochs) == ("", "", 0)
    again = load(tmp_path / "out")
    assert [row.means for row in again.rows] == [row.means for row in table.rows]
    assert "computed (2)" in comparison_report(again)


def test_a_baseline_that_no_seed_changes_is_computed_once(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[str] = []

    def counted(config: RunConfig, *parts: Interactions) -> object:
        assert config.baseline is not None
        fitted.append(config.baseline.name)
        return fitting.fit_baseline(config, *parts)

    monkeypatch.setattr(comparison, "fit_baseline", counted)
    models = _configs("ease", "als")
    models["als"] = models["als"].with_values({"baseline.dim": 4, "baseline.regularization": 1.0})
    table = compare(split, models, 3, out=tmp_path / "out")
    assert sorted(fitted) == ["als"] * 3 + ["ease"]
    assert table.rows[0].stds["recall@5"] == 0
    assert table.rows[1].stds["recall@5"] > 0
    assert [run.config["seed"] for run in table.results["ease"]] == [0, 1, 2]
    compare(split, models, 4, out=tmp_path / "out")
    assert sorted(fitted) == ["als"] * 4 + ["ease"]  # the stored result serves for the fourth seed


def test_a_baseline_that_cannot_be_computed_is_refused_before_the_first_fit(split: Split) -> None:
    models = {**_configs("popularity", "ease")}
    models["ease"] = models["ease"].with_values({"baseline.memory_gb": 1e-9})
    with pytest.raises(ConfigError, match=r"model ease: .*30 items need a matrix"):
        compare(split, models, 1, notify=lambda line: pytest.fail(line))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "popularity"])
def test_the_default_space_contains_the_defaults(name: str) -> None:
    base = _configs(name)[name]
    space = default_space(base)
    assert check_space(space, base) == base
    point = default_point(space, base)
    assert point is not None
    assert base.with_values(point).baseline is not None


def test_popularity_has_nothing_to_tune() -> None:
    with pytest.raises(ConfigError, match="the baseline 'popularity' has nothing to choose"):
        default_space(_configs("popularity")["popularity"])


def test_tuning_finds_the_best_of_a_grid_and_finalizes(split: Split, tmp_path: Path) -> None:
    space = {"baseline": {"regularization": [0.1, 5.0, 100.0]}}
    tuned = tune(split, space, trials=3, out=tmp_path / "study", baseline="ease", k=5, metric="recall")
    assert split.valid is not None
    values = {
        value: Recommender(baseline="ease", regularization=value, k=5, metric="recall")
        .fit(tuned.parts.train, tuned.parts.valid)
        .fitted_model()
        .metadata["valid"]["recall@5"]
        for value in (0.1, 5.0, 100.0)
    }
    assert tuned.value == max(values.values())
    final = finalize(tmp_path / "study", split)
    assert final.facts["config"]["baseline"]["regularization"] == max(values, key=lambda value: values[value])
    both = split.train.union(split.valid)
    expected = Recommender(config=tuned.config).fit(both).evaluate(split.test, k=[5])
    assert final.facts["metrics"]["recall@5"] == expected.metrics["recall@5"]
    stored = Recommender.load(tmp_path / "study" / "final").fitted_model()
    assert stored.held_out is not None
    assert stored.held_out.fingerprint() == split.test.fingerprint()
    assert stored.metadata["trained_on"] == {"train": len(split.train), "valid": len(split.valid)}
