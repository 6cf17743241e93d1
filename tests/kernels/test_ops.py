"""The operator `talos::sweep`: as torch wants its operators, and the same from the core and from torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from talos.errors import ArgumentError
from talos.kernels import core, ops, torch_passes
from talos.kernels.csr import CSR
from talos.kernels.vectors import Samples
from talos.losses.phi import (
    AtanPowerPairs,
    Constant,
    Exp,
    Hinge,
    LinearPowerPairs,
    PairPhi,
    PartialAUC,
    Phi,
    SigmoidPower,
    SigmoidPowerPairs,
    SigmoidRankPairs,
    SoftplusPairs,
)

ROWS, ITEMS, DIM = 6, 23, 5


@dataclass(frozen=True)
class Cauchy(Phi):
    """A function that the core does not have."""

    width: float
    kind = "cauchy-in-test-ops"
    reduction = "log-sum"

    def value(self, s: Tensor, beta: Tensor | None) -> Tensor:
        return -torch.log1p(((s if beta is None else s - beta) / self.width).square())


@dataclass(frozen=True)
class SquaredPairs(PairPhi):
    """Likewise of differences, with an outer function."""

    kind = "squared-pairs-in-test-ops"
    reduction = "mean"

    def value(self, d: Tensor) -> Tensor:
        return F.relu(1 + d).square()

    def outer(self, inner: Tensor) -> Tensor:
        return inner.log1p()


PHIS: dict[str, Phi] = {
    "exp": Exp(5.0, scale=0.5),
    "sigmoid-power": SigmoidPower(10.0, 2.0),
    "hinge": Hinge(scale=2.0),
    "partial-auc": PartialAUC(0.4, -0.3, 0.35, 0.3, 5.0),
    "constant": Constant(scale=3.0),
    "own": Cauchy(0.5, scale=2.0),
}
PAIRS: dict[str, PairPhi] = {
    "softplus": SoftplusPairs(),
    "sigmoid-power": SigmoidPowerPairs(5.0),
    "atan-power": AtanPowerPairs(3.0),
    "linear-power": LinearPowerPairs(3.0),
    "sigmoid-rank": SigmoidRankPairs(5.0, 3.0, 1.0),
    "own": SquaredPairs(),
}
DTYPES = [torch.float32, torch.float64]


class Problem:
    """Rows with some, no and all items excluded; positives that have nothing to do with the excluded items."""

    def __init__(self, dtype: torch.dtype) -> None:
        rng = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
        self.users, self.items = (F.normalize(draw(n, DIM)).to(dtype) for n in (ROWS, ITEMS))
        self.gone = torch.rand(ROWS, ITEMS, generator=rng) < 0.3
        self.gone[1], self.gone[2] = False, True
        self.excluded = CSR.by_row(*self.gone.nonzero().T, ROWS)
        own = torch.rand(ROWS, ITEMS, generator=rng) < 0.2
        own[3] = False
        self.positives = CSR.by_row(*own.nonzero().T, ROWS)
        self.beta = (draw(ROWS) / 4).to(dtype)
        self.weights = torch.rand(ROWS, generator=rng, dtype=torch.float64).to(dtype)
        self.pair_weights = torch.rand(len(self.positives.items), generator=rng, dtype=torch.float64).to(
            dtype
        )
        self.samples = Samples(torch.randint(ITEMS, (2, 9), generator=rng), torch.tensor([0, 2, ROWS]))
        self.drawn = CSR.by_row(*(torch.rand(ROWS, 9, generator=rng) < 0.3).nonzero().T, ROWS)

    @property
    def scores(self) -> Tensor:
        return self.users @ self.items.T

    @property
    def positive_scores(self) -> Tensor:
        return self.scores[self.positives.rows, self.positives.items]

    def memory(self) -> dict[str, Tensor]:
        """Memory for gradients that held something else."""
        return {
            "user_gradient": torch.full_like(self.users, torch.nan),
            "item_gradient": torch.full_like(self.items, torch.nan),
        }


def cases(p: Problem) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of `ops.sweep` of every sort."""
    found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "best": ((None, None, None), {"phi": None, "k": 3, "keep_best": True}),
        "kth": ((None, None, None), {"phi": None, "k": 3}),
    }
    for name, phi in PHIS.items():
        found |= {
            f"{name} sums": ((p.excluded, p.beta, None), {"phi": phi}),
            f"{name} gradients": ((p.excluded, p.beta, p.weights), {"phi": phi, **p.memory()}),
            f"{name} without thresholds": ((None, None, p.weights), {"phi": phi, **p.memory()}),
            f"{name} exact": (
                (p.excluded, None, p.weights),
                {"phi": phi, "k": 4, "kth_is_threshold": True, **p.memory()},
            ),
            f"{name} samples": (
                (p.drawn, p.beta, p.weights),
                {"phi": phi, "samples": p.samples, **p.memory()},
            ),
            f"{name} one sample": (
                (p.drawn, p.beta, p.weights),
                {"phi": phi, "samples": Samples(p.samples.items[:1], torch.tensor([0, ROWS])), **p.memory()},
            ),
            f"{name} weighted items": (
                (p.excluded, p.beta, p.weights),
                {"phi": phi, "item_weights": p.items.new_ones(ITEMS) + torch.arange(ITEMS), **p.memory()},
            ),
        }
    pairs = p.positives.start, p.positive_scores
    for name, pair_phi in PAIRS.items():
        given = {"phi": pair_phi, "positives": pairs}
        of_excluded = p.weights.new_ones(len(p.excluded.items))
        found |= {
            f"{name} pairs": ((p.excluded, None, None), given),
            f"{name} pairs gradients": ((p.excluded, None, p.pair_weights), {**given, **p.memory()}),
            f"{name} pairs inner": (
                (p.excluded, None, p.pair_weights),
                {**given, "inner_only": True, **p.memory()},
            ),
            f"{name} pairs of the excluded": (
                (p.excluded, None, of_excluded),
                {"phi": pair_phi, "positives": (p.excluded.start, None), "k": 3, **p.memory()},
            ),
            f"{name} pairs samples": (
                (p.drawn, None, p.pair_weights),
                {**given, "samples": p.samples, **p.memory()},
            ),
        }
    return found


CASES = list(cases(Problem(torch.float32)))


def run(p: Problem, name: str) -> list[Tensor]:
    """All results of a case, the gradients last."""
    given, how = cases(p)[name]
    found = ops.sweep(p.users, p.items, *given, **how)
    return [*found, *(how[one] for one in ("user_gradient", "item_gradient") if one in how)]


class Operands(TorchDispatchMode):
    """Remembers the operator's own arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.talos.sweep.default:
            self.found = args
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_operator_is_as_torch_wants_it(name: str, dtype: torch.dtype) -> None:
    """Schema, writes to memory that is not declared, shapes without data, tracing: in the core and in torch."""
    with Operands() as seen:
        run(Problem(dtype), name)
    torch.library.opcheck(torch.ops.talos.sweep.default, seen.found)


@pytest.mark.parametrize("name", CASES)
def test_the_core_and_torch_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every result, for every function that the core has; for the others both are torch."""
    by_core, exact = run(Problem(torch.float32), name), run(Problem(torch.float64), name)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    by_torch = run(Problem(torch.float32), name)
    for core_s, torch_s, want in zip(by_core, by_torch, exact, strict=True):
        if want.ndim == 2 and "best" in name:
            core_s, torch_s, want = (one.sort(dim=-1).values for one in (core_s, torch_s, want))
        torch.testing.assert_close(core_s.double(), want, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(torch_s.double(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(not core.levels(), reason="the compiled core is missing")
@pytest.mark.parametrize("name", CASES)
def test_which_functions_the_core_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sweep = core.sweep
    monkeypatch.setattr(core, "sweep", lambda *given, **how: calls.append("core") or sweep(*given, **how))
    run(Problem(torch.float32), name)
    elsewhere = ("own", "constant", "atan", "linear")
    assert calls == ([] if name.startswith(elsewhere) or "weighted" in name else ["core"])
    run(Problem(torch.float64), name)
    assert len(calls) <= 1


def naive(p: Problem, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """R and both gradients by autograd, one row or one positive after the other."""
    (excluded, beta, weights), how = cases(p)[name]
    users, items = p.users.clone().requires_grad_(), p.items.clone().requires_grad_()
    phi, samples, sums = how["phi"], how.get("samples"), []
    for row in range(ROWS):
        drawn = torch.arange(ITEMS)
        if samples is not None:
            group = int((samples.bounds[1:] <= row).sum())
            drawn = samples.items[group]
        gone = set() if excluded is None else set(excluded.items[excluded.rows == row].tolist())
        left = [j for j in range(len(drawn)) if j not in gone]
        scores = items[drawn[left]] @ users[row]
        if isinstance(phi, PairPhi):
            start, given = how["positives"]
            given = p.scores[p.excluded.rows, p.excluded.items] if given is None else given
            for score in given[int(start[row]) : int(start[row + 1])]:
                values = phi.value(scores - score)
                sums.append(reduced(phi.reduction, values))
            continue
        if how.get("kth_is_threshold"):
            threshold = p.scores[row].sort(descending=True).values[how["k"] - 1]
        else:
            threshold = None if beta is None else beta[row]
        values = phi.value(scores, threshold)
        mass = how["item_weights"][left] if "item_weights" in how else torch.ones_like(values)
        one = reduced(phi.reduction, values, mass)
        sums.append(phi.scale * (one if len(left) or phi.reduction == "constant" else values.sum()))
    found = torch.stack(sums)
    outer = found
    if isinstance(phi, PairPhi):
        outer = found if how.get("inner_only") else phi.outer(found)
    total = (weights * outer)[found.isfinite()].sum() + 0 * users.sum()
    gradients = torch.autograd.grad(total, [users, items], allow_unused=True, materialize_grads=True)
    return found.detach(), *gradients


def reduced(reduction: str, values: Tensor, mass: Tensor | None = None) -> Tensor:
    mass = torch.ones_like(values) if mass is None else mass
    if reduction == "constant":
        return values.sum() * 0 + 1
    if reduction == "log-sum":
        return torch.logsumexp(values + mass.log(), 0)
    total = (mass * values).sum()
    return total if reduction == "sum" or len(values) == 0 else total / mass.sum()


@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.endswith(("sums", "pairs")) and name not in ("best", "kth")]
)
def test_against_a_loop(name: str) -> None:
    """Also of functions that are defined here, which torch runs, and with excluded items that are no positives."""
    p = Problem(torch.float64)
    sums, *_, user_gradient, item_gradient = run(p, name)
    want, of_users, of_items = naive(p, name)
    torch.testing.assert_close(sums, want)
    torch.testing.assert_close(user_gradient, of_users)
    torch.testing.assert_close(item_gradient, of_items)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_best_scores(dtype: torch.dtype) -> None:
    p = Problem(dtype)
    best = ops.sweep(p.users, p.items, None, None, None, phi=None, k=4, keep_best=True)
    want = p.scores.sort(descending=True).values[:, :4]
    torch.testing.assert_close(best.best.sort(descending=True).values, want)
    torch.testing.assert_close(best.kth, want[:, -1])
    assert best.sums.shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_learnt_parameters(dtype: torch.dtype) -> None:
    """Of tensors, which the operator takes as numbers."""
    p = Problem(dtype)
    learnt = [torch.tensor(one, dtype=dtype, requires_grad=True) for one in (0.4, -0.3, 0.35)]
    phi = PartialAUC(*learnt, 0.3, 5.0, scale=2.0)
    found = ops.sweep(p.users, p.items, p.excluded, None, p.weights, phi=phi, **p.memory())
    sums = phi.aggregate(p.scores, None, p.gone)
    want = torch.autograd.grad((p.weights * sums).sum(), learnt)
    torch.testing.assert_close(found.parameter_gradient[:3], torch.stack(want), rtol=1e-5, atol=1e-6)
    assert not found.parameter_gradient[3:].any()


def test_the_normalizer_is_that_of_the_rows() -> None:
    """log Σφ and Σφ, from which processes merge theirs; nothing is left in the third row."""
    p = Problem(torch.float64)
    logs = ops.sweep(p.users, p.items, p.excluded, None, None, phi=Exp(5.0, scale=0.5)).normalizer
    torch.testing.assert_close(logs, torch.logsumexp((5 * p.scores).masked_fill(p.gone, -torch.inf), 1))
    sums = ops.sweep(p.users, p.items, p.excluded, None, None, phi=Hinge(scale=2.0)).normalizer
    torch.testing.assert_close(sums, F.relu(1 + p.scores).masked_fill(p.gone, 0.0).sum(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "items"), [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", PHIS)
def test_without_rows_or_items(name: str, rows: int, items: int, dtype: torch.dtype) -> None:
    users, table = torch.ones(rows, 2, dtype=dtype), torch.ones(items, 2, dtype=dtype)
    memory = {"user_gradient": torch.full_like(users, 7.0), "item_gradient": torch.full_like(table, 7.0)}
    weights = torch.ones(rows, dtype=dtype)
    found = ops.sweep(users, table, None, None, weights, phi=PHIS[name], **memory)
    assert found.sums.shape == (rows,)
    assert (found.sums == (3.0 if name == "constant" else 0.0)).all()
    assert not memory["user_gradient"].any()
    assert not memory["item_gradient"].any()


def test_an_unknown_function_is_refused() -> None:
    p = Problem(torch.float32)
    with Operands() as seen:
        run(p, "exp sums")
    names = dict(zip(ops._ARGUMENTS, seen.found, strict=True)) | {"kind": "unheard-of"}
    with pytest.raises(ArgumentError, match=r"^kind: .*unheard-of"):
        torch.ops.talos.sweep(*names.values())


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
@pytest.mark.parametrize("name", ["exp gradients", "own samples", "own pairs gradients", "best"])
def test_rows_at_a_time_do_not_show(name: str, chunk: int) -> None:
    p = Problem(torch.float64)
    want = run(p, name)
    given, how = cases(p)[name]
    found = [*torch_passes.sweep(p.users, p.items, *given, users_per_chunk=chunk, **how)]
    for one, other in zip(found, want, strict=False):
        torch.testing.assert_close(one, other)
