"""Spaces: what is read, what is refused and how it is named, and that every default is within its space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from talos import registry
from talos.config import RunConfig
from talos.errors import ConfigError
from talos.studies.tune.space import Space, check_space, default_point, default_space


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        "threshold.name = 'exact'\n[loss]\ntau = [0.1, 0.2]\n[optimizer]\nlr = {low = 0.01, high = 1, log = true}\n"
        "[backbone]\ndim = {low = 8, high = 16, step = 4}\n"
    )
    space = Space.from_toml(path)
    assert space.entries["loss.tau"] == CategoricalDistribution((0.1, 0.2))
    assert space.entries["optimizer.lr"] == FloatDistribution(0.01, 1, log=True)
    assert space.entries["backbone.dim"] == IntDistribution(8, 16, step=4)
    point = {"loss.tau": 0.1, "optimizer.lr": 0.5, "backbone.dim": 12}
    assert space.contains(point)
    for wrong in ({"backbone.dim": 13}, {"backbone.dim": 12.0}, {"loss.tau": 0.3}, {"optimizer.lr": 2.0}):
        assert not space.contains({**point, **wrong})
    assert space.fixed == {"threshold.name": "exact"}
    assert space.size is None
    assert Space.from_dict(space.as_dict()) == space


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": {"tau": []}}, "loss.tau: []; expected a list of different"),
        ({"loss": {"tau": [0.1, 0.1]}}, "loss.tau: [0.1, 0.1]; expected a list of different"),
        ({"loss": {"tau": [[0.1]]}}, "loss.tau: [[0.1]]"),
        ({"optimizer": {"lr": {"low": 0.2, "high": 0.1}}}, "optimizer.lr: an empty range, 0.2 to 0.1"),
        ({"optimizer": {"lr": {"low": 0.1, "high": 0.1}}}, "optimizer.lr: an empty range"),
        ({"optimizer": {"lr": {"low": 0.1}}}, "optimizer.lr: an incomplete range"),
        (
            {"optimizer": {"lr": {"low": 0.0, "high": 1, "log": True}}},
            "`low",
        ),
        ({"optimizer": {"lr": {"low": 0.1, "high": 1, "lgo": True}}}, "no 'lgo' in a range (did you mean"),
        ({"optimizer": {"lr": {"low": "a", "high": 1}}}, "optimizer.lr: low = 'a'"),
        ({"optimizer": {"lr": {"low": 0.1, "high": 1, "step": 2}}}, "optimizer.lr: an empty range, 0.1 to 1"),
        ({"optimizer": {"lr": {"low": 0.1, "high": float("inf")}}}, "optimizer.lr: high = inf"),
        ({"k": [10, 20]}, "k: cannot be searched"),
        ({"seed": [1, 2]}, "seed: cannot be searched"),
        ({"loss": {"name": ["sl", "talos"]}}, "loss.name: cannot be searched"),
        ({"training": {"metric": ["recall"]}}, "training.metric: cannot be searched"),
        ({"loss": {"tau": 0.1}}, "nothing varies"),
        ({}, "nothing varies"),
    ],
)
def test_a_bad_space_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Space.from_dict(values)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": {"tau": [0.1, 0.0]}}, "space.toml: loss.tau: got 0.0"),
        ({"loss": {"tau": {"low": -0.1, "high": 1.0}}}, "space.toml: loss.tau: got -0.1"),
        (
            {"loss": {"tua": [0.1]}},
            "space.toml: loss.tua: the loss 'talos' has no such option (did you mean 'tau' or 'eta'?)",
        ),
        ({"los": {"tau": [0.1]}}, "space.toml: los: no such key (did you mean 'loss'?)"),
        ({"training": {"epoch": [3, 4]}}, "space.toml: training.epoch: no such key (did you mean 'epochs'?)"),
        ({"optimizer": {"lr": [0.1, 0.0]}}, "space.toml: optimizer.lr: 0.0"),
        ({"optimizer": {"lr": [0.1, "fast"]}}, "space.toml: optimizer.lr"),
        (
            {"backbone": {"layers": [1, 2]}},
            "space.toml: backbone.layers: the backbone 'mf' has no such option",
        ),
        ({"backbone": {"dim": [0, 2]}}, "space.toml: backbone.dim"),
        ({"negatives": ["all", "some"]}, "space.toml: negatives"),
        # `auto` becomes the exact threshold here, which has no learning rate: the entry would do nothing
        ({"threshold": {"lr": [0.1, 0.01]}}, "space.toml: threshold.lr: has no effect"),
        ({"loss": {"tau": [0.1]}, "training": {"epochs": 0}}, "space.toml: training.epochs: 0"),
    ],
)
def test_a_space_that_no_run_could_use_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_space(Space.from_dict(values), RunConfig(), where="space.toml")
    assert said in str(error.value)


def test_what_a_space_fixes_is_in_the_config() -> None:
    space = Space.from_dict({"threshold": {"name": "regression", "lr": [0.1, 0.01]}})
    assert check_space(space, RunConfig()).threshold.name == "regression"


@pytest.mark.parametrize("backbone", list(registry.names("backbone")))
@pytest.mark.parametrize("loss", list(registry.names("loss")))
def test_default_spaces_are_valid_and_hold_the_defaults(loss: str, backbone: str) -> None:
    config = RunConfig().with_values({"loss.name": loss, "backbone.name": backbone})
    space = default_space(config)
    check_space(space, config)
    point = default_point(space, config)
    assert point is not None
    assert space.contains(point)


def test_a_grid_is_gone_through_once_in_an_order_of_the_seed() -> None:
    space = Space.from_dict({"loss.tau": [0.1, 0.2, 0.3], "optimizer.lr": [0.1, 0.01]})
    orders = [[tuple(space.point(i, seed=seed).items()) for i in range(6)] for seed in (0, 0, 1)]
    assert len(set(orders[0])) == 6
    assert orders[0] == orders[1] != orders[2]
    assert set(orders[0]) == set(orders[2])
