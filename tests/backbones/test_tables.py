"""Tables of parameters: rows with the values of the whole table, look-ups, and gradients that keep their memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from talos.backbones import tables
from talos.backbones.tables import gaussian, keep_gradients_, look_up, memory_for_gradient


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(("rows", "dim"), [(5, 3), (40, 1), (64, 16), (131, 7)])
def test_some_rows_have_the_values_of_the_whole_table(
    rows: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn in blocks, and the generator ends in the same state, so that what is drawn next is the same too."""
    monkeypatch.setattr(tables, "_DRAWN", 16)
    generator = seeded()
    whole, after = gaussian(rows, dim, generator), generator.get_state()
    for only in (range(rows), range(1), range(rows - 1, rows), range(rows // 3, rows // 2 + 1)):
        generator = seeded()
        assert torch.equal(gaussian(rows, dim, generator, only=only), whole[only.start : only.stop])
        assert torch.equal(generator.get_state(), after)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("rows", "distinct"), [([4, 0, 2], True), ([4, 0, 4], False), ([], True)], ids=str)
def test_look_ups_and_their_gradients(rows: list[int], distinct: bool, sparse: bool) -> None:
    table, plain = (nn.Parameter(torch.randn(5, 2, generator=seeded())) for _ in range(2))
    vars(table)["row_sparse"] = sparse
    wanted = torch.tensor(rows, dtype=torch.int64)
    found, expected = look_up(table, wanted, distinct=distinct), F.embedding(wanted, plain)
    assert torch.equal(found, expected)
    for one in (found, expected):
        (one * torch.arange(1.0, 1 + one.numel()).view(one.shape)).sum().backward()
    assert table.grad is not None
    assert table.grad.is_sparse == sparse
    assert torch.equal(table.grad.to_dense(), plain.grad)


def test_a_computed_table_and_one_without_gradients() -> None:
    table = nn.Parameter(torch.randn(4, 2, generator=seeded()))
    vars(table)["row_sparse"] = True
    computed = look_up(table * 2, torch.tensor([1, 3]), distinct=True)
    computed.sum().backward()
    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0], [2, 2]]
    assert not look_up(table.detach(), torch.tensor([1]), distinct=True).requires_grad


def test_dense_gradients_keep_their_memory_and_nothing_of_their_values() -> None:
    table = nn.Parameter(torch.zeros(4, 2))
    addresses = []
    for row in (0, 3, 1):
        look_up(table, torch.tensor([row]), distinct=True).sum().backward()
        assert table.grad.sum(1).nonzero().flatten().tolist() == [row]
        addresses.append(table.grad.data_ptr())
        keep_gradients_([table])
        assert table.grad is None
    assert len(set(addresses)) == 1
    assert memory_for_gradient(table).data_ptr() == addresses[0]
    assert memory_for_gradient(table).data_ptr() != addresses[0]  # it is given away once


def test_two_gradients_of_a_step_add_up() -> None:
    table = nn.Parameter(torch.zeros(4, 2))
    for _ in range(2):
        first, second = (look_up(table, torch.tensor(rows), distinct=True) for rows in ([0, 1], [1, 2]))
        (first.sum() + 3 * second.sum()).backward()
        assert table.grad[:, 0].tolist() == [1, 4, 3, 0]
        keep_gradients_([table])


def test_sparse_gradients_are_cleared_and_not_kept() -> None:
    table = nn.Parameter(torch.zeros(4, 2))
    vars(table)["row_sparse"] = True
    look_up(table, torch.tensor([2])).sum().backward()
    keep_gradients_([table])
    assert table.grad is None
    assert "kept_gradient" not in vars(table)
