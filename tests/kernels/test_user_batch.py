"""The torch passes against the losses themselves, by autograd on the full matrix of scores."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from talos import kernels, losses
from talos.errors import ArgumentError
from talos.kernels import batch, torch_passes
from talos.kernels.csr import CSR

SEPARABLE = {
    "talos": lambda: losses.Talos(tau=0.1),
    "talos-balanced": lambda: losses.Talos(tau=0.1, user_power=0.5, positive_power=0.3, negative_weight=1.2),
    "sl-balanced": lambda: losses.Softmax(tau=0.2, user_power=0.25, positive_power=1.0, negative_weight=0.8),
    "sl@k-balanced": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5, user_power=0.0, negative_weight=1.2),
    "talos-inner": lambda: losses.Talos(tau=0.2, temperature="inner"),
    "talos-no-quantile": lambda: losses.Talos(tau=0.2, quantile=False),
    "talos-no-denominator": lambda: losses.Talos(tau=0.1, denominator=False, k=3),
    "sl": lambda: losses.Softmax(tau=0.2),
    "bsl": lambda: losses.BilateralSoftmax(tau1=0.1, tau2=0.3),
    "sl@k": lambda: losses.SoftmaxAtK(tau=0.2, tau_w=0.5),
    "sl@k-through": lambda: losses.SoftmaxAtK(
        tau=0.2, tau_w=0.5, detach_weight=False, offset=-1.5, negative_weight=0.9
    ),
    "aatp": lambda: losses.AATP(),
    "llpauc": lambda: losses.LLPAUC(alpha=0.5, beta=0.1),
}


PAIRWISE = {
    "bpr": lambda: losses.BPR(),
    "bpr-balanced": lambda: losses.BPR(user_power=0.5),
    "psl": lambda: losses.PairwiseSoftmax(tau=0.1),
    "psl-balanced": lambda: losses.PairwiseSoftmax(tau=0.3, user_power=0.25),
    "rs@k": lambda: losses.RecallSurrogate(k=3, tau1=0.2, tau2=2.0),
    "rs@k-balanced": lambda: losses.RecallSurrogate(k=2, tau1=0.1, tau2=1.0, user_power=0.0),
}


@pytest.fixture(params=[*SEPARABLE, *PAIRWISE])
def loss(request: pytest.FixtureRequest) -> losses.Loss:
    return (SEPARABLE | PAIRWISE)[request.param]().double()


@pytest.fixture(params=SEPARABLE)
def separable(request: pytest.FixtureRequest) -> losses.UserSeparableLoss:
    return SEPARABLE[request.param]().double()


@pytest.fixture(params=PAIRWISE)
def pairwise(request: pytest.FixtureRequest) -> losses.PairwiseLoss:
    return PAIRWISE[request.param]().double()


class Problem:
    """A random batch: the third user has no positives, the fourth has all items, the last has one."""

    def __init__(self, users: int = 7, items: int = 23, dim: int = 5, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
        self.users = torch.nn.functional.normalize(draw(users, dim), dim=-1).requires_grad_()
        self.items = torch.nn.functional.normalize(draw(items, dim), dim=-1).requires_grad_()
        self.beta = draw(users) / 4
        belongs = torch.rand(users, items, generator=rng) < 0.2
        belongs[2] = False
        belongs[3] = True
        belongs[-1] = torch.arange(items) == 4
        self.belongs = belongs
        self.indptr = torch.cat([torch.zeros(1, dtype=torch.long), belongs.sum(1).cumsum(0)])
        self.indices = belongs.nonzero()[:, 1]

    def thresholds(self, loss):
        return self.beta if loss.needs.threshold else None

    def reference(self, loss, reduction, candidates=None):
        """Value by `Loss.forward`, one row per positive, on (a sample of) all items."""
        owner = self.belongs.nonzero()[:, 0]
        scores = self.users @ self.items.T
        columns = torch.arange(len(self.items)) if candidates is None else candidates
        neg = scores[owner][:, columns]
        mask = self.belongs[owner][:, columns]
        beta = self.beta[owner] if loss.needs.threshold else None
        values = loss(scores[self.belongs], neg, threshold=beta, mask=mask, users=owner)
        count = self.belongs.sum(1).double()[owner]
        weights = count ** (loss.user_power - (2 if reduction == "users" else 1))
        total = 1 if reduction == "sum" else weights.sum()
        return (weights * values).sum() / total, values


@pytest.mark.parametrize("reduction", ["positives", "users", "sum"])
@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
def test_equals_the_loss_under_autograd(loss, reduction, chunk):
    problem = Problem()
    want, _ = problem.reference(loss, reduction)
    inputs = [problem.users, problem.items, *loss.parameters()]
    gradients = torch.autograd.grad(want, inputs, allow_unused=True)
    found = kernels.user_batch_loss(
        problem.users,
        problem.items,
        problem.indptr,
        problem.indices,
        problem.thresholds(loss),
        loss,
        reduction=reduction,
        users_per_chunk=chunk,
    )
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(found.value, want.detach(), **close)
    torch.testing.assert_close(found.user_gradient, gradients[0], **close)
    torch.testing.assert_close(found.item_gradient, gradients[1], **close)
    for (name, _), gradient in zip(loss.named_parameters(), gradients[2:], strict=True):
        torch.testing.assert_close(found.parameter_gradients[name], gradient, **close)


@pytest.mark.parametrize("reduction", ["positives", "users", "sum"])
def test_weights_of_positives(separable, reduction):
    """A positive of weight w counts like w positives: in n, in means and in the power mean."""
    problem, loss = Problem(), separable
    rng = torch.Generator().manual_seed(1)
    weights = torch.rand(len(problem.indices), generator=rng, dtype=torch.float64) + 0.5
    owner, scores = problem.belongs.nonzero()[:, 0], problem.users @ problem.items.T
    beta = problem.beta[owner] if loss.needs.threshold else None
    a, c = loss.positive_part(scores[problem.belongs], beta)
    part = loss.phi.aggregate(
        scores, problem.beta.unsqueeze(-1) if loss.needs.threshold else None, problem.belongs
    )
    want, masses = 0.0, []
    for user in range(7):
        own = owner == user
        if not own.any():
            continue
        w, mass, rho = weights[own], weights[own].sum(), loss.positive_power
        mean = (w * a[own]).sum() / mass
        if rho:
            mean = -torch.log((w * torch.exp(-rho * a[own])).sum() / mass) / rho
        of_user = mean + loss.negative_weight * (w * c[own]).sum() / mass * part[user]
        masses.append(mass ** (loss.user_power - (1 if reduction == "users" else 0)))
        want = want + masses[-1] * of_user
    want = want / (1 if reduction == "sum" else sum(masses))
    gradients = torch.autograd.grad(want, [problem.users, problem.items])
    shuffled = torch.cat(
        [(owner == user).nonzero().flatten().flip(0) for user in range(7)]
    )  # in any order within a user
    found = kernels.user_batch_loss(
        problem.users,
        problem.items,
        problem.indptr,
        problem.indices[shuffled],
        problem.thresholds(loss),
        loss,
        reduction=reduction,
        positive_weights=weights[shuffled],
    )
    torch.testing.assert_close(found.value, want.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.user_gradient, gradients[0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.item_gradient, gradients[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("reduction", ["positives", "users", "sum"])
def test_weights_of_positives_of_pairwise_losses(pairwise, reduction):
    """Likewise; the sum over negatives of a positive does not depend on its weight."""
    problem, owner = Problem(), Problem().belongs.nonzero()[:, 0]
    rng = torch.Generator().manual_seed(1)
    weights = torch.rand(len(problem.indices), generator=rng, dtype=torch.float64) + 0.5
    _, values = problem.reference(pairwise, reduction)
    mass = torch.zeros(7).double().index_add(0, owner, weights)
    shares = weights * mass[owner] ** (pairwise.user_power - (2 if reduction == "users" else 1))
    want = (shares * values).sum() / (1 if reduction == "sum" else shares.sum())
    gradients = torch.autograd.grad(want, [problem.users, problem.items])
    shuffled = torch.cat([(owner == user).nonzero().flatten().flip(0) for user in range(7)])
    found = kernels.user_batch_loss(
        problem.users,
        problem.items,
        problem.indptr,
        problem.indices[shuffled],
        None,
        pairwise,
        reduction=reduction,
        positive_weights=weights[shuffled],
    )
    torch.testing.assert_close(found.value, want.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.user_gradient, gradients[0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.item_gradient, gradients[1], rtol=1e-9, atol=1e-11)


def test_pairs_with_the_positives_themselves(pairwise):
    """Where positives stay among the negatives, a positive is also compared with itself, which has no gradient."""
    problem = Problem()
    owner, scores = problem.belongs.nonzero()[:, 0], problem.users @ problem.items.T
    values = pairwise(scores[problem.belongs], scores[owner])
    weights = problem.belongs.sum(1).double()[owner] ** (pairwise.user_power - 1)
    want = (weights * values).sum() / weights.sum()
    gradients = torch.autograd.grad(want, [problem.users, problem.items])
    given = (problem.users, problem.items, problem.indptr, problem.indices, None, pairwise)
    found = kernels.user_batch_loss(*given, excluded=None)
    torch.testing.assert_close(found.value, want.detach())
    torch.testing.assert_close(found.user_gradient, gradients[0])
    torch.testing.assert_close(found.item_gradient, gradients[1])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", ["users", "items"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_that_are_not_finite_are_refused_by_pairwise_losses(pairwise, number, side, dtype):
    """Infinite scores can have a finite loss: σ(-∞) is 0. In float32 this is the core, where it is built."""
    problem, loss = Problem(), pairwise.to(dtype)
    vectors = {name: getattr(problem, name).detach().to(dtype).clone() for name in ("users", "items")}
    vectors[side][0, 0] = number
    argument = "user_vectors" if side == "users" else "item_vectors"
    users, indptr = vectors["users"][:2], problem.indptr[:3]  # both have positives and negatives
    with pytest.raises(ArgumentError, match=f"^{argument}: is not finite"):
        kernels.user_batch_loss(
            users, vectors["items"], indptr, problem.indices[: int(indptr[-1])], None, loss
        )


def test_the_kth_score_beside_a_pairwise_loss(pairwise):
    problem = Problem()
    given = (problem.users, problem.items, problem.indptr, problem.indices)
    found = kernels.user_batch_loss(*given, None, pairwise, k=3)
    torch.testing.assert_close(found.thresholds, kernels.kth_scores(problem.users, problem.items, 3))
    assert torch.equal(found.value, kernels.user_batch_loss(*given, None, pairwise).value)


def test_a_pairwise_loss_that_is_not_built_over_all_items_is_refused():
    problem, loss = Problem(), losses.PairwiseSoftmax(activation="atan")
    with pytest.raises(ArgumentError, match=r"^loss: .*needs\.pairwise"):
        kernels.user_batch_loss(problem.users, problem.items, problem.indptr, problem.indices, None, loss)


@pytest.mark.parametrize("weights", [torch.ones(3), torch.zeros(2), torch.tensor([1.0, float("nan")])])
def test_weights_of_positives_that_cannot_be(weights):
    users, items = torch.eye(2), torch.eye(3)[:, :2]
    with pytest.raises(ArgumentError, match="positive_weights"):
        kernels.user_batch_loss(
            users,
            items,
            torch.tensor([0, 1, 2]),
            torch.tensor([0, 1]),
            None,
            losses.Softmax(),
            positive_weights=weights,
        )


def test_a_shared_sample_with_repetitions(loss):
    problem = Problem()
    sample = torch.tensor([4, 4, 0, 9, 22, 9, 9, 17])
    want, _ = problem.reference(loss, "positives", sample)
    gradients = torch.autograd.grad(want, [problem.users, problem.items])
    found = kernels.user_batch_loss(
        problem.users,
        problem.items,
        problem.indptr,
        problem.indices,
        problem.thresholds(loss),
        loss,
        item_ids=sample,
        users_per_chunk=2,
    )
    torch.testing.assert_close(found.value, want.detach())
    torch.testing.assert_close(found.user_gradient, gradients[0])
    torch.testing.assert_close(found.item_gradient, gradients[1])


def test_weights_count_like_repetitions(separable):
    problem, loss = Problem(), separable
    call = (problem.users, problem.items, problem.indptr, problem.indices, problem.thresholds(loss), loss)
    ids = torch.tensor([4, 0, 9])
    repeated = kernels.user_batch_loss(*call, item_ids=torch.tensor([4, 4, 0, 9, 9, 9]))
    weighted = kernels.user_batch_loss(*call, item_ids=ids, weights=torch.tensor([2.0, 1.0, 3.0]))
    for name in ("value", "user_gradient", "item_gradient"):
        torch.testing.assert_close(getattr(repeated, name), getattr(weighted, name))
    for name, gradient in repeated.parameter_gradients.items():
        torch.testing.assert_close(gradient, weighted.parameter_gradients[name])


def test_weights_are_refused_by_pairwise_losses(pairwise):
    problem = Problem()
    call = (problem.users, problem.items, problem.indptr, problem.indices, None, pairwise)
    with pytest.raises(
        ArgumentError, match=r"^weights: is given; expected nothing: .* is not user-separable"
    ):
        kernels.user_batch_loss(*call, weights=torch.ones(23).double())


def test_a_user_without_negatives_among_weighted_items(separable):
    """Whether there are any is not decided by a difference of sums of weights, which rounding keeps from being 0."""
    problem = Problem(users=12, items=40, seed=5)
    weights = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    beta = problem.thresholds(separable)
    # the fourth user alone, whose positives are all items
    call = (problem.users[3:4], problem.items, torch.tensor([0, 40]), torch.arange(40))
    call = (*call, None if beta is None else beta[3:4], separable)
    weighted, bare = kernels.user_batch_loss(*call, weights=weights), kernels.user_batch_loss(*call)
    for name in ("value", "user_gradient", "item_gradient"):
        torch.testing.assert_close(getattr(weighted, name), getattr(bare, name))


def test_thresholds_are_ignored_where_not_needed():
    problem = Problem()
    call = (problem.users, problem.items, problem.indptr, problem.indices)
    loss = losses.Talos(tau=0.2, quantile=False)
    given, without = (kernels.user_batch_loss(*call, beta, loss) for beta in (problem.beta, None))
    assert torch.equal(given.value, without.value)


def test_positives_may_stay_among_the_negatives():
    problem = Problem()
    loss = losses.Softmax(tau=0.2)
    found = kernels.user_batch_loss(
        problem.users, problem.items, problem.indptr, problem.indices, None, loss, excluded=None
    )
    scores, rows = (problem.users @ problem.items.T).detach() / 0.2, problem.belongs.nonzero()[:, 0]
    want = torch.logsumexp(scores, dim=-1)[rows] - scores[problem.belongs]
    torch.testing.assert_close(found.value, want.mean())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("sample", [None, torch.tensor([4, 4, 0, 9, 22, 9, 9, 17])], ids=["all", "sample"])
def test_other_items_than_the_positives_are_excluded(loss, dtype, k, sample):
    """Such as a sequence's earlier items: excluded items and positives need not have to do with each other."""
    problem, loss = Problem(), loss.to(dtype)
    gone = torch.rand(7, 23, generator=torch.Generator().manual_seed(1)) < 0.3
    gone[0], gone[1] = False, True
    excluded = CSR.by_row(*gone.nonzero().T, 7)
    users, items = (one.detach().to(dtype).requires_grad_() for one in (problem.users, problem.items))
    rows, columns = problem.belongs.nonzero().T
    scores = users @ items.T
    beta = scores.detach().topk(k).values[:, -1] if k else problem.beta.to(dtype)
    drawn = torch.arange(23) if sample is None else sample
    given = {"threshold": beta[rows]} if loss.needs.threshold else {}
    values = loss(
        scores[rows, columns], scores[rows][:, drawn], mask=gone[rows][:, drawn], users=rows, **given
    )
    weights = problem.belongs.sum(1).to(dtype)[rows] ** (loss.user_power - 1)
    want = (weights * values).sum() / weights.sum()
    gradients = torch.autograd.grad(want, [users, items])
    call = (users, items, problem.indptr, problem.indices, None if k else beta, loss)
    found = kernels.user_batch_loss(*call, k=k, excluded=excluded, item_ids=sample)
    close = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.value, want.detach(), **close)
    torch.testing.assert_close(found.user_gradient, gradients[0], **close)
    torch.testing.assert_close(found.item_gradient, gradients[1], **close)
    if k:
        torch.testing.assert_close(found.thresholds, beta)


def test_gradcheck(loss):
    if loss.short_name == "sl@k":
        pytest.skip("its weight is a constant for the gradient by definition")
    problem = Problem(users=5, items=6, dim=2)

    def value(users, items, *parameters):
        return kernels.differentiable_user_batch_loss(
            users, items, problem.indptr, problem.indices, problem.thresholds(loss), loss, users_per_chunk=2
        )

    assert torch.autograd.gradcheck(value, (problem.users, problem.items, *loss.parameters()))


def test_differentiable_scales_with_the_outer_gradient(loss):
    problem = Problem()
    value = kernels.differentiable_user_batch_loss(
        problem.users, problem.items, problem.indptr, problem.indices, problem.thresholds(loss), loss
    )
    (3 * value).backward()
    found = kernels.user_batch_loss(
        problem.users, problem.items, problem.indptr, problem.indices, problem.thresholds(loss), loss
    )
    torch.testing.assert_close(problem.items.grad, 3 * found.item_gradient)
    for name, parameter in loss.named_parameters():
        torch.testing.assert_close(parameter.grad, 3 * found.parameter_gradients[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions(loss, dtype):
    problem = Problem()
    loss = loss.float()
    given = [problem.users.detach().to(dtype), problem.items.detach().to(dtype)]
    rest = (problem.indptr, problem.indices, problem.thresholds(loss), loss)
    got = kernels.user_batch_loss(*given, *rest)
    want = kernels.user_batch_loss(*(x.double() for x in given), *rest)
    assert got.user_gradient.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.value.double(), want.value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.item_gradient.double(), want.item_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
def test_unnormalised_scores_are_finite(loss, scale):
    problem = Problem()
    found = kernels.user_batch_loss(
        (problem.users * scale).float(),
        (problem.items * scale).float(),
        problem.indptr,
        problem.indices,
        problem.thresholds(loss),
        loss.float(),
        users_per_chunk=4,
    )
    for name in ("value", "user_gradient", "item_gradient"):
        assert torch.isfinite(getattr(found, name)).all(), name


@pytest.mark.parametrize("loss", [losses.Talos(tau=0.1), losses.BPR(), losses.PairwiseSoftmax()], ids=str)
def test_nothing_of_size_users_by_items(loss, monkeypatch):
    """The largest tensor that comes up is far smaller than the matrix of scores."""
    users, items = 400, 3000
    rng = torch.Generator().manual_seed(0)
    u, v = torch.randn(users, 4, generator=rng), torch.randn(items, 4, generator=rng)
    indptr, indices = torch.arange(users + 1), torch.randint(0, items, (users,), generator=rng)

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.seen = max(self.seen, tensor.numel())
            return result

    # past the operator, which hides from the mode what happens inside
    in_torch = lambda *given, bfloat16, **how: torch_passes.sweep(*given, **how)  # noqa: E731
    monkeypatch.setattr(batch, "sweep", in_torch)
    monkeypatch.setenv("TALOS_KERNEL", "torch")
    with Largest() as largest:
        kernels.user_batch_loss(u, v, indptr, indices, torch.zeros(users), loss, users_per_chunk=16)
        kernels.kth_scores(u, v, 20, users_per_chunk=16)
    assert 8 * items <= largest.seen <= 16 * items


def test_kth_scores():
    problem = Problem()
    want = (problem.users @ problem.items.T).detach().sort(dim=-1, descending=True).values
    for k in (1, 3, 23):
        found = kernels.kth_scores(problem.users, problem.items, k, users_per_chunk=2)
        torch.testing.assert_close(found, want[:, k - 1])
    for k in (0, 24):
        with pytest.raises(ArgumentError, match=r"^k: got"):
            kernels.kth_scores(problem.users, problem.items, k)


@pytest.fixture(params=["torch", "auto"])
def kernel(request, monkeypatch):
    """Both kernels where the core is built."""
    monkeypatch.setenv("TALOS_KERNEL", request.param)


def small_call() -> dict:
    """Arguments of a call with two users, three items and float32."""
    return {
        "user_vectors": torch.eye(2),
        "item_vectors": torch.tensor([[0.9, 0.1], [0.2, 0.7], [0.4, 0.3]]),
        "indptr": torch.tensor([0, 1, 3]),
        "indices": torch.tensor([0, 1, 2]),
        "thresholds": torch.tensor([0.3, 0.2]),
        "loss": losses.Talos(tau=0.1),
    }


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_indices_of_every_integer_type(dtype):
    call = small_call()
    sample = torch.tensor([2, 0, 0])
    want = kernels.user_batch_loss(**call, item_ids=sample)
    for name in ("indptr", "indices"):
        call[name] = call[name].to(dtype)
    got = kernels.user_batch_loss(**call, item_ids=sample.to(dtype))
    assert torch.equal(got.item_gradient, want.item_gradient)
    torch.testing.assert_close(got.value, want.value)


@pytest.mark.usefixtures("kernel")
def test_strides_do_not_matter():
    want, call = kernels.user_batch_loss(**small_call()), small_call()
    for name, value in call.items():
        if isinstance(value, torch.Tensor):
            call[name] = torch.stack([value, value], dim=-1)[..., 0]
            assert not call[name].is_contiguous()
    got = kernels.user_batch_loss(**call)
    torch.testing.assert_close(got.item_gradient, want.item_gradient)
    torch.testing.assert_close(got.user_gradient, want.user_gradient)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([0, 1, 1])}, "indices: item 1 occurs twice for the user in row 1"),
        ({"indices": torch.tensor([0, 2, 2])}, "indices: item 2 occurs twice for the user in row 1"),
        ({"indices": torch.tensor([0, 1, 3])}, "indices: 0 to 3; expected 0 to 2"),
        ({"indices": torch.tensor([0, -1, 1])}, "indices: -1 to 1; expected 0 to 2"),
        ({"indices": torch.tensor([0.0, 1.0, 2.0])}, "indices: has shape .* torch.float32"),
        ({"indptr": torch.tensor([0, 4, 3])}, "indptr: does not ascend"),
        ({"indptr": torch.tensor([1, 2, 3])}, "indptr: does not ascend from 0"),
        ({"indptr": torch.tensor([0, 1, 4])}, "indices: has shape"),
        ({"indptr": torch.tensor([0.0, 1.0, 3.0])}, "indptr: has shape .* torch.float32"),
        ({"user_vectors": torch.eye(2).int()}, "user_vectors: is torch.strided of torch.int32"),
        ({"item_vectors": torch.zeros(3, 2).to_sparse()}, "item_vectors: is torch.sparse_coo"),
        ({"item_vectors": torch.zeros(3, 2, device="meta")}, "user_vectors: is on cpu"),
        ({"thresholds": torch.tensor([0, 1])}, "thresholds: is torch.strided of torch.int64"),
        ({"item_ids": torch.tensor([3])}, "item_ids: 3 to 3; expected 0 to 2"),
        ({"item_ids": torch.tensor([[[0]]])}, "item_ids: has shape"),
        ({"item_ids": torch.tensor([[0], [1]]), "sample_bounds": torch.tensor([0, 3])}, "sample_bounds: "),
        (
            {"excluded": CSR.of(torch.tensor([0, 1, 2]), torch.tensor([0, 3]))},
            "excluded: 0 to 3; expected 0 to 2",
        ),
        (
            {"excluded": CSR.of(torch.tensor([0, 2, 2]), torch.tensor([1, 1]))},
            "excluded: item 1 occurs twice",
        ),
        ({"excluded": CSR.of(torch.tensor([0, 1]), torch.tensor([1]))}, "indptr: has shape"),
        ({"users_per_chunk": 0}, "users_per_chunk: got 0"),
    ],
)
def test_what_could_mislead_a_kernel_is_refused(change, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        kernels.user_batch_loss(**{**small_call(), **change})


def test_empty_batch(loss):
    found = kernels.user_batch_loss(
        torch.zeros(0, 3),
        torch.zeros(4, 3),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0) if loss.needs.threshold else None,
        loss,
    )
    assert found.value.item() == 0.0
    assert not found.item_gradient.any()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"user_vectors": torch.zeros(7)}, "user_vectors"),
        ({"item_vectors": torch.zeros(23, 4)}, "item_vectors"),
        ({"indptr": torch.zeros(3, dtype=torch.long)}, "indptr"),
        ({"indices": torch.zeros(1, dtype=torch.long)}, "indices"),
        ({"thresholds": torch.zeros(3)}, "thresholds"),
        ({"thresholds": None}, "thresholds"),
        ({"weights": torch.zeros(3)}, "weights"),
        ({"loss": losses.Talos(tau=0.1, form="full")}, "loss"),
        ({"item_vectors": torch.full((23, 5), float("nan"), dtype=torch.float64)}, "item_vectors"),
        ({"thresholds": torch.full((7,), float("nan"), dtype=torch.float64)}, "thresholds"),
    ],
)
def test_wrong_arguments_are_named(change, named):
    problem = Problem()
    call = {
        "user_vectors": problem.users,
        "item_vectors": problem.items,
        "indptr": problem.indptr,
        "indices": problem.indices,
        "thresholds": problem.beta,
        "loss": losses.Talos(tau=0.1),
    }
    with pytest.raises(ArgumentError, match=f"^{named}: .*expected"):
        kernels.user_batch_loss(**{**call, **change})
