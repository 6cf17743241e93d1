"""Every valid backbone × loss × negatives × threshold trains; every invalid one is refused before any work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from talos import losses, registry
from talos.config import RunConfig
from talos.data.splits import Split
from talos.errors import ConfigError
from talos.evaluation.evaluate import evaluate, popularity_report
from talos.evaluation.ranking import DotScores
from talos.training import Trainer

SOURCES = ("all", "shared:24", "24", "1")
EPOCHS = 12


def build(name: str) -> losses.Loss:
    return registry.make_loss(name, k=5, num_users=48, num_items=35)


def is_valid(needs: losses.Needs, negatives: str, threshold: str) -> bool:
    """The rules, written down a second time: the plan must agree."""
    one_each = negatives.isdigit()
    if not one_each and not (needs.user_separable or needs.pairwise or (needs.lists and negatives == "all")):
        return False
    if needs.negatives == "one" and negatives not in ("1", "all"):
        return False
    return needs.threshold == (threshold != "none")


ALL = list(
    itertools.product(
        registry.names("backbone"), registry.names("loss"), SOURCES, [*registry.names("threshold"), "none"]
    )
)
VALID = [case for case in ALL if is_valid(build(case[1]).needs, case[2], case[3])]
INVALID = [case for case in ALL if case not in VALID and case[0] == "mf"]
# one negative is enough for the loss that asks for one; for the others it proves nothing
TRAINED = [case for case in VALID if case[2] != "1" or build(case[1]).needs.negatives == "one"]


def config(backbone: str, loss: str, negatives: str, threshold: str, **more: Any) -> RunConfig:
    values = {
        "k": 5,
        "backbone.name": backbone,
        "backbone.dim": 16,
        "loss.name": loss,
        "negatives": negatives,
        "threshold.name": threshold,
        "training.epochs": EPOCHS,
        "training.batch_size": 64 if negatives.isdigit() else 8,
        "optimizer.lr": 0.05,
    }
    return RunConfig().with_values(values | more)


def test_there_is_something_of_everything() -> None:
    assert len(TRAINED) > 100
    assert len(INVALID) > 50
    for place, names in enumerate(
        (registry.names("backbone"), registry.names("loss"), SOURCES, registry.names("threshold"))
    ):
        assert set(names) <= {case[place] for case in TRAINED}


@pytest.mark.parametrize(("backbone", "loss", "negatives", "threshold"), TRAINED)
def test_it_learns_what_was_planted(
    planted: Split, backbone: str, loss: str, negatives: str, threshold: str
) -> None:
    trainer = Trainer(config(backbone, loss, negatives, threshold), planted.train)
    trainer.fit()
    got = evaluate(
        DotScores(*trainer.vectors()), planted.test, seen=planted.train, ks=[5], metrics=["recall"]
    )
    popular = popularity_report(planted.train, planted.test, seen=planted.train, ks=[5], metrics=["recall"])
    assert got.metrics["recall@5"] > popular.metrics["recall@5"] + 0.1


@pytest.mark.parametrize(("backbone", "loss", "negatives", "threshold"), INVALID)
def test_it_is_refused_with_the_reason(
    planted: Split, backbone: str, loss: str, negatives: str, threshold: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"(negatives|threshold): .*loss '{loss}'|negatives: .*; expected '1' or 'all'"
    ):
        Trainer(config(backbone, loss, negatives, threshold), planted.train)


@pytest.mark.parametrize("reduction", ["positives", "users"])
@pytest.mark.parametrize("negatives", ["all", "24"])
@pytest.mark.parametrize("rows", ["all", "touched"])
def test_reductions_and_row_updates_learn_too(
    planted: Split, reduction: str, negatives: str, rows: str
) -> None:
    more = {"training.reduction": reduction, "optimizer.rows": rows}
    trainer = Trainer(config("mf", "talos", negatives, "regression", **more), planted.train)
    trainer.fit()
    got = evaluate(
        DotScores(*trainer.vectors()), planted.test, seen=planted.train, ks=[5], metrics=["recall"]
    )
    assert got.metrics["recall@5"] > 0.8


def test_loss_options_reach_the_loss(planted: Split) -> None:
    for options in ({"quantile": False}, {"temperature": "inner"}, {"denominator": False}):
        threshold = "none" if options == {"quantile": False} else "exact"
        more = {f"loss.{name}": value for name, value in options.items()}
        trainer = Trainer(config("mf", "talos", "all", threshold, **more), planted.train)
        assert all(getattr(trainer.objective.loss, name) == value for name, value in options.items())
        trainer.fit()
