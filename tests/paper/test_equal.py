"""Equal footing: the protocol is the same for every loss, and every setting of it can run."""

from __future__ import annotations

import pytest

from talos.data.interactions import Interactions
from talos.training.plan import plan_for
from talos_paper.recipes import BACKBONES, EXPERIMENTS, GRIDS, LOSSES, equal_recipe


@pytest.fixture(scope="module")
def data() -> Interactions:
    return Interactions.from_ids([user for user in range(40) for _ in range(3)], list(range(120)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dataset", ["beauty", "games", "gowalla"])
def test_every_setting_can_run(dataset: str, loss: str, data: Interactions) -> None:
    made = equal_recipe(dataset, "mf", loss)
    assert made.options is not None
    for name, values in GRIDS[loss].items():
        for value in values:
            candidate = made.with_settings({name: value})
            assert plan_for(candidate.config(0), data).batches == "users"


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("dataset", ["beauty", "games", "gowalla"])
def test_losses_differ_in_nothing_but_their_options(dataset: str, backbone: str) -> None:
    made = [equal_recipe(dataset, backbone, loss) for loss in LOSSES]
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
    searches = [recipe.options for recipe in made if recipe.options]
    assert {(one.settings, one.epochs) for one in searches} == {(16, searches[0].epochs)}
    # rate and weight decay are searched for all, and first
    assert {tuple(one.grid)[:2] for one in searches} == {("optimizer.lr", "optimizer.weight_decay")}


def test_rows() -> None:
    rows = EXPERIMENTS["equal"].rows("games")
    assert [row.method for row in rows if row.group == "mf"] == list(LOSSES)
    assert all(row.seeds == 3 for row in rows if row.group == "mf")
    for backbone in BACKBONES[1:]:
        assert {row.method for row in rows if row.group == backbone} == {"talos", "sl", "psl", "bpr", "sl@k"}
