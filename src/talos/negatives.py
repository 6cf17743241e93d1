"""Negatives: which items a user's positives are compared with.

Three sources, each with a short form for configurations: `UniformNegatives(1024)` ("1024") draws for each positive
from the items its user does not have, `SharedNegatives(1024)` ("shared:1024") draws once for every 64 users of a
mini-batch, `AllItems()` ("all") takes every item. Random numbers come from the generator that is passed in alone.

>>> from talos.data.interactions import Interactions
>>> index = TrainIndex.from_interactions(Interactions.from_ids(["a", "a", "b"], ["x", "y", "z"]))
>>> UniformNegatives(3).draw(index, torch.tensor([0]), torch.Generator().manual_seed(0))   # "a" does not have "z"
tensor([[2, 2, 2]])
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from talos.checks import is_integer, require
from talos.errors import ConfigError, DataError
from talos.kernels.csr import TrainIndex

__all__ = [
    "AllItems",
    "Negatives",
    "Per",
    "SharedNegatives",
    "UniformNegatives",
    "is_short_form",
    "parse",
]

Per: TypeAlias = Literal["positive", "batch", "all"]

# Size of the array that marks positives while drawing, in bytes: small enough to stay in cache.
_MARKS = 2**22
# Draws beyond which no memory is large enough, and draws that any catalogue may have: they take no time.
_MOST, _FEW = 1 << 30, 1 << 14


class Negatives(ABC):
    """A source of negatives.

    A subclass states `per`, what one draw is for (each `positive`, a whole `batch`, or nothing is drawn: `all` items),
    and implements `draw`; `talos.registry` says how it describes its options.
    """

    short_name: ClassVar[str] = ""
    context: ClassVar[tuple[str, ...]] = ()
    per: ClassVar[Per]

    def check(self, index: TrainIndex) -> None:
        """Raise a `DataError` or `ConfigError` if the source does not fit these data; called before training starts."""
        return

    @abstractmethod
    def draw(self, index: TrainIndex, users: Tensor, generator: torch.Generator) -> Tensor:
        """Draw items, int64, on the index's device.

        `users` has one entry per positive and the result is (B, n) where `per` is `positive`; `users` are those of
        a mini-batch and the result is (G, n), one row for each of G equal blocks of them, where it is `batch`.
        """

    def __str__(self) -> str:
        """The short form, which `parse` turns back into an equal source; `module:Class` where there is none."""
        return f"{type(self).__module__}:{type(self).__qualname__}"


@dataclass(frozen=True)
class _Draws(Negatives):
    """`n` draws at a time."""

    n: int

    def __post_init__(self) -> None:
        require(
            is_integer(self.n) and 1 <= self.n <= _MOST,
            f"{self.n!r} negatives",
            where="negatives",
            expected=f"a whole number, 1 to {_MOST:,}",
            error=ConfigError,
        )

    def check(self, index: TrainIndex) -> None:
        """Raise for more draws than items: all items cost less and have no noise."""
        most = max(index.num_items, _FEW)
        require(
            self.n <= most,
            f"{self.n:,} negatives",
            where="negatives",
            expected=f"at most {most:,} for {index.num_items:,} items, or 'all'",
            error=ConfigError,
        )


class UniformNegatives(_Draws):
    """`n` draws for every positive from N_u (the items outside P_u), uniform and with replacement.

    Every draw is uniform over N_u without rejection: a number r below |N_u| is drawn and is the result if it is no
    positive. There are as many positives below |N_u| as negatives from |N_u| on, so the a-th of the former is
    replaced by the a-th of the latter. Memory is that of the draws and a few MB; time does not depend on the
    number of items. (Numbers below |N_u| are equally likely to within |I|·2^-53.)

    Args:
        n: draws per positive; the paper has 1,024, and 1 for BPR.

    >>> str(UniformNegatives(1024)), UniformNegatives(1024).per
    ('1024', 'positive')
    """

    short_name: ClassVar[str] = "N"
    per: ClassVar[Per] = "positive"

    def check(self, index: TrainIndex) -> None:
        """Raise if a user has every item and therefore no negatives (the error names them), or for too many draws."""
        super().check(index)
        self._check_users(index, index.degrees)

    def _check_users(self, index: TrainIndex, degrees: Tensor, users: Tensor | None = None) -> None:
        full = (degrees >= index.num_items).nonzero().flatten()
        if len(full):
            user = int(full[0] if users is None else users[full[0]])
            name = user if index.user_ids is None else index.user_ids.decode([user])[0]
            raise DataError(
                f"user {name!r} has all {index.num_items:,} items, so there are no negatives to draw",
                where="train",
                expected="at least one item that a user does not have",
                hint="leave such users out, or use negatives = 'all'",
            )

    def draw(self, index: TrainIndex, users: Tensor, generator: torch.Generator) -> Tensor:
        """Negatives of `users` (B,), one row for each (B, n); a user may occur often.

        A user who has every item is a `DataError`, raised before anything is drawn.
        """
        require(users.ndim == 1, f"shape {tuple(users.shape)}", where="users", expected="(B,)")
        degrees = index.degrees[users]
        self._check_users(index, degrees, users)
        draws = torch.empty(len(users), self.n, dtype=torch.int64, device=index.device)
        if draws.numel() == 0:
            return draws
        (starts, items, rows), _ = index.csr_of(users)
        left = (index.num_items - degrees).unsqueeze(-1)  # |N_u|, (B, 1)
        size = max(1, min(len(users), _MARKS // max(index.num_items, self.n)))
        marks = torch.zeros(size * index.num_items, dtype=torch.bool, device=index.device)
        bounds = [*starts[:-1:size].tolist(), len(rows)]
        hits: list[Tensor] = []
        for block, first in enumerate(range(0, len(users), size)):
            drawn, edges = draws[first : first + size], slice(bounds[block], bounds[block + 1])
            uniform = torch.rand(
                drawn.shape, dtype=torch.float64, generator=generator, device=generator.device
            )
            # u ≤ 1 - 2^-53, so u·|N_u| is below |N_u| even after rounding; the copy cuts off the fraction.
            drawn.copy_(uniform.to(index.device).mul_(left[first : first + size]))
            marked = (rows[edges] - first) * index.num_items + items[edges]
            marks[marked] = True
            positive = marks[: len(drawn) * index.num_items].view(len(drawn), -1).gather(1, drawn)
            marks[marked] = False  # cheaper than clearing the whole array
            hits.append(positive.view(-1).nonzero().flatten() + first * self.n)
        hit = torch.cat(hits)
        flat = draws.view(-1)
        flat[hit] = _stand_ins(index.num_items, rows, items, starts, hit // self.n, flat[hit])
        return draws

    def __str__(self) -> str:
        return str(self.n)


def _stand_ins(
    num_items: int, rows: Tensor, items: Tensor, starts: Tensor, row: Tensor, positive: Tensor
) -> Tensor:
    """The negative that replaces each drawn positive: see `UniformNegatives`.

    With m = |N_u|, b the number of positives below m and a the rank of this one, that is negative number
    t = m - b + a of all, counting from 0. Before it are the positives p_k with p_k - k ≤ t (each p_k has p_k - k
    negatives before it), so it is item t + #{k : p_k - k ≤ t}. With row and value in one integer key, one binary
    search works for all rows. `rows` and `items` are all positives by row, `starts` the rows' bounds.
    """
    base, begin = row * num_items, starts[row]
    keys = rows * num_items + items
    smallest = num_items - (starts[row + 1] - begin)
    rank = torch.searchsorted(keys, base + positive) - begin
    below = torch.searchsorted(keys, base + smallest) - begin
    number = smallest - below + rank
    order = torch.arange(len(items), device=items.device) - starts[rows]
    return number + torch.searchsorted(keys - order, base + number, right=True) - begin


@dataclass(frozen=True)
class SharedNegatives(_Draws):
    """`n` draws shared by a few users of a mini-batch, uniform over all items with replacement.

    A draw that is a positive of one of these users is masked for that user when scores are computed. The other n_u
    are uniform over N_u, so a sum over them weighted with (|I| - |P_u|)/n_u is an unbiased estimate of the sum
    over N_u: with these weights the sampled pinball loss

        Q_K(u) = 1/|I| ( Σ_{i∈P_u} ρ(s_ui - β) + (|I| - |P_u|)/n_u Σ_{j∈G_u, j∉P_u} ρ(s_uj - β) )

    has the mean L_QR(u). (All n draws hit positives with probability (|P_u|/|I|)^n; then the weight is 0.)

    The number of scores does not depend on how many users share a draw, but the noise does: with one draw for a
    whole batch of 512, a step pushes the same n items away from all users. On Beauty that costs 2 % of Recall@20,
    a draw for every 64 users less than 1 %.

    Args:
        n: draws.
        users: how many users of a mini-batch share them at most.

    >>> str(SharedNegatives(1024)), SharedNegatives(1024).per, str(SharedNegatives(1024, users=512))
    ('shared:1024', 'batch', 'shared:1024/512')
    """

    users: int = 64
    short_name: ClassVar[str] = "shared:N"
    per: ClassVar[Per] = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.users >= 1,
            f"{self.users} users",
            where="negatives",
            expected="1 or more to share a draw",
            error=ConfigError,
        )

    def draw(self, index: TrainIndex, users: Tensor, generator: torch.Generator) -> Tensor:
        """Items (G, n): row g is shared by the g-th of G equal blocks of `users`, none above `self.users`."""
        shape = (-(-len(users) // self.users), self.n)
        return torch.randint(index.num_items, shape, generator=generator, device=generator.device).to(
            index.device
        )

    def __str__(self) -> str:
        return f"shared:{self.n}" if self.users == type(self).users else f"shared:{self.n}/{self.users}"


@dataclass(frozen=True)
class AllItems(Negatives):
    """Every item that a user does not have; nothing is drawn.

    >>> str(AllItems()), AllItems().per
    ('all', 'all')
    """

    short_name: ClassVar[str] = "all"
    per: ClassVar[Per] = "all"

    def draw(self, index: TrainIndex, users: Tensor, generator: torch.Generator) -> Tensor:
        """All items (num_items,), in order; the generator is not used, and the kernel masks positives."""
        return torch.arange(index.num_items, device=index.device)

    def __str__(self) -> str:
        return "all"


def is_short_form(text: str) -> bool:
    """Whether a name is to be read as a short form, and not as `module:Class`.

    >>> is_short_form("shared:many"), is_short_form("sources:Popular")
    (True, False)
    """
    return ":" not in text or text.strip().startswith("shared:")


def parse(text: str | int) -> Negatives:
    """Make the source of a short form: `all`, `N` per positive, `shared:N`, or `shared:N/USERS` for USERS at a time.

    >>> parse("1024"), parse("shared:512"), parse("all")
    (UniformNegatives(n=1024), SharedNegatives(n=512, users=64), AllItems())
    >>> parse("shared")
    Traceback (most recent call last):
    talos.errors.ConfigError: negatives: 'shared'; expected 'all', 'shared:N' or 'N' with N a whole number ...
    """
    words = str(text).strip()
    if words == "all":
        return AllItems()
    number = r"((?!0+\b)[0-9]{1,18})"  # not 0
    if re.fullmatch(number, words):
        return UniformNegatives(int(words))
    if shared := re.fullmatch(f"shared:{number}(?:/{number})?", words):
        return SharedNegatives(*(int(group) for group in shared.groups() if group))
    raise ConfigError(
        f"{text!r}",
        where="negatives",
        expected="'all', 'shared:N' or 'N' with N a whole number from 1 on, such as 'shared:1024'",
    )
