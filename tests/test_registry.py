"""Names, classes and objects of losses, backbones, thresholds and negatives, and what a config holds of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from talos import Recommender, losses, negatives, registry, thresholds
from talos.backbones import MF, BipartiteGraph, LightGCN, XSimGCL
from talos.config import NamedConfig, RunConfig
from talos.data.datasets import synthetic
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, InputError

MODULE = '''
from dataclasses import dataclass

import torch

from talos.backbones import MF
from talos.losses import Softmax, Talos
from talos.negatives import Negatives
from talos.thresholds import ExactQuantile


class Sharp(Softmax):
    """A softmax loss by another name."""


class Multihead(MF):
    def __init__(self, num_users, num_items, *, dim=64, heads=2, generator):
        super().__init__(num_users, num_items, dim=dim, generator=generator)
        self.heads = heads


class Forgetful(Softmax):
    def __init__(self, *, tau=0.1, lost=1.0):
        super().__init__(tau=tau)


class Functional(Softmax):
    def __init__(self, *, tau=0.1, function=None):
        super().__init__(tau=tau)
        self.function = function


class Exact(ExactQuantile):
    pass


class Weighted(Talos):
    def __init__(self, *, weight=1.0, tau=None, k=None, num_items=None):
        super().__init__(tau=tau, k=k, num_items=num_items)
        self.weight = weight


@dataclass(frozen=True)
class Popular(Negatives):
    n: int
    power: float = 0.75
    per = "positive"

    def draw(self, index, users, generator):
        weights = torch.bincount(index.indices, minlength=index.num_items).double() ** self.power
        drawn = torch.multinomial(weights, len(users) * self.n, replacement=True, generator=generator)
        return drawn.view(len(users), self.n)


number = 3
'''


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "our_classes.py").write_text(MODULE)
    (tmp_path / "our_ruin.py").write_text("raise RuntimeError('no licence\\nfound')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import our_classes

    yield our_classes
    del sys.modules["our_classes"]


@pytest.fixture(scope="module")
def split() -> Split:
    return synthetic(users=40, items=30, interactions=400).split()


GRAPH = BipartiteGraph.from_interactions(synthetic(users=9, items=8, interactions=30))
OBJECTS: list[tuple[registry.Kind, Any, Any]] = [
    ("loss", losses.Talos(), {"name": "talos"}),
    ("loss", losses.Talos(tau=0.2, form="full"), {"name": "talos", "form": "full", "tau": 0.2}),
    ("loss", losses.Talos(eta=0.3), {"name": "talos", "eta": 0.3}),
    ("loss", losses.Talos(tau=losses.DRORadius(eta=0.3)), {"name": "talos", "eta": 0.3}),
    ("loss", losses.Softmax(tau=0.1), {"name": "sl"}),
    ("loss", losses.BilateralSoftmax(tau1=0.3), {"name": "bsl", "tau1": 0.3}),
    ("loss", losses.PairwiseSoftmax(activation="relu"), {"name": "psl", "activation": "relu"}),
    ("loss", losses.SoftmaxAtK(tau_w=0.5), {"name": "sl@k", "tau_w": 0.5}),
    ("loss", losses.RecallSurrogate(k=20, tau1=0.2), {"name": "rs@k", "tau1": 0.2}),
    ("loss", losses.SmoothI(k=20, delta=0.2), {"name": "smoothi@k", "delta": 0.2}),
    ("loss", losses.LLPAUC(alpha=0.3), {"name": "llpauc", "alpha": 0.3}),
    ("loss", losses.AdvInfoNCE(num_users=3, num_items=4, dim=8), {"name": "advinfonce", "dim": 8}),
    ("loss", losses.AATP(), {"name": "aatp"}),
    ("loss", losses.BPR(), {"name": "bpr"}),
    ("backbone", MF(3, 4, dim=8, generator=None), {"name": "mf", "dim": 8}),
    ("backbone", LightGCN(GRAPH, layers=3, generator=None), {"name": "lightgcn", "layers": 3}),
    ("backbone", XSimGCL(GRAPH, epsilon=0.2, generator=None), {"name": "xsimgcl", "epsilon": 0.2}),
    ("threshold", thresholds.ExactQuantile(3, k=20, unseen=0.5), {"name": "exact", "unseen": 0.5}),
    ("threshold", thresholds.MonteCarloQuantile(3, k=20), {"name": "monte-carlo"}),
    ("threshold", thresholds.FixedThreshold(0.3), {"name": "fixed", "value": 0.3}),
    ("threshold", thresholds.RunningQuantile(3, k=20, num_items=30, lr=0.1), {"name": "running", "lr": 0.1}),
    (
        "threshold",
        thresholds.QuantileRegression(3, k=20, num_items=30, betas=(0.8, 0.99)),
        {"name": "regression", "betas": [0.8, 0.99]},
    ),
    ("negatives", negatives.AllItems(), "all"),
    ("negatives", negatives.UniformNegatives(7), "7"),
    ("negatives", negatives.SharedNegatives(7, users=8), "shared:7/8"),
]


@pytest.mark.parametrize(("kind", "made", "held"), OBJECTS, ids=lambda value: str(value)[:40])
def test_objects_of_the_library_are_held_by_name_and_options(
    kind: registry.Kind, made: Any, held: Any, tmp_path: Path
) -> None:
    assert registry.config_of(kind, made) == held
    config = Recommender(**{kind: made}).config
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert RunConfig.from_toml(tmp_path / "run.toml") == config


def test_every_kind_has_an_object_above() -> None:
    for kind in ("loss", "backbone", "threshold", "negatives"):
        tested = {type(made) for one, made, _ in OBJECTS if one == kind}
        assert tested == {registry.resolve(kind, name) for name in registry.names(kind)}  # type: ignore[arg-type]
        assert all(registry.help_of(kind, name) for name in registry.names(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "talso"}, r"^loss: 'talso' is not known.*did you mean 'talos'"),
        ({"backbone": "lightgnc"}, r"^backbone: 'lightgnc' is not known.*did you mean 'lightgcn'"),
        ({"learning_rate": 0.1}, r"^learning_rate: no such option \(did you mean 'lr'\?\)"),
        ({"factors": 8}, r"^factors: no such option \(did you mean 'dim'\?\)"),
        ({"tua": 0.1}, r"^tua: no such option \(did you mean 'tau'"),
        ({"tau": -1.0}, r"tau"),
    ],
    ids=str,
)
def test_the_constructor_refuses_what_a_fit_would(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recommender(**arguments)


def test_an_object_replaces_the_options_of_the_config() -> None:
    base = RunConfig().with_values({"loss.name": "sl", "loss.tau": 0.3})
    assert Recommender(config=base, loss=losses.Softmax()).config.loss.options == {}
    assert Recommender(config=base, loss=losses.Softmax).config.loss.options == {"tau": 0.3}
    with pytest.raises(ArgumentError, match=r"^loss: was made with k=5; expected k=20"):
        Recommender(loss=losses.RecallSurrogate(k=5))


def test_names_of_a_module(ours: Any) -> None:
    assert registry.resolve("loss", "our_classes:Sharp") is ours.Sharp
    assert registry.help_of("loss", "our_classes:Sharp") == "A softmax loss by another name."
    assert registry.config_of("loss", ours.Sharp(tau=0.3)) == {"name": "our_classes:Sharp", "tau": 0.3}
    weighted = {"name": "our_classes:Weighted", "weight": 2.0, "tau": 0.2}
    assert registry.config_of("loss", ours.Weighted(weight=2.0, tau=0.2)) == weighted
    assert registry.config_of("negatives", ours.Popular(4)) == {"name": "our_classes:Popular", "n": 4}
    assert registry.make_negatives(NamedConfig(name="our_classes:Popular", n=4)) == ours.Popular(4)
    assert registry.config_of("threshold", ours.Exact) == "our_classes:Exact"
    with pytest.raises(ArgumentError, match=r"^n: is missing; expected a value"):
        registry.make_negatives("our_classes:Popular")


def test_options_go_to_the_class_that_has_them(ours: Any) -> None:
    config = Recommender(backbone="our_classes:Multihead", heads=4, tau=0.3, dim=8).config
    assert config.backbone.options == {"heads": 4, "dim": 8}
    assert config.loss.options == {"tau": 0.3}
    with pytest.raises(ConfigError, match="heads: no such option"):
        registry.place_of("heads", RunConfig())


@pytest.mark.parametrize("negatives", ["our_classes:Popular", "object"])
def test_all_four_of_ones_own_train_together(ours: Any, split: Split, negatives: str) -> None:
    source = ours.Popular(8) if negatives == "object" else {"name": "our_classes:Popular", "n": 8}
    base = RunConfig().with_values({} if negatives == "object" else {"negatives": source})
    model = Recommender(
        k=5,
        config=base,
        loss="our_classes:Sharp",
        backbone=ours.Multihead,
        negatives=source if negatives == "object" else None,
        epochs=2,
    ).fit(split.train, split.valid)
    assert model.config.as_dict()["negatives"] == {"name": "our_classes:Popular", "n": 8}
    assert len(model.recommend(k=3)) > 0
    exact = Recommender(k=5, loss="talos", threshold="our_classes:Exact", epochs=2).fit(split.train)
    plain = Recommender(k=5, loss="talos", threshold="exact", epochs=2).fit(split.train)
    assert exact.model is not None
    assert plain.model is not None
    torch.testing.assert_close(exact.model.vectors.users, plain.model.vectors.users)


def local_class() -> type[losses.Loss]:
    class Local(losses.Softmax):
        pass

    return Local


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("talso", r"'talso' is not known; expected a short name or module:Class \(did you mean 'talos'\?\)"),
        ("no_such_module:Loss", "cannot import the module 'no_such_module' of .*ModuleNotFoundError"),
        ("our_ruin:Loss", r"cannot import the module 'our_ruin' of .*\(RuntimeError: no licence found\)"),
        (":Loss", "cannot import the module ''"),
        ("our_classes:Shrap", r"the module 'our_classes' has no 'Shrap' \(did you mean 'Sharp'\?\)"),
        ("our_classes:", "the module 'our_classes' has no ''"),
        ("our_classes:number", "'our_classes:number' is no loss; expected a subclass of talos.losses.Loss"),
        ("talos.backbones:MF", "'talos.backbones:MF' is no loss"),
        ("talos.losses:Loss", "'talos.losses:Loss' is no loss"),
    ],
)
def test_names_that_lead_nowhere(ours: Any, choice: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"^loss: {said}"):
        registry.resolve("loss", choice)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda ours: local_class(),
            "'local_class.<locals>.Local' of .* cannot be imported by other processes",
        ),
        (
            lambda ours: type("Main", (losses.Softmax,), {"__module__": "__main__"}),
            "'Main' of '__main__' cannot",
        ),
        (lambda ours: type("Sharp", (losses.Softmax,), {"__module__": "our_classes"}), ".* is another class"),
        (lambda ours: ours.Forgetful(), "'Forgetful' has no attribute with the value of its argument 'lost'"),
        (
            lambda ours: ours.Functional(function=print),
            "the argument 'function' of 'Functional' is <built-in",
        ),
        (lambda ours: losses.Talos(tau=losses.geometric_schedule(0.4, 0.1)), "expected a number, or a DRO"),
        (lambda ours: losses.Talos(tau=losses.DRORadius(eta=1.0, steps=9)), "is DRORadius.*steps=9"),
        (lambda ours: MF, "'MF' is no loss"),
        (lambda ours: 3, "'int' is no loss"),
    ],
)
def test_what_no_config_can_hold(ours: Any, make: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Recommender(loss=make(ours))
