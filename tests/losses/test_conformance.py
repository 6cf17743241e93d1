"""What every loss must do, whichever it is."""

from __future__ import annotations

import inspect

import pytest
import torch

from talos import losses, registry
from talos.errors import ArgumentError


def gradients(loss, call, pos, neg, beta, mask=None):
    pos, neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    value = call(loss, pos, neg, beta, mask)
    value.sum().backward()
    zero = lambda x: torch.zeros_like(x) if x.grad is None else x.grad  # noqa: E731
    return value.detach(), zero(pos), zero(neg)


def test_all_have_a_case(all_cases):
    assert {case.cls for case in all_cases} == {
        registry.resolve("loss", name) for name in registry.names("loss")
    }
    eleven = ["aatp", "advinfonce", "bpr", "bsl", "llpauc", "psl", "rs@k", "sl", "sl@k", "smoothi@k", "talos"]
    assert set(eleven) <= set(registry.names("loss"))


def test_one_value_per_row_unreduced(case, scores, call):
    pos, neg, beta = scores(dtype=torch.float32)
    value = call(case.build(), pos, neg, beta)
    assert value.shape == pos.shape
    assert value.dtype == torch.float32


def test_rows_do_not_mix(case, scores, call):
    pos, neg, beta = scores()
    loss = case.build()
    whole = call(loss, pos, neg, beta)
    moved = pos.clone()
    moved[0] += 0.1
    assert torch.equal(call(loss, moved, neg, beta)[1:], whole[1:])


def test_order_of_negatives_does_not_matter(case, scores, call):
    loss = case.build()
    if loss.needs.ids:
        pytest.skip("the ids would have to move along")
    pos, neg, beta = scores()
    shuffled = neg[:, torch.randperm(neg.shape[1], generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(call(loss, pos, shuffled, beta), call(loss, pos, neg, beta))


def test_masked_is_as_if_not_there(case, scores, call):
    pos, neg, beta = scores()
    loss = case.build()
    mask = torch.zeros_like(neg, dtype=torch.bool)
    mask[:, 5:] = True
    spoilt = neg.clone()
    spoilt[:, 5:] = 77.0
    if loss.needs.ids:
        ids = {"users": torch.arange(6), "items": torch.arange(54).reshape(6, 9)}
        masked = loss(pos, spoilt, mask=mask, **ids)
        short = loss(pos, neg[:, :5], users=ids["users"], items=ids["items"][:, :5])
    else:
        masked, short = call(loss, pos, spoilt, beta, mask), call(loss, pos, neg[:, :5], beta)
    torch.testing.assert_close(masked, short)
    assert torch.equal(gradients(loss, call, pos, spoilt, beta, mask)[2][:, 5:], torch.zeros(6, 4).double())


def test_everything_masked_leaves_the_positive_part(case, scores, call):
    pos, neg, beta = scores()
    mask = torch.zeros_like(neg, dtype=torch.bool)
    mask[2] = True
    loss = case.build()
    value, dpos, dneg = gradients(loss, call, pos, neg, beta, mask)
    assert torch.isfinite(value).all()
    assert torch.isfinite(dpos).all()
    assert torch.equal(dneg[2], torch.zeros_like(dneg[2]))
    if loss.needs.user_separable and loss.phi.reduction != "constant":
        alone, _ = loss.positive_part(pos, beta if loss.needs.threshold else None)
        torch.testing.assert_close(value[2], alone[2].detach())


def test_empty_batch(case, call):
    pos, neg = torch.zeros(0, requires_grad=True), torch.zeros(0, 4, requires_grad=True)
    value = call(case.build(), pos, neg, torch.zeros(0))
    assert value.shape == (0,)
    losses.reduce_per_positive(value).backward()


def test_gradient_is_that_of_the_value(case, scores, call):
    if not case.exact_gradient:
        pytest.skip("part of it is a constant for the gradient by definition")
    loss = case.build().double()
    pos, neg, beta = scores(rows=3, columns=4)
    mask = torch.zeros_like(neg, dtype=torch.bool)
    mask[1, 2] = True
    inputs = (pos.requires_grad_(), neg.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: call(loss, p, n, beta), inputs)
    assert torch.autograd.gradcheck(lambda p, n: call(loss, p, n, beta, mask), inputs)


def test_better_scores_never_cost_more(case, scores, call):
    """Up with the positive or down with a negative: the slope never has the wrong sign."""
    if case.cls is losses.SmoothI:
        pytest.skip("its detached factors may turn a slope round")
    _, dpos, dneg = gradients(case.build(), call, *scores())
    assert (dpos <= 0).all() == case.monotone
    assert (dneg >= 0).all()


def test_threshold_is_a_constant(case, scores, call):
    loss = case.build()
    if not loss.needs.threshold:
        pytest.skip("has none")
    pos, neg, beta = scores()
    beta = beta.requires_grad_()
    call(loss, pos.requires_grad_(), neg, beta).sum().backward()
    assert beta.grad is None


def test_arguments_stay_as_they_are(case, scores, call):
    given = scores(dtype=torch.float32)
    before = [x.clone() for x in given]
    mask = torch.zeros_like(given[1], dtype=torch.bool)
    mask[0, 0] = True
    gradients(case.build(), call, *given, mask)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_value_does_not_depend_on_grad_mode(case, scores, call):
    pos, neg, beta = scores()
    loss = case.build()
    with torch.no_grad():
        still = call(loss, pos, neg, beta)
    torch.testing.assert_close(call(loss, pos.requires_grad_(), neg.requires_grad_(), beta), still)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tau", [1e-3, 0.1, 10.0])
def test_extremes_are_finite(case, call, dtype, tau):
    levels = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4], dtype=dtype)
    pos, neg, beta = (x.flatten() for x in torch.meshgrid(levels, levels, levels, indexing="ij"))
    loss = case.with_temperature(tau)
    for columns in (neg[:, None], torch.stack([neg, beta, pos, -neg, neg], dim=-1)):
        value, dpos, dneg = gradients(loss, call, pos, columns, beta)
        for name, result in (("value", value), ("dpos", dpos), ("dneg", dneg)):
            assert torch.isfinite(result).all(), name


def test_a_million_negatives(case, call):
    loss = case.build()
    if loss.needs.ids:
        loss = case.build(num_items=200, dim=2)
    neg = torch.linspace(-1, 1, 10**6).unsqueeze(0)
    value, dpos, dneg = gradients(loss, call, torch.tensor([0.5]), neg, torch.tensor([0.9]))
    assert torch.isfinite(value).all()
    assert torch.isfinite(dpos).all()
    assert torch.isfinite(dneg).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.update(pos=a["pos"][:, None]), "pos"),
        (lambda a: a.update(pos=a["pos"].long()), "pos"),
        (lambda a: a.update(neg=a["neg"][0]), "neg"),
        (lambda a: a.update(neg=a["neg"][:3]), "neg"),
        (lambda a: a.update(neg=a["neg"][:, :0]), "neg"),
        (lambda a: a.update(mask=torch.zeros(2, 2, dtype=torch.bool)), "mask"),
        (lambda a: a.update(mask=torch.zeros(6, 9)), "mask"),
        (lambda a: a["pos"].__setitem__(3, float("nan")), "pos"),
        (lambda a: a["neg"].__setitem__((3, 2), float("nan")), "neg"),
    ],
)
def test_wrong_arguments_are_named(case, scores, call, change, named):
    pos, neg, beta = scores(dtype=torch.float32)
    arguments = {"pos": pos, "neg": neg, "threshold": beta, "mask": None}
    change(arguments)
    if case.label.endswith("no-denominator") and named == "neg" and torch.isnan(arguments["neg"]).any():
        pytest.skip("never looks at the negatives")
    with pytest.raises(ArgumentError, match=f"^{named}: .*expected"):
        call(case.build(), **arguments)


def test_missing_or_wrong_threshold(case, scores):
    loss = case.build()
    if not loss.needs.threshold:
        pytest.skip("has none")
    pos, neg, beta = scores()
    for given in (None, beta[:3], beta[:, None]):
        with pytest.raises(ArgumentError, match=r"^threshold: .*expected"):
            loss(pos, neg, threshold=given)
    with pytest.raises(ArgumentError, match=r"^threshold: has nan"):
        loss(pos, neg, threshold=beta * float("nan"))


def test_missing_ids(case, scores):
    loss = case.build()
    if not loss.needs.ids:
        pytest.skip("needs none")
    pos, neg, _ = scores()
    with pytest.raises(ArgumentError, match=r"^users: is missing"):
        loss(pos, neg)
    with pytest.raises(ArgumentError, match=r"^items: has shape"):
        loss(pos, neg, users=torch.arange(6), items=torch.arange(6))


@pytest.mark.parametrize("bad", [0, -0.1, float("nan"), float("inf"), "hot"])
def test_temperatures_must_be_positive(case, bad):
    for name in set(inspect.signature(case.cls).parameters) & {
        "tau",
        "tau1",
        "tau2",
        "tau_w",
        "alpha",
        "delta",
    }:
        with pytest.raises(ArgumentError, match=f"^{name}: got"):
            case.build(**{name: bad})


@pytest.mark.parametrize("bad", [0, -1, 2.5])
def test_k_must_be_a_positive_integer(case, bad):
    if "k" in inspect.signature(case.cls).parameters:
        with pytest.raises(ArgumentError, match=r"^k: got"):
            case.build(k=bad)


def test_arguments_are_keyword_only(case):
    kinds = {p.kind for p in inspect.signature(case.cls).parameters.values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY}


def test_needs_describe_the_parameters(case):
    loss = case.build()
    assert loss.needs.adversary == bool(loss.adversaries()) == bool(list(loss.parameters()))
    named = [name for group in loss.adversaries() for name in group.parameters]
    assert sorted(named) == sorted(name for name, _ in loss.named_parameters())
    assert (loss.needs.default_threshold is not None) == loss.needs.threshold


def plain(params):
    return tuple(x.item() if isinstance(x, torch.Tensor) else x for x in params)


def test_phi_is_plain_data(case, scores):
    loss = case.build()
    if not loss.needs.user_separable:
        pytest.skip("has none")
    phi = loss.phi
    assert phi.reduction in ("log-sum", "mean", "constant")
    assert len(phi.params) <= 6
    assert type(phi.scale) is float
    again = losses.Phi.of(phi.kind, plain(phi.params), phi.scale)
    assert type(again) is type(phi)
    assert (again.params, again.scale) == (plain(phi.params), phi.scale)
    assert all(type(x) is float for x in again.params)
    _, neg, beta = scores(dtype=torch.float32)
    torch.testing.assert_close(
        again.aggregate(neg, beta[:, None], None), phi.aggregate(neg, beta[:, None], None).detach()
    )


def test_phi_of_pairs_is_plain_data(case):
    loss = case.build()
    assert not loss.needs.pairwise or isinstance(loss, losses.PairwiseLoss)
    if not isinstance(loss, losses.PairwiseLoss):
        pytest.skip("has none")
    phi = loss.phi
    assert phi.reduction in ("log-sum", "mean", "sum")
    assert len(phi.params) <= 5
    assert all(type(x) is float for x in phi.params)
    assert losses.PairPhi.of(phi.kind, phi.params) == phi


def test_unknown_kinds_are_refused():
    for family, kind in ((losses.Phi, "softplus-pairs"), (losses.PairPhi, "exp"), (losses.Phi, "expp")):
        with pytest.raises(ArgumentError, match=f"^kind: got '{kind}'; expected one of"):
            family.of(kind, (1.0,))


def test_the_weight_of_the_sum_is_constant_where_declared(case, scores):
    loss = case.build().double()
    if not loss.needs.user_separable:
        pytest.skip("has none")
    pos, _, beta = scores()
    _, c = loss.positive_part(pos.requires_grad_(), beta if loss.needs.threshold else None)
    assert c.requires_grad == (not getattr(loss, "detach_weight", True))
    if loss.constant_weight is None:
        assert len(c.unique()) == len(c)
    else:
        assert torch.equal(c, torch.full_like(c, loss.constant_weight))


def test_values_of_phi_add_up_to_the_sum(case, scores):
    """`aggregate` is the reduction of `value`, masked or weighted; its gradient that of autograd."""
    loss = case.build().double()
    if not loss.needs.user_separable or loss.phi.reduction == "constant":
        pytest.skip("has no sum")
    phi = loss.phi
    _, neg, beta = scores()
    neg, column = neg.requires_grad_(), beta[:, None]
    mask = torch.zeros_like(neg, dtype=torch.bool)
    mask[:, 5:] = True
    mask[2] = True
    count = torch.arange(1, neg.shape[1] + 1)
    kept = torch.tensor([0, 1, 3, 4, 5])
    repeated = torch.repeat_interleave(torch.arange(neg.shape[1]), count)

    def naive(columns):
        values = phi.value(neg[:, columns], column)
        log_sum = phi.reduction == "log-sum"
        return phi.scale * (values.exp().sum(dim=1).log() if log_sum else values.mean(dim=1))

    pairs = [
        (phi.aggregate(neg, column, None), naive(slice(None))),
        (phi.aggregate(neg, column, mask)[kept], naive(slice(5))[kept]),
        (phi.aggregate(neg, column, None, count.double()), naive(repeated)),
        (phi.aggregate(neg, column, mask, count.double())[kept], naive(repeated[:15])[kept]),
    ]
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        got_slope, want_slope = (torch.autograd.grad(x.sum(), neg, retain_graph=True)[0] for x in (got, want))
        torch.testing.assert_close(got_slope, want_slope, rtol=1e-10, atol=1e-12)
    for weights in (None, count.double()):
        assert phi.aggregate(neg, column, mask, weights)[2] == 0


def test_no_threshold_stands_for_zero(case, scores):
    loss = case.build().double()
    if not loss.needs.user_separable:
        pytest.skip("has none")
    pos, neg, beta = scores()
    zero = torch.zeros_like(beta)
    assert torch.equal(loss.phi.value(neg, None), loss.phi.value(neg, zero[:, None]))
    for none, given in zip(loss.positive_part(pos, None), loss.positive_part(pos, zero), strict=True):
        assert torch.equal(none, given)


def test_pairs_add_up_to_the_loss(case, scores, call):
    loss = case.build().double()
    if not isinstance(loss, losses.PairwiseLoss):
        pytest.skip("has no pairs")
    phi = loss.phi
    pos, neg, _ = scores()
    for spread in (1.0, 20.0):  # the differences of cosines, and of products
        values = phi.value(spread * (neg - pos[:, None]))
        reduce = {"log-sum": lambda x: x.exp().sum(dim=1).log(), "sum": lambda x: x.sum(dim=1)}
        total = reduce.get(phi.reduction, lambda x: x.mean(dim=1))(values)
        torch.testing.assert_close(phi.aggregate(spread * (neg - pos[:, None]), None), total)
    value = phi.outer(phi.aggregate(neg - pos[:, None], None))
    torch.testing.assert_close(call(loss, pos, neg, pos), value)
    without = phi.outer(phi.aggregate(neg - pos[:, None], torch.ones_like(neg, dtype=torch.bool)))
    assert torch.equal(without, phi.outer(torch.zeros_like(pos)))


def test_learnt_parameters_have_the_gradient_of_the_value(case, scores, call):
    loss = case.build().double()
    if not loss.needs.adversary:
        pytest.skip("learns none")
    pos, neg, _ = scores(rows=3, columns=4)
    extra = {}
    if loss.needs.ids:
        loss = case.build(num_users=3, num_items=12, dim=2).double()
        extra = {"users": torch.arange(3), "items": torch.arange(12).reshape(3, 4)}
    names, parameters = zip(*loss.named_parameters(), strict=True)

    def value(*given):
        return torch.func.functional_call(loss, dict(zip(names, given, strict=True)), (pos, neg), extra)

    assert torch.autograd.gradcheck(value, parameters)
