"""Item vectors as they are scored, and scores of chosen pairs: by the compiled core where it applies, else in torch."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import core
from talos.kernels.csr import CSR, meetings

__all__ = [
    "ItemVectors",
    "Samples",
    "distinct_rows",
    "drawn_positives",
    "in_core",
    "pair_scores",
    "sample_scores",
]

# Marks in a table that stays in cache, a power of 2.
_MARKS = 1 << 16
# Lengths below this are raised to it, as in `F.normalize`.
_SHORTEST = 1e-12


class Samples(NamedTuple):
    """Samples of items, each shared by consecutive rows as their negatives.

    Attributes:
        items: (G, n), rows of the item table; an item that is drawn twice counts twice.
        bounds: (G + 1,), ascending from 0: rows `bounds[g]` to below `bounds[g + 1]` share sample g.
    """

    items: Tensor
    bounds: Tensor

    def slices(self) -> list[slice]:
        """The rows that share each sample."""
        return [slice(first, last) for first, last in itertools.pairwise(self.bounds.tolist())]


class ItemVectors:
    """A table of item vectors, normalised for cosines, and the way back to the gradient of the rows as given.

    Args:
        rows: (I, d). Half precision is computed with in float32.
        normalize: divide the rows by their lengths.
        memory: (I, d), where the core writes the normalised rows; new memory if None.
        in_place: let the core overwrite the rows with the normalised ones.

    >>> items = ItemVectors(torch.tensor([[3.0, 4.0]]), normalize=True)
    >>> items.scored
    tensor([[0.6000, 0.8000]])
    """

    def __init__(
        self, rows: Tensor, *, normalize: bool = False, memory: Tensor | None = None, in_place: bool = False
    ) -> None:
        self.given, self.lengths = rows.detach(), None
        self.scored = self.given.to(torch.promote_types(rows.dtype, torch.float32)).contiguous()
        if normalize and in_core(self.scored):
            self.scored, self.lengths = core.unit_rows(self.scored, out=self.scored if in_place else memory)
        elif normalize:
            self.lengths = self.scored.norm(dim=-1)
            self.scored = F.normalize(self.scored, dim=-1)

    def gradient(
        self,
        item_gradient: Tensor,
        user_gradient: Tensor,
        users: Tensor,
        positives: CSR,
        slopes: Tensor | None,
    ) -> Tensor:
        """The gradient of the rows as given, from that of the scored vectors.

        First adds ∂L/∂s of the positives, `slopes` (P,), to both gradients in place.
        """
        if slopes is not None and in_core(self.scored, users, item_gradient):
            tables = user_gradient, item_gradient, users, self.scored
            core.add_positives_(*tables, positives.start, positives.items, slopes, lengths=self.lengths)
            return item_gradient
        if slopes is not None:
            rows, column = positives.rows, slopes.unsqueeze(-1)
            user_gradient.index_add_(0, rows, column * self.scored[positives.items])
            item_gradient.index_add_(0, positives.items, column * users[rows])
        if self.lengths is not None:
            # from the gradient g in v = r/|r| to that in r: (g - ⟨g, v⟩v)/|r|
            lengths = self.lengths.unsqueeze(-1)
            along = (item_gradient * self.scored).sum(dim=-1, keepdim=True)
            along = along.masked_fill(lengths <= _SHORTEST, 0.0)
            item_gradient = item_gradient.addcmul(along, self.scored, value=-1).div_(
                lengths.clamp(min=_SHORTEST)
            )
        return item_gradient.to(self.given.dtype)


def pair_scores(users: Tensor, items: Tensor, pairs: CSR) -> Tensor:
    """The scores (P,) of each row's own items.

    >>> pair_scores(torch.eye(2), torch.eye(2), CSR.of(torch.tensor([0, 1, 2]), torch.tensor([0, 0])))
    tensor([1., 0.])
    """
    if in_core(users, items):
        return core.pair_scores(users, items, pairs.start, pairs.items)
    return (users[pairs.rows] * items[pairs.items]).sum(dim=-1)


def sample_scores(users: Tensor, items: Tensor, samples: Samples) -> Tensor:
    """The scores (R, n) of each row with the items of its sample."""
    scores = users.new_empty(len(users), samples.items.shape[1])
    for here, sample in zip(samples.slices(), samples.items, strict=True):
        torch.mm(users[here], items.index_select(0, sample).T, out=scores[here])
    return scores


def drawn_positives(positives: CSR, samples: Samples, num_items: int) -> CSR:
    """The positions in each row's sample that hold an item of that row, ascending.

    Args:
        positives: items of each row.
        samples: what was drawn.
        num_items: all items are below.

    >>> samples = Samples(torch.tensor([[8, 9, 8]]), torch.tensor([0, 2]))
    >>> drawn_positives(CSR.of(torch.tensor([0, 1, 2]), torch.tensor([7, 8])), samples, 10).items
    tensor([0, 2])
    """
    count, size = samples.items.shape
    # items of different samples differ
    first = torch.arange(count, device=samples.items.device) * num_items
    drawn = (samples.items + first.unsqueeze(-1)).flatten()
    own = first.repeat_interleave(samples.bounds.diff())[positives.rows] + positives.items
    # few positives are in their sample: marks of the items' last bits leave most of them out
    marks = torch.zeros(_MARKS, dtype=torch.bool, device=drawn.device)
    some = marks.index_fill_(0, drawn & (_MARKS - 1), True)[own & (_MARKS - 1)].nonzero().flatten()
    rows, positions = meetings(positives.rows[some], own[some], drawn)
    # ascending within each row
    keys = (rows * size + positions % size).sort().values
    return CSR.by_row(keys // size, keys % size, len(positives.start) - 1)


def distinct_rows(rows: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """The distinct rows among `rows` (n,), all below `bound`, ascending; and the index of each row among them, (n,).

    >>> distinct_rows(torch.tensor([7, 3, 7]), 10)
    (tensor([3, 7]), tensor([1, 0, 1]))
    """
    # 32 bits where they suffice: torch sorts these twice as fast
    ascending, order = rows.to(torch.int32 if bound <= 2**31 else rows.dtype).sort()
    if len(rows) and not 0 <= int(ascending[0]) <= int(ascending[-1]) < bound:
        found = f"{int(ascending[0])} to {int(ascending[-1])}"
        raise ArgumentError(found, where="values", expected=f"0 to {bound - 1}")
    distinct, index = torch.unique_consecutive(ascending, return_inverse=True)
    return distinct.to(rows.dtype), torch.empty_like(rows).scatter_(0, order, index)


def in_core(*tensors: Tensor) -> bool:
    """Whether the core is available and can read and write these tensors where they are."""
    for one in tensors:
        plain = one.device.type == "cpu" and one.is_contiguous()
        if not plain or one.dtype not in (torch.float32, torch.int64):
            return False
    return core.available()
