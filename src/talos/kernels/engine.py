"""The kernels as they are called: the compiled core where it applies, tiled torch everywhere else.

What differs from loss to loss is asked of the loss, here as in `tiled`; the core sees the kind and the numbers
of its negative part alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from talos.errors import ArgumentError
from talos.kernels import compiled, library, tiled
from talos.kernels.checks import check_arguments, check_finite
from talos.kernels.parts import LossParts
from talos.kernels.tiled import UserBatch

__all__ = ["differentiable_user_batch_loss", "exact_user_batch_loss", "kth_scores", "user_batch_loss"]

# The length below which a vector is not made longer, as in `F.normalize`.
_SHORTEST: Final = 1e-12


@torch.no_grad()
def user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    *,
    k: int | None = None,
    reduction: Literal["positives", "users", "sum"] = "positives",
    exclude_positives: bool = True,
    item_ids: Tensor | None = None,
    weights: Tensor | None = None,
    normalize_items: bool = False,
    scale: float = 1.0,
    bfloat16: bool = False,
    users_per_chunk: int | None = None,
    items_per_tile: int = 4096,
) -> UserBatch:
    """Loss of a batch of users with all their positives, and its gradients, in closed form.

    Scores are the products of the vectors as given: normalise them first where cosines are meant. Half
    precision is computed with in float32. The compiled core is used for float32 on the CPU and the parts of a
    loss that it knows; `weights` are left to torch.

    Args:
        user_vectors: (B, d), one row per user of the batch.
        item_vectors: (I, d), the whole table.
        indptr: (B + 1,), `indices[indptr[u]:indptr[u + 1]]` are the positives of the u-th row.
        indices: their rows in `item_vectors`, each once per user.
        thresholds: (B,) where the loss has one.
        loss: a `UserSeparableLoss`, or anything of that shape.
        k: take as thresholds, in place of given ones, each user's exact K-th best score over the whole table.
            Over all items it is found in the same pass. They are reported as `UserBatch.thresholds`.
        reduction: the mean over `positives` (the published code), the mean over `users` with at least one
            (the paper's formula), or their `sum` over positives.
        exclude_positives: whether a user's positives are left out of their negatives.
        item_ids: (n,) a sample of items, shared by all users, to take as negatives in place of all items;
            repetitions count again.
        weights: what each of the negatives counts, (n,) or (I,); for samples that are not uniform.
        normalize_items: divide the rows of `item_vectors` by their lengths first; the gradient is that of the
            rows as given. The core does both on its way.
        scale: what the value and all gradients are multiplied by; it costs nothing here.
        bfloat16: let the core make its three products of numbers rounded to bfloat16 where the processor
            multiplies these faster. Scores, and thresholds found on the way, are then within 2⁻⁷ of the
            lengths' product; thresholds that take a pass of their own and all sums are float32. Without
            effect in torch.
        users_per_chunk: users at a time; chosen by cache size if None.
        items_per_tile: items at a time, in torch.

    A user without positives contributes nothing. A user without negatives contributes the positives' part.

    >>> from talos.losses import Softmax
    >>> users, items = torch.eye(2), torch.eye(3)[:, :2]
    >>> batch = user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 1]), torch.tensor([0]), None, Softmax(tau=1.0))
    >>> batch.value, batch.num_positives   # log(e^0 + e^0) - 1, and a user with nothing
    (tensor(-0.3069), tensor([1, 0]))
    """
    if k is not None:
        if thresholds is not None:
            raise ArgumentError("are given together with k", where="thresholds", expected="one of the two")
        _check_k(k, item_vectors)
    options: dict[str, Any] = {
        "reduction": reduction,
        "exclude_positives": exclude_positives,
        "item_ids": item_ids,
        "scale": scale,
        "users_per_chunk": users_per_chunk,
    }
    if (
        weights is None
        and compiled.supports(loss.negative_part, user_vectors, item_vectors, thresholds)
        and library.available()
    ):
        return _core_batch(
            user_vectors,
            item_vectors,
            indptr,
            indices,
            thresholds,
            loss,
            k=k,
            normalize_items=normalize_items,
            bfloat16=bfloat16,
            **options,
        )
    items = F.normalize(item_vectors, dim=-1) if normalize_items else item_vectors
    batch = tiled.user_batch_loss(
        user_vectors,
        items,
        indptr,
        indices,
        thresholds,
        loss,
        k=k,
        weights=weights,
        items_per_tile=items_per_tile,
        **options,
    )
    if not normalize_items:
        return batch
    return replace(batch, item_gradient=through_lengths(batch.item_gradient, items, item_vectors))


def through_lengths(gradient: Tensor, unit: Tensor, rows: Tensor) -> Tensor:
    """From the gradient in v = r/|r| to that in r: (g - ⟨g, v⟩v)/|r|."""
    lengths = rows.norm(dim=-1, keepdim=True)
    along = (gradient * unit).sum(dim=-1, keepdim=True).masked_fill_(lengths <= _SHORTEST, 0.0)
    return gradient.addcmul(along, unit, value=-1).div_(lengths.clamp_(min=_SHORTEST))


def _core_batch(
    users: Tensor,
    table: Tensor,
    indptr: Tensor,
    indices: Tensor,
    beta: Tensor | None,
    loss: LossParts,
    *,
    k: int | None,
    reduction: Literal["positives", "users", "sum"],
    exclude_positives: bool,
    item_ids: Tensor | None,
    normalize_items: bool,
    scale: float,
    bfloat16: bool,
    users_per_chunk: int | None,
) -> UserBatch:
    """`user_batch_loss` by the core, for arguments that it takes."""
    asked = beta if k is None else users.new_zeros(len(users))
    check_arguments(users, table, indptr, indices, asked, item_ids, None, loss)
    if indices.numel():
        # What follows trusts its indices to the point of writing where they point to.
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= len(table):
            raise ArgumentError(f"{low} to {high}", where="indices", expected=f"0 to {len(table) - 1}")
    users, rows = users.detach().contiguous(), table.detach().contiguous()
    table, lengths = compiled.unit_rows(rows) if normalize_items else (rows, None)
    count = indptr.diff()
    owner = torch.repeat_interleave(torch.arange(len(count)), count)
    share = tiled.shares(count, reduction, users.dtype) * scale
    per_positive = share[owner]
    if not bool(((indices.diff() > 0) | (owner.diff() > 0)).all()):  # the core wants them ascending
        indices = indices[torch.argsort(owner * len(table) + indices)]
    whole = item_ids is None
    excluded = None
    if exclude_positives:
        excluded = (indptr, indices) if item_ids is None else _sampled(owner, indices, item_ids, len(users))
    if k is None:
        beta = beta if loss.needs.threshold else None
    constant = tiled.constant_weight(loss)
    fused = k is not None and whole and constant is not None
    if k is not None and not fused:
        beta = kth_scores(users, table, k)

    pos: Tensor | None = None
    if constant is None:
        pos = (users[owner] * table[indices]).sum(dim=-1)
        c = loss.positive_part(pos, None if beta is None else beta[owner])[1].detach()
        coefficients = users.new_zeros(len(users)).index_add_(0, owner, per_positive * c)
    else:
        coefficients = constant * share * count
    found = compiled.core_sweep(
        users,
        table if item_ids is None else table[item_ids],
        part=loss.negative_part,
        coefficients=coefficients,
        thresholds=beta if loss.needs.threshold else None,
        k=k if fused and k is not None else 0,
        kth_is_threshold=fused and loss.needs.threshold,
        excluded=excluded,
        users_per_block=users_per_chunk,
        bfloat16=bfloat16,
    )
    if fused:
        beta = found.kth
    if pos is None and whole and exclude_positives:
        pos = found.excluded_scores
    if pos is None:
        pos = (users[owner] * table[indices]).sum(dim=-1)

    pos_beta = None if beta is None or not loss.needs.threshold else beta[owner]
    a, c = (x.detach() for x in loss.positive_part(pos, pos_beta))
    slope = per_positive * loss.da(pos, pos_beta).detach()
    user_gradient, item_gradient = found.user_gradient, found.item_gradient
    if item_ids is not None:
        item_gradient = torch.zeros_like(table).index_add_(0, item_ids, item_gradient)
    compiled.add_positives_(
        user_gradient, item_gradient, users, table, indptr, indices, slope, lengths=lengths
    )
    by_parameter = compiled.parameter_gradients(loss.negative_part, found)
    for name, derivative in loss.da_dparameters(pos, pos_beta).items():
        by_parameter[name] = by_parameter.get(name, 0.0) + (per_positive * derivative).sum()
    values = a + c * found.negative[owner]
    check_finite(values, user_vectors=users, item_vectors=rows, thresholds=beta)
    return UserBatch(
        value=(per_positive * values).sum(),
        user_gradient=user_gradient,
        item_gradient=item_gradient,
        parameter_gradients=by_parameter,
        per_user=users.new_zeros(len(users)).index_add_(0, owner, values) / count.clamp(min=1),
        num_positives=count,
        normalizer=found.normalizer,
        thresholds=beta,
    )


def _sampled(owner: Tensor, indices: Tensor, item_ids: Tensor, users: int) -> tuple[Tensor, Tensor]:
    """CSR of the places in a sample where users meet their positives."""
    rows, columns = tiled.excluded_pairs(owner, indices, item_ids)
    order = torch.sort(rows, stable=True).indices  # columns ascend already, and stay so within each row
    start = torch.zeros(users + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=users), 0, out=start[1:])
    return start, columns[order]


def _check_k(k: int, items: Tensor) -> None:
    if not 1 <= k <= len(items):
        raise ArgumentError(f"got {k}", where="k", expected=f"1 to {len(items)}, the number of items")


@torch.no_grad()
def kth_scores(
    user_vectors: Tensor, item_vectors: Tensor, k: int, *, users_per_chunk: int | None = None
) -> Tensor:
    """The K-th best score of every user over all items, (B,), without a users × items matrix.

    >>> kth_scores(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), k=2)
    tensor([0.5000])
    """
    _check_k(k, item_vectors)
    plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (user_vectors, item_vectors))
    if plain and library.available():
        kth = compiled.core_sweep(
            user_vectors, item_vectors, part=None, k=k, users_per_block=users_per_chunk
        ).kth
        assert kth is not None
        return kth
    return tiled.kth_scores(user_vectors, item_vectors, k, users_per_chunk=users_per_chunk)


class _Gradients(Protocol):
    """What a kernel finds."""

    @property
    def value(self) -> Tensor: ...
    @property
    def user_gradient(self) -> Tensor: ...
    @property
    def item_gradient(self) -> Tensor: ...
    @property
    def parameter_gradients(self) -> dict[str, Tensor]: ...
    @property
    def thresholds(self) -> Tensor | None: ...


class _Differentiable(torch.autograd.Function):
    """Gradients are found together with the value and handed out when asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        user_vectors: Tensor,
        item_vectors: Tensor,
        compute: Callable[[Tensor, Tensor], _Gradients],
        names: list[str],
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch = compute(user_vectors, item_vectors)
        zero = batch.value.new_zeros(())
        by_parameter = [batch.parameter_gradients.get(name, zero) for name in names]
        ctx.save_for_backward(batch.user_gradient, batch.item_gradient, *by_parameter)
        ctx.parameter_types = [p.dtype for p in parameters]
        beta = batch.value.new_empty(0) if batch.thresholds is None else batch.thresholds.clone()
        ctx.mark_non_differentiable(beta)
        return batch.value, beta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        users, items, *parameters = ctx.saved_tensors
        if bool(outer != 1):  # a step's own loss is not scaled: two passes over a table saved
            users, items = (outer * users).to(users.dtype), (outer * items).to(items.dtype)
        scaled = [
            (outer * gradient).to(dtype)
            for gradient, dtype in zip(parameters, ctx.parameter_types, strict=True)
        ]
        return (users, items, None, None, *scaled)


def in_autograd(
    user_vectors: Tensor,
    item_vectors: Tensor,
    loss: LossParts,
    compute: Callable[[Tensor, Tensor], _Gradients],
) -> tuple[Tensor, Tensor]:
    """A kernel's value and thresholds, with the gradients it found for both tables and the loss's scalars."""
    named = list(loss.named_parameters())
    found: tuple[Tensor, Tensor] = _Differentiable.apply(  # type: ignore[no-untyped-call]
        user_vectors, item_vectors, compute, [name for name, _ in named], *(value for _, value in named)
    )
    return found


def differentiable_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    thresholds: Tensor | None,
    loss: LossParts,
    **options: Any,
) -> Tensor:
    """`user_batch_loss` inside autograd: its value, with gradients for both tables and the loss's scalars.

    For backbones in which the vectors are themselves computed. The options are those of `user_batch_loss`.

    >>> from talos.losses import Talos
    >>> users, items = torch.randn(2, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    >>> value = differentiable_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), torch.zeros(2), Talos(tau=0.1))
    >>> value.backward(); items.grad.shape
    torch.Size([5, 4])
    """
    given = {"indptr": indptr, "indices": indices, "thresholds": thresholds, "loss": loss, **options}
    return in_autograd(user_vectors, item_vectors, loss, partial(user_batch_loss, **given))[0]


def exact_user_batch_loss(
    user_vectors: Tensor,
    item_vectors: Tensor,
    indptr: Tensor,
    indices: Tensor,
    k: int,
    loss: LossParts,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The same with each user's exact K-th best score as threshold: the value, and these thresholds (B,).

    In the compiled core both come from one pass over the items.

    >>> from talos.losses import Talos
    >>> users, items = torch.eye(2), torch.tensor([[0.1, 0.3], [0.9, 0.2], [0.5, 0.1]])
    >>> value, beta = exact_user_batch_loss(
    ...     users, items, torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2, Talos(tau=0.1))
    >>> beta
    tensor([0.5000, 0.2000])
    """
    given = {"indptr": indptr, "indices": indices, "thresholds": None, "loss": loss, "k": k, **options}
    return in_autograd(user_vectors, item_vectors, loss, partial(user_batch_loss, **given))
