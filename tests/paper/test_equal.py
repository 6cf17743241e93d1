"""Equal footing: the protocol is the same for every loss, and every setting of it can run."""

from __future__ import annotations

import pytest

from talos.data.interactions import Interactions
from talos.training.plan import plan_for
from talos_paper.equal import GRIDS, ON_GRAPHS, SETTINGS, equal_recipe, legs_of, spread
from talos_paper.experiments import by_name
from talos_paper.recipes import BACKBONES, LOSSES


@pytest.fixture(scope="module")
def data() -> Interactions:
    return Interactions.from_ids([user for user in range(40) for _ in range(3)], list(range(120)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dataset", ["beauty", "games", "gowalla"])
def test_every_setting_can_run(dataset: str, loss: str, data: Interactions) -> None:
    made = equal_recipe(dataset, "mf", loss)
    assert 1 <= len(made.search) <= SETTINGS
    assert len({tuple(sorted(one.items())) for one in made.search}) == len(made.search)
    for one in made.search[1:]:
        assert all(one[name] in values for name, values in GRIDS[loss].items())
    for candidate in made.candidates():
        assert plan_for(candidate.config(0), data).batches == "users"


@pytest.mark.parametrize("dataset", ["beauty", "games", "gowalla"])
def test_losses_differ_in_nothing_but_their_options(dataset: str) -> None:
    made = [equal_recipe(dataset, "mf", loss) for loss in LOSSES]
    for name in (
        "training.epochs",
        "training.patience",
        "training.init",
        "optimizer.lr_decay",
        "backbone.dim",
        "negatives",
        "training.batch_size",
    ):
        assert len({recipe.settings[name] for recipe in made}) == 1
    assert {recipe.legs for recipe in made} == {legs_of(dataset)}
    # a grid with fewer points than settings are tried is searched whole
    small = [one.loss for one in made if len(one.search) < SETTINGS]
    assert small == [loss for loss in LOSSES if len(spread(GRIDS[loss], SETTINGS)) < SETTINGS]


def test_the_search_costs_what_is_said() -> None:
    assert equal_recipe("beauty", "mf", "psl").search_epochs == 12 * 5 + 4 * 15 + 2 * 20
    assert equal_recipe("gowalla", "mf", "psl").search_epochs == 12 * 2 + 4 * 4 + 2 * 6


def test_rows() -> None:
    rows = by_name("equal").rows("games")
    assert [row.method for row in rows if row.group == "mf"] == list(LOSSES)
    assert all(row.seeds == 3 for row in rows if row.group == "mf")
    for backbone in BACKBONES[1:]:
        assert {row.method for row in rows if row.group == backbone} == set(ON_GRAPHS)
