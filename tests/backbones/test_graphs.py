"""Propagation, LightGCN and XSimGCL against naive computations with dense matrices and loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from talos.backbones import BipartiteGraph, LightGCN, XSimGCL, info_nce, perturb_, propagate
from talos.backbones import xsimgcl as xsimgcl_module
from talos.data.interactions import Interactions
from talos.errors import ArgumentError

Seeded = Callable[[int], torch.Generator]
Vectors = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def tables(graph: BipartiteGraph, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    sizes = (graph.num_users, graph.num_items)
    return tuple(torch.randn(n, 3, generator=rng, dtype=torch.float64).requires_grad_() for n in sizes)


def test_the_graph_is_normalised(graph: BipartiteGraph, normalised: torch.Tensor) -> None:
    torch.testing.assert_close(graph.dense().double(), normalised)


def test_memory_is_linear_in_edges(graph: BipartiteGraph) -> None:
    size = sum(buffer.nbytes for buffer in graph.buffers())
    assert size <= 16 * graph.num_edges + 4 * (graph.num_users + graph.num_items + 2)


def test_propagation(graph: BipartiteGraph, normalised: torch.Tensor) -> None:
    users, items = tables(graph)
    to_users, to_items = propagate(graph, users, items)
    torch.testing.assert_close(to_users, normalised @ items)
    torch.testing.assert_close(to_items, normalised.T @ users)
    assert not to_users[4].any()
    assert not to_items[2].any()


def test_propagation_gradients(graph: BipartiteGraph) -> None:
    users, items = tables(graph)
    assert torch.autograd.gradcheck(lambda u, i: propagate(graph, u, i), (users, items))
    assert torch.autograd.gradgradcheck(lambda u, i: propagate(graph, u, i), (users, items))
    only_users = torch.autograd.grad(propagate(graph, users, items)[0].sum(), items)[0]
    torch.testing.assert_close(only_users, graph.dense().double().sum(0).unsqueeze(-1).expand(-1, 3))


def test_propagation_refuses_other_sizes(graph: BipartiteGraph) -> None:
    users, items = tables(graph)
    with pytest.raises(ArgumentError, match="expected"):
        propagate(graph, items, users)


@pytest.mark.parametrize("layers", [0, 1, 2, 4])
def test_lightgcn(graph: BipartiteGraph, normalised: torch.Tensor, vectors: Vectors, layers: int) -> None:
    model = LightGCN(graph, dim=3, layers=layers, generator=torch.Generator().manual_seed(0)).double()
    split = graph.num_users
    adjacency = torch.zeros(2 * [sum(normalised.shape)], dtype=torch.float64)
    adjacency[:split, split:], adjacency[split:, :split] = normalised, normalised.T
    layer = torch.cat([model.user_table, model.item_table])
    stack = [layer]
    for _ in range(layers):
        layer = adjacency @ layer
        stack.append(layer)
    naive = torch.stack(stack).mean(0)
    ours = torch.cat(vectors(model, training=True))
    torch.testing.assert_close(ours, naive)
    slope = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    of_ours = torch.autograd.grad(ours, [model.user_table, model.item_table], slope)
    of_naive = torch.autograd.grad(naive, [model.user_table, model.item_table], slope)
    torch.testing.assert_close(of_ours, of_naive)


def test_starting_values(train: Interactions) -> None:
    big = BipartiteGraph(torch.arange(401).numpy(), (torch.arange(400) % 300).numpy(), num_items=300)
    rng = torch.Generator().manual_seed(0)
    assert LightGCN(big, generator=rng).user_table.std().item() == pytest.approx(1, abs=0.03)
    xavier = XSimGCL(big, generator=rng)
    for table in (xavier.user_table, xavier.item_table):
        bound = math.sqrt(6 / (len(table) + 64))
        assert table.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert table.abs().max().item() <= bound


def test_xsimgcl_layers_and_noise(
    graph: BipartiteGraph, normalised: torch.Tensor, generator: Seeded, vectors: Vectors, batch_of: Any
) -> None:
    model = XSimGCL(graph, dim=3, layers=3, epsilon=0.2, contrast_layer=2, generator=generator(0)).double()
    for training in (False, True):
        rng = generator(7)
        users, items = model.user_table, model.item_table
        kept, sums = None, [0.0, 0.0]
        for layer in (1, 2, 3):
            users, items = normalised @ items, normalised.T @ users
            if training:
                noisy = []
                for table in (users, items):
                    rows = []
                    for row in torch.unbind(table):
                        noise = torch.rand(3, generator=rng, dtype=torch.float64)
                        rows.append(row + 0.2 * row.sign().detach() * noise / noise.norm())
                    noisy.append(torch.stack(rows))
                users, items = noisy
            if layer == 2:
                kept = users, items
            sums = [sums[0] + users, sums[1] + items]
        final = sums[0] / 3, sums[1] / 3
        ours = vectors(model, training=training, generator=generator(7))
        torch.testing.assert_close(ours, final)
        if not training:
            continue
        naive = 0.0
        for side, chosen in ((0, [0, 1, 3]), (1, [0, 6])):
            x = [final[side][c] / final[side][c].norm() for c in chosen]
            y = [kept[side][c] / kept[side][c].norm() for c in chosen]
            for a in range(len(chosen)):
                total = sum(torch.exp(x[a] @ y[b] / 0.1) for b in range(len(chosen)))
                naive = naive - torch.log(torch.exp(x[a] @ y[a] / 0.1) / total) / len(chosen)
        auxiliary = model.auxiliary_loss(batch_of([0, 1, 3, 1], [6, 0, 0]))
        torch.testing.assert_close(auxiliary, 0.1 * naive)
        parameters = [model.user_table, model.item_table]
        torch.testing.assert_close(
            torch.autograd.grad(auxiliary + ours[0].square().sum(), parameters),
            torch.autograd.grad(0.1 * naive + final[0].square().sum(), parameters),
        )


@pytest.mark.parametrize("rows", [None, 2, 3, 100])
def test_at_most_so_many_rows_are_contrasted(
    graph: BipartiteGraph,
    generator: Seeded,
    vectors: Vectors,
    batch_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: int | None,
) -> None:
    model = XSimGCL(graph, dim=3, contrast_rows=rows, generator=generator(0))
    contrasted: list[list[float]] = []

    def contrast(
        first: torch.Tensor, second: torch.Tensor, temperature: float, *, bfloat16: bool
    ) -> torch.Tensor:
        contrasted.append(first[:, 0].tolist())
        assert bfloat16 == (rows == 2)  # it is handed on
        return first.sum() + second.sum()

    monkeypatch.setattr(xsimgcl_module, "info_nce", contrast)
    users, items = vectors(model, training=True, generator=generator(1))
    model.auxiliary_loss(batch_of([3, 0, 1, 3], [6, 0, 2, 5, 4, 6]), bfloat16=rows == 2)
    # of the distinct ones in order, evenly spread
    wanted = {2: ([0, 1], [0, 4]), 3: ([0, 1, 3], [0, 2, 5])}
    of_users, of_items = wanted.get(rows or 0, ([0, 1, 3], [0, 2, 4, 5, 6]))
    assert contrasted == [users[of_users, 0].tolist(), items[of_items, 0].tolist()]


def test_xsimgcl_noise_needs_a_generator(graph: BipartiteGraph, vectors: Vectors, batch_of: Any) -> None:
    model = XSimGCL(graph, dim=3, generator=None)
    with pytest.raises(ArgumentError, match="generator"):
        vectors(model, training=True)
    vectors(model)
    with pytest.raises(ArgumentError, match="nothing to contrast"):
        model.auxiliary_loss(batch_of([0], [0]))
    assert model.has_auxiliary_loss
    quiet = XSimGCL(graph, dim=3, epsilon=0, contrast_weight=0, generator=None)
    vectors(quiet, training=True)
    assert not quiet.has_auxiliary_loss


def test_users_need_a_call_of_items(graph: BipartiteGraph, batch_of: Any) -> None:
    with pytest.raises(ArgumentError, match="nothing was propagated"):
        LightGCN(graph, dim=3, generator=None).users(batch_of([0], [0]), torch.empty(0))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("layers", 0),
        ("epsilon", -1),
        ("contrast_layer", 4),
        ("contrast_layer", 0),
        ("contrast_temperature", 0),
        ("contrast_weight", -0.1),
        ("contrast_rows", 1),
    ],
)
def test_xsimgcl_refuses(graph: BipartiteGraph, option: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=option):
        XSimGCL(graph, generator=None, **{option: value})


def test_noise_has_its_length_and_direction(generator: Seeded) -> None:
    start = torch.randn(50, 8, generator=generator(0), dtype=torch.float64)
    start[3] = 0
    added = perturb_(start.clone(), 0.3, generator(1)) - start
    assert not added[3].any()
    others = torch.arange(50) != 3
    torch.testing.assert_close(added[others].norm(dim=-1), torch.full((49,), 0.3, dtype=torch.float64))
    assert (added[others] * start[others] >= 0).all()


def test_noise_does_not_depend_on_blocks(generator: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perturb_(torch.ones(40, 5), 0.1, generator(0))
    monkeypatch.setattr(xsimgcl_module, "_NOISE_BLOCK", 17)
    assert torch.equal(perturb_(torch.ones(40, 5), 0.1, generator(0)), whole)


def naive_info_nce(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    cosines = torch.nn.functional.cosine_similarity(x.unsqueeze(1), y.unsqueeze(0), dim=-1)
    return torch.nn.functional.cross_entropy(cosines / temperature, torch.arange(len(x)))


@pytest.mark.parametrize("rows", [1, 2, 65, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_info_nce(rows: int, dtype: torch.dtype, generator: Seeded) -> None:
    """By the compiled core in single precision, by torch in double precision."""
    views = [torch.randn(rows, 16, generator=generator(s), dtype=dtype).requires_grad_() for s in (0, 1)]
    results = []
    for contrast in (naive_info_nce, info_nce):
        value = contrast(views[0], views[1], 0.2)
        results.append((value.detach(), *torch.autograd.grad(value, views)))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_info_nce_gradients_and_edges(generator: Seeded) -> None:
    x, y = (torch.randn(6, 4, generator=generator(s), dtype=torch.float64).requires_grad_() for s in (0, 1))
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, 0.2), (x, y))
    assert info_nce(x[:0], y[:0], 0.2) == 0
    without_direction = torch.eye(3)[:2] * torch.tensor([[0.0], [2.0]]), torch.eye(3)[:2]
    torch.testing.assert_close(info_nce(*without_direction, 0.2), naive_info_nce(*without_direction, 0.2))
    rounded = info_nce(x.float(), y.float(), 0.2, bfloat16=True)
    assert rounded.item() == pytest.approx(info_nce(x, y, 0.2).item(), rel=0.02)
