"""Recipes: every row of every table is a config that the library takes, and says where it leaves the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from talos.errors import ArgumentError
from talos_paper import published
from talos_paper.recipes import BACKBONES, EXPERIMENTS, LOSSES, Row, recipe
from talos_paper.reproduce import Selection, planned_runs

ROWS = [
    row
    for experiment in EXPERIMENTS.values()
    for dataset in experiment.datasets
    for fidelity in ("fast", "paper")
    for row in experiment.rows(dataset, fidelity)  # type: ignore[arg-type]
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.dataset}-{row.group}-{row.method}")
def test_every_row_is_a_config_that_can_be_built(row: Row) -> None:
    for candidate in row.recipe.candidates():
        config = candidate.config(seed=3)
        assert config.seed == 3
        assert config.loss.name == row.recipe.loss
        assert config.backbone.options["dim"] == 64
        # as the paper does, unless the candidate itself says otherwise
        assert config.training.init == candidate.settings.get("training.init", "random")


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "sl@k"])
def test_the_papers_own_protocol_has_the_printed_values_and_no_deviation(backbone: str, loss: str) -> None:
    made = recipe("beauty", backbone, loss, fidelity="paper")
    best = published.hyperparameters("beauty", backbone, loss)
    assert best is not None
    assert made.deviations() == ()
    assert made.search == ()
    assert made.settings["optimizer.lr"] == best["lr"]
    assert made.settings["optimizer.weight_decay"] == best["weight_decay"]
    assert made.settings["negatives"] == ("1" if loss == "bpr" else "1024")
    options = {name: value for name, value in best.items() if f"loss.{name}" in made.settings}
    assert {f"loss.{name}": value for name, value in options.items()}.items() <= made.settings.items()
    others = set(best) - set(options) - {"lr", "weight_decay", "contrast_weight", "lr_quantile"}
    assert not others
    if backbone == "xsimgcl":
        assert made.settings["backbone.contrast_weight"] == best["contrast_weight"]


def test_fast_says_what_it_changes() -> None:
    words = " ".join(recipe("beauty", "mf", "sl").deviations())
    for part in ("negatives all (paper 1024)", "lr 0.1 (paper 0.001)", "512 users (paper 1024 positives)"):
        assert part in words


def test_what_the_row_itself_varies_is_no_deviation() -> None:
    assert not any(
        "τ" in one for one in recipe("beauty", "mf", "talos", changes={"loss.tau": 0.3}).deviations()
    )


def test_a_candidate_that_the_search_chose_is_a_deviation() -> None:
    chosen = recipe("beauty", "mf", "sl").candidates()[-1]
    assert "τ 0.2 (paper 0.15)" in chosen.deviations()


def test_keys_follow_the_settings() -> None:
    one, same, other = (recipe("beauty", "mf", "talos", changes={"loss.tau": tau}) for tau in (0.1, 0.1, 0.2))
    assert one.key == same.key != other.key
    assert recipe("beauty", "mf", "talos").key != recipe("beauty", "mf", "talos", fidelity="paper").key


def test_a_run_that_rows_share_is_planned_once() -> None:
    found = planned_runs(Selection(dataset="beauty", seeds=1))
    keys = [(row.recipe.key, seed) for row, seed in found]
    assert len(keys) == len(set(keys))
    wanted = sum(len(EXPERIMENTS[name].rows("beauty")) for name in EXPERIMENTS)
    assert len(keys) < wanted


def test_the_most_informative_comes_first() -> None:
    order = [
        (row.recipe.backbone, row.method, seed)
        for row, seed in planned_runs(Selection(tables=["overall"], dataset="beauty"))
    ]
    assert order[0] == ("mf", "talos", 0)
    assert (
        order.index(("mf", "bpr", 0))
        < order.index(("mf", "talos", 1))
        < order.index(("lightgcn", "talos", 0))
    )
    assert order.index(("lightgcn", "talos", 0)) < order.index(("xsimgcl", "talos", 0))


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (Selection(tables=["overal"]), "TABLE"),
        (Selection(dataset="beuty"), "--dataset"),
        (Selection(backbone="gcn"), "--backbone"),
        (Selection(losses=["tallos"]), "--loss"),
        (Selection(seeds=0), "--seeds"),
    ],
)
def test_names_that_nothing_has_are_refused(asked: Selection, where: str) -> None:
    with pytest.raises(ArgumentError, match=where):
        asked.check()


def test_times_are_only_measured_where_asked_for_by_name() -> None:
    assert "efficiency" not in {experiment.name for experiment, _ in Selection(tables=["all"]).measurements()}
    assert [dataset for _, dataset in Selection(tables=["efficiency"]).measurements()] == [
        "beauty",
        "gowalla",
        "games",
    ]


@pytest.mark.parametrize("backbone", ["lightgcn", "xsimgcl"])
@pytest.mark.parametrize("loss", ["bpr", "llpauc"])
def test_on_graphs_validation_may_also_prefer_what_is_not_searched(backbone: str, loss: str) -> None:
    candidates = recipe("beauty", backbone, loss).candidates()
    assert len(candidates) > 1
    begun = replace(recipe("beauty", backbone, loss), search=())
    assert begun in candidates
    assert len({candidate.key for candidate in candidates}) == len(candidates)
