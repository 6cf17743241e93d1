"""Sampled negatives in the compiled core: which rows a batch needs, scores of a sample, Adam for single rows."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.kernels import library
from talos.kernels.checks import checked_indices
from talos.kernels.library import AdamRows, Distinct, DrawnPositives, Groups, Pairs, Task
from talos.kernels.protocols import Samples

__all__ = [
    "checked_samples",
    "core_adam_rows_",
    "core_distinct",
    "core_sample_scores",
    "drawn_positives",
    "in_groups",
    "pair_scores",
]

_CPU = torch.device("cpu")


def core_distinct(values: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """The distinct numbers below `bound` among `values` (n,), ascending, and the place of each value among them (n,).

    As `torch.unique(values, return_inverse=True)`, in a time that grows with n and bound/64 and without sorting.

    >>> core_distinct(torch.tensor([7, 3, 7]), 10) if library.available() else "no core"
    (tensor([3, 7]), tensor([1, 0, 1]))
    """
    core, _ = library.level_of(None)
    given = checked_indices("values", values, bound, _CPU)
    found, places = torch.empty(min(len(given), bound), dtype=torch.int64), torch.empty_like(given)
    workspace = library.scratch.take(core.talos_core_distinct_workspace_bytes(bound))
    task = Distinct(
        count=len(given),
        bound=bound,
        values=given.data_ptr(),
        workspace=workspace.data_ptr(),
        distinct=found.data_ptr(),
        places=places.data_ptr(),
    )
    return found[: core.talos_core_distinct(ctypes.byref(task))], places


def drawn_positives(
    indptr: Tensor, indices: Tensor, samples: Samples, num_items: int
) -> tuple[Tensor, Tensor]:
    """CSR of the places in each user's sample that hold a positive of that user, ascending within each user.

    Args:
        indptr: (B + 1,), with `indices` the positives of each user.
        indices: (P,).
        samples: what was drawn.
        num_items: all items are below.

    >>> samples = Samples(torch.tensor([[8, 9, 8]]), torch.tensor([0, 2]))
    >>> positives = torch.tensor([0, 1, 2]), torch.tensor([7, 8])
    >>> drawn_positives(*positives, samples, 10) if library.available() else "no core"
    (tensor([0, 0, 2]), tensor([0, 2]))
    """
    core, _ = library.level_of(None)
    start, items_of = library.offsets_and_indices(indptr, indices, len(indptr) - 1, num_items)
    samples = checked_samples(samples, len(indptr) - 1, num_items)
    found_start, found = torch.empty_like(start), torch.empty(64 + len(items_of) // 8, dtype=torch.int64)

    def look() -> int:
        task = DrawnPositives(
            groups=len(samples.items),
            sample=samples.items.shape[1],
            items=num_items,
            first=samples.bounds.data_ptr(),
            drawn=samples.items.data_ptr(),
            start=start.data_ptr(),
            items_of=items_of.data_ptr(),
            room=len(found),
            found_start=found_start.data_ptr(),
            found=found.data_ptr(),
        )
        return int(core.talos_core_drawn_positives(ctypes.byref(task)))

    count = look()
    if count > len(found):  # of a small catalogue a sample is a large part
        found = torch.empty(count, dtype=torch.int64)
        look()
    return found_start, found[:count]


def core_sample_scores(
    user_vectors: Tensor,
    item_vectors: Tensor,
    samples: Samples,
    *,
    level: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """Scores (B, n) of every user with the items that were drawn for their group."""
    core, at = library.level_of(level)
    (num_users, dim), num_items = user_vectors.shape, len(item_vectors)
    users = library.floats("user_vectors", user_vectors, num_users, dim)
    items = library.floats("item_vectors", item_vectors, num_items, dim)
    samples = checked_samples(samples, num_users, num_items)
    scores = users.new_empty(num_users, samples.items.shape[1])
    task = Task(
        users=num_users,
        items=num_items,
        dim=dim,
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        threads=threads or torch.get_num_threads(),
        team=library.team(),
    )
    groups = in_groups(task, samples)
    groups.scores = scores.data_ptr()
    core.talos_core_group_scores(at, ctypes.byref(groups))
    return scores


def pair_scores(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    level: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """Scores (P,) of users with some items each, such as their positives: CSR `indptr` (B + 1,) and `indices` (P,)."""
    core, at = library.level_of(level)
    (num_users, dim), num_items = user_vectors.shape, len(item_vectors)
    users = library.floats("user_vectors", user_vectors, num_users, dim)
    items = library.floats("item_vectors", item_vectors, num_items, dim)
    start, items_of = library.offsets_and_indices(indptr, indices, num_users, num_items)
    scores = users.new_empty(len(items_of))
    task = Pairs(
        users=num_users,
        dim=dim,
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        start=start.data_ptr(),
        items_of=items_of.data_ptr(),
        user_vectors=users.data_ptr(),
        item_vectors=items.data_ptr(),
        scores=scores.data_ptr(),
    )
    core.talos_core_pair_scores(at, ctypes.byref(task))
    return scores


def core_adam_rows_(
    parameter: Tensor,
    rows: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """One step of Adam for distinct rows (n,) of a float32 table (N, d), in place, with their gradients (n, d)."""
    core, at = library.level_of(level)
    places = checked_indices("rows", rows, len(parameter), _CPU)
    wanted = library.floats("gradient", gradient, len(places), parameter.shape[1])
    tables = {"parameter": parameter.detach(), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    values, mean, square = (library.output(name, one, *parameter.shape) for name, one in tables.items())
    task = AdamRows(
        count=len(places),
        dim=parameter.shape[1],
        threads=threads or torch.get_num_threads(),
        team=library.team(),
        rows=places.data_ptr(),
        gradient=wanted.data_ptr(),
        parameter=values.data_ptr(),
        mean=mean.data_ptr(),
        square=square.data_ptr(),
        rest1=1 - betas[0],
        beta2=betas[1],
        rest2=1 - betas[1],
        epsilon=eps,
        weight_decay=weight_decay,
        rate=lr / (1 - betas[0] ** step),
        root_correction=(1 - betas[1] ** step) ** 0.5,
    )
    core.talos_core_adam_rows(at, ctypes.byref(task))


def in_groups(task: Task, samples: Samples) -> Groups:
    """A task over samples that groups of its users share. The samples are checked, and the caller keeps them alive."""
    return Groups(
        task=task,
        groups=len(samples.items),
        sample=samples.items.shape[1],
        first=samples.bounds.data_ptr(),
        drawn=samples.items.data_ptr(),
    )


def checked_samples(samples: Samples, num_users: int, num_items: int) -> Samples:
    """Samples as the core reads them; an error unless every user has one and every drawn item exists."""
    items = checked_indices("samples", samples.items.flatten(), num_items, _CPU).view(samples.items.shape)
    bounds, _ = library.offsets_and_indices(samples.bounds, items.new_zeros(num_users), len(items), 1)
    if int(bounds[0]) != 0 or int(bounds[-1]) != num_users:
        found = f"users {int(bounds[0])} to {int(bounds[-1])}"
        raise ArgumentError(found, where="samples", expected=f"0 to {num_users}")
    return Samples(items, bounds)
