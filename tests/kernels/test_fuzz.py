"""Random calls of the kernels against torch in float64: each agrees or raises `ArgumentError`, none crashes.

`TALOS_FUZZ_CALLS` sets how many calls are made (`make fuzz`: 10,000), `TALOS_FUZZ_SEED` the first seed; a failure
names the seed of its call. With `TALOS_FUZZ_CORE` the core is loaded from that file, such as a build with sanitisers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from talos import kernels, losses
from talos.errors import ArgumentError
from talos.kernels import core, least_squares, vectors
from talos.kernels.csr import CSR
from talos.training.optimizer import row_adam_

CALLS = int(os.environ.get("TALOS_FUZZ_CALLS", "300"))
SEED = int(os.environ.get("TALOS_FUZZ_SEED", "0"))
CORE = os.environ.get("TALOS_FUZZ_CORE")
BLOCKS = 10

# loss, the steepest slope of its value in a score, and whether it is smooth
LOSSES: dict[str, tuple[Any, float, bool]] = {
    "talos": (lambda: losses.Talos(tau=0.1), 20, True),
    "talos-balanced": (
        lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
        24,
        True,
    ),
    "talos-cold": (lambda: losses.Talos(tau=0.02), 100, True),
    "talos-inner": (lambda: losses.Talos(tau=0.2, temperature="inner"), 10, True),
    "talos-no-quantile": (lambda: losses.Talos(tau=0.2, quantile=False), 10, True),
    "talos-no-denominator": (lambda: losses.Talos(tau=0.2, k=3, denominator=False), 10, True),
    "sl": (lambda: losses.Softmax(tau=0.2), 10, True),
    "bsl": (lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3), 20, True),
    "sl@k": (lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5), 50, True),
    "sl@k-through": (
        lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5, detach_weight=False, offset=1.0),
        50,
        True,
    ),
    "aatp": (lambda: losses.AATP(), 2, False),
    "llpauc": (lambda: losses.LLPAUC(alpha=0.7, beta=0.3), 50, True),
    "bpr": (lambda: losses.BPR(), 2, True),
    "bpr-balanced": (lambda: losses.BPR(user_power=0.5), 2, True),
    "psl": (lambda: losses.PairwiseSoftmax(tau=0.1), 20, True),
    "psl-cold": (lambda: losses.PairwiseSoftmax(tau=0.02), 100, True),
    "rs@k": (lambda: losses.RecallSurrogate(k=5, tau1=0.1, tau2=2.0), 20, True),
    "rs@k-cold": (lambda: losses.RecallSurrogate(k=2, tau1=0.02, tau2=5.0), 100, True),
    # which of two items that are level is the smallest, whose slope is special, rounding decides
    "smoothi@k": (lambda: losses.SmoothI(k=5, tau=0.2, delta=0.1), 50, False),
}


@pytest.fixture(autouse=True)
def _core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The core from `TALOS_FUZZ_CORE`, with a workspace of exactly the right size, which sanitisers watch."""
    threads = torch.get_num_threads()
    if CORE:
        monkeypatch.setattr(core, "built_library", lambda *_: Path(CORE))
        core._load.cache_clear()
        monkeypatch.setattr(core.scratch, "take", lambda size: torch.empty(-(-size // 4)), raising=False)
        monkeypatch.setenv("TALOS_KERNEL", "compiled")
        assert core.available()
    yield
    torch.set_num_threads(threads)
    if CORE:
        core._load.cache_clear()


@dataclass
class Call:
    """The arguments of one random call, and what is wrong with them."""

    rng: np.random.Generator
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    wrong: str = ""  # why an error is expected
    spoilt: bool = False  # NaN or infinity somewhere: an error, unless it is not used

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]


def strided(call: Call, values: Tensor) -> Tensor:
    """The same numbers with other strides."""
    kind = call.rng.integers(4)
    if kind == 1 and values.ndim == 2:
        return values.T.contiguous().T
    if kind == 2:
        return torch.stack([values, values], dim=-1)[..., 0]
    if kind == 3 and values.ndim == 2:
        return F.pad(values, (1, 2))[:, 1:-2]
    return values


def sizes(call: Call) -> tuple[int, int, int]:
    users = call.pick(0, 1, 2, 7, 33, int(call.rng.integers(1, 80)))
    items = call.pick(1, 2, 5, int(call.rng.integers(1, 60)), int(call.rng.integers(1, 700)))
    return users, items, call.pick(1, 2, 16, 64, int(call.rng.integers(1, 301)))


def positives(call: Call, users: int, items: int, twice: float = 0.05) -> tuple[Tensor, Tensor]:
    """CSR of positives: users without any and with all items; ascending or shuffled; now and then one twice."""
    rows = []
    for _ in range(users):
        count = call.pick(0, 1, min(3, items), items, int(call.rng.integers(0, items + 1)))
        row = call.rng.permutation(items)[:count]
        rows.append(np.sort(row) if call.chance(0.8) else row)
    if call.chance(twice) and any(len(row) for row in rows):
        user = call.pick(*(u for u, row in enumerate(rows) if len(row)))
        rows[user] = np.append(rows[user], call.pick(*rows[user]))
        call.wrong = call.wrong or "a positive twice"
    kind = call.pick(torch.int64, torch.int64, torch.int32, torch.int16)
    indptr = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    kind = torch.int64 if int(indptr[-1]) > 30_000 else kind
    return indptr.to(kind), torch.tensor(np.concatenate([[], *rows]), dtype=kind)


def table(call: Call, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    length = call.pick(0.01, 1.0, 1.0, 3.0)
    found = torch.from_numpy(call.rng.standard_normal((rows, dim)))
    lengths = torch.from_numpy(length * call.rng.uniform(0.3, 1, (rows, 1)))
    return strided(call, (F.normalize(found) * lengths).to(dtype))


def excluded(call: Call, users: int, items: int) -> Any:
    """The positives, no items, or some that have nothing to do with the positives."""
    if call.chance(0.2):
        start, chosen = positives(call, users, items, twice=0.0)
        return CSR.of(start.long(), chosen)
    return "positives" if call.chance(0.8) else None


def samples(call: Call, users: int, items: int) -> dict[str, Any]:
    """One sample for all users, or one for each group of them; groups may be empty."""
    n = int(call.rng.integers(1, 200))
    if call.chance(0.4):
        return {"item_ids": torch.from_numpy(call.rng.integers(0, items, n))}
    groups = int(call.rng.integers(1, 6))
    drawn = {"item_ids": torch.from_numpy(call.rng.integers(0, items, (groups, n)))}
    if call.chance(0.5):
        return drawn
    inner = np.sort(call.rng.integers(0, users + 1, groups - 1))
    return {**drawn, "sample_bounds": torch.tensor([0, *inner, users])}


def spoil(call: Call) -> None:
    """Put a number into one of the tensors that is none."""
    names = [n for n in ("user_vectors", "item_vectors", "thresholds") if call.arguments.get(n) is not None]
    name = call.pick(*names)
    values = call.arguments[name].clone()
    if values.numel():
        place = np.unravel_index(call.rng.integers(values.numel()), values.shape)
        values[tuple(int(at) for at in place)] = call.pick(np.nan, np.inf, -np.inf)
        call.arguments[name], call.spoilt = values, True


def misuse(call: Call, users: int, items: int) -> None:
    """Change one argument so that it does not fit the others."""
    given = call.arguments
    changes = {
        "k": {"k": call.pick(0, -1, items + 1)},
        "indices out of range": {"indices": torch.full_like(given["indices"], items)},
        "negative indices": {"indices": torch.full_like(given["indices"], -1)},
        "indices of floats": {"indices": given["indices"].double()},
        "indptr too short": {"indptr": given["indptr"][:-1]},
        "indptr too large": {"indptr": given["indptr"] + 1},
        "indptr of floats": {"indptr": given["indptr"].float()},
        "dimension": {"item_vectors": F.pad(given["item_vectors"], (0, 1))},
        "vectors of integers": {"user_vectors": given["user_vectors"].long()},
        "thresholds": {"thresholds": torch.zeros(users + 1), "k": None},
        "sample": {"item_ids": torch.tensor([items])},
        "a sample of floats": {"item_ids": torch.zeros(2)},
        "a vector": {"user_vectors": torch.zeros(users)},
    }
    if len(given["indices"]) == 0:
        changes = {name: change for name, change in changes.items() if "indices" not in name}
    call.wrong = call.pick(*changes)
    for name, value in changes[call.wrong].items():
        (call.arguments if name in given else call.options)[name] = value


def draw(seed: int) -> tuple[Call, str]:
    call = Call(np.random.default_rng(seed))
    users, items, dim = sizes(call)
    name = call.pick(*LOSSES)
    dtype = call.pick(*[torch.float32] * 7, torch.float64, torch.float16, torch.bfloat16)
    loss = LOSSES[name][0]()
    indptr, indices = positives(call, users, items)
    drawn = call.chance(0.3)
    options: dict[str, Any] = {
        "reduction": call.pick("positives", "users", "sum"),
        "excluded": excluded(call, users, items),
        "normalize_items": call.chance(0.4),
        "bfloat16": call.chance(0.2),
        "users_per_chunk": call.pick(None, None, 1, 3, 40),
        **(samples(call, users, items) if drawn else {}),
        "k": int(call.rng.integers(1, items + 1)) if call.chance(0.5) else None,
    }  # fmt: skip
    if loss.needs.lists:  # over all items, once each; the others are refused
        drawn, options["excluded"] = False, "positives"
        options = {
            name: value for name, value in options.items() if name not in ("item_ids", "sample_bounds")
        }
    if options["k"] is not None and call.chance(0.2):
        options["k"] = call.pick(1, items)
    if call.chance(0.1) and loss.needs.user_separable:
        count = items if not drawn else options["item_ids"].shape[-1]
        options["weights"] = torch.from_numpy(call.rng.uniform(0.1, 2, count))
    if call.chance(0.15):
        options["positive_weights"] = torch.from_numpy(call.rng.uniform(0.1, 3, len(indices))).to(dtype)
    beta = None
    if options["k"] is None and (loss.needs.threshold or call.chance(0.1)):
        beta = strided(call, torch.from_numpy(call.rng.uniform(-0.5, 0.5, users)).to(dtype))
    call.arguments = {
        "user_vectors": table(call, users, dim, dtype),
        "item_vectors": table(call, items, dim, dtype),
        "indptr": strided(call, indptr),
        "indices": strided(call, indices),
        "thresholds": beta,
    }
    call.options = options
    if call.chance(0.05):
        spoil(call)
    if call.chance(0.08):
        misuse(call, users, items)
    return call, name


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def check_batch(seed: int) -> str:
    """Make one call of `user_batch_loss`; returns what came of it."""
    call, name = draw(seed)
    make, steepest, smooth = LOSSES[name]
    given, options = call.arguments, call.options
    try:
        got = kernels.user_batch_loss(**given, loss=make(), **options)
    except ArgumentError:
        assert call.wrong or call.spoilt, f"seed {seed}: refused"
        return "refused"
    assert not call.wrong, f"seed {seed}: {call.wrong} was accepted"
    double = {n: given[n].double() for n in ("user_vectors", "item_vectors")}
    # A threshold that was found differs by rounding; whether it is right is checked separately.
    beta = given["thresholds"] if options["k"] is None else got.thresholds
    try:
        exact = kernels.user_batch_loss(
            **double,
            indptr=given["indptr"],
            indices=given["indices"],
            thresholds=None if beta is None else beta.double(),
            loss=make().double(),
            **{**options, "k": None, "users_per_chunk": None},
        )
    except ArgumentError as error:
        raise AssertionError(f"seed {seed}: accepted, but in float64 {error}") from error
    if call.spoilt:  # thresholds that the loss does not use
        assert not make().needs.threshold, f"seed {seed}: accepted what is not finite"
        assert got.value.isclose(exact.value.to(got.value.dtype), rtol=0.1, atol=0.1), f"seed {seed}"
        return "not used"
    items = F.normalize(double["item_vectors"]) if options["normalize_items"] else double["item_vectors"]
    lengths = (largest(double["user_vectors"].norm(dim=1)), largest(items.norm(dim=1)))
    dtype, dim = given["user_vectors"].dtype, items.shape[1]
    half = options["bfloat16"] or dtype in (torch.float16, torch.bfloat16)
    rounding = {torch.float64: 1e-12}.get(dtype, 2.0**-7 if half else 3e-7 * dim**0.5)
    error = rounding * lengths[0] * lengths[1]  # of a score
    if options["k"] is not None:
        scores = double["user_vectors"] @ items.T
        kth = scores.topk(options["k"]).values[:, -1]
        assert largest(got.thresholds - kth) <= error + 1e-6, f"seed {seed}: thresholds"
    total = len(given["indices"]) if options["reduction"] == "sum" else 1
    size = steepest * (1 + lengths[0] * lengths[1])  # of one positive's value, but for log I
    value = total * (4 * steepest * error + (2.0**-7 if half else 1e-5) * (1 + size))
    assert abs(float(got.value) - float(exact.value)) <= value, f"seed {seed}: value of {name}"
    # A score within its rounding error of the hinge may be counted or not.
    hinge = 0.0 if smooth else (total if half else 3 * total / max(1, len(items) - 1))
    relative = 2 * np.expm1(min(5.0, 4 * steepest * error)) + (2.0**-5 if half else 2e-5)
    for side, length in (("user_gradient", lengths[1]), ("item_gradient", lengths[0])):
        found, want = getattr(got, side).double(), getattr(exact, side)
        assert found.shape == want.shape
        if side == "item_gradient" and options["normalize_items"]:
            length = length / max(1e-12, float(double["item_vectors"].norm(dim=1).min()))
        allowed = relative * (largest(want) + total * length) + hinge * length
        # 65,504 is the largest number of float16
        finite = found.isfinite() | (want.abs() < 60_000 if dtype == torch.float16 else True)
        assert largest((found - want)[finite]) <= allowed, f"seed {seed}: {side} of {name}"
    assert set(got.parameter_gradients) == set(exact.parameter_gradients), f"seed {seed}"
    return "agrees"


def check_kth(seed: int) -> str:
    call = Call(np.random.default_rng(seed))
    users, items, dim = sizes(call)
    left, right = (table(call, rows, dim, torch.float32) for rows in (users, items))
    k = int(call.rng.integers(0, items + 2))
    try:
        got = kernels.kth_scores(left, right, k, users_per_chunk=call.pick(None, 1, 40))
    except ArgumentError:
        assert not 1 <= k <= items, f"seed {seed}: refused"
        return "refused"
    want = (left.double() @ right.double().T).topk(k).values[:, -1]
    assert largest(got.double() - want) <= 1e-5 * max(1.0, largest(want)), f"seed {seed}: K-th scores"
    return "agrees"


def check_least_squares(seed: int) -> str:
    call = Call(np.random.default_rng(seed))
    rows, columns, dim = sizes(call)
    indptr, indices = positives(call, rows, columns)
    fixed = strided(call, torch.from_numpy(call.rng.standard_normal((columns, dim))).float())
    gram = fixed.T @ fixed + 10 * torch.eye(dim)
    start = torch.from_numpy(call.rng.standard_normal((rows, dim))).float() * 0.01
    outside = call.chance(0.1) and len(indices) > 0
    given = (indptr, indices + columns if outside else indices, fixed, gram)
    found = start.clone()
    try:
        least_squares.solve_rows_(found, *given, weight=4.0, steps=2)
    except (ArgumentError, IndexError):
        assert outside, f"seed {seed}: refused"
        return "refused"
    assert not outside, f"seed {seed}: accepted"
    want = start.double()
    double = (t.double() if t.is_floating_point() else t.long() for t in given)
    least_squares._solve_in_torch_(want, *double, weight=4.0, steps=2)
    assert largest(found.double() - want) <= 1e-3 * max(1.0, largest(want)), f"seed {seed}: least squares"
    return "agrees"


def check_rows(seed: int) -> str:
    """Distinct rows, and Adam for them, against torch."""
    call = Call(np.random.default_rng(seed))
    count, rows, dim = sizes(call)
    drawn = torch.from_numpy(call.rng.integers(0, rows, count))
    distinct, positions = vectors.distinct_rows(drawn, rows)
    assert torch.equal(distinct, drawn.unique()), f"seed {seed}: distinct rows"
    assert torch.equal(distinct[positions], drawn), f"seed {seed}: positions"
    tables = [torch.from_numpy(call.rng.standard_normal((rows, dim))).float().abs() for _ in range(3)]
    gradient = torch.from_numpy(call.rng.standard_normal((len(distinct), dim)))
    step, decay = int(call.rng.integers(1, 50)), call.pick(0.0, 0.1)
    want = [table.double() for table in tables]
    row_adam_(want[0], distinct, gradient, *want[1:], step=step, lr=0.1, weight_decay=decay)
    options = {"step": step, "lr": 0.1, "weight_decay": decay}
    if core.available():
        core.adam_rows_(
            tables[0], distinct, gradient.float(), *tables[1:], betas=(0.9, 0.999), eps=1e-8, **options
        )
    else:
        row_adam_(tables[0], distinct, gradient.float(), *tables[1:], **options)
    for got, exact in zip(tables, want, strict=True):
        assert largest(got.double() - exact) <= 1e-5 * max(1.0, largest(exact)), f"seed {seed}: Adam"
    return "agrees"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_calls(block: int, use: Callable[..., None]) -> None:
    outcomes = {"agrees": 0, "refused": 0, "not used": 0}
    for seed in range(SEED + block, SEED + CALLS, BLOCKS):
        rng = np.random.default_rng([seed, 1])
        torch.set_num_threads(int(rng.integers(1, 4)))
        if core.levels():
            use(str(rng.choice(core.levels())))
        check = rng.choice(
            [check_batch, check_kth, check_least_squares, check_rows], p=[0.75, 0.1, 0.1, 0.05]
        )
        outcomes[check(seed)] += 1
    print(outcomes)
    assert outcomes["agrees"] > 0.6 * sum(outcomes.values())
